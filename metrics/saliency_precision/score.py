"""Measure the fraction of salient pixels that lies in the mask."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.maps import check_threshold, score_regions
from saliency_bench.metrics._papers import ACHANTA_2009


@metric(
    version=3,
    title="Salient pixels in object",
    higher_is_better=True,
    range=(0, 1),
    paper=ACHANTA_2009,
    check=check_threshold,
)
def saliency_precision(
    maps: Any, masks: Any, *, threshold: float | Literal["mask_area"] = 0.5, normalise: bool = True
) -> np.ndarray:
    """Return precision = |S and M| / |S| of the salient pixels S = {normalised map > threshold} and the mask M.

    Args:
        maps: Finite maps of shape (B, H, W).
        masks: Masks of shape (B, H, W): booleans, or 0 and one other value.
        threshold: Number in [0, 1] that salient pixels strictly exceed. With "mask_area", S consists of the |M| highest
            pixels instead. Ties are then broken by the fixed pseudo-random order of `saliency_bench.maps`, and
            precision and recall are equal.
        normalise: Whether to min-max scale each map to [0, 1] first (a constant map becomes zeros). False: use the
            unchanged map.

    Returns:
        Scores in [0, 1], float64 (B,); higher is better. The score is 0 if no pixel is salient and NaN for an empty
        mask.

    Raises:
        ValueError: Maps and masks differ in shape, maps are not finite, or masks are not binary.

    Example:
        A 4 x 4 map (left) and its mask, the lower right quarter (right):

            0 0 0 0     0 0 0 0     normalised > 0.5: the three pixels 6, 7 and 8
            0 8 0 0     0 0 0 0     two of them are among the 4 mask pixels
            0 0 6 7     0 0 1 1     precision = 2 / 3
            0 0 4 2     0 0 1 1     mask_area: 8, 7, 6 and 4; three inside: 3 / 4

        >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]]
        >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
        >>> saliency_precision(maps, masks).tolist(), saliency_precision(maps, masks, threshold="mask_area").tolist()
        ([0.6666666666666666], [0.75])
    """
    return score_regions(_precision, maps, masks, [threshold], normalised=normalise)[:, 0]


def saliency_precision_sweep(
    maps: Any, masks: Any, thresholds: Sequence[float | str], *, normalise: bool = True
) -> np.ndarray:
    """Return `saliency_precision` at each of T thresholds, float64 (B, T)."""
    return score_regions(_precision, maps, masks, thresholds, normalised=normalise)


def _precision(salient: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the precision of bool arrays (B, H, W), float64 (B,), or 0 if no pixel is salient."""
    shared = np.count_nonzero(salient & inside, axis=(1, 2))
    return shared / np.maximum(np.count_nonzero(salient, axis=(1, 2)), 1)
