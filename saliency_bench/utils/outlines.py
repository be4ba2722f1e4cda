"""Rasterise outlines, and read outlines from COCO's JSON. A pixel is inside an outline if its centre is inside."""

from collections.abc import Sequence
from math import cos, radians, sin
from typing import Any

import numpy as np

Point = tuple[float, float]


def polygon(points: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """Return which pixels are inside a polygon with corners [x, y], bool (H, W).

    Regions where the polygon overlaps itself are inside. A centre on a left or upper edge is inside, and a centre on a
    right or lower edge is outside, so adjacent polygons share no pixel.

    >>> polygon([(1, 0), (3, 0), (3, 2), (1, 2)], 2, 4).astype(int).tolist()
    [[0, 1, 1, 0], [0, 1, 1, 0]]

    Raises:
        ValueError: There are fewer than three corners, or a corner does not consist of two numbers.
    """
    corners = np.array([[float(x), float(y)] for x, y in points])
    if len(corners) < 3 or not np.isfinite(corners).all():
        raise ValueError("an outline with fewer than three points, or with values that are not numbers")
    start, end = corners, np.roll(corners, -1, axis=0)
    edges = np.ceil(np.clip(np.stack([start[:, 1], end[:, 1]]), 0, height + 1) - 0.5).astype(int)
    first, last = np.clip(edges.min(0), 0, height), np.clip(edges.max(0), 0, height)
    counts = last - first  # number of row centres that each edge crosses
    edge = np.repeat(np.arange(len(corners)), counts)
    row = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts) + first[edge]
    (x, y), (across, down) = start[edge].T, (end - start)[edge].T
    crossing = np.ceil(np.clip(x + (row + 0.5 - y) / down * across, 0, width + 1) - 0.5).astype(int)
    turns = np.zeros((height, width + 1), np.int32)
    np.add.at(turns, (row, np.clip(crossing, 0, width)), np.sign(down).astype(np.int32))
    return turns.cumsum(1)[:, :width] != 0


def box(left: float, top: float, across: float, down: float, angle: float = 0, at: Point | None = None) -> list[Point]:
    """Return the corners of a box rotated clockwise by `angle` degrees around `at` (default: the centre of the box)."""
    x, y = at or (left + across / 2, top + down / 2)
    c, s = cos(radians(angle)), sin(radians(angle))
    corners = ((left, top), (left + across, top), (left + across, top + down), (left, top + down))
    return [(x + c * (u - x) - s * (v - y), y + s * (u - x) + c * (v - y)) for u, v in corners]


def ellipse(centre: Point, radii: Point, angle: float, height: int, width: int) -> np.ndarray:
    """Return which pixels are inside an ellipse that is rotated clockwise by `angle` degrees, bool (H, W).

    Raises:
        ValueError: A value is not a number, or a radius is not positive.
    """
    if not np.isfinite([*centre, *radii, angle]).all() or min(radii) <= 0:
        raise ValueError("an ellipse with values that are not numbers, or without positive radii")
    across = np.arange(width) + 0.5 - centre[0]
    down = np.arange(height)[:, None] + 0.5 - centre[1]
    c, s = cos(radians(angle)), sin(radians(angle))
    return ((across * c + down * s) / radii[0]) ** 2 + ((down * c - across * s) / radii[1]) ** 2 <= 1


def parts_of(segmentation: Any) -> list[Any]:
    """Return the parts of a COCO outline as flat lists [x, y, x, y ...]. A run-length encoding is kept as one part.

    COCO uses a list of flat lists. Some programs write a single flat list, or points as pairs.
    """
    if not isinstance(segmentation, list | tuple):
        return [segmentation] if segmentation else []
    if segmentation and all(_is_number(value) for value in segmentation):
        return [list(segmentation)]
    if segmentation and all(_is_pair(value) for value in segmentation):
        return [[number for pair in segmentation for number in pair]]
    return [_flat(part) for part in segmentation]


def _flat(part: Any) -> Any:
    """Convert a list of pairs to a flat list, and return any other value unchanged."""
    pairs = isinstance(part, list | tuple) and part and all(_is_pair(value) for value in part)
    return [number for pair in part for number in pair] if pairs else part


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
