import numpy as np
import pytest

from saliency_bench.seeds import random_bits, seed_of, uniform


def splitmix64(seed, count):
    """The published algorithm with Python's own integers."""
    out, word = [], (1 << 64) - 1
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & word
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        out.append(z ^ (z >> 31))
    return out


@pytest.mark.parametrize("seed", [0, 1234567, 2**63 - 1])
def test_bits_are_splitmix64(seed):
    assert random_bits(seed, 20).tolist() == splitmix64(seed, 20)


def test_first_output_published_for_seed_1234567():
    # The first value of the reference implementation's own test vector.
    assert int(random_bits(1234567, 1)[0]) == 6457827717110365317


def test_uniform_is_in_range_and_even():
    values = uniform(3, 100_000)
    assert values.dtype == np.float32
    assert 0 <= values.min() < values.max() < 1
    assert np.histogram(values, bins=10, range=(0, 1))[0].min() > 9_500


def test_seeds_tell_their_parts_apart():
    assert seed_of(1, "a") == seed_of(1, "a")
    assert len({seed_of(1, "a"), seed_of(1, "b"), seed_of("1a"), seed_of(1, "a", ""), seed_of(2, "a")}) == 5
    assert 0 <= seed_of("x") < 2**63
