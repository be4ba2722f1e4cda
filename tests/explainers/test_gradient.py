from copy import deepcopy

import captum.attr
import pytest
import torch
from small_networks import Custom, loaded
from torch import nn

from saliency_bench import load_explainer, targets
from saliency_bench.compute.maps.default_explainer import fitting

# In a deep network, some ReLU input is so close to 0 that the last bits of another batch size change its sign.
KINKS = pytest.mark.parametrize("peer", ["small", "branched"], indirect=True)


def test_agrees_with_captum(peer, error_of):
    ours = load_explainer("gradient")(peer.classifier, peer.images, peer.target)
    theirs = captum.attr.Saliency(peer.model).attribute(peer.inputs, target=peer.labels, abs=False)
    theirs = theirs / peer.classifier.std  # captum's gradient is for the normalised input
    assert error_of(ours, theirs.abs().amax(dim=1)) <= 1e-4
    ours = load_explainer("gradient", reduction="sum")(peer.classifier, peer.images, peer.target)
    assert error_of(ours, theirs.sum(dim=1)) <= 1e-4


@KINKS
def test_agrees_with_differences(peer):
    """Compare with central differences of a contrast's probability, with steps of 1e-6 in float64."""
    target = targets.contrast([0, 3, 1], [1, 2, 2], 4)
    ours = load_explainer("gradient", reduction="sum", on="probability")(peer.classifier, peer.images, target)
    model, std = deepcopy(peer.model).double(), peer.classifier.std.double()
    for y, x in [(3, 7), (10, 11), (19, 4)]:
        expected = torch.zeros(3, dtype=torch.float64)
        for channel in range(3):
            step = torch.zeros_like(peer.inputs, dtype=torch.float64)
            step[:, channel, y, x] = 1e-6
            with torch.no_grad():
                up, down = (model(peer.inputs + sign * step / std).softmax(dim=1) for sign in (1, -1))
            expected += ((up - down) * target).sum(dim=1) / 2e-6
        torch.testing.assert_close(ours[:, y, x].double(), expected, rtol=1e-3, atol=1e-7)


def logged(net, a, x):
    net.last = a.detach().numpy()
    with torch.no_grad():
        net.second = net.b(x)
    return net.head(a.mean((2, 3)))


def normalised(net, a, x):
    """Return a softmax over the pixels, which subtracts a maximum that cancels out."""
    weights = (a - a.amax((2, 3), keepdim=True).detach()).exp()
    return net.head((a * weights).sum((2, 3)) / weights.sum((2, 3)))


def under_no_grad(net, a, x):
    with torch.no_grad():
        second = net.b(x).relu()
    return net.head((a + second).mean((2, 3)))


# join -> (explainers whose gradient misses a part, chosen explainer)
STOPPED = {
    under_no_grad: (["gradient"], "rise"),
    lambda net, a, x: net.head(a.mean((2, 3))) * a.data.mean((1, 2, 3))[:, None]: (["gradient", "gradcam"], "rise"),
    lambda net, a, x: net.head(net.c(a + net.b(x).detach()).mean((2, 3))): (["gradient"], "gradcam"),
    logged: ([], "gradcam"),
    normalised: ([], "gradcam"),
}


@pytest.mark.parametrize("join", STOPPED)
def test_a_part_without_gradients_is_named_where_it_counts(join, capsys):
    torch.manual_seed(0)
    a, b, c = (nn.Conv2d(channels, 6, 3, padding=1) for channels in (3, 3, 6))
    network = Custom(lambda net, x: join(net, net.a(x).relu(), x), a=a, b=b, c=c, head=nn.Linear(6, 4)).eval()
    images, target = torch.rand(2, 3, 12, 12), targets.one_hot([0, 2], 4)
    partial, chosen = STOPPED[join]
    assert fitting(loaded(network, size=12), images)[0] == chosen
    for name in ("gradient", "smoothgrad", "gradcam"):
        if name == "gradcam" and join is under_no_grad:  # raises an error because no layer contains all evidence
            continue
        classifier = loaded(network, size=12)
        for _ in range(2):
            load_explainer(name)(classifier, images, target)
        is_partial = name in partial or (name == "smoothgrad" and "gradient" in partial)
        assert capsys.readouterr().err.count("computes a part of its forward pass without gradients") == is_partial
