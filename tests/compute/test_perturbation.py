"""Compare curves with values from pictures built pixel by pixel; check that repeated requests are classified once."""

import math

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

from saliency_bench import load_classifier
from saliency_bench.compute.scoring import perturbation
from saliency_bench.compute.scoring.perturbation import Curves, batched_curves, row_counts
from saliency_bench.compute.targets import contrast
from saliency_bench.maps import descending
from saliency_bench.read.statistics.exposures import area
from saliency_bench.target_weights import one_hot

B, H, W, K = 3, 6, 5, 4
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


class Toy(nn.Module):
    """Linear network with three classes that records the sizes of its batches."""

    def __init__(self, pixels=H * W):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))
        self.linear = nn.Linear(3 * pixels, K)
        self.dropout = nn.Dropout(0.5)
        self.batches = []

    def forward(self, images):
        self.batches.append(len(images))
        return self.dropout(self.linear(((images - self.mean) / self.std).flatten(1)))


@pytest.fixture
def made():
    torch.manual_seed(0)
    images = torch.rand(B, 3, H, W)
    maps = np.random.default_rng(0).integers(0, 6, (B, H, W)).astype(np.float32)  # with ties
    return Toy(), images, one_hot([1, 2, 3], K), maps


def literal_blur(image):
    """Blur the zero-padded normalised image like RISE, with scipy's Gaussian of an impulse in an 11 x 11 window."""
    ndimage = pytest.importorskip("scipy.ndimage")
    impulse = np.zeros((11, 11))
    impulse[5, 5] = 1
    kernel = ndimage.gaussian_filter(impulse, 5)
    blurred = np.zeros_like(image)
    for channel in range(3):
        normalised = (image[channel] - MEAN[channel]) / STD[channel]
        for y in range(H):
            for x in range(W):
                total = 0.0
                for v in range(max(0, y - 5), min(H, y + 6)):
                    for u in range(max(0, x - 5), min(W, x + 6)):
                        total += normalised[v, u] * kernel[v - y + 5, u - x + 5]
                blurred[channel, y, x] = total * STD[channel] + MEAN[channel]
    return blurred


def literal_reference(image, reference):
    if reference == "black":
        return np.zeros_like(image)
    if reference == "farthest":
        return np.array([[[max((0.0, 1.0), key=lambda end: abs(end - x)) for x in r] for r in c] for c in image])
    return literal_blur(image) if reference == "blur" else np.ones_like(image) * np.array(MEAN)[:, None, None]


@pytest.mark.parametrize("keep", ["top", "rest"])
@pytest.mark.parametrize("reference", ["black", "blur", "mean", "farthest"])
def test_path_matches_literal_loops(made, keep, reference):
    classifier, images, target, maps = made
    target = contrast([1, 2, 3], 0, K)
    counts = [0, 1, 7, 29, 30]
    values = Curves(classifier, images, target, maps).path(keep, reference, counts)
    assert (values.dtype, values.shape) == (np.float64, (B, 5))
    classifier.eval()
    orders = descending(maps)
    for i, order in enumerate(orders):
        image = images[i].double().numpy()
        other = literal_reference(image, reference)
        for j, count in enumerate(counts):
            picture = other.copy() if keep == "top" else image.copy()
            for pixel in order[:count]:
                y, x = divmod(int(pixel), W)
                picture[:, y, x] = (image if keep == "top" else other)[:, y, x]
            logits = classifier(torch.from_numpy(picture).float()[None])[0].tolist()
            exponentials = [math.exp(logit) for logit in logits]
            p = [e / sum(exponentials) for e in exponentials]
            assert values[i, j] == pytest.approx(p[i + 1] - p[0], abs=1e-6)


def test_pictures_are_classified_once_in_any_order(made):
    classifier, images, target, maps = made
    curves, other, counts = Curves(*made), Curves(*made), row_counts(H, W)
    insertion = curves.path("top", "black", counts)
    for _ in range(2):
        assert np.array_equal(curves.path("top", "black", counts), insertion)
        assert curves.passes == sum(classifier.batches) == (H + 1) * B
    deletion = curves.path("rest", "black", counts)
    assert curves.passes == sum(classifier.batches) == 2 * (H + 1) * B
    np.testing.assert_allclose(deletion[:, [0, -1]], insertion[:, [-1, 0]], atol=1e-6)
    assert np.array_equal(other.path("rest", "black", counts), deletion)
    assert np.array_equal(other.path("top", "black", counts), insertion)
    assert np.array_equal(other.path("top", "mean", counts), Curves(*made).path("top", "mean", counts))
    for i in reversed(range(B)):
        alone = Curves(classifier, images[i : i + 1], target[i : i + 1], maps[i : i + 1])
        assert np.array_equal(alone.path("top", "black", counts), insertion[i : i + 1])


def test_weighted_each_accepts_counts_per_sample(made):
    classifier, _, target, _ = made
    weights = np.stack([target.numpy(), 1 - target.numpy()], axis=1)
    own = [[3], [], [0, 9, 30]]
    curves = Curves(*made)
    found = curves.weighted_each(weights, "rest", "mean", own)
    assert [values.shape for values in found] == [(1, 2), (0, 2), (3, 2)]
    assert curves.passes == sum(classifier.batches) == 4
    for i, counts in enumerate(own):
        for side in (0, 1):
            expected = Curves(*made).weighted(weights[:, side], "rest", "mean", counts)[i]
            np.testing.assert_allclose(found[i][:, side], expected, atol=1e-6)


def test_curves_keep_classifier_and_images_unchanged(made):
    classifier, images, target, maps = made
    classifier.train()
    before = images.clone(), maps.copy()
    Curves(classifier, images, target, maps).path("top", "blur", [3])
    assert classifier.training
    assert classifier.dropout.training
    assert all(parameter.requires_grad for parameter in classifier.parameters())
    assert torch.equal(images, before[0])
    assert np.array_equal(maps, before[1])


def test_curves_accept_tensors_and_a_shared_target(made):
    classifier, images, _, maps = made
    a = Curves(classifier, images, one_hot(1, K), torch.from_numpy(maps)).path("top", "black", [4])
    assert np.array_equal(a, Curves(classifier, images, one_hot([1] * B, K), maps).path("top", "black", [4]))
    p = Curves(*made).probabilities("top", "black", [0, 4])
    assert (p.dtype, p.shape) == (np.float32, (B, 2, K))
    np.testing.assert_allclose(p.sum(axis=2), 1, atol=1e-6)
    assert Curves(*made).path("top", "black", []).shape == (B, 0)


def test_invalid_curve_inputs_are_rejected(made):
    classifier, images, target, maps = made
    refused("use maps of the size of the images", Curves, classifier, images, target, maps[:, :3])
    refused(r"blakc.*\bblack\b", Curves(*made).path, "top", "blakc", [1])
    refused(r"'top'.*'rest'", Curves(*made).path, "bottom", "black", [1])
    refused(r"\b30\b.*\b31\b", Curves(*made).path, "top", "black", [31])
    refused(r"\b3\b.*\b4\b", Curves(classifier, images, one_hot([0, 1, 2], 3), maps).path, "top", "black", [1])
    refused(r"mean.*load_classifier", Curves(nn.Flatten(), images, target, maps).path, "top", "mean", [1])


def loaded(toy):
    """Return the same network as a classifier with separate normalisation, as a user would load it."""
    return load_classifier(nn.Sequential(nn.Flatten(), toy.linear), mean=MEAN, std=STD, device="cpu")


def points(*given):
    return [curves.path("top", "black", [4]) for curves in batched_curves(*given)]


def test_batched_curves_accept_any_batch_size_and_type(made):
    toy, images, target, maps = made
    classifier, whole = loaded(toy), Curves(*made).path("top", "black", [4])
    parts = points(classifier, images.numpy(), [1, 2, 3], maps, 2)
    assert [len(part) for part in parts] == [2, 1]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-6)
    expected = points(classifier, images, [1, 2, 3], maps)
    for given in (list(images), list(images.numpy()), images.tolist()):
        assert np.array_equal(points(classifier, given, [1, 2, 3], maps), expected)
    for words, *given in (
        ("mean=", toy, images, target, maps),  # its own attribute `mean` is unrelated to the normalisation
        (r"\(2, 3, 6, 5\)", classifier, images, target, maps[:2]),
        ("batch_size must .* got 0", classifier, images, target, maps, 0),
        ("no image", classifier, images[:0], target, maps[:0]),
        ("all arrays must have the same size", classifier, [images[0], images[1, :, :2]], [1, 2, 3], maps),
        # as many classes as images, even if they would match the last batch
        *((r"\b3 images", classifier, images, classes, maps, 1) for classes in ([1, 2], [1], [1, 2, 3, 0], target[:2])),
    ):
        refused(words, list, batched_curves(*given))


def test_row_counts_match_expected_steps():
    assert row_counts(3, 4).tolist() == [0, 4, 8, 12]
    assert row_counts(3, 4, 6).tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert row_counts(3, 3, 2).tolist() == [0, 4, 9]
    assert row_counts(3, 3, 9).tolist() == list(range(10))
    for steps in (0, 10):
        refused(r"\b1\b.*\b9\b", row_counts, 3, 3, steps)


# two trapezoids: (0 + 1) / 2 * 0.2 + (1 + 0.5) / 2 * 0.6, over the width 0.8
def test_area_matches_value_computed_by_hand():
    assert area(np.array([[0, 1, 0.5], [2, 2, 2]]), np.array([0.1, 0.3, 0.9])) == pytest.approx([0.55 / 0.8, 2])


def test_noise_is_uniform_and_seeded_per_sample(made):
    _, images, _, _ = made
    drawn = perturbation.noise(images, [4, 5, 4])
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert ((drawn >= 0) & (drawn < 1)).all()
    many = perturbation.noise(torch.zeros(1, 3, 64, 64), [0])
    assert many.mean().item() == pytest.approx(0.5, abs=0.01)
    assert many.var().item() == pytest.approx(1 / 12, abs=0.003)
    assert len(torch.unique(many)) > 0.99 * many.numel()


@pytest.mark.parametrize("value", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_gaussian_noise_matches_truncated_normal(value):
    """Compare with rejection sampling: draw normal values around the value, and discard those outside [0, 1]."""
    drawn = perturbation.gaussian(torch.full((2, 3, 64, 64), value), [3, 3])
    assert torch.equal(drawn[0], drawn[1])
    drawn = drawn[0].numpy().ravel()
    assert ((drawn >= 0) & (drawn <= 1)).all()
    tried = np.random.default_rng(0).normal(value, perturbation.GAUSSIAN_SIGMA, 60_000)
    expected = tried[(tried >= 0) & (tried <= 1)]
    assert pytest.importorskip("scipy.stats").ks_2samp(drawn, expected).pvalue > 0.01
    assert not torch.equal(*perturbation.gaussian(torch.full((2, 3, 8, 8), value), [3, 4]))


def test_curves_use_noise_of_given_seeds(made):
    classifier, images, target, maps = made
    curves = Curves(classifier, images, target, maps, seeds=[7, 8, 9])
    classifier.eval()
    expected = classifier(perturbation.noise(images, [7, 8, 9])).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(curves.probabilities("top", "noise", [0])[:, 0], expected, atol=1e-6)
    default = Curves(classifier, images, target, maps).probabilities("top", "noise", [0])
    same = Curves(classifier, images, target, maps, seeds=range(B)).probabilities("top", "noise", [0])
    assert np.array_equal(default, same)


def literal_inpainting(image, kept):
    """Fill an image (C, H, W) from the kept pixels (H, W) with averages over squares, from fine to coarse and back."""
    levels = [(np.where(kept, image, 0), kept.astype(float))]
    while levels[-1][1].size > 1 and not (levels[-1][1] > 0).all():
        sums, weights = levels[-1]
        height, width = -(-weights.shape[0] // 2), -(-weights.shape[1] // 2)
        blocks = [[(slice(2 * y, 2 * y + 2), slice(2 * x, 2 * x + 2)) for x in range(width)] for y in range(height)]
        levels.append((
            np.array([[[plane[box].mean() for box in row] for row in blocks] for plane in sums]),
            np.array([[weights[box].mean() for box in row] for row in blocks]),
        ))  # fmt: skip
    colours = None
    for sums, weights in reversed(levels):
        known = sums / np.maximum(weights, 1e-12)
        if colours is not None:
            size = weights.shape
            larger = nn.functional.interpolate(torch.tensor(colours)[None], size=size, mode="bilinear")[0].numpy()
            known = np.where(weights > 0, known, larger)
        colours = known
    return np.where(kept, image, colours)


@pytest.mark.parametrize("share", [-1, 0, 0.02, 0.3, 0.9, 1])  # no pixel is kept, one pixel, ..., all pixels
def test_inpainting_matches_literal_loops(share):
    images = torch.rand(3, 3, 11, 14, dtype=torch.float64)
    kept = torch.rand(3, 1, 11, 14) < share
    kept[:, 0, 5, 5] |= share >= 0
    filled = perturbation.inpainted(images, kept)
    for image, mask, found in zip(images.numpy(), kept[:, 0].numpy(), filled.numpy(), strict=True):
        np.testing.assert_allclose(found, literal_inpainting(image, mask), atol=1e-12)
    assert torch.equal(torch.where(kept, filled, 0), torch.where(kept, images, 0))


@pytest.mark.parametrize("keep", ["top", "rest"])
def test_curves_inpaint_from_kept_pixels(made, keep):
    classifier, images, target, maps = made
    found = Curves(classifier, images, target, maps).probabilities(keep, "inpaint", [7])[:, 0]
    top = torch.zeros(B, H * W, dtype=torch.bool)
    for index, order in enumerate(descending(maps)):
        top[index, order[:7].tolist()] = True
    kept = top.view(B, 1, H, W) if keep == "top" else ~top.view(B, 1, H, W)
    classifier.eval()
    expected = classifier(perturbation.inpainted(images, kept)).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
