"""Test that networks with equal digests but different outputs are rejected, for example after a file has changed."""

import re

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench.compute.fixed_answers import answers_of, fixed_pictures
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.network_answers import NetworkAnswers


class FromFile(nn.Module):
    """Network that shifts its input by a number in a file, which a digest does not cover."""

    def __init__(self, path):
        super().__init__()
        torch.manual_seed(0)
        self.path, self.dropout = str(path), nn.Dropout(0.5)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                                    nn.Linear(32, 8))  # fmt: skip

    def forward(self, x):
        with open(self.path) as file:
            return self.layers(self.dropout(x * float(file.read())))


@pytest.fixture
def factor(tmp_path):
    path = tmp_path / "factor.txt"
    path.write_text("1")
    return path


@pytest.fixture
def start(shapes, tmp_path):
    """Return a function that starts a run in `tmp_path` with a network or a network's file."""
    usual = {"dataset": str(shapes), "explainers": ["gradient"], "metrics": ["saliency_energy"], "target": "predicted",
             "limit": 4, "batch_size": 4, "device": "cpu", "progress": False}  # fmt: skip
    return lambda model, name="run", **changes: sb.run(model=model, out=tmp_path / name, **usual | changes)


def classifier_of(network, **settings):
    network = network if isinstance(network, nn.Module) else FromFile(network)
    return sb.load_classifier(network, **{"mean": 0.5, "std": 0.5, "device": "cpu"} | settings)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_network_that_answers_differently_does_not_get_the_scores_of_another(start, tmp_path, factor, precision):
    def again(**changes):
        return start(classifier_of(factor, precision=precision), **changes)

    digest = classifier_of(factor).digest
    first = again()
    assert first.summary["model"]["id"] == "module:FromFile"
    assert read_manifest(tmp_path / "run").answers.keys() == {"model"}
    assert again().summary == first.summary
    factor.write_text("0.9")
    assert classifier_of(factor).digest == digest
    refused(r"run contains results of another model: .*0.0005 is allowed.*another --out", again)
    refused("logits for fixed pictures differ", again, explainers=["random"])
    factor.write_text("1")
    assert again().summary == first.summary


def test_a_model_that_names_the_classes_is_compared_too(start, resnet, tmp_path, factor):
    labels = sb.load_classifier(str(resnet)).labels
    named = start(classifier_of(factor, labels=labels), "named")
    target = f"predicted-by:{named.folder}"
    start(str(resnet), target=target)
    assert read_manifest(tmp_path / "run").answers.keys() == {"model", "model of the targets"}
    factor.write_text("0.5")
    other = classifier_of(factor, labels=labels)
    refused(r"named is a run of another module:FromFile: .* run it again", start, other, "itself", target=target)
    target = f"predicted-by:{start(other, 'named again').folder}"
    refused("run contains results of another model of the targets", start, str(resnet), target=target)


def test_answers_are_logits_of_fixed_pictures_whatever_the_state_of_torch(factor):
    classifier = classifier_of(factor, size=32).train()
    answers = answers_of(classifier)
    assert classifier.training
    pictures = fixed_pictures(32, 32)
    assert pictures.shape == (4, 3, 32, 32)
    assert [len(np.unique(picture[0])) for picture in pictures.numpy()[1:]] == [256, 25, 4]
    with torch.no_grad():
        expected = FromFile(factor).eval()((pictures - 0.5) / 0.5)
    torch.testing.assert_close(torch.tensor(answers.logits), expected)
    torch.manual_seed(7)
    assert answers_of(classifier) == answers


def test_arithmetic_does_not_make_another_network(factor):
    first = answers_of(classifier_of(factor, size=32))
    with torch.backends.mkldnn.flags(enabled=False):
        assert 0 <= first.distance(answers_of(classifier_of(factor, size=32, channels_last=True))) < 1e-5
    assert first.distance(answers_of(classifier_of(factor, size=32, precision="bf16"))) == 0
    assert first.distance(answers_of(classifier_of(factor, size=40))) == np.inf
    factor.write_text("1.01")
    assert first.distance(answers_of(classifier_of(factor, size=32))) > 5e-4


@pytest.mark.parametrize(("first", "second", "expected"), [
    ([0.0, 10.0], [0.0, 10.0], 0),
    ([0.0, 10.0], [0.0, 11.0], 0.1),
    ([1000.0, 1000.0], [1000.0, 1001.0], 0.1),  # for a range of zero, relative to a hundredth of the logits
    ([None, 1.0, 2.0], [None, 1.0, 2.5], 0.5),
    ([None, 1.0], [3.0, 1.0], np.inf),
    ([0.0, 0.0], [0.0, 0.0], 0),
    ([0.0, 1.0], [0.0, 1.0, 2.0], np.inf),
])  # fmt: skip
def test_distance_is_the_largest_difference_as_a_share_of_the_range(first, second, expected):
    answers = [NetworkAnswers(size=(8, 8), logits=[logits]) for logits in (first, second)]
    assert answers[0].distance(answers[1]) == pytest.approx(expected)


class Scaled(nn.Module):
    def __init__(self, scale=1.0, bias=0.0, kind=nn.ReLU):
        super().__init__()
        torch.manual_seed(0)
        self.tower = nn.Sequential(nn.Conv2d(3, 8, 4, 4), kind(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.scale = scale
        with torch.no_grad():
            self.tower[0].bias += bias

    def forward(self, x):
        return self.scale * self.tower(x)


def test_what_differs_in_another_model_is_named(start):
    def run(mean=0.5, **settings):
        return start(classifier_of(Scaled(**settings), mean=mean))

    run()
    logits = "different logits for fixed pictures"
    for settings, words in (
        ({"scale": 2.0}, f"different settings, {logits}"),
        ({"scale": 1}, "different settings, equal logits for fixed pictures"),  # an int instead of a float
        ({"bias": 0.5}, f"different weights, {logits}"),
        ({"mean": 0.4}, f"different normalisation, {logits}"),
        ({"kind": nn.GELU, "bias": 0.5}, f"different classes or code and settings and weights, {logits}"),
    ):
        refused(re.escape(f"contains a run with another model ({words}); choose another --out"), run, **settings)
    run()
