"""Measure how much more confident the classifier becomes when the salient region is pasted into another picture."""

from math import inf
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from saliency_bench.compute.scoring.partners import Partners
from saliency_bench.declarations import metric
from saliency_bench.errors import UserError
from saliency_bench.metrics import _pasting
from saliency_bench.metrics._papers import ANONYMOUS_2020
from saliency_bench.metrics._pasting import By
from saliency_bench.target_weights import activation_of, no_probabilities, probabilities
from saliency_bench.types import Images


def range_of(options: dict[str, Any]) -> tuple[float, float]:
    """Return the range of scores. It is unbounded for entropy, which grows with the number of classes."""
    return (-1.0, 1.0) if options["of"] == "probability" else (-inf, inf)


def higher_is_better(options: dict[str, Any]) -> bool:
    """Return True for the probability, which the salient region should raise, and False for the entropy."""
    return options["of"] == "probability"


def parts(options: dict[str, Any], classifier: object) -> list[str]:
    """Return the names of the parts: change with S pasted, change with other pixels pasted, fraction of pixels in S."""
    return ["normal", "inverse", "size"]


def reduce(values: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return the score: the change with S pasted."""
    return values[:, 0]


@metric(
    version=2,
    title="Confidence gain",
    higher_is_better=higher_is_better,
    range=range_of,
    paper=ANONYMOUS_2020,
    parts=parts,
    reduce=reduce,
    plan=_pasting.plan,
    check=_pasting.check,
)
def saliency_confidence(
    images: Images,
    logits: Tensor,
    labels: np.ndarray,
    classifier: nn.Module,
    partners: Partners,
    *,
    of: Literal["probability", "entropy"] = "probability",
    k: int = 5,
    pairings: int = 5,
    threshold: float = 0.5,
    by: By = "value",
) -> np.ndarray:
    """Return the change in class probability, or in entropy, when the salient region is pasted into another picture.

        score = p_c(S of H pasted into L) - p_c(L),    with of="entropy": -sum_k p_k ln p_k instead of p_c

    The pictures are the same as in saliency_correctness. For each class, the salient regions S of the k images with the
    highest probability (set H) are pasted into the k images with the lowest probability (set L). There are three parts:
    "normal" is the score; "inverse" is the change when the pixels outside S are pasted instead; "size" is the fraction
    of pixels in S. A map that marks every pixel gets the best possible score, so read the three parts together.

    Args:
        images: Images of L, of shape (B, 3, H, W) with values in [0, 1].
        logits: Logits of the classifier for these images, of shape (B, K).
        labels: Correct classes of these images, bool (B, K).
        classifier: Network that classifies the pasted pictures.
        partners: Images of H that are paired with each image.
        of: Measured quantity. "probability": probability of the correct class; higher is better. "entropy": entropy in
            nats; lower is better.
        k: Number of images per class in each of H and L, limited to n // 2 for a class of n images.
        pairings: Number of random pairings within a class.
        threshold: Threshold that the pixels in S exceed. With by="value", a fraction (0 to 1) of the map's range. With
            by="percentile", a percentile (0 to 100) of the map's pixels.
        by: Scale of the threshold: the range of the map ("value") or the percentiles of its pixels ("percentile").

    Returns:
        Means over the pairings of normal, inverse and size, float64 (B, 3). Images that are not in any L have no score.

    Raises:
        UserError: `of` is "entropy" and the classifier has a sigmoid, so its classes are not mutually exclusive.

    Example:
        Take one pairing of 4 x 4 images. The map of H is 8 in the upper left quarter and 0 elsewhere, so S contains 4 /
        16 of the pixels. The classifier's logits are 0 and 2 ln 3 times the fraction of white pixels in the upper left
        quarter. This quarter is white in H and black in L:

            8 8 0 0     p of L: 1 / 2
            8 8 0 0     normal: white, 9 / (9 + 1) = 0.9;  0.9 - 0.5 = 0.4
            0 0 0 0     inverse: black as in L;            0.5 - 0.5 = 0
            0 0 0 0     size: 4 / 16 = 0.25
    """
    activation = activation_of(classifier)
    if of == "entropy" and activation == "sigmoid":
        raise UserError(
            "saliency_confidence:of=entropy needs a softmax, but this model has a sigmoid; remove of=entropy"
        )
    pictures = _pasting.pasted(images, classifier, partners, threshold, by)
    plain = probabilities(logits.double(), activation).cpu().numpy()
    if of == "entropy":
        before, after = entropy(plain), entropy(pictures.p)
    else:
        before = _pasting.true_probability(plain, labels, activation)
        after = _pasting.true_probability(pictures.p, labels[:, None, None], activation)
    change = (after - before[:, None, None]).mean(axis=2)
    values = np.concatenate([change, pictures.size.mean(axis=1, keepdims=True)], axis=1)
    undefined = np.isnan(pictures.p).any(axis=(1, 2, 3)) | no_probabilities(logits, activation)
    return np.where(undefined[:, None], np.nan, values)


def entropy(p: np.ndarray) -> np.ndarray:
    """Return the entropies in nats, of shape (...), for probabilities p of shape (..., K)."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)
