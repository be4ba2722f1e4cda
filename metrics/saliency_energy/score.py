"""Measure the fraction of a map's positive values that lies in the mask."""

from typing import Any

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.maps import read_maps, read_pair
from saliency_bench.metrics._papers import WANG_2020

LEAST = 1e-7  # smaller sums of positive values are treated as 0


def marked(maps: Any, masks: Any) -> np.ndarray:
    """Return whether the positive values of each map sum to less than `LEAST`, bool (B,)."""
    return _energy(read_maps(maps)) < LEAST


@metric(
    version=1,
    title="Energy in object",
    higher_is_better=True,
    range=(0, 1),
    paper=WANG_2020,
    mark="no positive values",
    marked=marked,
    also_called=("energy-based pointing game", "EBPG", "relevance mass accuracy", "GridPG"),
)
def saliency_energy(maps: Any, masks: Any) -> np.ndarray:
    """Return the energy-based pointing game: the fraction of the sum of positive values that lies inside the mask.

        score = sum over the mask of max(map, 0) / sum over the image of max(map, 0)

    For positive maps, this is also known as relevance mass accuracy (Arras et al., 2022). On the dataset grid-xai, the
    score is the grid pointing game, GridPG (Boehle et al., 2021): each picture is a grid of other pictures, and the
    mask is the cell of the target. A constant positive map scores the fraction of the image that the mask covers, which
    is the chance level.

    Args:
        maps: Finite maps of shape (B, H, W). Negative values are ignored.
        masks: Masks of shape (B, H, W): booleans, or 0 and one other value.

    Returns:
        Scores in [0, 1], float64 (B,); higher is better. The score is 0 if the positive values sum to less than 1e-7; a
        run reports the number of such maps. The score is NaN for an empty mask.

    Raises:
        ValueError: Maps and masks differ in shape, maps are not finite, or masks are not binary.

    Example:
        A 4 x 4 map (left) and its mask, the lower right quarter (right):

            0 0 0 0     0 0 0 0     the positive values sum to 8 + 6 + 7 + 4 + 5 = 30
           -3 8 0 0     0 0 0 0     the positive values in the mask sum to 22
            0 0 6 7     0 0 1 1     score = 22 / 30
            0 0 4 5     0 0 1 1

        >>> maps = [[[0, 0, 0, 0], [-3, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 5]]]
        >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
        >>> saliency_energy(maps, masks).round(4).tolist()
        [0.7333]
    """
    values, inside = read_pair(maps, masks)
    whole, inner = _energy(values), _energy(values, inside)
    scores = np.divide(inner, whole, out=np.zeros(len(whole)), where=whole >= LEAST)
    return np.where(inside.any(axis=(1, 2)), scores, np.nan)


def _energy(values: np.ndarray, where: np.ndarray | bool = True) -> np.ndarray:
    """Return the sum of the positive values of each map, float64 (B,)."""
    return np.maximum(values, 0).sum(axis=(1, 2), dtype=np.float64, where=where)
