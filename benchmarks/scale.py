"""Measure a run with millions of records (merge, summary and report): time, peak memory, files, size of the page.

example:
  python benchmarks/scale.py --records 50e6 --folder /tmp/scale
  python benchmarks/scale.py --real 50000 --folder /tmp/scale

The part files contain random scores and are written by functions of the package, for 23 explainers and 20 metrics. The
scores of three metrics have eight parts. A quarter of the metrics has no score for a third of the samples, and one
metric has missing scores that depend on the explainer. All later steps are the same as in a run: merging, summary and
report, each in a separate process. Finally, the finished run is started again. Thumbnails are written only for the
samples that the report shows. `--real N` runs two cheap explainers with two metrics on N small images, and on a fifth
of them. Memory is the peak resident memory, including torch (about 600 MiB).
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

BATCH, CLASSES, SIDE = 16, 37, 32
AT_ONCE = 512  # batches per part file
EXPLAINERS, METRICS, PARTS = 23, 20, 8
BESIDES = {"groups", "other", "retrained", "first_right"}  # inputs that these samples lack
WITH_PARTS, MASKED, OWN = (0, 1, 2), 4, 3  # metrics with parts; every 4th lacks masks; metric 3 misses scores
MIB = 2**20


def samples_of(records: float, explainers: int, metrics: int) -> int:
    """Return the number of samples for approximately this many records in all cells."""
    return max(1, round(records / explainers / (metrics + PARTS * len(WITH_PARTS))))


def pictures() -> list[tuple[dict, dict]]:
    """Return 64 encoded images, each of a single colour, and their masks."""
    from PIL import Image

    def png(array: np.ndarray) -> dict:
        buffer = BytesIO()
        Image.fromarray(array).save(buffer, "png")
        return {"bytes": buffer.getvalue(), "path": None}

    rng = np.random.default_rng(0)
    found = []
    for _ in range(64):
        mask = np.zeros((SIDE, SIDE), np.uint8)
        top, left = rng.integers(0, SIDE // 2, 2)
        mask[top : top + SIDE // 3, left : left + SIDE // 3] = 255
        found.append((png(np.where(mask[..., None] > 0, *rng.integers(0, 256, (2, 3), dtype=np.uint8))), png(mask)))
    return found


def make_dataset(folder: Path, samples: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import ClassLabel, Features, Image, Value

    kinds = {
        "image": Image(), "mask": Image(), "image_id": Value("string"),
        "label": ClassLabel(names=[f"class {number}" for number in range(CLASSES)]),
    }  # fmt: skip
    known = pictures()
    columns = {
        "image": [known[number % len(known)][0] for number in range(samples)],
        "mask": [known[number % len(known)][1] for number in range(samples)],
        "image_id": [f"sample-{number:06d}" for number in range(samples)],
        "label": [number % CLASSES for number in range(samples)],
    }
    (folder / "data").mkdir(parents=True)
    table = pa.Table.from_pydict(columns, schema=Features(kinds).arrow_schema)
    pq.write_table(table, folder / "data" / "test-00000-of-00001.parquet", row_group_size=100)


def settings(folder: Path, explainers: int, metrics: int) -> dict:
    """Return the settings of the run."""
    from saliency_bench import registry

    known = [name for name in registry.names("metrics") if can_be_drawn(name)]
    more = (f"saliency_miou:threshold={number / 100}" for number in range(1, 50))
    return {
        "explainers": registry.names("explainers")[:explainers],
        "metrics": [*known, *more][:metrics],
        "dataset": str(folder / "dataset"),
        "model": network(),
        "batch_size": BATCH,
        "out": str(folder / "run"),
        "device": "cpu",
    }


def can_be_drawn(name: str) -> bool:
    """Return whether a metric has one score per image and needs neither a second network nor other images."""
    from saliency_bench.bound_metric import load_metric

    metric = load_metric(name)
    return metric.aggregate is None and metric.declaration.plan is None and not BESIDES & set(metric.inputs)


def network():
    import torch

    import saliency_bench as sb

    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, CLASSES)
    return sb.load_classifier(
        torch.nn.Sequential(*layers), mean=0, std=1, labels=[f"class {k}" for k in range(CLASSES)]
    )


def loaded(chosen: dict):
    """Return the part files, the samples, the network and the cells of the run."""
    from saliency_bench.compute.cells import cells_of
    from saliency_bench.compute.loaded import identity_of
    from saliency_bench.compute.loading.load import load
    from saliency_bench.compute.python_objects import describe
    from saliency_bench.read.parts import RunStore

    data, model, pairs = load(*describe(chosen))
    store = RunStore(Path(chosen["out"]).absolute(), identity_of(data, model))
    return store, data, model, cells_of(store.identity, data, model, pairs, {})


def make(chosen: dict) -> None:
    """Write run.json and part files of all predictions and scores."""
    from saliency_bench.compute.plan import by_explainer
    from saliency_bench.compute.writing import Writer
    from saliency_bench.read.manifest import Manifest
    from saliency_bench.utils.hashing import hash_of

    store, data, model, cells = loaded(chosen)
    manifest = Manifest(
        spec=data.spec, identity=store.identity, cells={cell.id: cell.key for cell in cells},
        dataset=data.loaded_from, model=model.loaded_from,
    )  # fmt: skip
    manifest.write(store.out)
    with Writer(store) as writer:
        for first in range(0, len(data.batches), AT_ONCE):
            batches = data.batches[first : first + AT_ONCE]
            predictions(data.schema, batches, writer)
            for number, (explainer, of_explainer) in enumerate(by_explainer(cells).items()):
                scored = {cell.id: scores(cell, number, index, batches) for index, cell in enumerate(of_explainer)}
                add_scores(hash_of(explainer.identity), batches, scored, writer)
            writer.write()


def add_scores(explainer_id: str, batches: list[range], scored: dict, writer) -> None:
    """Pass the scores of an explainer to the writer, batch by batch."""
    from saliency_bench.read.parts import POSITION, StoredResult

    about = {"faults": 0, "raised": False, "halved": 0, "passes": {"explain": BATCH}, "batch_size": BATCH}
    about |= {"cells": None, "negative": False}
    bounds = [*(batch.start for batch in batches), batches[-1].stop]
    edges = {key: np.searchsorted(table[POSITION].to_numpy(), bounds) for key, table in scored.items()}
    for place, batch in enumerate(batches):
        tables = {
            key: table.slice(edges[key][place], edges[key][place + 1] - edges[key][place])
            for key, table in scored.items()
        }
        writer.add(writer.store.scores, StoredResult(explainer_id, batch, tables, about))


def predictions(schema, batches: list[range], writer) -> None:
    """Pass the predictions of these batches to the writer."""
    import pyarrow as pa

    from saliency_bench.compute.predictions import GROUP
    from saliency_bench.read.parts import POSITION, StoredResult

    folder = writer.store.predictions("predictions", schema)
    for positions in batches:
        rows = [
            {
                "image_id": f"sample-{place:06d}", "label": place % CLASSES, "prediction": place * 7 % CLASSES,
                "confidence": 0.5, "correct": place * 6 % CLASSES == 0, "top5": True, "mask_share": 0.1,
                "logits": [0.0] * CLASSES,
            }
            for place in positions
        ]  # fmt: skip
        table = pa.Table.from_pylist(rows, schema=schema)
        table = table.add_column(0, POSITION, pa.array(positions, pa.int64()))
        writer.add(folder, StoredResult(GROUP, positions, {GROUP: table}, {"unreadable": []}))


def scores(cell, explainer: int, index: int, batches: list[range]):
    """Yield the rows of a cell. Explainers differ slightly, and a sample is equally difficult for all explainers."""
    import pyarrow as pa

    from saliency_bench.read.records import STORED

    first = batches[0].start // BATCH
    positions = np.arange(batches[0].start, batches[-1].stop)
    rng = np.random.default_rng([explainer, index, first])
    hard = np.random.default_rng([index, first]).beta(2, 3, len(positions))
    values = np.clip(0.7 * hard + 0.3 * rng.beta(2 + 0.05 * explainer, 3, len(positions)), 0, 1)
    low, high = cell.metric.limits(cell.target)
    if np.isfinite([low, high]).all():
        values = low + (high - low) * values
    gone = positions % 3 == 0 if index % MASKED == 0 else rng.random(len(positions)) < 0.01 * (index == OWN)
    width = 1 + PARTS * (index in WITH_PARTS)
    names = pa.array([None, *(f"part {number}" for number in range(PARTS))], pa.string())
    columns = [
        pa.array(np.repeat(positions, width)),
        pa.array(["class 0"], pa.string()).take(pa.array(np.zeros(len(positions) * width, int))),
        names.take(pa.array(np.tile(np.arange(width), len(positions)))),
        pa.array(np.repeat(values, width), mask=np.repeat(gone, width)),
        pa.array(["no mask"]).take(pa.array(np.zeros(len(positions) * width, int), mask=~np.repeat(gone, width))),
    ]
    nothing = (pa.nulls(len(columns[0]), field.type) for field in list(STORED)[len(columns) :])
    return pa.table([*columns, *nothing], schema=STORED)


def merge(chosen: dict) -> None:
    from saliency_bench.compute.merging import Parts, merge

    run = loaded(chosen)
    measured(lambda: merge(*run, Parts.read(*run)))


def summarise(chosen: dict) -> None:
    from saliency_bench.compute.finish import run_facts
    from saliency_bench.read.summary import summarise

    store, data, model, cells = loaded(chosen)
    measured(lambda: summarise(store.out, run_facts(data, model, cells, {}, len(data.rows))))


def report(chosen: dict) -> None:
    """Select samples, and write their thumbnails and the report."""
    import torch

    from saliency_bench.compute.examples import choose, thumbnail_rows, write_examples
    from saliency_bench.compute.finish import made_of, note_written, run_facts
    from saliency_bench.compute.merging import Parts
    from saliency_bench.compute.writing import Writer
    from saliency_bench.read.cell import read_cells
    from saliency_bench.read.parts import StoredResult
    from saliency_bench.read.report.report_page import report
    from saliency_bench.utils.files import read_json

    store, data, model, cells = loaded(chosen)
    results = read_cells(read_json(store.out / "summary.json")["cells"])
    maps = torch.linspace(0, 1, SIDE * SIDE).reshape(1, SIDE, SIDE)
    with Writer(store) as writer:
        for image_id, _ in choose(store.out, results):
            position = int(image_id.partition("-")[2])
            rows = thumbnail_rows(maps, [position])
            for key in dict.fromkeys(cell.explainer_id for cell in results):
                writer.add(store.thumbnails, StoredResult(key, [position], {key: rows}))

    def all_of_it() -> None:
        rows, facts = data.samples.rows, run_facts(data, model, cells, {}, len(data.rows))
        write_examples(store, results, lambda index: model.classifier.prepare([rows[index]]))
        report([store.out])
        note_written(store.out, made_of(Parts.read(store, data, model, cells), facts))

    measured(all_of_it)


def again(chosen: dict) -> None:
    """Start the finished run again. The model is created and libraries are imported before the measurement."""
    import saliency_bench as sb
    import saliency_bench.compute.run

    _, data, model, _ = loaded(chosen)
    model.classifier.prepare([data.samples.rows[0]])  # imports torchvision before the measurement
    measured(lambda: sb.run(**chosen, progress=False))


def real(chosen: dict) -> None:
    def brightness(classifier, images, target):
        return images.mean(dim=1)

    import saliency_bench as sb

    own = {"explainers": ["random", brightness], "metrics": ["saliency_miou", "saliency_pointing_game"]}
    measured(lambda: sb.run(**chosen | own | {"batch_size": 100}, progress=False))


STAGES: dict[str, Callable[[dict], None]] = {
    "make": lambda chosen: measured(lambda: make(chosen)), "merge": merge, "summarise": summarise, "report": report,
    "start again": again, "real": real,
}  # fmt: skip


def measured(work: Callable[[], object]) -> None:
    """Print the wall time and processor time of `work` in seconds and the peak memory in MiB, as JSON."""
    begun, busy = perf_counter(), process_time()
    work()
    seconds, busy = perf_counter() - begun, process_time() - busy
    # The peak of getrusage would include the parent's memory from before this process executed its own program.
    peak = int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
    print(json.dumps({"seconds": seconds, "busy": busy, "peak": peak}))


def child(stage: str, folder: Path, explainers: int, metrics: int) -> dict[str, float]:
    """Return {"seconds", "peak"} of a stage in a separate process."""
    sizes = ["--explainers", str(explainers), "--metrics", str(metrics)]
    done = subprocess.run(
        [sys.executable, __file__, "--folder", folder, "--stage", stage, *sizes],
        capture_output=True, text=True, env=os.environ | {"HF_DATASETS_CACHE": str(folder / "cache")},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{stage} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def generated(folder: Path, records: float, explainers: int = EXPLAINERS, metrics: int = METRICS) -> dict:
    """Create the run, run all stages and print their costs.

    Returns:
        {stage: measurements}, including measurements of the files.
    """
    samples = samples_of(records, explainers, metrics)
    print(f"{explainers} explainers x {metrics} metrics x {samples:,} samples", flush=True)
    make_dataset(folder / "dataset", samples)
    found: dict = {}
    for stage in ("make", "merge", "summarise", "report", "start again"):
        found[stage] = child(stage, folder, explainers, metrics)
        seconds, busy, peak = (found[stage][key] for key in ("seconds", "busy", "peak"))
        print(f"{stage:12} {seconds:8.1f} s {busy:8.1f} s of processors {peak:8.0f} MiB", flush=True)
    import pyarrow.parquet as pq

    out = folder / "run"
    about = pq.read_metadata(out / "records.parquet")
    found["records"], found["row groups"] = about.num_rows, about.num_row_groups
    found["files"] = sum(path.is_file() for path in out.rglob("*"))
    found["records MiB"] = (out / "records.parquet").stat().st_size / MIB
    found["page MiB"] = (out / "report.html").stat().st_size / MIB
    print(f"{found['records']:,} records, {found['records MiB']:.0f} MiB, in {found['row groups']:,} row groups; "
          f"{found['files']:,} files; page of {found['page MiB']:.1f} MiB")  # fmt: skip
    return found


def computed(folder: Path, samples: int) -> dict[int, dict[str, float]]:
    """Return {samples: measurements} of a real run on this many samples and of a run on a fifth of them."""
    found = {}
    for number in (samples // 5, samples):
        make_dataset(folder / str(number) / "dataset", number)
        found[number] = child("real", folder / str(number), EXPLAINERS, METRICS)
        print(
            f"{number:,} samples x 2 x 2: {found[number]['seconds']:.0f} s, {found[number]['peak']:.0f} MiB", flush=True
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=float, default=5e6, metavar="N", help="approximate number (default: 5e6)")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="empty folder; 50e6: about 1 GB")
    parser.add_argument("--real", type=int, metavar="N", help="instead, run on N samples and on a fifth of them")
    for name, default in (("explainers", EXPLAINERS), ("metrics", METRICS)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default: {default}")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        STAGES[args.stage](settings(args.folder, args.explainers, args.metrics))
    elif args.real:
        computed(args.folder, args.real)
    else:
        generated(args.folder, args.records, args.explainers, args.metrics)


if __name__ == "__main__":
    main()
