"""Compute the numbers in a suite's tables: scores, accuracies, people's answers, and means and correlations of these.

A mean over datasets or models weights each dataset or model equally. If several models predict the images of one
dataset, scores are first averaged over the models for each image. As on the board (`intervals.over_datasets`), the
interval is valid for these datasets only, because it does not account for the variation between datasets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import kendalltau, spearmanr

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.errors import UserError
from saliency_bench.read.analysis.clever_hans import found_by
from saliency_bench.read.analysis.correlations import FEWEST, over_points, pearson
from saliency_bench.read.analysis.order_agreement import Answers
from saliency_bench.read.cell import CellResult, Interval
from saliency_bench.read.finished_run import Run, read_run
from saliency_bench.read.statistics.intervals import (
    INTERVAL_FROM,
    Estimate,
    cluster_error,
    interval,
    is_bounded,
    over_datasets,
    widened_over_datasets,
)
from saliency_bench.recipes.suites.counts import counts_of
from saliency_bench.recipes.suites.crowd import crowd_number, drawn_answers
from saliency_bench.recipes.suites.number import NoNumberError, Number, number_of
from saliency_bench.recipes.suites.suite_jobs import SuiteChoice, SuiteJob, data_of, smoke_text
from saliency_bench.recipes.suites.suite_schema import CROWD, Suite, TableSpec, Value, fill, matching_parts
from saliency_bench.recipes.suites.transformed_runs import accuracies_of

NOT_RUN = "not run"
UNFIT = "the explainer does not support the network"
AXES = ("dataset", "model", "explainer", "variant", "value")
explainer_text = cache(lambda text: str(as_explainer(text)))  # the name used in cells
metric_text = cache(lambda text: str(as_metric(text)))


@dataclass
class Results:
    """The runs of a suite. `failed` is {folder of a run: error message}."""

    suite: Suite
    jobs: Sequence[SuiteJob]
    choice: SuiteChoice
    failed: Mapping[Path, str] = field(default_factory=dict)

    @cached_property
    def runs(self) -> dict[Path, Run | str]:
        """{folder of a run: the run, or the reason why it is missing}."""
        runs: dict[Path, Run | str] = {}
        for folder in dict.fromkeys(job.folder for job in self.jobs):
            try:
                runs[folder] = f"failed: {self.failed[folder]}" if folder in self.failed else read_run(folder)
            except UserError:
                runs[folder] = NOT_RUN
        return runs

    def finished(self, names: Sequence[str]) -> list[tuple[SuiteJob, Run]]:
        """Return the finished runs with these names."""
        pairs = [(job, self.runs[job.folder]) for job in self.jobs if job.name in names]
        return [(job, run) for job, run in pairs if isinstance(run, Run)]

    def numbers_of(self, name: str) -> pd.DataFrame:
        """Return a table's numbers in table order, one per row. The columns are the table's axes and `number`."""
        table = self.suite.tables[name]
        places, axes = places_of(self.suite, table), [*table.rows, *table.columns]
        rows = [(*key, self._pool(table, group)) for key, group in places.groupby(axes, sort=False)]
        return pd.DataFrame(rows, columns=[*axes, "number"])

    def _pool(self, table: TableSpec, group: pd.DataFrame) -> Number:
        """Combine the numbers of table entries that differ only on the axes listed in `over`."""
        places = group.to_dict("records")
        value, variant = table.values[places[0]["value"]], table.variants.get(places[0]["variant"], {})
        try:  # A missing number makes the mean missing: over fewer datasets or models it would be another quantity.
            numbers = [self.number(table, place) for place in places]
            if value.against and not value.clever_hans:
                others = [self.number(table, place, "against") for place in places]
                signs = [1 if text == CROWD or as_metric(fill(text, variant)).higher_is_better else -1
                         for text in (value.metric, value.against)]  # fmt: skip
                return correlation(numbers, others, signs, value.correlation)
        except NoNumberError as error:
            return Number(missing=str(error))
        number = numbers[0] if len(numbers) == 1 else mean(list(group["dataset"]), numbers)
        value_and_ends = (number.value, number.low, number.high)
        scaled, low, high = (None if end is None else end * value.scale for end in value_and_ends)
        return replace(number, value=scaled, low=low, high=high)

    def number(self, table: TableSpec, place: Mapping[str, str], column: str = "metric") -> Number:
        """Compute the number of one table entry, before any averaging.

        Args:
            table: The table that shows the number.
            place: Position of the entry in the table, {axis: name}.
            column: "metric", or "against" for the second metric of a correlation.

        Raises:
            NoNumberError: The number is missing.
        """
        value, variant = table.values[place["value"]], table.variants.get(place["variant"], {})
        if value.text:
            return Number(text=value.text.get(place["dataset"], ""))
        if value.size:
            return Number(float(self._counts(place["dataset"])[value.size]))
        # Runs can have different explainers. The entry's explainer must be in the run if the value depends on the
        # explainer or if the table has an axis of explainers.
        has_explainer = value.has_explainer or "explainer" in table.axes
        job, run = self._run((value.run,) if value.run else table.runs, place, has_explainer)
        explainer = explainer_text(self.sized(place["explainer"]))
        if value.accuracy:
            number = _accuracy(job, run, value, fill(value.transform, variant))
        elif value.crowd or (column, value.against) == ("against", CROWD):
            filled = {name: fill(getattr(value, name), variant) for name in ("exposure", "judgements", "bin")}
            number = crowd_number(self._answers(job, run), run, explainer, value.model_copy(update=filled))
        else:
            metric = metric_text(self.sized(fill(getattr(value, column), variant)))
            if value.clever_hans:
                faithfulness = metric_text(self.sized(fill(value.against, variant)))
                number = _clever_hans(run, explainer, metric, faithfulness)
                return replace(number, runs=(f"runs/{job.folder.name}",), least=number.n)
            number = _score(run, explainer, metric, None if value.part is None else fill(value.part, variant))
        return replace(number, runs=(f"runs/{job.folder.name}",), least=number.n)

    def _run(self, names: Sequence[str], place: Mapping[str, str], has_explainer: bool) -> tuple[SuiteJob, Run]:
        """Return the first run that has one of these names and computes a table entry.

        Raise NoNumberError if there is none.
        """
        for job in self.jobs:
            is_explained = not has_explainer or place["explainer"] in self.suite.runs[job.name].explainers
            if job.name in names and (job.dataset, job.model) == (place["dataset"], place["model"]) and is_explained:
                if isinstance(run := self.runs[job.folder], Run):
                    return job, run
                raise NoNumberError(run)
        raise NoNumberError(NOT_RUN)

    def _counts(self, dataset: str) -> dict[str, int]:
        """Return the sizes of one of the suite's datasets. Raise NoNumberError if the dataset is missing."""
        if dataset not in self._counted:
            self._counted[dataset] = counts_of(data_of(self.suite.datasets[dataset], dataset, self.choice))
        return self._counted[dataset]

    @cached_property
    def _counted(self) -> dict[str, dict[str, int]]:
        return {}

    def _answers(self, job: SuiteJob, run: Run) -> Sequence[Answers]:
        """Return people's answers. In a smoke test, answers are simulated unless --answers is given."""
        if self.choice.answers or not self.choice.smoke:
            return self.choice.answers
        if job.folder not in self._drawn:
            texts = [explainer_text(self.sized(text)) for text in self.suite.runs[job.name].explainers]
            self._drawn[job.folder] = [drawn_answers(run, texts)]
        return self._drawn[job.folder]

    @cached_property
    def _drawn(self) -> dict[Path, list[Answers]]:
        return {}

    def sized(self, text: str) -> str:
        """Return an explainer or metric of the suite with the options that the runs use."""
        return smoke_text(self.suite, text) if self.choice.smoke else text


def places_of(suite: Suite, table: TableSpec) -> pd.DataFrame:
    """Return the table entries for which there are runs, in table order: one entry per row, one axis per column."""
    runs = [suite.runs[name] for name in table.runs]
    rows = [
        names
        for run in runs
        for names in product(run.datasets, run.models, run.explainers, table.variants or [""], table.values)
    ]
    frame, axes = pd.DataFrame(rows, columns=list(AXES)), list(table.axes)
    # Drop duplicates from overlapping runs. Every other axis has a single name or no influence.
    frame = frame.drop_duplicates(axes)
    # Ordered categories sort names in the paper's order, then in the order of the runs. The first axis is slowest.
    order = {}
    for axis in axes:
        names = dict.fromkeys([*(table.show.get(axis) or ()), *frame[axis]])
        order[axis] = pd.Categorical(frame[axis], list(names), ordered=True)
    positions = pd.DataFrame(order, index=frame.index).sort_values(axes).index
    return frame.loc[positions].reset_index(drop=True)


def _score(run: Run, explainer: str, metric: str, part: str | None) -> Number:
    """Return an explainer's mean score on a metric or on a part of it. Raise NoNumberError if there is none."""
    cell = next((cell for cell in run.cells if (cell.explainer_text, cell.metric_text) == (explainer, metric)), None)
    if cell is None:
        raise NoNumberError(UNFIT if explainer in run.summary.get("misfits", {}) else NOT_RUN)
    interval: Interval | None = cell if part is None else part_of(cell, part)
    if interval is None:
        raise NoNumberError(f"no part {part}")
    if interval.value is None:
        raise NoNumberError(next(iter(cell.left_out), "no score"))
    number = replace(number_of(interval), cell=cell.cell_id)
    return number if part is not None else replace(number, best=cell.cell_id in run.table.best, samples=(run, cell))


def _clever_hans(run: Run, explainer: str, localisation: str, faithfulness: str) -> Number:
    """Return the fraction of samples that `found_by` selects on the basis of two metrics.

    Raise NoNumberError if a cell is missing.
    """
    cells = cells_by_metric(run, explainer)
    if localisation not in cells or faithfulness not in cells:
        raise NoNumberError(NOT_RUN)
    hits = found_by(run, cells[localisation], cells[faithfulness]).hits
    if not (scored := int(np.isfinite(hits).sum())):
        raise NoNumberError("no sample with both scores")
    return Number(*interval(hits, run.scores.codes(), (0.0, 1.0)).known, scored)


def cells_by_metric(run: Run, explainer: str) -> dict[str, CellResult]:
    """Return {metric: cell} for an explainer of a run. Metrics have the names that cells use."""
    return {cell.metric_text: cell for cell in run.cells if cell.explainer_text == explainer}


def part_of(cell: CellResult, part: str) -> Interval | None:
    """Return the interval of one part of a cell. If several parts match, return their mean without an interval."""
    parts = [cell.parts[name] for name in matching_parts(part, cell.parts)]
    if len(parts) < 2:
        return parts[0] if parts else None
    values = [interval.value for interval in parts if interval.value is not None]
    value = float(np.mean(values)) if len(values) == len(parts) else None
    n = min(interval.n for interval in parts)
    return Interval(value=value, low=None, high=None, n=n, clusters=parts[0].clusters)


def _accuracy(job: SuiteJob, run: Run, value: Value, transform: str) -> Number:
    """Return an accuracy of a run's classifier. Raise NoNumberError if it has not been measured."""
    model = run.summary["model"]
    accuracies = accuracies_of(job).get(transform) if transform else model
    if accuracies is None:
        raise NoNumberError(NOT_RUN)
    content = accuracies["accuracy" if value.accuracy == "top1" else "top5"]
    if content is None or content["value"] is None:
        raise NoNumberError(model.get("no_accuracy") or "no accuracy")
    return number_of(Interval.model_validate(content))


def mean(datasets: Sequence[str], numbers: Sequence[Number]) -> Number:
    """Return the mean of numbers, weighted as described in the module docstring. Every number must have a value."""
    groups = [list(group) for _, group in pd.Series(numbers).groupby(datasets, sort=False)]
    value = float(np.mean([np.mean([number.value for number in group]) for group in groups]))
    estimates = [estimate for group in groups if (estimate := _over_models(group)) is not None]
    low, high = None, None
    if len(estimates) == len(groups) and (run_and_cell := numbers[0].samples):
        limits = run_and_cell[1].limits
        pooled, error = over_datasets(*zip(*estimates, strict=True))
        _, low, high = (widened_over_datasets(pooled, error, limits) if is_bounded(limits) else pooled).known
    n = sum(max(number.n for number in group) for group in groups)
    return Number(value, low, high, n, least=min(number.n for number in numbers), runs=_runs_of(numbers))


def _over_models(numbers: Sequence[Number]) -> tuple[Estimate, float] | None:
    """Average scores over the models, using the images that all models have in common.

    Returns:
        (mean, standard error), or None if a number has no scores per sample.
    """
    samples = [number.samples for number in numbers if number.samples is not None]
    # Parts, accuracies and aggregates of means have no scores per sample.
    if len(samples) < len(numbers) or any(cell.aggregate for _, cell in samples):
        return None
    columns = [pd.Series(run.scores.values[cell.cell_id], run.scores.ids) for run, cell in samples]
    scores = pd.concat(columns, axis=1, join="inner").dropna()  # the images common to all models, in one order
    run = samples[0][0]
    codes = run.scores.codes(list(scores.index))
    means = scores.to_numpy().mean(axis=1)
    counts = np.bincount(codes)
    estimate = Estimate.alone(float(means.mean()) if len(means) else np.nan, counts)
    if estimate.effective < INTERVAL_FROM:
        return None
    error, freedom = cluster_error(np.bincount(codes, means), counts, estimate.value)
    return estimate._replace(freedom=freedom), error


def correlation(first: Sequence[Number], second: Sequence[Number], signs: Sequence[int], kind: str) -> Number:
    """Correlate two metrics across table entries. The interval comes from `over_points`; tau-b has no interval.

    Args:
        first: Numbers for one metric.
        second: Numbers for the other metric in the same table entries.
        signs: For each of the two metrics, -1 if lower is better, else 1.
        kind: "pearson", "spearman" or "kendall" (tau-b).

    Raises:
        NoNumberError: There are too few entries, or one of the two metrics is constant.
    """
    if len(first) < FEWEST:
        raise NoNumberError(f"{len(first)} points are too few for a correlation; at least {FEWEST} are needed")
    x, y = (
        sign * np.array([number.value for number in numbers], float)
        for sign, numbers in zip(signs, (first, second), strict=True)
    )
    if min(np.ptp(x), np.ptp(y)) == 0:
        raise NoNumberError("one of the two metrics is constant")
    if kind == "pearson":
        value = float(pearson(x - x.mean(), y - y.mean(), np.ones((1, len(x))))[0])
    else:
        value = float((spearmanr if kind == "spearman" else kendalltau)(x, y).statistic)
    spreads = {"pearson": 1.0, "spearman": 1 + value**2 / 2}
    _, *ends = over_points(value, len(x), spreads[kind]) if kind in spreads else (value, np.nan, np.nan)
    low, high = (float(end) if np.isfinite(end) else None for end in ends)
    return Number(value, low, high, n=len(x), runs=_runs_of(first))


def _runs_of(numbers: Sequence[Number]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(folder for number in numbers for folder in number.runs))
