"""saliency_precision and saliency_recall against loops over pixels, torchmetrics and Quantus."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from saliency_bench.maps import tie_breaker
from saliency_bench.metrics.saliency_precision.score import saliency_precision, saliency_precision_sweep
from saliency_bench.metrics.saliency_recall.score import saliency_recall, saliency_recall_sweep

MAPS = arrays(np.float32, (3, 4, 5), elements=st.integers(-8, 8).map(float))
MASKS = arrays(bool, (3, 4, 5))

both = pytest.mark.parametrize("score", [saliency_precision, saliency_recall])


def literal(score, one, mask, threshold, normalised):
    low, high = one.min(), one.max()
    place = {int(pixel): position for position, pixel in enumerate(tie_breaker(*one.shape))}
    order = sorted(range(one.size), key=lambda pixel: (-one.flat[pixel], place[pixel]))
    shared = salient = area = 0
    for pixel in range(one.size):
        value = one.flat[pixel]
        if normalised:
            value = np.float32(0) if high == low else (value - low) / (high - low)
        by_area = threshold == "mask_area"
        marked = pixel in order[: int(mask.sum())] if by_area else value > np.float32(threshold)
        shared += bool(marked and mask.flat[pixel])
        salient += bool(marked)
        area += bool(mask.flat[pixel])
    whole = salient if score is saliency_precision else area
    return np.nan if not mask.any() else shared / whole if whole else 0.0


@both
@given(MAPS, MASKS, st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, "mask_area"]), st.booleans())
def test_every_score_by_loops(score, maps, masks, threshold, normalised):
    scores = score(maps, masks, threshold=threshold, normalise=normalised)
    expected = [literal(score, *sample, threshold, normalised) for sample in zip(maps, masks, strict=True)]
    np.testing.assert_array_equal(scores, expected)


@both
def test_at_the_mask_s_area_is_quantus_relevance_rank_accuracy(score):
    quantus = pytest.importorskip("quantus")
    rng = np.random.default_rng(1)
    maps, masks = rng.permutation(6 * 72).reshape(6, 8, 9).astype(np.float32), rng.random((6, 8, 9)) > 0.6
    metric = quantus.RelevanceRankAccuracy(disable_warnings=True, return_aggregate=False, abs=False, normalise=False)
    theirs = metric(model=None, x_batch=maps[:, None], y_batch=np.zeros(6, int), a_batch=maps[:, None],
                    s_batch=masks[:, None])  # fmt: skip
    np.testing.assert_allclose(score(maps, masks, threshold="mask_area"), theirs)


@pytest.mark.parametrize(
    ("score", "sweep"),
    [(saliency_precision, saliency_precision_sweep), (saliency_recall, saliency_recall_sweep)],
)
@given(MAPS, MASKS)
def test_sweep_is_one_score_after_the_other(score, sweep, maps, masks):
    thresholds = [0.0, 0.25, "mask_area", 1.0]
    swept = sweep(maps, masks, thresholds)
    for column, threshold in zip(swept.T, thresholds, strict=True):
        np.testing.assert_array_equal(column, score(maps, masks, threshold=threshold))


@both
def test_flat_maps_mark_nothing(score):
    masks = np.zeros((2, 3, 3), bool)
    masks[0, 0] = True
    np.testing.assert_array_equal(score(np.ones((2, 3, 3)), masks), [0, np.nan])


@both
@pytest.mark.parametrize("threshold", [-0.1, 1.5, "half", None, True])
def test_thresholds_out_of_range_are_named(score, threshold):
    with pytest.raises(ValueError, match="threshold"):
        score(np.ones((1, 2, 2)), np.ones((1, 2, 2)), threshold=threshold)
