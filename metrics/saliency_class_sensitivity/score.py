"""Test whether a map changes with the explained class."""

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
    """Return the Pearson correlation between the maps for the most and the least likely class.

        score = pearson(E(x, argmax_k logit_k), E(x, argmin_k logit_k)), over the pixels

    This is equation 15 of Li et al. (2020). A map that distinguishes classes scores near 0 or below; a map that ignores
    the class scores 1. Among equal logits, the first class is chosen. Classes that the network masks out with a logit
    of -infinity are ignored.

    Args:
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        logits: Logits of the classifier for these images, of shape (B, K).
        explain: Function that computes both maps.

    Returns:
        Scores in [-1, 1], float64 (B,); lower is better. The score is NaN if a logit is NaN or infinite, or if one of
        the maps is constant. By convention, a constant map would have a correlation of 0 and thereby rank above most
        maps.

    Example:
        The 4 x 4 maps for the most likely class (left) and the least likely class (right):

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
    """Return the Pearson correlations of maps (B, H, W), float64 (B,), or 0 if a map is constant."""
    first_unit, second_unit = (_unit(maps.reshape(len(maps), -1).astype(np.float64)) for maps in (first, second))
    return np.clip((first_unit * second_unit).sum(axis=1), -1, 1)


def _unit(rows: np.ndarray) -> np.ndarray:
    """Return the rows centred and scaled to length 1, with zeros for a constant row."""
    constant = rows.max(axis=1, keepdims=True) == rows.min(axis=1, keepdims=True)
    # Squares of tiny or huge values could underflow or overflow, so each row is first divided by its largest value.
    centred = np.where(constant, 0, rows - rows.mean(axis=1, keepdims=True))
    centred /= np.where(constant, 1, np.abs(centred).max(axis=1, keepdims=True))
    return centred / np.where(constant, 1, np.linalg.norm(centred, axis=1, keepdims=True))
