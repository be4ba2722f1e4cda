"""Significant differences between explainers: paired sign flips of cluster sums, step-down over all pairs.

Sign flips are Fisher's (1935), the step-down adjustment is Westfall and Young's (1993).

If two explainers did equally well, the difference of their scores in each cluster could just as well have the other
sign. T = |sum D| / sqrt(sum D^2) over cluster sums D, 0 where all are 0. Each flip gives a cluster one sign for all
pairs at once, so the greatest T of a family of pairs shows what chance does to all of them together. Step-down: a pair
is compared with the greatest T of the pairs whose own T is no greater.

The p-value is about the mean, which is what is reported, and assumes no normal distribution; but it assumes that D and
-D are equally likely, which scores of unequal shape break: of a rare event against a smooth score of the same mean, the
samples without the event all speak against it. So a difference must also outlast one more cluster that speaks against
it, as loudly as any of those seen (`another_cluster`), in a test in which that cluster is flipped like all others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from saliency_bench.results.clusters import Matched
from saliency_bench.utils.seeds import random_bits, seed_of

ALPHA = 0.05
FLIPS = 9999
FEW_BETWEEN = 10  # clusters whose scores show how large those of a rare event are
CLUSTERS_AT_ONCE = 512  # their signs take 8 x FLIPS x 512 bytes
ELEMENTS_AT_ONCE = 2**24  # of cluster sums, in which many metrics share their signs
DIFFERENCES_AT_ONCE = 2**18  # of cluster sums of pairs, which take 8 bytes each, three times
SAME = 1 - 1e-9  # T that are equal but for the last digits count as reached

Pair = tuple[int, int]  # two columns of a family
Member = tuple[int, Pair]  # a pair of one of several families


class SignFlips:
    """The flipped T of pairs of columns, of one metric or several, all under the same signs."""

    def __init__(self, families: Sequence[Matched], pairs: Sequence[Sequence[Pair]], seed: int, flips: int = FLIPS):
        self.families, self.pairs, self.seed, self.flips = families, pairs, seed, flips

    def families_in_turn(self) -> Iterator[tuple[int, "Flipped"]]:
        """Yield (index, its T) of each family that has pairs."""
        turned = 1.0 - 2.0 * _random_signs(self.flips, 1, seed_of(self.seed, "flips", "another"))[:, 0]
        for numbers in self._together():
            indices_by_family = [
                {pair: self.families[number].pair(*pair) for pair in self.pairs[number]} for number in numbers
            ]
            widths = [len(self.families[number].columns) for number in numbers]
            # Families share their signs: flip b of a pair goes with flip b of every other pair, also of other metrics,
            # which the families `across` metrics need.
            columns = [column for number in numbers for column in self.families[number].columns]
            sums = signed_sums(columns, self.seed, self.flips)
            for indices, number, end, width in zip(indices_by_family, numbers, np.cumsum(widths), widths, strict=True):
                flipped = Flipped(self.families[number], indices, sums[end - width : end], turned)
                self.families[number].forget()
                yield number, flipped

    def _together(self) -> Iterator[list[int]]:
        """Yield indices of families whose columns are flipped in one go, bounded in memory."""
        numbers: list[int] = []
        elements = 0
        for number, family in enumerate(self.families):
            if not self.pairs[number]:
                continue
            for pair in self.pairs[number]:
                family.pair(*pair)
            elements_of_family = len(family.columns) * family.clusters
            if numbers and elements + elements_of_family > ELEMENTS_AT_ONCE:
                yield numbers
                numbers, elements = [], 0
            numbers.append(number)
            elements += elements_of_family
        if numbers:
            yield numbers


class Flipped:
    """T of the pairs of one family, {pair: T}: `seen`, with one more cluster (`outlasting`), and under every flip.

    `totals` has sum D.
    """

    def __init__(
        self, family: Matched, indices: Mapping[Pair, tuple[int, int, np.ndarray]], sums: np.ndarray, turned: np.ndarray
    ):
        """Take the sums of columns under each flip (k, B), and whether one more cluster is turned (B,), 1 or -1."""
        self.sums, self.turned = sums, turned
        totals, squares, largest = _of_differences(family.columns, [columns[:2] for columns in indices.values()])
        norms = np.sqrt(squares)
        another = another_cluster(totals, largest, _least_of_another(family, indices))
        norms_with = np.sqrt(squares + np.array([number**2 for number in another.tolist()]))
        # A pair that differs nowhere has T = 0.
        norms, norms_with = (np.where(numbers > 0, numbers, np.inf) for numbers in (norms, norms_with))
        # A cluster that turns the sum around leaves nothing of the difference.
        outlasting = np.where(np.abs(totals) > np.abs(another), np.abs(totals + another) / norms_with, 0.0)
        columns = ([pair[:2] for pair in indices.values()], norms.tolist(), another.tolist(), norms_with.tolist())
        self.of_pair = dict(zip(indices, zip(*columns, strict=True), strict=True))
        self.totals, self.seen, self.outlasting = (
            dict(zip(indices, numbers.tolist(), strict=True))
            for numbers in (totals, np.abs(totals) / norms, outlasting)
        )

    def plain(self, pair: Pair) -> np.ndarray:
        """Return T, |sum of signed differences| / norm, of a pair under every flip, (B,)."""
        # The sum of a difference is the difference of the sums, so no pair needs a matrix product of its own.
        (first, second), norm, _, _ = self.of_pair[pair]
        values = self.sums[first] - self.sums[second]
        np.abs(values, out=values)
        values /= norm
        return values

    def again(self, pair: Pair) -> np.ndarray:
        """Return T+, T with another cluster, of a pair under every flip, (B,)."""
        (first, second), _, another, norm_with = self.of_pair[pair]
        values = self.turned * another
        values += self.sums[first] - self.sums[second]
        np.abs(values, out=values)
        values /= norm_with
        return values


def _of_differences(
    columns: Sequence[np.ndarray], pairs: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of the differences D of pairs of columns (sum D, sum D^2, the greatest |D|), (pairs,) each."""
    stacked, places = np.stack(columns), np.array(pairs)
    parts: list[tuple[np.ndarray, ...]] = []
    step = max(1, DIFFERENCES_AT_ONCE // max(stacked.shape[1], 1))
    for start in range(0, len(places), step):
        first, second = places[start : start + step].T
        sums = stacked[first] - stacked[second]
        parts.append((sums.sum(axis=1), (sums**2).sum(axis=1), np.abs(sums).max(axis=1, initial=0)))
    totals, squares, largest = (np.concatenate(numbers) for numbers in zip(*parts, strict=True))
    return totals, squares, largest


def _least_of_another(family: Matched, indices: Mapping[Pair, tuple[int, int, np.ndarray]]) -> np.ndarray:
    """Return for each pair how large the difference of one more cluster is at least (`another_cluster`)."""
    least = np.zeros(len(indices))
    if not np.isfinite(family.width):
        return least
    between = np.array(family.between)[np.array(list(indices))]
    rare = (between.min(axis=1) < FEW_BETWEEN) & (between.max(axis=1) > 0)
    for place, (_, _, counts) in enumerate(indices.values()):
        if rare[place]:
            least[place] = family.width * counts.sum() / np.count_nonzero(counts)
    return least


def another_cluster(totals: np.ndarray, largest: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Return the difference of one more cluster, which speaks against the sum of the others, of each pair.

    It is as large as the greatest |D|, and no smaller than `least`: where one of the two scores has hardly left the
    ends of its range, and not both are 0/1 scores, a cluster as wide as the range, since few events among few samples
    do not show how many there are, nor how large.

    Args:
        totals: (pairs,) sum D.
        largest: (pairs,) the greatest |D|.
        least: (pairs,).
    """
    return np.where(totals > 0, -1, 1) * np.maximum(largest, least)


def signed_sums(columns: Sequence[np.ndarray], seed: int, flips: int = FLIPS) -> np.ndarray:
    """Return the sum of each of k columns (clusters,) under random signs of the clusters, (k, flips).

    The columns are summable (`clusters.summable`), so that the sums are exact and equal under any number of threads.
    """
    turned = np.zeros((len(columns), flips))
    for start in range(0, len(columns[0]), CLUSTERS_AT_ONCE):
        block = np.stack([column[start : start + CLUSTERS_AT_ONCE] for column in columns])
        turned += block @ _random_signs(flips, block.shape[1], seed_of(seed, "flips", start)).astype(np.float64).T
    # sum s D with s = 1 - 2 b is sum D - 2 sum b D, and b is 0 or 1: half the numbers of a matrix of signs.
    plain = np.array([column.sum() for column in columns])
    turned *= -2  # twice the part that was turned
    turned += plain[:, None]
    return turned


@lru_cache(4)  # at most 20 MB; a board asks for the same signs in every question
def _random_signs(rows: int, count: int, seed: int) -> np.ndarray:
    """Return 0 or 1 at random, (rows, count)."""
    words = random_bits(seed, rows * -(-count // 64)).astype("<u8").view(np.uint8).reshape(rows, -1)
    signs = np.unpackbits(words, axis=1, count=count)
    signs.flags.writeable = False
    return signs


class PairTests(NamedTuple):
    """The T of some pairs, of one family or several, and under every flip.

    Attributes:
        seen: (pairs,) T.
        outlasting: (pairs,) T+, T with another cluster.
        plain: the number of a pair -> its T under every flip, (B,).
        again: the number of a pair -> its T+ under every flip, (B,).
    """

    seen: np.ndarray
    outlasting: np.ndarray
    plain: Callable[[int], np.ndarray]
    again: Callable[[int], np.ndarray]

    @classmethod
    def of_family(cls, flipped: Flipped, pairs: Sequence[Pair]) -> "PairTests":
        """Return the tests of some pairs of a family."""
        by_pair = flipped.seen, flipped.outlasting
        seen, outlasting = (np.array([numbers[pair] for pair in pairs]) for numbers in by_pair)
        return cls(seen, outlasting, lambda i: flipped.plain(pairs[i]), lambda i: flipped.again(pairs[i]))


def step_down(tests: PairTests) -> np.ndarray:
    """Return the adjusted p of each pair (Westfall and Young): a running maximum from the greatest T down.

    p = (1 + flips whose greatest T among this pair and those of lesser T is at least the pair's own T) / (B + 1)

    A pair whose p is below `ALPHA` must also outlast another cluster: p+, made of T+ in the same way and halved, as
    its direction is known, takes the place of p where it is not below `ALPHA`.
    """
    order = np.argsort(-tests.seen, kind="stable")
    reached, flips = _reached(order[::-1], tests.seen, tests.plain)
    reached_again, _ = _reached(order[::-1], tests.outlasting, tests.again)
    # The scores as they are count as one flip more, so that p is never 0; and a lesser T never has a smaller p.
    alone, again = ((1 + counts) / (1 + flips) for counts in (reached, reached_again))
    stepped = np.empty(len(order))
    stepped[order] = np.maximum.accumulate(alone[order])
    return np.where((stepped < ALPHA) & (again / 2 >= ALPHA), again / 2, stepped)


def _reached(pairs: np.ndarray, seen: np.ndarray, flipped: Callable[[int], np.ndarray]) -> tuple[np.ndarray, int]:
    """Return (how many flips reach T of each of these pairs, (all pairs,); the number of flips).

    Args:
        pairs: from the least T up.
        seen: (all pairs,) T.
        flipped: the number of a pair -> T under every flip.
    """
    reached, greatest = np.zeros(len(seen), dtype=int), None
    least = seen * SAME
    for pair in pairs:  # the greatest among this pair and those of lesser T
        values = flipped(pair)
        greatest = values if greatest is None else np.maximum(greatest, values)
        reached[pair] = np.count_nonzero(greatest >= least[pair])
    return reached, 0 if greatest is None else len(greatest)


def adjusted_p(
    families: Sequence[Matched],
    pairs: Sequence[Sequence[Pair]],
    across: Sequence[Sequence[Member]] = (),
    seed: int = 0,
    flips: int = FLIPS,
) -> list[dict[Pair, float]]:
    """Return {pair: adjusted p} of each family of pairs, such as the explainers of a metric.

    Args:
        families: the scores of each family.
        pairs: which columns of each family are compared.
        across: further families, made of members of several, such as all pairs with a baseline. A pair that is in one
            has the greater of its p-values, so that a statement about it holds in both families.
        seed: of the flips.
        flips: how many, B.
    """
    p_values: list[dict[Pair, float]] = [{} for _ in families]
    wanted = {member for members in across for member in members}
    kept: dict[Member, tuple[float, float, np.ndarray, np.ndarray]] = {}
    for number, flipped in SignFlips(families, pairs, seed, flips).families_in_turn():
        p = step_down(PairTests.of_family(flipped, list(flipped.seen)))
        p_values[number] = dict(zip(flipped.seen, p.tolist(), strict=True))
        for pair in flipped.seen:
            if (number, pair) in wanted:
                numbers = flipped.seen[pair], flipped.outlasting[pair]
                kept[number, pair] = *numbers, flipped.plain(pair), flipped.again(pair)
    for members in across:
        if tested := [member for member in members if member in kept]:
            p = step_down(_kept_tests([kept[member] for member in tested]))
            for (number, pair), own_p in zip(tested, p.tolist(), strict=True):
                p_values[number][pair] = max(p_values[number][pair], own_p)
    return p_values


def _kept_tests(kept: Sequence[tuple[float, float, np.ndarray, np.ndarray]]) -> PairTests:
    """Return the tests of pairs of several families, (T, T+, T under every flip, T+ under every flip) of each."""
    seen, outlasting = (np.array(numbers) for numbers in list(zip(*kept, strict=True))[:2])
    return PairTests(seen, outlasting, lambda index: kept[index][2], lambda index: kept[index][3])
