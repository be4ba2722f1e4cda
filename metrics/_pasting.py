"""Shared code of saliency_correctness and saliency_confidence: paste salient regions into images of the same class.

For each class, the k images with the highest probability of that class (set H) are paired one to one, at random, with
the k images with the lowest probability (set L). H and L are disjoint. The salient region S of each image in H is
pasted into the paired image in L. For the inverse image, the pixels outside S are pasted instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.compute.classifiers.passes import forward_many
from saliency_bench.compute.scoring.partners import Partners, Predictions
from saliency_bench.errors import UserError
from saliency_bench.maps import is_flat, normalise, top_pixels
from saliency_bench.score_notes import NO_PROBABILITIES_CHANGED
from saliency_bench.target_weights import activation_of, no_probabilities, probabilities, recognised
from saliency_bench.types import Images
from saliency_bench.utils.seeds import random_bits, seed_of

By = Literal["value", "percentile"]
NO_FIVE = "five classes or fewer, or no softmax"


def plan(options: dict[str, Any], predictions: Predictions) -> dict[int, list[int]]:
    """Return {index of an image in L: indices of its partners in H, one per pairing}.

    Only images with the same set of correct classes are paired. From n such images, L and H each get min(k, n // 2)
    images. Images with the same probability are ordered by id.
    """
    p = true_probability(predictions.probabilities, predictions.right, predictions.activation)
    members: dict[tuple[int, ...], list[int]] = {}
    for sample in np.flatnonzero(np.isfinite(p) & predictions.right.any(axis=1)).tolist():
        members.setdefault(tuple(np.flatnonzero(predictions.right[sample]).tolist()), []).append(sample)
    partners: dict[int, list[int]] = {}
    for classes, samples in members.items():
        ordered = sorted(samples, key=lambda sample: (-p[sample], predictions.ids[sample]))
        count = min(options["k"], len(samples) // 2)
        high, low = ordered[:count], ordered[len(samples) - count :]
        drawn = [_bijection(count, predictions.seed, pairing, classes) for pairing in range(options["pairings"])]
        partners |= {sample: [high[order[place]] for order in drawn] for place, sample in enumerate(low)}
    return partners


def _bijection(count: int, seed: int, pairing: int, classes: Sequence[int]) -> np.ndarray:
    """Return `count` numbers in random order, which pair each image of H with an image of L."""
    return np.argsort(random_bits(seed_of(seed, "pairing", pairing, *classes), count), kind="stable")


def true_probability(p: np.ndarray, right: np.ndarray, activation: str) -> np.ndarray:
    """Return the sum of the probabilities of the correct classes, float64 (...) for p (..., K).

    For a sigmoid, return the probability of the most likely correct class instead.
    """
    probability = np.where(right, p.astype(np.float64), 0)
    return probability.max(axis=-1) if activation == "sigmoid" else probability.sum(axis=-1)


@dataclass(frozen=True)
class Pasted:
    """Probabilities that the classifier assigns to the pasted images, and sizes of the pasted regions.

    Attributes:
        p: Probabilities for the normal and the inverse image of each of R pairings, float64 (B, 2, R, K).
        size: Fraction of an image's pixels that belong to S, of shape (B, R).
    """

    p: np.ndarray
    size: np.ndarray


def pasted(images: Images, classifier: nn.Module, partners: Partners, threshold: float, by: By) -> Pasted:
    """Paste regions into `images` (the images of L), and return the classifier's probabilities for the results."""
    salient = salient_pixels(partners.maps(torch.from_numpy(partners.right).float().to(images.device)), threshold, by)
    index = torch.tensor(partners.places, device=images.device)  # (B, R)
    inside, pairings = torch.from_numpy(salient).to(images.device), index.shape[1]

    def draw(samples: Tensor, pictures: Tensor) -> Images:
        """Return the pasted image for each pair of a sample (an image of L) and a picture index.

        For the first R indices, the region S of an image in H is pasted onto the sample. For the next R indices, the
        pixels outside S are pasted instead.
        """
        chosen = index[samples, pictures % pairings]
        from_high = inside[chosen] ^ (pictures >= pairings)[:, None, None]
        return torch.where(from_high[:, None], partners.images[chosen], images[samples])

    def read(logits: Tensor, samples: Tensor) -> Tensor:
        """Convert logits to probabilities, or to NaN if they have no probabilities."""
        p = probabilities(logits.double(), activation_of(classifier))
        broken = torch.from_numpy(no_probabilities(logits, activation_of(classifier))).to(p.device)
        return torch.where(broken[:, None], torch.nan, p)

    p = forward_many(classifier, images, 2 * pairings, draw, read).cpu().numpy()
    p = p.reshape(len(images), 2, pairings, -1)
    partners.faulty |= dict.fromkeys(np.flatnonzero(np.isnan(p).any(axis=(1, 2, 3))).tolist(), NO_PROBABILITIES_CHANGED)
    return Pasted(p, salient.mean(axis=(1, 2))[np.array(partners.places)])


def salient_pixels(maps: np.ndarray, threshold: float, by: By) -> np.ndarray:
    """Return a mask of the salient pixels, bool (N, H, W).

    With by="value", these are the pixels whose min-max scaled value exceeds `threshold`. With by="percentile", they are
    the pixels above the percentile `threshold` of the map; their number is exact, and ties are broken by the order
    defined in `saliency_bench.maps`. A constant map has no salient pixels.
    """
    if by == "value":
        return normalise(maps) > threshold
    count = round((1 - threshold / 100) * maps[0].size)
    return top_pixels(maps, np.where(is_flat(maps), 0, count))


def accuracies(p: np.ndarray, right: np.ndarray, activation: str) -> np.ndarray:
    """Return the top-1 and top-5 accuracy, float64 (..., 2), for p (..., K). Top-5 is NaN if it is uninformative."""
    first = recognised(p, right, activation).astype(float)
    if not has_five(activation, p.shape[-1]):
        return np.stack([first, np.full(first.shape, np.nan)], axis=-1)
    best = np.argsort(-p, axis=-1, kind="stable")[..., :5]
    among = np.take_along_axis(np.broadcast_to(right, p.shape), best, axis=-1).any(axis=-1)
    return np.stack([first, among.astype(float)], axis=-1)


def has_five(activation: str, classes: int) -> bool:
    """Return whether top-5 accuracy is informative, which requires a softmax over more than five classes."""
    return activation == "softmax" and classes > 5


def check(*, k: int, pairings: int, threshold: float, by: By, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    if k < 1 or pairings < 1:
        raise UserError(f"k and pairings must be at least 1; got k={k}, pairings={pairings}")
    check_threshold(threshold, by)


def check_threshold(threshold: float, by: By) -> None:
    """Raise UserError if the threshold is outside [0, 1) for by="value", or outside [0, 100) for by="percentile"."""
    low, high = (0, 1) if by == "value" else (0, 100)
    if not low <= threshold < high:
        further = "; use by=percentile for 0 to 100" if by == "value" else ""
        raise UserError(f"threshold with by={by} must be at least {low} and below {high}; got {threshold:g}{further}")
