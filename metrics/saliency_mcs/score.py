"""Measure how much higher an object's mean value is in an object model's map than in a scene model's map."""

from typing import Literal

import numpy as np
from torch import Tensor, nn

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring import bam
from saliency_bench.compute.scoring.inputs import OtherModel
from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import YANG_2019
from saliency_bench.types import Images


@metric(
    version=2,
    title="Model contrast score (MCS)",
    higher_is_better=True,
    range=(-1, 1),
    paper=YANG_2019,
    undefined="a model does not classify the image correctly",
    parts=bam.parts,
    absent="the model does not classify the image correctly",
    aggregate=bam.difference,
    aggregate_if=bam.is_of_means,
    passes=(0, 1),
    also_called=("model contrast score", "MCS"),
)
def saliency_mcs(
    images: Images,
    masks: np.ndarray,
    logits: Tensor,
    labels: np.ndarray,
    classifier: nn.Module,
    other: OtherModel,
    explain: MapProvider,
    *,
    filter: Literal["both", "each"] = "both",
) -> np.ndarray:
    """Return the object's mean in both models' maps. The model contrast score is the difference of these means.

        score = mean over the object of E(f_o, x, object) - mean over the object of E(f_s, x, scene)

    The score was introduced in BAM (Yang and Kim, 2019) and is defined by equations 11 to 13 of Li et al. (2020). f_o
    is the run's classifier of objects, and f_s is a classifier of scenes, for which the object is irrelevant. Maps are
    first brought to a common scale: negative values become 0, values are clipped at the 99th percentile, and the result
    is min-max scaled to [0, 1].

    Args:
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        masks: Masks of the object, bool (B, H, W).
        logits: Logits of the classifier, of shape (B, K).
        labels: Class of the object, bool (B, K).
        classifier: The run's classifier of objects.
        other: The classifier of scenes, with its target, logits and labels.
        explain: Function that computes both maps.
        filter: Images that are scored. "both": images that both models classify correctly. "each" (equation 12 as
            printed): the mean of f_o uses the images that f_o classifies correctly, and the mean of f_s uses the images
            that f_s classifies correctly. With "each", only the difference of the two means is defined. It has an
            interval, but explainers are not ranked.

    Returns:
        Means of both models in [0, 1], float64 (B, 2). The score is their difference, in [-1, 1]; higher is better.

    Example:
        The 4 x 4 maps of f_o (left) and f_s (right) for an object in the lower right quarter:

            0 0 0 0     4 4 0 0     the 99th percentile is 4 in both; divided by it, the object's mean is
            0 0 0 0     0 0 0 0     (1 + 1 + 0.5 + 0) / 4 = 0.625 for f_o and 0.25 / 4 = 0.0625 for f_s:
            0 0 4 4     0 0 1 0     score = 0.5625
            0 0 2 0     0 0 0 0
    """
    means = tuple(bam.mean_inside(maps, masks) for maps in bam.maps_of_both(images, labels, other, explain))
    return bam.where_right((means[0], means[1]), logits, labels, classifier, other, filter == "each")
