"""Test that the code that `choose` prints for captum and pytorch-grad-cam returns the same maps, up to scale."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import saliency_bench as sb
from saliency_bench.compute.targets import one_hot
from saliency_bench.recipes.choosing.copying import elsewhere, with_imports

NAMES = [name for name in sb.list_explainers() if sb.load_explainer(name).declaration.elsewhere]
LABEL = 1


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_printed_code_gives_same_maps(name, network):
    for package in ("captum", "pytorch_grad_cam"):
        pytest.importorskip(package)
    classifier = sb.load_classifier(network, mean=(0.4,) * 3, std=(0.2,) * 3)
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    explainer = sb.load_explainer(name)
    maps = explainer(classifier, images, one_hot(torch.tensor([LABEL] * 2), 3)).numpy()
    ((package, line),) = elsewhere(explainer, "3").items()
    scope = {"classifier": classifier, "images": images, "label": LABEL}
    with warnings.catch_warnings(action="ignore"):
        exec(with_imports(package, line), scope)
    their_maps = scope["maps"]
    their_maps = their_maps.detach().numpy() if isinstance(their_maps, torch.Tensor) else np.asarray(their_maps)
    if package == "pytorch-grad-cam":  # pytorch-grad-cam scales each map to [0, 1]
        lowest, highest = maps.min(axis=(1, 2), keepdims=True), maps.max(axis=(1, 2), keepdims=True)
        maps = (maps - lowest) / (highest - lowest)
    if package == "captum":  # gradients with respect to normalised images
        scale = maps.std() / their_maps.std()
        assert any(scale == pytest.approx(5.0**power, rel=1e-3) for power in range(3)), "not a power of 1 / std"
        their_maps = their_maps * scale
    np.testing.assert_allclose(their_maps, maps, atol=2e-3 * np.abs(maps).max())


def test_common_explainers_have_code_for_other_packages():
    assert {"gradient", "integrated_gradients", "gradcam", "scorecam"} <= set(NAMES)
