"""What intervals and tests of `saliency_bench/results` promise, by simulation: coverage, false findings, power, cost.

example:
  python benchmarks/statistics.py
  python benchmarks/statistics.py --share 0.1 --skip cost

The scores are drawn from known laws: 0/1 with share .02, .5 and .98, IoU-like (beta), zero-inflated, and unbounded
(log-normal); single samples, or clusters of six with an intra-class correlation of .3. `--share` takes a part of the
simulations. All in all about ten minutes.
"""

import sys

if __name__ == "statistics":  # the other scripts of this folder, and what they import, mean the standard library's
    import importlib

    sys.path.append(sys.path.pop(0))
    del sys.modules[__name__]
    sys.modules[__name__] = importlib.import_module(__name__)

import argparse
import time
from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np
from scipy import special
from scipy import stats as laws

from saliency_bench.results.clusters import Matched
from saliency_bench.results.intervals import aggregate_interval, difference, intervals
from saliency_bench.results.paired_test import FLIPS, adjusted_p

GRID = (np.arange(20_000) + 0.5) / 20_000
SIZE, CORRELATION = 6, 0.3
UNIT, POSITIVE = (0.0, 1.0), (0.0, float("inf"))
LAWS = {  # quantiles on GRID, so that the true mean is known
    "0/1 at .02": (GRID > 0.98) * 1.0,
    "0/1 at .5": (GRID > 0.5) * 1.0,
    "0/1 at .98": (GRID > 0.02) * 1.0,
    "IoU (beta)": laws.beta(0.7, 1.3).ppf(GRID),
    "zero-inflated": np.where(GRID < 0.7, 0, laws.beta(2, 3).ppf(np.clip((GRID - 0.7) / 0.3, 0, 1))),
    "log-normal": laws.lognorm(1).ppf(GRID),
}
PARTS = ("coverage", "family", "power", "cost")


def drawn(law: str, rng: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Scores (n, ...): `size` rows of one cluster depend on each other (a Gaussian copula)."""
    own = rng.normal(0, 1, shape)
    if size > 1:
        common = np.repeat(rng.normal(0, 1, (-(-shape[0] // size), *shape[1:])), size, axis=0)[: shape[0]]
        own = np.sqrt(CORRELATION) * common + np.sqrt(1 - CORRELATION) * own
    return LAWS[law][(special.ndtr(own) * len(GRID)).astype(int).clip(0, len(GRID) - 1)]


def coverage(law: str, clusters: int, size: int, times: int, seed: int = 0) -> float:
    """How often the interval of a mean holds the true one."""
    rng = np.random.default_rng([seed, list(LAWS).index(law), clusters, size])
    columns = drawn(law, rng, (clusters * size, times), size)
    limits = POSITIVE if law == "log-normal" else UNIT
    found = intervals(columns, np.repeat(np.arange(clusters), size), limits, seed)
    true = LAWS[law].mean()
    # Where all unbounded scores are equal there is no interval; it cannot happen here but by rounding.
    return float(np.mean([one.low <= true <= one.high for one in found]))


def coverage_of_differences(law: str, clusters: int, size: int, times: int) -> float:
    """The same of the difference of two explainers of equal means on the same samples."""
    rng = np.random.default_rng([1, list(LAWS).index(law), clusters, size])
    columns = drawn(law, rng, (clusters * size, 2 * times), size)
    matched = Matched(list(columns.T), np.repeat(np.arange(clusters), size))
    found = [difference(matched, 2 * index, 2 * index + 1) for index in range(times)]
    return float(np.mean([one.low <= 0 <= one.high for one in found]))


def pseudo_f1(means: np.ndarray) -> np.ndarray:
    """(D,) of the accuracies (D, 2) of normal and inverse pictures."""
    normal, kept = means[:, 0], 1 - means[:, 1]
    return 2 * normal * kept / np.maximum(normal + kept, 1e-300)


def coverage_of_pseudo_f1(clusters: int, times: int) -> float:
    """Of a harmonic aggregate of two accuracies, .6 and .5, by the bootstrap over clusters."""
    rng = np.random.default_rng([2, clusters])
    true, hits = pseudo_f1(np.array([[0.6, 0.5]]))[0], 0
    for _ in range(times):
        own = aggregate_interval(pseudo_f1, (rng.random((clusters, 2)) < [0.6, 0.5]) * 1.0, np.arange(clusters))
        hits += own.low <= true <= own.high
    return hits / times


def false_findings(
    law: str, explainers: int, clusters: int, times: int, size: int = 1, missing: float = 0, flips: int = 999
) -> float:
    """How often any two of so many explainers of equal means are told apart.

    Their scores of a sample depend on each other. missing: this share of each explainer's scores is not there.
    """
    rng = np.random.default_rng([3, list(LAWS).index(law), explainers, clusters, size, int(100 * missing)])
    codes = np.repeat(np.arange(clusters), size)
    pairs = [list(combinations(range(explainers), 2))]
    hits = 0
    for number in range(times):
        # of what an explainer scores, two fifths are the sample's, and with clusters one fifth its own in the cluster
        shares = np.sqrt([0.4, 0.2, 0.4] if size > 1 else [0.4, 0, 0.6])
        sample, row = rng.normal(0, 1, (clusters * size, 1)), rng.normal(0, 1, (clusters * size, explainers))
        cluster = np.repeat(rng.normal(0, 1, (clusters, explainers)), size, axis=0)
        mixed = shares[0] * sample + shares[1] * cluster + shares[2] * row
        scores = LAWS[law][(special.ndtr(mixed) * len(GRID)).astype(int).clip(0, len(GRID) - 1)]
        scores[rng.random(scores.shape) < missing] = np.nan
        p = adjusted_p([Matched(list(scores.T), codes)], pairs, seed=number, flips=flips)[0]
        hits += min(p.values()) < 0.05
    return hits / times


def pairs_found(explainers: int, n: int, apart: float, kind: str, flips: int = 999, seed: int = 0) -> tuple[int, int]:
    """(pairs told apart, of how many).

    kind: "every": the observed difference of every pair is `apart` of its standard errors. "neighbours": the true means
    of neighbours are, and the scores of a sample are independent; nearer ones than that are seen by chance.
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
    """Seconds for intervals, differences and tests of all cells, each metric's over the same samples."""
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


def show(title: str, heads: Iterable[object], rows: Iterable[tuple[str, Iterable[float]]]) -> None:
    print(f"\n{title}\n{'':34}" + "".join(f"{head!s:>9}" for head in heads), flush=True)
    for name, values in rows:
        print(f"{name:34}", end="", flush=True)
        for value in values:
            print(f"{100 * value:8.1f}%" if value == value else f"{'-':>9}", end="", flush=True)
        print()


def show_coverage(times: int) -> None:
    counts = (20, 50, 100, 200, 500)
    for size in (1, SIZE):
        of = "single samples" if size == 1 else f"clusters of {size}, intra-class correlation {CORRELATION}"
        rows = ((law, (coverage(law, count, size, times) for count in counts)) for law in LAWS)
        show(f"Coverage of 95 % intervals of means: {of}", counts, rows)
        rows = ((law, (coverage_of_differences(law, count, size, times) for count in counts)) for law in LAWS)
        show(f"Coverage of 95 % intervals of differences: {of}", counts, rows)
    row = (coverage_of_pseudo_f1(count, max(times // 10, 10)) for count in (20, 50, 100, 220))
    show("Coverage of 95 % intervals of a harmonic aggregate", (20, 50, 100, 220), [("pseudo-F1", row)])


def show_family(times: int) -> None:
    for explainers in (5, 23, 40):
        often = max(times * 5 // explainers, 20)
        title = f"Any false finding among {explainers} explainers of equal means, by clusters ({often} times)"
        show(title, (50, 100, 300), _family_rows(explainers, often))


def _family_rows(explainers: int, times: int) -> Iterator[tuple[str, Iterable[float]]]:
    for law in LAWS:
        yield law, (false_findings(law, explainers, count, times) for count in (50, 100, 300))
    for law in ("0/1 at .98", "IoU (beta)"):
        found = (false_findings(law, explainers, count, times, size=SIZE) for count in (50, 100))
        yield f"{law}, clusters of {SIZE}", found
        found = (false_findings(law, explainers, count, max(times // 4, 20), missing=0.1) for count in (50, 100))
        yield f"{law}, a tenth missing", found


def show_power() -> None:
    print("\nPairs told apart of 40 explainers, 500 samples, 999 flips")
    for kind, apart in (("every", 3), ("neighbours", 3), ("neighbours", 4), ("neighbours", 5)):
        found = [pairs_found(40, 500, apart, kind, seed=seed) for seed in range(5)]
        what = "every pair" if kind == "every" else "neighbours"
        print(f"{what} {apart} standard errors apart: {', '.join(str(pairs) for pairs, _ in found)} of {found[0][1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1, help="of the simulations")
    parser.add_argument("--skip", nargs="*", choices=PARTS, default=[])
    args = parser.parse_args()
    if "coverage" not in args.skip:
        show_coverage(max(int(2000 * args.share), 20))
    if "family" not in args.skip:
        show_family(max(int(1000 * args.share), 20))
    if "power" not in args.skip:
        show_power()
    if "cost" not in args.skip:
        print(f"\n506 cells of 50,000 samples, 22 metrics of 23 explainers: {cost():.0f} s")


if __name__ == "__main__":
    main()
