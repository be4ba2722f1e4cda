"""Tests of variants of metrics, against cases computed by hand."""

import numpy as np
import pytest
import readings as script


def test_overlaps_at_the_size_of_the_map_and_of_the_last_layer():
    """Test 14 x 14 pixels with a bright corner of 2 x 2 pixels, which is one cell of 7 x 7.

    The mask is this and the next cell.
    """
    values, mask = np.zeros((14, 14)), np.zeros((14, 14), dtype=bool)
    values[:2, :2], mask[:2, :4] = 1, True
    scores = dict(script.overlaps(values, mask))
    assert scores["signed, > 0.5"] == scores["signed, > 0.5; 7 x 7 cells"] == 0.5
    background = (0.5 + 188 / 192) / 2
    assert scores["signed, > 0.5; mean with the background"] == pytest.approx(background)
    assert scores["sum of minima / sum of maxima"] == 0.5


def test_hits_of_tied_and_of_negative_peaks():
    values, mask = np.zeros((21, 21)), np.zeros((21, 21), dtype=bool)
    values[0, 0], values[0, 20], values[20, 20] = 1, 1, -2
    mask[20, 20] = mask[0, 20] = True
    scores = dict(script.hits(values, mask))
    assert scores["peak"] == 0.5
    assert scores["peak, first in reading order"] == 0
    assert scores["peak of the absolute values"] == scores["lowest point"] == 1
    assert scores["peak, 15 pixels of tolerance"] == 0
    mask[0, 14] = True  # 14 pixels away
    assert dict(script.hits(values, mask))["peak, 15 pixels of tolerance"] == 1


def test_a_class_counts_once_however_many_images_it_has():
    assert script.per_class([1, 0, 0, 0], [0, 1, 1, 1]) == 0.5


def test_the_table_shows_the_nearest_reading_first():
    exact = {name: numbers[0] for name, numbers in script.PRINTED.items()} | dict.fromkeys(script.BASELINES, 0.5)
    readings = {"far": dict.fromkeys((*script.PRINTED, *script.BASELINES), 0.3), "near": exact | {"rise": 0.2}}
    rows = script.table("mIoU", 0, readings).splitlines()[4:]
    assert [row.split(" | ")[0] for row in rows] == ["| printed", "| near", "| far"]
    assert rows[1].endswith("| 0.015 |")
