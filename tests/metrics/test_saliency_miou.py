"""saliency_miou against loops over pixels, by hand, and its properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from saliency_bench.maps import tie_breaker
from saliency_bench.metrics.saliency_miou.score import saliency_miou, saliency_miou_sweep

MAPS = arrays(np.float32, (3, 4, 5), elements=st.integers(-8, 8).map(float))
MASKS = arrays(bool, (3, 4, 5))
BY_HAND_MAP = np.array([[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]], dtype=np.float32)
BY_HAND_MASK = np.array([[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]], dtype=bool)


def with_both(masks):
    """Neither empty nor full."""
    masks[:, 0, 0], masks[:, -1, -1] = True, False
    return masks


def literal_miou(one, mask, threshold, normalise):
    low, high = one.min(), one.max()
    place = {int(pixel): position for position, pixel in enumerate(tie_breaker(*one.shape))}
    order = sorted(range(one.size), key=lambda pixel: (-one.flat[pixel], place[pixel]))
    shared = either = area = 0
    for pixel in range(one.size):
        inside = bool(mask.flat[pixel])
        value = one.flat[pixel]
        if normalise:
            value = np.float32(0) if high == low else (value - low) / (high - low)
        by_area = threshold == "mask_area"
        salient = pixel in order[: int(mask.sum())] if by_area else value > np.float32(threshold)
        shared += salient and inside
        either += salient or inside
        area += inside
    return shared / either if area else np.nan


@given(MAPS, MASKS, st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0, "mask_area"]), st.booleans())
def test_every_score_by_loops(maps, masks, threshold, normalise):
    scores = saliency_miou(maps, masks, threshold=threshold, normalise=normalise)
    expected = [literal_miou(*sample, threshold, normalise) for sample in zip(maps, masks, strict=True)]
    np.testing.assert_array_equal(scores, expected)


def test_by_hand():
    assert saliency_miou(BY_HAND_MAP, BY_HAND_MASK).tolist() == [2 / 5]
    assert saliency_miou(BY_HAND_MAP, BY_HAND_MASK, threshold="mask_area").tolist() == [3 / 5]
    # above 0: all five positive pixels and the 2: 4 inside, together 5
    assert saliency_miou(BY_HAND_MAP, BY_HAND_MASK, threshold=0, normalise=False).tolist() == [4 / 5]


def test_published_reading_differs_on_signed_maps():
    maps, masks = np.array([[[-2.0, -1.0, 1.0, 2.0]]]), np.array([[[0, 0, 1, 1]]])
    assert saliency_miou(maps, masks, threshold=0, normalise=False).tolist() == [1]
    assert saliency_miou(maps, masks, threshold=0).tolist() == [2 / 3]


@given(MAPS, MASKS, st.integers(-4, 4), st.integers(-64, 64))
def test_positive_affine_change_alters_nothing(maps, masks, exponent, shift):
    # Powers of two and small whole numbers are exact in float32, so this holds to the bit.
    changed = maps * np.float32(2.0**exponent) + np.float32(shift)
    for threshold in (0.5, "mask_area"):
        before = saliency_miou(maps, masks, threshold=threshold)
        np.testing.assert_array_equal(saliency_miou(changed, masks, threshold=threshold), before)


@given(MAPS, MASKS)
def test_strictly_increasing_change_alters_nothing_at_the_mask_s_area(maps, masks):
    for change in (lambda x: np.exp(x / 2), lambda x: x**3, np.arctan):
        changed = change(maps.astype(np.float64)).astype(np.float32)
        before = saliency_miou(maps, masks, threshold="mask_area")
        np.testing.assert_array_equal(saliency_miou(changed, masks, threshold="mask_area"), before)


@given(MASKS.map(with_both))
def test_the_mask_is_the_best_map_and_its_inverse_the_worst(masks):
    for options in ({}, {"threshold": 0.1}, {"normalise": False}, {"threshold": "mask_area"}):
        assert (saliency_miou(masks, masks, **options) == 1).all()
    assert (saliency_miou(~masks, masks) == 0).all()


def test_flat_map_scores_nothing_and_an_empty_mask_is_not_a_number():
    ones = np.ones((2, 4, 4))
    mask = np.zeros((2, 4, 4))
    mask[0, 0] = 1
    np.testing.assert_array_equal(saliency_miou(ones, mask), [0, np.nan])
    np.testing.assert_array_equal(np.isnan(saliency_miou(ones, mask, threshold="mask_area")), [False, True])


@given(MAPS, MASKS, st.booleans())
def test_sweep_is_one_score_after_the_other(maps, masks, normalise):
    thresholds = [0.0, 0.25, "mask_area", 0.5, 1.0]
    swept = saliency_miou_sweep(maps, masks, thresholds, normalise=normalise)
    assert swept.shape == (3, 5)
    for column, threshold in zip(swept.T, thresholds, strict=True):
        np.testing.assert_array_equal(column, saliency_miou(maps, masks, threshold=threshold, normalise=normalise))


def test_sweep_over_nothing():
    assert saliency_miou_sweep(np.ones((2, 3, 3)), np.ones((2, 3, 3)), []).shape == (2, 0)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, "half", None, True, [0.5], np.nan])
def test_thresholds_out_of_range_are_named(threshold):
    with pytest.raises(ValueError, match="threshold"):
        saliency_miou(BY_HAND_MAP, BY_HAND_MASK, threshold=threshold)
