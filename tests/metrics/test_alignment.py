"""Compare metrics of maps and masks with loops over pixels, scikit-learn, Quantus and torchmetrics."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from saliency_bench import load_metric, registry
from saliency_bench.maps import normalise, tie_breaker

VALUES = st.integers(-8, 8).map(float) | st.sampled_from([-0.0, 0.5, 1e-40, 1e-5])
MAPS, MASKS = arrays(np.float32, (3, 4, 5), elements=VALUES), arrays(bool, (3, 4, 5))
THRESHOLDS = [0.0, 0.1, 0.3, 0.5, 0.9, 1.0, "mask_area"]


def average_precision(one, mask):
    pixels = list(zip(one.flat, mask.flat, strict=True))
    inside, total, before = sum(mask.flat), Fraction(0), Fraction(0)
    for threshold in sorted({float(value) for value, _ in pixels}, reverse=True):
        taken = [bool(hit) for value, hit in pixels if value >= threshold]
        recall = Fraction(sum(taken), int(inside))
        total += (recall - before) * Fraction(sum(taken), len(taken))
        before = recall
    return float(total)


def energy(one, mask):
    whole = inside = 0.0
    for pixel in range(one.size):
        value = max(float(one.flat[pixel]), 0.0)
        whole += value
        inside += value if mask.flat[pixel] else 0.0
    return inside / whole if whole >= 1e-7 else 0.0


def iosr(one, mask, threshold):
    pixels = range(one.size)
    highest = max(float(one.flat[pixel]) for pixel in pixels)
    salient = [pixel for pixel in pixels if highest > 0 and float(one.flat[pixel]) > threshold * highest]
    return sum(bool(mask.flat[pixel]) for pixel in salient) / len(salient) if salient else 0.0


def of_threshold(one, mask, threshold, normalise):
    """Return the numbers of pixels that are (salient and inside, salient, inside)."""
    low, high = one.min(), one.max()
    place = {int(pixel): position for position, pixel in enumerate(tie_breaker(*one.shape))}
    order = sorted(range(one.size), key=lambda pixel: (-one.flat[pixel], place[pixel]))
    shared = salient = area = 0
    for pixel in range(one.size):
        inside, value = bool(mask.flat[pixel]), one.flat[pixel]
        if normalise:
            value = np.float32(0) if high == low else (value - low) / (high - low)
        by_area = threshold == "mask_area"
        marked = bool(pixel in order[: int(mask.sum())] if by_area else value > np.float32(threshold))
        shared, salient, area = shared + (marked and inside), salient + marked, area + inside
    return shared, salient, area


def miou(*sample, **options):
    shared, salient, area = of_threshold(*sample, **options)
    return shared / (salient + area - shared)


def precision(*sample, **options):
    shared, salient, _ = of_threshold(*sample, **options)
    return shared / salient if salient else 0.0


def recall(*sample, **options):
    shared, _, area = of_threshold(*sample, **options)
    return shared / area


ALL = {"threshold": st.sampled_from(THRESHOLDS), "normalise": st.booleans()}
LITERALS = {
    "saliency_average_precision": (average_precision, {}),
    "saliency_energy": (energy, {}),
    "saliency_iosr": (iosr, {"threshold": st.sampled_from([0, 0.25, 0.3, 0.5, 0.99])}),
    "saliency_miou": (miou, ALL),
    "saliency_precision": (precision, ALL),
    "saliency_recall": (recall, ALL),
}


def module_of(name):
    return registry.load("metrics", name, "score")


@pytest.mark.parametrize("name", LITERALS)
@given(MAPS, MASKS, st.data())
def test_scores_match_literal_loop(name, maps, masks, data):
    literal, known = LITERALS[name]
    options = {key: data.draw(values) for key, values in known.items()}
    scores = getattr(module_of(name), name)(maps, masks, **options)
    expected = [literal(one, mask, **options) if mask.any() else np.nan for one, mask in zip(maps, masks, strict=True)]
    np.testing.assert_allclose(scores, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.slow
@given(MAPS, MASKS)
def test_average_precision_matches_scikit_learn(maps, masks):
    theirs = pytest.importorskip("sklearn.metrics").average_precision_score
    masks[:, 0, 0] = True
    rng = np.random.default_rng(0)
    heavy = rng.standard_t(3, (2, 64, 64)).astype(np.float32), rng.random((2, 64, 64)) > 0.8  # like gradients
    for values, inside in ((maps, masks), heavy):
        expected = [theirs(mask.ravel(), one.ravel()) for one, mask in zip(values, inside, strict=True)]
        np.testing.assert_allclose(load_metric("saliency_average_precision")(values, inside), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["saliency_miou", "saliency_precision", "saliency_recall"])
@given(MAPS, MASKS, st.booleans())
def test_threshold_sweep_matches_single_scores(name, maps, masks, normalised):
    module = module_of(name)
    swept = getattr(module, f"{name}_sweep")(maps, masks, THRESHOLDS, normalise=normalised)
    assert getattr(module, f"{name}_sweep")(maps, masks, []).shape == (3, 0)
    for column, threshold in zip(swept.T, THRESHOLDS, strict=True):
        expected = getattr(module, name)(maps, masks, threshold=threshold, normalise=normalised)
        np.testing.assert_array_equal(column, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "peer", "options"), [
    ("saliency_energy", "RelevanceMassAccuracy", {}),
    ("saliency_iosr", "TopKIntersection", {}),  # for the number of salient pixels
    ("saliency_precision", "RelevanceRankAccuracy", {"threshold": "mask_area"}),
    ("saliency_recall", "RelevanceRankAccuracy", {"threshold": "mask_area"}),
])  # fmt: skip
def test_scores_match_quantus(name, peer, options):
    quantus, rng = pytest.importorskip("quantus"), np.random.default_rng(0)
    maps, masks = rng.permutation(5 * 72).reshape(5, 8, 9).astype(np.float32) + 1, rng.random((5, 8, 9)) > 0.6
    for one, mask in zip(maps, masks, strict=True):
        own = {"k": int((one > 0.5 * one.max()).sum())} if peer == "TopKIntersection" else {"normalise": False}
        metric = getattr(quantus, peer)(disable_warnings=True, return_aggregate=False, abs=False, **own)
        theirs = metric(model=None, x_batch=one[None, None], y_batch=np.zeros(1, int), a_batch=one[None, None],
                        s_batch=mask[None, None])  # fmt: skip
        assert load_metric(name, **options)(one[None], mask[None])[0] == pytest.approx(theirs[0], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "peer"), [("miou", "binary_jaccard_index"), ("precision", "binary_precision"),
                                            ("recall", "binary_recall")])  # fmt: skip
def test_scores_match_torchmetrics(name, peer):
    binary = getattr(pytest.importorskip("torchmetrics.functional.classification"), peer)
    rng = np.random.default_rng(0)
    maps, masks = rng.normal(size=(6, 8, 9)).astype(np.float32), rng.random((6, 8, 9)) > 0.6
    for threshold in (0.2, 0.5, 0.8):
        theirs = [binary(torch.from_numpy(one), torch.from_numpy(mask).int(), threshold=threshold).item()
                  for one, mask in zip(normalise(maps), masks, strict=True)]  # fmt: skip
        ours = load_metric(f"saliency_{name}", threshold=threshold)(maps, masks)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("name", ["saliency_energy", "saliency_iosr"])
def test_maps_without_positive_values_score_0_and_are_marked(name):
    tiny = np.full((2, 2), 1e-9) if name == "saliency_energy" else -np.eye(2)
    maps = np.stack([np.zeros((2, 2)), -np.ones((2, 2)), tiny, np.array([[1, -1], [-1, 1]])])
    masks = np.zeros((4, 2, 2), bool)
    masks[:, 0, 0] = True
    assert load_metric(name)(maps, masks).tolist() == [0, 0, 0, 0.5]
    assert module_of(name).marked(maps, masks).tolist() == [True, True, True, False]
