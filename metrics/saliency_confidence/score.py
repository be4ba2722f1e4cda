"""Measure how much more confident the classifier becomes when the salient region is pasted."""

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
    """Return the range; entropies grow with the number of classes."""
    return (-1.0, 1.0) if options["of"] == "probability" else (-inf, inf)


def higher_is_better(options: dict[str, Any]) -> bool:
    """Return True for the probability, which the salient region should raise; it should lower the entropy."""
    return options["of"] == "probability"


def parts(options: dict[str, Any], classifier: object) -> list[str]:
    """Return the parts: the change with S pasted, the change with the rest pasted, and the share of pixels in S."""
    return ["normal", "inverse", "size"]


def reduce(values: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return the change with S pasted, which is the score."""
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
    """Return the change in class probability, or entropy, when the salient region is pasted into a picture (P4).

        score = p_c(S of H pasted into L) - p_c(L),    entropy: -sum_k p_k ln p_k of the same pictures

    in the pictures of saliency_correctness: for each class, the salient regions S of the k images with the highest
    probability (H) are pasted into the k with the lowest (L). The parts are: normal, which is the score; inverse, the
    change when the rest of H is pasted instead; and size, the share of pixels in S. A map that marks everything gets
    the best possible score, so read the three parts together.

    Args:
        images: (B, 3, H, W) in [0, 1], the images of L.
        logits: (B, K), the classifier's logits for these images.
        labels: Bool (B, K), their correct classes.
        classifier: the network that judges the pasted pictures.
        partners: the images of H paired with each image.
        of: "probability" of the correct class, higher is better; "entropy" in nats, lower is better.
        k: images of each class; at most n // 2 of a class with n images.
        pairings: random pairings within a class.
        threshold: where S begins: with by="value" a share of the map's range, from 0 to 1; with by="percentile" a
            percentile of the map's own pixels, from 0 to 100.
        by: what the threshold refers to: "value", the range of the map, or "percentile", its pixels.

    Returns:
        Float64 (B, 3): normal, inverse, size, means over the pairings. Images that are not in any L are not scored.

    Raises:
        UserError: of="entropy" with a sigmoid, whose classes are not exclusive.

    Example:
        One pairing, 4 x 4: the map of H is 8 in its upper left quarter, else 0, so that S has 4 / 16 of the pixels. The
        classifier's logits are 2 ln 3 times the share of white in the upper left quarter, and 0; H is white there, L is
        black:

            8 8 0 0     p of L: 1 / 2
            8 8 0 0     normal: white, 9 / (9 + 1) = 0.9;  0.9 - 0.5 = 0.4
            0 0 0 0     inverse: black as in L;            0.5 - 0.5 = 0
            0 0 0 0     size: 4 / 16 = 0.25
    """
    activation = activation_of(classifier)
    if of == "entropy" and activation == "sigmoid":
        raise UserError(
            "saliency_confidence:of=entropy needs a softmax, but this model has a sigmoid; leave out of=entropy"
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
    """Return the entropy in nats (...) of p (..., K)."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)
