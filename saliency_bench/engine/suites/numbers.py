"""The numbers of a suite's tables: each is looked up in the runs, or computed from them as a table says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.engine.suites.crowd import Crowd
from saliency_bench.engine.suites.jobs import Job, smoked_text
from saliency_bench.engine.suites.places import only, over_of
from saliency_bench.engine.suites.pooling import Found, Number, correlation, mean, scaled
from saliency_bench.engine.suites.schema import Suite, Table, Value, filled, parts_that_fit
from saliency_bench.engine.suites.transforms import accuracies_of
from saliency_bench.errors import UserError
from saliency_bench.explainer import load_explainer
from saliency_bench.metric import load_metric
from saliency_bench.results.cell import CellResult, Interval
from saliency_bench.results.run_folder import RunData, read_run

NOT_RUN = "not run"


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


def number_of(scores: Scores, table: Table, place: dict[str, str]) -> Number:
    """The number at a place of a table."""
    value = table.values[place.get("value") or next(iter(table.values))]
    variant = table.variants.get(place.get("variant", ""), {})
    over = list(over_of(scores.suite, table, place))
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
        return correlation([number for number, _ in found], [number for number, _ in against], signs)
    return scaled(found[0][0] if len(found) == 1 else mean(over, found), value.scale)


def _score(scores: Scores, table: Table, value: Value, metric: str, variant: dict, place: Mapping[str, str]) -> Found:
    part = None if value.part is None else filled(value.part, variant)
    dataset, model, explainer = (only(scores.suite, table, axis, place) for axis in ("dataset", "model", "explainer"))
    folder, run = scores.run(_runs(table, value), dataset, model, explainer)
    if isinstance(run, str):
        return Number(missing=run), None
    cell = scores.cell(run, explainer, filled(metric, variant))
    if cell is None:
        return Number(missing=NOT_RUN), None
    interval: Interval | None = cell if part is None else part_of(cell, part)
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


def part_of(cell: CellResult, part: str) -> Interval | None:
    """The part, or the mean of those that fit, which has no interval."""
    fitting = [cell.parts[name] for name in parts_that_fit(part, cell.parts)]
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    values = [one.value for one in fitting if one.value is not None]
    mean = float(np.mean(values)) if len(values) == len(fitting) else None
    return Interval(value=mean, low=None, high=None, n=min(one.n for one in fitting), clusters=fitting[0].clusters)


def _accuracy(scores: Scores, table: Table, value: Value, variant: dict, place: Mapping[str, str]) -> Found:
    dataset, model = (only(scores.suite, table, axis, place) for axis in ("dataset", "model"))
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
    dataset, model, explainer = (only(scores.suite, table, axis, place) for axis in ("dataset", "model", "explainer"))
    folder, run = scores.run(_runs(table, value), dataset, model, explainer)
    if isinstance(run, str):
        return Number(missing=run), None
    text = smoked_text(scores.suite, explainer) if scores.smoke else explainer
    found = scores.crowd.area(run, _explainer_text(text))
    if isinstance(found, str):
        return Number(missing=found), None
    return Number(found.value, found.low, found.high, found.n, folders=(folder,), least=found.n), None
