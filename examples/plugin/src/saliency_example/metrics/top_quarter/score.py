"""Measure how much of the highest quarter of a map lies in the mask."""

from typing import Any

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.maps import read_pair


@metric(version=1, higher_is_better=True, range=(0, 1), undefined="an empty mask")
def top_quarter(maps: Any, masks: Any) -> np.ndarray:
    """Return the share of the H W / 4 highest pixels of each map that lie in its mask; of equal ones the first.

    Args:
        maps: (B, H, W), finite.
        masks: (B, H, W), bool or 0 and one other value.

    Returns:
        Float64 (B,) in [0, 1]; NaN for an empty mask. Higher is better.

    Example:
        Of the four highest pixels, 8, 7, 6 and 4, three lie in the lower right corner:

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
