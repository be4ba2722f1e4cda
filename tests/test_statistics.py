import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saliency_bench.results.statistics import bootstrap, contrasts, holm, mean_intervals, ranks, sign_flips
from saliency_bench.utils.seeds import random_bits, seed_of


def test_agrees_with_a_slow_second_writing():
    values = np.array([0.1, 0.9, 0.4, 0.4, 0.7])
    bits = random_bits(seed_of(3, "bootstrap", 5, 0), 50 * 5).reshape(50, 5)
    means = sorted(sum(values[int(bit) % 5] for bit in row) / 5 for row in bits)
    value, low, high = bootstrap(values, draws=50, seed=3)
    assert value == pytest.approx(0.5)
    assert low == pytest.approx(np.percentile(means, 2.5))
    assert high == pytest.approx(np.percentile(means, 97.5))


def test_interval_of_a_mean_is_that_of_the_normal_law():
    values = np.random.default_rng(0).normal(size=1000)
    value, low, high = bootstrap(values)
    half = 1.96 * values.std() / 1000**0.5
    assert (value - low, high - value) == pytest.approx((half, half), rel=0.1)


def test_another_aggregate_is_computed_in_every_draw():
    rows = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 1.0]])
    value, low, high = bootstrap(rows, aggregate=lambda sample: sample[:, 0].sum() / sample[:, 1].sum(), draws=200)
    assert value == pytest.approx(9 / 7)
    assert 0.5 <= low < value < high <= 5


def test_equal_n_and_seed_draw_equal_rows_so_a_constant_difference_stays_constant():
    values = np.random.default_rng(1).random(40)
    _, low, high = bootstrap(values)
    _, low_shifted, high_shifted = bootstrap(values + 1)
    assert (low_shifted - low, high_shifted - high) == pytest.approx((1, 1))


def test_nothing_and_one():
    assert np.isnan(bootstrap(np.array([]))).all()
    value, low, high = bootstrap(np.array([0.3]))
    assert value == 0.3
    assert np.isnan([low, high]).all()


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_interval_lies_within_the_values(values):
    _, low, high = bootstrap(np.array(values), draws=50)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def literal_sign_flips(differences):
    """All 2^n patterns, one by one."""
    observed = abs(math.fsum(differences))
    sums = [
        abs(math.fsum(sign * one for sign, one in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return sum(total >= observed - 1e-9 for total in sums) / len(sums)


@given(st.lists(st.integers(-4, 4).map(lambda x: x / 8), min_size=1, max_size=7))
def test_sign_flips_of_few_pairs_by_all_patterns(differences):
    assert sign_flips(np.array(differences)[:, None])[0] == pytest.approx(literal_sign_flips(differences))


def test_sign_flips_are_scipy_s_paired_permutation_test():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    differences = rng.normal(0.3, 1, (10, 3))
    theirs = [stats.permutation_test((column,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
              for column in differences.T]  # fmt: skip
    assert sign_flips(differences) == pytest.approx(theirs)


def test_sign_flips_of_many_pairs_are_near_the_t_test_whatever_stands_beside_them():
    stats = pytest.importorskip("scipy.stats")
    differences = np.random.default_rng(1).normal([0, 0.1, 0.2, 1], 1, (200, 4))
    p = sign_flips(differences)
    assert p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.02)
    assert p[3] == 1 / 10000
    assert sign_flips(differences[:, [1]])[0] == p[1]


def test_the_reported_mean_decides_where_wilcoxon_contradicts_it():
    """Slightly better on most samples, far worse on a few: better by ranks, worse in the mean, not significant."""
    wilcoxon = pytest.importorskip("scipy.stats").wilcoxon
    differences = np.r_[np.linspace(0.01, 0.02, 40), np.full(4, -0.5)]
    assert wilcoxon(differences, alternative="greater").pvalue < 0.001
    columns = np.stack([differences, np.zeros(44)], axis=1)
    (found,) = contrasts(columns)
    assert found.difference < 0
    assert found.p_holm > 0.05
    assert ranks(columns, [found], higher_is_better=True) == [1, 1]
    (found,) = contrasts(np.stack([differences - 0.1, np.zeros(44)], axis=1))
    assert ranks(columns, [found], higher_is_better=True) == [2, 1]


def test_equal_columns_are_not_significantly_different():
    assert sign_flips(np.zeros((3, 1)))[0] == sign_flips(np.zeros((50, 1)))[0] == 1


def test_holm_by_hand():
    """Sorted: 5 x 0.01, 4 x 0.02, 3 x 0.03, then 2 x 0.04 and 0.05, which may not fall below the one before."""
    assert holm(np.array([0.03, 0.01, 0.05, 0.02, 0.04])) == pytest.approx([0.09, 0.05, 0.09, 0.08, 0.09])
    assert holm(np.array([])).tolist() == []
    assert holm(np.array([0.6, 0.9])).tolist() == [1, 1]


def test_mean_intervals_are_those_of_the_bootstrap():
    columns = np.random.default_rng(2).normal(size=(30, 2))
    low, high = mean_intervals(columns, seed=5)
    for place in range(2):
        assert (low[place], high[place]) == pytest.approx(bootstrap(columns[:, place], seed=5)[1:])


def test_ties_share_a_rank():
    """a and b differ by noise, c is worse than both, d has nothing, e was scored on half of the samples."""
    rng = np.random.default_rng(3)
    a = rng.normal(size=60)
    columns = np.stack([a - 1, a, a + 0.01 * rng.normal(size=60), np.full(60, np.nan), a + 1], axis=1)
    columns[:30, 4] = np.nan
    compared = contrasts(columns)
    assert [(one.first, one.second, one.n) for one in compared] == [
        (0, 1, 60), (0, 2, 60), (0, 4, 30), (1, 2, 60), (1, 4, 30), (2, 4, 30),
    ]  # fmt: skip
    assert ranks(columns, compared, higher_is_better=True) == [4, 2, 2, None, 1]
    assert ranks(columns, compared, higher_is_better=False) == [1, 2, 2, None, 4]
    first = compared[0]
    assert first.difference == pytest.approx(-1)
    assert (first.low, first.high) == pytest.approx((-1, -1))
    for one in compared:
        assert one.p <= one.p_holm <= 6 * one.p


def test_two_samples_tell_nothing_apart():
    columns = np.array([[0.0, 1.0], [0.0, 1.0]])
    assert contrasts(columns)[0].p == 0.5
    assert ranks(columns, contrasts(columns), higher_is_better=True) == [1, 1]
