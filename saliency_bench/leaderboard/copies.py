"""Scores that two submissions share: one and the same row, or a method that goes by two names, as copied maps do."""

from collections.abc import Iterable

import numpy as np

from saliency_bench.analysis.differences import same
from saliency_bench.leaderboard.checks import Checked, known_explainer
from saliency_bench.leaderboard.standing import question_of
from saliency_bench.results.cell import CellResult

Scored = tuple[Checked, CellResult]  # a cell of a submission


def agree(one: Scored, other: Scored) -> bool:
    """Whether two cells have the same scores of the same samples, in the same groups, up to the last digits."""
    ours, theirs = one[0].recorded, other[0].recorded
    scores, others = (found.recorded.outcomes[cell.cell_id].scores for found, cell in (one, other))
    if len(ours.ids) != len(theirs.ids):
        return False
    if ours.ids == theirs.ids:
        return ours.groups == theirs.groups and bool(same(scores, others).all())
    place = {image_id: index for index, image_id in enumerate(theirs.ids)}
    order = [place.get(image_id, -1) for image_id in ours.ids]
    if -1 in order or ours.groups != [theirs.groups[index] for index in order]:
        return False
    return bool(same(scores, others[order]).all())


def other_names(one: Scored, others: Iterable[Scored]) -> list[str]:
    """What others call a method of somebody's own: each method of another name with exactly its scores, and by whom.

    [] of an explainer of the package, and of scores that are all equal. others: of the same question.
    """
    cell = one[1]
    if cell.value is None or known_explainer(cell) is not None or _is_constant(one):
        return []
    return sorted(
        f"{other_cell.explainer_text} by {other.result.submitter}"
        for other, other_cell in others
        if other_cell.explainer_id != cell.explainer_id
        and other_cell.value is not None
        and same(cell.value, other_cell.value)
        and agree(one, (other, other_cell))
    )


def notes(found: Checked, published: Iterable[Checked]) -> list[str]:
    """What the reader of a submission should know of those that are on the board, of the same dataset and model."""
    published = list(published)
    lines = []
    for other in published:
        there = {cell.cell_id: cell for cell in other.cells}
        equal = [one for one in found.cells
                 if one.cell_id in there and agree((found, one), (other, there[one.cell_id]))]  # fmt: skip
        if equal:
            lines.append(f"{len(equal)} of {len(found.cells)} cells are on the board with the same scores, by "
                         f"{other.result.submitter}")  # fmt: skip
    rivals: dict[str, list[Scored]] = {}
    for other in published:
        for cell in other.cells:
            rivals.setdefault(question_of(cell, other.result.setting), []).append((other, cell))
    for cell in found.cells:
        same_scores = other_names((found, cell), rivals.get(question_of(cell, found.result.setting), ()))
        lines += [f"{cell.explainer_text} has the scores of {name} on all samples by {cell.metric_text}"
                  for name in same_scores]  # fmt: skip
    return lines


def _is_constant(one: Scored) -> bool:
    scores = one[0].recorded.outcomes[one[1].cell_id].scores
    known = scores[np.isfinite(scores)]
    return not len(known) or bool(np.ptp(known) == 0)
