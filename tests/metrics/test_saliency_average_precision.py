"""saliency_average_precision against a loop over thresholds and scikit-learn's."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from saliency_bench.metrics.saliency_average_precision.score import saliency_average_precision

MAPS = arrays(np.float32, (3, 4, 5), elements=st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1e-40, 1e-5, 3.0]))
MASKS = arrays(bool, (3, 4, 5))


def literal_average_precision(one, mask):
    pixels = list(zip(one.flat, mask.flat, strict=True))
    inside = sum(bool(hit) for _, hit in pixels)
    if not inside:
        return np.nan
    total, before = Fraction(0), Fraction(0)
    for threshold in sorted({float(value) for value, _ in pixels}, reverse=True):
        taken = [bool(hit) for value, hit in pixels if value >= threshold]
        recall = Fraction(sum(taken), inside)
        total += (recall - before) * Fraction(sum(taken), len(taken))
        before = recall
    return float(total)


@given(MAPS, MASKS)
def test_every_score_by_loops(maps, masks):
    expected = [literal_average_precision(*sample) for sample in zip(maps, masks, strict=True)]
    np.testing.assert_allclose(saliency_average_precision(maps, masks), expected, rtol=1e-14)


@given(MAPS, MASKS)
def test_is_scikit_learn_s(maps, masks):
    theirs = pytest.importorskip("sklearn.metrics").average_precision_score
    masks[:, 0, 0] = True
    expected = [theirs(mask.ravel(), one.ravel()) for one, mask in zip(maps, masks, strict=True)]
    np.testing.assert_allclose(saliency_average_precision(maps, masks), expected, rtol=1e-12)


def test_is_scikit_learn_s_of_heavy_tails():
    """As gradients have: most values lie close together, and none tie."""
    theirs = pytest.importorskip("sklearn.metrics").average_precision_score
    rng = np.random.default_rng(0)
    maps, masks = rng.standard_t(3, (4, 64, 64)).astype(np.float32), rng.random((4, 64, 64)) > 0.8
    expected = [theirs(mask.ravel(), one.ravel()) for one, mask in zip(maps, masks, strict=True)]
    np.testing.assert_allclose(saliency_average_precision(maps, masks), expected, rtol=1e-12)


def test_an_empty_mask_is_not_a_number_and_a_full_one_is_found_by_anything():
    masks = np.stack([np.zeros((3, 3)), np.ones((3, 3))])
    np.testing.assert_array_equal(saliency_average_precision(np.ones((2, 3, 3)), masks), [np.nan, 1])
