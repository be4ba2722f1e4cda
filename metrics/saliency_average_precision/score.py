"""Measure how well the order of a map's pixels separates the mask from the other pixels."""

from typing import Any

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.maps import read_pair
from saliency_bench.metrics._papers import DAVIS_2006


@metric(
    version=3,
    title="Object ranking (AP)",
    higher_is_better=True,
    range=(0, 1),
    paper=DAVIS_2006,
    also_called=("ap", "map", "auprc"),
)
def saliency_average_precision(maps: Any, masks: Any) -> np.ndarray:
    """Return the area under the stepwise precision-recall curve of each map, over all thresholds.

        AP = sum_n (R_n - R_(n-1)) P_n    over the distinct values v_1 > v_2 > ... of the map

    P_n and R_n are the precision and recall of the pixels {map >= v_n}. Pixels of equal value are added to the curve
    together, as in scikit-learn's average_precision_score. There is no threshold to choose.

    Args:
        maps: Finite maps of shape (B, H, W).
        masks: Masks of shape (B, H, W): booleans, or 0 and one other value.

    Returns:
        Scores in (0, 1], float64 (B,); higher is better. A constant map scores the fraction of the image that the mask
        covers. The score is NaN for an empty mask.

    Raises:
        ValueError: Maps and masks differ in shape, maps are not finite, or masks are not binary.

    Example:
        A 4 x 4 map (left) and its mask, the lower right quarter (right):

            0 0 0 0     0 0 0 0     v    8    7    6    4    2    0
            0 8 0 0     0 0 0 0     P    0   1/2  2/3  3/4  4/5  4/16
            0 0 6 7     0 0 1 1     R    0   1/4  2/4  3/4   1    1
            0 0 4 2     0 0 1 1     AP = 1/4 (1/2 + 2/3 + 3/4 + 4/5) = 0.679

        >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]]
        >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
        >>> saliency_average_precision(maps, masks).round(3).tolist()
        [0.679]
    """
    values, inside = read_pair(maps, masks)
    return np.array([_average_precision(*sample) for sample in zip(values, inside, strict=True)], dtype=np.float64)


def _average_precision(values: np.ndarray, inside: np.ndarray) -> float:
    """Return the average precision of a sample's map (H, W); NaN for an empty mask."""
    if not inside.any():
        return np.nan
    inside_values = np.sort(values[inside])[::-1]  # recall grows only at these values; other steps add nothing
    last = np.flatnonzero(np.append(inside_values[1:] != inside_values[:-1], True))  # last pixel of each distinct value
    hits = last + 1
    below = np.searchsorted(np.sort(values, axis=None), inside_values[last])  # number of pixels with a smaller value
    salient = values.size - below
    return float(np.diff(hits, prepend=0) @ (hits / salient) / hits[-1])
