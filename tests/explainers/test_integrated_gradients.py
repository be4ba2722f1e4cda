import captum.attr
import pytest
import torch
from small_networks import Custom, small
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets

MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


def smooth():
    """Return a network without ReLU: tanh and softplus, and a product of two branches."""
    torch.manual_seed(1)
    return Custom(lambda net, x: net.head((net.left(x).tanh() * F.softplus(net.right(x))).mean(dim=(2, 3))),
                  left=nn.Conv2d(3, 6, 3), right=nn.Conv2d(3, 6, 3), head=nn.Linear(6, 4))  # fmt: skip


def test_agrees_with_captum(peer, error_of):
    """Both use identical points, because the images are not normalised.

    Otherwise, last bits could change the sign of a ReLU input.
    """
    classifier, images = load_classifier(peer.model, device="cpu", mean=0, std=1), peer.images
    ours = load_explainer("integrated_gradients", steps=10, batch_size=30)(classifier, images, peer.target)
    theirs = captum.attr.IntegratedGradients(peer.model).attribute(images, target=peer.labels, n_steps=10)
    assert error_of(ours, theirs.sum(dim=1)) <= 1e-4


@pytest.mark.parametrize("make", [small, smooth])
def test_agrees_with_captum_at_its_defaults(make):
    model = make()
    images, labels = torch.rand(3, 3, 14, 18), torch.tensor([0, 3, 1])
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu")
    ours = load_explainer("integrated_gradients")(classifier, images, targets.one_hot(labels, 4))
    peer = captum.attr.IntegratedGradients(model)
    inputs = (images - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    theirs = peer.attribute(inputs, target=labels, n_steps=50, method="gausslegendre").sum(dim=1)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def quadratic(power):
    """Return logit_k = (q_k . x)^2 + l_k . x, whose gradient has a path integral that is exact with one node."""
    torch.manual_seed(2)
    return Custom(lambda net, x: net.q(x.flatten(1)) ** power + net.line(x.flatten(1)),
                  q=nn.Linear(3 * 8 * 8, 3), line=nn.Linear(3 * 8 * 8, 3))  # fmt: skip


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("baseline", ["zero", "black", "white"])
def test_completeness_is_exact_on_linear_and_quadratic_networks(power, baseline):
    classifier = load_classifier(quadratic(power), mean=MEAN, std=STD, device="cpu")
    images, target = torch.rand(2, 3, 8, 8), targets.contrast([0, 1], [1, 2], 3)
    maps = load_explainer("integrated_gradients", steps=3, baseline=baseline)(classifier, images, target)
    start = {"zero": classifier.mean, "black": torch.zeros(1), "white": torch.ones(1)}[baseline].expand_as(images)
    with torch.no_grad():
        gain = targets.score(classifier(images), target) - targets.score(classifier(start), target)
    torch.testing.assert_close(maps.sum(dim=(1, 2)), gain, rtol=1e-5, atol=1e-5)
