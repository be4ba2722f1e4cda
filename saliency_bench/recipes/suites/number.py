"""A number in a suite's table, or the reason why the number is missing."""

from dataclasses import dataclass

from saliency_bench.read.cell import CellResult, Interval
from saliency_bench.read.finished_run import Run


class NoNumberError(Exception):
    """Raised if a number cannot be computed. The message states the reason."""


@dataclass(frozen=True)
class Number:
    """A number in a table, with its origin.

    Attributes:
        value: The number, or None if it is missing.
        low: Lower bound of the interval, or None.
        high: Upper bound of the interval, or None.
        n: Number of images. For a mean over datasets, it is the sum over the datasets.
        least: Number of images in the smallest run that was used.
        best: Whether the explainer is among the run's best explainers on this metric.
        missing: Reason why there is no number, or "".
        text: Text that is shown instead of a number, or "".
        cell: Id of the cell, or "" if the number combines several cells.
        runs: Folders of the runs that were used, relative to --out.
        samples: (run, cell) if the number is the mean score of a cell, else None.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    least: int | None = None
    best: bool = False
    missing: str = ""
    text: str = ""
    cell: str = ""
    runs: tuple[str, ...] = ()
    samples: tuple[Run, CellResult] | None = None


def number_of(interval: Interval) -> Number:
    """Convert an interval from a run into a number."""
    return Number(interval.value, interval.low, interval.high, interval.n)
