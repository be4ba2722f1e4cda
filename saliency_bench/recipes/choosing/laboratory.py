"""Compute scores for the rounds of `choose`.

The scores come from a growing run, and from a second run for the test with random weights.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import ERROR
from pathlib import Path
from typing import Any

import torch

from saliency_bench.compute.python_objects import Objects, describe
from saliency_bench.compute.run import start
from saliency_bench.errors import UserError
from saliency_bench.read.analysis.randomisation import BOUND, METRIC, STAYS, verdict
from saliency_bench.read.finished_run import Run, read_run
from saliency_bench.recipes.choosing.rounds import RoundScores
from saliency_bench.types import Maps
from saliency_bench.utils.messages import LOGGER
from saliency_bench.utils.progress import step

RUN, RANDOMISED = "run", "randomised"  # subfolders of the output folder of `choose`
ALL_WEIGHTS = f"{METRIC}:layers=1"
OF_CLASS = "saliency_class_sensitivity"


@dataclass
class RunLaboratory:
    """Implementation of `Laboratory` that computes scores with runs.

    Attributes:
        folder: Output folder of `choose`.
        settings: Settings of the runs, except for explainers, metrics, limit and folder.
        objects: Python objects in the settings.
        explainers: {candidate: argument for a run}.
        metrics: {metric: argument for a run}.
        maps: Function that returns a candidate's maps for the first images, or None.
        progress: Whether to show lines and progress bars.
        checks: {candidate: effect of random weights and of a different class on the maps}.
    """

    folder: Path
    settings: Mapping[str, Any]
    objects: Objects
    explainers: Mapping[str, Any]
    metrics: Mapping[str, Any]
    maps: Callable[[str], Maps | None]
    progress: bool
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)

    def scores(self, lineup: Mapping[str, Sequence[str]], images: int) -> RoundScores:
        """Return the scores on the first images of the run, for the candidates in {metric: candidates}."""
        together: dict[tuple[str, ...], list[str]] = {}
        for name in dict.fromkeys(name for names in lineup.values() for name in names):
            together.setdefault(tuple(metric for metric in lineup if name in lineup[metric]), []).append(name)
        if self.progress:
            count = sum(map(len, together.values()))
            step(f"saliency-bench: {count} candidates on {images} images")
        for metrics, names in together.items():
            self._run(RUN, names, [self.metrics[metric] for metric in metrics], images)
        return scores_of(read_run(self.folder / RUN), lineup)

    def survivors(self, names: Sequence[str], images: int) -> set[str]:
        """Return the candidates whose maps do not change when all weights are randomised."""
        try:
            self._run(RANDOMISED, names, [ALL_WEIGHTS, OF_CLASS], images)
        except UserError as error:  # for example, the network cannot be copied
            self.checks |= {name: {"verdict": f"not checked: {error}"} for name in names}
            return set()
        cells = read_run(self.folder / RANDOMISED).cells
        for name in names:
            of_name = {cell.metric: cell for cell in cells if cell.explainer_text == name}
            by_weights = of_name[METRIC]
            (part,) = by_weights.parts.values()
            self.checks[name] = {
                "verdict": verdict(part, BOUND),
                "similarity": part.value,
                "low": part.low,
                "high": part.high,
                "n": part.n,
                "class_sensitivity": of_name[OF_CLASS].value,
            }
        return {name for name in names if self.checks[name]["verdict"] == STAYS}

    def twins(self, names: Sequence[str]) -> dict[str, str]:
        """Return {candidate: an earlier candidate with the same maps for the first images}."""
        twin_of: dict[str, str] = {}
        different: dict[str, Maps] = {}
        for name in names:
            maps = self.maps(name)
            if maps is None:
                continue
            same = next((other for other, others in different.items() if torch.equal(maps, others)), None)
            if same is None:
                different[name] = maps
            else:
                twin_of[name] = same
        return twin_of

    def _run(self, folder: str, names: Sequence[str], metrics: Sequence[Any], images: int) -> None:
        settings = {
            **self.settings,
            "explainers": [self.explainers[name] for name in names],
            "metrics": list(metrics),
            "limit": images,
            "out": self.folder / folder,
        }
        # Suppress the run's message about cells with fewer images: they belong to candidates that were dropped.
        with _errors_only(folder == RANDOMISED or (self.folder / folder).exists()):
            spec, objects = describe(settings)
            start(spec, {**self.objects, **objects}, progress=self.progress)


def scores_of(run: Run, lineup: Mapping[str, Sequence[str]]) -> RoundScores:
    """Return a run's scores for the candidates in {metric: candidates}, oriented so that higher is better."""
    cells = {(cell.explainer_text, cell.metric_text): cell for cell in run.cells}
    wanted = [(name, metric) for metric, names in lineup.items() for name in names]
    first = {metric: cells[names[0], metric] for metric, names in lineup.items()}
    return RoundScores(
        {key: run.scores.oriented(cells[key]) for key in wanted},
        run.scores.ids,
        run.scores.groups,
        {metric: cell.limits for metric, cell in first.items()},
        {metric: cell.higher_is_better for metric, cell in first.items()},
    )


@contextmanager
def _errors_only(wanted: bool) -> Iterator[None]:
    """Inside this context, suppress warnings if `wanted` is true."""
    before = LOGGER.level
    if wanted:
        LOGGER.setLevel(ERROR)
    try:
        yield
    finally:
        LOGGER.setLevel(before)
