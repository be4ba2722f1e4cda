"""Define fixtures for tests of all explainers."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_networks import Branched, small
from torch import nn

from saliency_bench import load_classifier, load_explainer, options, registry, targets
from saliency_bench.errors import UserError

# Options that set the amount of computation, for explainers that have them.
FEW = {"steps": 3, "samples": 20, "masks": 60, "window": 8, "stride": 4}


@pytest.fixture
def stepped_up():
    """Return a function that computes the reliability literally with NumPy from the maps of two halves of the draws."""

    def reliability(one, other):
        r = np.corrcoef(np.ravel(one), np.ravel(other))[0, 1]
        return 2 * max(r, 0) / (1 + max(r, 0))

    return reliability


@pytest.fixture
def explainer_of():
    """Return a function (name, options) -> cheap explainer. Options that the explainer does not have are left out."""

    def cheap(name, **chosen):
        known = options.defaults(getattr(registry.load("explainers", name), name))
        return load_explainer(name, **{key: value for key, value in (FEW | chosen).items() if key in known})

    return cheap


@pytest.fixture
def map_or_refusal():
    """Return a function that returns (maps, None), or (None, message of a UserError); other errors are raised."""

    def attempt(explainer, classifier, images, target):
        try:
            return explainer(classifier, images, target), None
        except UserError as error:
            return None, str(error)

    return attempt


@pytest.fixture
def others_named():
    """Return a function that lists the other explainers that a one-line error suggests."""

    def others(refusal, name):
        assert "\n" not in refusal
        return set(re.findall(r"\w+", refusal.rpartition("use ")[2])) & set(registry.names("explainers")) - {name}

    return others


def resnet18():
    """Return torchvision's ResNet-18 with random weights, updated batch norm statistics and no in-place ReLUs."""
    import torchvision

    torch.manual_seed(2)
    model = torchvision.models.resnet18(num_classes=4)
    model.train()(torch.randn(4, 3, 32, 32))
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # captum's hooks do not support in-place ReLUs
    return model.eval()


PEERS = {
    "small": (small, "3", (24, 20)),
    "branched": (Branched, "body", (24, 20)),
    "resnet18": (resnet18, "layer4", (64, 64)),
}


@pytest.fixture(params=PEERS)
def peer(request):
    """Return objects for comparisons: model, classifier, images in [0, 1], normalised images, labels, layer."""
    make, layer, size = PEERS[request.param]
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    model, images = make().eval(), torch.rand(3, 3, *size)
    classifier = load_classifier(model, mean=mean, std=std, layer=layer, device="cpu")
    return SimpleNamespace(
        model=model, classifier=classifier, images=images, labels=torch.tensor([0, 3, 1]), layer=layer,
        inputs=(images - classifier.mean) / classifier.std, target=targets.one_hot([0, 3, 1], 4),
    )  # fmt: skip


@pytest.fixture
def error_of():
    """Return a function (ours, theirs) -> largest difference, as a share of the largest value of `theirs`."""
    return lambda ours, theirs: ((ours - theirs).abs().max() / theirs.abs().max()).item()


class Tiny(nn.Module):
    """Explicit vision transformer that stores its attention, as a reference for attention explainers.

    It has patches of 4 x 4 pixels, preceded by `before` tokens (the first is the class token). Each block has one
    attention and one perceptron. The head reads the class token or, with before=0, the mean of the patches.
    """

    def __init__(self, blocks=2, heads=2, width=8, patches=6, before=1, classes=3, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.heads, self.before = heads, before
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.front = nn.Parameter(torch.randn(1, before, width))
        self.place = nn.Parameter(torch.randn(1, before + patches, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width), "up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width)
                }
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.6)
        self.kept = []

    def forward(self, x):
        self.kept = []
        x = self.patch(x.to(self.place.dtype)).flatten(2).transpose(1, 2)
        x = torch.cat([self.front.expand(len(x), -1, -1), x], dim=1) + self.place
        for block in self.blocks:
            q, k, v = block["qkv"](block["norm1"](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            attention = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(dim=-1)
            self.kept.append(attention)
            x = x + block["out"]((attention @ v).transpose(1, 2).flatten(2))
            x = x + block["down"](nn.functional.gelu(block["up"](block["norm2"](x))))
        x = self.norm(x)
        return self.head(x[:, 0] if self.before else x.mean(dim=1))


@pytest.fixture(scope="session")
def tiny():
    return Tiny


@pytest.fixture(scope="session")
def attended():
    """Return attended(model, images, weights) -> (attention, gradient of the score) of each block, (B, heads, T, T)."""

    def of(model, images, weights):
        score = (model(images) * weights).sum()
        gradients = torch.autograd.grad(score, model.kept)
        return [a.detach().numpy() for a in model.kept], [g.numpy() for g in gradients]

    return of
