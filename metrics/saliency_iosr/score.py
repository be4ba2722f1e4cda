"""Measure the fraction of salient pixels that lies in the mask, with a threshold relative to the maximum."""

from typing import Any

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.maps import read_maps, read_pair
from saliency_bench.metrics._papers import LI_2020


def marked(maps: Any, masks: Any, *, threshold: float = 0.5) -> np.ndarray:
    """Return whether each map has no positive value and therefore no salient pixels at any threshold, bool (B,)."""
    return read_maps(maps).max(axis=(1, 2)) <= 0


def check(*, threshold: float) -> None:
    """Raise ValueError if an option is out of range."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float | np.number) or not 0 <= threshold < 1:
        raise ValueError(f"threshold must be a number in [0, 1); got {threshold!r}")


@metric(
    version=2,
    title="Salient area in object (IoSR)",
    higher_is_better=True,
    range=(0, 1),
    paper=LI_2020,
    mark="no salient area",
    marked=marked,
    check=check,
)
def saliency_iosr(maps: Any, masks: Any, *, threshold: float = 0.5) -> np.ndarray:
    """Return the intersection over salient region, |S and M| / |S| where S = {map > threshold * max map}.

    This is equation 17 of the paper. The map is not normalised: scaling it by a positive factor does not change the
    score, but shifting it does.

    Args:
        maps: Finite maps of shape (B, H, W).
        masks: Masks of shape (B, H, W): booleans, or 0 and one other value.
        threshold: Fraction of the map's maximum, in [0, 1), that salient pixels exceed.

    Returns:
        Scores in [0, 1], float64 (B,); higher is better. The score is 0 if the maximum is not positive, because no
        pixel is then salient; a run reports the number of such maps. The score is NaN for an empty mask. A constant
        positive map is salient everywhere, so its score is the fraction of the image that the mask covers.

    Raises:
        ValueError: Maps and masks differ in shape, maps are not finite, or masks are not binary.

    Example:
        A 4 x 4 map (left) and its mask, the lower right quarter (right):

            0 0 0 0     0 0 0 0     the maximum is 8, so 5, 6, 7 and 8 are salient
            0 8 0 0     0 0 0 0     three of these four pixels lie in the mask
            0 0 6 7     0 0 1 1     IoSR = 3 / 4 = 0.75
            0 0 4 5     0 0 1 1

        >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 5]]]
        >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
        >>> saliency_iosr(maps, masks).tolist()
        [0.75]
    """
    check(threshold=threshold)
    values, inside = read_pair(maps, masks)
    high = values.max(axis=(1, 2), keepdims=True).astype(np.float64)
    salient = (values > threshold * high) & (high > 0)
    area = np.count_nonzero(salient, axis=(1, 2))
    scores = np.count_nonzero(salient & inside, axis=(1, 2)) / np.maximum(area, 1)
    return np.where(inside.any(axis=(1, 2)), scores, np.nan)
