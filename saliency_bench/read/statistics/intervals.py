"""95 % intervals: how much a number would vary if other samples were drawn. The unit of sampling is the cluster.

The methods were chosen by simulation (`benchmarks/simulations.py` prints their coverage):

    0/1 scores, accuracy    Wilson (1927)
    bounded scores          Wilson's interval with an effective number of samples, computed from the standard error
    unbounded scores        bootstrap-t over clusters (Efron, 1981); approximate below 500 clusters
    aggregates              percentile bootstrap over clusters, the aggregate recomputed in each draw
    differences of means    Student's t with the standard error of cluster sums

Standard errors are computed by the jackknife, leaving out one cluster at a time. If clusters differ in size or a few
scores are very different, these errors vary more than C - 1 degrees of freedom imply, so Student's t uses
Satterthwaite's degrees of freedom (`cluster_error`).

All methods rely on the spread of the sample, but the sample may by chance miss a few very different scores. If such
scores could move the mean out of the interval, the interval is widened (`outlasting_rare_scores`) and marked.

The intervals do not account for variation due to the seed of the explainer, the training of the model or the choice of
datasets.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from saliency_bench.bound_metric import outside
from saliency_bench.errors import UserError
from saliency_bench.read.statistics.betting import BETS
from saliency_bench.read.statistics.clusters import Matched, effective_clusters, summable, sums_by_cluster
from saliency_bench.utils.seeds import random_bits, seed_of

NAN = float("nan")
DRAWS = 2000
INTERVAL_FROM = 10  # effective clusters; with fewer, a value has no interval
APPROXIMATE_BELOW = 500  # clusters; with fewer, the interval of an unbounded score is approximate
TAIL = 0.025
MOST_TAILS = 3  # largest k of `outlasting_rare_scores`, for 20 clusters and fewer
# If an end would move by more than this many times its distance from the value, the scores are narrow, and k is 1.
NARROW = 3
UNSEEN = (np.arange(50) + 0.5) / 50  # points between `chance` and 1 at which `_rare_bounds` evaluates its bound
LEAST_T, GREATEST_T = -4, 40  # limits of the search for the worst share of failures in `p_with_failures`
FAILING = np.linspace(0, 1, 50) ** 2
EQUAL = 1e-12  # fraction of a range; scores that differ by less are equal
INDICES_AT_ONCE = 2**22  # bounds memory at 32 MiB of indices
Aggregate = Callable[[np.ndarray], np.ndarray]  # means (D, P) -> aggregates (D,)
Ends = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # tails (D,) -> lower and upper ends (D,) of an interval


class Estimate(NamedTuple):
    """A number, its interval (NaN if there is none), and the numbers of samples and clusters.

    Attributes:
        effective: Number of clusters of equal size that would be just as informative (`clusters.effective_clusters`).
        freedom: Degrees of freedom of the interval; NaN if the interval has no degrees of freedom.
        rare: Whether the interval was widened because the samples do not rule out rare, very different scores.
    """

    value: float
    low: float
    high: float
    n: int
    clusters: int
    effective: float
    freedom: float = NAN
    rare: bool = False

    @classmethod
    def alone(cls, value: float, counts: np.ndarray) -> "Estimate":
        """Return a number without an interval; `counts` is the number of samples in each cluster."""
        return cls(value, NAN, NAN, int(counts.sum()), int(np.count_nonzero(counts)), effective_clusters(counts))

    def between(self, low: float, high: float, freedom: float) -> "Estimate":
        """Return the number with an interval that is extended to the value if rounding errors exclude the value."""
        return self._replace(low=min(self.value, float(low)), high=max(self.value, float(high)), freedom=freedom)

    @property
    def known(self) -> tuple[float | None, float | None, float | None]:
        """Return (value, low, high) for JSON, with None for unknown numbers."""
        value, low, high = (float(number) if np.isfinite(number) else None for number in self[:3])
        return value, low, high


NOTHING = Estimate(NAN, NAN, NAN, 0, 0, 0.0)


def t_quantile(freedom: float, tail: float = TAIL) -> float:
    """Return the quantile of Student's t that is exceeded with probability `tail`."""
    return float(special.stdtrit(freedom, 1 - tail))


def is_bounded(limits: tuple[float, float]) -> bool:
    """Return whether a range has two finite ends."""
    return bool(np.isfinite(limits).all())


def check_range(values: np.ndarray, limits: tuple[float, float], subject: str) -> None:
    """Raise UserError for a score outside the range that its metric declares."""
    if len(wrong := outside(values, limits)):
        low, high = limits
        raise UserError(f"{subject} has a score of {wrong[0]:.6g}, outside its range from {low:g} to {high:g}")


def interval(
    values: np.ndarray, codes: np.ndarray, limits: tuple[float, float], seed: int = 0, tail: float = TAIL,
    gate: bool = False,
) -> Estimate:  # fmt: skip
    """Return the mean of values (n,), ignoring NaN, with the interval that suits their range.

    Args:
        values: Scores (n,), or NaN for samples without a score.
        codes: Cluster (n,) of each sample.
        limits: Range (low, high) of the metric; either end may be infinite.
        seed: Seed of the bootstrap for unbounded scores.
        tail: Probability that the mean lies below the interval, and also the probability that the mean lies above it.
        gate: Whether `tail` must be guaranteed even if the samples missed a few very different scores
            (`outlasting_rare_scores`).
    """
    return intervals(values[:, None], codes, limits, seed, tail, gate)[0]


def intervals(
    columns: np.ndarray, codes: np.ndarray, limits: tuple[float, float], seed: int = 0, tail: float = TAIL,
    gate: bool = False,
) -> list[Estimate]:  # fmt: skip
    """Return the `interval` of each column (n, k).

    Unbounded columns with the same missing samples share their bootstrap draws.
    """
    scored = np.isfinite(columns)
    estimates_by_column: dict[int, Estimate] = {}
    columns_by_gaps: dict[bytes, list[int]] = {}
    for index in range(columns.shape[1]):
        # Columns with the same missing samples have the same clusters, so they can share one set of draws.
        columns_by_gaps.setdefault(np.packbits(scored[:, index]).tobytes(), []).append(index)
    for indices in columns_by_gaps.values():
        rows = scored[:, indices[0]]
        kept_codes = np.unique(codes[rows], return_inverse=True)[1]
        kept = columns[np.ix_(rows, indices)]
        if is_bounded(limits):
            estimates = [bounded(column, kept_codes, limits, tail, gate) for column in kept.T]
        else:
            estimates = bootstrap_t(kept, kept_codes, limits, seed, tail, gate)
        estimates_by_column |= zip(indices, estimates, strict=True)
    return [estimates_by_column[index] for index in range(columns.shape[1])]


def wilson(mean: float, size: float, z: float) -> tuple[float, float]:
    """Return Wilson's interval for a proportion m = `mean` in [0, 1] of `size` samples.

    [m + z^2 / 2n +- z sqrt(m (1 - m) / n + z^2 / 4n^2)] / (1 + z^2 / n)
    """
    low, high = _wilson(mean, size, np.array(z))
    return float(low), float(high)


def _wilson(mean: float, size: float, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `wilson` for several z. For a negative z, the first end is greater than the second."""
    middle = mean + z**2 / (2 * size)
    half = z * np.sqrt(max(mean * (1 - mean), 0) / size + z**2 / (4 * size**2))
    whole = 1 + z**2 / size
    return np.clip((middle - half) / whole, 0, 1), np.clip((middle + half) / whole, 0, 1)


def clopper_pearson(estimate: Estimate, tail: float = TAIL) -> Estimate:
    """Return a proportion of independent samples with its Clopper-Pearson interval (1934).

    Each bound is wrong with a probability of at most `tail`. Wilson's interval achieves this on average over all
    proportions, but if the proportion is close to 0 or 1, one of its bounds may be wrong three times as often.
    """
    hits, misses = (round(estimate.n * share) for share in (estimate.value, 1 - estimate.value))
    low = special.betaincinv(hits, misses + 1, tail) if hits else 0.0
    high = special.betaincinv(hits + 1, misses, 1 - tail) if misses else 1.0
    return estimate.between(low, high, np.inf)


def bounded(
    values: np.ndarray, codes: np.ndarray, limits: tuple[float, float], tail: float = TAIL,
    gate: bool = False,
) -> Estimate:  # fmt: skip
    """Return the mean of values (n,) within `limits` with its generalised Wilson interval.

    Let m be the mean of u = (x - low) / (high - low). n_e = m (1 - m) / se^2 is the number of 0/1 samples whose mean
    would have the same standard error; `cluster_error` returns se and its degrees of freedom. n_e is at least n if each
    sample is its own cluster, and C if all scores are equal. z is the quantile of Student's t, or 1.96 for 0/1 scores
    of unclustered samples. The interval is Wilson's for m, n_e and z, mapped back to the limits.
    """
    counts = np.bincount(codes)
    if len(values) == 0:
        return NOTHING
    estimate = Estimate.alone(float(values.mean()), counts)
    if estimate.effective < INTERVAL_FROM:
        return estimate
    n, clusters, (low, high) = estimate.n, estimate.clusters, limits
    u = np.clip((values - low) / (high - low), 0, 1)
    mean = float(u.mean())
    error, freedom = cluster_error(sums_by_cluster(u, codes, clusters), counts, mean)
    size = mean * (1 - mean) / error**2 if error > 0 else clusters
    hits = bool(((u == 0) | (u == 1)).all())
    if clusters == n:
        size = max(size, n)  # within a range, 0/1 scores vary most
        if hits:
            freedom = np.inf  # the variance of 0/1 scores follows from their mean
    ends = wilson_ends(mean, size, freedom, limits)
    bottom, top = (float(end) for end in ends(np.array(tail)))
    estimate = estimate.between(bottom, top, freedom)
    # Wilson's interval of 0/1 scores follows from the mean alone and allows for any share of failures.
    return estimate if hits else outlasting_rare_scores(estimate, ends, limits, tail, gate)


def wilson_ends(mean: float, size: float, freedom: float, limits: tuple[float, float]) -> Ends:
    """Return a function that computes Wilson's interval for a proportion of `size` samples, rescaled to `limits`."""
    low, high = limits

    def ends(tails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shares = _wilson(mean, size, special.stdtrit(freedom, 1 - tails))
        return low + shares[0] * (high - low), low + shares[1] * (high - low)

    return ends


def outlasting_rare_scores(
    estimate: Estimate, ends: Ends, far: tuple[float, float], tail: float = TAIL, gate: bool = False
) -> Estimate:
    """Widen the interval of an estimate to allow for a few very different scores that the samples may have missed.

    Assume that a fraction p of all clusters has scores at an end e of the range. With probability (1 - p)^C, a sample
    of C effective clusters contains none of these clusters. If L(u) is the lower end of the interval of the other
    scores with tail u, the overall mean is below (1 - p) L(u) + p e with probability u (1 - p)^C. The lower end of the
    widened interval is the minimum of these bounds over all p with u (1 - p)^C = k * tail; the upper end is computed in
    the same way.

    k is 1 for a gate. k is also 1 for narrow scores, for which an end would move by more than `NARROW` times its
    distance from the value. For other scores, k = 1 would make many intervals too wide, so k is 1.5 + 30 / C, at most
    3. The mean lies beyond the widened end in at most k * 2.5 % (7.5 %) of cases and beyond the other end in 2.5 % of
    cases, so at least 90 % of the widened intervals contain the mean (docs/numbers.md).

    Args:
        estimate: Estimate with its interval.
        ends: Function that returns the interval's two ends for an array of tails.
        far: Scores (low, high) that the samples may have missed. If one of them is infinite, the corresponding end is
            not moved.
        tail: As in `interval`.
        gate: Whether k is 1.
    """
    ordinary = np.array([estimate.low, estimate.high])
    if gate:
        moved = _rare_bounds(ends, far, estimate.effective, tail)
    else:
        moved, narrow = _moved_ends(estimate, ends, far, tail)
        if narrow.any():
            moved = np.where(narrow, _rare_bounds(ends, far, estimate.effective, tail), moved)
    low, high = float(min(ordinary[0], moved[0])), float(max(ordinary[1], moved[1]))
    return estimate._replace(low=low, high=high, rare=(low, high) != (estimate.low, estimate.high))


def _tails_of(estimate: Estimate) -> float:
    """Return k of `outlasting_rare_scores` for scores that are not narrow."""
    return min(MOST_TAILS, 1.5 + 30 / estimate.effective)


def _moved_ends(estimate: Estimate, ends: Ends, far: tuple[float, float], tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (widened ends for k times the tail, whether the shift of each end shows that the scores are narrow)."""
    ordinary = np.array([estimate.low, estimate.high])
    moved = _rare_bounds(ends, far, estimate.effective, _tails_of(estimate) * tail)
    return moved, np.abs(moved - ordinary) > NARROW * np.abs(ordinary - estimate.value)


def _rare_bounds(ends: Ends, far: tuple[float, float], clusters: float, chance: float) -> np.ndarray:
    """Return the minimum and the maximum of (1 - p) L(u) + p e over all u with u (1 - p)^C = chance.

    If e is infinite, the result is the opposite infinity, so that the caller does not change the interval.
    """
    tails = chance + UNSEEN * (1 - chance)
    others = (chance / tails) ** (1 / clusters)  # 1 - p
    lows, highs = (others * end + (1 - others) * e for end, e in zip(ends(tails), far, strict=True))
    return np.array([
        lows.min() if np.isfinite(far[0]) else np.inf,
        highs.max() if np.isfinite(far[1]) else -np.inf,
    ])  # fmt: skip


def student(mean: float, error: float, freedom: float) -> Ends:
    """Return a function that computes Student's interval, mean -+ t se, for any tail."""

    def ends(tails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        half = special.stdtrit(freedom, 1 - tails) * error
        return mean - half, mean + half

    return ends


def over_datasets(estimates: Sequence[Estimate], errors: Sequence[float]) -> tuple[Estimate, float]:
    """Return (mean of the means on D independent datasets, with an interval for these datasets; standard error).

    The interval is S -+ t sqrt(sum_d se_d^2) / D, with t for the minimum degrees of freedom over the datasets. The
    effective number of clusters is D times the minimum C over the datasets, because failures are hardest to detect on
    the dataset with the fewest clusters. A fraction p of failures on this dataset moves the mean by p / D times their
    size, and is missed with probability (1 - p)^C. This is at most (1 - p / D)^(C D), the probability of missing a
    fraction p / D of failures among C D clusters.
    """
    count = len(estimates)
    error = float(np.sqrt(sum(error**2 for error in errors))) / count
    value = float(np.mean([estimate.value for estimate in estimates]))
    freedom, effective = (min(getattr(estimate, name) for estimate in estimates) for name in ("freedom", "effective"))
    half = t_quantile(freedom) * error
    samples, clusters = (sum(getattr(estimate, name) for estimate in estimates) for name in ("n", "clusters"))
    pooled = Estimate(value, NAN, NAN, samples, clusters, count * effective)
    return pooled.between(value - half, value + half, freedom), error


def widened_over_datasets(pooled: Estimate, error: float, far: tuple[float, float]) -> Estimate:
    """Widen the interval of `over_datasets` to allow for rare failures.

    `far` contains the lowest and the highest mean that are possible if all samples are failures.
    """
    if not (pooled.value or error):
        return pooled
    return outlasting_rare_scores(pooled, student(pooled.value, error, pooled.freedom), far)


def cluster_error(sums: np.ndarray, counts: np.ndarray, mean: float) -> tuple[float, float]:
    """Return (standard error of a mean over clusters, its degrees of freedom).

    se^2 = (C - 1) / C sum_c d_c^2, where d_c = (S_c - m n_c) / (n - n_c) is the change in the mean if cluster c is left
    out. The degrees of freedom are Satterthwaite's, 2 / (sum d^4 / (sum d^2)^2 - 1 / C), at most C - 1. This number is
    small if most of sum d^2 comes from a few clusters that are large or whose scores are far from the mean.

    Args:
        sums: Sum S_c (C,) of the scores in each cluster.
        counts: Number n_c (C,) of samples in each cluster; clusters without samples are ignored.
        mean: Mean m over all n samples.
    """
    clusters = int((counts > 0).sum())
    residuals = sums - mean * counts
    # Residuals at the level of rounding count as zero, so that equal scores have no error.
    residuals = np.where(np.abs(residuals) <= EQUAL * np.abs(sums).max(initial=0), 0, residuals)
    squares = (residuals / (counts.sum() - counts)) ** 2
    total = float(squares.sum())
    if total == 0:
        return 0.0, clusters - 1.0
    concentration = float((squares**2).sum()) / total**2 - 1 / clusters
    freedom = min(clusters - 1.0, 2 / concentration) if concentration > 0 else clusters - 1.0
    return float(np.sqrt((clusters - 1) / clusters * total)), freedom


def difference(matched: Matched, first: int, second: int, tail: float = TAIL) -> Estimate:
    """Return the mean of first minus second on their common samples, with the interval +- t se (`cluster_error`).

    The interval is not corrected for multiple comparisons. Unlike the interval of `paired_difference`, this interval
    depends only on the spread of the differences.
    """
    left, right, counts = matched.pair(first, second)
    sums = matched.columns[left] - matched.columns[right]
    if not counts.any():
        return NOTHING
    mean = float(sums.sum() / int(counts.sum()))
    estimate = Estimate.alone(mean, counts)
    if estimate.effective < INTERVAL_FROM:
        return estimate
    error, freedom = cluster_error(sums, counts, mean)
    half = t_quantile(freedom, tail) * error
    return estimate.between(mean - half, mean + half, freedom)


def paired_difference(matched: Matched, first: int, second: int, tail: float = TAIL, gate: bool = False) -> Estimate:
    """Return `difference` with an interval that allows for rare failures, if the range of the scores is finite.

    A rare failure is a sample on which one explainer has a score at an end of the range, and the other explainer has
    its mean score (`outlasting_rare_scores`). If no cluster has a difference, the interval remains [0, 0].
    """
    estimate = difference(matched, first, second, tail)
    if not _may_be_widened(matched, first, second, estimate):
        return estimate
    error, far = error_and_far(matched, first, second, estimate, tail)
    ends = student(estimate.value, error, estimate.freedom)
    return outlasting_rare_scores(estimate, ends, far, tail, gate)


def _may_be_widened(matched: Matched, first: int, second: int, estimate: Estimate) -> bool:
    """Return whether a difference has an interval and bounded scores, and is not 0 in every cluster."""
    if np.isnan(estimate.low) or not is_bounded(matched.limits):
        return False
    left, right = (matched.columns[index] for index in matched.pair(first, second)[:2])
    return bool((left - right).any())


def error_and_far(
    matched: Matched, first: int, second: int, estimate: Estimate, tail: float = TAIL
) -> tuple[float, tuple[float, float]]:
    """Return (standard error of the difference between two columns, (lowest, highest) difference).

    The second item refers to a sample on which the explainer of one of the columns fails.
    """
    left, right = (matched.columns[index] for index in matched.pair(first, second)[:2])
    limits = matched.limits
    error = (estimate.high - estimate.low) / 2 / t_quantile(estimate.freedom, tail)
    means = float(left.sum()) / estimate.n, float(right.sum()) / estimate.n
    return error, (min(limits[0] - means[1], means[0] - limits[1]), max(limits[1] - means[1], means[0] - limits[0]))


def p_with_failures(matched: Matched, first: int, second: int) -> tuple[float, float]:
    """Return (Student's p, p per column that may fail) at which the interval of `paired_difference` ends at 0.

    A fraction p of failures reverses a mean difference m if the mean difference of the other samples is at most
    s = p abs(e) / (1 - p). The samples contain no failure and have mean m with probability
    P(t > (m - s) / se) (1 - p)^C. Let P be the largest of these probabilities. The interval with the tail P / k ends
    at 0, unless Student's interval ends at 0 for a greater tail.

    Each explainer may have undetected failures, which make all its differences wrong together. The second p is
    therefore corrected for the number of columns of a family (Bonferroni), not for the number of pairs. Both p-values
    are 0 if the interval cannot be widened.
    """
    estimate = difference(matched, first, second)
    if not _may_be_widened(matched, first, second, estimate):
        return 0.0, 0.0
    return p_of_failures(estimate, *error_and_far(matched, first, second, estimate))


def p_of_failures(estimate: Estimate, error: float, far: tuple[float, float]) -> tuple[float, float]:
    """Return `p_with_failures` for a difference, its standard error, and the ends from `error_and_far`."""
    mean, side = abs(estimate.value), int(estimate.value < 0)
    ends = student(estimate.value, error, estimate.freedom)
    t = mean / error if error > 0 else np.inf
    # (m - s) / se, from no failures up to enough failures to certainly reverse the difference
    without = LEAST_T + (min(t, GREATEST_T) - LEAST_T) * FAILING
    needed = mean - without * error
    seen = (abs(far[side]) / (abs(far[side]) + needed)) ** estimate.effective
    missed = float((special.stdtr(estimate.freedom, -without) * seen).max())
    tails = 1.0 if _moved_ends(estimate, ends, far, TAIL)[1][side] else _tails_of(estimate)
    return 2 * float(special.stdtr(estimate.freedom, -t)), missed / tails


def is_alike(matched: Matched, first: int, second: int, margin: float, tail: float = TAIL) -> bool:
    """Return whether the mean difference is shown to be less than `margin` in absolute value.

    Two one-sided tests at `tail` are used. Student's interval must lie within the margin, and a bet b = `BETS`[0]
    against each end of the margin must win. Let D be the differences, n_c their number in cluster c, N the largest
    n_c, and w the width of the scores' range. The bet wins if

        product over clusters (1 + b (margin n_c +- sum D) / (N (w - margin))) >= 1 / tail

    If the mean is `margin` or more, each factor has an expectation of at most 1. The probability of a false positive
    is therefore at most `tail` for any distribution of the differences (Markov). The largest bet has the most power if
    the differences vary little.
    """
    estimate = difference(matched, first, second, tail)
    if not -margin < estimate.low <= estimate.high < margin:
        return False
    left, right, counts = matched.pair(first, second)
    sums, unit = matched.columns[left] - matched.columns[right], counts.max() * (matched.width - margin)
    growth = [np.log1p(BETS[0] * (margin * counts + sign * sums) / unit).sum() for sign in (-1, 1)]
    return min(growth) >= -np.log(tail)


def bootstrap_t(
    columns: np.ndarray, codes: np.ndarray, limits: tuple[float, float], seed: int = 0, tail: float = TAIL,
    gate: bool = False,
) -> list[Estimate]:  # fmt: skip
    """Return the mean of each column (n, k), which must not contain NaN, with its bootstrap-t interval.

    Clusters are drawn with replacement. Each draw has t = (mean* - mean) / se*, where se^2 = C / (C - 1) sum_c (S_c - m
    n_c)^2 / n^2. The interval is [mean - f t(.975) se, mean - f t(.025) se]. The factor f is the quantile of Student's
    t with the degrees of freedom of `cluster_error`, divided by the normal quantile; this factor corrects for the fact
    that draws vary less than samples. Draws in which all clusters have the same mean have no t and are ignored. The
    interval stays within finite limits. If all scores are equal, there is no interval.
    """
    n, counts = len(columns), np.bincount(codes).astype(float)
    clusters, means = len(counts), [float(column.mean()) if n else NAN for column in columns.T]
    estimates = [Estimate.alone(mean, counts) for mean in means]
    if effective_clusters(counts) < INTERVAL_FROM:
        return estimates
    sums = np.stack([sums_by_cluster(column, codes, clusters) for column in columns.T], axis=1)
    residuals = sums - np.array(means) * counts[:, None]
    # Rounding errors of equal scores would give a tiny standard error and therefore an arbitrary t.
    residuals = np.where(np.abs(residuals) <= EQUAL * np.abs(sums).max(axis=0), 0, residuals)
    errors = np.sqrt(clusters / (clusters - 1) * (residuals**2).sum(axis=0)) / n
    columns_of_draws = zip(means, errors, sums.T, _studentised(residuals, counts, seed).T, strict=True)
    for index, (mean, error, sums_of_column, t) in enumerate(columns_of_draws):
        if error == 0:
            continue
        _, freedom = cluster_error(sums_of_column, counts, mean)
        # The upper quantile of t gives the lower end: a mean that is drawn too high must be corrected downwards.
        quantiles = np.nanpercentile(t, [100 * (1 - tail), 100 * tail])
        widened = error * t_quantile(freedom, tail) / t_quantile(np.inf, tail)
        low, high = np.clip(mean - quantiles * widened, *limits)
        narrow = estimates[index].between(low, high, freedom)
        ends = student(mean, float(error), freedom)
        estimates[index] = outlasting_rare_scores(narrow, ends, limits, tail, gate)
    return estimates


def _studentised(residuals: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    """Return t of each draw and column, (draws, k).

    A draw depends only on sums over its clusters, so one matrix product computes all draws.
    """
    clusters, width = residuals.shape
    made = np.concatenate(
        [residuals, residuals**2, residuals * counts[:, None], counts[:, None], counts[:, None] ** 2], axis=1
    )
    made = summable(made, clusters)
    parts = []
    for weights in _draw(clusters, DRAWS, seed):
        summed = weights @ made
        first, squares, mixed = (summed[:, width * index : width * (index + 1)] for index in range(3))
        n, n_squared = summed[:, -2:-1], summed[:, -1:]
        shift = first / n
        # sum (r - shift n_c)^2, expanded; values below the rounding error of its terms become NaN
        spread = squares - 2 * shift * mixed + shift**2 * n_squared
        spread = np.where(spread <= 1e-9 * squares, np.nan, spread)
        parts.append(shift / (np.sqrt(clusters / (clusters - 1) * spread) / n))
    return np.concatenate(parts)


def _draw(clusters: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """Yield blocks of counts (draws, clusters): how often each draw with replacement contains each cluster."""
    block = max(1, INDICES_AT_ONCE // clusters)
    for start in range(0, draws, block):
        count = min(block, draws - start)
        bits = random_bits(seed_of(seed, "bootstrap", clusters, start), count * clusters)
        drawn = (bits % np.uint64(clusters)).astype(np.intp).reshape(count, clusters)
        yield np.stack([np.bincount(indices, minlength=clusters) for indices in drawn]).astype(float)


def cluster_bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray],
    codes: np.ndarray,
    seed: int = 0,
    draws: int = DRAWS,
    tail: float = TAIL,
) -> Estimate:
    """Return a statistic of the samples, with its percentile bootstrap interval over clusters.

    Draws vary less than samples, so the percentiles of the expanded interval are used (Hesterberg, 2015). The lower one
    is the normal probability below -sqrt(C / (C - 1)) t(.975, G - 1) for C clusters and G effective clusters; the upper
    one is its complement.

    Args:
        statistic: Function that maps weights (draws, n) to numbers (draws,). A weight is the number of times that a
            draw contains a sample. Draws with NaN are ignored.
        codes: Cluster (n,) of each sample.
        seed: Seed of the draws.
        draws: Number of draws.
        tail: As in `interval`.
    """
    if len(codes) == 0:
        return NOTHING
    estimate = Estimate.alone(float(statistic(np.ones((1, len(codes))))[0]), np.bincount(codes))
    clusters, effective = estimate.clusters, estimate.effective
    if effective < INTERVAL_FROM:
        return estimate
    values = drawn_statistics(statistic, codes, seed, draws)
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return estimate
    expanded = special.ndtr(-np.sqrt(clusters / (clusters - 1)) * t_quantile(effective - 1, tail))
    low, high = np.percentile(values, [100 * expanded, 100 * (1 - expanded)])
    return estimate.between(low, high, effective - 1)


def drawn_statistics(
    statistic: Callable[[np.ndarray], np.ndarray], codes: np.ndarray, seed: int = 0, draws: int = DRAWS
) -> np.ndarray:
    """Return the values (draws, ...) of `statistic` for bootstrap resamples of the clusters.

    The statistic receives the weights (draws, n) of the samples.
    """
    n, clusters = len(codes), int(codes.max()) + 1
    blocks = (block for weights in _draw(clusters, draws, seed) for block in np.array_split(weights, -(-n // clusters)))
    return np.concatenate([statistic(block[:, codes]) for block in blocks])


def aggregate_interval(
    aggregate: Aggregate, columns: np.ndarray, codes: np.ndarray, seed: int = 0, tail: float = TAIL
) -> Estimate:
    """Return an aggregate of the means of columns (n, P), with an interval from resampled clusters.

    A value is NaN if the sample lacks the part. Samples that lack all parts are ignored.
    """
    present = np.isfinite(columns)
    kept_rows = present.any(axis=1)
    columns, present, codes = (
        columns[kept_rows],
        present[kept_rows],
        np.unique(codes[kept_rows], return_inverse=True)[1],
    )
    kept = np.where(present, columns, 0)

    def weighted(weights: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):  # einsum: equal bits for any number of threads
            means = np.einsum("dn,np->dp", weights, kept) / np.einsum("dn,np->dp", weights, present)
        return aggregate(means)

    return cluster_bootstrap(weighted, codes, seed, tail=tail)


def aggregate_difference(
    aggregate: Aggregate, first: np.ndarray, second: np.ndarray, codes: np.ndarray, seed: int = 0, tail: float = TAIL
) -> Estimate:
    """Return the difference between the aggregates of two sets of columns (n, P), with a bootstrap interval.

    Both aggregates are computed over the samples that occur in both sets.
    """
    both = np.isfinite(first).any(axis=1) & np.isfinite(second).any(axis=1)
    columns, parts = np.concatenate([first, second], axis=1)[both], first.shape[1]

    def minus(means: np.ndarray) -> np.ndarray:
        return aggregate(means[:, :parts]) - aggregate(means[:, parts:])

    return aggregate_interval(minus, columns, codes[both], seed, tail)
