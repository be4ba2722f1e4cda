"""Compare scores of correctly classified images with scores of misclassified images."""

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.tables import Table
from saliency_bench.read.run_folder import RunData
from saliency_bench.read.statistics.intervals import intervals

HEADER = ("explainer", "metric", "images", "value", "low", "high", "n")
GROUPS = {True: "right", False: "wrong"}


def by_correctness(run: RunData) -> Table:
    """Return the mean of each cell over the correctly classified images, and over the misclassified images.

    Both means have the same kind of interval as other means of scores. Images without a known label are in neither
    group. Cells whose value is not a mean of scores, and cells of retraining metrics, have no rows.

    Raises:
        UserError: No image of the run has a known label.
    """
    right = run.predictions.get("correct", [])
    if all(known is None for known in right):
        raise UserError(
            f"no image of {run.folder} has a known label, so none counts as right or wrong; use a labelled dataset"
        )
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
