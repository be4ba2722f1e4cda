"""Count waits for a GPU, bytes sent to the GPU, and the sizes of passes, with tensors that have no content.

These tensors have a device and shapes. A copy from the device to the host waits for all earlier work. Reading a value
in Python also waits, and raises an error for these tensors.
"""

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from saliency_bench import load_classifier, load_explainer
from saliency_bench.compute.classifiers import passes
from saliency_bench.compute.scoring import perturbation

SIDE, CLASSES = 224, 5

pytestmark = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this build of torch knows no CUDA")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES),
        )  # fmt: skip
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        return self.layers(x)


class Traffic(TorchDispatchMode):
    """Recorder of copies from and to the GPU; for the latter, also of bytes and of whether the host waits."""

    def __init__(self):
        super().__init__()
        self.copies, self.sent, self.waits = Counter(), [], False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        devices = {one.device.type for one in args if isinstance(one, torch.Tensor)}
        if isinstance(output, torch.Tensor) and output.device.type == "cpu" and "cuda" in devices:
            self.copies[str(func)] += 1
        if isinstance(output, torch.Tensor) and output.device.type == "cuda" and devices == {"cpu"}:
            self.sent.append(output.numel() * output.element_size())
            self.waits |= not (kwargs or {}).get("non_blocking", False)
        return output


@pytest.fixture
def on_gpu(monkeypatch):
    """Yield a classifier and a function (count) -> images, with `cuda` as a device without content."""
    monkeypatch.setattr(passes, "fast_forward", lambda classifier, images: classifier)  # compares values
    classifier = load_classifier(Network(), mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu").eval()
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in classifier.modules():
            for name, one in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(torch.empty_like(one, device="cuda")))
            for name, one in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty_like(one, device="cuda"))
        yield classifier


# {explainer: (sizes of the passes for two images, limit of the bytes sent to the GPU per 1,000 pictures of 602,112
# bytes)}
EXPECTED = {"occlusion:window=32,stride=16": ([170] * 2, 17_200), "rise:masks=4000": ([250] * 32, 107_000)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("text", EXPECTED)
def test_host_never_waits_for_device_between_passes(text, on_gpu):
    explainer = load_explainer(text)
    images, target = torch.rand(2, 3, SIDE, SIDE, device="cuda"), torch.rand(2, CLASSES, device="cuda")
    with Traffic() as traffic:
        explainer.function(on_gpu, images, target, **dict(explainer.options))
    sizes, most = EXPECTED[text]
    assert on_gpu.model.sizes == sizes
    assert traffic.copies == {}
    assert 1000 * sum(traffic.sent) / sum(sizes) <= most


def test_batch_is_sent_in_one_non_blocking_copy(on_gpu, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda one: pinned.append(one.shape) or one)
    rows = [{"image": Image.new("RGB", (20, 20))}] * 3
    with Traffic() as traffic:
        assert on_gpu.prepare(rows).images.device.type == "cuda"
    assert (pinned, traffic.sent, traffic.waits, traffic.copies) == ([(3, 3, 20, 20)], [3 * 3 * 20 * 20 * 4], False, {})


def test_curve_waits_only_for_its_values(on_gpu, monkeypatch):
    images, target = torch.rand(2, 3, SIDE, SIDE, device="cuda"), torch.rand(2, CLASSES)
    monkeypatch.setattr(perturbation, "expand", lambda target, images: target)  # compares values
    monkeypatch.setattr(perturbation, "untouched", nullcontext)  # this function reads the state of a real device
    monkeypatch.setattr(torch.Tensor, "numpy", lambda one: np.zeros(one.shape, str(one.dtype).removeprefix("torch.")))
    curves = perturbation.Curves(on_gpu, images, target, np.zeros((2, SIDE, SIDE)))
    with Traffic() as traffic:
        curves.path("top", "black", range(0, SIDE * SIDE + 1, SIDE))
        assert (on_gpu.model.sizes, traffic.copies.total()) == ([225, 225], 2)
        curves.path("top", "black", range(0, SIDE * SIDE + 1, SIDE))
    assert (len(on_gpu.model.sizes), traffic.copies.total()) == (2, 3)
