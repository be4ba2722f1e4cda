"""Find identical scores in two submissions. They indicate repeated rows, or maps that were copied and renamed."""

from collections.abc import Iterable

import numpy as np

from saliency_bench.board.checks import CheckedSubmission, known_explainer
from saliency_bench.board.standing import ScoredCell, question_of
from saliency_bench.read.analysis.differences import NEGLIGIBLE, TOLERANCE, same
from saliency_bench.read.identity import CellIds


def covers(other: ScoredCell, cell: ScoredCell) -> bool:
    """Return whether `other` contains all samples of `cell`, with the same groups and (up to rounding) scores."""
    ours, theirs = cell.submission.recorded, other.submission.recorded
    if ours.ids == theirs.ids:
        return ours.groups == theirs.groups and bool(same(cell.scores, other.scores).all())
    order = theirs.positions(ours.ids)
    if (order < 0).any() or ours.groups != [theirs.groups[index] for index in order]:
        return False
    return bool(same(cell.scores, other.scores[order]).all())


def agree(first: ScoredCell, second: ScoredCell) -> bool:
    """Return whether two cells have the same scores for the same samples."""
    return len(first.scores) == len(second.scores) and covers(first, second)


def other_names(method: ScoredCell, others: Iterable[ScoredCell]) -> list[str]:
    """Return "NAME by SUBMITTER" for each method that has a different name but exactly the same scores.

    Explainers of the package are not compared. Constant scores are not compared either, because different methods can
    have the same constant score.

    Args:
        method: Cell of a method that is not part of the package.
        others: Comparable cells.
    """
    cell = method.cell
    if cell.value is None or known_explainer(cell) is not None or _is_constant(method.scores):
        return []
    near = 2 * max(TOLERANCE * abs(cell.value), NEGLIGIBLE)  # wider than the tolerance of `same`
    return sorted(
        f"{other.cell.explainer_text} by {other.submission.result.submitter}"
        for other in others
        if other.cell.value is not None
        and other.cell.explainer_id != cell.explainer_id
        and abs(cell.value - other.cell.value) <= near  # compare the means first, because comparing all samples is slow
        and same(cell.value, other.cell.value)
        and agree(method, other)
    )


def notes(submission: CheckedSubmission, published: Iterable[CheckedSubmission]) -> list[str]:
    """Return messages about cells with scores that already occur in one of the `published` submissions."""
    published = list(published)
    lines = []
    for other in published:
        shared = {cell.cell_id for cell in other.cells}
        pairs = [(ScoredCell(submission, cell), ScoredCell(other, cell))
                 for cell in submission.cells if cell.cell_id in shared]  # fmt: skip
        if equal := sum(agree(*pair) for pair in pairs):
            lines.append(f"{equal} of {len(submission.cells)} cells are already on the board with the same scores, "
                         f"submitted by {other.result.submitter}")  # fmt: skip
    by_question: dict[str, list[ScoredCell]] = {}
    for other in published:
        ids = CellIds(other.result.setting)
        for cell in other.cells:
            by_question.setdefault(question_of(cell, ids), []).append(ScoredCell(other, cell))
    ids = CellIds(submission.result.setting)
    for cell in submission.cells:
        rivals = by_question.get(question_of(cell, ids), ())
        lines += [f"{cell.explainer_text} has the same {cell.metric_text} score as {name} on every sample"
                  for name in other_names(ScoredCell(submission, cell), rivals)]  # fmt: skip
    return lines


def _is_constant(scores: np.ndarray) -> bool:
    finite = scores[np.isfinite(scores)]
    return not len(finite) or bool(np.ptp(finite) == 0)
