"""The numbers of a suite's tables: each is looked up in the runs, or worked out from them as a table says.

A number that is a mean over datasets or models weights them equally. Where models share the images of a dataset, each
image's mean over the models is taken first. Its interval is that for these datasets, 1.96 sqrt(sum of squared standard
errors) / D, as on the board (the choice of datasets is no part of it).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.analysis.correlations import FEWEST, pearson
from saliency_bench.engine.suites.crowd import Crowd
from saliency_bench.engine.suites.jobs import Job, smoked_text
from saliency_bench.engine.suites.schema import Suite, Table, Value, filled, parts_that_fit
from saliency_bench.engine.suites.transforms import accuracies_of
from saliency_bench.errors import UserError
from saliency_bench.explainer import load_explainer
from saliency_bench.metric import load_metric
from saliency_bench.results.cell import CellResult, Interval
from saliency_bench.results.clusters import cluster_codes
from saliency_bench.results.intervals import INTERVAL_FROM, cluster_error
from saliency_bench.results.run_folder import RunData, read_run

Key = tuple[str, ...]
NOT_RUN = "not run"


@dataclass(frozen=True)
class Number:
    """A number of a table. missing: why there is none. paper: what the paper prints; notes: what is known of that.

    n: images; of a mean over datasets their sum. least: the images of the run that has fewest of those it rests on.
    best: whether its explainer is among the best by its metric in its run. folders: of the runs that it rests on, below
    --out. cell: the id of the one cell that it is, if it is one.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    missing: str = ""
    best: bool = False
    cell: str = ""
    folders: tuple[str, ...] = ()
    paper: float | None = None
    notes: tuple[str, ...] = ()
    least: int | None = None

    @property
    def is_of_few(self) -> bool:
        return self.value is not None and self.least is not None and self.least < INTERVAL_FROM

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.value is None or self.paper is None else self.value - self.paper


@dataclass(frozen=True)
class Grid:
    """A table with its numbers. rows, columns: the names along the axes; {(row, column): number}."""

    name: str
    table: Table
    rows: list[Key]
    columns: list[Key]
    numbers: dict[tuple[Key, Key], Number]

    @property
    def missing(self) -> dict[str, int]:
        """{why: how many numbers are missing}"""
        reasons = [number.missing for number in self.numbers.values() if number.missing]
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}


@dataclass
class Scores:
    """What the runs of a suite hold. failed: {folder: why}."""

    suite: Suite
    jobs: Sequence[Job]
    smoke: bool
    failed: Mapping[str, str] = field(default_factory=dict)
    crowd: Crowd = field(default_factory=Crowd)
    _under: dict[Path, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def _runs(self) -> dict[str, RunData | str]:
        """{folder: its run, or why there is none}"""
        found: dict[str, RunData | str] = {}
        for folder in dict.fromkeys(job.folder for job in self.jobs):
            try:
                found[str(folder)] = read_run(folder)
            except UserError:
                found[str(folder)] = NOT_RUN
        return found | {folder: f"failed: {why}" for folder, why in self.failed.items() if folder in found}

    def run(self, names: Iterable[str], dataset: str, model: str, explainer: str | None) -> tuple[str, RunData | str]:
        """(folder within --out, the run of these names on this dataset and model that has the explainer, or why not)"""
        for job in self.jobs:
            fits = job.name in names and (job.dataset, job.model) == (dataset, model)
            if fits and (explainer is None or explainer in self.suite.runs[job.name].explainers):
                return f"{job.folder.parent.name}/{job.folder.name}", self._runs[str(job.folder)]
        return "", NOT_RUN

    def accuracies(self, runs: Iterable[str]) -> dict[tuple[str, str], Interval]:
        """{(dataset, model): how good the classifier is} of the runs of these names that are there."""
        found = {(job.dataset, job.model): self._runs[str(job.folder)] for job in self.jobs if job.name in runs}
        return {place: run.accuracy for place, run in found.items() if isinstance(run, RunData)}

    def limited(self, runs: Iterable[str]) -> dict[str, tuple[int, int]]:
        """{dataset: (fewest images used, images there are)} of the runs of these names that left some out."""
        found: dict[str, tuple[int, int]] = {}
        for job in self.jobs:
            run = self._runs[str(job.folder)]
            if job.name in runs and isinstance(run, RunData):
                used, samples = (run.summary["dataset"][name] for name in ("used", "samples"))
                if used < samples:
                    found[job.dataset] = min(found.get(job.dataset, (used, samples)), (used, samples))
        return found

    def under(self, folder: Path, transform: str) -> dict[str, Any]:
        """The accuracies of a run's classifier under a transform; {} where they were not measured."""
        if folder not in self._under:
            self._under[folder] = accuracies_of(next(job for job in self.jobs if job.folder == folder))
        return self._under[folder].get(transform, {})

    def cell(self, run: RunData, explainer: str, metric: str) -> CellResult | None:
        """The cell of an explainer and a metric as the suite writes them."""
        if self.smoke:
            explainer, metric = (smoked_text(self.suite, text) for text in (explainer, metric))
        names = _explainer_text(explainer), _metric_text(metric)
        return next((cell for cell in run.cells if (cell.explainer_text, cell.metric_text) == names), None)


@cache
def _explainer_text(text: str) -> str:
    return str(load_explainer(text))


@cache
def _metric_text(text: str) -> str:
    return str(load_metric(text))


def grid_of(name: str, scores: Scores) -> Grid:
    """The table of this name with its numbers."""
    suite, table = scores.suite, scores.suite.tables[name]
    kept, rows, columns = places_of(suite, table)
    numbers = {}
    for place in kept:
        row, column = (tuple(place[axis] for axis in which) for which in (table.rows, table.columns))
        numbers[row, column] = _number(scores, table, place)
    return _with_figures(Grid(name, table, rows, columns, numbers))


def places_of(suite: Suite, table: Table) -> tuple[list[dict[str, str]], list[Key], list[Key]]:
    """({axis: name} of each number of a table, its rows, its columns)"""
    axes = {str(axis): _names(suite, table, axis) for axis in (*table.rows, *table.columns)}
    places: list[str] = [*table.rows, *table.columns]
    kept: list[dict[str, str]] = []
    for names in product(*(axes[axis] for axis in places)):
        place = dict(zip(places, names, strict=True))
        if _exists(suite, table, place):
            kept.append(place)
    rows = list(dict.fromkeys(tuple(place[axis] for axis in table.rows) for place in kept))
    columns = list(dict.fromkeys(tuple(place[axis] for axis in table.columns) for place in kept))
    return kept, rows, columns


def check_figures(suite: Suite, tables: Iterable[str]) -> None:
    """Raises: UserError where the paper's figures have another shape than what a table shows of the paper."""
    for name in tables:
        table = suite.tables[name]
        _, rows, columns = places_of(suite, table)
        height = sum(_is_shown(table, table.rows, row) for row in rows)
        width = sum(_is_shown(table, table.columns, column) for column in columns)
        if len(table.figures) > height or any(len(line) != width for line in table.figures):
            shape = " or ".join(map(str, sorted({len(line) for line in table.figures})))
            raise UserError(
                f"tables.{name}.figures has {len(table.figures)} rows of {shape} figures, but the table shows {height} "
                f"rows of {width}; write null where the paper prints nothing"
            )


def _names(suite: Suite, table: Table, axis: str) -> list[str]:
    """The names along an axis: what the table shows, then what else the runs have."""
    runs = [suite.runs[name] for name in table.runs]
    known = {
        "dataset": [name for run in runs for name in run.datasets],
        "model": [name for run in runs for name in run.models],
        "explainer": [name for run in runs for name in run.explainers],
        "variant": list(table.variants),
        "value": list(table.values),
    }[axis]
    shown = {str(name): names for name, names in table.show.items()}
    return list(dict.fromkeys([*shown.get(axis, ()), *known]))


def _exists(suite: Suite, table: Table, place: dict[str, str]) -> bool:
    """Whether a run of the table has this dataset, model and explainer."""
    return any(_matches(suite, name, place) for name in table.runs)


def _matches(suite: Suite, run: str, place: Mapping[str, str]) -> bool:
    entry = suite.runs[run]
    axes = {"dataset": entry.datasets, "model": entry.models, "explainer": entry.explainers}
    return all(place[axis] in names for axis, names in axes.items() if axis in place)


def _number(scores: Scores, table: Table, place: dict[str, str]) -> Number:
    """What stands at a place."""
    value = table.values[place.get("value") or next(iter(table.values))]
    variant = table.variants.get(place.get("variant", ""), {})
    over = list(_over(scores.suite, table, place))
    if value.crowd:
        found = [_crowd(scores, table, value, one) for one in over]
    elif value.accuracy:
        found = [_accuracy(scores, table, value, variant, one) for one in over]
    else:
        found = [_score(scores, table, value, value.metric, variant, one) for one in over]
    if lacking := next((number.missing for number, _ in found if number.missing), ""):
        return Number(missing=lacking)
    if value.against:
        against = [_score(scores, table, value, value.against, variant, one) for one in over]
        signs = [1 if load_metric(filled(text, variant)).higher_is_better else -1
                 for text in (value.metric, value.against)]  # fmt: skip
        return _correlation([number for number, _ in found], [number for number, _ in against], signs)
    return _scaled(found[0][0] if len(found) == 1 else _mean(over, found), value.scale)


def _over(suite: Suite, table: Table, place: dict[str, str]) -> Iterator[dict[str, str]]:
    """The places that a number is made of: itself, or one for each of what the table takes together."""
    for names in product(*(_names(suite, table, axis) for axis in table.over)):
        taken: dict[str, str] = dict(zip(map(str, table.over), names, strict=True))
        one = place | taken
        if _exists(suite, table, one):
            yield one


def _only(suite: Suite, table: Table, axis: str, place: Mapping[str, str]) -> str:
    """The name on an axis that a table has no rows or columns for: the only one there is."""
    if axis in place:
        return place[axis]
    (name,) = _names(suite, table, axis)  # as the suite was checked
    return name


Found = tuple[Number, tuple[RunData, CellResult] | None]


def _score(scores: Scores, table: Table, value: Value, metric: str, variant: dict, place: Mapping[str, str]) -> Found:
    part = None if value.part is None else filled(value.part, variant)
    dataset, model, explainer = (_only(scores.suite, table, axis, place) for axis in ("dataset", "model", "explainer"))
    folder, run = scores.run(_runs(table, value), dataset, model, explainer)
    if isinstance(run, str):
        return Number(missing=run), None
    cell = scores.cell(run, explainer, filled(metric, variant))
    if cell is None:
        return Number(missing=NOT_RUN), None
    interval: Interval | None = cell if part is None else _part(cell, part)
    if interval is None:
        return Number(missing=f"no part {part}"), None
    if interval.value is None:
        return Number(missing=next(iter(cell.left_out), "no score")), None
    best = part is None and cell.cell_id in run.best
    number = Number(interval.value, interval.low, interval.high, interval.n, "", best, cell.cell_id, (folder,),
                    least=interval.n)  # fmt: skip
    return number, (run, cell) if part is None else None


def _runs(table: Table, value: Value) -> Sequence[str]:
    """The runs that a value may come from."""
    return (value.run,) if value.run else table.runs


def _part(cell: CellResult, part: str) -> Interval | None:
    """The part, or the mean of those that fit, which has no interval."""
    fitting = [cell.parts[name] for name in parts_that_fit(part, cell.parts)]
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    values = [one.value for one in fitting if one.value is not None]
    mean = float(np.mean(values)) if len(values) == len(fitting) else None
    return Interval(value=mean, low=None, high=None, n=min(one.n for one in fitting), clusters=fitting[0].clusters)


def _accuracy(scores: Scores, table: Table, value: Value, variant: dict, place: Mapping[str, str]) -> Found:
    dataset, model = (_only(scores.suite, table, axis, place) for axis in ("dataset", "model"))
    folder, run = scores.run(_runs(table, value), dataset, model, place.get("explainer"))
    if isinstance(run, str):
        return Number(missing=run), None
    found = run.summary["model"]
    if transform := filled(value.transform, variant):
        found = scores.under(run.folder, transform)
        if not found:
            return Number(missing=NOT_RUN), None
    given = found["accuracy" if value.accuracy == "top1" else "top5"]
    interval = None if given is None else Interval.model_validate(given)
    if interval is None or interval.value is None:
        return Number(missing=run.summary["model"].get("no_accuracy") or "no accuracy"), None
    return Number(interval.value, interval.low, interval.high, interval.n, folders=(folder,), least=interval.n), None


def _crowd(scores: Scores, table: Table, value: Value, place: Mapping[str, str]) -> Found:
    dataset, model, explainer = (_only(scores.suite, table, axis, place) for axis in ("dataset", "model", "explainer"))
    folder, run = scores.run(_runs(table, value), dataset, model, explainer)
    if isinstance(run, str):
        return Number(missing=run), None
    text = smoked_text(scores.suite, explainer) if scores.smoke else explainer
    found = scores.crowd.area(run, _explainer_text(text))
    if isinstance(found, str):
        return Number(missing=found), None
    return Number(found.value, found.low, found.high, found.n, folders=(folder,), least=found.n), None


def _mean(places: Sequence[Mapping[str, str]], found: list[Found]) -> Number:
    """The mean of numbers, datasets weighted equally; see above."""
    by_dataset: dict[str, list[Found]] = {}
    for place, one in zip(places, found, strict=True):
        by_dataset.setdefault(place.get("dataset", ""), []).append(one)
    means, squares = [], []
    for own in by_dataset.values():
        means.append(float(np.mean([number.value for number, _ in own])))
        squares.append(_error([data for _, data in own if data is not None], len(own)) ** 2)
    value, error = float(np.mean(means)), sqrt(sum(squares)) / len(means)
    folders = tuple(dict.fromkeys(folder for number, _ in found for folder in number.folders))
    n = sum(max(number.n for number, _ in own) for own in by_dataset.values())
    low, high = (value - 1.96 * error, value + 1.96 * error) if np.isfinite(error) else (None, None)
    return Number(value, low, high, n, folders=folders, least=min(number.n for number, _ in found))


def _error(data: list[tuple[RunData, CellResult]], count: int) -> float:
    """Standard error of the mean over models on the images of one dataset that all of them score; NaN where unknown."""
    if len(data) < count or not data or any(cell.aggregate for _, cell in data):
        return float("nan")
    ids = data[0][0].ids
    columns = []
    for run, cell in data:
        at = run.position
        values = run.values[cell.cell_id]
        columns.append(np.array([values[at[one]] if one in at else np.nan for one in ids]))
    rows = np.flatnonzero(np.isfinite(columns).all(axis=0))
    scores = np.mean(columns, axis=0)[rows]
    codes = cluster_codes([ids[row] for row in rows], [data[0][0].groups[row] for row in rows])
    clusters = int(codes.max()) + 1 if len(codes) else 0
    if clusters < INTERVAL_FROM:
        return float("nan")
    return cluster_error(np.bincount(codes, scores), np.bincount(codes), float(scores.mean()))


def _correlation(first: list[Number], second: list[Number], signs: Sequence[int]) -> Number:
    """Pearson's of two metrics over the places, without interval. signs: -1 where lower is better."""
    if lacking := next((number.missing for number in second if number.missing), ""):
        return Number(missing=lacking)
    if len(first) < FEWEST:
        return Number(missing=f"{len(first)} points, of which a correlation needs {FEWEST}")
    one, other = (
        sign * np.array([number.value for number in numbers], float)
        for sign, numbers in zip(signs, (first, second), strict=True)
    )
    value = float(pearson(one - one.mean(), other - other.mean(), np.ones((1, len(one))))[0])
    folders = tuple(dict.fromkeys(folder for number in first for folder in number.folders))
    return Number(value if np.isfinite(value) else None, n=len(one), folders=folders,
                  missing="" if np.isfinite(value) else "one of the two is constant")  # fmt: skip


def _scaled(number: Number, scale: float) -> Number:
    value, low, high = (None if end is None else end * scale for end in (number.value, number.low, number.high))
    return replace(number, value=value, low=low, high=high)


def _with_figures(grid: Grid) -> Grid:
    """With what the paper prints, and what is known of it."""
    table = grid.table
    rows = [row for row in grid.rows if _is_shown(table, table.rows, row)]
    columns = [column for column in grid.columns if _is_shown(table, table.columns, column)]
    figures = {
        (row, column): figure
        for row, line in zip(rows, table.figures, strict=False)
        for column, figure in zip(columns, line, strict=False)
    }
    numbers = {}
    for (row, column), number in grid.numbers.items():
        place = dict(zip((*table.rows, *table.columns), (*row, *column), strict=True))
        notes = tuple(
            note.note for note in table.notes if all(place.get(axis) in names for axis, names in note.where.items())
        )
        numbers[row, column] = replace(number, paper=figures.get((row, column)), notes=notes)
    return Grid(grid.name, table, grid.rows, grid.columns, numbers)


def _is_shown(table: Table, axes: Sequence[str], names: Key) -> bool:
    """Whether the paper's table has this row or column; what comes after it is ours."""
    return all(axis not in table.show or name in table.show[axis] for axis, name in zip(axes, names, strict=True))
