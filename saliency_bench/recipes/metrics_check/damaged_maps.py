"""Explainers that return the correct map of a network with known evidence, and damaged versions of this map."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms.functional import gaussian_blur

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.recipes.metrics_check.drawings import GROUND, OBJECT, SIDE
from saliency_bench.types import Images, Maps, Target

SHIFT, SIGMA = 4, 3.0  # pixels; pictures have 32 x 32 pixels, and their evidence 7 x 7
RIGHT = "right_map"


def right_map(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return each pixel's contributions to the logits, summed with the target's weights."""
    return torch.einsum("bkhw,bk->bhw", _evidence(classifier, images), target)


def shifted(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return the correct map, shifted four pixels to the right. It then misses half of the evidence."""
    return right_map(classifier, images, target).roll(SHIFT, dims=2)


def blurred(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return the correct map, blurred with a Gaussian with a standard deviation of three pixels."""
    size = 2 * round(3 * SIGMA) + 1
    return gaussian_blur(right_map(classifier, images, target), [size, size], [SIGMA, SIGMA])


def half_wrong(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return the correct map with its right half moved to a different part of the image."""
    maps = right_map(classifier, images, target)
    columns = torch.arange(maps.shape[2], device=maps.device)
    weight = maps.abs().sum(1)
    centre = (weight * columns).sum(1) / weight.sum(1).clamp(min=1e-9)
    stays = (columns <= centre[:, None])[:, None]
    return maps * stays + (maps * ~stays).roll((SIDE // 2, SIDE // 2), dims=(1, 2))


def sign_flipped(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return the correct map times -1."""
    return -right_map(classifier, images, target)


def peaked(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return a map that contains only the strongest pixel of the correct map."""
    maps = right_map(classifier, images, target)
    return maps * (maps.abs() == maps.abs().amax((1, 2), keepdim=True))


def other_class(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return the correct map for the most likely class that is not in the target."""
    logits = classifier(images).masked_fill(target > 0, -torch.inf)
    return right_map(classifier, images, functional.one_hot(logits.argmax(1), logits.shape[1]).float())


def whole_object(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return a map that is 1 on every object and 0 elsewhere. Objects are brighter than the scene."""
    one_way = torch.tensor([1.0, 2, 1], device=images.device) / 4  # averages out the fine stripes
    kernel = torch.outer(one_way, one_way)[None, None]
    grey = functional.pad(images.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    return (functional.conv2d(grey, kernel)[:, 0] > (GROUND + OBJECT) / 2).float()


def _evidence(classifier: Classifier, images: Images) -> Tensor:
    """Return the evidence (B, K, H, W). Subtracting a constant from all pixels does not change it."""
    network: Any = classifier.model  # a `known_networks.KnownEvidence`
    return network.evidence(images)


DAMAGED = {
    "shifted": "the correct map, moved four pixels to the right",
    "blurred": "the correct map, blurred by a Gaussian with a standard deviation of three pixels",
    "half wrong": "the correct map, with its right half moved elsewhere",
    "sign flipped": "the correct map times -1",
    "peaked": "only the strongest pixel of the correct map",
    "other class": "the correct map of the runner-up",
    "whole object": "1 on the objects (detected by their brightness) and 0 elsewhere",
    "centre": "a Gaussian spot in the middle of the picture",
    "random": "random noise",
}
EXPLAINERS = (
    right_map,
    shifted,
    blurred,
    half_wrong,
    sign_flipped,
    peaked,
    other_class,
    whole_object,
    "centre",
    "random",
)
