"""Test saliency_insertion by hand, against a loop over the curve, and with a score that is a sum over pixels."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.scoring.perturbation import Curves, blurred
from saliency_bench.compute.targets import contrast
from saliency_bench.data.geometry import enlarge
from saliency_bench.metrics.saliency_insertion.score import saliency_insertion
from saliency_bench.target_weights import one_hot

SIZE = 4


class Additive(nn.Module):
    """Network in which p of class 1 is a weighted sum over the pixels, with weights (H, W) of sum 1."""

    def __init__(self, weights, mean=0.0):
        super().__init__()
        self.register_buffer("mean", torch.full((1, 3, 1, 1), mean))
        self.register_buffer("std", torch.ones(1, 3, 1, 1))
        self.register_buffer("weights", torch.as_tensor(weights, dtype=torch.float64))

    def forward(self, images):
        p = (images.double().mean(dim=1) * self.weights).sum(dim=(1, 2)).clamp(1e-12, 1 - 1e-12)
        return torch.stack([torch.log1p(-p), torch.log(p)], dim=1)


def score(classifier, images, maps, target=None, **options):
    target = one_hot([1] * len(images), 2) if target is None else target
    return saliency_insertion(Curves(classifier, images, target, maps), **options)


def corner():
    weights = torch.zeros(SIZE, SIZE)
    weights[0] = 0.25
    return weights


def test_by_hand():
    maps = np.arange(16, 0, -1).reshape(1, SIZE, SIZE)  # the first row first
    images = torch.ones(1, 3, SIZE, SIZE)
    assert score(Additive(corner()), images, maps) == pytest.approx([0.875])
    assert score(Additive(corner()), images, -maps) == pytest.approx([0.125])
    # one pixel at a time: 0, 1/4, 1/2, 3/4, 1, then twelve more values of 1
    assert score(Additive(corner()), images, maps, steps=16) == pytest.approx([(0.25 + 0.5 + 0.75 + 12 - 0.5 + 1) / 16])
    assert score(Additive(corner()), images, maps, steps=1) == pytest.approx([0.5])


@pytest.mark.parametrize("start", ["auto", "subtract", "keep"])
@pytest.mark.parametrize("reference", ["black", "mean", "blur"])
def test_area_by_a_loop_over_the_curve(reference, start):
    rng = np.random.default_rng(0)
    classifier = Additive(rng.dirichlet(np.ones(16)).reshape(SIZE, SIZE), mean=0.4)
    images = torch.from_numpy(rng.random((3, 3, SIZE, SIZE))).float()
    maps, target = rng.normal(size=(3, SIZE, SIZE)), contrast([1, 1, 0], [0, 0, 1], 2)
    curves, expected = Curves(classifier, images, target, maps), []
    for curve in curves.path("top", reference, [0, 4, 8, 12, 16]):
        total = 0.0
        for left, right in pairwise(curve):
            total += (left + right) / 2 * (4 / 16)
        subtracted = start == "subtract" or (start == "auto" and reference == "blur")
        expected.append(total - (curve[0] if subtracted else 0))
    assert score(classifier, images, maps, target, reference=reference, start=start) == pytest.approx(expected)


def test_a_contrast_may_gain_2_from_its_start():
    """p of class 1 minus p of class 0 changes from -1 to 1, so the curve minus its start ends at 2."""
    curves = Curves(Additive(corner()), torch.ones(1, 3, SIZE, SIZE), contrast([1], [0], 2),
                    np.arange(16, 0, -1).reshape(1, 4, 4))  # fmt: skip
    assert load_metric("saliency_insertion", start="subtract")(curves) == pytest.approx([2 * 0.875])
    ranges = {start: load_metric("saliency_insertion", start=start).range for start in ("keep", "auto", "subtract")}
    assert ranges == {"keep": (-1, 1), "auto": (-1, 1), "subtract": (-2, 2)}
    assert load_metric("saliency_insertion", reference="blur").range == (-2, 2)  # minus the start


def test_rise_authors_reading():
    """Test RISE's loop. It sums n + 1 points from the blurred image, subtracts half of both ends, and divides by n."""
    rng = np.random.default_rng(3)
    classifier = Additive(rng.dirichlet(np.ones(16)).reshape(SIZE, SIZE), mean=0.4)
    images, maps = torch.from_numpy(rng.random((1, 3, SIZE, SIZE))).float(), rng.permutation(16).reshape(1, SIZE, SIZE)
    order = np.argsort(-maps.ravel())
    picture, scores = blurred(classifier, images).clone(), []
    for step in range(5):
        changed = order[4 * (step - 1) : 4 * step] if step else []
        for pixel in changed:
            picture[0, :, pixel // SIZE, pixel % SIZE] = images[0, :, pixel // SIZE, pixel % SIZE]
        scores.append(classifier(picture).softmax(dim=1)[0, 1].item())
    expected = (sum(scores) - scores[0] / 2 - scores[-1] / 2) / 4
    assert score(classifier, images, maps, reference="blur", start="keep") == pytest.approx([expected])


@pytest.mark.sample(3)
@pytest.mark.parametrize(("cells", "side", "limit"), [(2, 64, 2e-5), (4, 64, 2e-5), (7, 224, 5e-6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_last_digits_of_an_enlarged_map_hardly_move_the_score(cells, side, limit, dtype):
    """Cells that differ by a millionth, as between batch sizes, are rounded before they are enlarged.

    If the last digits determined the order, scores of Grad-CAM for a ResNet-18 at 64 pixels (2 x 2 cells) would differ
    between batches of 1 and 32 by up to 0.009 (insertion) and 0.038 (deletion).
    """
    rng = np.random.default_rng(0)
    count = 24 if side < 224 else 4
    images = torch.from_numpy(rng.random((count, 3, side, side))).float()
    classifier = Additive(rng.dirichlet(np.full(side * side, 0.1)).reshape(side, side))
    values, scores = rng.normal(size=(count, 1, cells, cells)), []
    for noise in (0, 1e-6):
        given = torch.from_numpy(values * (1 + noise * rng.uniform(-1, 1, values.shape))).to(dtype)
        scores.append(score(classifier, images, enlarge(given[:, 0], images).numpy()))
    np.testing.assert_allclose(scores[0], scores[1], atol=limit, rtol=0)
