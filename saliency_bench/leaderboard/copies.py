"""Scores that two submissions share: one and the same row, or a method that goes by two names, as copied maps do."""

from collections.abc import Iterable

import numpy as np

from saliency_bench.analysis.differences import same
from saliency_bench.leaderboard.checks import Checked, known_explainer
from saliency_bench.leaderboard.standing import question_of
from saliency_bench.results.cell import CellResult

Scored = tuple[Checked, CellResult]  # a cell of a submission


def agree(first: Scored, other: Scored) -> bool:
    """Return whether two cells have the same scores of the same samples, in the same groups, up to the last digits."""
    ours, theirs = first[0].recorded, other[0].recorded
    scores, others = (submission.recorded.outcomes[cell.cell_id].scores for submission, cell in (first, other))
    if len(ours.ids) != len(theirs.ids):
        return False
    if ours.ids == theirs.ids:
        return ours.groups == theirs.groups and bool(same(scores, others).all())
    place = {image_id: index for index, image_id in enumerate(theirs.ids)}
    order = [place.get(image_id, -1) for image_id in ours.ids]
    if -1 in order or ours.groups != [theirs.groups[index] for index in order]:
        return False
    return bool(same(scores, others[order]).all())


def other_names(method: Scored, others: Iterable[Scored]) -> list[str]:
    """Return what others call a method: each of another name with exactly its scores, and by whom.

    Of a method of somebody's own.

    [] of an explainer of the package, and of scores that are all equal.

    Args:
        method: the cell.
        others: cells of the same question.
    """
    cell = method[1]
    if cell.value is None or known_explainer(cell) is not None or _is_constant(method):
        return []
    return sorted(
        f"{other_cell.explainer_text} by {other.result.submitter}"
        for other, other_cell in others
        if other_cell.explainer_id != cell.explainer_id
        and other_cell.value is not None
        and same(cell.value, other_cell.value)
        and agree(method, (other, other_cell))
    )


def notes(submission: Checked, published: Iterable[Checked]) -> list[str]:
    """Return what the reader of a submission should know of those on the board of the same dataset and model."""
    published = list(published)
    lines = []
    for other in published:
        there = {cell.cell_id: cell for cell in other.cells}
        equal = [
            cell
            for cell in submission.cells
            if cell.cell_id in there and agree((submission, cell), (other, there[cell.cell_id]))
        ]
        if equal:
            lines.append(f"{len(equal)} of {len(submission.cells)} cells are on the board with the same scores, by "
                         f"{other.result.submitter}")  # fmt: skip
    rivals: dict[str, list[Scored]] = {}
    for other in published:
        for cell in other.cells:
            rivals.setdefault(question_of(cell, other.result.setting), []).append((other, cell))
    for cell in submission.cells:
        same_scores = other_names((submission, cell), rivals.get(question_of(cell, submission.result.setting), ()))
        lines += [f"{cell.explainer_text} has the scores of {name} on all samples by {cell.metric_text}"
                  for name in same_scores]  # fmt: skip
    return lines


def _is_constant(method: Scored) -> bool:
    """Return whether all scores are equal."""
    scores = method[0].recorded.outcomes[method[1].cell_id].scores
    known = scores[np.isfinite(scores)]
    return not len(known) or bool(np.ptp(known) == 0)
