import captum.attr
import pytest
import torch
from refusals import refused
from small_networks import Custom, loaded
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_explainer, targets


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
def test_agrees_with_captum(peer, error_of):
    theirs = captum.attr.GuidedBackprop(peer.model).attribute(peer.inputs, target=peer.labels) / peer.classifier.std
    ours = load_explainer("guided_backprop")(peer.classifier, peer.images, peer.target)
    assert error_of(ours, theirs.abs().amax(dim=1)) <= 1e-4
    ours = load_explainer("guided_backprop", reduction="sum")(peer.classifier, peer.images, peer.target)
    assert error_of(ours, theirs.sum(dim=1)) <= 1e-4
    assert error_of(ours, load_explainer("gradient", reduction="sum")(peer.classifier, peer.images, peer.target)) > 0.1


def written(relu):
    """Return a network whose ReLUs are written in different ways."""
    torch.manual_seed(0)

    def forward(net, x):
        x = relu(net.first(x))
        x = x + relu(net.second(x))
        return net.head(relu(x - 0.1).mean(dim=(2, 3)))

    return loaded(Custom(forward, first=nn.Conv2d(3, 6, 3), second=nn.Conv2d(6, 6, 3, padding=1),
                         head=nn.Linear(6, 4), relu=relu))  # fmt: skip


def in_place_and_dropped(x):
    F.relu_(x)  # the output is not used, because x is changed in place
    return x


RELUS = {
    "module, used again": nn.ReLU(), "module in place": nn.ReLU(inplace=True), "ReLU6": nn.ReLU6(),
    "F.relu": F.relu, "F.relu in place": lambda x: F.relu(x, inplace=True), "relu6": lambda x: F.relu6(x),
    "torch.relu": torch.relu, "torch.relu_": torch.relu_, "method": lambda x: x.relu(),
    "method in place": lambda x: x.relu_(), "in place and dropped": in_place_and_dropped,
    "clamp": lambda x: x.clamp(min=0), "clamp by position": lambda x: torch.clamp(x, 0),
    "clamp_min": lambda x: x.clamp_min(0),
}  # fmt: skip


@pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS)
def test_every_way_to_write_a_relu_is_met(relu, error_of):
    images, target = torch.rand(3, 3, 9, 8), targets.one_hot([0, 1, 3], 4)
    guided, gradient = load_explainer("guided_backprop"), load_explainer("gradient")
    maps, modules = guided(written(relu), images, target), written(nn.ReLU())
    assert error_of(maps, guided(modules, images, target)) <= 1e-5
    assert error_of(maps, gradient(modules, images, target)) > 0.1


@pytest.mark.parametrize("other", [nn.GELU(), nn.SiLU(), nn.LeakyReLU(), lambda x: x.clamp(min=-1), torch.tanh])
def test_a_network_without_relu_is_refused_with_names_of_others(other):
    refused("guided_backprop.*gradient.*smoothgrad", load_explainer("guided_backprop"), written(other),
            torch.rand(1, 3, 9, 8), targets.one_hot([0], 4))  # fmt: skip
