"""Test which explainers differ significantly: paired sign flips of cluster sums, with step-down over all pairs.

The sign flips are due to Fisher (1935), and the step-down adjustment to Westfall and Young (1993).

If two explainers are equally good, the difference of their scores in a cluster is equally likely to have either sign.
The test uses T = |sum D| / sqrt(sum D^2) over cluster sums D, or 0 if all D are 0. A flip gives each cluster the same
sign for all pairs, so the distribution of the maximum T accounts for chance in all pairs of a family together. A
family consists of the pairs whose p-values are adjusted together. In the step-down, a pair is compared with the
maximum T of this pair and all pairs with a smaller observed T.

The p-value refers to the mean, which is the reported number, and does not assume a normal distribution. The test
assumes that D and -D are equally likely. Scores with differently shaped distributions violate this: if the score of one
explainer is a rare event, and the score of the other varies smoothly around the same mean, all samples without the
event favour the same explainer. A difference must therefore stay significant after another cluster is added. The sum of
this cluster has the opposite sign to the difference, and a magnitude of at least the largest observed one
(`another_cluster`). The test flips this cluster like all others.

An explainer may also fail on rare images that the samples miss. If the scores vary little, these failures can explain a
difference of any size. A difference must therefore stay significant even if such failures occur, as for
its interval (`outlasting_failures`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from saliency_bench.read.statistics.clusters import Matched
from saliency_bench.read.statistics.intervals import p_with_failures
from saliency_bench.utils.seeds import random_bits, seed_of

ALPHA = 0.05
FLIPS = 9999
FEW_BETWEEN = 10  # clusters with scores inside the range; with fewer, rare events are not well sampled
CLUSTERS_AT_ONCE = 512  # the signs of these clusters take 8 x FLIPS x 512 bytes
ELEMENTS_AT_ONCE = 2**24  # largest number of cluster sums that are flipped together, over several metrics
SAME = 1 - 1e-9  # values of T that differ only by rounding errors count as equal

Pair = tuple[int, int]  # two columns of a family
Member = tuple[int, Pair]  # (index of a family, one of its pairs)


class SignFlips:
    """Values of T for pairs of columns under random sign flips. All metrics use the same signs."""

    def __init__(self, families: Sequence[Matched], pairs: Sequence[Sequence[Pair]], seed: int, flips: int = FLIPS):
        self.families, self.pairs, self.seed, self.flips = families, pairs, seed, flips

    def families_in_turn(self) -> Iterator[tuple[int, dict[Pair, float], "Flipped"]]:
        """Yield (index, {pair: T}, T under every flip) for each family that has pairs."""
        turned = 1.0 - 2.0 * _random_signs(self.flips, 1, seed_of(self.seed, "flips", "another"))[:, 0]
        for numbers in self._together():
            indices_by_family = [
                {pair: self.families[number].pair(*pair) for pair in self.pairs[number]} for number in numbers
            ]
            widths = [len(self.families[number].columns) for number in numbers]
            # All families use the same signs, because `across` combines flip b of pairs from different metrics.
            columns = [column for number in numbers for column in self.families[number].columns]
            sums = np.ascontiguousarray(signed_sums(columns, self.seed, self.flips).T)
            for indices, number, end, width in zip(indices_by_family, numbers, np.cumsum(widths), widths, strict=True):
                flipped = Flipped(self.families[number], indices, sums[end - width : end], turned)
                self.families[number].forget()
                yield number, flipped.seen, flipped

    def _together(self) -> Iterator[list[int]]:
        """Yield indices of families whose columns are flipped together, within a memory bound."""
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
    """Values of T for the pairs of one family, observed and under every flip.

    Attributes:
        seen: {pair: observed T}.
        outlasting: {pair: observed T with one more cluster, whose sum has the opposite sign}.
        totals: {pair: sum of the differences}.
    """

    def __init__(
        self, family: Matched, indices: Mapping[Pair, tuple[int, int, np.ndarray]], sums: np.ndarray, turned: np.ndarray
    ):
        """Compute the observed T of each pair.

        Args:
            family: Scores of the family.
            indices: {pair: result of `Matched.pair`}.
            sums: Sums of columns under each flip (k, B).
            turned: Sign of the additional cluster under each flip (B,), 1 or -1.
        """
        self._places = {pair: columns[:2] for pair, columns in indices.items()}
        self._sums, self._turned = sums, turned
        self._norms: dict[Pair, float] = {}
        self._another: dict[Pair, tuple[float, float]] = {}  # (difference of the additional cluster, norm with it)
        self.seen: dict[Pair, float] = {}
        self.outlasting: dict[Pair, float] = {}
        self.totals: dict[Pair, float] = {}
        for pair, (first, second, counts) in indices.items():
            sums_of_pair = family.columns[first] - family.columns[second]
            norm = float(np.sqrt((sums_of_pair**2).sum()))
            self._norms[pair] = norm
            self.seen[pair] = float(abs(sums_of_pair.sum()) / norm) if norm else 0.0
            may_be = 0.0
            between = sorted(family.between[column] for column in pair)
            if np.isfinite(family.width) and between[0] < FEW_BETWEEN and between[1] > 0:
                may_be = family.width * counts.sum() / np.count_nonzero(counts)
            another, total = another_cluster(sums_of_pair, may_be), float(sums_of_pair.sum())
            norm_with = float(np.sqrt((sums_of_pair**2).sum() + another**2))
            self._another[pair] = another, norm_with
            # If the additional cluster reverses the sum, there is no difference left.
            self.totals[pair] = total
            self.outlasting[pair] = abs(total + another) / norm_with if abs(total) > abs(another) else 0.0

    def under_flips(self, pair: Pair) -> np.ndarray:
        """Return |sum of signed differences| / norm of a pair for every flip, without and with one more cluster.

        Returns:
            Float (2, flips).
        """
        # The sum of a difference is the difference of the sums, so no pair needs its own matrix product. A pair
        # without any difference has T = 0.
        first, second = self._places[pair]
        another, norm_with = self._another[pair]
        differences = self._sums[first] - self._sums[second]
        flipped_t = np.stack([differences / (self._norms[pair] or np.inf),
                          (differences + self._turned * another) / (norm_with or np.inf)])  # fmt: skip
        return np.abs(flipped_t, out=flipped_t)


def another_cluster(sums: np.ndarray, may_be: float = 0.0) -> float:
    """Return the sum of an additional cluster. It has the opposite sign to the sum of all other clusters.

    Its absolute value is the maximum |D|, and at least `may_be`.

    Args:
        sums: Cluster sums D (C,).
        may_be: Lower bound of this absolute value. Callers pass more than 0 if one of the two scores is nearly always
            at an end of its range, unless both are 0/1 scores. They then pass the width of the range times the mean
            number of samples in a cluster, because a few rare events show neither how frequent nor how large such
            events are.
    """
    largest = max(float(np.abs(sums).max(initial=0)), may_be)
    return -largest if sums.sum() > 0 else largest


def signed_sums(columns: Sequence[np.ndarray], seed: int, flips: int = FLIPS) -> np.ndarray:
    """Return the sum of each of k columns (clusters,) under random signs of the clusters, (flips, k).

    The columns are summable (`clusters.summable`), so the sums are exact and do not depend on the number of threads.
    """
    turned = np.zeros((flips, len(columns)))
    for start in range(0, len(columns[0]), CLUSTERS_AT_ONCE):
        block = np.stack([column[start : start + CLUSTERS_AT_ONCE] for column in columns], axis=1)
        turned += _random_signs(flips, len(block), seed_of(seed, "flips", start)).astype(np.float64) @ block
    # With s = 1 - 2 b and b in {0, 1}, sum s D = sum D - 2 sum b D.
    plain = np.array([column.sum() for column in columns])
    return plain - 2 * turned


def _random_signs(rows: int, count: int, seed: int) -> np.ndarray:
    """Return random bits, 0 or 1, (rows, count)."""
    words = random_bits(seed, rows * -(-count // 64)).astype("<u8").view(np.uint8).reshape(rows, -1)
    return np.unpackbits(words, axis=1, count=count)


def step_down(seen: np.ndarray, outlasting: np.ndarray, flipped: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return the adjusted p of each pair (Westfall and Young): a running maximum from the largest T down.

    p = (1 + number of flips in which the maximum T of this pair and all pairs with smaller T reaches the pair's
    observed T) / (B + 1)

    If p is below `ALPHA`, p+ is computed from T+ in the same way, and halved because the direction is known. If p+ is
    not below `ALPHA`, p+ replaces p.

    Args:
        seen: T (pairs,).
        outlasting: T+ (pairs,), which is T with an additional cluster.
        flipped: Function from the index of a pair to its T and T+ under every flip, (2, flips).
    """
    order = np.argsort(-seen, kind="stable")
    reached = np.zeros((2, len(seen)), dtype=int)
    greatest = np.zeros((2, 1))
    for pair in order[::-1]:  # from the smallest T up, so that `greatest` covers this pair and all smaller T
        greatest = np.maximum(greatest, flipped(pair))
        for counts, largest, values in zip(reached, greatest, (seen, outlasting), strict=True):
            counts[pair] = np.count_nonzero(largest >= values[pair] * SAME)
    # The observed scores count as one more flip, so p is never 0. A smaller T never has a smaller p.
    alone, again = (1 + reached) / (1 + greatest.shape[1])
    stepped = np.empty(len(seen))
    stepped[order] = np.maximum.accumulate(alone[order])
    return np.where((stepped < ALPHA) & (again / 2 >= ALPHA), again / 2, stepped)


def holm(p: np.ndarray) -> np.ndarray:
    """Return the p-values of several tests, float64 (n,), adjusted with the step-down method of Holm (1979).

    The k-th smallest of n values is multiplied by n - k + 1. An adjusted value is at least as large as the adjusted
    values of all smaller p-values, and may exceed 1.
    """
    order, adjusted = np.argsort(p, kind="stable"), np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return adjusted


def outlasting_failures(p: float, with_failures: tuple[float, float], columns: int) -> float:
    """Return the maximum of p and the pair's `p_with_failures`, corrected for the number of `columns` of scores."""
    return max(p, min(max(with_failures[0], columns * with_failures[1]), 1.0))


def columns_in(pairs: Iterable[Pair]) -> int:
    """Return the number of columns that occur in these pairs."""
    return len({column for pair in pairs for column in pair})


def adjusted_p(
    families: Sequence[Matched],
    pairs: Sequence[Sequence[Pair]],
    across: Sequence[Sequence[Member]] = (),
    seed: int = 0,
    flips: int = FLIPS,
) -> list[dict[Pair, float]]:
    """Return {pair: adjusted p} for each family of pairs, such as all pairs of explainers on one metric.

    Args:
        families: Scores of each family.
        pairs: Pairs of columns to compare in each family.
        across: Additional families that combine pairs of several metrics, such as all pairs with one baseline. A pair
            in two families gets the greater p-value, so that the pair is significant only if it is significant in both
            families.
        seed: Seed of the flips.
        flips: Number of flips, B.
    """
    p_values: list[dict[Pair, float]] = [{} for _ in families]
    wanted = {member for members in across for member in members}
    kept: dict[Member, tuple[float, float, np.ndarray]] = {}
    failing: dict[Member, tuple[float, float]] = {}
    for number, seen, flipped in SignFlips(families, pairs, seed, flips).families_in_turn():
        family_pairs = list(seen)
        seen_t, outlasting = (
            np.array([by_pair[pair] for pair in family_pairs]) for by_pair in (seen, flipped.outlasting)
        )
        p = step_down(seen_t, outlasting, lambda index: flipped.under_flips(family_pairs[index]))  # noqa: B023
        columns = columns_in(family_pairs)
        for pair, own_p in zip(family_pairs, p.tolist(), strict=True):
            if own_p < ALPHA:
                failing[number, pair] = p_with_failures(families[number], *pair)
                own_p = outlasting_failures(own_p, failing[number, pair], columns)
            p_values[number][pair] = own_p
        families[number].forget()
        for pair in family_pairs:
            if (number, pair) in wanted:
                kept[number, pair] = seen[pair], flipped.outlasting[pair], flipped.under_flips(pair)
    for members in across:
        tested = [member for member in members if member in kept]
        if tested:
            seen_t, outlasting = (np.array([kept[member][index] for member in tested]) for index in (0, 1))
            p = step_down(seen_t, outlasting, lambda index: kept[tested[index]][2])  # noqa: B023
            columns = len({(number, column) for number, pair in tested for column in pair})
            for member, own_p in zip(tested, p.tolist(), strict=True):
                number, pair = member
                if member in failing:
                    own_p = outlasting_failures(own_p, failing[member], columns)
                p_values[number][pair] = max(p_values[number][pair], own_p)
    return p_values
