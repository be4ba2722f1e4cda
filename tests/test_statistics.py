import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saliency_bench.seeds import random_bits, seed_of
from saliency_bench.statistics import bootstrap


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
