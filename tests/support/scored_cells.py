"""Create runs in memory with given scores."""

from pathlib import Path

import numpy as np

from saliency_bench.read.cell import CellResult, as_json
from saliency_bench.read.finished_run import Run
from saliency_bench.read.run_folder import CellScores, RunFiles


def run_in_memory(cells, ids, values, groups=None, **summary):
    """Return a run with the given cells and scores {cell id: scores}, without a folder."""
    scores = CellScores(ids, groups or [None] * len(ids), values)
    return Run(Path("run"), {"cells": as_json(cells)} | summary, files=RunFiles(scores))


def run_of(scores, groups=None, metric="m", summary=None):
    """Return a run with one metric in [0, 1] from {explainer: scores}; `random` is a baseline."""
    cells = [
        CellResult.model_validate({
            "cell_id": f"{index:016x}", "explainer_id": f"{index:016x}", "explainer": name, "explainer_options": {},
            "explainer_text": name, "explainer_version": 1, "baseline": name == "random", "metric": metric,
            "metric_options": {}, "metric_text": metric, "metric_version": 1, "higher_is_better": True,
            "range": (0.0, 1.0), "value": 0.5, "low": None, "high": None, "n": len(own), "clusters": 1, "rank": None,
            "unranked": "x", "scored": 1.0, "median": None, "left_out": {}, "flat": 0, "marked": {},
            "forward_passes": {},
        })
        for index, (name, own) in enumerate(scores.items())
    ]  # fmt: skip
    count = len(next(iter(scores.values())))
    columns = {cell.cell_id: np.asarray(own) for cell, own in zip(cells, scores.values(), strict=True)}
    return run_in_memory(cells, [str(index) for index in range(count)], columns, groups, **(summary or {}))
