"""Test saliency_own_region by hand, against pictures built pixel by pixel, and for invariances."""

import math

import numpy as np
import pytest
import torch
from small_networks import Custom, loaded
from torch import nn

from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.metrics.saliency_own_region.score import reduce, saliency_own_region
from saliency_bench.target_weights import one_hot

HEIGHT, WIDTH, CLASSES = 4, 5, 7
MEAN = (0.2, 0.5, 0.7)


def linear():
    torch.manual_seed(3)
    return Custom(lambda net, images: 5 * net.linear(images.flatten(1)), mean=torch.tensor(MEAN).view(1, 3, 1, 1),
                  linear=nn.Linear(3 * HEIGHT * WIDTH, CLASSES))  # fmt: skip


def curves_of(classifier, images, maps):
    return Curves(classifier, images, one_hot([0] * len(images), CLASSES), maps)


def literal(classifier, image, one, label, reference, threshold, by):
    """Return [acc@1, acc@5] of one image, computed pixel by pixel."""
    values = [float(value) for value in one.flatten()]
    if by == "percentile":
        kept = round(len(values) * (1 - threshold / 100))
        region = set(sorted(range(len(values)), key=lambda pixel: -values[pixel])[:kept])
    else:
        least, most = min(values), max(values)
        region = {pixel for pixel, value in enumerate(values) if (value - least) / (most - least) > threshold}
    picture = torch.empty(3, HEIGHT, WIDTH)
    for pixel in range(len(values)):
        row, column = divmod(pixel, WIDTH)
        for channel in range(3):
            outside = 0.0 if reference == "black" else MEAN[channel]
            picture[channel, row, column] = image[channel, row, column] if pixel in region else outside
    logits = classifier(picture[None])[0].tolist()
    before = sum(logit > logits[label] for logit in logits)
    return [float(before < 1), float(before < 5)]


@pytest.mark.parametrize("reference", ["black", "mean"])
@pytest.mark.parametrize(("threshold", "by"), [(0.5, "value"), (0.2, "value"), (60.0, "percentile")])
def test_agrees_with_pictures_made_pixel_by_pixel(reference, threshold, by):
    torch.manual_seed(1)
    classifier, images = linear().eval(), torch.rand(40, 3, HEIGHT, WIDTH)
    maps = np.random.default_rng(0).normal(size=(40, HEIGHT, WIDTH)).astype(np.float32)
    labels = np.arange(40) % CLASSES
    found = saliency_own_region(curves_of(classifier, images, maps), np.eye(CLASSES, dtype=bool)[labels],
                                reference=reference, threshold=threshold, by=by)  # fmt: skip
    with torch.no_grad():
        expected = [literal(classifier, image, one, label, reference, threshold, by)
                    for image, one, label in zip(images, maps, labels, strict=True)]  # fmt: skip
    np.testing.assert_array_equal(found, expected)
    assert 0 < found[:, 0].mean() < found[:, 1].mean() < 1  # so the comparison can fail
    np.testing.assert_array_equal(reduce(found, {}), found[:, 0])


def test_everything_has_the_accuracy_of_the_image_and_a_constant_map_that_of_the_reference():
    torch.manual_seed(4)
    classifier, images = linear().eval(), torch.rand(30, 3, HEIGHT, WIDTH)
    whole, flat = np.ones((30, HEIGHT, WIDTH), np.float32), np.ones((30, HEIGHT, WIDTH), np.float32)
    whole[:, 0, 0] = 0
    images[:, :, 0, 0] = 0  # the value that replaces the pixel
    with torch.no_grad():
        said, of_black = classifier(images).argmax(1), int(classifier(torch.zeros(1, 3, HEIGHT, WIDTH)).argmax())
    right = np.eye(CLASSES, dtype=bool)
    assert (saliency_own_region(curves_of(classifier, images, whole), right[said])[:, 0] == 1).all()
    found = saliency_own_region(curves_of(classifier, images, flat), right[np.arange(30) % CLASSES])
    assert found[:, 0].tolist() == [float(index % CLASSES == of_black) for index in range(30)]


def test_five_of_a_sigmoid_or_of_five_classes_are_not_there():
    network = Custom(lambda net, x: x.mean(dim=(1, 2, 3))[:, None] * torch.tensor([[4.0, 1, 1, 1, 1]]) - 1)
    images, maps = torch.ones(1, 3, 2, 2), np.array([[[1, 0], [1, 1]]], np.float32)
    five = Curves(network, images, one_hot([0], 5), maps)
    assert saliency_own_region(five, np.eye(5, dtype=bool)[:1])[0, 0] == 1
    assert math.isnan(saliency_own_region(five, np.eye(5, dtype=bool)[:1])[0, 1])
    several = loaded(linear(), activation="sigmoid")
    curves = curves_of(several, torch.rand(3, 3, HEIGHT, WIDTH), np.random.default_rng(0).normal(size=(3, 4, 5)))
    assert np.isnan(saliency_own_region(curves, np.eye(CLASSES, dtype=bool)[:3])[:, 1]).all()
