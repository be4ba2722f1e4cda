"""Intervals: how far a number would move on other samples of the same kind; paired tests and the ranks they give."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from saliency_bench.utils.seeds import random_bits, seed_of

DRAWS = 2000
LEVEL = 0.95
INDICES_AT_ONCE = 2**22  # bounds memory at 32 MiB of indices
FLIPS = 9999  # random sign patterns of a paired test
EXACT = 13  # up to so many pairs all 2^n patterns are looked at


def bootstrap(
    values: np.ndarray,
    aggregate: Callable[[np.ndarray], float] = np.mean,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float, float]:
    """(aggregate of the values, low, high): the percentile bootstrap interval of Efron (1979).

    values: (n,) or (n, columns), resampled by row; the aggregate is computed anew for each of the `draws` samples.
    Equal n and seed draw equal rows, so that intervals of two explainers on the same samples are paired.
    No values: three NaN. One value: an interval of width zero says nothing; low and high are NaN.
    """
    values = np.asarray(values, dtype=np.float64)
    count = len(values)
    if count == 0:
        return (float("nan"),) * 3
    if count == 1:
        return float(aggregate(values)), float("nan"), float("nan")
    drawn = np.empty(draws)
    for start, rows in _resampled(count, draws, seed):
        sample, block = values[rows], slice(start, start + len(rows))
        drawn[block] = sample.mean(axis=1) if aggregate is np.mean else [aggregate(s) for s in sample]
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return float(aggregate(values)), float(low), float(high)


def mean_intervals(columns: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of the mean of each column of (n, columns), as `bootstrap` gives it, from one set of draws."""
    count, width = columns.shape
    if count < 2:
        return np.full(width, np.nan), np.full(width, np.nan)
    means = [
        # einsum and not @, whose last bits depend on the number of threads
        np.einsum("n,nc->c", np.bincount(drawn, minlength=count) / count, columns)
        for _, rows in _resampled(count, DRAWS, seed)
        for drawn in rows
    ]
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return low, high


def _resampled(count: int, draws: int, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the first sample, the rows (samples, count) that each draws with replacement), a block at a time."""
    block = max(1, INDICES_AT_ONCE // count)
    for start in range(0, draws, block):
        samples = min(block, draws - start)
        bits = random_bits(seed_of(seed, "bootstrap", count, start), samples * count)
        yield start, (bits % np.uint64(count)).astype(np.intp).reshape(samples, count)


def sign_flips(differences: np.ndarray, flips: int = FLIPS, seed: int = 0) -> np.ndarray:
    """P-values (columns,) of paired differences (n, columns): could a mean so far from zero come from random signs?

    The paired randomisation test of Fisher (1935), two-sided: if two explainers did equally well, each difference could
    as well have the other sign. The share of sign patterns whose mean is at least as far from zero; of all patterns
    where n is at most `EXACT`, else of the one seen and `flips` random ones. It asks about the mean, which is what is
    reported, and needs no normal law. Wilcoxon's test ranks the differences by size instead: it may call the explainer
    with the lower mean the better one, where it is slightly better on most samples and far worse on a few.
    """
    count, width = differences.shape
    seen = np.abs(differences.sum(axis=0))
    enough = seen - 1e-9 * np.abs(differences).sum(axis=0)  # patterns that are equal but for the last digits count
    exact = count <= EXACT
    patterns = 2**count if exact else flips
    reached = np.zeros(width)
    block = max(1, INDICES_AT_ONCE // max(count, 1))
    for start in range(0, patterns, block):
        rows = np.arange(start, min(start + block, patterns))
        bits = _all_signs(rows, count) if exact else _random_signs(len(rows), count, seed_of(seed, "flips", start))
        # A sum with signs is the plain sum less twice the part that was turned.
        sums = differences.sum(axis=0) - 2 * (bits.astype(np.float64) @ differences)
        reached += (np.abs(sums) >= enough).sum(axis=0)
    return reached / patterns if exact else (reached + 1) / (patterns + 1)


def _all_signs(rows: np.ndarray, count: int) -> np.ndarray:
    return rows[:, None] >> np.arange(count) & 1


def _random_signs(rows: int, count: int, seed: int) -> np.ndarray:
    words = random_bits(seed, rows * -(-count // 64)).astype("<u8").view(np.uint8).reshape(rows, -1)
    return np.unpackbits(words, axis=1, count=count)


def holm(p: np.ndarray) -> np.ndarray:
    """P-values adjusted for being several (Holm, 1979): below 0.05 with a chance of any false one under 5 %."""
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(steps, 1)
    return adjusted


@dataclass(frozen=True)
class Contrast:
    """Two columns on the n rows that both have: the mean of first minus second, its interval, and its p-values."""

    first: int
    second: int
    n: int
    difference: float
    low: float
    high: float
    p: float
    p_holm: float


def contrasts(columns: np.ndarray, seed: int = 0) -> list[Contrast]:
    """Every pair of columns (n, k), NaN where a row has no value, compared row by row; Holm's correction over all."""
    pairs = list(combinations(range(columns.shape[1]), 2))
    known = np.isfinite(columns)
    kept = {pair: known[:, pair[0]] & known[:, pair[1]] for pair in pairs}
    alike: dict[bytes, list[tuple[int, int]]] = {}  # pairs on the same rows are tested together
    for pair, rows in kept.items():
        if rows.any():
            alike.setdefault(rows.tobytes(), []).append(pair)
    found: dict[tuple[int, int], dict] = {}
    for group in alike.values():
        rows = kept[group[0]]
        differences = np.stack([columns[rows, first] - columns[rows, second] for first, second in group], axis=1)
        low, high = mean_intervals(differences, seed)
        measured = {"difference": differences.mean(axis=0), "low": low, "high": high}
        measured["p"] = sign_flips(differences, seed=seed)
        for index, pair in enumerate(group):
            found[pair] = {name: float(values[index]) for name, values in measured.items()} | {"n": len(differences)}
    tested = [pair for pair in pairs if pair in found]
    adjusted = holm(np.array([found[pair]["p"] for pair in tested]))
    return [
        Contrast(first=pair[0], second=pair[1], p_holm=float(p), **found[pair])
        for pair, p in zip(tested, adjusted, strict=True)
    ]


def ranks(columns: np.ndarray, compared: list[Contrast], higher_is_better: bool) -> list[int | None]:
    """1 + the number of columns that are significantly better, so that ties share a rank; None without any value."""
    worse = [0] * columns.shape[1]
    for pair in compared:
        if pair.p_holm < 1 - LEVEL:
            worse[pair.second if (pair.difference > 0) == higher_is_better else pair.first] += 1
    return [1 + better if np.isfinite(columns[:, index]).any() else None for index, better in enumerate(worse)]
