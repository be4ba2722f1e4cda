"""Compare metrics of perturbation curves with pictures built pixel by pixel, a dense system and Quantus."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.scoring.imputation import NOISE, imputed, slight_noise
from saliency_bench.compute.scoring.perturbation import Curves, blurred
from saliency_bench.compute.targets import contrast, group
from saliency_bench.data.geometry import enlarge
from saliency_bench.metrics.saliency_cds.score import saliency_cds
from saliency_bench.metrics.saliency_deletion.score import saliency_deletion
from saliency_bench.metrics.saliency_insertion.score import saliency_insertion
from saliency_bench.target_weights import one_hot

H, W, K = 6, 5, 4  # of the fixture `slow`


@pytest.mark.parametrize("fill", ["black", "mean"])
@pytest.mark.parametrize("members", [{1}, {0, 2}])
def test_cds_matches_literal_loop(slow, fill, members):
    scores = saliency_cds(slow.curves(group(members, K)), reference=fill)
    for i, score in enumerate(scores):
        whole = sum(slow.rest(i, 0, fill)[k] for k in members)
        shifts = [whole - sum(slow.rest(i, count, fill)[k] for k in members) for count in range(3, 30, 3)]
        area = sum((shifts[j] + shifts[j - 1]) / 2 * 0.1 for j in range(1, 9))
        assert score == pytest.approx(area / 0.8, abs=1e-6)


def test_cds_ignores_the_contrast_class(slow):
    alone = saliency_cds(slow.curves(one_hot([0, 1, 2], K)))
    against = saliency_cds(slow.curves(contrast([0, 1, 2], [3, 3, 3], K)))
    assert (alone == against).all()


@pytest.mark.parametrize("fill", ["black", "mean"])
@pytest.mark.parametrize(("steps", "counts"), [(None, range(0, 31, 5)), (3, (0, 10, 20, 30))])
def test_deletion_matches_literal_loop(slow, fill, steps, counts):
    target = contrast([0, 1, 2], [3, 3, 3], K)
    scores = saliency_deletion(slow.curves(target), reference=fill, steps=steps)
    for i, score in enumerate(scores):
        curve = [p[i] - p[3] for p in (slow.rest(i, count, fill) for count in counts)]
        trapezoids = [(left + right) / 2 / (len(counts) - 1) for left, right in pairwise(curve)]
        assert score == pytest.approx(sum(trapezoids), abs=1e-6)


class Grey(nn.Module):
    """Network for one channel. With three channels, Quantus would order the pixels of all channels together."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images.expand(-1, 3, -1, -1))


@pytest.mark.slow
def test_deletion_matches_quantus_pixel_flipping(slow):
    quantus = pytest.importorskip("quantus")
    images, labels = slow.images.mean(dim=1, keepdim=True), np.arange(3)
    images[:, 0, 0, 0] = 0  # black in Quantus is the smallest value of the images
    maps = np.random.default_rng(1).permutation(90).reshape(3, H, W).astype(np.float32)  # Quantus has no rule for ties
    metric = quantus.PixelFlipping(features_in_step=W, perturb_baseline="black", abs=False, normalise=False,
                                   disable_warnings=True)  # fmt: skip
    theirs = metric(model=Grey(slow.classifier).eval(), x_batch=images.numpy(), y_batch=labels, a_batch=maps[:, None],
                    device="cpu")  # fmt: skip
    curves = Curves(slow.classifier, images.expand(-1, 3, -1, -1), one_hot(labels, K), maps)
    whole = curves.path("rest", "black", [0])
    expected = np.trapezoid(np.concatenate([whole, theirs], axis=1), axis=1) / H
    assert saliency_deletion(curves) == pytest.approx(expected, abs=1e-6)


SIZE = 4


class Additive(nn.Module):
    """Network in which p of class 1 is a weighted sum over the pixels, with weights (H, W) of sum 1."""

    def __init__(self, weights, mean=0.0):
        super().__init__()
        self.register_buffer("mean", torch.full((1, 3, 1, 1), mean))
        self.register_buffer("std", torch.ones(1, 3, 1, 1))
        self.register_buffer("weights", torch.as_tensor(weights, dtype=torch.float64))

    def forward(self, images):
        p = (images.double().mean(dim=1) * self.weights).sum(dim=(1, 2)).clamp(1e-12, 1 - 1e-12)
        return torch.stack([torch.log1p(-p), torch.log(p)], dim=1)


def insertion(classifier, images, maps, target=None, **options):
    target = one_hot([1] * len(images), 2) if target is None else target
    return saliency_insertion(Curves(classifier, images, target, maps), **options)


def corner():
    weights = torch.zeros(SIZE, SIZE)
    weights[0] = 0.25
    return weights


def test_insertion_matches_hand_computation():
    maps = np.arange(16, 0, -1).reshape(1, SIZE, SIZE)  # the first row first
    images = torch.ones(1, 3, SIZE, SIZE)
    assert insertion(Additive(corner()), images, maps) == pytest.approx([0.875])
    assert insertion(Additive(corner()), images, -maps) == pytest.approx([0.125])
    # one pixel at a time: 0, 1/4, 1/2, 3/4, 1, then twelve more values of 1
    assert insertion(Additive(corner()), images, maps, steps=16) == pytest.approx(
        [(0.25 + 0.5 + 0.75 + 12 - 0.5 + 1) / 16]
    )
    assert insertion(Additive(corner()), images, maps, steps=1) == pytest.approx([0.5])


@pytest.mark.parametrize("start", ["auto", "subtract", "keep"])
@pytest.mark.parametrize(("reference", "steps"), [("black", None), ("mean", 1), ("blur", None), ("blur", 16)])
def test_insertion_matches_literal_loop(reference, steps, start):
    rng = np.random.default_rng(0)
    classifier = Additive(rng.dirichlet(np.ones(16)).reshape(SIZE, SIZE), mean=0.4)
    images = torch.from_numpy(rng.random((3, 3, SIZE, SIZE))).float()
    maps, target = rng.normal(size=(3, SIZE, SIZE)), contrast([1, 1, 0], [0, 0, 1], 2)
    scores = insertion(classifier, images, maps, target, reference=reference, steps=steps, start=start)
    empty = {"black": 0 * images, "mean": 0 * images + 0.4, "blur": blurred(classifier, images)}[reference]
    for image, picture, values, weights, score in zip(images, empty, maps, target, scores, strict=True):
        order, curve = np.argsort(-values.ravel()), []
        for count in range(0, 17, 16 // (steps or SIZE)):
            for pixel in order[:count]:
                picture[:, pixel // SIZE, pixel % SIZE] = image[:, pixel // SIZE, pixel % SIZE]
            curve.append(float((classifier(picture[None]).softmax(dim=1)[0] * weights).sum()))
        area = sum((left + right) / 2 for left, right in pairwise(curve)) / (len(curve) - 1)
        subtracted = start == "subtract" or (start == "auto" and reference == "blur")
        assert score == pytest.approx(area - (curve[0] if subtracted else 0), abs=1e-6)


def test_contrast_may_gain_2_over_its_start():
    """p of class 1 minus p of class 0 changes from -1 to 1, so the curve minus its start ends at 2."""
    curves = Curves(Additive(corner()), torch.ones(1, 3, SIZE, SIZE), contrast([1], [0], 2),
                    np.arange(16, 0, -1).reshape(1, 4, 4))  # fmt: skip
    assert load_metric("saliency_insertion", start="subtract")(curves) == pytest.approx([2 * 0.875])
    ranges = {start: load_metric("saliency_insertion", start=start).range for start in ("keep", "auto", "subtract")}
    assert ranges == {"keep": (-1, 1), "auto": (-1, 1), "subtract": (-2, 2)}
    assert load_metric("saliency_insertion", reference="blur").range == (-2, 2)  # minus the start


@pytest.mark.parametrize(("cells", "side", "limit"), [(2, 64, 2e-5), (4, 64, 2e-5), (7, 224, 5e-6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_noise_hardly_changes_score_of_enlarged_map(cells, side, limit, dtype):
    """Cells that differ by a millionth, as between batch sizes, are rounded before they are enlarged.

    If the last digits determined the order, scores of Grad-CAM for a ResNet-18 at 64 pixels (2 x 2 cells) would differ
    between batches of 1 and 32 by up to 0.009 (insertion) and 0.038 (deletion).
    """
    rng = np.random.default_rng(0)
    count = 24 if side < 224 else 4
    images = torch.from_numpy(rng.random((count, 3, side, side))).float()
    classifier = Additive(rng.dirichlet(np.full(side * side, 0.1)).reshape(side, side))
    values, scores = rng.normal(size=(count, 1, cells, cells)), []
    for noise in (0, 1e-6):
        given = torch.from_numpy(values * (1 + noise * rng.uniform(-1, 1, values.shape))).to(dtype)
        scores.append(insertion(classifier, images, enlarge(given[:, 0], images).numpy()))
    np.testing.assert_allclose(scores[0], scores[1], atol=limit, rtol=0)


EXPOSURES = (0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1)
COUNTS = (0, 2, 3, 4, 6, 9, 15, 22, 30)  # of 30 pixels; halves (1.5, 4.5, 22.5) are rounded to the even number
LABELS = ({0}, {1}, {2})


def table(labels):
    """Return the correct classes of each sample, Bool (B, K)."""
    return np.array([[k in right for k in range(K)] for right in labels])


def saliency_kae(curves, labels=LABELS, **options):
    return load_metric("saliency_kae", **options)(curves, table(labels))


def saliency_roae(curves, labels=LABELS, **options):
    return load_metric("saliency_roae", **options)(curves, table(labels))


both = pytest.mark.parametrize("score", [saliency_kae, saliency_roae])


def drawn(score, slow, *picture):
    """Return the probabilities of a sample's perturbed picture for a pixel count and a fill."""
    return slow.top(*picture) if score is saliency_kae else slow.rest(*picture)


def right(p, members):
    return float(max(range(K), key=lambda k: (p[k], -k)) in members)


@both
@pytest.mark.parametrize("fill", ["black", "mean"])
def test_accuracies_and_area_match_literal_loop(slow, score, fill):
    labels = [0, 1, 2]
    curves = slow.curves(one_hot(labels, K))
    scores, metric = score(curves, reference=fill), load_metric(score.__name__, reference=fill)
    assert metric.parts(None) == tuple(f"{exposure:g}" for exposure in EXPOSURES)
    seen = set()
    for i, label in enumerate(labels):
        accuracy = [right(drawn(score, slow, i, count, fill), {label}) for count in COUNTS]
        seen |= set(accuracy)
        area = sum((EXPOSURES[j] - EXPOSURES[j - 1]) * (accuracy[j] + accuracy[j - 1]) / 2
                   for j in range(1, len(EXPOSURES)))  # fmt: skip
        assert scores[i] == pytest.approx(area)
        assert metric.with_parts(curves, table([{0}, {1}, {2}]))[1][i].tolist() == accuracy
        for exposure, expected in zip(EXPOSURES, accuracy, strict=True):
            assert score(curves, reference=fill, exposure=exposure)[i] == expected
    assert seen == {0.0, 1.0}


@both
@pytest.mark.parametrize("labels", [[{0}, {1}, {2}], [{3}, {3}, {3}], [{1, 3}, {0, 2}, {0, 1, 2, 3}]])
def test_accuracy_uses_label_whatever_the_target(slow, score, labels):
    """Maps of another class, a contrast and a group are also scored by comparing the prediction with the label."""
    expected = [right(drawn(score, slow, i, 9), members) for i, members in enumerate(labels)]
    for target in (one_hot([1, 2, 3], K), contrast([0, 0, 0], [1, 2, 3], K), group([1, 3], K)):
        assert score(slow.curves(target), labels, exposure=0.3).tolist() == expected


@both
def test_sigmoid_prediction_is_correct_above_one_half(slow, score):
    slow.classifier.activation = "sigmoid"
    labels = [{0}, {1, 2}, {3}]
    for exposure, count in ((0.3, 9), (0.5, 15)):
        found = score(slow.curves(one_hot([0, 1, 2], K)), labels, exposure=exposure)
        for i, members in enumerate(labels):
            p = drawn(score, slow, i, count)
            assert found[i] == float(any(p[member] > 0.5 for member in members))


KEPT = arrays(bool, (5, 7)).filter(np.any)


def literal_imputation(image, kept):
    """Impute (C, H, W) with every pixel as an unknown; a missing pixel is the mean of its neighbours."""
    channels, height, width = image.shape
    matrix, right = np.zeros((height * width,) * 2), np.zeros((height * width, channels))
    for y in range(height):
        for x in range(width):
            row = y * width + x
            matrix[row, row] = 1
            if kept[y, x]:
                right[row] = image[:, y, x]
                continue
            neighbours = {(v, u): 1 / 6 if v == y or u == x else 1 / 12
                          for v in range(max(0, y - 1), min(height, y + 2))
                          for u in range(max(0, x - 1), min(width, x + 2)) if (v, u) != (y, x)}  # fmt: skip
            for (v, u), weight in neighbours.items():
                matrix[row, v * width + u] = -weight / sum(neighbours.values())
    return np.linalg.solve(matrix, right).T.reshape(image.shape)


def impute(image, kept):
    images = imputed(torch.from_numpy(image)[None], torch.from_numpy(kept)[None, None])
    return images[0].numpy()


@pytest.mark.parametrize("share", [0.05, 0.4, 0.9])
def test_imputation_matches_dense_system(share):
    rng = np.random.default_rng(0)
    image, kept = rng.random((3, 8, 11)), rng.random((8, 11)) < share
    kept[3, 4] = True
    np.testing.assert_allclose(impute(image, kept), literal_imputation(image, kept), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_imputation_without_noise_matches_quantus(share):
    pytest.importorskip("quantus")
    from quantus.functions.perturb_func import noisy_linear_imputation

    rng = np.random.default_rng(1)
    image, kept = rng.random((3, 16, 13)), rng.random((16, 13)) < share
    expected = noisy_linear_imputation(image, np.flatnonzero(~kept), noise=0)
    np.testing.assert_allclose(impute(image, kept), expected, atol=1e-10)


@given(KEPT, st.integers(-3, 3), st.integers(-4, 4))
def test_imputation_is_bounded_and_follows_affine_changes(kept, factor, shift):
    image = np.random.default_rng(2).random((3, 5, 7))
    filled = impute(image, kept)
    assert (filled[:, kept] == image[:, kept]).all()
    low, high = (end(image[:, kept], axis=1)[:, None, None] for end in (np.min, np.max))
    assert ((low - 1e-12 <= filled) & (filled <= high + 1e-12)).all()
    np.testing.assert_allclose(impute(factor * image + shift, kept), factor * filled + shift, atol=1e-11)
    np.testing.assert_allclose(impute(image[:, ::-1].copy(), kept[::-1].copy()), filled[:, ::-1], atol=1e-12)


def test_noise_is_small_and_set_by_seed():
    images = torch.zeros(2, 3, 40, 40)
    drawn = slight_noise(images, [4, 9])
    assert drawn.flatten(1).std(dim=1).tolist() == pytest.approx([NOISE, NOISE], rel=0.05)
    assert drawn.flatten(1).mean(dim=1).abs().max() < NOISE / 10
    assert torch.equal(slight_noise(images[:1], [9])[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[1])


def picture(slow, i, gone):
    """Return image i with these pixels imputed, plus the noise of its seed. It is black if no pixel is kept."""
    kept = np.ones(H * W, bool)
    kept[list(gone)] = False
    kept, image = kept.reshape(H, W), slow.images[i].double().numpy()
    filled = literal_imputation(image, kept) if kept.any() else np.zeros_like(image)
    noise = slight_noise(slow.images[i : i + 1], [i])[0].double().numpy()
    return np.where(kept, image, filled + noise)


@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_road_matches_literal_loop(slow, order):
    metric = load_metric("saliency_road", order=order)
    scores, parts = metric.with_parts(slow.curves(one_hot([0, 1, 2], K)), table(LABELS))
    seen = set()
    for i in range(3):
        for j, count in enumerate(COUNTS):
            gone = slow.orders[i][:count] if order == "morf" else slow.orders[i][count:]
            logits = slow.classifier(torch.from_numpy(picture(slow, i, gone)).float()[None])[0]
            assert parts[i, j] == float(logits.argmax() == i)
        seen |= set(parts[i])
        exposures = [float(name) for name in metric.parts(None)]
        assert scores[i] == pytest.approx(np.trapezoid(parts[i], exposures))
    alone = load_metric("saliency_road", order=order, exposure=0.3)(slow.curves(one_hot([0, 1, 2], K)), table(LABELS))
    assert alone.tolist() == parts[:, 5].tolist()
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize(("order", "same"), [("morf", "saliency_roae"), ("lerf", "saliency_kae")])
def test_road_equals_roae_or_kae_and_shares_their_passes(slow, order, same):
    curves = slow.curves(one_hot([0, 1, 2], K))
    road, other = load_metric("saliency_road", order=order), load_metric(same, reference="linear")
    np.testing.assert_array_equal(road(curves, table(LABELS)), other(curves, table(LABELS)))
    assert curves.passes == slow.classifier.pictures == 3 * 9
    assert road.higher_is_better == other.higher_is_better
