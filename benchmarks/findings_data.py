"""Store and load the scores of individual photographs from which docs/findings.md is rendered.

Intervals, ranks and sentences are computed when the file is read, so the page always uses the current statistics.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.read.cell import Interval, as_json
from saliency_bench.read.finished_run import Run, read_run
from saliency_bench.read.report.words import short
from saliency_bench.read.run_folder import CellScores, RunFiles
from saliency_bench.read.statistics.intervals import interval
from saliency_bench.read.statistics.ranking import compare

FILE = Path(__file__).with_name("findings.parquet")


class Findings(NamedTuple):
    """Data for the page.

    Attributes:
        runs: {name: run}.
        readings: Text of the section on interpretations of mIoU, which needs maps.
        images: Value of `--images` in the command.
        sampled: Value of `--sampled` in the command.
    """

    runs: dict[str, Run]
    readings: str
    images: int
    sampled: int


def store(path: Path, folders: Mapping[str, Path], readings: str, images: int, sampled: int) -> None:
    """Write the scores of finished runs {name: folder} to a file."""
    rows = []
    for name, folder in folders.items():
        run = read_run(folder)
        summary = {key: run.summary[key] for key in ("cells", "seed", "batch_size")}
        if reliability := run.summary.get("reliability"):
            summary["reliability"] = reliability
        dataset, model = (run.summary[key] for key in ("dataset", "model"))
        summary["dataset"] = {"id": short(dataset["id"]), "used": dataset["used"]}
        summary["model"] = {"id": short(model["id"]), "accuracy": model["accuracy"]}
        ids, groups = run.scores.ids, run.scores.groups
        scores = [run.scores.values[cell.cell_id].tolist() for cell in run.cells]
        rows.append({"run": name, "summary": json.dumps(summary), "ids": ids, "groups": groups, "scores": scores})
    notes = {"readings": readings, "images": str(images), "sampled": str(sampled)}
    groups = pa.list_(pa.string())
    schema = pa.schema([("run", pa.string()), ("summary", pa.string()), ("ids", groups), ("groups", groups),
                        ("scores", pa.list_(pa.list_(pa.float64())))], metadata=notes)  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, schema), path, compression="zstd", compression_level=19)


def load(path: Path = FILE) -> Findings:
    """Read the file and compute intervals, ranks and comparisons from its scores."""
    table = pq.read_table(path)
    notes = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    runs = {row["run"]: _analysed(row) for row in table.to_pylist()}
    return Findings(runs, notes["readings"], int(notes["images"]), int(notes["sampled"]))


def _analysed(row: dict) -> Run:
    """Return the run in a row of the file, with current statistics."""
    summary = json.loads(row["summary"])
    cells = [cell["cell_id"] for cell in summary["cells"]]
    values = {cell_id: np.array(scores) for cell_id, scores in zip(cells, row["scores"], strict=True)}
    scores = CellScores(row["ids"], row["groups"], values)
    return analysed(Run(Path(row["run"]), summary, files=RunFiles(scores)))


def analysed(run: Run) -> Run:
    """Return a run with intervals, ranks and comparisons computed from its scores."""
    codes, seed = run.scores.codes(), run.seed
    contrasts, standings = compare(run.cells, run.scores.values, codes, seed)
    cells = []
    for cell in run.cells:
        score = Interval.from_estimate(interval(run.scores.values[cell.cell_id], codes, cell.limits, seed))
        cells.append(cell.model_copy(update=dict(score) | standings[cell.cell_id].as_dict()))
    return replace(run, summary=run.summary | {"cells": as_json(cells), "comparisons": as_json(contrasts)})
