"""A number, and numbers of several datasets and models made into one.

A mean over datasets or models weights them equally. Where models share the images of a dataset, each image's mean over
the models is taken first. Its interval is that for these datasets, 1.96 sqrt(sum of squared standard errors) / D, as on
the board (the choice of datasets is no part of it).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from saliency_bench.analysis.correlations import FEWEST, pearson
from saliency_bench.results.cell import CellResult
from saliency_bench.results.clusters import cluster_codes
from saliency_bench.results.intervals import INTERVAL_FROM, cluster_error
from saliency_bench.results.run_folder import RunData


@dataclass(frozen=True)
class Number:
    """A number of a table.

    missing  why there is none
    n        images; of a mean over datasets their sum
    least    images of the smallest run behind it
    best     whether its explainer is among the best by its metric in its run
    cell     the id of its cell; "" for a number made of several
    folders  of the runs behind it, below --out
    paper    the number that the paper prints
    notes    what is known of the paper's number
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


# A number, with the run and cell whose samples it is the mean of, if it is that of one cell
Found = tuple[Number, tuple[RunData, CellResult] | None]


def mean(places: Sequence[Mapping[str, str]], found: list[Found]) -> Number:
    """The mean of numbers, datasets weighted equally, as the module says."""
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


def correlation(first: list[Number], second: list[Number], signs: Sequence[int]) -> Number:
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


def scaled(number: Number, scale: float) -> Number:
    value, low, high = (None if end is None else end * scale for end in (number.value, number.low, number.high))
    return replace(number, value=value, low=low, high=high)
