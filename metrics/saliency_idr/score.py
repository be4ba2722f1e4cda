"""Measure how often a scene model's map rises in a region when an object is pasted there."""

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
    undefined="the scene model does not classify both pictures correctly",
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
    """Return BAM's input dependence rate (P1 eq. 14): whether an irrelevant object attracts a scene model's map.

        score = 1 if the mean over the object's region of E(f_s, x, scene) is greater with the object than without

    0 if it is smaller, 1/2 if both are equal, so that a map that never changes is no better than chance (P1 counts only
    greater means, which makes a constant map perfect). Maps are first brought to a common scale: positive part, clipped
    at the 99th percentile, min-max to [0, 1]. The run's own classifier, which classifies objects, is not used. P1 calls
    the score a share of hits; chance is 1/2.

    Args:
        images: (B, 3, H, W) in [0, 1], with the object.
        masks: Bool (B, H, W), the object.
        columns: "image_without_object": (B, 3, H, W), the same scenes without the object.
        other: f_s, the classifier of scenes, with its target, logits and labels.
        explain: makes both maps.
        filter: images that count: "right", images that f_s classifies correctly both with and without the object,
            because the cause of a wrong prediction is another question; "all": all images with the object, like in eq.
            14.

    Returns:
        Float64 (B,), 0, 1/2 or 1, lower is better; with filter="right" NaN unless f_s classifies both pictures
        correctly.

    Example:
        4 x 4 maps of f_s with the object, in the lower right quarter (left), and without (right):

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
