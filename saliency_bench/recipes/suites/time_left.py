"""Time left of a running suite: what the plan counts for the work that is left, at the pace of what was done."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from saliency_bench.recipes.suites.costs import Cost
from saliency_bench.recipes.suites.own_work import seconds_of
from saliency_bench.recipes.suites.plan import WITH_GRADIENT, Step

TRUST = 0.05  # share of the predicted time after which the pace so far counts as much as the prediction


@dataclass
class TimeLeft:
    """The work of a suite by the folders of its networks and runs.

    Weights are seconds where all networks were timed, else forward passes, of which the first piece of work shows how
    long they take.

    Attributes:
        weights: {folder: weight of what is not done yet}.
        in_seconds: Whether weights are predicted seconds.
        clock: Seconds since any moment.
    """

    weights: dict[Path, float]
    in_seconds: bool
    clock: Callable[[], float] = time.monotonic
    done: float = 0.0
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()
        self.total = sum(self.weights.values())

    @classmethod
    def of_plan(cls, steps: Sequence[Step], clock: Callable[[], float] = time.monotonic) -> "TimeLeft":
        """Return the work of a plan; nothing of runs that could not be counted."""
        in_seconds = all(step.speed is not None for step in steps if step.cost)
        weights: dict[Path, float] = {}
        for step in steps:
            for folder, cost in step.trainings.items():
                weights[folder] = _weight(cost, step, in_seconds)
            alone = _weight(step.cost or Cost(), step, in_seconds) - sum(weights[folder] for folder in step.trainings)
            weights[step.job.folder] = weights.get(step.job.folder, 0.0) + max(alone, 0.0)
        return cls(weights, in_seconds, clock)

    def finish(self, folder: Path) -> None:
        """Note that a network is trained or a run is made, or has failed."""
        self.done += self.weights.pop(folder, 0.0)

    def keep(self, folders: Collection[Path]) -> None:
        """Leave out what other processes do."""
        self.weights = {folder: weight for folder, weight in self.weights.items() if folder in folders}

    @property
    def seconds(self) -> float | None:
        """Return the time left; None while nothing says how fast this machine is."""
        left, elapsed = sum(self.weights.values()), self.clock() - self.start
        # A pace of 1 until the clock says otherwise: of predicted seconds alone, counts of passes say nothing of time.
        prior = TRUST * self.total if self.in_seconds else 0.0
        if not left:
            return 0.0
        return left * (elapsed + prior) / (self.done + prior) if self.done + prior else None

    def __str__(self) -> str:
        seconds = self.seconds
        if not seconds:
            return ""
        if seconds < 90:
            return f"; about {seconds:.0f} s left"
        return f"; about {seconds / 60:.0f} min left" if seconds < 5400 else f"; about {seconds / 3600:.1f} h left"


def _weight(cost: Cost, step: Step, in_seconds: bool) -> float:
    """Return the weight of a cost."""
    if in_seconds and step.speed is not None:
        return seconds_of(cost, step.speed, step.own_work)[1]
    return cost.forward + WITH_GRADIENT * (cost.gradient + cost.trained)
