"""Measure how often the values of a scene model's map rise in a region when an object is pasted into the region."""

from typing import Literal

import numpy as np
import torch

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring import bam
from saliency_bench.compute.scoring.inputs import OtherModel
from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import YANG_2019
from saliency_bench.types import Images
from saliency_bench.utils.untouched import untouched


@metric(
    version=1,
    title="Input dependence (IDR)",
    higher_is_better=False,
    range=(0, 1),
    paper=YANG_2019,
    undefined="the scene model does not classify both images correctly",
    columns=("image_without_object",),
    passes=(1, 2),
    also_called=("input dependence rate", "IDR"),
)
def saliency_idr(
    images: Images,
    masks: np.ndarray,
    columns: dict[str, Images],
    other: OtherModel,
    explain: MapProvider,
    *,
    filter: Literal["right", "all"] = "right",
) -> np.ndarray:
    """Return the input dependence rate: whether an irrelevant object attracts a scene model's map.

        score = 1 if the mean over the object's region of E(f_s, x, scene) is greater with the object than without

    The score is 0 if the mean is smaller with the object, and 1/2 if both means are equal. A map that never changes is
    therefore no better than chance, which is 1/2. Maps are first brought to a common scale: negative values become 0,
    values are clipped at the 99th percentile, and the result is min-max scaled to [0, 1]. The run's classifier of
    objects is not used. The rate was introduced in BAM (Yang and Kim, 2019) and is equation 14 of Li et al. (2020). Li
    et al. describe it as a fraction of hits and assign the score 0 to equal means, so a constant map would be perfect.

    Args:
        images: Images with the object, of shape (B, 3, H, W) with values in [0, 1].
        masks: Masks of the object, bool (B, H, W).
        columns: Additional images. "image_without_object": the same scenes without the object, of shape (B, 3, H, W).
        other: The classifier f_s of scenes, with its target, logits and labels.
        explain: Function that computes both maps.
        filter: Images that are scored. "right": images that f_s classifies correctly both with and without the object,
            because the cause of a wrong prediction is not of interest here. "all": all images with the object, as in
            eq. 14.

    Returns:
        Scores of 0, 1/2 or 1, float64 (B,); lower is better. With filter="right", the score is NaN unless f_s
        classifies both pictures correctly.

    Example:
        The 4 x 4 maps of f_s with an object in the lower right quarter (left) and without the object (right):

            4 4 0 0     4 4 0 0     the 99th percentile is 4 in both; divided by it, the region's mean is
            0 0 0 0     0 0 0 0     0.25 / 4 with the object, 0 without: score = 1
            0 0 1 0     0 0 0 0
            0 0 0 0     0 0 0 0
    """
    without = columns["image_without_object"]
    counts = np.ones(len(images), dtype=bool)
    if filter == "right":
        with untouched(other.classifier), torch.no_grad():
            logits = other.classifier(without).cpu()
        for seen in (other.logits, logits):
            counts &= bam.is_right(other.classifier, seen, other.labels)
    kept = np.flatnonzero(counts).tolist()
    scores = np.full(len(images), np.nan)
    if kept:
        first = explain(images, other.target, classifier=other.classifier)[kept]
        second = explain(without[kept], other.target[kept], kept, classifier=other.classifier)
        more, less = (bam.mean_inside(bam.preprocessed(maps), masks[kept]) for maps in (first, second))
        scores[kept] = np.where(np.isnan(more), np.nan, (1 + np.sign(more - less)) / 2)
    return scores
