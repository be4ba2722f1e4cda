"""Test the contract of metrics for all discovered metrics."""

import inspect

import contracts
import numpy as np
import pytest
import torch
import yaml
from torch import nn

from saliency_bench import registry
from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.inputs import OtherModel
from saliency_bench.compute.scoring.partners import Partners
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.target_weights import no_probabilities, one_hot

NAMES = contracts.complete("metrics")
B, H, W = 3, 8, 6
SHARED = ("classifier", "groups", "run_seed", "others")


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    classifier = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3 * H * W // 4, 4)).eval()
    classifier.register_buffer("mean", torch.full((1, 3, 1, 1), 0.5))
    classifier.register_buffer("std", torch.ones(1, 3, 1, 1))
    images, rng = torch.rand(B, 3, H, W), np.random.default_rng(0)
    masks = rng.random((B, H, W)) > 0.6
    return {
        "classifier": classifier, "images": images, "target": one_hot([0, 1, 2], 4),
        "maps": rng.normal(size=(B, H, W)).astype(np.float32), "masks": masks, "logits": classifier(images).detach(),
        "labels": np.eye(4, dtype=bool)[classifier(images).argmax(dim=1).numpy()],
        "groups": ClassGroups("halves", ((0, 1), (2, 3))), "seeds": [5, 6, 7], "run_seed": 3,
        "others": torch.rand(4, 3, H, W), "of": [[0, 1], [2, 3], [1, 2]], "other": second(images),
        "retrained": np.random.default_rng(1).integers(0, 4, size=(B, 45)), "columns": images * 0.99,
        "first_right": np.array([0.05, 0.5, np.nan]),
    }  # fmt: skip


def second(images):
    """Return a second classifier with 5 classes whose predictions are correct."""
    classifier = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3 * H * W // 4, 5)).eval()
    logits = classifier(images).detach()
    labels = np.eye(5, dtype=bool)[logits.argmax(dim=1).numpy()]
    return OtherModel(classifier, logits, labels, [None] * B)


def weighted(classifier, images, target):
    """Return gradient times input, which depends on image, target and network."""
    images = images.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((classifier(images) * target).sum(), images)
    return (gradient * (images.detach() + 0.1)).sum(dim=1)


def asked(metric, inputs, which=slice(None)):
    """Return the inputs of a metric for these samples."""
    given = {name: value if name in SHARED else value[which] for name, value in inputs.items() if name != "other"}
    given["other"] = inputs["other"].part(range(B)[which])
    given["columns"] = dict.fromkeys(metric.declaration.columns, given["columns"])
    given["curves"] = Curves(*(given[name] for name in ("classifier", "images", "target", "maps")))
    given["explain"] = MapProvider(as_explainer(weighted), given["classifier"], given["seeds"])
    explain = MapProvider(as_explainer(weighted), given["classifier"], [8, 9, 10, 11])
    right = np.eye(4, dtype=bool)[[1, 1, 3, 3]]
    given["partners"] = Partners("abcd", given["others"], right, given["of"], explain)
    return {name: given[name] for name in metric.inputs}


def scores(metric, inputs, which=slice(None)):
    return metric(**asked(metric, inputs, which))


def numbers(metric, inputs, which=slice(None)):
    """Return the scores, or the parts if samples have no score."""
    return numbers_of(metric, asked(metric, inputs, which))


def numbers_of(metric, given):
    scores, parts = metric.with_parts(**given)
    return scores if metric.aggregate is None else parts


@pytest.mark.parametrize("name", contracts.names("metrics"))
def test_metric_is_complete(name):
    contracts.check("metrics", name)


@pytest.mark.parametrize("name", NAMES)
def test_metric_declares_paper_range_and_inputs(name):
    metric = load_metric(name)
    assert "http" in metric.declaration.paper
    assert metric.range[0] < metric.range[1]
    assert metric.inputs
    assert list(inspect.signature(metric.function).parameters)[: len(metric.inputs)] == list(metric.inputs)


@pytest.mark.parametrize("name", NAMES)
def test_card_lists_tags_and_every_option(name):
    text = (registry.files("metrics")[name].parent / "README.md").read_text()
    front, card = text.removeprefix("---\n").split("---\n", 1)
    fields = yaml.safe_load(front)
    assert fields["sdk"] == "gradio"
    assert {"evaluate", "metric"} <= set(fields["tags"])
    for option in dict(load_metric(name).options):
        assert f"**{option}**" in card


@pytest.mark.parametrize("name", NAMES)
def test_metric_is_deterministic_and_keeps_inputs(name, inputs):
    metric = load_metric(name)
    before = {key: value.clone() if key in ("images", "target") else value for key, value in inputs.items()}
    before |= {key: inputs[key].copy() for key in ("maps", "masks")}
    weights = [parameter.clone() for parameter in inputs["classifier"].parameters()]
    values = scores(metric, inputs)
    np.testing.assert_array_equal(scores(metric, inputs), values)
    assert (values.shape, values.dtype) == ((B,), np.float64)
    low, high = metric.range
    assert ((low <= values) & (values <= high) | (metric.aggregate is not None)).all()
    for key in ("images", "target"):
        assert torch.equal(before[key], inputs[key])
    for key in ("maps", "masks"):
        assert np.array_equal(before[key], inputs[key])
    assert all(torch.equal(a, b) for a, b in zip(weights, inputs["classifier"].parameters(), strict=True))


CACHES = ("curves", "explain", "partners")
UNTRIED = {("relative", False), ("unit", "normalised"), ("top", 5)}  # the test network does not support these values
# These options change no score here: samples have few partners, all predictions are correct, images are tiny, maps have
# no ties, the network has one layer, or scores are only 0 or 1.
WITHOUT_EFFECT = {
    "saliency_confidence": {"k", "pairings"}, "saliency_correctness": {"k", "pairings"}, "saliency_idr": {"filter"},
    "saliency_insertion": {"start"}, "saliency_max_sensitivity": {"unit"},
    "saliency_own_region": {"reference", "threshold"}, "saliency_pointing_game": {"ties", "tolerance"},
    "saliency_randomisation": {"layers"},
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if "retrained" not in load_metric(name).inputs])
def test_options_change_scores_with_or_without_shared_passes(name, inputs):
    metric = load_metric(name)
    shared, alone, same = asked(metric, inputs), {("", None): numbers(metric, inputs)}, set()
    for option, value, variant in contracts.variants(metric):
        if (option, value) in UNTRIED:
            continue
        found = numbers(variant, inputs)
        given = {key: shared[key] if key in CACHES else own for key, own in asked(variant, inputs).items()}
        np.testing.assert_array_equal(numbers_of(variant, given), found, f"{option}={value}")
        rivals = [other for (name_of_other, _), other in alone.items() if name_of_other in ("", option)]
        same |= {option for other in rivals if np.array_equal(other, found, equal_nan=True)}
        alone[option, value] = found
    assert same == WITHOUT_EFFECT.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_every_score_part_has_a_name(name, inputs):
    metric = load_metric(name)
    (scores, parts), names = metric.with_parts(**asked(metric, inputs)), metric.parts(inputs["classifier"])
    assert len(set(names)) == len(names)
    assert (parts is None) == (names == ())
    if parts is not None:
        assert parts.shape == (B, len(names))
        without = np.isnan(parts).all(axis=1) | (metric.aggregate is not None)
        assert np.isnan(scores).tolist() == without.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_batch_scores_match_single_samples(name, inputs):
    metric = load_metric(name)
    single = np.concatenate([numbers(metric, inputs, slice(i, i + 1)) for i in range(B)])
    np.testing.assert_allclose(numbers(metric, inputs), single, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_metric_marks_samples_only_if_declared(name, inputs):
    metric = load_metric(name)
    marks = metric.marks(**asked(metric, inputs))
    assert bool(metric.declaration.mark) == (marks is not None)
    if marks is not None:
        assert (marks.shape, marks.dtype) == ((B,), bool)


class Breaking(nn.Module):
    """Classifier that returns `value` for class 2 of any picture that still has a mark in its last pixel."""

    def __init__(self, sound, value):
        super().__init__()
        self.sound, self.value = sound, value
        self.register_buffer("mean", sound.mean)
        self.register_buffer("std", sound.std)

    def forward(self, images):
        logits = self.sound(images)
        marked = (images[:, 0, -1, -1] == MARK)[:, None] & torch.tensor([False, False, True, False])
        return torch.where(marked, logits * 0 + self.value, logits)


MARK = 0.123


@pytest.mark.sample(28, 0)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_sample_without_probabilities_has_no_score(name, value, inputs):
    inputs["images"][1, 0, -1, -1] = MARK
    metric = load_metric(name)
    expected = numbers(metric, inputs | {"logits": inputs["classifier"](inputs["images"]).detach()})
    broken = Breaking(inputs["classifier"], value)
    logits = broken(inputs["images"]).detach()
    found = numbers(metric, inputs | {"classifier": broken, "logits": logits})
    assert no_probabilities(logits).tolist() == [False, True, False]
    assert np.isfinite(expected.reshape(B, -1)).any(axis=1).all()
    if {"logits", "curves"} & set(metric.inputs):
        expected[1] = np.nan
    np.testing.assert_allclose(found, expected, rtol=1e-6)
