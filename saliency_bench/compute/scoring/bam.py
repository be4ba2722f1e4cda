"""Helpers for the false-positive metrics, which compare an object classifier and a scene classifier on the same images.

Maps of both classifiers are scaled as in BAM (Yang and Kim, 2019): the positive part is clipped at its 99th percentile,
then scaled to [0, 1].
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.inputs import OtherModel
from saliency_bench.maps import normalise
from saliency_bench.target_weights import activation_of, no_probabilities, probabilities, recognised
from saliency_bench.types import Images

HIGHEST = 99  # percentile of a map at which it is clipped
MODELS = ("object model", "scene model")  # parts of a score: the run's model and the other model


def parts(options: dict[str, object], classifier: object) -> Sequence[str]:
    """Return the names of the two parts of a score."""
    return MODELS


def difference(means: np.ndarray, options: dict[str, object]) -> np.ndarray:
    """Subtract the scene model's means from the object model's means: (D, 2) becomes (D,)."""
    return means[:, 0] - means[:, 1]


def is_of_means(options: dict[str, object]) -> bool:
    """Return whether the score is the difference of two means over different images."""
    return options["filter"] == "each"


def preprocessed(maps: np.ndarray) -> np.ndarray:
    """Return scaled maps, Float64 (B, H, W) in [0, 1]. A map with less than 1 % positive pixels becomes zeros."""
    positive = np.maximum(maps, 0).astype(np.float64)
    return normalise(np.minimum(positive, np.percentile(positive, HIGHEST, axis=(1, 2), keepdims=True)))


def maps_of_both(images: Images, labels: np.ndarray, other: OtherModel, explain: MapProvider) -> tuple[np.ndarray, ...]:
    """Return the preprocessed maps of the object model for the object, and of the scene model for the scene."""
    object_maps = explain(images, torch.from_numpy(labels).float().to(images.device))
    return preprocessed(object_maps), preprocessed(explain(images, other.target, classifier=other.classifier))


def is_right(classifier: nn.Module, logits: Tensor, labels: np.ndarray) -> np.ndarray:
    """Return whether a classifier's predictions are correct, Bool (B,). `labels` (B, K) marks the correct classes."""
    activation = activation_of(classifier)
    p = probabilities(logits.double(), activation).numpy()
    return recognised(p, labels, activation) & ~no_probabilities(logits, activation)


def mean_inside(maps: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return the mean of each map inside its mask, Float64 (B,). It is NaN if the mask is empty."""
    count = masks.sum(axis=(1, 2))
    return np.where(count > 0, (maps * masks).sum(axis=(1, 2)) / np.maximum(count, 1), np.nan)


def share_inside(maps: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return the fraction of each map's sum that is inside its mask, Float64 (B,).

    The fraction is 0 if the sum is 0, and NaN for an empty mask.
    """
    whole = maps.sum(axis=(1, 2))
    shares = (maps * masks).sum(axis=(1, 2)) / np.where(whole > 0, whole, 1)
    return np.where(masks.any(axis=(1, 2)), shares, np.nan)


def where_right(
    values: tuple[np.ndarray, np.ndarray], logits: Tensor, labels: np.ndarray, classifier: nn.Module, other: OtherModel,
    each: bool,
) -> np.ndarray:  # fmt: skip
    """Return both models' values, (B, 2). The values of a sample are NaN if either model is wrong.

    If `each` is True, only the value of the wrong model is NaN.
    """
    right = np.stack([is_right(classifier, logits, labels), is_right(other.classifier, other.logits, other.labels)])
    kept = right if each else right.all(axis=0, keepdims=True)
    return np.where(kept, np.stack(values), np.nan).T
