"""Find Clever Hans samples: the network predicts their target confidently, but from pixels outside the object.

A sample must meet three conditions (Li et al., 2020, equation 19): f_c above 0.9, pointing game below 0.5, and
insertion above the median of the explainer's scores in the run. f_c is the network's confidence in the explained
target, which need not be the most probable class. As in saliency_insertion, f_c is the probability of the target class,
the sum of the probabilities of a group, or the difference between the two groups of a contrast. If all conditions are
met, the map points outside the mask, and the pixels that it highlights are enough for the network, so the network may
use the wrong evidence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.read import records
from saliency_bench.read.analysis.tables import Findings, Table, dicts
from saliency_bench.read.cell import CellResult
from saliency_bench.read.cell_table import CellTable, ExplainerRow
from saliency_bench.read.statistics.intervals import interval

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

HEADER = ("dataset", "model", "explainer", "sample", "label", "prediction", "target",
          "confidence", "pointing game", "insertion")  # fmt: skip
CONFIDENCE, POINTED = 0.9, 0.5  # equation 19: limits of the confidence and the pointing game
POINTING, INSERTION = "saliency_pointing_game", "saliency_insertion"
COUNTS = ("dataset", "model", "explainer", "found", "of", "share", "low", "high", "insertion above")


def clever_hans(
    runs: Sequence["Run"],
    confidence: float = CONFIDENCE,
    pointing_game: float = POINTED,
    insertion: float | None = None,
) -> Findings:
    """List, for each explainer that uses the network, the samples that meet all three conditions.

    Args:
        runs: Runs with saliency_pointing_game and saliency_insertion.
        confidence: Lower limit of f_c, the confidence in the target that the maps explain. Samples that the network is
            known to classify incorrectly are ignored.
        pointing_game: Upper limit of the pointing game.
        insertion: Lower limit of insertion; by default the median of the explainer's own scores in the run.

    Returns:
        The samples, highest insertion first, and the number of samples per explainer.
    """
    rows: list[tuple] = []
    counts: list[tuple] = []
    for run in runs:
        subject = run.subject
        for row, pointing, inserted in _scored_by_both(run.table):
            chosen = found_by(run, pointing, inserted, confidence, pointing_game, insertion)
            named = _samples(run, pointing, [run.scores.ids[index] for index in chosen.order])
            columns = chosen.confidences, run.scores.values[pointing.cell_id], run.scores.values[inserted.cell_id]
            for index in chosen.order:
                numbers = (float(column[index]) for column in columns)
                rows.append((*subject, row.name, run.scores.ids[index], *named[run.scores.ids[index]], *numbers))
            share = interval(chosen.hits, run.scores.codes(), (0.0, 1.0))
            scored = int(np.isfinite(chosen.hits).sum())
            counts.append((*subject, row.name, len(chosen.order), scored, *share.known, chosen.least))
    if not counts:
        raise UserError(
            f"Clever Hans samples require scores of {POINTING} and {INSERTION}, but no explainer in these runs has "
            "both; repeat a run with both metrics"
        )
    above = "the median of the explainer's scores" if insertion is None else f"{insertion:g}"
    notes = [
        f"Confidence in the explained target above {confidence:g}, pointing game below {pointing_game:g}, insertion "
        f"above {above}; samples that are known to be misclassified are ignored.",
        "The 95 % intervals of the shares treat these thresholds as fixed and ignore the variation of the median.",
        "Inspect each sample: the mask may be wrong, and valid evidence may lie outside the object.",
    ]
    data = {"samples": dicts(HEADER, rows), "explainers": dicts(COUNTS, counts)}
    return Findings("clever-hans", [Table(COUNTS, counts), Table(HEADER, rows, "samples")], data, notes)


@dataclass(frozen=True)
class FoundSamples:
    """Samples of a run that meet all three conditions.

    Attributes:
        hits: Array (n,) in the order of the run's ids: 1 for these samples, 0 for others, NaN if a score is missing.
        order: Positions of these samples, highest insertion first.
        confidences: f_c (n,).
        least: Lower limit of insertion.
    """

    hits: np.ndarray
    order: list[int]
    confidences: np.ndarray
    least: float


def found_by(
    run: "Run",
    pointing: CellResult,
    inserted: CellResult,
    confidence: float = CONFIDENCE,
    pointing_game: float = POINTED,
    insertion: float | None = None,
) -> FoundSamples:
    """Return the samples that meet all conditions of `clever_hans`, given two cells of an explainer."""
    confidences, right = _confidences(run)
    scores = run.scores.values[pointing.cell_id], run.scores.values[inserted.cell_id]
    common = np.isfinite(scores[0]) & np.isfinite(scores[1]) & np.isfinite(confidences)
    least = float(np.median(scores[1][common])) if insertion is None and common.any() else insertion or 0.0
    hits = common & right & (confidences > confidence) & (scores[0] < pointing_game) & (scores[1] > least)
    order = sorted(np.flatnonzero(hits).tolist(), key=lambda index: -scores[1][index])
    return FoundSamples(np.where(common, hits.astype(float), np.nan), order, confidences, least)


def _scored_by_both(table: CellTable) -> Iterator[tuple[ExplainerRow, CellResult, CellResult]]:
    """Yield each explainer with its cells of both metrics, preferring default options if a metric has several cells."""
    for row in table.rows:
        cells: dict[str, CellResult] = {}
        for cell in sorted(table.cells_of_row(row), key=lambda cell: len(cell.metric_text)):
            cells.setdefault(cell.metric, cell)
        if not row.baseline and POINTING in cells and INSERTION in cells:
            yield row, cells[POINTING], cells[INSERTION]


def _confidences(run: "Run") -> tuple[np.ndarray, np.ndarray]:
    """Return (f_c (n,), NaN if unknown; bool (n,), False if a sample is known to be misclassified).

    Raises:
        UserError: The predictions are missing, or do not include the confidence in the target.
    """
    if "target_confidence" not in run.prediction_columns:
        raise UserError(
            f"predictions.parquet in {run.folder} is missing or lacks the column target_confidence, which earlier "
            "versions did not write; start the run again"
        )
    confidences = [np.nan if value is None else value for value in run.prediction_columns["target_confidence"]]
    right = [value is not False for value in run.prediction_columns.get("correct", [None] * len(run.scores.ids))]
    return np.array(confidences, dtype=float), np.array(right, dtype=bool)


def _samples(run: "Run", cell: CellResult, ids: Sequence[str]) -> dict[str, tuple[str | None, ...]]:
    """Return {image id: (label, prediction, target)} for the samples with these ids, as recorded for a cell."""
    run.origins[cell.cell_id].check_current()
    wanted, classes, names = set(ids), {}, ("label", "prediction", "target")
    path = run.origins[cell.cell_id].folder / "records.parquet"
    stretches = records.by_cell(path, ["image_id", *names], [cell.cell_id])
    for _, batch in stretches:
        for entry in batch.to_pylist():
            if entry["image_id"] in wanted:
                classes[entry["image_id"]] = tuple(entry[name] for name in names)
    return classes
