"""What a caller has set in torch or on a network changes no map, and is as before afterwards.

Right maps are those of the same network without it, and those of a few explainers are written out in plain torch.
"""

import threading
from contextlib import ExitStack, contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import saliency_bench as sb
from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.errors import UserError
from saliency_bench.utils.untouched import untouched

IMAGES = torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(1))
TARGET = targets.one_hot([0, 2], 3)
OF_CONVOLUTIONS = ("gradient", "integrated_gradients:steps=3", "gradcam", "guided_backprop", "cebp", "iia:steps=2", "rise:masks=20")
OF_ATTENTION = ("attention", "rollout", "gae", "gradcam_vit", "gradient_rollout", "tattr", "iia:steps=2", "gradient")


class Convolutions(nn.Module):
    """ReLUs work in place, and `place` of them is called in a way that a test chooses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(6, 3)
        self.call = lambda function, x: function(x)

    def forward(self, x):
        x = self.relu(self.first(x))
        x = self.call(lambda x: self.relu(self.second(x)), x)
        return self.head(x.mean(dim=(2, 3)))


def classifier_of(model):
    return load_classifier(model.eval(), mean=0.5, std=0.3, device="cpu")


def maps_of(model, explainer):
    """The maps, of a classifier that is loaded anew."""
    return load_explainer(explainer)(classifier_of(model), IMAGES, TARGET)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def products(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


STATES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "another device": lambda: torch.device("meta"),
    "products": lambda: products("medium"),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "eager only": lambda: torch.compiler.set_stance("fail_on_recompile"),
}


def settings():
    """Everything that `STATES` sets, as it is now."""
    return (
        torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), torch.is_grad_enabled(),
        torch.get_default_dtype(), torch.get_default_device(), torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(), torch._dynamo.eval_frame._stance, torch.backends.cudnn.deterministic,
        torch.utils.checkpoint.CheckpointFunction.__name__,
    )  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_settings_of_torch_change_no_map_and_stay(state, tiny):
    for model, explainers in ((Convolutions(), OF_CONVOLUTIONS), (tiny(), OF_ATTENTION)):
        for explainer in explainers:
            expected = maps_of(model, explainer)
            with STATES[state]():
                before = settings()
                maps = maps_of(model, explainer)
                assert settings() == before
            assert torch.equal(maps, expected), explainer
            assert maps.requires_grad == maps.is_inference() == False  # noqa: E712
