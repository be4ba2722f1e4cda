"""Measure how much of a map's positive value lies in the mask."""

from typing import Any

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.maps import read_maps, read_pair
from saliency_bench.metrics._papers import WANG_2020

LEAST = 1e-7  # smallest sum of the positive values that counts


def marked(maps: Any, masks: Any) -> np.ndarray:
    """Return whether no positive value counts, Bool (B,)."""
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
    """Return the energy-based pointing game: the share of a map's positive values, by sum, inside the mask.

        score = sum over the mask of max(map, 0) / sum over the image of max(map, 0)

    For positive maps this is also known as relevance mass accuracy (Arras et al., 2022). On the dataset grid-xai, whose
    pictures are grids of other pictures with the target's cell as the mask, it is the grid pointing game, GridPG
    (Boehle et al., 2021). A map that is equal everywhere gets the mask's share of the image, which is the chance level.

    Args:
        maps: (B, H, W), finite; negative values do not count.
        masks: (B, H, W), bool or 0 and one other value.

    Returns:
        Float64 (B,) in [0, 1], higher is better; 0 where the positive values sum to less than 1e-7 (a run counts these
        maps); NaN for an empty mask.

    Raises:
        ValueError: Maps and masks differ in shape, maps are not finite, or masks are not binary.

    Example:
        One 4 x 4 map (left) whose mask is the lower right quarter (right):

            0 0 0 0     0 0 0 0     the positive values sum to 8 + 6 + 7 + 4 + 5 = 30
           -3 8 0 0     0 0 0 0     those in the mask to 22
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
    """Return the sum of the positive values of each map, Float64 (B,)."""
    return np.maximum(values, 0).sum(axis=(1, 2), dtype=np.float64, where=where)
