"""saliency_energy against loops over pixels, beside Quantus, and its properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from saliency_bench.metrics.saliency_energy.score import marked, saliency_energy

MAPS = arrays(np.float32, (3, 4, 5), elements=st.integers(-8, 8).map(float))
MASKS = arrays(bool, (3, 4, 5))


def literal_energy(one, mask):
    whole = inside = 0.0
    for pixel in range(one.size):
        value = max(float(one.flat[pixel]), 0.0)
        whole += value
        inside += value if mask.flat[pixel] else 0.0
    if not mask.any():
        return np.nan
    return inside / whole if whole >= 1e-7 else 0.0


@given(MAPS, MASKS)
def test_every_score_by_loops(maps, masks):
    expected = [literal_energy(*sample) for sample in zip(maps, masks, strict=True)]
    np.testing.assert_allclose(saliency_energy(maps, masks), expected, rtol=1e-14)


def test_is_the_relevance_mass_accuracy_of_quantus_for_positive_maps():
    quantus = pytest.importorskip("quantus")
    rng = np.random.default_rng(0)
    for one, mask in zip(rng.random((5, 8, 9)), rng.random((5, 8, 9)) > 0.6, strict=True):
        metric = quantus.RelevanceMassAccuracy(
            disable_warnings=True, return_aggregate=False, abs=False, normalise=False
        )
        theirs = metric(model=None, x_batch=one[None, None], y_batch=np.zeros(1, int), a_batch=one[None, None],
                        s_batch=mask[None, None])  # fmt: skip
        assert saliency_energy(one, mask)[0] == pytest.approx(theirs[0], rel=1e-6)


@given(MAPS, MASKS, st.integers(-10, 60))
def test_positive_scaling_alters_nothing(maps, masks, exponent):
    scaled = maps * np.float32(2.0**exponent)
    np.testing.assert_array_equal(saliency_energy(scaled, masks), saliency_energy(maps, masks))


@given(MAPS, MASKS)
def test_mask_and_its_complement_share_everything(maps, masks):
    both = saliency_energy(maps, masks) + saliency_energy(maps, ~masks)
    defined = ~np.isnan(both)
    np.testing.assert_allclose(both[defined], np.where(marked(maps, masks), 0, 1)[defined], rtol=1e-14)


@given(MASKS, st.floats(0.01, 100))
def test_chance_is_the_masks_share_of_the_image(masks, value):
    share = np.where(masks.any(axis=(1, 2)), masks.mean(axis=(1, 2)), np.nan)
    np.testing.assert_allclose(saliency_energy(np.full(masks.shape, value), masks), share, rtol=1e-12)


def test_without_positive_values_there_is_nothing_to_share():
    maps = np.stack([np.zeros((2, 2)), -np.ones((2, 2)), np.full((2, 2), 1e-9), np.ones((2, 2))])
    masks = np.zeros((4, 2, 2), bool)
    masks[:, 0, 0] = True
    assert saliency_energy(maps, masks).tolist() == [0, 0, 0, 0.25]
    assert marked(maps, masks).tolist() == [True, True, True, False]
