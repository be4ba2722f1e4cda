import math

import numpy as np
import pytest
import torch

from saliency_bench.utils.seeds import normal, normals, random_bits, seed_of, uniform


def splitmix64(seed, count):
    """Implement the published algorithm with Python integers."""
    out, word = [], (1 << 64) - 1
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & word
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        out.append(z ^ (z >> 31))
    return out


@pytest.mark.parametrize("seed", [0, 1234567, 2**63 - 1])
def test_random_bits_match_splitmix64(seed):
    assert random_bits(seed, 20).tolist() == splitmix64(seed, 20)


def test_first_bits_match_published_value():
    # The first value of the test vector of the reference implementation.
    assert int(random_bits(1234567, 1)[0]) == 6457827717110365317


def test_uniform_is_in_range_and_even():
    values = uniform(3, 100_000)
    assert values.dtype == np.float32
    assert 0 <= values.min() < values.max() < 1
    assert np.histogram(values, bins=10, range=(0, 1))[0].min() > 9_500


def test_seed_of_distinguishes_its_parts():
    assert seed_of(1, "a") == seed_of(1, "a")
    assert len({seed_of(1, "a"), seed_of(1, "b"), seed_of("1a"), seed_of(1, "a", ""), seed_of(2, "a")}) == 5
    assert 0 <= seed_of("x") < 2**63


def test_normal_matches_box_muller():
    bits = splitmix64(5, 4)
    radii = [(-2 * math.log(((word >> 32) + 0.5) / 2**32)) ** 0.5 for word in bits]
    angles = [2 * math.pi * (word & 0xFFFFFFFF) / 2**32 for word in bits]
    expected = [r * math.cos(a) for r, a in zip(radii, angles, strict=True)]
    expected += [r * math.sin(a) for r, a in zip(radii, angles, strict=True)]
    np.testing.assert_allclose(normal(5, 8), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(normal(5, 7), normal(5, 8)[:7])


@pytest.mark.parametrize("count", [1, 2, 7, 1001])
def test_torch_normals_match_numpy(count):
    seeds = [0, 1, 5, 2**62 + 12345, 2**63 - 1]
    drawn = normals(torch.tensor(seeds), count)
    assert drawn.dtype == torch.float32
    for own, seed in zip(drawn, seeds, strict=True):
        np.testing.assert_allclose(own, normal(seed, count), rtol=1e-5, atol=1e-6)
