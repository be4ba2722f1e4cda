import numpy as np
import pytest
import skimage.filters
import torch
from torch import nn

from saliency_bench import load_classifier, load_explainer, targets


@pytest.fixture
def edges():
    classifier = load_classifier(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), device="cpu", mean=0, std=1)
    return lambda images: load_explainer("edges")(classifier, images, targets.one_hot([0], 2)).numpy()


def test_agrees_with_scikit_image_inside(edges):
    """scikit-image divides by 4 instead of 8 and returns the root mean square of both slopes."""
    images = torch.rand(2, 3, 12, 9)
    for ours, image in zip(edges(images), images.numpy(), strict=True):
        theirs = skimage.filters.sobel(image.mean(axis=0)) / 2 * 2**0.5
        np.testing.assert_allclose(ours[1:-1, 1:-1], theirs[1:-1, 1:-1], rtol=1e-4, atol=1e-6)


def test_a_ramp_has_its_slope_and_a_flat_image_nothing(edges):
    ramp = (torch.arange(8) * 0.1).view(1, 1, 1, 8).expand(1, 3, 6, 8)
    values = edges(ramp)[0]
    np.testing.assert_allclose(values[:, 1:-1], 0.1, rtol=1e-5)
    np.testing.assert_allclose(values[:, [0, -1]], 0.05, rtol=1e-5)  # half the slope, because the border is replicated
    assert not edges(torch.full((1, 3, 6, 8), 0.7)).any()
