import captum.attr
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.errors import UserError


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
def test_agrees_with_captum(peer, error_of):
    theirs = captum.attr.GuidedBackprop(peer.model).attribute(peer.inputs, target=peer.labels) / peer.classifier.std
    ours = load_explainer("guided_backprop")(peer.classifier, peer.images, peer.target)
    assert error_of(ours, theirs.abs().amax(dim=1)) <= 1e-4
    ours = load_explainer("guided_backprop", reduction="sum")(peer.classifier, peer.images, peer.target)
    assert error_of(ours, theirs.sum(dim=1)) <= 1e-4
    assert error_of(ours, load_explainer("gradient", reduction="sum")(peer.classifier, peer.images, peer.target)) > 0.1


class Written(nn.Module):
    """One network whose ReLUs are written in many ways."""

    def __init__(self, relu):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 4)
        self.relu = relu

    def forward(self, x):
        x = self.relu(self.first(x))
        x = x + self.relu(self.second(x))
        return self.head(self.relu(x - 0.1).mean(dim=(2, 3)))


def in_place_and_dropped(x):
    F.relu_(x)  # what it gives is not used: x itself has changed
    return x


RELUS = {
    "module, used again": nn.ReLU(),
    "module in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "method": lambda x: x.relu(),
    "method in place": lambda x: x.relu_(),
    "in place and dropped": in_place_and_dropped,
    "relu6": lambda x: F.relu6(x),
    "ReLU6": nn.ReLU6(),
    "clamp": lambda x: x.clamp(min=0),
    "clamp by position": lambda x: torch.clamp(x, 0),
    "clamp_min": lambda x: x.clamp_min(0),
}


@pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS)
def test_every_way_to_write_a_relu_is_met(relu, error_of):
    images, target = torch.rand(3, 3, 9, 8), targets.one_hot([0, 1, 3], 4)
    maps = load_explainer("guided_backprop")(
        load_classifier(Written(relu), device="cpu", mean=0, std=1), images, target
    )
    modules = Written(nn.ReLU())
    plain = load_explainer("gradient")(load_classifier(modules, device="cpu", mean=0, std=1), images, target)
    expected = load_explainer("guided_backprop")(load_classifier(modules, device="cpu", mean=0, std=1), images, target)
    assert error_of(maps, expected) <= 1e-5
    assert error_of(maps, plain) > 0.1


@pytest.mark.parametrize("other", [nn.GELU(), nn.SiLU(), nn.LeakyReLU(), lambda x: x.clamp(min=-1), torch.tanh])
def test_a_network_without_relu_is_refused_with_names_of_others(other):
    classifier = load_classifier(Written(other), device="cpu", mean=0, std=1)
    with pytest.raises(UserError, match=r"guided_backprop.*gradient.*smoothgrad"):
        load_explainer("guided_backprop")(classifier, torch.rand(1, 3, 9, 8), targets.one_hot([0], 4))
