"""Measure the time to write the report on a large run (5,000 records in each of 50 cells), and on two such runs.

example:
  python benchmarks/report.py

The run consists of random scores in a temporary folder, with images at the size of a classifier's input. The
measurement covers `report`, from reading the files to writing the page, but not imports, because they are already
loaded at the end of a run.
"""

import argparse
import atexit
import shutil
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from saliency_bench.compute.examples import save_arrays
from saliency_bench.read import records
from saliency_bench.read.cell import CellResult, ForwardPasses, as_json
from saliency_bench.read.report.report_page import report
from saliency_bench.read.summary import FORMAT
from saliency_bench.utils.files import write_json
from saliency_bench.utils.hashing import hash_of

ASKED = 2.0
METRICS = 5
SIDE, SMALL = 224, 56  # size of images and of small maps in pixels
KINDS = ["best"] * 4 + ["worst"] * 4 + ["most disputed"] * 4

parser = argparse.ArgumentParser(
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--samples", type=int, default=5000, metavar="N", help="number of records per cell (default: 5000)")
parser.add_argument("--cells", type=int, default=50, metavar="N", help=f"a multiple of {METRICS}; default: 50")
parser.add_argument("--rounds", type=int, default=5, metavar="N", help="number of pages of each type (default: 5)")
args = parser.parse_args()

work = Path(tempfile.mkdtemp(prefix="report-"))
atexit.register(shutil.rmtree, work, ignore_errors=True)
ids = [f"sample-{number:06d}" for number in range(args.samples)]

for seed in (0, 1):
    rng = np.random.default_rng(seed)
    folder = work / f"run-{seed}"
    cells, tables = [], []
    for number in range(args.cells):
        explainer, metric = f"explainer_{number // METRICS}", f"metric_{number % METRICS}"
        scores = rng.normal(0.5 + 0.01 * number, 0.2, args.samples)
        margin = 2 * scores.std() / np.sqrt(args.samples)
        cell = CellResult(
            cell_id=hash_of(explainer, metric, seed), explainer_id=hash_of(explainer), explainer=explainer,
            explainer_options={}, explainer_text=explainer, explainer_version=1, baseline=False, metric=metric,
            metric_options={}, metric_text=metric, metric_version=1, higher_is_better=number % 2 == 0,
            range=(None, None), clusters=args.samples, unranked="too few to rank", scored=1.0, median=scores.mean(),
            value=scores.mean(), low=scores.mean() - margin, high=scores.mean() + margin, n=args.samples, rank=None,
            left_out={}, flat=0, marked={}, forward_passes=ForwardPasses(explain=args.samples),
        )  # fmt: skip
        texts = {
            "cell_id": cell.cell_id, "dataset": "made-up", "split": "test", "model": "none", "explainer": explainer,
            "explainer_options": "{}", "metric": metric, "metric_options": "{}", "label": "one", "prediction": "two",
            "target": "one",
        }  # fmt: skip
        columns = {name: pa.array([text] * args.samples) for name, text in texts.items()}
        columns |= {"image_id": pa.array(ids), "value": pa.array(scores)}
        columns |= {
            name: pa.nulls(args.samples, records.SCHEMA.field(name).type) for name in ("group", "part", "reason")
        }
        tables.append(pa.table({name: columns[name] for name in records.SCHEMA.names}, schema=records.SCHEMA))
        cells.append(cell)
    records.concat(tables, folder / "records.parquet", records.SCHEMA)
    predicted = [{"image_id": image_id, "confidence": 0.5, "correct": True, "mask_share": 0.1} for image_id in ids]
    records.write(folder / "predictions.parquet", predicted, records.PREDICTIONS)
    summary = {
        "format": FORMAT,
        "dataset": {
            "id": "made-up", "split": "test", "fingerprint": "f", "samples": args.samples, "used": args.samples,
            "classes": 2,
        },
        "model": {
            "id": "none", "revision": None, "digest": f"d{seed}", "geometry": "as it is",
            "accuracy": {"value": 1.0, "low": 1.0, "high": 1.0, "n": args.samples, "clusters": args.samples},
        },
        "masks": {"usable": args.samples, "mean_share": 0.1, "left_out": {}},
        "target": "label", "precision": "fp32", "seed": seed, "batch_size": 100, "cells": as_json(cells), "faults": {},
        "comparisons": [], "groups": None, "halved_chunks": 0, "command": "none", "provenance": {},
    }  # fmt: skip
    write_json(folder / "summary.json", summary)
    explainers = list(dict.fromkeys(cell.explainer for cell in cells))
    save_arrays(
        folder / "examples.npz",
        ids=np.array(ids[: len(KINDS)]),
        kinds=np.array(KINDS[: len(ids)]),
        images=rng.integers(0, 256, (len(KINDS), SIDE, SIDE, 3)).astype(np.uint8)[: len(ids)],
        masks=(np.hypot(*(np.mgrid[:SIDE, :SIDE] - SIDE / 2)) < SIDE / 4)[None].repeat(len(KINDS), 0)[: len(ids)],
        **{
            f"maps/{hash_of(name)}": rng.integers(0, 256, (len(KINDS), SMALL, SMALL)).astype(np.uint8)[: len(ids)]
            for name in explainers
        },
    )

print(f"{args.samples:,} records in each of {args.cells} cells; {args.rounds} rounds\n")
kinds = {"one run": [work / "run-0"], "two side by side": [work / "run-0", work / "run-1"]}
for kind, folders in kinds.items():
    seconds = []
    for _ in range(args.rounds):
        begun = perf_counter()
        page = report(folders, work / "page.html")
        seconds.append(perf_counter() - begun)
    each = " ".join(f"{value:.2f}" for value in seconds)
    print(f"{kind}: first {seconds[0]:.2f} s, median {statistics.median(seconds):.2f} s ({each}); "
          f"{page.stat().st_size / 2**20:.1f} MiB")  # fmt: skip
    if kind == "one run":
        print(f"required: under {ASKED:.0f} s; {'met' if seconds[0] < ASKED else 'NOT met'} by the first call\n")
