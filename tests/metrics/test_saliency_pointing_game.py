"""Compare saliency_pointing_game with values computed by hand and with loops over pixels, and test its properties."""

import tracemalloc

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from saliency_bench.data.geometry import enlarge
from saliency_bench.metrics.saliency_pointing_game import score as module
from saliency_bench.metrics.saliency_pointing_game.score import saliency_pointing_game

MAPS = arrays(np.float32, (3, 5, 6), elements=st.integers(-3, 3).map(float))
MASKS = arrays(bool, (3, 5, 6), elements=st.sampled_from([False, False, False, True]))


def literal_score(one, mask, ties, tolerance):
    if not mask.any():
        return np.nan
    pixels = [(y, x) for y in range(one.shape[0]) for x in range(one.shape[1])]
    highest, hits = max(one[pixel] for pixel in pixels), []
    for y, x in (pixel for pixel in pixels if one[pixel] == highest):
        squared = [(y - v) ** 2 + (x - u) ** 2 for v, u in pixels if mask[v, u]]
        hits.append(min(squared) <= tolerance**2)
    return float(any(hits)) if ties == "any" else sum(hits) / len(hits)


@given(MAPS, MASKS, st.sampled_from(["share", "any"]), st.sampled_from([0, 1, 2, 3, 5, 50, 0.5, 1.5]))
def test_scores_match_literal_loop(maps, masks, ties, tolerance):
    scores = saliency_pointing_game(maps, masks, ties=ties, tolerance=tolerance)
    expected = [literal_score(*sample, ties, tolerance) for sample in zip(maps, masks, strict=True)]
    np.testing.assert_array_equal(scores, expected)


def test_equal_maxima_of_enlarged_map_share_the_hit():
    """Test that values are rounded. Otherwise the last digit would decide between the equal pixels in the corner."""
    cells = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    maps, masks = enlarge(cells, torch.empty(1, 3, 12, 12)).numpy(), np.zeros((1, 12, 12))
    masks[0, :3, :1] = 1
    assert saliency_pointing_game(maps, masks).tolist() == [1 / 3]
    maps[0, 1, 0] = np.nextafter(maps[0, 1, 0], np.float32(2))
    assert saliency_pointing_game(maps, masks).tolist() == [1]


def test_scores_do_not_depend_on_chunk_size(monkeypatch):
    masks = np.random.default_rng(0).random((2, 9, 7)) > 0.9
    whole = saliency_pointing_game(np.zeros(masks.shape), masks, tolerance=2)
    monkeypatch.setattr(module, "PART", 5)
    np.testing.assert_array_equal(saliency_pointing_game(np.zeros(masks.shape), masks, tolerance=2), whole)


def test_flat_map_with_tolerance_needs_little_memory():
    masks = np.zeros((1, 224, 224), bool)
    masks[0, 100, 100] = True
    tracemalloc.start()
    score = saliency_pointing_game(np.zeros((1, 224, 224)), masks, tolerance=15)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    disc = sum(y * y + x * x <= 225 for y in range(-15, 16) for x in range(-15, 16))
    assert score.tolist() == [disc / 224**2]
    assert peak < 50e6
