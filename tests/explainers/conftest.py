"""What the tests over all explainers have in common."""

import re
from types import SimpleNamespace

import pytest
import torch
import torchvision
from torch import nn

from saliency_bench import load_classifier, load_explainer, options, rooms, targets
from saliency_bench.errors import UserError

# Options that say how much is computed, for any explainer that has them.
FEW = {"steps": 3, "samples": 20, "masks": 60, "window": 8, "stride": 4}


@pytest.fixture
def explainer_of():
    """(name, options) -> the explainer with little to compute; options it does not have are left out."""

    def cheap(name, **chosen):
        known = options.defaults(getattr(rooms.load("explainers", name), name))
        return load_explainer(name, **{key: value for key, value in (FEW | chosen).items() if key in known})

    return cheap


@pytest.fixture
def map_or_refusal():
    """(maps, None), or (None, the words of a UserError): anything else is raised."""

    def attempt(explainer, classifier, images, target):
        try:
            return explainer(classifier, images, target), None
        except UserError as error:
            return None, str(error)

    return attempt


@pytest.fixture
def others_named():
    """The explainers, other than the one that speaks, that a refusal of one line names."""

    def others(refusal, name):
        assert "\n" not in refusal
        return set(re.findall(r"\w+", refusal)) & set(rooms.names("explainers")) - {name}

    return others


def small():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 4),
    ).eval()  # fmt: skip


class Branched(nn.Module):
    """A skip connection, and one ReLU module that is used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.relu, self.head = nn.ReLU(), nn.Linear(8, 4)

    def forward(self, x):
        x = self.relu(self.stem(x))
        return self.head(self.relu(x + self.body(x)).mean(dim=(2, 3)))


def resnet18():
    """Torchvision's, with random weights and batch norms that have seen something; its ReLUs do not work in place."""
    torch.manual_seed(2)
    model = torchvision.models.resnet18(num_classes=4)
    model.train()(torch.randn(4, 3, 32, 32))
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # captum's hooks cannot do with in-place ReLUs
    return model.eval()


PEERS = {
    "small": (small, "3", (24, 20)),
    "branched": (Branched, "body", (24, 20)),
    "resnet18": (resnet18, "layer4", (64, 64)),
}


@pytest.fixture(params=PEERS)
def peer(request):
    """For comparisons with other packages: model, classifier, images in [0, 1], the same normalised, labels, layer."""
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
    """(ours, theirs) -> the largest difference, as a share of their largest value."""
    return lambda ours, theirs: ((ours - theirs).abs().max() / theirs.abs().max()).item()
