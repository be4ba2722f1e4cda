"""Test composed explainers against plain explainers and against results computed by hand."""

import pytest
import torch
from refusals import refused
from small_networks import loaded, small

from saliency_bench import load_explainer, targets
from saliency_bench.composing import absolute, over_layers, positive, smoothed


@pytest.fixture
def classifier():
    return loaded(small(), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


@pytest.fixture
def images():
    return torch.rand(3, 3, 12, 16)


TARGET = targets.one_hot([0, 1, 2], 4)


def test_absolute_and_positive_transform_map_values(classifier, images):
    maps = load_explainer("input_x_gradient")(classifier, images, TARGET)
    assert maps.min() < 0
    assert torch.equal(absolute("input_x_gradient")(classifier, images, TARGET), maps.abs())
    assert torch.equal(positive("input_x_gradient")(classifier, images, TARGET), maps.clamp(min=0))


def test_smoothed_gradient_matches_smoothgrad(classifier, images):
    seeds = [7, 8, 9]
    ours = smoothed("gradient:reduction=sum", draws=5).made(classifier, images, TARGET, seeds=seeds)
    theirs = load_explainer("smoothgrad", samples=5, reduction="sum").made(classifier, images, TARGET, seeds=seeds)
    assert (ours.maps - theirs.maps).abs().max() <= 1e-6 * theirs.maps.abs().max()
    assert ours.reliability == pytest.approx(theirs.reliability, abs=1e-5)
    assert ours.draws == theirs.draws == [5] * len(images)
    still = smoothed("gradient", draws=2, sigma=0)(classifier, images, TARGET)
    assert torch.equal(still, load_explainer("gradient")(classifier, images, TARGET))


def test_over_layers_matches_mean_computed_by_hand(classifier, images):
    maps = [load_explainer("gradcam", layer=layer)(classifier, images, TARGET) for layer in ("1", "3")]
    expected = sum(one / one.abs().amax(dim=(1, 2), keepdim=True).clamp_min(1e-30) for one in maps) / 2
    found = over_layers("gradcam", ["1", "3"])(classifier, images, TARGET)
    assert torch.allclose(found, expected, rtol=1e-6, atol=0)


def test_compositions_nest_and_have_distinct_identities(classifier, images):
    def brightness(classifier, images, target):
        return images.mean(dim=1) - 0.5

    nested = absolute(smoothed(brightness, draws=2, sigma=0.1))
    assert str(nested) == "absolute(smoothed(brightness,draws=2,sigma=0.1))"
    assert nested(classifier, images, TARGET).min() >= 0
    assert absolute("gradcam") == absolute("gradcam")
    assert hash(positive("gradcam")) == hash(positive("gradcam"))
    identities = {str(made.identity) for made in (
        absolute("gradcam"), positive("gradcam"), absolute("gradient"), absolute("gradient:reduction=sum"),
        smoothed("gradcam"), smoothed("gradcam", draws=2), smoothed("gradcam", sigma=0.1),
        over_layers("gradcam", ["1"]), over_layers("gradcam", ["1", "3"]),
    )}  # fmt: skip
    assert len(identities) == 9
    assert absolute("random").baseline


def test_seed_reaches_inner_explainer(classifier, images):
    plain = load_explainer("rise", masks=20)
    maps = absolute(plain).seeded(5)(classifier, images, TARGET)
    assert torch.equal(maps, plain.seeded(5)(classifier, images, TARGET).abs())
    assert not torch.equal(maps, plain.seeded(6)(classifier, images, TARGET).abs())


@pytest.mark.parametrize(("make", "words"), [
    (lambda: smoothed("gradcam", draws=0), "draws >= 1"),
    (lambda: smoothed("gradcam", sigma=-1), "sigma >= 0"),
    (lambda: smoothed("gradcam", sigma=float("inf")), "finite sigma"),
    (lambda: smoothed("gradcam", sigma=float("nan")), "sigma >= 0"),
    (lambda: over_layers("rise", ["1"]), r"rise.*'layer'"),
    (lambda: over_layers("gradcam", []), "at least one layer"),
    (lambda: absolute("gradcamm"), r"gradcamm.*\bgradcam\b"),
])  # fmt: skip
def test_invalid_composition_is_rejected(make, words):
    refused(words, make)
