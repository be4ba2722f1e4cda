"""Measure the intersection over union of the salient region and the mask."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.maps import check_threshold, score_regions
from saliency_bench.metrics._papers import ZHANG_2023


@metric(
    version=3,
    title="Overlap (mIoU)",
    higher_is_better=True,
    range=(0, 1),
    paper=ZHANG_2023,
    check=check_threshold,
    also_called=("iou", "mean iou", "jaccard"),
)
def saliency_miou(
    maps: Any, masks: Any, *, threshold: float | Literal["mask_area"] = 0.5, normalise: bool = True
) -> np.ndarray:
    """Return IoU = |S and M| / |S or M| of the salient pixels S = {normalised map > threshold} and the mask M.

    Args:
        maps: Finite maps of shape (B, H, W).
        masks: Masks of shape (B, H, W): booleans, or 0 and one other value.
        threshold: Number in [0, 1] that salient pixels strictly exceed. With "mask_area", S consists of the |M| highest
            pixels instead, with ties broken by the fixed pseudo-random order of `saliency_bench.maps`.
        normalise: Whether to min-max scale each map to [0, 1] first (a constant map becomes zeros). Use
            `normalise=False, threshold=0` for the definition in the code published with Saliency-Bench: map > 0.

    Returns:
        Scores in [0, 1], float64 (B,); higher is better. The score is NaN for an empty mask.

    Raises:
        ValueError: Maps and masks differ in shape, maps are not finite, or masks are not binary.

    Example:
        A 4 x 4 map (left) and its mask, the lower right quarter (right):

            0 0 0 0     0 0 0 0     normalised > 0.5: the three pixels 6, 7 and 8
            0 8 0 0     0 0 0 0     two of them are among the 4 mask pixels; the union has 5
            0 0 6 7     0 0 1 1     IoU = 2 / 5 = 0.4
            0 0 4 2     0 0 1 1     mask_area: 8, 7, 6 and 4; three inside, union of 5: 3 / 5 = 0.6

        >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]]
        >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
        >>> saliency_miou(maps, masks).tolist(), saliency_miou(maps, masks, threshold="mask_area").tolist()
        ([0.4], [0.6])
    """
    return score_regions(_iou, maps, masks, [threshold], normalised=normalise)[:, 0]


def saliency_miou_sweep(
    maps: Any, masks: Any, thresholds: Sequence[float | str], *, normalise: bool = True
) -> np.ndarray:
    """Return `saliency_miou` at each of T thresholds, float64 (B, T)."""
    return score_regions(_iou, maps, masks, thresholds, normalised=normalise)


def _iou(salient: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the intersection over union of two bool arrays (B, H, W), float64 (B,)."""
    shared = np.count_nonzero(salient & inside, axis=(1, 2))
    either = np.count_nonzero(salient | inside, axis=(1, 2))
    return shared / np.maximum(either, 1)
