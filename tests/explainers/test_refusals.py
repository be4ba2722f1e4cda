"""Test errors for invalid options and layers: one line with the value and the requirement."""

import pytest
import torch
from refusals import refused
from torch import nn

from saliency_bench import load_classifier, load_explainer, targets

MADE = {  # error message: explainers
    "sigma.*0": "centre:sigma=0 smoothgrad:sigma=-0.1",
    "'mean'; known: max, sum": "gradient:reduction=mean smoothgrad:reduction=mean",
    "samples.*gradient_shap.*1": "gradient_shap:samples=0",
    "baselines.*gradient_shap.*1": "gradient_shap:baselines=0",
    "samples.*smoothgrad.*1": "smoothgrad:samples=0",
    "steps.*1": "integrated_gradients:steps=0",
    "steps.*iia.*1": "iia:steps=0",
    "grey": "integrated_gradients:baseline=grey",
    r"\blime\b.*\bsamples\b": "lime:samples=0 lime:width=0 lime:ridge=0 lime:kernel_size=0.5",
    "rise needs": "rise:masks=0 rise:cells=0 rise:p=0 rise:p=1.5",
    "batch_size.*smoothgrad.*1": "smoothgrad:batch_size=0",
    r"batch_size.*\b1\b": "lime:batch_size=0 rise:batch_size=0 scorecam:batch_size=0 occlusion:batch_size=0",
    "window.*1": "occlusion:window=0",
    "stride.*1": "occlusion:stride=0",
    "would not be covered": "occlusion:window=4,stride=5",
    r"\bstart\b.*-1": "gae:start=-1 rollout:start=-1 gradient_rollout:start=-1 tattr:start=-1",
}


@pytest.mark.parametrize(("text", "words"), [(text, words) for words in MADE for text in MADE[words].split()])
def test_invalid_option_is_rejected_before_computation(text, words):
    refused(words, lambda: load_explainer(text)(None, None, None))


CONVOLUTIONS = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6),
                             nn.ReLU(), nn.Linear(6, 3))  # fmt: skip
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(288, 3))
# explainer: (network, error message)
EXPLAINED = {
    "occlusion:stride=3": (CONVOLUTIONS, "would not be covered"),
    "occlusion:window=9": (CONVOLUTIONS, "larger than the image"),
    'gradcam:layer="4"': (CONVOLUTIONS, "gradcam.*feature map"),
    "gradcam:layer=nope": (CONVOLUTIONS, "layer.*nope"),
    'gradcam_plus_plus:layer="6"': (CONVOLUTIONS, "gradcam_plus_plus.*feature map"),
    'scorecam:layer="6"': (CONVOLUTIONS, "scorecam.*feature map"),
    "scorecam:layer=nope": (CONVOLUTIONS, "layer.*nope"),
    'iia:layer="6"': (CONVOLUTIONS, "iia.*feature map"),
    'iia:layer="9"': (CONVOLUTIONS, r"unknown.*'?9\b"),
    "iia": (LINEAR, "no attention .*use integrated_gradients or rise"),
    "iia:published=true": (LINEAR, "no attention .*use integrated_gradients or rise"),
    "rollout:start=2": ("tiny", r"\b2\b.*blocks"),
    "gradcam": ("tiny", "gradcam_vit.*gae"),
    "gradcam:layer=blocks.1.down": ("tiny", "gradcam.*feature map.*gradcam_vit.*gae"),
}


@pytest.mark.parametrize("text", EXPLAINED)
def test_unsupported_network_or_layer_is_rejected(text, tiny):
    network, words = EXPLAINED[text]
    classifier = load_classifier(tiny() if network == "tiny" else network, device="cpu", mean=0, std=1)
    refused(words, load_explainer(text), classifier, torch.rand(1, 3, 8, 12), targets.one_hot([0], 3))
