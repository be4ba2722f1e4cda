"""Test saliency_consistency: FastDTW against the library, the transforms, and the score by loops and by hand."""

import builtins
import math
from typing import get_args

import numpy as np
import pytest
import torch
from fastdtw import fastdtw as library
from hypothesis import assume, example, given
from hypothesis import strategies as st
from small_networks import Custom

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.transforms import TRANSFORMS, Choice
from saliency_bench.errors import UserError
from saliency_bench.metrics.saliency_consistency.score import distance, shares
from saliency_bench.metrics.saliency_consistency.warping import fastdtw
from saliency_bench.target_weights import one_hot

H, W = 10, 15


def saliency_consistency(*inputs, **options):
    return load_metric("saliency_consistency", **options)(*inputs)


def both(x, y, radius=1):
    """Return (distance, path) of the package and of the library."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    found, path = fastdtw(x, y, radius)
    return (found, [tuple(step) for step in path]), library(x, y, radius=radius)


WHOLE = st.integers(0, 3).map(float)  # few values, so many paths have the same cost
ANY = st.floats(-1e3, 1e3)


SERIES = st.lists(ANY, min_size=1, max_size=40) | st.lists(WHOLE, min_size=1, max_size=40)


@given(SERIES, SERIES, st.integers(1, 6))
@example([0.1, 0.2, 0.3], [0.3, 0.2, 0.1], 1)  # sums that differ in the last bit
def test_fastdtw_matches_library_for_every_radius(x, y, radius):
    ours, theirs = both(x, y, radius)
    assert ours == theirs


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 9), st.integers(1, 3), st.integers(0, 99))
def test_fastdtw_matches_library_for_vectors(rows, others, width, radius, seed):
    rng = np.random.default_rng(seed)
    ours, theirs = both(rng.integers(0, 4, (rows, width)), rng.integers(0, 4, (others, width)), radius)
    assert ours == theirs


@pytest.mark.thorough
def test_fastdtw_matches_library_on_224_pixel_map():
    rng = np.random.default_rng(0)
    for draw in (rng.random, lambda n: np.maximum(rng.normal(size=n), 0)):
        ours, theirs = both(draw(50176), draw(50176))
        assert ours == theirs


FIXED = Custom(lambda net, x: torch.tensor([[0.0, 1.0, 0.5]]).repeat(len(x), 1) + 0 * x.mean())  # class 1 of 3


# The class is the brightest of three corners, so transforms change the prediction of some images.
CORNERS = Custom(lambda net, x: torch.stack([x[:, :, :4, :5], x[:, :, :4, 10:], x[:, :, 6:, :5]]).mean(
    dim=(2, 3, 4)).T)  # fmt: skip


def prepared(classifier, images, explainer, target=None, seeds=None):
    """Return (maps, images, target, logits, classifier, explain)."""
    classifier = load_classifier(classifier, device="cpu", mean=0, std=1)
    with torch.no_grad():
        logits = classifier(images)
    target = one_hot([0] * len(images), 3) if target is None else target
    explain = MapProvider(as_explainer(explainer), classifier, seeds or list(range(len(images))))
    return explain(images, target), images, target, logits, classifier, explain


def corner(classifier, images, target):
    """Return a map that does not depend on the image."""
    maps = images.new_zeros(len(images), *images.shape[2:])
    maps[:, 0, 0] = 1
    return maps


def ramp(classifier, images, target):
    height, width = images.shape[2:]
    wave = torch.sin(torch.arange(float(height * width)) * 0.7).view(height, width)
    return wave + images[:, 0]


def test_scores_match_hand_computed_example():
    """The corner stays, so a 1 at the first position is compared with a 1 at the fourth. Each end costs 1."""
    given = prepared(FIXED, torch.rand(2, 3, 4, 4), corner)
    assert saliency_consistency(*given, transform="flip_horizontal").tolist() == [2, 2]
    assert saliency_consistency(*given, transform="flip_vertical").tolist() == [2, 2]


def literal_there(picture, name):
    """Return a picture (H, W) transformed pixel by pixel."""
    height, width = picture.shape
    result = np.zeros_like(picture)
    for y in range(height):
        for x in range(width):
            if name.startswith("flip"):
                v, u = (y, width - 1 - x) if name == "flip_horizontal" else (height - 1 - y, x)
            elif name.startswith("rotate"):
                v, u = turned(y, x, height, width, float(name.removeprefix("rotate")))
            else:
                down, right = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}[name]
                v, u = y - down * round(0.2 * height), x - right * round(0.2 * width)
            result[y, x] = sampled(picture, v, u)
    return result


def turned(y, x, height, width, degrees):
    """Return the source position of a pixel after a counter-clockwise rotation; y points down."""
    a, cy, cx = math.radians(degrees), (height - 1) / 2, (width - 1) / 2
    return cy + math.sin(a) * (x - cx) + math.cos(a) * (y - cy), cx + math.cos(a) * (x - cx) - math.sin(a) * (y - cy)


def sampled(picture, v, u):
    """Return the value at a position, interpolated bilinearly, with 0 outside."""
    top, left, total = math.floor(v), math.floor(u), 0.0
    for row, down in ((top, 1 - (v - top)), (top + 1, v - top)):
        for column, right in ((left, 1 - (u - left)), (left + 1, u - left)):
            if 0 <= row < picture.shape[0] and 0 <= column < picture.shape[1]:
                total += down * right * picture[row, column]
    return total


BACK = {"right": "left", "left": "right", "down": "up", "up": "down"}


def literal_back(picture, name):
    if name.startswith("rotate"):
        return literal_there(picture, f"rotate{-float(name.removeprefix('rotate'))}")
    return literal_there(picture, BACK.get(name, name))


def literal_series(values):
    low, high = min(values), max(values)
    scaled = [(value - low) / (high - low) for value in values] if high > low else [1.0] * len(values)
    return [value / sum(scaled) for value in scaled]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_match_literal_loop(name):
    picture, way = np.random.default_rng(0).random((H, W)), TRANSFORMS[name]
    for move, literal in ((way.there, literal_there), (way.back, literal_back)):
        moved = move(torch.tensor(picture)[None, None])[0, 0].numpy()
        np.testing.assert_allclose(moved, literal(picture, name), atol=1e-12)
    np.testing.assert_array_equal(way.region(H, W).numpy(), literal_back(np.ones((H, W)), name) > 1 - 1e-9)


def test_choices_list_every_transform():
    assert get_args(Choice) == ("all", *TRANSFORMS)


LITERAL_SERIES = {
    "rows": lambda values, inside: [values[y, x] for y in range(H) for x in range(W) if inside[y, x]],
    "columns": lambda values, inside: [values[y, x] for x in range(W) for y in range(H) if inside[y, x]],
}


@pytest.mark.parametrize("region", ["common", "frame"])
@pytest.mark.parametrize("series", ["rows", "columns", "vectors"])
@pytest.mark.parametrize("radius", [1, 3])
def test_options_match_literal_loop(region, series, radius):
    torch.manual_seed(4)
    images = torch.rand(1, 3, H, W)
    given = prepared(FIXED, images, ramp)
    for name, way in TRANSFORMS.items():
        back = way.back(ramp(None, way.there(images), None)[:, None])[0, 0].numpy()  # last digits determine the path
        inside = literal_back(np.ones((H, W)), name) > 1 - 1e-9 if region == "common" else np.ones((H, W), bool)
        pair = []
        for values in (given[0][0].astype(float), back.astype(float)):
            if series != "vectors":
                pair.append(shares(np.array(LITERAL_SERIES[series](values, inside))))
                continue
            flat = iter(shares(np.array(LITERAL_SERIES["rows"](values, inside))))
            rows = [[next(flat) if inside[y, x] else 0.0 for x in range(W)] for y in range(H)]
            pair.append([row for row, held in zip(rows, inside, strict=True) if held.any()])
        expected = library(np.array(pair[0]), np.array(pair[1]), radius=radius)[0]
        found = saliency_consistency(*given, transform=name, region=region, series=series, radius=radius)
        assert found == pytest.approx([expected], rel=1e-9)


def test_default_score_is_mean_over_transforms():
    given = prepared(FIXED, torch.rand(2, 3, H, W), ramp)
    each = [saliency_consistency(*given, transform=name) for name in TRANSFORMS]
    assert saliency_consistency(*given) == pytest.approx(np.mean(each, axis=0))
    metric = load_metric("saliency_consistency")
    assert metric.parts(None) == tuple(TRANSFORMS)
    np.testing.assert_array_equal(metric.with_parts(*given)[1], np.stack(each, axis=1))


def test_constant_maps_and_changed_predictions_have_no_score():
    images = torch.rand(2, 3, H, W)

    def flat_for_the_first(classifier, images, target):
        return ramp(classifier, images, target) * target[:, 1, None, None]

    given = prepared(FIXED, images, flat_for_the_first, one_hot([0, 1], 3))
    assert np.isnan(saliency_consistency(*given)).tolist() == [True, False]
    maps, images, target, logits, classifier, explain = given
    assert np.isnan(saliency_consistency(maps, images, target, -logits, classifier, explain)).all()


def test_maps_are_computed_only_for_unchanged_predictions():
    """There are twelve passes for the predictions, and a map for each transform that preserves the prediction."""
    calls = []

    def counted(classifier, images, target):
        calls.append(len(images))
        return ramp(classifier, images, target)

    images = torch.rand(4, 3, H, W) * 0.2
    images[0, :, :3, :4], images[1, :, 7:, :4], images[2, :, :, 8:] = 1, 1, 1
    given = prepared(CORNERS, images, counted)
    classifier, logits = given[4], given[3]
    stays = torch.stack([CORNERS(way.there(images)).argmax(dim=1) == logits.argmax(dim=1)
                         for way in TRANSFORMS.values()], dim=1).numpy()  # fmt: skip
    assert len(set(stays.sum(axis=1))) > 1  # some transforms change some predictions
    before, calls[:] = classifier.passes, []
    scores, parts = load_metric("saliency_consistency").with_parts(*given)
    assert classifier.passes - before == 12 * len(images)
    assert sum(calls) == stays.sum() < 48
    assert len(calls) <= 12
    np.testing.assert_array_equal(np.isfinite(parts), stays)
    assert scores == pytest.approx(np.nanmean(parts, axis=1))


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=30))
def test_series_is_nonnegative_and_sums_to_1(values):
    series = shares(np.array(values))
    assert series.min() >= 0
    assert series.sum() == pytest.approx(1)
    assume(max(values) > min(values))
    assert series == pytest.approx(literal_series(values))


def test_constant_series_is_uniform_and_two_have_no_distance():
    held = np.ones((1, 5), bool)
    assert math.isnan(distance(np.ones((1, 5)), np.zeros((1, 5)), held))
    assert math.isnan(distance(np.ones((1, 5)), np.arange(5.0)[None], ~held))
    uniform, step = np.ones((1, 2)), np.array([[0.0, 1.0]])
    assert distance(uniform, step, held[:, :2]) == pytest.approx(library([0.5, 0.5], [0, 1])[0])


def test_a_missing_library_is_one_line(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.endswith("warping"):
            raise ModuleNotFoundError("No module named 'numba'", name="numba")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'pip install -e ".*\[consistency\]"'):
        distance(np.arange(3.0)[None], np.ones((1, 3)), np.ones((1, 3), bool))
