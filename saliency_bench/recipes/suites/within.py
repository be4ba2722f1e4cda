"""Take as many images of each run as a time allows, the same number for all runs: `suite --within`.

The plan says how many. A first pass takes a part of the time and shows how fast the machine is; further passes extend
the same runs by as much as is left at that pace, so that a suite that is stopped has every number on some images.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from saliency_bench.errors import UserError
from saliency_bench.read.report import words
from saliency_bench.recipes.suites.plan import Step

FIRST_PASS = 0.25  # of the time that trainings leave
WORTHWHILE = 1.2  # times the images of the last pass; less is not worth loading every run again


def check_timed(steps: Sequence[Step]) -> None:
    """Raise UserError for a run of which no time can be told."""
    if unknown := next((step for step in steps if step.seconds is None), None):
        lacking = "its dataset" if unknown.images is None else f"its network {unknown.job.model}"
        raise UserError(
            f"--within cannot tell how long {unknown.job.folder.name} takes, as {lacking} is not on this machine; "
            "download it first, or give --limit instead of --within"
        )


def seconds_on(steps: Sequence[Step], images: int) -> float:
    """Return the likely seconds of a suite on so many images of each run."""
    return sum(limited.seconds[1] for step in steps if (limited := step.up_to(images)).seconds)


def most_images(steps: Sequence[Step], seconds: float) -> int:
    """Return the most images of each run that take so long, 0 if not even one does."""
    low, high = 0, max((step.images or 0 for step in steps), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if seconds_on(steps, middle) <= seconds else (low, middle - 1)
    return low


def check_enough(steps: Sequence[Step], seconds: float, left: float) -> int:
    """Return the images of each run that a time allows.

    Args:
        steps: The plan.
        seconds: The time that was given.
        left: What is left of it after planning.

    Raises:
        UserError: It is too little for one.
    """
    if images := most_images(steps, left):
        return images
    planning, least = words.seconds(seconds - left), words.seconds(seconds_on(steps, 1))
    raise UserError(
        f"--within {words.seconds(seconds)} is too little: the plan took {planning}, trainings and one image of each "
        f"run take about {least}; give more, or choose a part with --select"
    )


@dataclass
class Passes:
    """The passes of a suite over the first images of its runs.

    Attributes:
        seconds: What all passes together may take.
        clock: Seconds since any moment.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    images: int = 0  # of the last pass
    planned: float = 0.0  # seconds of the last pass
    begun: float = field(init=False)  # when it began

    def __post_init__(self) -> None:
        self.begun = self.clock()
        self.end = self.begun + self.seconds

    def next_images(self, steps: Sequence[Step]) -> int:
        """Return the images of each run in the next pass, 0 if there is none.

        Args:
            steps: What is left of the suite, as planned for all images.
        """
        now = self.clock()
        left = self.end - now
        if not self.images:
            check_timed(steps)
            check_enough(steps, self.seconds, left)
            trainings = seconds_on(steps, 0)
            images = max(most_images(steps, trainings + FIRST_PASS * (left - trainings)), 1)
        else:
            images = most_images(steps, left * self.planned / (now - self.begun))
            if images < WORTHWHILE * self.images and any((step.images or 0) > images for step in steps):
                return 0
        if images <= self.images:
            return 0
        self.images, self.planned, self.begun = images, seconds_on(steps, images), now
        return images
