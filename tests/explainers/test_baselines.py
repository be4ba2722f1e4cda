import numpy as np
import pytest
import skimage.filters
import torch
from torch import nn

from saliency_bench import load_classifier, load_explainer, targets


@pytest.fixture
def classifier():
    return load_classifier(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 3)), device="cpu", mean=0, std=1)


def test_random_is_uniform_and_varies_by_seed_class_and_image(classifier):
    images, target = torch.rand(2, 3, 64, 64), targets.one_hot([0, 0], 3)
    explainer = load_explainer("random")
    maps = explainer(classifier, images, target)
    assert maps.mean() == pytest.approx(0.5, abs=0.02)
    assert maps.std() == pytest.approx(12**-0.5, abs=0.02)
    assert len(maps[0].unique()) > 4000
    others = [
        explainer(classifier, images, target, seeds=[5, 6]),
        explainer(classifier, images, targets.one_hot([1, 1], 3)),
        explainer(classifier, (images + 0.01).clamp(0, 1), target),
    ]
    for other in others:
        correlation = torch.corrcoef(torch.stack([maps[0].flatten(), other[0].flatten()]))[0, 1]
        assert abs(correlation) < 0.06


def test_centre_matches_gaussian_formula(classifier):
    (values,) = load_explainer("centre", sigma=0.5)(classifier, torch.rand(1, 3, 5, 9), targets.one_hot([0], 3))
    assert values[2, 4] == 1
    assert values[0, 4] == pytest.approx(float(torch.exp(torch.tensor(-((2 / 2.5) ** 2) / 2))))
    assert values[2, 0] == pytest.approx(float(torch.exp(torch.tensor(-((4 / 4.5) ** 2) / 2))))
    assert torch.equal(values, values.flip(0))
    assert torch.equal(values, values.flip(1))


@pytest.fixture
def edges():
    classifier = load_classifier(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), device="cpu", mean=0, std=1)
    return lambda images: load_explainer("edges")(classifier, images, targets.one_hot([0], 2)).numpy()


def test_edges_match_scikit_image_inside(edges):
    """scikit-image divides by 4 instead of 8 and returns the root mean square of both slopes."""
    images = torch.rand(2, 3, 12, 9)
    for ours, image in zip(edges(images), images.numpy(), strict=True):
        theirs = skimage.filters.sobel(image.mean(axis=0)) / 2 * 2**0.5
        np.testing.assert_allclose(ours[1:-1, 1:-1], theirs[1:-1, 1:-1], rtol=1e-4, atol=1e-6)


def test_edges_of_ramp_match_its_slope(edges):
    ramp = (torch.arange(8) * 0.1).view(1, 1, 1, 8).expand(1, 3, 6, 8)
    values = edges(ramp)[0]
    np.testing.assert_allclose(values[:, 1:-1], 0.1, rtol=1e-5)
    np.testing.assert_allclose(values[:, [0, -1]], 0.05, rtol=1e-5)  # half the slope, because the border is replicated
    assert not edges(torch.full((1, 3, 6, 8), 0.7)).any()
