"""Simulate the properties of intervals and tests in `saliency_bench/read`: coverage, false findings, power, cost.

example:
  python benchmarks/simulations.py
  python benchmarks/simulations.py --share 0.1 --skip cost

The scores are drawn from known distributions that include all observed shapes of metrics: 0/1 scores, rare events,
skewed scores, scores with a small spread with and without rare failures, and three unbounded distributions. Samples are
independent or in clusters of equal or unequal sizes (`DESIGNS`), with 20, 50 and 100 effective clusters. `--share` runs
only this share of the simulations; all simulations take about an hour. The tables are Markdown, as in
`docs/numbers.md`; ! marks values below 93 %.
"""

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np
from scipy import special
from scipy import stats as laws

from saliency_bench.read.analysis import power
from saliency_bench.read.analysis.requirements import violation_of_hits, violation_of_share, wilson_size
from saliency_bench.read.statistics import intervals as package
from saliency_bench.read.statistics import paired_test
from saliency_bench.read.statistics.clusters import Matched, effective_clusters
from saliency_bench.read.statistics.intervals import TAIL, aggregate_interval, difference, intervals
from saliency_bench.read.statistics.paired_test import FLIPS, adjusted_p

GRID = (np.arange(20_000) + 0.5) / 20_000
UNIT, UNBOUNDED = (0.0, 1.0), (-float("inf"), float("inf"))


def rare(share: float) -> np.ndarray:
    """Return quantiles of a score that is 0 except on this share of the samples."""
    return np.where(1 - share > GRID, 0, laws.beta(2, 3).ppf(np.clip((GRID - 1 + share) / share, 0, 1)))


# Quantiles on GRID, so that the true mean is known.
LAWS = {
    "0/1, 5 % ones": (GRID > 0.95) * 1.0,
    "0/1, 50 % ones": (GRID > 0.5) * 1.0,
    "0/1, 98 % ones": (GRID > 0.02) * 1.0,
    "70 % zeros": rare(0.3),
    "95 % zeros": rare(0.05),
    "IoU (beta .7, 1.3)": laws.beta(0.7, 1.3).ppf(GRID),
    "near one (beta 8, 1)": laws.beta(8, 1).ppf(GRID),
    "narrow (beta 30, 30)": laws.beta(30, 30).ppf(GRID),
    "unbounded: log-normal": laws.lognorm(1).ppf(GRID),
    "unbounded: exponential": laws.expon().ppf(GRID),
    "unbounded: t(5)": laws.t(5).ppf(GRID),
}
# {design: (function from a number of clusters to their sizes, intra-class correlation)}
DESIGNS = {
    "unclustered samples": (lambda count: np.ones(count, int), 0.0),
    "clusters of 6, ICC .3": (lambda count: np.full(count, 6), 0.3),
    "sizes 20 (a fifth) and 2, ICC .3": (lambda count: np.where(np.arange(count) < count / 5, 20, 2), 0.3),
    "log-normal sizes, ICC .5": (lambda count: np.maximum(np.round(4 * _log_normal(count)), 1).astype(int), 0.5),
}
EFFECTIVE = (20, 50, 100)
ENOUGH = 0.93
# {scores with equal means and unequal shapes, within [0, 1]: function that computes their quantiles}
UNEQUAL = {
    "0/1 with 5 % ones, smooth": lambda: (LAWS["0/1, 5 % ones"], laws.beta(2, 38).ppf(GRID)),
    "0/1 with 2 % ones, constant": lambda: ((GRID > 0.98) * 1.0, np.full(len(GRID), 0.02)),
    "0/1 with 98 % ones, smooth": lambda: (LAWS["0/1, 98 % ones"], laws.beta(49, 1).ppf(GRID)),
    "95 % zeros, smooth": lambda: (LAWS["95 % zeros"], laws.beta(2, 98).ppf(GRID)),
    "two 0/1 with 5 % ones, three smooth": lambda: (
        LAWS["0/1, 5 % ones"], LAWS["0/1, 5 % ones"],
        *(laws.beta(a, 19 * a).ppf(GRID) for a in (1, 2, 20)),
    ),
    "three rare, three smooth": lambda: (
        0.4 * LAWS["0/1, 5 % ones"], LAWS["95 % zeros"],
        *(laws.beta(a, 49 * a).ppf(GRID) for a in (1, 2, 20)), (GRID > 0.98) * 1.0,
    ),
    "few large scores, more small ones": lambda: ((GRID > 0.98) * 1.0, 0.2 * (GRID > 0.9)),
    "four rare, six smooth": lambda: (
        (GRID > 0.98) * 1.0, 0.4 * (GRID > 0.95), LAWS["95 % zeros"], 0.2 * (GRID > 0.9),
        *(laws.beta(a / 50, a * 49 / 50).ppf(GRID) for a in (20, 40, 80, 200, 400, 1000)),
    ),
    "25 rare, 75 smooth": lambda: (
        *(0.02 / share * (1 - share < GRID) for share in np.linspace(0.02, 0.2, 25)),
        *(laws.beta(a / 50, a * 49 / 50).ppf(GRID) for a in np.geomspace(10, 1000, 75)),
    ),
    "ten rare, thirty smooth": lambda: (
        *(0.02 / share * (1 - share < GRID) for share in np.linspace(0.02, 0.2, 10)),
        *(laws.beta(a / 50, a * 49 / 50).ppf(GRID) for a in np.geomspace(10, 1000, 30)),
    ),
}  # fmt: skip
# The same for scores with unequal means.
APART = {
    "5 IoUs with means of .35 to .5": lambda: [
        laws.beta(3 * mean, 3 - 3 * mean).ppf(GRID) for mean in np.linspace(0.35, 0.5, 5)
    ],
    "40 IoUs with means of .35 to .5": lambda: [
        laws.beta(3 * mean, 3 - 3 * mean).ppf(GRID) for mean in np.linspace(0.35, 0.5, 40)
    ],
    "40 scores with 50 to 95 % zeros": lambda: [rare(share) for share in np.linspace(0.05, 0.5, 40)],
    "5 scores with 80 to 98 % zeros": lambda: [rare(share) for share in np.linspace(0.02, 0.2, 5)],
}
# {mean and spread: distribution of scores}. A few of the scores fail: they are replaced by 0.
NARROW = {
    "mean .75, spread .02": laws.beta(300, 100),
    "mean .5, spread .06": laws.beta(30, 30),
    "mean .8, spread .09": laws.beta(15, 4),
    "mean .7, spread .1": laws.beta(14, 6),
    "mean .8, spread .12": laws.beta(8, 2),
}
# Further distributions whose intervals should not become wider.
ORDINARY = {
    "normal (.5, .15)": laws.truncnorm(-10 / 3, 10 / 3, 0.5, 0.15).ppf(GRID),
    "uniform": GRID,
    "beta 2, 2": laws.beta(2, 2).ppf(GRID),
    "skewed (beta 2, 5)": laws.beta(2, 5).ppf(GRID),
    "skewed (beta 8, 2)": laws.beta(8, 2).ppf(GRID),
    "two peaks (beta 4, 16 and 16, 4)": np.sort(np.concatenate([laws.beta(4, 16).ppf(GRID[::2]),
                                                                laws.beta(16, 4).ppf(GRID[1::2])])),
}  # fmt: skip
# Distributions for simulated requirements. The bound of each requirement is the mean of its distribution.
GATED = {
    "0/1": (GRID > 0.4) * 1.0,
    "0/1, 90 % ones": (GRID > 0.1) * 1.0,
    "0/1, 96 % ones": (GRID > 0.04) * 1.0,
    "beta 4.8, 3.2": laws.beta(4.8, 3.2).ppf(GRID),
    "beta 9, 1": laws.beta(9, 1).ppf(GRID),
}
PARTS = ("coverage", "rare", "family", "power", "planned", "cost")


def _log_normal(count: int) -> np.ndarray:
    return np.exp(laws.norm.ppf((np.arange(count) + 0.5) / count))


def sizes_of(design: str, effective: float) -> np.ndarray:
    """Return the cluster sizes of the smallest design with this effective number of clusters."""
    sizes, count = DESIGNS[design][0], int(effective)
    while effective_clusters(sizes(count)) < effective - 1e-9:
        count += 1
    return sizes(count)


def at(law: str | np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Return scores at the same quantiles as standard normal values."""
    quantiles = LAWS[law] if isinstance(law, str) else law
    return quantiles[np.minimum((special.ndtr(normal) * len(GRID)).astype(int), len(GRID) - 1)]


def drawn(law: str | np.ndarray, rng: np.random.Generator, design: str, sizes: np.ndarray, times: int) -> np.ndarray:
    """Return scores (n, times) with correlation within clusters (a Gaussian copula)."""
    correlation = DESIGNS[design][1]
    rows = rng.normal(0, 1, (sizes.sum(), times))
    if correlation:
        clusters = np.repeat(rng.normal(0, 1, (len(sizes), times)), sizes, axis=0)
        rows = np.sqrt(correlation) * clusters + np.sqrt(1 - correlation) * rows
    return at(law, rows)


def at_grid(law: laws.rv_continuous) -> np.ndarray:
    """Return the quantiles of a distribution on GRID."""
    return law.ppf(GRID)


def without_failures(estimate: package.Estimate, *_: object) -> package.Estimate:
    """Return the estimate unchanged.

    This replaces `outlasting_rare_scores`, which widens intervals for rare failures.
    """
    return estimate


def scores_with_failures(
    law: str | np.ndarray, share: float, sizes: np.ndarray, times: int, whole: bool = False, correlation: float = 0.0
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return (scores (n, times), clusters, true mean). On a share of the samples, the score is 0.

    `whole` tells whether whole clusters fail.
    """
    rng = np.random.default_rng([6, len(sizes), times, int(1000 * share)])
    design = next((name for name, (_, of) in DESIGNS.items() if of == correlation), "unclustered samples")
    scores, codes = drawn(law, rng, design, sizes, times), np.repeat(np.arange(len(sizes)), sizes)
    failed = rng.random((len(sizes), times))[codes] < share if whole else rng.random(scores.shape) < share
    mean = float((LAWS[law] if isinstance(law, str) else law).mean())
    return np.where(failed, 0, scores), codes, (1 - share) * mean


def ends_of(columns: np.ndarray, codes: np.ndarray, tail: float = TAIL, gate: bool = True) -> dict[str, np.ndarray]:
    """Return three arrays of intervals (times, 2): without the widening for rare scores, with it, and as used by a
    gate.

    The array for a gate is empty unless `gate` is set.
    """
    kept = package.outlasting_rare_scores
    package.outlasting_rare_scores = without_failures
    estimates = {"before": intervals(columns, codes, UNIT, tail=tail)}
    package.outlasting_rare_scores = kept
    estimates |= {"after": intervals(columns, codes, UNIT, tail=tail),
                  "gate": intervals(columns, codes, UNIT, tail=tail, gate=True) if gate else []}  # fmt: skip
    return {name: np.array([[one.low, one.high] for one in of]) for name, of in estimates.items()}


def covered(ends: np.ndarray, true: float) -> float:
    """Return the share of intervals that contain the true mean."""
    return float(np.mean((ends[:, 0] <= true) & (true <= ends[:, 1])))


def covered_with_failures(
    law: np.ndarray, share: float, count: int, times: int, size: int = 1, whole: bool = False
) -> tuple[float, float]:
    """Return the coverage of intervals without and with widening, for scores with failures.

    In clusters, the intra-class correlation is .3.
    """
    columns, codes, true = scores_with_failures(law, share, np.full(count, size), times, whole, 0.3 * (size > 1))
    ends = ends_of(columns, codes, gate=False)
    return covered(ends["before"], true), covered(ends["after"], true)


def widths(law: np.ndarray, count: int, times: int, size: int = 1) -> tuple[float, float]:
    """Return the mean widths of the intervals shown and of those for a gate, relative to intervals without widening."""
    columns, codes, _ = scores_with_failures(law, 0, np.full(count, size), times, correlation=0.3 * (size > 1))
    mean = {name: float(np.diff(ends).mean()) for name, ends in ends_of(columns, codes).items()}
    return mean["after"] / mean["before"], mean["gate"] / mean["before"]


def met_by_mistake(law: np.ndarray, share: float, n: int, requirements: int, times: int) -> tuple[float, float]:
    """Return how often at least one of several requirements is met by mistake, without and with widened intervals.

    Each requirement is slightly more than the true mean.
    """
    columns, codes, true = scores_with_failures(law, share, np.ones(n, int), times)
    ends = ends_of(columns, codes, TAIL / requirements)
    before, after = (1 - (1 - float(np.mean(ends[name][:, 0] > true))) ** requirements for name in ("before", "gate"))
    return before, after


def pairs_with_failures(spread: float, share: float, n: int, times: int, both: bool, size: int = 1) -> list[Matched]:
    """Return correlated pairs of scores with mean .7.

    The first score of a pair, or both, are 0 on a share of the samples.
    """
    rng = np.random.default_rng([8, n, int(1000 * share)])
    pairs = []
    for _ in range(times):
        common, own = rng.normal(size=n), rng.normal(size=(2, n))
        columns = np.clip(0.7 + spread * np.sqrt(0.5) * (common + own), 0, 1)
        failed = np.repeat(rng.random((2, n // size)) < share, size, axis=1) & np.array([[True], [both]])
        pairs.append(Matched(list(np.where(failed, 0, columns)), np.arange(n) // size, UNIT))
    return pairs


def covered_differences(spread: float, share: float, n: int, times: int, both: bool, size: int = 1) -> list[float]:
    """Return the coverage of intervals without and with widening, for differences between scores with failures."""
    pairs = pairs_with_failures(spread, share, n * size, times, both, size)
    true = 0 if both else -share * laws.norm(0.7, spread).expect(lambda x: np.clip(x, 0, 1))
    ends = [np.array([of(pair, 0, 1)[1:3] for pair in pairs]) for of in (difference, package.paired_difference)]
    return [covered(of, true) for of in ends]


def called_alike(n: int, times: int, spread: float, share: float = 0.0, margin: float = 0.05) -> float:
    """Return how often two scores are reported as equivalent.

    On a share of the samples, the first differs by the whole range.
    """
    rng = np.random.default_rng([9, n, int(1000 * share)])
    hits = 0
    for _ in range(times):
        gaps = np.where(rng.random(n) < share, 1.0, np.clip(rng.normal(0, spread, n), -1, 1))
        hits += package.is_alike(Matched([gaps, np.zeros(n)], np.arange(n), UNIT), 0, 1, margin)
    return hits / times


def falsely_apart(
    spread: float, share: float, n: int, times: int, both: bool = False, size: int = 1, explainers: int = 2
) -> tuple[float, float]:
    """Return how often any two explainers with equal means differ significantly: in the test alone, and with the
    bounds.

    Every second explainer, or every explainer, has rare failures. Clusters of `size` fail as a whole.
    """
    rng, hits = np.random.default_rng([10, n, int(1000 * share)]), np.zeros(2)
    fails = np.arange(explainers)[:, None] % 2 < 1 + both
    for number in range(times):
        common, own = np.repeat(rng.normal(size=n), size), rng.normal(size=(explainers, n * size))
        columns = 0.7 + spread * np.sqrt(0.5) * (common + own)
        failed = np.repeat(rng.random((explainers, n)) < share, size, axis=1)
        columns = np.where(fails, np.where(failed, 0, columns / (1 - share)), columns)
        hits += apart(list(columns), np.repeat(np.arange(n), size), number)
    return tuple(hits / times)


def truly_apart(quantiles: np.ndarray, n: int, times: int) -> tuple[float, float]:
    """Return how often a pair differs significantly, without the bounds for rare failures and with them.

    The pair has correlation .4, and its means are 2.4 standard errors apart.
    """
    rng, hits = np.random.default_rng([11, n]), np.zeros(2)
    for number in range(times):
        normal = np.sqrt(0.4) * rng.normal(size=n) + np.sqrt(0.6) * rng.normal(size=(2, n))
        scores = [at(quantiles, normal[0]), at(quantiles, normal[1] + 2.4 * np.sqrt(1.2 / n))]
        hits += apart(scores, np.arange(n), number)
    return tuple(hits / times)


def apart(columns: Sequence[np.ndarray], codes: np.ndarray, seed: int) -> np.ndarray:
    """Return whether any pair differs significantly (2,): in the test alone, and with the bounds for rare failures."""
    pairs = [list(combinations(range(len(columns)), 2))]
    results, kept = [], paired_test.p_with_failures
    for bound in (lambda *_: (0.0, 0.0), kept):
        paired_test.p_with_failures = bound
        p = adjusted_p([Matched(columns, codes, UNIT)], pairs, seed=seed, flips=999)[0]
        results.append(min(p.values()) < 0.05)
    return np.array(results)


def violations_found(quantiles: np.ndarray, n: int, times: int) -> float:
    """Return how often a violation of the size that `check` states is detected.

    The bound of the requirement is the mean of the quantiles.
    """
    rng, hits = np.random.default_rng([7, n]), bool(np.isin(quantiles, (0, 1)).all())
    bound, codes = float(quantiles.mean()), np.arange(n)

    def judged(mean: float, count: int) -> list[package.Estimate]:
        # To lower the mean, 0/1 scores get more zeros; other scores are drawn from a beta distribution.
        moved = (1 - mean < GRID) * 1.0 if hits else moved_to(quantiles, mean)
        estimates = intervals(drawn(moved, rng, "unclustered samples", np.ones(n, int), count), codes, UNIT)
        return [package.clopper_pearson(estimate) for estimate in estimates] if hits else estimates

    def violation(estimate: package.Estimate) -> float | None:
        if hits:
            return violation_of_hits(bound, n, TAIL)
        return violation_of_share(bound, wilson_size(estimate.value, (estimate.high, estimate.low), TAIL), TAIL)

    named = [size for estimate in judged(bound, times // 4) if (size := violation(estimate)) is not None]
    return float(np.mean([estimate.high < bound for estimate in judged(bound - float(np.mean(named)), times)]))


def moved_to(quantiles: np.ndarray, mean: float) -> np.ndarray:
    """Return quantiles of the beta distribution with a different mean m and the same m (1 - m) / variance."""
    old, variance = float(quantiles.mean()), float(quantiles.var())
    count = old * (1 - old) / variance - 1
    return laws.beta(mean * count, (1 - mean) * count).ppf(GRID)


def coverage(law: str, design: str, effective: int, times: int, seed: int = 0) -> float:
    """Return how often the interval of a mean contains the true mean."""
    rng = np.random.default_rng([seed, list(LAWS).index(law), list(DESIGNS).index(design), effective])
    sizes = sizes_of(design, effective)
    limits = UNBOUNDED if law.startswith("unbounded") else UNIT
    columns = drawn(law, rng, design, sizes, times)
    estimates = intervals(columns, np.repeat(np.arange(len(sizes)), sizes), limits, seed)
    true = LAWS[law].mean()
    return float(np.mean([estimate.low <= true <= estimate.high for estimate in estimates]))


def coverage_of_differences(law: str, design: str, effective: int, times: int) -> float:
    """Return the coverage for the difference between two explainers with equal means on the same samples."""
    rng = np.random.default_rng([1, list(LAWS).index(law), list(DESIGNS).index(design), effective])
    sizes = sizes_of(design, effective)
    matched = Matched(list(drawn(law, rng, design, sizes, 2 * times).T), np.repeat(np.arange(len(sizes)), sizes))
    estimates = [difference(matched, 2 * index, 2 * index + 1) for index in range(times)]
    return float(np.mean([estimate.low <= 0 <= estimate.high for estimate in estimates]))


def pseudo_f1(means: np.ndarray) -> np.ndarray:
    """Return the pseudo-F1 (D,) of the accuracies (D, 2) on normal and inverse images."""
    normal, kept = means[:, 0], 1 - means[:, 1]
    return 2 * normal * kept / np.maximum(normal + kept, 1e-300)


def coverage_of_pseudo_f1(shares: Sequence[float], clusters: int, times: int) -> float:
    """Return the coverage of the bootstrap over clusters for a harmonic aggregate of two accuracies."""
    rng = np.random.default_rng([2, clusters])
    true, hits = pseudo_f1(np.array([shares]))[0], 0
    for _ in range(times):
        scores = (rng.random((clusters, 2)) < shares) * 1.0
        estimate = aggregate_interval(pseudo_f1, scores, np.arange(clusters))
        hits += estimate.low <= true <= estimate.high
    return hits / times


def false_findings(
    shapes: Sequence[str | np.ndarray], clusters: int, times: int, size: int = 1, missing: float = 0, flips: int = 999
) -> float:
    """Return how often any two of several explainers with equal means differ significantly."""
    return findings(shapes, clusters, times, size, missing, flips)[0]


def findings(
    shapes: Sequence[str | np.ndarray], clusters: int, times: int, size: int = 1, missing: float = 0, flips: int = 999
) -> tuple[float, float]:
    """Simulate explainers with correlated scores of a sample.

    `missing` is the share of each explainer's scores that are missing.

    Returns:
        How often any two explainers differ significantly, and the share of pairs that differ significantly.
    """
    explainers = len(shapes)
    rng = np.random.default_rng([3, explainers, clusters, size, int(100 * missing)])
    codes = np.repeat(np.arange(clusters), size)
    pairs = [list(combinations(range(explainers), 2))]
    hits = found = 0
    for number in range(times):
        # two fifths of the variance are common to a sample; in clusters, one fifth is common to explainer and cluster
        shares = np.sqrt([0.4, 0.2, 0.4] if size > 1 else [0.4, 0, 0.6])
        sample, row = rng.normal(0, 1, (clusters * size, 1)), rng.normal(0, 1, (clusters * size, explainers))
        cluster = np.repeat(rng.normal(0, 1, (clusters, explainers)), size, axis=0)
        mixed = shares[0] * sample + shares[1] * cluster + shares[2] * row
        scores = np.stack([at(shape, column) for shape, column in zip(shapes, mixed.T, strict=True)], axis=1)
        scores[rng.random(scores.shape) < missing] = np.nan
        p = adjusted_p([Matched(list(scores.T), codes, UNIT)], pairs, seed=number, flips=flips)[0]
        told_apart = sum(value < 0.05 for value in p.values())
        hits, found = hits + (told_apart > 0), found + told_apart
    return hits / times, found / times / len(pairs[0])


def pairs_found(explainers: int, n: int, apart: float, kind: str, flips: int = 999, seed: int = 0) -> tuple[int, int]:
    """Return (significantly different pairs, number of pairs).

    With `kind` "every", the observed difference of every pair is `apart` standard errors. With "neighbours", the true
    means of neighbours differ by `apart` standard errors, and the scores of a sample are independent, so observed
    differences may be smaller by chance.
    """
    rng = np.random.default_rng([4, seed])
    steps = np.arange(explainers)
    if kind == "every":
        common = rng.normal(0, 1, (n, 1))
        common = (common - common.mean()) / common.std(ddof=1)
        columns = (common + apart / np.sqrt(n)) * steps
    else:
        columns = rng.normal(0, 1, (n, explainers)) + apart * np.sqrt(2 / n) * steps
    pairs = [list(combinations(range(explainers), 2))]
    p = adjusted_p([Matched(list(columns.T), np.arange(n))], pairs, flips=flips)[0]
    return sum(value < 0.05 for value in p.values()), len(p)


def cost(metrics: int = 22, explainers: int = 23, n: int = 50_000, flips: int = FLIPS) -> float:
    """Return the seconds for intervals, differences and tests of all cells, with the same samples for each metric."""
    rng = np.random.default_rng(5)
    columns = [rng.random((n, explainers)) for _ in range(metrics)]
    for index, own in enumerate(columns[::2]):
        own[rng.random(n) < 0.1 * (index % 4)] = np.nan
    codes, pairs = np.arange(n), list(combinations(range(explainers), 2))
    start = time.perf_counter()
    matched = [Matched(list(own.T), codes) for own in columns]
    for own, both in zip(columns, matched, strict=True):
        intervals(own, codes, UNIT)
        for pair in pairs:
            difference(both, *pair)
    across = [[(number, (index, explainers - 1)) for number in range(metrics) for index in range(explainers - 1)]]
    adjusted_p(matched, [pairs] * metrics, across, flips=flips)
    return time.perf_counter() - start


def show(title: str, heads: Iterable[object], rows: Iterable[tuple[str, Iterable[float]]], least: float = 0) -> None:
    """Print a Markdown table of shares. Shares below `least` are marked."""
    heads = list(heads)
    print(f"\n{title}\n\n| | {' | '.join(map(str, heads))} |\n| --- |{' ---: |' * len(heads)}", flush=True)
    for name, values in rows:
        cells = [f"{100 * value:.1f}" + " !" * bool(value < least) for value in values]
        cells += [""] * (len(heads) - len(cells))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def show_coverage(times: int) -> None:
    for measure, what in ((coverage, "means"), (coverage_of_differences, "differences")):
        for design in DESIGNS:
            counts = [len(sizes_of(design, effective)) for effective in EFFECTIVE]
            heads = [f"{effective} effective of {count}" for effective, count in zip(EFFECTIVE, counts, strict=True)]
            rows = (
                (law, [measure(law, design, effective, times) for effective in EFFECTIVE])
                for law in LAWS
                if measure is coverage or not law.startswith("unbounded")
            )
            show(f"Coverage of 95 % intervals of {what}, %: {design}", heads, rows, ENOUGH)
    counts = (20, 50, 100, 220)
    rows = (
        (
            f"accuracies {shares[0]} and {shares[1]}",
            [coverage_of_pseudo_f1(shares, count, times // 4) for count in counts],
        )
        for shares in ((0.6, 0.5), (0.95, 0.1), (0.3, 0.8), (0.1, 0.1), (0.05, 0.02))
    )
    show("Coverage of 95 % intervals of a harmonic aggregate (pseudo-F1), %: samples", counts, rows, ENOUGH)


def show_rare(times: int) -> None:
    counts, both_kinds = (10, 20, 30, 50, 100), ("before", "after")
    heads = [f"{count}: {kind}" for count in counts for kind in both_kinds]
    rows = [
        (f"{name}, {share:.0%} are 0",
         [value for count in counts for value in covered_with_failures(at_grid(law), share, count, times)])
        for name, law in NARROW.items() for share in (0.01, 0.02, 0.05, 0.08, 0.15)
    ]  # fmt: skip
    show("Coverage of 95 % intervals of scores with rare failures, %: samples", heads, rows, 0.9)
    counts = (10, 20, 50)
    heads = [f"{count}: {kind}" for count in counts for kind in both_kinds]
    rows = [
        (f"{name}, {share:.0%} of {'clusters' if whole else 'samples'}",
         [value for count in counts for value in covered_with_failures(at_grid(NARROW[name]), share, count,
                                                                        times // 4, 6, whole)])
        for name in list(NARROW)[-2:] for whole in (False, True) for share in (0.02, 0.05, 0.08, 0.15)
    ]  # fmt: skip
    show("The same in clusters of six, ICC .3: clusters", heads, rows, 0.9)
    counts = (20, 50, 100)
    heads = [f"{count}: {kind}" for count in counts for kind in both_kinds]
    rows = [
        (f"{many} requirement{'s' * (many > 1)}, {name}, {share:.0%} are 0",
         [value for n in counts for value in met_by_mistake(at_grid(NARROW[name]), share, n, many, times)])
        for many in (1, 20) for name in ("mean .75, spread .02", "mean .7, spread .1") for share in (0.02, 0.05, 0.08)
    ]  # fmt: skip
    show("Requirements just above the mean that are met, for scores with failures, %: samples", heads, rows)
    rows = [
        (name, [value for size in (1, 6) for count in counts for value in widths(law, count, times // 4, size)])
        for name, law in (ORDINARY | {name: LAWS[name] for name in list(LAWS)[:8]}).items()
    ]
    heads = [f"{kind}: {count}, {which}" for kind in ("unclustered samples", "clusters of 6") for count in counts
             for which in ("shown", "gate")]  # fmt: skip
    show("Width with the wider bounds, % of the width without them", heads, rows)
    heads = [f"{count}: {kind}" for count in counts for kind in both_kinds]
    rows = [
        (f"spread {spread}, {share:.0%} fail in {'both' if both else 'one'}{', clusters of 6' * (size > 1)}",
         [value for n in counts for value in covered_differences(spread, share, n, times // 2, both, size)])
        for size in (1, 6) for spread in (0.02, 0.1) for both in (False, True) for share in (0.02, 0.05, 0.08)
        if size == 1 or (not both and share > 0.02)
    ]  # fmt: skip
    show("Coverage of 95 % intervals of differences with rare failures, %: samples or clusters", heads, rows, 0.9)
    counts = (50, 75, 100, 200, 500, 1000)
    rows = [(f"5 % apart by the range, others by {spread}", [called_alike(n, times, spread, 0.05) for n in counts])
            for spread in (0.005, 0.05, 0.1)]  # fmt: skip
    rows += [(f"equal means, spread {spread}", [called_alike(n, times // 4, spread) for n in counts])
             for spread in (0.02, 0.1, 0.2)]  # fmt: skip
    show("Pairs reported as equivalent within .05, %: samples", counts, rows)
    counts = (20, 50, 100, 200, 500)
    heads = [f"{count}: {kind}" for count in counts for kind in both_kinds]
    rows = [
        (f"spread {spread}, {share:.0%} fail in {'both' if both else 'one'}{', clusters of 6' * (size > 1)}",
         [value for n in counts for value in falsely_apart(spread, share, n, times // 4, both, size)])
        for size in (1, 6) for both in (False, True) for spread in (0.02, 0.06, 0.1, 0.2)
        for share in (0.01, 0.02, 0.05)
    ]  # fmt: skip
    rows += [
        (f"spread {spread}, 2 % fail in every second of {explainers}",
         [value for n in counts for value in falsely_apart(spread, 0.02, n, times // 8, explainers=explainers)])
        for explainers in (6, 12) for spread in (0.02, 0.1)
    ]  # fmt: skip
    show("Significant differences between equal means, some with rare failures, %: samples or clusters", heads, rows)
    rows = [(name, [value for n in counts for value in truly_apart(law, n, times // 4)])
            for name, law in (ORDINARY | {name: LAWS[name] for name in list(LAWS)[:8]}).items()]  # fmt: skip
    show("Significant differences between unequal means, %: samples", heads, rows)

    rows = [(name, [violations_found(GATED[name], n, times) for n in (50, 100, 400)]) for name in GATED]
    show("Failed requirements with a violation of the size that `check` states, %: samples", (50, 100, 400), rows)


def show_family(times: int) -> None:
    counts = (50, 100, 200, 500)
    rows = (
        (f"{name}{', clusters of 6' * (size > 1)}",
         [false_findings(shapes, count, times if len(shapes) < 40 else times // 4, size=size)
          for count in counts[: 2 if size > 1 else 4]])
        for name, quantiles in UNEQUAL.items() for shapes in [quantiles()]
        for size in (1, 6) if size == 1 or len(shapes) == 2
    )  # fmt: skip
    title = (
        f"Any false finding among explainers with equal means and unequal shapes, % of {times} (of forty: a quarter)"
    )
    show(f"{title}: clusters", counts, rows)
    for explainers in (5, 23, 40):
        often = max(times * 5 // explainers, 20)
        rows = ((law, [false_findings([law] * explainers, count, often) for count in (50, 100)])
                for law in list(LAWS)[:8])  # fmt: skip
        show(f"Any false finding among {explainers} explainers of one shape, % of {often}: clusters", (50, 100), rows)


def show_power(times: int) -> None:
    rows = ((name, [findings(quantiles(), count, times)[1] for count in (50, 100, 200)])
            for name, quantiles in APART.items())  # fmt: skip
    show(f"Significantly different pairs of explainers, % of all in {times} runs: clusters", (50, 100, 200), rows)
    print("\nSignificantly different pairs of 40 explainers, 500 samples, 999 flips")
    for kind, apart in (("every", 3), ("neighbours", 3), ("neighbours", 4), ("neighbours", 5)):
        found = [pairs_found(40, 500, apart, kind, seed=seed) for seed in range(5)]
        what = "every pair" if kind == "every" else "neighbours"
        print(f"{what} {apart} standard errors apart: {', '.join(str(pairs) for pairs, _ in found)} of {found[0][1]}")


def pairs_of(scores: tuple, wanted: float, n: int, times: int, limits: tuple[float, float]) -> Iterator[np.ndarray]:
    """Yield the scores (2, n) of two explainers with a correlation of .5 and means that differ by `wanted`.

    Scores are ("normal", mean, spread), clipped to the limits, or ("0/1", share), or ("beta", a, b, a, b).
    """
    rng, (kind, *numbers) = np.random.default_rng([12, n]), scores
    for _ in range(times):
        normal = np.sqrt(0.5) * (rng.normal(size=n) + rng.normal(size=(2, n)))
        if kind == "normal":
            columns = np.clip(numbers[0] + np.array([[wanted], [0]]) + numbers[1] * normal, *limits)
        elif kind == "0/1":
            columns = (laws.norm.cdf(normal) < np.array([[numbers[0] + wanted], [numbers[0]]])).astype(float)
        else:
            columns = np.stack([laws.beta.ppf(laws.norm.cdf(own), *numbers[2 * row : 2 * row + 2])
                                for row, own in enumerate(normal)])  # fmt: skip
        yield columns


def planned_images(scores: tuple, wanted: float, limits: tuple[float, float]) -> tuple[int, int, int]:
    """Return the number of images from a t-test, from `power` with a run, and from `power` with an assumed spread."""
    (columns,) = pairs_of(scores, wanted, 200_000, 1, limits)
    spread, failures = float(np.std(columns[0] - columns[1], ddof=1)), power.Failures()
    if package.is_bounded(limits):
        pair = Matched(list(columns), np.arange(columns.shape[1]), limits)
        failures = power.Failures(max(map(abs, package.error_and_far(pair, 0, 1, difference(pair, 0, 1))[1])))
    alone, stated = (power.clusters_needed(spread, wanted, failures=each) or 0 for each in (power.Failures(), failures))
    return alone, stated, power.assumed(spread, wanted).clusters or 0


def show_planned(times: int) -> None:
    """Print how often the reports' test finds a difference with the number of images that `power` states for 80 %."""
    cases = [
        ("mean .7, spread .02", ("normal", 0.7, 0.02), 0.005, UNIT),
        ("mean .7, spread .02", ("normal", 0.7, 0.02), 0.01, UNIT),
        ("mean .97, spread .01", ("normal", 0.97, 0.01), 0.004, UNIT),
        ("mean .5, spread .06", ("normal", 0.5, 0.06), 0.02, UNIT),
        ("mean .3, spread .1, range -1 to 1", ("normal", 0.3, 0.1), 0.02, (-1.0, 1.0)),
        ("mean .7, spread .1", ("normal", 0.7, 0.1), 0.02, UNIT),
        ("skewed: beta distributions (8, 2) and (7.5, 2.5)", ("beta", 8, 2, 7.5, 2.5), 0.05, UNIT),
        ("0/1, with 60 % and 50 % ones", ("0/1", 0.5), 0.10, UNIT),
        ("0/1, with 10 % and 4 % ones", ("0/1", 0.04), 0.06, UNIT),
        ("unbounded, spread 1", ("normal", 0, 1), 0.2, (-np.inf, np.inf)),
    ]  # fmt: skip
    print(
        "\n| scores | difference | t-test alone: images | found | `power`: images | found | `power --spread`: images |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, scores, wanted, limits in cases:
        alone, stated, assumed = planned_images(scores, wanted, limits)
        shares = []
        for n in (alone, stated):
            pairs = enumerate(pairs_of(scores, wanted, n, times, limits))
            matched = ((seed, Matched(list(columns), np.arange(n), limits)) for seed, columns in pairs)
            p = [adjusted_p([pair], [[(0, 1)]], seed=seed, flips=999)[0][0, 1] for seed, pair in matched]
            shares.append(np.mean(np.array(p) < 0.05))
        print(f"| {name} | {wanted} | {alone} | {shares[0]:.0%} | {stated} | {shares[1]:.0%} | {assumed} |", flush=True)


def show_unbounded(times: int) -> None:
    """Print the errors of intervals, gates and differences for unbounded scores.

    Most scores are near 1, but 2 % are 50.
    """
    mean, counts = 0.98 + 0.02 * 50, (20, 50, 100, 200)
    rows: dict[str, list[float]] = {
        "mean in the interval": [],
        "`<=` just below the mean met": [],
        "difference found": [],
    }
    for n in counts:
        rng, hits = np.random.default_rng([13, n]), np.zeros(3)
        for seed in range(times):
            scores = np.where(rng.random(n) < 0.02, 50, 1 + 0.02 * rng.normal(size=n))
            (estimate,) = intervals(scores[:, None], np.arange(n), (0.0, np.inf))
            pair = Matched([scores, mean + 0.02 * rng.normal(size=n)], np.arange(n), (0.0, np.inf))
            p = adjusted_p([pair], [[(0, 1)]], seed=seed, flips=999)[0][0, 1]
            hits += estimate.low <= mean <= estimate.high, estimate.high < mean, p < 0.05
        for name, hit in zip(rows, hits / times, strict=True):
            rows[name].append(hit)
    show("Unbounded scores near 1, but 2 % of them are 50, %: samples", counts, rows.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1, help="share of the simulations to run")
    parser.add_argument("--skip", nargs="*", choices=PARTS, default=[])
    args = parser.parse_args()
    if "coverage" not in args.skip:
        show_coverage(max(int(2000 * args.share), 20))
    if "rare" not in args.skip:
        show_rare(max(int(2000 * args.share), 20))
    if "family" not in args.skip:
        show_family(max(int(1000 * args.share), 20))
    if "power" not in args.skip:
        show_power(max(int(200 * args.share), 10))
    if "planned" not in args.skip:
        show_planned(max(int(300 * args.share), 10))
        show_unbounded(max(int(1000 * args.share), 20))
    if "cost" not in args.skip:
        print(f"\n506 cells of 50,000 samples, 22 metrics of 23 explainers: {cost():.0f} s")


if __name__ == "__main__":
    main()
