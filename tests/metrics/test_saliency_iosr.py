"""saliency_iosr against loops over pixels, beside Quantus, and its properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from saliency_bench.metrics.saliency_iosr.score import marked, saliency_iosr

MAPS = arrays(np.float32, (3, 4, 5), elements=st.integers(-8, 8).map(float))
MASKS = arrays(bool, (3, 4, 5))


def literal_iosr(one, mask, threshold):
    pixels = range(one.size)
    highest = max(float(one.flat[pixel]) for pixel in pixels)
    salient = [pixel for pixel in pixels if highest > 0 and float(one.flat[pixel]) > threshold * highest]
    if not mask.any():
        return np.nan
    return sum(bool(mask.flat[pixel]) for pixel in salient) / len(salient) if salient else 0.0


@given(MAPS, MASKS, st.sampled_from([0, 0.25, 0.3, 0.5, 0.99]))
def test_every_score_by_loops(maps, masks, threshold):
    expected = [literal_iosr(*sample, threshold) for sample in zip(maps, masks, strict=True)]
    np.testing.assert_array_equal(saliency_iosr(maps, masks, threshold=threshold), expected)


def test_is_the_share_of_the_top_pixels_inside_as_quantus_counts_them():
    """Its TopKIntersection takes a number of pixels, here that of the salient ones."""
    quantus = pytest.importorskip("quantus")
    rng = np.random.default_rng(0)
    for one, mask in zip(rng.normal(size=(5, 8, 9)), rng.random((5, 8, 9)) > 0.6, strict=True):
        count = int((one > 0.5 * one.max()).sum())
        metric = quantus.TopKIntersection(k=count, disable_warnings=True, return_aggregate=False, abs=False)
        theirs = metric(model=None, x_batch=one[None, None], y_batch=np.zeros(1, int), a_batch=one[None, None],
                        s_batch=mask[None, None])  # fmt: skip
        assert saliency_iosr(one, mask)[0] == pytest.approx(theirs[0])


@given(MAPS, MASKS, st.integers(-60, 60))
def test_positive_scaling_alters_nothing(maps, masks, exponent):
    scaled = maps * np.float32(2.0**exponent)
    np.testing.assert_array_equal(saliency_iosr(scaled, masks), saliency_iosr(maps, masks))


def test_no_positive_maximum_is_no_salient_area():
    maps = np.stack([np.zeros((2, 2)), -np.ones((2, 2)), -np.eye(2), np.ones((2, 2))])
    masks = np.zeros((4, 2, 2), bool)
    masks[:, 0, 0] = True
    assert saliency_iosr(maps, masks).tolist() == [0, 0, 0, 0.25]
    assert marked(maps, masks).tolist() == [True, True, True, False]


@given(MAPS, MASKS, st.sampled_from([0, 0.5, 0.99]))
def test_all_others_have_a_salient_area(maps, masks, threshold):
    area = saliency_iosr(maps, np.ones_like(masks), threshold=threshold)
    assert marked(maps, masks, threshold=threshold).tolist() == (area == 0).tolist()


@pytest.mark.parametrize("threshold", [-0.1, 1, 1.5, "mask_area", None, True, np.nan])
def test_thresholds_out_of_range_are_named(threshold):
    with pytest.raises(ValueError, match="threshold"):
        saliency_iosr(np.ones((1, 2, 2)), np.ones((1, 2, 2)), threshold=threshold)
