"""The plots of a report as numbers: positions in percent of the drawing's width, so that a plot fits any screen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from saliency_bench.analysis.differences import Pair
from saliency_bench.reports.words import interval, number, percent
from saliency_bench.results.run_folder import Column, Row, RunData

BINS = 32
FEW_BINS = 12  # for scores that are yes or no
HEIGHT = 30  # of one row, in pixels
TICKS = 5


@dataclass(frozen=True)
class Axis:
    low: float
    high: float

    def percent(self, value: float | None) -> float | None:
        """Percent from the left; None for no value."""
        if value is None or value != value:
            return None
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    @property
    def ticks(self) -> list[tuple[float | None, str]]:
        """Round numbers within the axis, with their positions."""
        raw = (self.high - self.low) / TICKS
        power = 10 ** math.floor(math.log10(raw))
        step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= raw * 0.99)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        return [
            (self.percent(k * step), f"{k * step + 0.0:.{digits}f}".replace("-", "−")) for k in range(first, last + 1)
        ]


def axis_of(values: Sequence[float | None], margin: float) -> Axis:
    """From the least to the greatest value, and a margin as a share of their distance."""
    known = [value for value in values if value is not None and value == value] or [0.0, 1.0]
    low, high = min(known), max(known)
    space = (high - low) * margin or abs(low) * 0.1 or 0.1
    return Axis(low - space, high + space)


def intervals(run: RunData, column: Column) -> dict:
    """Dots and whiskers, a row per explainer, and the interval of `random` as a band."""
    cells = run.cells_of_column(column)
    axis = axis_of([end for _, cell in cells for end in (cell.value, cell.low, cell.high)], margin=0.06)
    rows = [
        {
            "name": row.name,
            "baseline": row.baseline,
            "text": number(cell.value),
            "rest": interval(cell),
            "value": axis.percent(cell.value),
            "low": axis.percent(cell.low),
            "high": axis.percent(cell.high),
        }
        for row, cell in cells
    ]
    chance = next((row for row in rows if row["baseline"] and row["name"] == "random"), None)
    has_band = chance is not None and chance["low"] is not None
    return {"ticks": axis.ticks, "rows": rows, "band": (chance["low"], chance["high"]) if chance and has_band else None}


def distributions(run: RunData, column: Column) -> dict:
    """Histograms of the samples' scores with their quartiles, a row per explainer, all on one axis.

    Scores that are yes or no, except for an occasional tie, have no quartiles worth drawing: the share of yes is shown.
    """
    cells = run.cells_of_column(column)
    scores = [_finite(run.values[cell.cell_id]) for _, cell in cells]
    together = np.concatenate(scores)
    yes = _yes(together)
    bins = BINS if yes is None else FEW_BINS
    axis = axis_of([together.min(), together.max()] if len(together) else [], margin=0.5 / bins)
    rows = [
        {"name": row.name, "baseline": row.baseline, "path": _bars(values, axis, bins)}
        | (_quartiles(values, axis) if yes is None else _share(values, yes))
        for (row, _), values in zip(cells, scores, strict=True)
    ]
    return {"ticks": axis.ticks, "rows": rows, "caption": "median" if yes is None else f"share at {number(yes)}"}


def _yes(values: np.ndarray) -> float | None:
    """The higher of two values that nearly all scores have; None for scores of another kind."""
    distinct, counts = np.unique(values, return_counts=True)
    common = np.sort(counts)[-2:]
    if len(common) < 2 or common.sum() < 0.9 * len(values) or common.min() == 1:
        return None
    return float(distinct[np.argsort(counts, kind="stable")[-2:]].max())


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _bars(values: np.ndarray, axis: Axis, bins: int) -> str:
    """A histogram as an SVG path, 100 wide and HEIGHT high."""
    counts, edges = np.histogram(values, bins=bins, range=(axis.low, axis.high))
    heights = np.round((HEIGHT - 3) * counts / max(counts.max(), 1), 1)
    return "".join(
        f"M{axis.percent(left)} {HEIGHT}V{HEIGHT - height:g}H{axis.percent(right)}V{HEIGHT}z"
        for (left, right), height in zip(pairwise(edges), heights, strict=True)
        if height > 0
    )


def _quartiles(values: np.ndarray, axis: Axis) -> dict:
    if len(values) == 0:
        return {"quartiles": None, "text": number(None), "rest": ""}
    low, middle, high = (float(quartile) for quartile in np.percentile(values, [25, 50, 75]))
    positions = [axis.percent(quartile) for quartile in (low, middle, high)]
    return {"quartiles": positions, "text": number(middle), "rest": f"middle half {number(low)} to {number(high)}"}


def _share(values: np.ndarray, yes: float) -> dict:
    return {"quartiles": None, "text": percent(float(np.mean(values == yes)) if len(values) else None), "rest": ""}


def difference_means(pairs: list[Pair]) -> dict:
    """Dots and whiskers of the mean differences, and where zero is."""
    axis = axis_of([0.0, *(end for pair in pairs for end in (pair.mean, pair.low, pair.high))], margin=0.06)
    rows = [
        {
            "name": pair.explainer,
            "baseline": pair.baseline,
            "value": axis.percent(pair.mean),
            "low": axis.percent(pair.low),
            "high": axis.percent(pair.high),
        }
        for pair in pairs
    ]
    return {"ticks": axis.ticks, "zero": axis.percent(0.0), "rows": rows}


def difference_bars(pairs: list[Pair]) -> dict:
    """Histograms of the samples' differences around zero; equal samples are left out, as they would dwarf the rest."""
    widest = max((float(np.abs(pair.differences).max()) for pair in pairs if len(pair.ids)), default=0.0) or 1.0
    axis = Axis(-widest * 1.02, widest * 1.02)
    rows = [
        {
            "name": pair.explainer,
            "baseline": pair.baseline,
            "path": _bars(pair.differences[pair.differences != 0], axis, BINS),
        }
        for pair in pairs
    ]
    return {"ticks": axis.ticks, "zero": axis.percent(0.0), "rows": rows}


def agreement(run: RunData) -> dict | None:
    """Spearman's correlation of every two metrics over explainers, within each sample, then averaged over samples.

    None where there are fewer than two metrics or three explainers. A sample on which a metric gives all explainers the
    same score has no order and is left out.
    """
    rows = [row for row in run.rows if all(run.cell(row, column) for column in run.columns)]
    if len(run.columns) < 2 or len(rows) < 3:
        return None
    ranks = [_ranks(_oriented(run, rows, column)) for column in run.columns]
    table = [[None if first is second else _correlation(first, second) for second in ranks] for first in ranks]
    return {"columns": run.columns, "table": table, "explainers": len(rows)}


def _oriented(run: RunData, rows: list[Row], column: Column) -> np.ndarray:
    """(samples, explainers), higher is better."""
    return np.stack([run.oriented(cell) for row in rows if (cell := run.cell(row, column))], axis=1)


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Ranks within each row, centred on zero, ties at their mean; NaN for rows with a gap."""
    above = (scores[:, :, None] > scores[:, None, :]).sum(axis=2)
    below = (scores[:, :, None] < scores[:, None, :]).sum(axis=2)
    return np.where(np.isfinite(scores).all(axis=1, keepdims=True), (above - below) / 2, np.nan)


def _correlation(first: np.ndarray, second: np.ndarray) -> tuple[float, int] | None:
    """(mean over rows, rows that count)."""
    scale = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    counts = scale > 0
    if not counts.any():
        return None
    return float(((first * second).sum(axis=1)[counts] / scale[counts]).mean()), int(counts.sum())
