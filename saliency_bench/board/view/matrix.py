"""The initial view of a board: a matrix of explainers and metrics for one dataset and classifier."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from saliency_bench.board.known import HIDDEN, RUN
from saliency_bench.board.view.rows import FAMILIES, ShownRow
from saliency_bench.board.view.state import View

OFFICIAL = (RUN, HIDDEN)
TASKS = {
    "alignment": "Points at the object",
    "faithfulness": "The network relies on it",
    "sensitivity": "Changes as it should",
    "other": "Other metrics",
}

Scene = tuple[str, str, str]  # dataset, model, non-default settings


@dataclass(frozen=True)
class MatrixCell:
    """A score in the matrix.

    Attributes:
        row: Row of the board.
        share: Fraction of the bar's width that is filled. It represents the score.
        line: Position of the best baseline as a fraction of the bar's width, or None if no baseline has a score.
        behind: Baselines that the explainer does not beat significantly.
    """

    row: ShownRow
    share: float
    line: float | None
    behind: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    """A matrix with one row per explainer and one column per metric.

    Attributes:
        scene: The displayed dataset, model and settings.
        scenes: All datasets and classifiers of the board.
        metrics: One board row for each metric. The page reads the metric's name and direction from it.
        methods: (explainer, cells in the order of the metrics) for each explainer that is not a baseline. A missing
            cell is None.
        baselines: (explainer, cells in the order of the metrics) for each baseline. A missing cell is None.
        official: Whether the displayed rows are official. If False, no row of this scene is official.
    """

    scene: Scene
    scenes: list[Scene]
    metrics: list[ShownRow]
    methods: list[tuple[str, list[MatrixCell | None]]]
    baselines: list[tuple[str, list[MatrixCell | None]]]
    official: bool


def is_official(row: ShownRow) -> bool:
    """Return whether the board has run a row's explainer, or scored its maps with hidden masks."""
    return row.status in OFFICIAL


def matrix(rows: Sequence[ShownRow], view: View) -> Matrix | None:
    """Return the matrix for the dataset, model and metric family of a view, or None if there are no rows.

    By default, the scene with the most official rows is displayed. If a metric has several settings, the setting with
    the most rows is displayed. If rows contradict each other, the first row is displayed. The list view shows all rows.
    """
    scored = [row for row in rows if row.value is not None]
    counts = Counter(_scene(row) for row in scored)
    officials = Counter(_scene(row) for row in scored if is_official(row))
    scenes = sorted(counts, key=lambda scene: (-officials[scene], -counts[scene], scene))
    wanted = [scene for scene in scenes if _passes(scene[0], view.dataset) and _passes(scene[1], view.model)]
    if not wanted:
        return None
    scene = wanted[0]
    official = officials[scene] > 0
    inside = [row for row in scored if _scene(row) == scene and (is_official(row) or not official)]
    shown = [row for row in inside if _passes(row.family, view.family)] or inside
    by_metric = {metric: _of_question([row for row in shown if row.metric == metric]) for metric in _metrics(shown)}
    names = list(dict.fromkeys(row.explainer for of_metric in by_metric.values() for row in of_metric))
    cells = {metric: _cells(of_metric) for metric, of_metric in by_metric.items()}
    table = [(name, [cells[metric].get(name) for metric in by_metric]) for name in names]
    return Matrix(
        scene,
        scenes,
        [of_metric[0] for of_metric in by_metric.values()],
        [entry for entry in table if not _is_baseline(entry)],
        [entry for entry in table if _is_baseline(entry)],
        official,
    )


def _scene(row: ShownRow) -> Scene:
    return row.dataset, row.model, row.asks


def _passes(value: str, wanted: tuple[str, ...]) -> bool:
    return not wanted or value in wanted


def _is_baseline(entry: tuple[str, list[MatrixCell | None]]) -> bool:
    return any(cell is not None and cell.row.baseline for cell in entry[1])


def _metrics(rows: Sequence[ShownRow]) -> list[str]:
    families = list(FAMILIES)
    return sorted({row.metric for row in rows}, key=lambda metric: next(
        (families.index(row.family), metric) for row in rows if row.metric == metric))  # fmt: skip


def _of_question(rows: Sequence[ShownRow]) -> list[ShownRow]:
    """Return the largest set of comparable rows, sorted from best to worst."""
    counts = Counter(row.question for row in rows)
    question = min(counts, key=lambda question: (-counts[question], question))
    return sorted((row for row in rows if row.question == question), key=lambda row: (-_oriented(row), row.explainer))


def _oriented(row: ShownRow) -> float:
    """Return the value of a row, negated if lower is better."""
    value = 0.0 if row.value is None else row.value
    return value if row.higher_is_better else -value


def _cells(rows: Sequence[ShownRow]) -> dict[str, MatrixCell]:
    """Return {explainer: cell} for comparable rows.

    If an explainer has several rows, the first row with the best status is used.
    """
    values = [row.value for row in rows if row.value is not None]
    low, high = min(0.0, *values), max(0.0, *values)

    def share(value: float) -> float:
        return round((value - low) / (high - low), 4) if high > low else 0.0

    best = max((row for row in rows if row.baseline), key=_oriented, default=None)
    line = None if best is None or best.value is None else share(best.value)
    cells: dict[str, MatrixCell] = {}
    for row in sorted(rows, key=lambda row: (not is_official(row), row.key)):
        cells.setdefault(row.explainer, MatrixCell(row, share(row.value or 0.0), line, _behind(row, best)))
    return cells


def _behind(row: ShownRow, best: ShownRow | None) -> tuple[str, ...]:
    """Return the baselines that a row does not significantly beat in the board's test.

    If the row was not tested, compare it with the best baseline only, by score.
    """
    if row.baseline:
        return ()
    if row.beats or row.not_beaten or row.beats_if_true or row.not_beaten_if_true:
        return row.not_beaten or row.not_beaten_if_true
    return (best.explainer,) if best is not None and _oriented(row) <= _oriented(best) else ()
