"""Test whether the highest point of a map lies in the mask."""

from typing import Any, Literal

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.maps import read_pair
from saliency_bench.metrics._papers import ZHANG_2018

PART = 4096  # number of maxima whose distances are computed at once


def check(*, ties: str, tolerance: float) -> None:
    """Raise ValueError if an option is out of range."""
    if ties not in ("share", "any"):
        raise ValueError(f"ties='{ties}' is unknown; use 'share' or 'any'")
    if isinstance(tolerance, bool) or not 0 <= tolerance < float("inf"):
        raise ValueError(f"tolerance must be a number of pixels, 0 or more; got {tolerance}")


@metric(
    version=3,
    title="Highest point hits",
    higher_is_better=True,
    range=(0, 1),
    paper=ZHANG_2018,
    check=check,
    also_called=("pg", "pointing"),
)
def saliency_pointing_game(
    maps: Any, masks: Any, *, ties: Literal["share", "any"] = "share", tolerance: float = 0
) -> np.ndarray:
    """Return the fraction of a map's maxima that lie in its mask, which is 1 or 0 for a unique maximum.

        score = |{x : map(x) = max map, distance(x, mask) <= tolerance}| / |{x : map(x) = max map}|

    Args:
        maps: Finite maps of shape (B, H, W).
        masks: Masks of shape (B, H, W): booleans, or 0 and one other value.
        ties: Score of tied maxima. "share": the exact expectation for a maximum chosen at random, so a constant map
            scores the fraction of the image that the mask covers. "any": 1 if at least one of the tied maxima is a hit
            (the published rule).
        tolerance: Distance in pixels, at least 0. A maximum is also a hit if a mask pixel lies within this Euclidean
            distance, inclusive (<=). TorchRay's tolerance of 15 requires a distance below 15 (<), which corresponds to
            tolerance=14.99 for whole pixels. TorchRay also averages the accuracy over classes. To compare with its
            results, first average the scores of each class.

    Returns:
        Scores in [0, 1], float64 (B,); higher is better. The score is NaN for an empty mask.

    Raises:
        ValueError: Maps and masks differ in shape, maps are not finite, or masks are not binary.

    Example:
        A 4 x 4 map (left) with two tied maxima, and its mask (right):

            9 0 0 0     0 0 0 0     one of the two 9s is inside: 1 / 2 = 0.5
            0 0 0 0     0 1 0 0     ties="any": 1
            0 0 9 0     0 0 1 0     tolerance=1: the other 9 is sqrt(2) away, so still 0.5
            0 0 0 0     0 0 0 0     tolerance=2: both are hits: 1

        >>> maps = [[[9, 0, 0, 0], [0, 0, 0, 0], [0, 0, 9, 0], [0, 0, 0, 0]]]
        >>> masks = [[[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]
        >>> saliency_pointing_game(maps, masks).tolist(), saliency_pointing_game(maps, masks, tolerance=2).tolist()
        ([0.5], [1.0])
    """
    check(ties=ties, tolerance=tolerance)
    values, inside = read_pair(maps, masks)
    maxima = values == values.max(axis=(1, 2), keepdims=True)
    hits = maxima & inside if tolerance < 1 else _near(maxima, inside, tolerance)
    share = np.count_nonzero(hits, axis=(1, 2)) / np.count_nonzero(maxima, axis=(1, 2))
    scores = share if ties == "share" else (share > 0).astype(np.float64)
    return np.where(inside.any(axis=(1, 2)), scores, np.nan)


def _near(maxima: np.ndarray, inside: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the maxima within `tolerance` of a mask pixel, bool (B, H, W)."""
    return np.stack([_near_one(*sample, tolerance) for sample in zip(maxima, inside, strict=True)])


def _near_one(maxima: np.ndarray, inside: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the maxima of a map within `tolerance` of a mask pixel, bool (H, W).

    A maximum is near the mask if, in a row dy rows away, the nearest mask pixel is at most sqrt(tolerance^2 - dy^2)
    columns away. Only rows within `tolerance` of a maximum are considered. Maxima are processed `PART` at a time,
    because every pixel of a map may be a maximum.
    """
    height = len(inside)
    rows, columns = np.nonzero(maxima)
    reach = min(int(tolerance), height - 1)
    first = max(rows[0] - reach, 0)
    gaps = _gaps_along_rows(inside[first : rows[-1] + reach + 1])
    dy = np.arange(-reach, reach + 1)
    hits = np.zeros_like(maxima)
    for start in range(0, len(rows), PART):
        row, column = rows[start : start + PART], columns[start : start + PART]
        there = row[:, None] + dy - first
        valid = (there >= 0) & (there < len(gaps))
        dx = gaps[np.where(valid, there, 0), column[:, None]]
        hits[row, column] = (valid & (dx * dx + dy * dy <= tolerance * tolerance)).any(axis=1)
    return hits


def _gaps_along_rows(inside: np.ndarray) -> np.ndarray:
    """Return the column distance of each pixel to the nearest mask pixel of its row, int64 (H, W).

    The distance is a large number if the row has no mask pixel.
    """
    far = 2**30
    column = np.arange(inside.shape[1])
    left = np.maximum.accumulate(np.where(inside, column, -far), axis=1)
    right = np.minimum.accumulate(np.where(inside, column, far)[:, ::-1], axis=1)[:, ::-1]
    return np.minimum(column - left, right - column)
