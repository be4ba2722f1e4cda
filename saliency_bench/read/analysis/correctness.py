"""Compare scores of correctly classified images with scores of misclassified images."""

from typing import TYPE_CHECKING

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.tables import Table
from saliency_bench.read.statistics.intervals import intervals

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

HEADER = ("explainer", "metric", "images", "value", "low", "high", "n")
GROUPS = {True: "right", False: "wrong"}


def by_correctness(run: "Run") -> Table:
    """Return the mean of each cell over the correctly classified images, and over the misclassified images.

    Both means have the same kind of interval as other means of scores. Images without a known label are in neither
    group. Cells whose value is not a mean of scores, and cells of retraining metrics, have no rows.

    Raises:
        UserError: No image of the run has a known label.
    """
    right = run.prediction_columns.get("correct", [])
    if all(known is None for known in right):
        raise UserError(
            f"no image of {run.folder} has a known label, so correct and wrong predictions cannot be distinguished; "
            "use a labelled dataset"
        )
    groups = {name: np.array([answer is known for answer in right]) for known, name in GROUPS.items()}
    codes = run.scores.codes()
    cells: list[tuple] = []
    for row in run.table.rows:
        for column in run.table.columns:
            if (cell := run.table.cell(row, column)) is None or cell.aggregate or cell.trainings:
                continue
            for name, chosen in groups.items():
                values = np.where(chosen, run.scores.values[cell.cell_id], np.nan)
                (estimate,) = intervals(values[:, None], codes, cell.limits, run.seed)
                cells.append((row.name, column.name, name, *estimate.known, estimate.n))
    return Table(HEADER, cells)
