"""The numbers of a suite's tables: cells of runs, accuracies and answers of people, and means and correlations of them.

A mean over datasets or models weights them equally. Where models share the images of a dataset, each image's mean over
the models is taken first. The interval is that for these datasets, 1.96 sqrt(sum of squared standard errors) / D, as on
the board (the choice of datasets is no part of it).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from saliency_bench.analysis.agreement import Answers, crowd_auc
from saliency_bench.analysis.correlations import FEWEST, pearson
from saliency_bench.engine.suites.jobs import Choice, Job, smoke_text
from saliency_bench.engine.suites.schema import Suite, Table, Value, fill, matching_parts
from saliency_bench.engine.suites.transforms import accuracies_of
from saliency_bench.errors import UserError
from saliency_bench.explainer import as_explainer
from saliency_bench.metric import as_metric
from saliency_bench.results.cell import CellResult, Interval
from saliency_bench.results.clusters import cluster_codes, effective_clusters
from saliency_bench.results.intervals import INTERVAL_FROM, cluster_error
from saliency_bench.results.run_folder import RunData, read_run

NOT_RUN = "not run"
AXES = ("dataset", "model", "explainer", "variant", "value")


@dataclass(frozen=True)
class Number:
    """A number of a table.

    Attributes:
        value: The number, or None if it is missing.
        low: Lower end of its interval, or None.
        high: Upper end of its interval, or None.
        n: Images; of a mean over datasets their sum.
        least: Images of the smallest run behind it.
        best: Whether its explainer is among the best by its metric in its run.
        missing: Why there is no number, or "".
        cell: Id of its cell, or "" for a number made of several.
        runs: Folders of the runs behind it, below --out.
        samples: The run and cell whose mean score it is, if it is one.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    least: int | None = None
    best: bool = False
    missing: str = ""
    cell: str = ""
    runs: tuple[str, ...] = ()
    samples: tuple[RunData, CellResult] | None = None


@dataclass
class Results:
    """What the runs of a suite hold; `failed` is {folder of a run: why it failed}."""

    suite: Suite
    jobs: Sequence[Job]
    choice: Choice
    failed: Mapping[Path, str] = field(default_factory=dict)

    @cached_property
    def runs(self) -> dict[Path, RunData | str]:
        """{folder: its run, or why there is none}."""
        runs: dict[Path, RunData | str] = {}
        for folder in dict.fromkeys(job.folder for job in self.jobs):
            try:
                runs[folder] = f"failed: {self.failed[folder]}" if folder in self.failed else read_run(folder)
            except UserError:
                runs[folder] = NOT_RUN
        return runs

    @cached_property
    def transformed(self) -> dict[Path, dict[str, dict[str, Any]]]:
        """{folder: {transform: accuracies of the classifier}}."""
        return {job.folder: accuracies_of(job) for job in self.jobs}

    def finished(self, names: Sequence[str]) -> list[tuple[Job, RunData]]:
        """Return the runs with these names that are there."""
        pairs = [(job, self.runs[job.folder]) for job in self.jobs if job.name in names]
        return [(job, run) for job, run in pairs if isinstance(run, RunData)]

    def numbers_of(self, name: str) -> pd.DataFrame:
        """Return a table's numbers in its order: its axes and a column `number`, a row per number."""
        table = self.suite.tables[name]
        places, axes = places_of(self.suite, table), [*table.rows, *table.columns]
        rows = [(*key, self._pool(table, group)) for key, group in places.groupby(axes, sort=False)]
        return pd.DataFrame(rows, columns=[*axes, "number"])

    def _pool(self, table: Table, group: pd.DataFrame) -> Number:
        """Make one number of those at the places of a group, which differ in the axes of `over` alone."""
        places = group.to_dict("records")
        value, variant = table.values[places[0]["value"]], table.variants.get(places[0]["variant"], {})
        numbers = [self.number(table, place) for place in places]
        if missing := [number for number in numbers if number.missing]:
            return Number(missing=missing[0].missing)  # a mean over fewer datasets or models would be another number
        if value.against:
            signs = [1 if as_metric(fill(text, variant)).higher_is_better else -1
                     for text in (value.metric, value.against)]  # fmt: skip
            return correlation(numbers, [self.number(table, place, "against") for place in places], signs)
        number = numbers[0] if len(numbers) == 1 else mean(list(group["dataset"]), numbers)
        scaled, low, high = (
            None if end is None else end * value.scale for end in (number.value, number.low, number.high)
        )
        return replace(number, value=scaled, low=low, high=high)

    def number(self, table: Table, place: Mapping[str, str], column: str = "metric") -> Number:
        """Look up the number at a place, before any mean.

        Args:
            table: The table that shows it.
            place: {axis: name}.
            column: "metric", or "against" for the second metric of a correlation.
        """
        value, variant = table.values[place["value"]], table.variants.get(place["variant"], {})
        # An accuracy depends on the explainer only where the table has that axis, as different runs may have them.
        has_explainer = not value.accuracy or "explainer" in (*table.rows, *table.columns, *table.over)
        job = self._job((value.run,) if value.run else table.runs, place, has_explainer)
        run = NOT_RUN if job is None else self.runs[job.folder]
        if job is None or isinstance(run, str):
            return Number(missing=str(run))
        if value.accuracy:
            result = self._accuracy(run, value, fill(value.transform, variant))
        elif value.crowd:
            result = crowd_area(self.choice.answers, run, self._texts(place["explainer"], "")[0])
        else:
            part = None if value.part is None else fill(value.part, variant)
            texts = self._texts(place["explainer"], fill(getattr(value, column), variant))
            result = _score(run, texts, part)
        number = Number(missing=result) if isinstance(result, str) else result
        return number if number.missing else replace(number, runs=(f"runs/{job.folder.name}",), least=number.n)

    def _job(self, names: Sequence[str], place: Mapping[str, str], has_explainer: bool) -> Job | None:
        """Return the first run with one of these names at a place, if the suite's selection has it."""
        for job in self.jobs:
            is_explained = not has_explainer or place["explainer"] in self.suite.runs[job.name].explainers
            if job.name in names and (job.dataset, job.model) == (place["dataset"], place["model"]) and is_explained:
                return job
        return None

    def _texts(self, explainer: str, metric: str) -> tuple[str, str]:
        """Return the explainer and metric of the suite as cells call them."""
        if self.choice.smoke:
            explainer, metric = (smoke_text(self.suite, text) if text else "" for text in (explainer, metric))
        return _explainer_text(explainer), _metric_text(metric) if metric else ""

    def _accuracy(self, run: RunData, value: Value, transform: str) -> Number | str:
        """Return an accuracy of a run's classifier, or why there is none."""
        model = run.summary["model"]
        accuracies = self.transformed[run.folder].get(transform) if transform else model
        if accuracies is None:
            return NOT_RUN
        content = accuracies["accuracy" if value.accuracy == "top1" else "top5"]
        if content is None or content["value"] is None:
            return model.get("no_accuracy") or "no accuracy"
        return _number(Interval.model_validate(content))


def places_of(suite: Suite, table: Table) -> pd.DataFrame:
    """Return the places of a table that its runs have, in its order: a row per place, a column per axis."""
    runs = [suite.runs[name] for name in table.runs]
    rows = [
        names
        for run in runs
        for names in product(run.datasets, run.models, run.explainers, table.variants or [""], table.values)
    ]
    frame, axes = pd.DataFrame(rows, columns=list(AXES)), [*table.rows, *table.columns, *table.over]
    frame = frame.drop_duplicates(axes)  # runs overlap, and an axis that the table lacks has one name or no influence
    # As ordered categories, names sort as the paper has them, then as the runs have them; the first axis is slowest.
    order = {}
    for axis in axes:
        names = dict.fromkeys([*(table.show.get(axis) or ()), *frame[axis]])
        order[axis] = pd.Categorical(frame[axis], list(names), ordered=True)
    positions = pd.DataFrame(order, index=frame.index).sort_values(axes).index
    return frame.loc[positions].reset_index(drop=True)


@cache
def _explainer_text(text: str) -> str:
    """Return an explainer as cells call it."""
    return str(as_explainer(text))


@cache
def _metric_text(text: str) -> str:
    """Return a metric as cells call it."""
    return str(as_metric(text))


def _number(interval: Interval) -> Number:
    """Return an interval of a run as a number."""
    return Number(interval.value, interval.low, interval.high, interval.n)


def _score(run: RunData, texts: tuple[str, str], part: str | None) -> Number | str:
    """Return the mean score of an explainer by a metric, or of one of its parts, or why there is none."""
    cell = next((cell for cell in run.cells if (cell.explainer_text, cell.metric_text) == texts), None)
    if cell is None:
        return NOT_RUN
    interval: Interval | None = cell if part is None else part_of(cell, part)
    if interval is None:
        return f"no part {part}"
    if interval.value is None:
        return next(iter(cell.left_out), "no score")
    number = replace(_number(interval), cell=cell.cell_id)
    return number if part is not None else replace(number, best=cell.cell_id in run.best, samples=(run, cell))


def part_of(cell: CellResult, part: str) -> Interval | None:
    """Return a part of a cell, or the mean of all matching parts, which has no interval."""
    parts = [cell.parts[name] for name in matching_parts(part, cell.parts)]
    if len(parts) < 2:
        return parts[0] if parts else None
    values = [interval.value for interval in parts if interval.value is not None]
    value = float(np.mean(values)) if len(values) == len(parts) else None
    n = min(interval.n for interval in parts)
    return Interval(value=value, low=None, high=None, n=n, clusters=parts[0].clusters)


def crowd_area(answers: Sequence[Answers], run: RunData, explainer: str) -> Number | str:
    """Return `saliency_crowd_auc` of an explainer on the images of a run, or why there is none."""
    firsts: dict[str, list[float]] = {}
    for source in answers:
        for image_id, exposures in source.judgements.get(explainer, {}).items():
            if image_id in run.position:
                firsts.setdefault(image_id, []).extend(exposures)
    if not firsts:
        return "no answers of people about these images (--answers)"
    ids = sorted(firsts)
    codes = cluster_codes(ids, [run.groups[run.position[image_id]] for image_id in ids])
    area = crowd_auc([np.array(firsts[image_id]) for image_id in ids], codes, run.summary.get("seed", 0))
    value, low, high = (float(end) if np.isfinite(end) else None for end in area[:3])
    return Number(value, low, high, len(ids))


def mean(datasets: Sequence[str], numbers: Sequence[Number]) -> Number:
    """Return the mean of numbers, weighting their datasets equally, as the module says.

    Args:
        datasets: The dataset of each number.
        numbers: Numbers that all have a value.
    """
    frame = pd.DataFrame({"dataset": datasets, "number": list(numbers)})
    groups = [list(group) for _, group in frame.groupby("dataset", sort=False)["number"]]
    value = float(np.mean([float(np.mean([number.value for number in group])) for group in groups]))
    error = sqrt(sum(_standard_error(group) ** 2 for group in groups)) / len(groups)
    low, high = (value - 1.96 * error, value + 1.96 * error) if np.isfinite(error) else (None, None)
    n = sum(max(number.n for number in group) for group in groups)
    return Number(value, low, high, n, least=min(number.n for number in numbers), runs=_runs_of(numbers))


def _standard_error(numbers: Sequence[Number]) -> float:
    """Return the standard error of the models' mean on the images of one dataset that all score, or NaN."""
    # Without samples, as of parts and accuracies, or as aggregates of means, the error of the mean is not known.
    samples = [number.samples for number in numbers if number.samples is not None]
    if len(samples) < len(numbers) or any(cell.aggregate for _, cell in samples):
        return nan
    run = samples[0][0]  # images are taken in its order
    columns = [
        [other.values[cell.cell_id][other.position[image_id]] if image_id in other.position else nan
         for image_id in run.ids]
        for other, cell in samples
    ]  # fmt: skip
    rows = np.flatnonzero(np.isfinite(columns).all(axis=0))
    scores = np.mean(columns, axis=0)[rows]
    codes = cluster_codes([run.ids[row] for row in rows], [run.groups[row] for row in rows])
    counts = np.bincount(codes)
    if effective_clusters(counts) < INTERVAL_FROM:
        return nan
    return cluster_error(np.bincount(codes, scores), counts, float(scores.mean()))[0]


def correlation(first: Sequence[Number], second: Sequence[Number], signs: Sequence[int]) -> Number:
    """Return Pearson's correlation of two metrics over places, without interval.

    Args:
        first: Numbers of one metric; all have a value.
        second: Numbers of the other metric at the same places.
        signs: -1 for a metric of which lower is better, else 1.
    """
    if missing := [number for number in second if number.missing]:
        return Number(missing=missing[0].missing)
    if len(first) < FEWEST:
        return Number(missing=f"{len(first)} points, of which a correlation needs {FEWEST}")
    x, y = (
        sign * np.array([number.value for number in numbers], float)
        for sign, numbers in zip(signs, (first, second), strict=True)
    )
    value = float(pearson(x - x.mean(), y - y.mean(), np.ones((1, len(x))))[0])
    if not np.isfinite(value):
        return Number(missing="one of the two is constant", n=len(x), runs=_runs_of(first))
    return Number(value, n=len(x), runs=_runs_of(first))


def _runs_of(numbers: Sequence[Number]) -> tuple[str, ...]:
    """Return the folders behind numbers, each once."""
    return tuple(dict.fromkeys(folder for number in numbers for folder in number.runs))
