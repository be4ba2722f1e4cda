"""Scores of the images that the classifier gets right, and of those that it gets wrong."""

import numpy as np
import pyarrow.parquet as pq

from saliency_bench.analysis.tables import Table
from saliency_bench.errors import UserError
from saliency_bench.results.intervals import intervals
from saliency_bench.results.run_folder import RunData

HEADER = ("explainer", "metric", "images", "value", "low", "high", "n")
GROUPS = {True: "right", False: "wrong"}


def by_correctness(run: RunData) -> Table:
    """Return the mean of each cell over the images that are classified rightly, and over those that are not.

    Both have the intervals of any mean of scores. Images without a known label are in neither, and values that are no
    means of scores in no row.

    Raises:
        UserError: It is not known of any image whether it is classified rightly.
    """
    names = ["image_id", "correct"]
    tables = [pq.read_table(folder / "predictions.parquet", columns=names) for folder in run.all_folders]
    correct = {row["image_id"]: row["correct"] for table in tables for row in table.to_pylist()}
    right = [correct.get(image_id) for image_id in run.ids]
    if all(known is None for known in right):
        raise UserError(f"of no image of {run.folder} it is known whether it is classified rightly")
    cells: list[tuple] = []
    for row in run.rows:
        for column in run.columns:
            if (cell := run.cell(row, column)) is None or cell.aggregate:
                continue
            for known, name in GROUPS.items():
                chosen = np.array([answer is known for answer in right])
                values = np.where(chosen, run.values[cell.cell_id], np.nan)
                (estimate,) = intervals(values[:, None], run.codes(), cell.limits, run.summary["seed"])
                cells.append((row.name, column.name, name, *estimate.known, estimate.n))
    return Table(HEADER, cells)
