"""Test rise and lime: slow second implementations, the authors' masks, and draws."""

import builtins

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import pairwise_distances
from torch import nn

from saliency_bench import load_classifier, load_explainer, registry, targets
from saliency_bench.errors import UserError

rise = registry.load("explainers", "rise")


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def literal_mask(grid, row, column, height, width, border="replicate"):
    """Return a mask, computed pixel by pixel: bilinear between cell centres, clamped or mirrored at the border."""
    cells = len(grid)
    tall, wide = -(-height // cells), -(-width // cells)
    mask = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            # position of the pixel's centre in the grid, enlarged to the size of (cells + 1) cells
            v = (y + row + 0.5) * cells / ((cells + 1) * tall) - 0.5
            u = (x + column + 0.5) * cells / ((cells + 1) * wide) - 0.5
            if border == "reflect":
                v, u = (cells - 1 - abs(cells - 1 - abs(place)) if cells > 1 else 0 for place in (v, u))
            v, u = max(v, 0), max(u, 0)
            top, left = min(int(v), cells - 1), min(int(u), cells - 1)
            below, right = min(top + 1, cells - 1), min(left + 1, cells - 1)
            a, b = v - int(v), u - int(u)
            upper = (1 - b) * grid[top][left] + b * grid[top][right]
            lower = (1 - b) * grid[below][left] + b * grid[below][right]
            mask[y, x] = (1 - a) * upper + a * lower
    return mask


@pytest.mark.sample(5)
@pytest.mark.parametrize("border", ["replicate", "reflect"])
@pytest.mark.parametrize(("height", "width", "cells"), [(13, 17, 4), (16, 16, 7), (6, 5, 7), (8, 8, 1)])
def test_rise_matches_literal_loop(height, width, cells, border, stepped_up):
    classifier = load_classifier(small_network(), mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu")
    images, target, count, p = torch.rand(2, 3, height, width), targets.one_hot([0, 2], 3), 23, 0.4
    ours = load_explainer("rise", masks=count, cells=cells, p=p, seed=5, border=border).made(classifier, images, target)

    grids, rows, columns = rise.bank(count, cells, p, 5, height, width)
    for index, image in enumerate(images):
        halves = np.zeros((2, height, width))
        for number, (grid, row, column) in enumerate(zip(grids.numpy(), rows, columns, strict=True)):
            mask = literal_mask(grid, row, column, height, width, border)
            seen = classifier.mean + torch.from_numpy(mask).float() * (image[None] - classifier.mean)
            with torch.no_grad():
                probability = classifier(seen).softmax(dim=1)[0, int(target[index].argmax())].item()
            halves[number % 2] += probability * mask
        np.testing.assert_allclose(ours.maps[index].numpy(), halves.sum(axis=0) / (count * p), rtol=1e-5)
        if cells == 1:  # the mask has a single value, so the map is constant and its halves cannot be compared
            assert ours.reliability[index] is None
            continue
        assert ours.reliability[index] == pytest.approx(stepped_up(*halves), abs=1e-4)
    assert ours.draws == [count] * len(images)


@pytest.mark.parametrize(("height", "width", "cells"), [(224, 224, 7), (30, 44, 4), (9, 9, 2)])
def test_reflected_masks_match_published_code(height, width, cells):
    """Compare with the published lines: resize(grid[i], up_size, order=1, mode="reflect", anti_aliasing=False)[...]."""
    resize = pytest.importorskip("skimage.transform").resize
    grids, rows, columns = rise.bank(6, cells, 0.5, 3, height, width)
    up_size = (cells + 1) * -(-height // cells), (cells + 1) * -(-width // cells)
    ours = rise.enlarge(grids, rows, columns, height, width, "reflect")[:, 0].numpy()
    clamped = rise.enlarge(grids, rows, columns, height, width)[:, 0].numpy()
    for mask, grid, row, column in zip(ours, grids.numpy(), rows, columns, strict=True):
        theirs = resize(grid, up_size, order=1, mode="reflect", anti_aliasing=False)
        np.testing.assert_allclose(mask, theirs[row : row + height, column : column + width], atol=1e-5)
    assert 0.01 < (np.abs(ours - clamped) > 1e-3).mean() < 0.5
    assert np.abs(ours - clamped).max() > 0.2


def test_mask_bank_is_fair_and_within_range():
    grids, rows, columns = rise.bank(4000, 7, 0.3, 0, 100, 60)
    assert (set(grids.unique().tolist()), grids.mean()) == ({0.0, 1.0}, pytest.approx(0.3, abs=0.005))
    assert (rows.min(), rows.max()) == (0, 14)  # ceil(100 / 7) = 15
    assert (columns.min(), columns.max()) == (0, 8)  # ceil(60 / 7) = 9
    again, _, _ = rise.bank(10, 7, 0.3, 0, 100, 60)
    assert not torch.equal(again, rise.bank(10, 7, 0.3, 1, 100, 60)[0])


lime = registry.load("explainers", "lime")


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(24, 3),
    )  # fmt: skip


@pytest.mark.parametrize("on", ["logit", "probability"])
def test_lime_matches_literal_loop(on, stepped_up):
    """Use the formula of the authors for the weights, and scikit-learn for the coefficients."""
    classifier = load_classifier(network(), mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu")
    images, target, seeds = torch.rand(2, 3, 12, 16), targets.contrast([0, 2], [1, 1], 3), [5, 9]
    options = {"samples": 80, "kernel_size": 1.0, "max_dist": 3.0, "ratio": 0.1, "width": 0.4, "ridge": 0.7}
    made = load_explainer("lime", **options, on=on, batch_size=17).made(classifier, images, target, seeds=seeds)
    ours, segments = made.maps, lime.superpixels(images, 1.0, 3.0, 0.1).numpy()
    counts = segments.max(axis=(1, 2)) + 1
    assert counts.min() > 5
    assert counts[0] != counts[1]
    for index, image in enumerate(images):
        shown = lime.draws(seeds[index], 80, int(counts[index])).numpy()
        scores = []
        for row in shown:
            picture = image.clone()
            for segment in np.flatnonzero(~row):
                inside = torch.from_numpy(segments[index] == segment)
                picture[:, inside] = image[:, inside].mean(dim=1, keepdim=True)
            with torch.no_grad():
                logits = classifier(picture[None])[0].double()
            scores.append(float(((logits if on == "logit" else logits.softmax(0)) * target[index]).sum()))
        distances = pairwise_distances(shown.astype(float), np.ones((1, counts[index])), metric="cosine").ravel()
        weights = np.sqrt(np.exp(-(distances**2) / 0.4**2))
        expected = Ridge(alpha=0.7, fit_intercept=True).fit(shown, scores, sample_weight=weights).coef_
        actual = [float(ours[index][torch.from_numpy(segments[index] == segment)][0])
                  for segment in range(len(expected))]  # fmt: skip
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
        halves = [
            Ridge(alpha=0.7 / 2, fit_intercept=True)
            .fit(shown[start::2], scores[start::2], sample_weight=weights[start::2])
            .coef_[segments[index]]
            for start in (0, 1)
        ]
        assert made.reliability[index] == pytest.approx(stepped_up(*halves), abs=1e-4)
    assert made.draws == [80] * len(made.maps)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("side", "kernel_size"), [(16, 1.0), (224, 4.0), (280, 4.0), (112, 2.0)])
def test_superpixels_shrink_with_images_below_224(side, kernel_size):
    images = torch.rand(1, 3, side, side + 4)
    assert torch.equal(lime.superpixels(images, None, 50.0, 0.2), lime.superpixels(images, kernel_size, 50.0, 0.2))


def test_draws_are_fair_and_depend_on_seed():
    shown = lime.draws(3, 2000, 10)
    assert shown[0].all()
    assert shown.float().mean() == pytest.approx(0.5, abs=0.01)
    assert torch.equal(shown, lime.draws(3, 2000, 10))
    assert not torch.equal(shown, lime.draws(4, 2000, 10))


def test_missing_scikit_image_error_names_install_command(monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name.startswith("skimage"):
            raise ModuleNotFoundError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'lime needs scikit-image .* pip install -e ".*\[lime\]"'):
        load_explainer("lime")
