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

import numpy as np

from saliency_bench.results.clusters import Matched
from saliency_bench.utils.seeds import random_bits, seed_of

ALPHA = 0.05
FLIPS = 9999
FEW_BETWEEN = 10  # clusters whose scores show how large those of a rare event are
CLUSTERS_AT_ONCE = 512  # their signs take 8 x FLIPS x 512 bytes
ELEMENTS_AT_ONCE = 2**24  # of cluster sums, in which many metrics share their signs
DIFFERENCES_AT_ONCE = 2**18  # of cluster sums of pairs, which take 8 bytes each, three times
BLOCKS = 8  # of pairs in order of T, at whose ends the greatest are kept
SAME = 1 - 1e-9  # T that are equal but for the last digits count as reached

Pair = tuple[int, int]  # two columns of a family
Member = tuple[int, Pair]  # a pair of one of several families


class SignFlips:
    """The flipped T of pairs of columns, of one metric or several, all under the same signs."""

    def __init__(self, families: Sequence[Matched], pairs: Sequence[Sequence[Pair]], seed: int, flips: int = FLIPS):
        self.families, self.pairs, self.seed, self.flips = families, pairs, seed, flips

    def families_in_turn(self) -> Iterator[tuple[int, dict[Pair, float], "Flipped"]]:
        """Yield (index, {pair: T}, the T of every flip) of each family that has pairs."""
        turned = 1.0 - 2.0 * _random_signs(self.flips, 1, seed_of(self.seed, "flips", "another"))[:, 0]
        for numbers in self._together():
            indices_by_family = [
                {pair: self.families[number].pair(*pair) for pair in self.pairs[number]} for number in numbers
            ]
            widths = [len(self.families[number].columns) for number in numbers]
            # Families share their signs: flip b of a pair goes with flip b of every other pair, also of other metrics,
            # which the families `across` metrics need.
            columns = [column for number in numbers for column in self.families[number].columns]
            sums = np.ascontiguousarray(signed_sums(columns, self.seed, self.flips).T)
            for indices, number, end, width in zip(indices_by_family, numbers, np.cumsum(widths), widths, strict=True):
                flipped = Flipped(self.families[number], indices, sums[end - width : end], turned)
                self.families[number].forget()
                yield number, flipped.seen, flipped

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
    """T of the pairs of one family, {pair: T}: `seen`, with one more cluster (`outlasting`), and under every flip."""

    def __init__(
        self, family: Matched, indices: Mapping[Pair, tuple[int, int, np.ndarray]], sums: np.ndarray, turned: np.ndarray
    ):
        """Take the sums of columns under each flip (k, B), and whether one more cluster is turned (B,), 1 or -1."""
        self._sums, self._turned = sums, turned
        totals, squares, largest = _of_differences(family.columns, [columns[:2] for columns in indices.values()])
        norms = np.sqrt(squares)
        another = another_cluster(totals, largest, _least_of_another(family, indices))
        norms_with = np.sqrt(squares + np.array([number**2 for number in another.tolist()]))
        with np.errstate(invalid="ignore"):
            seen = np.where(norms > 0, np.abs(totals) / norms, 0.0)
            # A cluster that turns the sum around leaves nothing of the difference.
            outlasting = np.where(np.abs(totals) > np.abs(another), np.abs(totals + another) / norms_with, 0.0)
        self.seen: dict[Pair, float] = dict(zip(indices, seen.tolist(), strict=True))
        self.outlasting: dict[Pair, float] = dict(zip(indices, outlasting.tolist(), strict=True))
        # Of each pair: its columns, its norm, the difference of another cluster, the norm with it. A pair that differs
        # nowhere has T = 0.
        numbers = zip(norms.tolist(), another.tolist(), norms_with.tolist(), strict=True)
        self._of_pair = {
            pair: (*columns[:2], norm or np.inf, other, norm_with or np.inf)
            for (pair, columns), (norm, other, norm_with) in zip(indices.items(), numbers, strict=True)
        }

    def under_flips(self, pair: Pair) -> np.ndarray:
        """Return |sum of signed differences| / norm of a pair under every flip, without and with another cluster.

        (2, flips).
        """
        # The sum of a difference is the difference of the sums, so no pair needs a matrix product of its own.
        first, second, norm, another, norm_with = self._of_pair[pair]
        flipped_t = np.empty((2, len(self._turned)))
        np.subtract(self._sums[first], self._sums[second], out=flipped_t[0])
        np.multiply(self._turned, another, out=flipped_t[1])
        flipped_t[1] += flipped_t[0]
        np.abs(flipped_t, out=flipped_t)
        flipped_t[0] /= norm
        flipped_t[1] /= norm_with
        return flipped_t


def _of_differences(
    columns: Sequence[np.ndarray], pairs: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of the differences D of pairs of columns (sum D, sum D^2, the greatest |D|), (pairs,) each."""
    stacked, places = np.stack(columns), np.array(pairs)
    found: list[tuple[np.ndarray, ...]] = []
    step = max(1, DIFFERENCES_AT_ONCE // max(stacked.shape[1], 1))
    for start in range(0, len(places), step):
        first, second = places[start : start + step].T
        sums = stacked[first] - stacked[second]
        found.append((sums.sum(axis=1), (sums**2).sum(axis=1), np.abs(sums).max(axis=1, initial=0)))
    totals, squares, largest = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return totals, squares, largest


def _least_of_another(family: Matched, indices: Mapping[Pair, tuple[int, int, np.ndarray]]) -> list[float]:
    """Return for each pair how large the difference of one more cluster is at least (`another_cluster`)."""
    samples_by_counts: dict[int, float] = {}
    least = []
    for pair, (_, _, counts) in indices.items():
        few, more = sorted(family.between[column] for column in pair)
        if not np.isfinite(family.width) or few >= FEW_BETWEEN or more == 0:
            least.append(0.0)
            continue
        if id(counts) not in samples_by_counts:  # pairs with the same samples share their counts
            samples_by_counts[id(counts)] = float(family.width * counts.sum() / np.count_nonzero(counts))
        least.append(samples_by_counts[id(counts)])
    return least


def another_cluster(totals: np.ndarray, largest: np.ndarray, least: Sequence[float]) -> np.ndarray:
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
    """Return the sum of each of k columns (clusters,) under random signs of the clusters, (flips, k).

    The columns are summable (`clusters.summable`), so that the sums are exact and equal under any number of threads.
    """
    turned = np.zeros((flips, len(columns)))
    for start in range(0, len(columns[0]), CLUSTERS_AT_ONCE):
        block = np.stack([column[start : start + CLUSTERS_AT_ONCE] for column in columns], axis=1)
        turned += _random_signs(flips, len(block), seed_of(seed, "flips", start)).astype(np.float64) @ block
    # sum s D with s = 1 - 2 b is sum D - 2 sum b D, and b is 0 or 1: half the numbers of a matrix of signs.
    plain = np.array([column.sum() for column in columns])
    return plain - 2 * turned  # twice the part that was turned


@lru_cache(4)  # at most 20 MB; a board asks for the same signs in every question
def _random_signs(rows: int, count: int, seed: int) -> np.ndarray:
    """Return 0 or 1 at random, (rows, count)."""
    words = random_bits(seed, rows * -(-count // 64)).astype("<u8").view(np.uint8).reshape(rows, -1)
    signs = np.unpackbits(words, axis=1, count=count)
    signs.flags.writeable = False
    return signs


def step_down(seen: np.ndarray, outlasting: np.ndarray, flipped: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return the adjusted p of each pair (Westfall and Young): a running maximum from the greatest T down.

    p = (1 + flips whose greatest T among this pair and those of lesser T is at least the pair's own T) / (B + 1)

    A pair whose p is below `ALPHA` must also outlast another cluster: p+, made of T+ in the same way and halved, as
    its direction is known, takes the place of p where it is not below `ALPHA`.

    Args:
        seen: (pairs,) T.
        outlasting: (pairs,) T+, T with another cluster.
        flipped: the number of a pair -> its T and T+ under every flip, (2, flips).
    """
    order = np.argsort(-seen, kind="stable")
    reached, flips = _reached(order[::-1], np.zeros((2, 1)), _least(seen, outlasting), flipped)
    # The scores as they are count as one flip more, so that p is never 0; and a lesser T never has a smaller p.
    alone, again = (1 + reached) / (1 + flips)
    stepped = np.empty(len(seen))
    stepped[order] = np.maximum.accumulate(alone[order])
    return np.where((stepped < ALPHA) & (again / 2 >= ALPHA), again / 2, stepped)


def significant(seen: np.ndarray, outlasting: np.ndarray, flipped: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return 0 where the p of `step_down` is below `ALPHA`, else 1, in half its time.

    The greatest T among more pairs is reached by no fewer flips, among fewer pairs by no more, so that the greatest of
    a few numbers of pairs decide most of them. Only for what they leave open are flips counted.
    """
    order = np.argsort(-seen, kind="stable")[::-1]
    blocks = [block for block in np.array_split(order, BLOCKS) if len(block)]
    greatest = [np.zeros((2, 1))]  # of the pairs before each block, and of all
    for block in blocks:
        values = np.maximum(greatest[-1], flipped(block[0]))
        for pair in block[1:]:
            np.maximum(values, flipped(pair), out=values)
        greatest.append(values)
    least, fewest = _least(seen, outlasting), _fewest(greatest[-1].shape[1])
    p = np.ones(len(seen))
    high = _critical(greatest[-1], fewest)
    for block, before in zip(blocks[::-1], greatest[-2::-1], strict=True):  # from the greatest T down
        low = _critical(before, fewest) if before is not greatest[0] else np.zeros(2)
        below, may_be_below = (critical[:, None] < least[:, block] for critical in (high, low))
        if (below != may_be_below).any():
            reached, _ = _reached(block, before, least, flipped)
            below = reached[:, block] < fewest[:, None]
        first = len(block) - int(np.cumprod(below[0][::-1]).sum())  # a lesser T never has a smaller p
        p[block[first:]] = np.where(below[1, first:], 0, 1)
        if first:
            break
        high = low
    return p


def _least(seen: np.ndarray, outlasting: np.ndarray) -> np.ndarray:
    """Return from which T, and T+, on a flip reaches each pair, (2, pairs)."""
    return np.stack([seen, outlasting]) * SAME


def _reached(
    pairs: np.ndarray, greatest: np.ndarray, least: np.ndarray, flipped: Callable[[int], np.ndarray]
) -> tuple[np.ndarray, int]:
    """Return (how many flips reach T, and T+, of these pairs, (2, all pairs); the number of flips).

    Args:
        pairs: from the least T up.
        greatest: (2, flips) T and T+ under every flip among the pairs before these; (2, 1) of zeros for none.
        least: as `_least` has it.
        flipped: as of `step_down`.
    """
    reached = np.zeros(least.shape, dtype=int)
    for pair in pairs:  # the greatest among this pair and those of lesser T
        greatest = np.maximum(greatest, flipped(pair))
        for counts, largest, values in zip(reached, greatest, least, strict=True):
            counts[pair] = np.count_nonzero(largest >= values[pair])
    return reached, greatest.shape[1]


def _fewest(flips: int) -> np.ndarray:
    """Return by how many of the flips T, and T+, must be reached for p, or p+, not to be below `ALPHA`, (2,)."""
    p = (1 + np.arange(flips + 1)) / (1 + flips)
    return np.array([np.count_nonzero(p < ALPHA), np.count_nonzero(p / 2 < ALPHA)])


def _critical(greatest: np.ndarray, fewest: np.ndarray) -> np.ndarray:
    """Return the greatest T, and T+, that so many flips of (2, flips) reach, (2,)."""
    flips = greatest.shape[1]
    if fewest[0] == 0:  # too few flips for any p below `ALPHA`
        return np.array([np.inf, np.inf])
    return np.array([np.partition(row, flips - most)[flips - most] for row, most in zip(greatest, fewest, strict=True)])


def adjusted_p(
    families: Sequence[Matched],
    pairs: Sequence[Sequence[Pair]],
    across: Sequence[Sequence[Member]] = (),
    seed: int = 0,
    flips: int = FLIPS,
    step: Callable[[np.ndarray, np.ndarray, Callable[[int], np.ndarray]], np.ndarray] = step_down,
) -> list[dict[Pair, float]]:
    """Return {pair: adjusted p} of each family of pairs, such as the explainers of a metric.

    Args:
        families: the scores of each family.
        pairs: which columns of each family are compared.
        across: further families, made of members of several, such as all pairs with a baseline. A pair that is in one
            has the greater of its p-values, so that a statement about it holds in both families.
        seed: of the flips.
        flips: how many, B.
        step: makes p of T and of T under every flip: `step_down`, or `significant` where only `ALPHA` counts.
    """
    p_values: list[dict[Pair, float]] = [{} for _ in families]
    wanted = {member for members in across for member in members}
    kept: dict[Member, tuple[float, float, np.ndarray]] = {}
    for number, seen, flipped in SignFlips(families, pairs, seed, flips).families_in_turn():
        family_pairs = list(seen)
        seen_t, outlasting = (
            np.array([by_pair[pair] for pair in family_pairs]) for by_pair in (seen, flipped.outlasting)
        )
        p = step(seen_t, outlasting, lambda index: flipped.under_flips(family_pairs[index]))  # noqa: B023
        p_values[number] = dict(zip(family_pairs, p.tolist(), strict=True))
        for pair in family_pairs:
            if (number, pair) in wanted:
                kept[number, pair] = seen[pair], flipped.outlasting[pair], flipped.under_flips(pair)
    for members in across:
        tested = [member for member in members if member in kept]
        if tested:
            seen_t, outlasting = (np.array([kept[member][index] for member in tested]) for index in (0, 1))
            p = step(seen_t, outlasting, lambda index: kept[tested[index]][2])  # noqa: B023
            for (number, pair), own_p in zip(tested, p.tolist(), strict=True):
                p_values[number][pair] = max(p_values[number][pair], own_p)
    return p_values
