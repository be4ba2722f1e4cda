"""Tests of masks from outlines, against a slow second implementation that tests the centre of each pixel."""

from itertools import pairwise
from math import cos, radians, sin

import numpy as np
import pytest

from saliency_bench.utils.outlines import box, ellipse, parts_of, polygon

SIZE = (20, 28)


def winding(points, height, width):
    """Return the winding number of the corners around the centre of each pixel, pixel by pixel."""
    mask = np.zeros((height, width), bool)
    for row, column in np.ndindex(height, width):
        x, y, turns = column + 0.5, row + 0.5, 0
        for (x0, y0), (x1, y1) in pairwise([*points, points[0]]):
            if min(y0, y1) <= y < max(y0, y1) and x0 + (y - y0) / (y1 - y0) * (x1 - x0) <= x:
                turns += 1 if y1 > y0 else -1
        mask[row, column] = turns != 0
    return mask


@pytest.mark.parametrize("seed", range(8))
def test_polygon_matches_literal_winding_number(seed):
    random = np.random.default_rng(seed)
    points = random.random((random.integers(3, 9), 2)) * (40, 30) - (6, 5)
    if seed % 2:  # corners and edges through the centres of pixels
        points = (points * 2).round() / 2
    np.testing.assert_array_equal(polygon(points.tolist(), *SIZE), winding(points.tolist(), *SIZE))


def test_box_covers_its_pixels_and_neighbours_do_not_overlap():
    mask = np.zeros(SIZE, bool)
    mask[3:9, 5:11] = True
    np.testing.assert_array_equal(polygon(box(5, 3, 6, 6), *SIZE), mask)
    np.testing.assert_array_equal(polygon(box(5, 3, 6, 6, 90), *SIZE), mask)  # a square rotated around its centre
    left, right = (polygon(box(x, 2.5, 4.5, 7), *SIZE) for x in (3, 7.5))
    assert not (left & right).any()
    np.testing.assert_array_equal(left | right, polygon(box(3, 2.5, 9, 7), *SIZE))
    assert not polygon(box(-50, -50, 40, 40), *SIZE).any()
    assert polygon(box(-50, -50, 400, 400), *SIZE).all()


def test_box_rotates_clockwise_around_corner():
    turned, mask = polygon(box(10, 4, 6, 3, 90, at=(10, 4)), *SIZE), np.zeros(SIZE, bool)
    mask[4:10, 7:10] = True  # the right side becomes the bottom, and the bottom becomes the left side
    np.testing.assert_array_equal(turned, mask)


@pytest.mark.parametrize("angle", [0, 30, 90, 200.5])
def test_ellipse_matches_literal_loop(angle):
    mask = np.zeros(SIZE, bool)
    c, s = cos(radians(angle)), sin(radians(angle))
    for row, column in np.ndindex(*SIZE):
        across, down = column + 0.5 - 13, row + 0.5 - 9
        along, beside = across * c + down * s, down * c - across * s
        mask[row, column] = (along / 8) ** 2 + (beside / 3) ** 2 <= 1
    np.testing.assert_array_equal(ellipse((13, 9), (8, 3), angle, *SIZE), mask)
    assert mask.any()


@pytest.mark.parametrize("points", [[(0, 0), (1, 1)], [(0, 0), (1, float("nan")), (2, 3)], [(0, 0, 1)] * 3])
def test_invalid_outline_is_rejected(points):
    with pytest.raises(ValueError, match=r"outline|unpack"):
        polygon(points, *SIZE)
    with pytest.raises(ValueError, match="radii"):
        ellipse((1, 1), (0, 3), 0, *SIZE)


RUNS = {"size": [1, 2], "counts": [1, 1]}
FLAT = [1, 2, 3.5, 4, 5, 6]
PAIRS = [[1, 2], [3.5, 4], [5, 6]]


@pytest.mark.parametrize(("segmentation", "parts"), [
    ([FLAT], [FLAT]), (FLAT, [FLAT]), (PAIRS, [FLAT]), ([PAIRS, PAIRS], [FLAT, FLAT]),
    ([FLAT, PAIRS, RUNS], [FLAT, FLAT, RUNS]), (RUNS, [RUNS]), ([[1, 2, 3, 4], FLAT], [[1, 2, 3, 4], FLAT]), ([], []),
    (None, []), ([None, True], [None, True]),
])  # fmt: skip
def test_segmentation_is_split_into_parts(segmentation, parts):
    assert parts_of(segmentation) == parts
