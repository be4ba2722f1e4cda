"""Scores of the images that the classifier gets right, and of those that it gets wrong."""

import numpy as np

from saliency_bench.analysis.tables import Table
from saliency_bench.errors import UserError
from saliency_bench.results.intervals import intervals
from saliency_bench.results.run_folder import RunData

HEADER = ("explainer", "metric", "images", "value", "low", "high", "n")
GROUPS = {True: "right", False: "wrong"}


def by_correctness(run: RunData) -> Table:
    """Return the mean of each cell over the images that are classified rightly, and over those that are not.

    Both have the intervals of any mean of scores. Images without a known label are in neither group. Values that are no
    means of scores, and those of retraining metrics, which vary with the trainings too, have no row.

    Raises:
        UserError: It is not known of any image whether it is classified rightly.
    """
    right = run.predictions.get("correct", [])
    if all(known is None for known in right):
        raise UserError(f"of no image of {run.folder} it is known whether it is classified rightly")
    groups = {name: np.array([answer is known for answer in right]) for known, name in GROUPS.items()}
    codes = run.codes()
    cells: list[tuple] = []
    for row in run.rows:
        for column in run.columns:
            if (cell := run.cell(row, column)) is None or cell.aggregate or cell.trainings:
                continue
            for name, chosen in groups.items():
                values = np.where(chosen, run.values[cell.cell_id], np.nan)
                (estimate,) = intervals(values[:, None], codes, cell.limits, run.summary["seed"])
                cells.append((row.name, column.name, name, *estimate.known, estimate.n))
    return Table(HEADER, cells)
