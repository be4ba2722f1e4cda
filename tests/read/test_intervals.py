"""Tests of intervals against hand-computed cases, SciPy and slow second implementations, and of invariances."""

import math

import numpy as np
import pytest
from bootstrap import draws, expanded
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy import stats

from saliency_bench.read.statistics.clusters import Matched, cluster_codes, effective_clusters, summable
from saliency_bench.read.statistics.intervals import (
    aggregate_difference,
    aggregate_interval,
    bootstrap_t,
    bounded,
    check_range,
    cluster_bootstrap,
    cluster_error,
    difference,
    interval,
    intervals,
    is_alike,
    paired_difference,
)

UNIT = (0.0, 1.0)
POSITIVE = (0.0, math.inf)


@pytest.mark.parametrize(("hits", "n"), [(0, 12), (1, 20), (10, 20), (57, 60), (60, 60)])
def test_share_has_wilson_interval_of_scipy(hits, n):
    theirs = stats.binomtest(hits, n).proportion_ci(method="wilson")
    own = interval(np.array([1.0] * hits + [0.0] * (n - hits)), np.arange(n), UNIT)
    assert own[:7] == pytest.approx((hits / n, theirs.low, theirs.high, n, n, n, math.inf))


def literal_ends(values, clusters, low, high, tail=0.025, gate=False):
    """Compute Wilson's ends, widened for rare scores, step by step as in the definition."""
    u = [(x - low) / (high - low) for x in values]
    n, count, sizes = len(u), len(set(clusters)), [clusters.count(c) for c in set(clusters)]
    m = sum(u) / n
    se, freedom = literal_error(u, clusters)
    n_e = count if se < 1e-15 else m * (1 - m) / se**2
    hits = set(u) <= {0, 1}
    if count == n:
        v = sum((x - m) ** 2 for x in u) / (n - 1)
        n_e = n / (1 if v < 1e-30 else min(1, v / (m * (1 - m))))

    def wilson(tail, sign):
        z = sign * (stats.norm if hits and count == n else stats.t(freedom)).isf(tail)
        return (m + z**2 / (2 * n_e) + z * np.sqrt(m * (1 - m) / n_e + z**2 / (4 * n_e**2))) / (1 + z**2 / n_e)

    ends = [wilson(tail, sign) for sign in (-1, 1)] if hits else literal_rare(wilson, m, (0, 1), sizes, tail, gate)
    return [low + end * (high - low) for end in ends]


def literal_rare(ends, value, far, sizes, tail=0.025, gate=False):
    """Return the most extreme means over 4,000 possible shares of scores at `far` that the samples may have missed."""
    count = sum(sizes) ** 2 / sum(size**2 for size in sizes)

    def widened(sign, extreme, tails):
        chance = tails * tail
        shares = np.linspace(0, 1 - chance ** (1 / count), 4000)[:-1]
        return sign * max(sign * ((1 - shares) * ends(chance / (1 - shares) ** count, sign) + shares * extreme))

    results = []
    for sign, extreme in zip((-1, 1), far, strict=True):
        end = ends(tail, sign)
        moved = widened(sign, extreme, 1 if gate else min(3, 1.5 + 30 / count))
        if abs(moved - end) > 3 * abs(end - value):
            moved = widened(sign, extreme, 1)
        results.append(sign * max(sign * moved, sign * end))
    return results


def literal_error(values, clusters):
    """Return (standard error, Satterthwaite's degrees of freedom) of the jackknife over clusters."""
    count, mean = len(set(clusters)), sum(values) / len(values)
    moves = []
    for c in set(clusters):
        others = [x for x, d in zip(values, clusters, strict=True) if d != c]
        moves.append((sum(others) / len(others) - mean) ** 2)
    if (total := sum(moves)) < 1e-25:
        return 0.0, count - 1
    concentration = sum(move**2 for move in moves) / total**2 - 1 / count
    return math.sqrt((count - 1) / count * total), min(count - 1, 2 / concentration if concentration > 0 else math.inf)


@pytest.mark.parametrize("limits", [UNIT, (-1.0, 1.0)])
@pytest.mark.parametrize(("n", "size"), [(20, 1), (60, 1), (60, 4), (300, 1)])
@pytest.mark.parametrize("draw", ["beta", "zeros", "yes or no", "near one", "narrow"])
def test_bounded_interval_matches_literal_computation(draw, n, size, limits):
    rng = np.random.default_rng(5)
    x = {"beta": rng.beta(0.5, 2, n), "zeros": rng.beta(2, 2, n) * (rng.random(n) < 0.3),
         "yes or no": (rng.random(n) < 0.9) * 1.0, "near one": rng.beta(8, 1.5, n),
         "narrow": rng.normal(0.75, 0.01, n)}[draw]  # fmt: skip
    codes = np.sort(rng.integers(0, n // size, n)) if size > 1 else np.arange(n)
    codes = np.unique(codes, return_inverse=True)[1]
    for settings_of_gate in ({}, {"tail": 0.00125, "gate": True}):
        own = bounded(x, codes, limits, **settings_of_gate)
        ends = literal_ends(x.tolist(), codes.tolist(), *limits, *settings_of_gate.values())
        assert (own.low, own.high) == pytest.approx(ends, abs=6e-4)
        assert limits[0] <= own.low < own.value < own.high <= limits[1]
        assert own.rare or draw != "narrow"
    if draw == "narrow" and size == 1:  # the interval must allow for a few failures among the next samples
        assert own.low < (1 - 2 / n) * 0.75 + 2 / n * limits[0]


def test_paired_difference_interval_allows_for_rare_failures():
    rng = np.random.default_rng(5)
    for spread, wider in ((0.16, False), (0.02, True)):
        gaps, second = rng.normal(0.05, spread, 60), rng.uniform(0.4, 0.7, 60)
        first = second + gaps
        own = paired_difference(Matched([first, second], np.arange(60), UNIT), 0, 1)
        error, freedom = literal_error(gaps.tolist(), list(range(60)))
        # one of the two has a score at an end of the range, the other its mean score
        far = min(-second.mean(), first.mean() - 1), max(first.mean(), 1 - second.mean())
        law = stats.t(freedom, gaps.mean(), error)
        ends = literal_rare(lambda tail, sign, law=law: (law.ppf if sign < 0 else law.isf)(tail), gaps.mean(), far,
                            [1] * 60)  # fmt: skip
        assert (own.rare, own[1:3]) == (wider, pytest.approx(ends, abs=6e-4))
    missing = np.where(np.arange(60) < 5, np.nan, first)
    assert paired_difference(Matched([missing, second], np.arange(60), UNIT), 0, 1).n == 55
    assert not paired_difference(Matched([first, second], np.arange(60), POSITIVE), 0, 1).rare  # no upper bound
    assert paired_difference(Matched([first, first], np.arange(60), UNIT), 0, 1)[:3] == (0, 0, 0)
    columns = [np.array(scores) for scores in ([0, 1, 1, 0], [0, 0.5, 1, 0.2], [np.nan, 0.5, 1, 1])]
    assert Matched(columns, np.array([0, 0, 1, 1]), UNIT).between == [0, 2, 1]


def test_equivalence_requires_ruling_out_rare_failures():
    """Compute by hand: for equal scores, (1 + .95 .05 / .95)^n reaches 40 at n = 75.6.

    No test can reach a conclusion with fewer than 72 samples, because .95^72 = .025: if one of the two explainers fails
    on 5 % of the samples, 72 samples contain no failure in 2.5 % of the cases.
    """

    def alike(n, gap=0.0, size=1, limits=UNIT, spread=0.0):
        gaps = gap + spread * np.resize([-1.0, 1.0], n)
        return is_alike(Matched([0.5 + gaps, np.full(n, 0.5)], np.arange(n) // size, limits), 0, 1,
                        0.05 * np.ptp(limits))  # fmt: skip

    assert not alike(75)
    assert alike(76)
    assert alike(76, limits=(-1.0, 1.0))
    assert not alike(151, size=2)
    assert alike(152, size=2)
    # with a mean difference of .025, each sample contributes a factor 1 + .95 (.05 - .025) / .95
    need = math.ceil(math.log(40) / math.log(1.025))
    assert [alike(n, 0.025) for n in (need - 1, need)] == [False, True]
    assert not alike(2000, 0.051)
    assert not alike(80, spread=0.3)  # Student's interval is wider than the margin


def test_interval_is_widened_only_towards_finite_bounds():
    values, codes = np.random.default_rng(0).normal(0.75, 0.01, 50), np.arange(50)
    bottom, top = bounded(values, codes, UNIT)[1:3]
    half_open = interval(values, codes, POSITIVE)
    assert half_open.rare
    assert half_open.low == pytest.approx(bottom, abs=1e-4)  # Student's end is close to Wilson's
    assert half_open.high < 0.76 < top
    without_ends = interval(values, codes, (-math.inf, math.inf))
    assert not without_ends.rare
    assert without_ends.low > 0.74


def test_uneven_clusters_match_hand_computation():
    """Ten clusters of one row and two of ten rows have 900 / 210 = 4.3 effective clusters."""
    sizes = [1] * 10 + [10] * 2
    codes = np.repeat(np.arange(12), sizes)
    assert effective_clusters(np.bincount(codes)) == pytest.approx(900 / 210)
    own = bounded(np.arange(30) / 30, codes, UNIT)
    assert (own.n, own.clusters, own.effective) == pytest.approx((30, 12, 900 / 210))
    assert math.isnan(own.low)
    # Omitting a row that is 1 changes the mean of 0.4 by 0.6 / 29, a row that is 0 by 0.4 / 29, and ten rows by 4 or 6
    # / 20.
    ones = [1.0] * 2 + [0.0] * 8 + [1.0] * 10 + [0.0] * 10
    moves = np.array([0.6 / 29] * 2 + [0.4 / 29] * 8 + [6 / 20, 4 / 20])
    error, freedom = cluster_error(np.bincount(codes, ones), np.bincount(codes), 0.4)
    assert error == pytest.approx(math.sqrt(11 / 12 * sum(moves**2)))
    assert freedom == pytest.approx(2 / (sum(moves**4) / sum(moves**2) ** 2 - 1 / 12))
    assert freedom < 5


@pytest.mark.parametrize("size", [1, 3])
def test_equal_scores_have_interval_by_number_of_clusters(size):
    own = bounded(np.full(30, 0.1), np.repeat(np.arange(30 // size), size), UNIT)
    assert own.low < 0.1 < own.high
    assert (own.low, own.high) == pytest.approx(
        literal_ends([0.1] * 30, [i // size for i in range(30)], *UNIT), abs=1e-3
    )


def test_few_clusters_have_value_without_interval():
    for limits in (UNIT, POSITIVE):
        for n in (1, 9):
            own = interval(np.linspace(0, 1, n), np.arange(n), limits)
            assert np.isnan([own.low, own.high]).all()
            assert own.clusters == n
        assert not np.isnan(interval(np.linspace(0, 1, 10), np.arange(10), limits)[:6]).any()
        assert np.isnan(interval(np.full(3, np.nan), np.arange(3), limits)[:3]).all()
    for n in (9, 10):
        own = difference(Matched([np.linspace(0, 1, n), np.zeros(n)], np.arange(n)), 0, 1)
        assert own[0] == pytest.approx(0.5)
        assert np.isnan(own[1:3]).tolist() == [n < 10] * 2
    # unbounded scores that are all equal, and 40 rows of 9 patients, which are nine clusters
    assert np.isnan(interval(np.full(30, 7.1), np.arange(30), POSITIVE)[1:3]).all()
    assert math.isnan(interval(np.linspace(0, 1, 40), np.arange(40) % 9, UNIT).low)
    # one patient with most of the rows reduces the effective number of clusters
    lopsided = np.concatenate([np.arange(12), np.zeros(60, int)])
    assert math.isnan(interval(np.linspace(0, 1, 72), lopsided, UNIT).low)


def test_difference_of_single_samples_matches_scipy_t_interval():
    rng = np.random.default_rng(1)
    columns = rng.random((40, 2))
    columns[3, 0] = columns[7, 1] = np.nan
    own = difference(Matched(list(columns.T), np.arange(40)), 0, 1)
    gaps = (columns[:, 0] - columns[:, 1])[np.isfinite(columns).all(axis=1)]
    kurtosis = 38 * sum((gaps - gaps.mean()) ** 4) / sum((gaps - gaps.mean()) ** 2) ** 2
    freedom = min(37, 2 * 38 / (kurtosis - 1))
    half = stats.t.ppf(0.975, freedom) * stats.sem(gaps)
    assert own[:7] == pytest.approx((gaps.mean(), gaps.mean() - half, gaps.mean() + half, 38, 38, 38, freedom))
    even = difference(Matched([np.tile([0.0, 1.0], 20), np.zeros(40)], np.arange(40)), 0, 1)
    theirs = stats.ttest_1samp(np.tile([0.0, 1.0], 20), 0).confidence_interval()
    assert even[1:3] == pytest.approx((theirs.low, theirs.high))  # no sample dominates the variance


def test_clustered_difference_matches_hand_computation():
    """Test twelve clusters of two samples. D alternates between 0 and 2, so the mean is 0.5 and each residual is 1."""
    first = np.repeat([0.0, 1.0] * 6, 2)
    own = difference(Matched([first, np.zeros(24)], np.repeat(np.arange(12), 2)), 0, 1)
    error = math.sqrt(12 / 11 * 12 / 24**2)
    assert own[:7] == pytest.approx((0.5, 0.5 - 2.200985 * error, 0.5 + 2.200985 * error, 24, 12, 12, 11), abs=1e-6)


def literal_bootstrap_t(values, clusters, seed):
    count = max(clusters) + 1
    groups = [[x for x, d in zip(values, clusters, strict=True) if d == c] for c in range(count)]

    def of(groups):
        n = sum(map(len, groups))
        m = sum(map(sum, groups)) / n
        return m, math.sqrt(count / (count - 1) * sum((sum(g) - m * len(g)) ** 2 for g in groups)) / n

    mean, error = of(groups)
    t = [(m - mean) / se for m, se in (of([groups[cluster] for cluster in row]) for row in draws(count, seed))]
    low, high = np.percentile(t, [2.5, 97.5])
    _, freedom = literal_error(values, clusters)
    error *= stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975)
    return mean, max(0.0, mean - high * error), mean - low * error


@pytest.mark.parametrize("size", [1, 2])
def test_bootstrap_t_matches_literal_computation(size):
    rng = np.random.default_rng(2)
    values, codes = rng.lognormal(0, 1, 24), np.arange(24) // size
    (own,) = bootstrap_t(values[:, None], codes, POSITIVE, seed=4)
    assert own[:3] == pytest.approx(literal_bootstrap_t(values.tolist(), codes.tolist(), 4))
    assert own.high - own.value > own.value - own.low  # the interval reflects the skewness of the scores


def test_intervals_of_columns_match_single_columns():
    rng = np.random.default_rng(3)
    columns = rng.random((40, 4))
    columns[:5, 2] = columns[20:, 3] = np.nan
    for limits in (UNIT, POSITIVE):
        together = intervals(columns, np.arange(40) // 2, limits)
        for own, column in zip(together, columns.T, strict=True):
            assert own == pytest.approx(interval(column, np.arange(40) // 2, limits), nan_ok=True)


def test_aggregate_is_recomputed_in_each_draw():
    rng = np.random.default_rng(6)
    columns = (rng.random((60, 2)) < [0.8, 0.3]) * 1.0
    columns[:4, 0] = np.nan
    codes = np.arange(60) // 3

    def pseudo_f1(means):
        return 2 / (1 / (1 - means[..., 1]) + 1 / means[..., 0])

    own = aggregate_interval(pseudo_f1, columns, codes, seed=1)
    drawn = []
    for row in draws(20, 1):
        rows = np.concatenate([np.flatnonzero(codes == cluster) for cluster in row])
        drawn.append(pseudo_f1(np.nanmean(columns[rows], axis=0)))
    ends = np.percentile(drawn, expanded(20))
    assert own[:3] == pytest.approx((pseudo_f1(np.nanmean(columns, axis=0)), *ends))


def test_aggregate_difference_uses_samples_of_both_sets():
    first, second = np.array([[1], [1], [0], [np.nan], [1]] * 4), np.array([[1.0], [1], [0], [0], [np.nan]] * 4)
    found = aggregate_difference(lambda means: means[..., 0], first, second, np.arange(20))
    assert (found.value, found.n) == (0, 12)


def test_bootstrap_skips_undefined_draws():
    def first_alone(weights):
        return np.where(weights[:, 0] > 0, 1.0, np.nan)

    estimate = cluster_bootstrap(first_alone, np.arange(12))
    assert (*estimate[:3], estimate.freedom) == (1, 1, 1, 11)


def test_out_of_range_score_is_rejected_beyond_rounding():
    refused(r"cell 7 .* 1\.2, .*from 0 to 1", check_range, np.array([0.5, 1.2, np.nan]), UNIT, "cell 7")
    refused(r"-0\.1", check_range, np.array([-0.1, 5]), POSITIVE, "cell 7")
    check_range(np.array([1 + 1e-7, -1e-7, np.nan]), UNIT, "cell 7")
    assert bounded(np.full(20, 1 + 1e-7), np.arange(20), UNIT).high >= 1 + 1e-7


scores = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.7, 1.0]) | st.floats(0, 1), min_size=24, max_size=24)


@settings(max_examples=30, deadline=None)
@given(scores, st.permutations(range(24)), st.sampled_from([1, 2]), st.floats(0.01, 1000), st.floats(-5, 5))
def test_interval_is_invariant_to_order_scale_and_direction(values, order, size, scale, shift):
    values, codes, order = np.array(values), np.arange(24) // size, np.array(order)
    own = bounded(values, codes, UNIT)
    assert bounded(values[order], codes[order], UNIT) == pytest.approx(own, abs=1e-9)
    scaled = bounded(shift + scale * values, codes, (shift, shift + scale))
    assert scaled[:3] == pytest.approx([shift + scale * end for end in own[:3]], rel=1e-6, abs=1e-6)
    turned = bounded(-values, codes, (-1.0, 0.0))
    assert [-turned.value, -turned.high, -turned.low] == pytest.approx(own[:3], abs=1e-9)
    assert own.low <= own.value <= own.high


def test_clusters_follow_names_and_ungrouped_stay_single():
    codes = cluster_codes(["c", "a", "b", "g"], ["p", None, "p", None])
    assert codes.tolist() == [0, 1, 0, 2]
    # an id and a group of the same name are different clusters
    assert cluster_codes(["p", "x"], [None, "p"]).tolist() == [1, 0]
    assert len(cluster_codes([], [])) == 0


@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=40), st.randoms())
def test_summable_columns_add_exactly_in_any_order(values, random):
    rounded = summable(np.array(values)[:, None], len(values))[:, 0]
    assert np.abs(rounded - values).max() <= 1e-10 * max(map(abs, values))
    shuffled = rounded.tolist()
    random.shuffle(shuffled)
    assert sum(shuffled) == math.fsum(rounded) == np.add.reduce(rounded)
