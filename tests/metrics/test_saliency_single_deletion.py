"""Compare saliency_single_deletion with loops and scipy.

Test its properties, and that each patch is classified once.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr
from torch import nn

from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.metrics._ranks import levels, spearman
from saliency_bench.metrics.saliency_single_deletion.score import marked, saliency_single_deletion
from saliency_bench.target_weights import one_hot


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1))
        self.linear = nn.Linear(3 * 6 * 7, 4)
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        return self.linear(images.flatten(1)) + 0.1 * self.linear(images.flatten(1) ** 2)


@pytest.fixture(scope="module")
def made():
    return Network(), torch.rand(2, 3, 6, 7, generator=torch.Generator().manual_seed(1))


def curves_of(made, maps, target=None):
    network, images = made
    return Curves(network, images, one_hot([1, 2], 4) if target is None else target, maps)


def literal(network, image, one, weights, grid):
    height, width = one.shape
    sums, drops = [], []

    def z(picture):
        with torch.no_grad():
            return sum(w * float(logit) for w, logit in zip(weights, network(picture[None])[0], strict=True))

    for row in range(grid):
        for column in range(grid):
            inside = [
                (y, x) for y in range(height) for x in range(width)
                if y * grid // height == row and x * grid // width == column
            ]  # fmt: skip
            picture = image.clone()
            for y, x in inside:
                picture[:, y, x] = network.mean[0, :, 0, 0]
            sums.append(sum(float(one[y, x]) for y, x in inside))
            drops.append(z(image) - z(picture))
    return spearmanr(sums, drops).statistic


@pytest.mark.parametrize(("grid", "peak"), [(2, None), (3, None), (4, None), (3, 1e5)])
def test_scores_match_literal_loop_and_scipy(made, grid, peak):
    """Check also that a peak in one patch does not change the ranks of the other patches."""
    network, images = made
    maps = np.random.default_rng(0).normal(size=(2, 6, 7)).astype(np.float32)
    maps[:, 0, 0] = peak or maps[:, 0, 0]
    target = torch.tensor([[0.0, 1, 0, 0], [1, -0.5, 0, -0.5]])
    curves, before = curves_of(made, maps, target), network.seen
    found = saliency_single_deletion(curves, grid=grid)
    assert not marked(curves, grid=grid).any()
    assert network.seen - before == curves.passes == 2 * grid**2  # each picture is classified once
    expected = [literal(network, *sample, grid) for sample in zip(images, maps, target.tolist(), strict=True)]
    assert found == pytest.approx(expected, abs=1e-12)


@given(arrays(np.int64, (3, 9), elements=st.integers(-4, 4)), arrays(np.int64, (3, 9), elements=st.integers(-4, 4)))
def test_spearman_with_ties_matches_scipy(one, two):
    for a, b, found in zip(one, two, spearman(one, two), strict=True):
        expected = 0 if np.ptp(a) == 0 or np.ptp(b) == 0 else spearmanr(a, b).statistic
        assert found == pytest.approx(expected, abs=1e-12)


def literal_levels(row, scales):
    """Compare with a loop over sorted values that starts a new level wherever the step exceeds rounding."""
    order = sorted(range(len(row)), key=lambda place: row[place])
    found = dict.fromkeys(order[:1], 0)
    for before, place in itertools.pairwise(order):
        above = row[place] - row[before] > 1e-6 * max(scales[place], scales[before])
        found[place] = found[before] + above
    return [found[place] for place in range(len(row))]


NUMBERS = st.sampled_from([0.0, 1.0, 1 + 1e-7, 1 + 1e-5, -3.0, 1e5, 1e5 + 0.01, 1e5 + 1])


@given(arrays(np.float64, (3, 7), elements=NUMBERS), arrays(np.float64, (3, 7), elements=st.sampled_from([0, 1, 1e5])))
def test_values_equal_up_to_rounding_are_tied(rows, scales):
    assert levels(rows, scales).tolist() == [literal_levels(*pair) for pair in zip(rows, scales, strict=True)]
    largest = [[float(np.abs(row).max())] * 7 for row in rows]
    assert levels(rows).tolist() == [literal_levels(*pair) for pair in zip(rows, largest, strict=True)]


def test_constant_sums_or_drops_score_zero_and_are_marked(made):
    maps = np.ones((2, 6, 7), np.float32)  # patches of a grid of 3 differ in size, so their sums differ
    maps[0] = 0
    curves = curves_of(made, maps)
    assert saliency_single_deletion(curves, grid=2)[0] == 0
    assert marked(curves, grid=2).tolist() == [True, False]

    class Blind(Network):
        def forward(self, images):
            return torch.ones(len(images), 4) * torch.tensor([1.0, 2, 3, 4])

    curves = Curves(Blind(), made[1], one_hot([1, 2], 4), np.random.default_rng(0).normal(size=(2, 6, 7)))
    assert saliency_single_deletion(curves).tolist() == [0, 0]
    assert marked(curves).tolist() == [True, True]


def test_nan_logit_gives_no_score(made):
    class Broken(Network):
        def forward(self, images):
            logits = super().forward(images)
            logits[images[:, 0, 0, 0] == self.mean[0, 0, 0, 0]] = torch.nan
            return logits

    curves = Curves(Broken(), made[1], one_hot([1, 2], 4), np.random.default_rng(0).normal(size=(2, 6, 7)))
    scores = saliency_single_deletion(curves, grid=2)
    assert np.isnan(scores).all()
    assert curves.lost(scores) == [0, 1]
