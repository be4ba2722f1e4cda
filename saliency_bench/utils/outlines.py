"""Outlines as masks: a pixel belongs to an outline where its centre lies inside; and the outlines of COCO's JSON."""

from collections.abc import Sequence
from math import cos, radians, sin
from typing import Any

import numpy as np

Point = tuple[float, float]


def polygon(points: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """Return bool (H, W): the pixels inside the corners [x, y]; where parts overlap, they are inside, too.

    A centre on a left or upper edge is inside, one on a right or lower edge is not, so that neighbours share no pixel.

    >>> polygon([(1, 0), (3, 0), (3, 2), (1, 2)], 2, 4).astype(int).tolist()
    [[0, 1, 1, 0], [0, 1, 1, 0]]

    Raises:
        ValueError: There are less than three corners, or one is not two numbers.
    """
    corners = np.array([[float(x), float(y)] for x, y in points])
    if len(corners) < 3 or not np.isfinite(corners).all():
        raise ValueError("an outline of less than three points, or not of numbers")
    start, end = corners, np.roll(corners, -1, axis=0)
    edges = np.ceil(np.clip(np.stack([start[:, 1], end[:, 1]]), 0, height + 1) - 0.5).astype(int)
    first, last = np.clip(edges.min(0), 0, height), np.clip(edges.max(0), 0, height)
    counts = last - first  # rows whose centres an edge crosses
    edge = np.repeat(np.arange(len(corners)), counts)
    row = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts) + first[edge]
    (x, y), (across, down) = start[edge].T, (end - start)[edge].T
    crossing = np.ceil(np.clip(x + (row + 0.5 - y) / down * across, 0, width + 1) - 0.5).astype(int)
    turns = np.zeros((height, width + 1), np.int32)
    np.add.at(turns, (row, np.clip(crossing, 0, width)), np.sign(down).astype(np.int32))
    return turns.cumsum(1)[:, :width] != 0


def box(left: float, top: float, across: float, down: float, angle: float = 0, at: Point | None = None) -> list[Point]:
    """Return the corners of a box, turned clockwise by an angle in degrees around the point `at`, or its centre."""
    x, y = at or (left + across / 2, top + down / 2)
    c, s = cos(radians(angle)), sin(radians(angle))
    corners = ((left, top), (left + across, top), (left + across, top + down), (left, top + down))
    return [(x + c * (u - x) - s * (v - y), y + s * (u - x) + c * (v - y)) for u, v in corners]


def ellipse(centre: Point, radii: Point, angle: float, height: int, width: int) -> np.ndarray:
    """Return bool (H, W): the pixels of an ellipse, turned clockwise by an angle in degrees.

    Raises:
        ValueError: A number is none, or a radius is not positive.
    """
    if not np.isfinite([*centre, *radii, angle]).all() or min(radii) <= 0:
        raise ValueError("an ellipse that is not of numbers, or without radii")
    across = np.arange(width) + 0.5 - centre[0]
    down = np.arange(height)[:, None] + 0.5 - centre[1]
    c, s = cos(radians(angle)), sin(radians(angle))
    return ((across * c + down * s) / radii[0]) ** 2 + ((down * c - across * s) / radii[1]) ** 2 <= 1


def parts_of(segmentation: Any) -> list[Any]:
    """Return the parts of an outline in COCO's JSON: flat lists [x, y, x, y ...] and run lengths, as they are.

    COCO writes a list of flat lists; programs also write one flat list, and points as pairs.
    """
    if not isinstance(segmentation, list | tuple):
        return [segmentation] if segmentation else []
    if segmentation and all(_is_number(value) for value in segmentation):
        return [list(segmentation)]
    if segmentation and all(_is_pair(value) for value in segmentation):
        return [[number for pair in segmentation for number in pair]]
    return [_flat(part) for part in segmentation]


def _flat(part: Any) -> Any:
    """Return a part whose points are pairs as a flat list, anything else as it is."""
    pairs = isinstance(part, list | tuple) and part and all(_is_pair(value) for value in part)
    return [number for pair in part for number in pair] if pairs else part


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_pair(value: Any) -> bool:
    """Return whether a value is a point [x, y]."""
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
