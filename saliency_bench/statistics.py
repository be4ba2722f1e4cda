"""Intervals: how far a number would move on other samples of the same kind."""

from collections.abc import Callable

import numpy as np

from saliency_bench.seeds import random_bits, seed_of

DRAWS = 2000
LEVEL = 0.95
INDICES_AT_ONCE = 2**22  # bounds memory at 32 MiB of indices


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
    block = max(1, INDICES_AT_ONCE // count)
    drawn = np.empty(draws)
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        bits = random_bits(seed_of(seed, "bootstrap", count, start), rows * count)
        sample = values[(bits % np.uint64(count)).astype(np.intp).reshape(rows, count)]
        drawn[start : start + rows] = sample.mean(axis=1) if aggregate is np.mean else [aggregate(s) for s in sample]
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return float(aggregate(values)), float(low), float(high)
