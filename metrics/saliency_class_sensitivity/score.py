"""Test whether a map changes with the class that it explains."""

import numpy as np
import torch
from torch import Tensor

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.declarations import metric
from saliency_bench.maps import is_flat
from saliency_bench.metrics._papers import LI_2020
from saliency_bench.target_weights import no_probabilities, one_hot
from saliency_bench.types import Images


def question(options: dict, probabilities: np.ndarray, groups: object) -> list[tuple[TargetTerms, ...]]:
    """Return the most and the least likely class of each sample."""
    given = np.where((probabilities > 0).sum(axis=1, keepdims=True) > 1, probabilities > 0, True)
    least = np.where(given, probabilities, np.inf).argmin(axis=1)
    ends = zip(probabilities.argmax(axis=1), least, strict=True)
    return [(TargetTerms((int(most),)), TargetTerms((int(least),))) for most, least in ends]


@metric(
    version=3,
    title="Class sensitivity",
    higher_is_better=False,
    range=(-1, 1),
    paper=LI_2020,
    question=question,
    passes=(0, 2),
)
def saliency_class_sensitivity(images: Images, logits: Tensor, explain: MapProvider) -> np.ndarray:
    """Return the Pearson correlation of the maps for the most and the least likely class (P1 eq. 15).

        score = pearson(E(x, argmax_k logit_k), E(x, argmin_k logit_k)), over the pixels

    A map that distinguishes classes scores near 0 or below; a map that ignores the class scores 1. Among equal logits,
    the first class counts; classes that the network masks out with a logit of -infinity do not count.

    Args:
        images: (B, 3, H, W) in [0, 1].
        logits: (B, K), the classifier's logits for these images.
        explain: makes both maps.

    Returns:
        Float64 (B,) in [-1, 1], lower is better; NaN if one of the maps is constant: its correlation would be 0 by
        convention, better than most maps, so it is not ranked; NaN if logits are NaN or infinite.

    Example:
        4 x 4 maps for the most likely class (left) and for the least likely (right):

            1 1 1 1     1 1 1 1     means 1/4 and 1/2, covariance 4/16 - 1/8 = 1/8, variances 3/16 and 1/4:
            0 0 0 0     1 1 1 1     1/8 / sqrt(3/64) = 1 / sqrt(3) = 0.5774
            0 0 0 0     0 0 0 0
            0 0 0 0     0 0 0 0
    """
    classes = logits.shape[1]
    least = logits.masked_fill(logits.isneginf(), torch.inf).argmin(dim=1)
    first, last = (explain(images, one_hot(which, classes)) for which in (logits.argmax(dim=1), least))
    unranked = is_flat(first) | is_flat(last) | no_probabilities(logits)
    return np.where(unranked, np.nan, pearson(first, last))


def pearson(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Pearson correlations, Float64 (B,), of maps (B, H, W); 0 if one is constant."""
    first_unit, second_unit = (_unit(maps.reshape(len(maps), -1).astype(np.float64)) for maps in (first, second))
    return np.clip((first_unit * second_unit).sum(axis=1), -1, 1)


def _unit(rows: np.ndarray) -> np.ndarray:
    """Return rows centred and scaled to length 1; zeros for a constant row."""
    constant = rows.max(axis=1, keepdims=True) == rows.min(axis=1, keepdims=True)
    # Squares of tiny or huge values would under- or overflow, so each row is first divided by its scale.
    centred = np.where(constant, 0, rows - rows.mean(axis=1, keepdims=True))
    centred /= np.where(constant, 1, np.abs(centred).max(axis=1, keepdims=True))
    return centred / np.where(constant, 1, np.linalg.norm(centred, axis=1, keepdims=True))
