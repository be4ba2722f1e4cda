"""Test saliency_class_sensitivity by hand, against scipy, by loops, and for invariances."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import pearsonr
from small_networks import input_x_gradient, loaded
from torch import nn

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.metrics.saliency_class_sensitivity.score import pearson, saliency_class_sensitivity

MAPS = arrays(np.float32, (2, 3, 4), elements=st.floats(-100, 100, width=32))


def said_of(count):
    """Return a linear classifier, images and its logits."""
    torch.manual_seed(0)
    classifier = loaded(nn.Sequential(nn.Flatten(), nn.Linear(3 * 30, 5)))
    images = torch.rand(count, 3, 5, 6)
    with torch.no_grad():
        return classifier, images, classifier(images)


def test_scores_match_literal_loop_and_scipy():
    classifier, images, logits = said_of(4)
    explain = MapProvider(as_explainer(input_x_gradient), classifier, range(4))
    scores = saliency_class_sensitivity(images, logits, explain)
    for index in range(4):
        weights = classifier.model[1].weight.detach().double().numpy().reshape(5, 3, 5, 6)
        ordered = sorted(range(5), key=lambda k: logits[index, k])
        maps = [(weights[k] * images[index].double().numpy()).sum(axis=0).ravel() for k in (ordered[-1], ordered[0])]
        means = [sum(values) / 30 for values in maps]
        covariance = sum((a - means[0]) * (b - means[1]) for a, b in zip(*maps, strict=True))
        squares = [sum((a - mean) ** 2 for a in values) for values, mean in zip(maps, means, strict=True)]
        assert scores[index] == pytest.approx(covariance / np.sqrt(squares[0] * squares[1]), abs=1e-5)
        assert scores[index] == pytest.approx(pearsonr(*maps).statistic, abs=1e-5)


@given(MAPS, MAPS)
def test_pearson_matches_scipy(one, two):
    for a, b, found in zip(one, two, pearson(one, two), strict=True):
        if np.ptp(a) == 0 or np.ptp(b) == 0:
            assert found == 0
        else:
            assume(np.ptp(a) > 1e-3 and np.ptp(b) > 1e-3)  # scipy warns about a loss of digits below this
            expected = pearsonr(a.ravel().astype(np.float64), b.ravel().astype(np.float64)).statistic
            assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_pearson_does_not_depend_on_map_scale(scale):
    one, two = np.random.default_rng(0).normal(size=(2, 1, 4, 4))
    assert pearson(one * scale, two) == pytest.approx(pearson(one, two))


def test_class_independent_maps_score_1_and_flat_maps_nan():
    (classifier, images, logits), calls = said_of(3), []

    def bright(classifier, images, target):
        calls.append(len(images))
        return images.mean(dim=1)

    explain = MapProvider(as_explainer(bright), classifier, range(3))
    assert saliency_class_sensitivity(images, logits, explain) == pytest.approx(np.ones(3))
    assert calls == [3, 3]
    images[1] = 0.5
    explain = MapProvider(as_explainer(bright), classifier, range(3))
    assert saliency_class_sensitivity(images, logits, explain) == pytest.approx([1, np.nan, 1], nan_ok=True)
    assert explain.flat == {1}


@pytest.mark.parametrize("constant", ["most likely", "least likely"])
def test_one_constant_map_gives_no_score(constant):
    classifier, images, logits = said_of(2)
    flat_class = (logits.argmax(dim=1) if constant == "most likely" else logits.argmin(dim=1)).tolist()

    def of_one_class(classifier, images, target):
        flat = target[range(len(target)), flat_class] == 1
        return torch.where(flat.view(-1, 1, 1), torch.zeros_like(images[:, 0]), images.mean(dim=1))

    explain = MapProvider(as_explainer(of_one_class), classifier, range(2))
    assert np.isnan(saliency_class_sensitivity(images, logits, explain)).all()
