"""Compare saliency_cdrop with a literal version of the published computation, on pictures built pixel by pixel."""

import math

import numpy as np
import pytest

from saliency_bench.compute.targets import contrast
from saliency_bench.metrics.saliency_cdrop.score import saliency_cdrop
from saliency_bench.target_weights import one_hot

H, W, K = 6, 5, 4


def literal_cdrop(slow, i, a, b, step, threshold):
    one = slow.maps[i]
    low, high = float(one.min()), float(one.max())
    salient = sum(float(value) > low + threshold * (high - low) for value in one.flat)
    length, s = max(1, math.ceil(salient / step)), []
    for gone in range(0, length * step, step):
        p = slow.rest(i, gone, "mean")
        s.append(p[a] * (1 - p[b]))
    end = sum(s[-3:]) / 3 if length >= 3 else s[-1]
    tau = 0.05 * H * W
    return (s[0] - end) / math.log2(1 + max(salient, tau) / tau), length


def test_every_score_by_loops(slow):
    lengths = set()
    for step in (1, 3, 5, 16):
        for threshold in (0.1, 0.5, 0.9):
            curves = slow.curves(contrast([0, 1, 2], [3, 2, 0], K))
            scores = saliency_cdrop(curves, step=step, threshold=threshold)
            for i, (a, b) in enumerate([(0, 3), (1, 2), (2, 0)]):
                expected, length = literal_cdrop(slow, i, a, b, step, threshold)
                lengths.add(min(length, 4))
                assert scores[i] == pytest.approx(expected, abs=1e-6)
    assert lengths == {1, 2, 3, 4}


def test_only_the_points_that_count_are_classified(slow):
    """The whole image and the last three points of each path are classified; the paths have 1, 20 and 29 points."""
    slow.maps = np.zeros((3, H, W), np.float32)
    slow.maps[0, 0, 0], slow.maps[1, :4], slow.maps[2] = 1, 1, np.arange(1, 31).reshape(H, W)
    curves = slow.curves(contrast([0, 1, 2], [3, 2, 0], K))
    saliency_cdrop(curves, step=1, threshold=0.0)
    assert curves.passes == slow.classifier.pictures == 1 + 4 + 4 + 3  # plus three whole images, to find B


def test_few_salient_pixels_and_constant_maps_get_nothing(slow):
    slow.maps = np.zeros((3, H, W), np.float32)
    slow.maps[1, 0, :3] = 1
    assert saliency_cdrop(slow.curves(one_hot([0, 1, 2], K)), step=4).tolist() == [0, 0, 0]
