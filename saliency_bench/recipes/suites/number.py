"""A number of a suite's table, or the reason why it is missing."""

from dataclasses import dataclass

from saliency_bench.read.cell import CellResult, Interval
from saliency_bench.read.run_folder import RunData


class NoNumberError(Exception):
    """There is no number; the message says why."""


@dataclass(frozen=True)
class Number:
    """A number of a table.

    Attributes:
        value: The number, or None if it is missing.
        low: Lower end of its interval, or None.
        high: Upper end of its interval, or None.
        n: Number of images; for a mean over datasets their sum.
        least: Images of the smallest run behind it.
        best: Whether its explainer is among the best by its metric in its run.
        missing: Why there is no number, or "".
        text: Words to show in place of a number, or "".
        cell: Id of its cell, or "" for a number made of several.
        runs: Folders of the runs behind it, below --out.
        samples: The run and cell whose mean score it is, if any.
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
    samples: tuple[RunData, CellResult] | None = None


def number_of(interval: Interval) -> Number:
    """Return an interval of a run as a number."""
    return Number(interval.value, interval.low, interval.high, interval.n)
