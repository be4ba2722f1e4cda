"""Simulate the guarantees of `choose`: how often it drops or finds the best candidate, and at what cost.

example:
  python benchmarks/choose.py
  python benchmarks/choose.py --times 500 --candidates 10
  python benchmarks/choose.py --run runs/full --images 1000

The scores of the candidates are drawn from distributions with a known best candidate. The rounds of `choose`
(`saliency_bench/recipes/choosing/rounds.py`) use these scores, with 500 images for the race. A false drop means that
the best candidate, or a candidate within the margin of the best, is dropped. At most 5 % of the simulations may have a
false drop. The column `plain` is for a paired t-test at 5 % at every look instead. `equal budget` is how often the
candidate with the best mean is correct if the same total number of passes is divided equally among all candidates. The
script takes about ten minutes.

With `--run RUN`, the scores are from a finished run with many explainers, and the best candidate is the best in its
full table. For each simulation, the clusters are shuffled or drawn with replacement (`--images`), and half of the
images are used for the race.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
from scipy import stats

from saliency_bench.read.analysis.sequential import Race
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.statistics.clusters import cluster_names
from saliency_bench.read.statistics.intervals import wilson
from saliency_bench.recipes.choosing.rounds import HOPE, ONE_LEFT, Budget, Narrowing, RoundScores

IMAGES, MARGIN, SIZE = 500, 0.02, 6
LATER = 200  # maximum number of held-out images
UNIT, POSITIVE = (0.0, 1.0), (0.0, inf)
Law = Callable[[np.random.Generator, int], np.ndarray]


@dataclass
class Drawn:
    """Laboratory with scores (images, candidates) that were drawn beforehand."""

    columns: np.ndarray
    groups: Sequence[str | None]
    limits: tuple[float, float] = UNIT

    def scores(self, lineup: Mapping[str, Sequence[str]], images: int) -> RoundScores:
        """Return the scores of the first images."""
        ids = [str(index) for index in range(images)]
        (metric,) = lineup
        values = {(name, metric): self.columns[:images, int(name)] for name in lineup[metric]}
        return RoundScores(values, ids, self.groups[:images], {metric: self.limits}, {metric: True})

    def survivors(self, names: Sequence[str], images: int) -> set[str]:
        """Return an empty result, because all maps depend on the network."""
        return set()

    def twins(self, names: Sequence[str]) -> dict[str, str]:
        """Return an empty result, because equal scores occur only by chance."""
        return {}


@dataclass(frozen=True)
class Case:
    """A distribution of scores, and which candidates must never be dropped. The first candidate is the best.

    Attributes:
        law: Function (generator, candidates) -> scores (IMAGES, candidates).
        safe: Number of candidates within the margin of the best, which come first; None for all candidates.
        size: Number of images per cluster.
        limits: Range of the scores.
    """

    law: Law
    safe: int | None = 1
    size: int = 1
    limits: tuple[float, float] = UNIT

    def drawn(self, rng: np.random.Generator, candidates: int) -> Drawn:
        """Return a laboratory with scores from this distribution."""
        groups = [f"g{index // self.size}" for index in range(IMAGES)] if self.size > 1 else [None] * IMAGES
        return Drawn(self.law(rng, candidates), groups, self.limits)


def means(candidates: int, first: int, gap: float) -> np.ndarray:
    """Return the true means: 0.7 for the first `first` candidates, and `gap` to 0.4 less for the others."""
    return np.concatenate([np.full(first, 0.7), 0.7 - np.linspace(gap, 0.4, candidates - first)])


def beta(rng: np.random.Generator, wanted: np.ndarray, spread: float = 4.0) -> np.ndarray:
    """Return scores in [0, 1] with these means. The scores of an image are correlated."""
    shared = rng.normal(0, 0.8, (IMAGES, 1))
    uniform = stats.norm.cdf(shared + rng.normal(0, 0.6, (IMAGES, len(wanted))))
    return stats.beta.ppf(uniform, spread * wanted, spread * (1 - wanted))


def ahead(rng: np.random.Generator, candidates: int) -> np.ndarray:
    """Return scores in which the best candidate is 0.05 ahead."""
    return beta(rng, means(candidates, 1, 0.05))


def tied(rng: np.random.Generator, candidates: int) -> np.ndarray:
    """Return scores with equal means. Some of the candidates vary more than others."""
    wide, narrow = beta(rng, np.full(candidates, 0.5), 1.0), beta(rng, np.full(candidates, 0.5), 20.0)
    return np.where(np.arange(candidates) % 2 == 0, wide, narrow)


def within_margin(rng: np.random.Generator, candidates: int) -> np.ndarray:
    """Return scores in which four other candidates are behind the best by exactly the margin."""
    wanted = means(candidates, 5, 0.15)
    wanted[1:5] -= MARGIN
    return beta(rng, wanted)


def rare(rng: np.random.Generator, candidates: int) -> np.ndarray:
    """Return 0/1 scores that are 1 in 2 % of all images."""
    return (rng.random((IMAGES, candidates)) < 0.02).astype(float)


def rarely_better(rng: np.random.Generator, candidates: int) -> np.ndarray:
    """Return scores whose best candidate is 0.05 behind on most images, but 0.01 ahead on average.

    The best candidate is far ahead on 12 % of the images.
    """
    columns = 0.55 + rng.normal(0, 0.01, (IMAGES, candidates))
    columns[:, 0] = np.where(rng.random(IMAGES) < 0.12, 1.0, 0.5)
    return columns


def clustered(rng: np.random.Generator, candidates: int) -> np.ndarray:
    """Return tied 0/1 scores that mostly agree within a cluster of six."""
    by_cluster = np.repeat(rng.random((-(-IMAGES // SIZE), candidates)), SIZE, axis=0)[:IMAGES]
    fresh = rng.random((IMAGES, candidates))
    return (np.where(rng.random((IMAGES, candidates)) < 0.6, by_cluster, fresh) < 0.5).astype(float)


def missing(rng: np.random.Generator, candidates: int) -> np.ndarray:
    """Return scores in which the best candidate is ahead. 4 % of the scores are missing."""
    columns = ahead(rng, candidates)
    columns[rng.random(columns.shape) < 0.04] = np.nan
    return columns


def unbounded(rng: np.random.Generator, candidates: int) -> np.ndarray:
    """Return log-normal scores with equal means."""
    return rng.lognormal(0, 1, (IMAGES, candidates))


CASES = {
    "0.05 ahead": Case(ahead),
    "all tied": Case(tied, safe=None),
    "four within the margin": Case(within_margin, safe=5),
    "rare 0/1 scores, tied": Case(rare, safe=None),
    "far better, but only on a few images": Case(rarely_better, safe=None),
    "clusters of six, tied": Case(clustered, safe=None, size=SIZE),
    "0.05 ahead, some missing": Case(missing),
    "unbounded, tied": Case(unbounded, safe=None, limits=POSITIVE),
}


@dataclass(frozen=True)
class Outcome:
    """Results of a simulation."""

    false_drop: bool
    right: bool
    share: float
    plain_false_drop: bool
    uniform_right: bool


def simulate(case: Case, candidates: int, seed: int) -> Outcome:
    """Simulate one choice and return its outcome."""
    laboratory = case.drawn(np.random.default_rng([seed, candidates]), candidates)
    names = [str(index) for index in range(candidates)]
    budget = Budget(inf, dict.fromkeys(names, 1.0), {})
    narrowing = Narrowing(laboratory, {"score": names}, frozenset(), IMAGES, budget, MARGIN, case.size)
    narrowing.narrow()
    (contest,) = narrowing.contests.values()
    safe = set(names[: case.safe])
    images = int(budget.spent) // candidates
    uniform = np.nanmean(laboratory.columns[: max(images, 1)], axis=0)
    limits = [item.limit for item in narrowing.rounds]
    return Outcome(
        false_drop=bool(safe & set(contest.race.dropped)),
        right=contest.leader in safe,
        share=budget.spent / (candidates * IMAGES),
        plain_false_drop=bool(safe & plain_drops(laboratory.columns, limits)),
        uniform_right=str(int(np.argmax(uniform))) in safe,
    )


def plain_drops(columns: np.ndarray, limits: Iterable[int]) -> set[str]:
    """Return the candidates that a one-sided paired t-test against the leader at 5 % drops at any look."""
    left = list(range(columns.shape[1]))
    dropped: set[str] = set()
    for limit in limits:
        seen = columns[:limit, left]
        leader = left[int(np.argmax(np.nanmean(seen, axis=0)))]
        for name in [name for name in left if name != leader]:
            differences = columns[:limit, leader] - columns[:limit, name] - MARGIN
            differences = differences[np.isfinite(differences)]
            error = differences.std(ddof=1) / np.sqrt(len(differences))
            if error > 0 and differences.mean() / error > stats.t.ppf(0.95, len(differences) - 1):
                left.remove(name)
                dropped.add(str(name))
    return dropped


def needed(lead: float, spread: float, images: int, times: int) -> list[str]:
    """Return a table row that compares the estimate "about N images would be needed" with the true number of images.

    The columns are the arguments, the true number, the median of N, its 10 % and 90 % quantiles, how often the range of
    N contains the true number, and how often the range has no upper limit.
    """
    found = []
    truth = {"first": 0.5 + lead, "second": 0.5}
    for seed in range(times):
        rng = np.random.default_rng([seed, images])
        race = Race(list(truth), 1.0, MARGIN)
        scores = {name: np.clip(rng.normal(mean, spread, images), 0, 1) for name, mean in truth.items()}
        race.look(scores, np.arange(images), "first", "first", images)
        found.append([race.needed("second", errors) or inf for errors in (0.0, HOPE, -HOPE)])
    rng = np.random.default_rng(images)
    many = Race(list(truth), 1.0, MARGIN)
    scores = {name: np.clip(rng.normal(mean, spread, 200_000), 0, 1) for name, mean in truth.items()}
    many.look(scores, np.arange(200_000), "first", "first", 1)
    true = many.needed("second") or inf
    about, least, most = np.array(found).T
    ends = (f"{np.quantile(about, share, method='nearest'):,.0f}" for share in (0.5, 0.1, 0.9))
    return [f"{lead:g}", f"{spread:g}", str(images), f"{true:,.0f}", *ends,
            f"{np.mean((least <= true) & (true <= most)):.0%}", f"{np.mean(np.isinf(most)):.0%}"]  # fmt: skip


def rows(candidates: int, times: int) -> Iterator[list[str]]:
    """Yield a table row for each case."""
    for name, case in CASES.items():
        outcomes = [simulate(case, candidates, seed) for seed in range(times)]
        false = float(np.mean([item.false_drop for item in outcomes]))
        low, high = wilson(false, times, 1.96)
        has_best = case.safe is not None
        yield [
            name, str(candidates), f"{false:.1%} [{low:.1%}, {high:.1%}]",
            f"{np.mean([item.plain_false_drop for item in outcomes]):.0%}",
            f"{np.mean([item.right for item in outcomes]):.0%}" if has_best else "-",
            f"{np.mean([item.uniform_right for item in outcomes]):.0%}" if has_best else "-",
            f"{np.mean([item.share for item in outcomes]):.0%}",
        ]  # fmt: skip


def of_run(folder: Path, times: int, images: int | None) -> Iterator[list[str]]:
    """Yield, for each metric of a finished run, how often the best explainer of the full table is found, and the cost.

    Args:
        folder: Folder of the run.
        times: Number of simulations.
        images: Number of images of a dataset whose clusters are drawn from the run with replacement; None for the
            images of the run.
    """
    run = read_run(folder)
    clusters = cluster_names(run.scores.ids, run.scores.groups)
    largest = max(Counter(clusters).values())
    for column in run.table.columns:
        cells = [cell for _, cell in run.table.cells_of_column(column) if not cell.aggregate]
        columns = np.stack([run.scores.oriented(cell) for cell in cells], axis=1)
        truth = np.nanmean(columns, axis=0)
        baselines = frozenset(str(index) for index, cell in enumerate(cells) if cell.baseline)
        safe = {str(index) for index in np.flatnonzero(truth >= truth.max() - MARGIN)}
        per_map = {str(index): float(cell.forward_passes.explain + cell.forward_passes.metric + 1)
                   for index, cell in enumerate(cells)}  # fmt: skip
        outcomes = []
        for seed in range(times):
            order, groups = _drawn(clusters, images, np.random.default_rng(seed))
            narrowing = Narrowing(
                Drawn(columns[order], groups, cells[0].limits), {"score": list(per_map)}, baselines, len(order) // 2,
                Budget(inf, per_map, {}), MARGIN, largest,
            )  # fmt: skip
            narrowing.narrow()
            (contest,) = narrowing.contests.values()
            whole = sum(per_map.values())
            equal = max(1, int(narrowing.budget.spent / whole))
            later = sum(sorted((per_map[name] for name in contest.race.left), reverse=True)[:3])
            spent = narrowing.budget.spent + min(contest.images, LATER) * (
                later + sum(per_map[name] for name in baselines)
            )
            uniform = str(int(np.argmax(np.nanmean(columns[order][:equal], axis=0))))
            outcomes.append((
                bool(safe & set(contest.race.dropped)), contest.leader in safe, uniform in safe,
                contest.ended == ONE_LEFT,
                narrowing.budget.spent / (whole * len(order)), spent / (whole * len(order)),
            ))  # fmt: skip
        shares = [f"{value:.0%}" for value in np.mean(np.array(outcomes, float), axis=0)]
        best = cells[int(np.argmax(truth))].explainer_text
        yield [column.name, f"{best} ({len(safe)} within {MARGIN})", str(len(cells)), *shares]


def _drawn(clusters: Sequence[str], images: int | None, rng: np.random.Generator) -> tuple[list[int], list[str]]:
    """Return (samples, cluster of each sample), with whole clusters in a random order or drawn with replacement."""
    members: dict[str, list[int]] = {}
    for index, name in enumerate(clusters):
        members.setdefault(name, []).append(index)
    pools = list(members.values())
    draws = rng.permutation(len(pools)) if images is None else rng.integers(len(pools), size=images)
    pairs = [(index, f"g{number}") for number, draw in enumerate(draws) for index in pools[draw]][:images]
    return [index for index, _ in pairs], [name for _, name in pairs]


def main() -> None:
    """Print a table for each number of candidates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--times", type=int, default=200, metavar="N", help="number of simulations per case (default: 200)"
    )
    parser.add_argument("--candidates", type=int, nargs="+", default=[10, 60], metavar="N")
    parser.add_argument("--run", metavar="RUN", help="use the scores of a finished run instead of drawn scores")
    parser.add_argument(
        "--images", type=int, metavar="N", help="number of race images; with --run, size of the dataset to draw"
    )
    parser.add_argument("--needed", action="store_true", help="test the estimate of the number of images needed")
    args = parser.parse_args()
    if args.needed:
        print(
            "| lead | spread | images | needed | estimate: median | 10 % | 90 % | range contains `needed` "
            "| no upper limit |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for lead, spread, images in ((0.06, 0.15, 40), (0.06, 0.15, 100), (0.1, 0.2, 40), (0.1, 0.2, 100)):
            print(f"| {' | '.join(needed(lead, spread, images, args.times))} |", flush=True)
        return
    global IMAGES
    IMAGES = args.images or IMAGES
    if args.run:
        print("| metric | best | candidates | best dropped | right | equal budget | one left | deciding | all passes |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for row in of_run(Path(args.run), args.times, args.images):
            print(f"| {' | '.join(row)} |", flush=True)
        return
    print("| scores | candidates | false drops | plain | right | equal budget | passes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    start = time.perf_counter()
    for candidates in args.candidates:
        for row in rows(candidates, args.times):
            print(f"| {' | '.join(row)} |", flush=True)
    print(f"\n{args.times} simulations of each, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
