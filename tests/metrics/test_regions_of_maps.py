"""Test saliency_own_region, saliency_correctness and saliency_confidence by hand, by loops, and for invariances."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import refused
from small_networks import Custom, loaded
from small_networks import input_x_gradient as gradient
from torch import nn

from saliency_bench.compute.scoring.partners import Predictions
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.scoring.samples import score_parts, score_samples
from saliency_bench.maps import is_flat
from saliency_bench.metrics._pasting import plan, salient_pixels
from saliency_bench.metrics.saliency_confidence.score import entropy
from saliency_bench.metrics.saliency_correctness.score import pseudo_f1
from saliency_bench.metrics.saliency_own_region.score import reduce, saliency_own_region
from saliency_bench.target_weights import one_hot
from saliency_bench.utils.seeds import random_bits, seed_of

HEIGHT, WIDTH, CLASSES, MEAN = 4, 5, 7, (0.2, 0.5, 0.7)
NAMES = ["saliency_correctness", "saliency_confidence", "saliency_confidence:of=entropy"]
MAPS = arrays(np.float32, (2, 4, 5), elements=st.integers(-8, 8).map(float))


def linear():
    torch.manual_seed(3)
    return Custom(lambda net, images: 5 * net.linear(images.flatten(1)), linear=nn.Linear(3 * 20, 7),
                  mean=torch.tensor(MEAN).view(1, 3, 1, 1))  # fmt: skip


def literal_region(one, threshold, by):
    """Return the salient pixels of a map (H, W), as numbers."""
    values = [float(value) for value in one.flatten()]
    if by == "percentile":
        kept = round(len(values) * (1 - threshold / 100))
        return set(sorted(range(len(values)), key=lambda pixel: -values[pixel])[:kept])
    least, most = min(values), max(values)
    return {pixel for pixel, value in enumerate(values) if (value - least) / (most - least) > threshold}


def corner(net, images):
    """Compute logits for 4 x 4 pixels: brightness in the upper left quarter is evidence for class 1."""
    bright = images[:, :, :2, :2].mean(dim=(1, 2, 3))
    return torch.stack([0 * bright + math.log(3), 2 * math.log(3) * bright], dim=1)


def mask_of(*rows):
    """Return an explainer that returns this map for every image."""
    return lambda classifier, images, target: torch.tensor(rows).float().expand(len(images), -1, -1).clone()


LEFT = mask_of([8, 8, 0, 0], [8, 8, 0, 0], [0, 0, 3, 3], [0, 0, 3, 3])


@pytest.fixture(scope="module")
def dark_and_white():
    """Return two images of class 1, of which only the second is recognised."""
    return torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])


def test_correctness_and_confidence_by_hand(dark_and_white):
    classifier, given = loaded(Custom(corner)), {"labels": [1, 1], "k": 1}
    parts = score_parts("saliency_correctness", dark_and_white, classifier, LEFT, **given)
    np.testing.assert_array_equal(parts, [[1, np.nan, 0, np.nan, 0, np.nan], [np.nan] * 6])
    refused("k=1 has one value for all samples and no value per sample; use score_parts", score_samples,
            "saliency_correctness", dark_and_white, classifier, LEFT, **given)  # fmt: skip
    # p of L: 1 / (1 + 3); p of the pasted image: 9 / (9 + 3)
    parts = score_parts("saliency_confidence", dark_and_white, classifier, LEFT, **given)
    np.testing.assert_allclose(parts[0], [3 / 4 - 1 / 4, 0, 4 / 16], rtol=1e-6)
    parts = score_parts("saliency_confidence:of=entropy", dark_and_white, classifier, LEFT, **given)
    np.testing.assert_allclose(parts[0], [0, 0, 4 / 16], atol=1e-7)  # 1/4 and 3/4 in both directions
    swapped = mask_of([0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1])
    parts = score_parts("saliency_correctness", dark_and_white, classifier, swapped, **given)
    assert parts[0, [0, 2]].tolist() == [0, 1]


def test_flat_map_has_no_salient_pixels(dark_and_white):
    flat, given = mask_of(*[[2, 2, 2, 2]] * 4), {"labels": [1, 1], "k": 1}
    parts = score_parts("saliency_confidence", dark_and_white, loaded(Custom(corner)), flat, **given)
    np.testing.assert_allclose(parts[0], [0, 0.5, 0], atol=1e-7)


def literal_plan(p, labels, ids, k, pairings, seed):
    """Return {sample: partners}. The samples of each class are sorted."""
    found = {}
    for label in sorted(set(labels)):
        own = [sample for sample in range(len(labels)) if labels[sample] == label]
        best_first = sorted(own, key=lambda sample: ids[sample])
        best_first = sorted(best_first, key=lambda sample: p[sample][label], reverse=True)  # stable sort
        count = min(k, len(own) // 2)
        high, low = best_first[:count], best_first[::-1][:count][::-1]
        for pairing in range(pairings):
            keys = random_bits(seed_of(seed, "pairing", pairing, label), count).tolist()
            order = sorted(range(count), key=lambda place: keys[place])
            for place, sample in enumerate(low):
                found.setdefault(sample, []).append(high[order[place]])
    return found


def softmax(logits):
    values = [math.exp(float(one)) for one in logits]
    return [value / sum(values) for value in values]


def literal(images, labels, classifier, k, pairings, threshold, by):
    """Return {sample: (six shares of correctness, three parts of confidence, three of entropy)}, pixel by pixel."""
    with torch.no_grad():
        p = [softmax(row) for row in classifier(images).double()]
    ids, found = [str(index) for index in range(len(images))], {}
    for sample, partners in literal_plan(p, labels, ids, k, pairings, 0).items():
        label, rows = labels[sample], []
        for partner in partners:
            one = gradient(classifier, images[partner : partner + 1], torch.eye(7)[label : label + 1])[0].double()
            salient, said = literal_region(one, threshold, by), []
            for inverse in (False, True):
                picture = images[sample].clone()
                for pixel in range(20):
                    if (pixel in salient) != inverse:
                        picture[:, pixel // 5, pixel % 5] = images[partner][:, pixel // 5, pixel % 5]
                with torch.no_grad():
                    said.append(softmax(classifier(picture[None])[0].double()))
            rows.append((*said, len(salient) / 20))
        found[sample] = tuple(_means(rows, p[sample], label, of) for of in ("correct", "probability", "entropy"))
    return found


def _means(rows, plain, label, of):
    def number(values, top=1):
        if of == "probability":
            return values[label]
        if of == "entropy":
            return -sum(value * math.log(value) for value in values)
        return float(sum(value > values[label] for value in values) < top)

    if of == "correct":
        return [*(sum(number(row[which], top) for row in rows) / len(rows) for which in (0, 1) for top in (1, 5)),
                number(plain, 1), number(plain, 5)]  # fmt: skip
    changes = [sum(number(row[which]) - number(plain) for row in rows) / len(rows) for which in (0, 1)]
    return [*changes, sum(row[2] for row in rows) / len(rows)]


@pytest.mark.parametrize(("threshold", "by"), [(0.5, "value"), (0.3, "value"), (60.0, "percentile")])
def test_parts_match_literal_loop(threshold, by):
    torch.manual_seed(0)
    classifier, images = loaded(linear()), torch.rand(23, 3, 4, 5)
    labels = [index % 3 for index in range(20)] + [5, 6, 6]
    chosen = {"k": 3, "pairings": 4, "threshold": threshold, "by": by}
    expected = literal(images, labels, classifier, **chosen)
    assert len(expected) == 3 * 3 + 1
    for place, name in enumerate(NAMES):
        found = score_parts(name, images, classifier, gradient, labels=labels, batch_size=4, **chosen)
        assert set(np.flatnonzero(np.isfinite(found).all(axis=1))) == set(expected)
        for sample, own in expected.items():
            np.testing.assert_allclose(found[sample], own[place], atol=2e-6)


def test_pseudo_f1_matches_hand_computed_case():
    """The score is 2 / (1 / 0.6 + 1 / 0.8) = 0.96 / 1.4, or 0 if no image or every inverse is recognised."""
    means = np.array([[0.8, 1, 0.4, 0, 0, 0], [0, 1, 0.4, 0, 0, 0], [0.8, 1, 1, 0, 0, 0]])
    np.testing.assert_allclose(pseudo_f1(means, {"top": 1}), [0.96 / 1.4, 0, 0])


@st.composite
def predictions(draw):
    count, classes = draw(st.integers(1, 20)), 3
    labels = draw(st.lists(st.integers(-1, classes - 1), min_size=count, max_size=count))
    p = draw(arrays(np.float32, (count, classes), elements=st.sampled_from([0.0, 0.25, 0.5, 0.5, 1.0])))
    unknown = draw(st.sets(st.integers(0, count - 1), max_size=2))
    p[list(unknown)] = np.nan
    right = np.array([[label == column for column in range(classes)] for label in labels])
    ids = draw(st.permutations([f"image {index}" for index in range(count)]))
    return Predictions(draw(st.integers(0, 5)), ids, right, p)


@given(predictions(), st.integers(1, 4), st.integers(1, 3))
def test_plan_pairs_most_and_least_confident_of_each_class(given_, k, pairings):
    found = plan({"k": k, "pairings": pairings}, given_)
    scored = np.isfinite(given_.probabilities).all(axis=1)
    for column in range(3):
        members = set(np.flatnonzero(given_.right[:, column] & scored).tolist())
        low = members & found.keys()
        assert len(low) == min(k, len(members) // 2)
        high = {partner for sample in low for partner in found[sample]}
        assert high <= members - low
        for pairing in range(pairings):
            assert {found[sample][pairing] for sample in low} == high
        p = given_.probabilities[:, column]
        assert min(p[list(high)], default=1) >= max(p[list(members - high)], default=0)
        assert max(p[list(low)], default=0) <= min(p[list(members - low)], default=1)
    assert all(scored[sample] and given_.right[sample].any() for sample in found)


@given(predictions(), st.randoms())
def test_plan_does_not_depend_on_sample_order(given_, random):
    order = list(range(len(given_.ids)))
    random.shuffle(order)
    other = replace(given_, ids=[given_.ids[place] for place in order], right=given_.right[order],
                    probabilities=given_.probabilities[order])  # fmt: skip

    def named(of):
        found = plan({"k": 2, "pairings": 2}, of)
        return {of.ids[sample]: [of.ids[partner] for partner in own] for sample, own in found.items()}

    assert named(given_) == named(other)


@given(MAPS, st.integers(0, 99), st.integers(0, 99))
def test_percentile_regions_have_fixed_size_and_are_nested(maps, first, second):
    few, many = (salient_pixels(maps, max(one), "percentile")
                 if one[0] != one[1] else salient_pixels(maps, one[0], "percentile")
                 for one in ((first, second), (min(first, second),) * 2))  # fmt: skip
    expected = np.where(is_flat(maps), 0, round(20 * (1 - min(first, second) / 100)))
    assert (many.sum(axis=(1, 2)) == expected).all()
    assert (few <= many).all()


@settings(max_examples=20)
@given(arrays(np.float64, (2, 5), elements=st.floats(0.001, 1)))
def test_entropy_matches_scipy(weights):
    from scipy.stats import entropy as of_scipy

    np.testing.assert_allclose(entropy(weights / weights.sum(1, keepdims=True)), of_scipy(weights, axis=1), rtol=1e-12)


def test_options_unsupported_by_head_are_rejected(dark_and_white):
    classifier = loaded(Custom(corner))
    refused("top=5 needs a softmax over more than five classes, but this model has a softmax over 2 classes",
            score_parts, "saliency_correctness:top=5", dark_and_white, classifier, LEFT, labels=[1, 1])  # fmt: skip
    several = loaded(Custom(corner), activation="sigmoid")
    refused("of=entropy needs a softmax", score_samples, "saliency_confidence:of=entropy", dark_and_white, several,
            LEFT, labels=[1, 1])  # fmt: skip
    parts = score_parts("saliency_correctness", dark_and_white, several, LEFT, labels=[1, 1])
    assert parts[0, [0, 2, 4]].tolist() == [1, 0, 0]  # p > 0.5 is recognised: 9 / 10 against 1 / 2


def test_labels_are_required_and_target_is_rejected(dark_and_white):
    inputs = "saliency_correctness", dark_and_white, loaded(Custom(corner)), LEFT
    refused("pass labels= .the class of each image.", score_parts, *inputs)
    refused("leave out the target", score_parts, *inputs, labels=[1, 1], target=[1, 1])


def curves_of(classifier, images, maps):
    return Curves(classifier, images, one_hot([0] * len(images), CLASSES), maps)


def literal_own_region(classifier, image, one, label, reference, threshold, by):
    """Return [acc@1, acc@5] of one image, computed pixel by pixel."""
    region, picture = literal_region(one, threshold, by), torch.empty(3, HEIGHT, WIDTH)
    for pixel in range(HEIGHT * WIDTH):
        row, column = divmod(pixel, WIDTH)
        for channel in range(3):
            outside = 0.0 if reference == "black" else MEAN[channel]
            picture[channel, row, column] = image[channel, row, column] if pixel in region else outside
    logits = classifier(picture[None])[0].tolist()
    before = sum(logit > logits[label] for logit in logits)
    return [float(before < 1), float(before < 5)]


@pytest.mark.parametrize("reference", ["black", "mean"])
@pytest.mark.parametrize(("threshold", "by"), [(0.5, "value"), (0.2, "value"), (60.0, "percentile")])
def test_own_region_agrees_with_pictures_made_pixel_by_pixel(reference, threshold, by):
    torch.manual_seed(1)
    classifier, images = linear().eval(), torch.rand(40, 3, HEIGHT, WIDTH)
    maps = np.random.default_rng(0).normal(size=(40, HEIGHT, WIDTH)).astype(np.float32)
    labels = np.arange(40) % CLASSES
    found = saliency_own_region(curves_of(classifier, images, maps), np.eye(CLASSES, dtype=bool)[labels],
                                reference=reference, threshold=threshold, by=by)  # fmt: skip
    with torch.no_grad():
        expected = [literal_own_region(classifier, image, one, label, reference, threshold, by)
                    for image, one, label in zip(images, maps, labels, strict=True)]  # fmt: skip
    np.testing.assert_array_equal(found, expected)
    assert 0 < found[:, 0].mean() < found[:, 1].mean() < 1  # so the comparison can fail
    np.testing.assert_array_equal(reduce(found, {}), found[:, 0])


def test_full_map_scores_as_image_and_flat_map_as_reference():
    torch.manual_seed(4)
    classifier, images = linear().eval(), torch.rand(30, 3, HEIGHT, WIDTH)
    whole, flat = np.ones((30, HEIGHT, WIDTH), np.float32), np.ones((30, HEIGHT, WIDTH), np.float32)
    whole[:, 0, 0] = 0
    images[:, :, 0, 0] = 0  # the value that replaces the pixel
    with torch.no_grad():
        said, of_black = classifier(images).argmax(1), int(classifier(torch.zeros(1, 3, HEIGHT, WIDTH)).argmax())
    right = np.eye(CLASSES, dtype=bool)
    assert (saliency_own_region(curves_of(classifier, images, whole), right[said])[:, 0] == 1).all()
    found = saliency_own_region(curves_of(classifier, images, flat), right[np.arange(30) % CLASSES])
    assert found[:, 0].tolist() == [float(index % CLASSES == of_black) for index in range(30)]


def test_top5_is_undefined_for_sigmoid_or_five_classes():
    network = Custom(lambda net, x: x.mean(dim=(1, 2, 3))[:, None] * torch.tensor([[4.0, 1, 1, 1, 1]]) - 1)
    images, maps = torch.ones(1, 3, 2, 2), np.array([[[1, 0], [1, 1]]], np.float32)
    five = Curves(network, images, one_hot([0], 5), maps)
    assert saliency_own_region(five, np.eye(5, dtype=bool)[:1])[0, 0] == 1
    assert math.isnan(saliency_own_region(five, np.eye(5, dtype=bool)[:1])[0, 1])
    several = loaded(linear(), activation="sigmoid")
    curves = curves_of(several, torch.rand(3, 3, HEIGHT, WIDTH), np.random.default_rng(0).normal(size=(3, 4, 5)))
    assert np.isnan(saliency_own_region(curves, np.eye(CLASSES, dtype=bool)[:3])[:, 1]).all()
