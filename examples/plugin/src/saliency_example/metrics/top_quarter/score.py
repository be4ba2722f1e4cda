"""Measure how much of the highest quarter of a map is inside the mask."""

from typing import Any

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.maps import read_pair


@metric(version=1, higher_is_better=True, range=(0, 1), undefined="an empty mask")
def top_quarter(maps: Any, masks: Any) -> np.ndarray:
    """Return the fraction of the H W / 4 highest pixels of each map that are inside its mask.

    Among equal pixels, the first pixels are selected.

    Args:
        maps: finite maps of shape (B, H, W).
        masks: masks of shape (B, H, W): booleans, or 0 and one other value.

    Returns:
        Scores, float64 (B,) in [0, 1], with NaN for an empty mask. Higher is better.

    Example:
        Three of the four highest pixels (8, 7, 6 and 4) are in the lower right corner:

        >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]]
        >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
        >>> top_quarter(maps, masks).tolist()
        [0.75]
    """
    values, inside = read_pair(maps, masks)
    values, inside = values.reshape(len(values), -1), inside.reshape(len(inside), -1)
    highest = np.argsort(-values, axis=1, kind="stable")[:, : values.shape[1] // 4]
    shares = np.take_along_axis(inside, highest, axis=1).mean(axis=1)
    return np.where(inside.any(axis=1), shares, np.nan)
