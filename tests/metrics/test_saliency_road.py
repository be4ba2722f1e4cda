"""Compare saliency_road with imputation by one dense system and with Quantus, and test its properties."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.scoring.imputation import NOISE, imputed, slight_noise
from saliency_bench.target_weights import one_hot

H, W, K = 6, 5, 4  # number of pixels in the fixture `slow`
COUNTS = (0, 2, 3, 4, 6, 9, 15, 22, 30)  # counts of 30 pixels at the nine exposures
LABELS = np.eye(K, dtype=bool)[[0, 1, 2]]
KEPT = arrays(bool, (5, 7)).filter(np.any)


def literal(image, kept):
    """Impute (C, H, W) with every pixel as an unknown.

    Kept pixels are fixed, and missing pixels are the mean of their neighbours.
    """
    channels, height, width = image.shape
    matrix, right = np.zeros((height * width,) * 2), np.zeros((height * width, channels))
    for y in range(height):
        for x in range(width):
            row = y * width + x
            matrix[row, row] = 1
            if kept[y, x]:
                right[row] = image[:, y, x]
                continue
            neighbours = {(v, u): 1 / 6 if v == y or u == x else 1 / 12
                          for v in range(max(0, y - 1), min(height, y + 2))
                          for u in range(max(0, x - 1), min(width, x + 2)) if (v, u) != (y, x)}  # fmt: skip
            for (v, u), weight in neighbours.items():
                matrix[row, v * width + u] = -weight / sum(neighbours.values())
    return np.linalg.solve(matrix, right).T.reshape(image.shape)


def impute(image, kept):
    images = imputed(torch.from_numpy(image)[None], torch.from_numpy(kept)[None, None])
    return images[0].numpy()


@pytest.mark.parametrize("share", [0.05, 0.4, 0.9])
def test_imputed_as_by_a_dense_system(share):
    rng = np.random.default_rng(0)
    image, kept = rng.random((3, 8, 11)), rng.random((8, 11)) < share
    kept[3, 4] = True
    np.testing.assert_allclose(impute(image, kept), literal(image, kept), atol=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_without_noise_the_pictures_are_those_of_quantus(share):
    pytest.importorskip("quantus")
    from quantus.functions.perturb_func import noisy_linear_imputation

    rng = np.random.default_rng(1)
    image, kept = rng.random((3, 16, 13)), rng.random((16, 13)) < share
    expected = noisy_linear_imputation(image, np.flatnonzero(~kept), noise=0)
    np.testing.assert_allclose(impute(image, kept), expected, atol=1e-10)


@given(KEPT, st.integers(-3, 3), st.integers(-4, 4))
def test_imputed_lies_between_what_is_kept_and_follows_every_affine_change(kept, factor, shift):
    image = np.random.default_rng(2).random((3, 5, 7))
    filled = impute(image, kept)
    assert (filled[:, kept] == image[:, kept]).all()
    low, high = (end(image[:, kept], axis=1)[:, None, None] for end in (np.min, np.max))
    assert ((low - 1e-12 <= filled) & (filled <= high + 1e-12)).all()
    np.testing.assert_allclose(impute(factor * image + shift, kept), factor * filled + shift, atol=1e-11)
    np.testing.assert_allclose(impute(image[:, ::-1].copy(), kept[::-1].copy()), filled[:, ::-1], atol=1e-12)


def test_the_noise_is_slight_and_the_seed_s():
    images = torch.zeros(2, 3, 40, 40)
    drawn = slight_noise(images, [4, 9])
    assert drawn.flatten(1).std(dim=1).tolist() == pytest.approx([NOISE, NOISE], rel=0.05)
    assert drawn.flatten(1).mean(dim=1).abs().max() < NOISE / 10
    assert torch.equal(slight_noise(images[:1], [9])[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[1])


def picture(slow, i, gone):
    """Return image i with these pixels imputed, plus the noise of its seed. It is black if no pixel is kept."""
    kept = np.ones(H * W, bool)
    kept[list(gone)] = False
    kept, image = kept.reshape(H, W), slow.images[i].double().numpy()
    filled = literal(image, kept) if kept.any() else np.zeros_like(image)
    noise = slight_noise(slow.images[i : i + 1], [i])[0].double().numpy()
    return np.where(kept, image, filled + noise)


@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_accuracy_at_each_exposure_by_loops(slow, order):
    metric = load_metric("saliency_road", order=order)
    scores, parts = metric.with_parts(slow.curves(one_hot([0, 1, 2], K)), LABELS)
    seen = set()
    for i in range(3):
        for j, count in enumerate(COUNTS):
            gone = slow.orders[i][:count] if order == "morf" else slow.orders[i][count:]
            logits = slow.classifier(torch.from_numpy(picture(slow, i, gone)).float()[None])[0]
            assert parts[i, j] == float(logits.argmax() == i)
        seen |= set(parts[i])
        exposures = [float(name) for name in metric.parts(None)]
        assert scores[i] == pytest.approx(np.trapezoid(parts[i], exposures))
    alone = load_metric("saliency_road", order=order, exposure=0.3)(slow.curves(one_hot([0, 1, 2], K)), LABELS)
    assert alone.tolist() == parts[:, 5].tolist()
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize(("order", "same"), [("morf", "saliency_roae"), ("lerf", "saliency_kae")])
def test_is_roae_or_kae_with_that_reference_and_shares_their_pictures(slow, order, same):
    curves = slow.curves(one_hot([0, 1, 2], K))
    road, other = load_metric("saliency_road", order=order), load_metric(same, reference="linear")
    np.testing.assert_array_equal(road(curves, LABELS), other(curves, LABELS))
    assert curves.passes == slow.classifier.pictures == 3 * 9
    assert road.higher_is_better == other.higher_is_better
