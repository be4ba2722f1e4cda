"""Compare explainers by gradients of the image with captum, differences and slow second implementations."""

from copy import deepcopy

import captum.attr
import numpy as np
import pytest
import torch
from refusals import refused
from small_networks import Custom, loaded, small
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, registry, targets
from saliency_bench.compute.maps.default_explainer import fitting
from saliency_bench.utils.seeds import normal, random_bits, seed_of, uniform

# In a deep network, some ReLU input is so close to 0 that the last bits of another batch size change its sign.
KINKS = pytest.mark.parametrize("peer", ["small", "branched"], indirect=True)


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
@pytest.mark.parametrize(("name", "method", "options"), [
    ("gradient", captum.attr.Saliency, {"abs": False}), ("guided_backprop", captum.attr.GuidedBackprop, {}),
])  # fmt: skip
def test_gradients_match_captum(name, method, options, peer, error_of):
    theirs = method(peer.model).attribute(peer.inputs, target=peer.labels, **options)
    theirs = theirs / peer.classifier.std  # captum's gradient is for the normalised input
    for reduction, expected in (("max", theirs.abs().amax(dim=1)), ("sum", theirs.sum(dim=1))):
        ours = load_explainer(name, reduction=reduction)(peer.classifier, peer.images, peer.target)
        assert error_of(ours, expected) <= 1e-4


def test_input_x_gradient_matches_captum(peer, error_of):
    ours = load_explainer("input_x_gradient")(peer.classifier, peer.images, peer.target)
    theirs = captum.attr.InputXGradient(peer.model).attribute(peer.inputs, target=peer.labels).sum(dim=1)
    assert error_of(ours, theirs) <= 1e-4


@KINKS
def test_gradient_matches_central_differences(peer):
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


# join -> (explainers with an incomplete gradient, chosen explainer)
STOPPED = {
    under_no_grad: (["gradient"], "rise"),
    lambda net, a, x: net.head(a.mean((2, 3))) * a.data.mean((1, 2, 3))[:, None]: (["gradient", "gradcam"], "rise"),
    lambda net, a, x: net.head(net.c(a + net.b(x).detach()).mean((2, 3))): (["gradient"], "gradcam"),
    logged: ([], "gradcam"),
    normalised: ([], "gradcam"),
}


@pytest.mark.parametrize("join", STOPPED)
def test_branch_without_gradients_is_reported(join, capsys):
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
        assert capsys.readouterr().err.count("computes part of its forward pass without gradients") == is_partial


def written(relu):
    """Return a network that applies `relu`, one of the ways to write a ReLU."""
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
def test_guided_backprop_handles_every_form_of_relu(relu, error_of):
    images, target = torch.rand(3, 3, 9, 8), targets.one_hot([0, 1, 3], 4)
    guided, gradient = load_explainer("guided_backprop"), load_explainer("gradient")
    maps, modules = guided(written(relu), images, target), written(nn.ReLU())
    assert error_of(maps, guided(modules, images, target)) <= 1e-5
    assert error_of(maps, gradient(modules, images, target)) > 0.1


@pytest.mark.parametrize("other", [nn.GELU(), nn.SiLU(), nn.LeakyReLU(), lambda x: x.clamp(min=-1), torch.tanh])
def test_guided_backprop_rejects_network_without_relu(other):
    refused("guided_backprop.*gradient.*smoothgrad", load_explainer("guided_backprop"), written(other),
            torch.rand(1, 3, 9, 8), targets.one_hot([0], 4))  # fmt: skip


MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


def smooth():
    """Return a network without ReLU: tanh and softplus, and a product of two branches."""
    torch.manual_seed(1)
    return Custom(lambda net, x: net.head((net.left(x).tanh() * F.softplus(net.right(x))).mean(dim=(2, 3))),
                  left=nn.Conv2d(3, 6, 3), right=nn.Conv2d(3, 6, 3), head=nn.Linear(6, 4))  # fmt: skip


@pytest.mark.parametrize("make", [small, smooth])
def test_integrated_gradients_match_captum_at_its_defaults(make):
    model = make()
    images, labels = torch.rand(3, 3, 14, 18), torch.tensor([0, 3, 1])
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu")
    ours = load_explainer("integrated_gradients")(classifier, images, targets.one_hot(labels, 4))
    peer = captum.attr.IntegratedGradients(model)
    inputs = (images - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    theirs = peer.attribute(inputs, target=labels, n_steps=50, method="gausslegendre").sum(dim=1)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def quadratic(power):
    """Return logits (q_k . x)^power + l_k . x. For power 2, one node integrates the gradient along a path exactly."""
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


@KINKS
@pytest.mark.parametrize("reduction", ["max", "sum"])
def test_smoothgrad_matches_literal_loop(peer, reduction, error_of, stepped_up):
    target, seeds, samples, sigma = targets.contrast([0, 3, 1], [1, 2, 2], 4), [5, 6, 7], 5, 0.2
    explainer = load_explainer("smoothgrad", samples=samples, sigma=sigma, reduction=reduction)
    ours = explainer.made(peer.classifier, peer.images, target, seeds=seeds)
    expected = []
    for index, seed in enumerate(seeds):
        clean, gradients = peer.inputs[index], []
        for copy in range(samples):
            noise = torch.from_numpy(normal(seed_of(seed, "smoothgrad", copy), clean.numel())).view_as(clean)
            noisy = (clean + sigma * (clean.max() - clean.min()) * noise).requires_grad_()
            (peer.model(noisy[None])[0] * target[index]).sum().backward()
            gradients.append(noisy.grad / peer.classifier.std[0])  # with respect to the image
        whole, even, odd = (mean.abs().amax(dim=0) if reduction == "max" else mean.sum(dim=0)
                            for mean in (sum(gradients) / samples, sum(gradients[::2]) / 3,
                                         sum(gradients[1::2]) / 2))  # fmt: skip
        expected.append(whole)
        assert ours.reliability[index] == pytest.approx(stepped_up(even, odd), abs=1e-3)
    assert error_of(ours.maps, torch.stack(expected)) <= 1e-4
    assert ours.draws == [samples] * len(ours.maps)


gradient_shap = registry.load("explainers", "gradient_shap")


def drawn(seed, samples, baselines):
    """Return (path points, numbers of baselines) of one sample."""
    picks = random_bits(seed_of(seed, "gradient_shap", "baseline"), samples) % np.uint64(baselines)
    return uniform(seed_of(seed, "gradient_shap", "point"), samples), picks.astype(int)


@KINKS
@pytest.mark.parametrize("baseline", ["noise", "zero", "black", "white"])
def test_gradient_shap_matches_literal_loop(peer, baseline, error_of, stepped_up):
    target, seeds, samples = targets.contrast([0, 3, 1], [1, 2, 2], 4), [5, 6, 7], 7
    explainer = load_explainer("gradient_shap", samples=samples, baselines=3, seed=9, baseline=baseline)
    ours = explainer.made(peer.classifier, peer.images, target, seeds=seeds)
    bank = gradient_shap.bank(peer.classifier, 3, 9, peer.images)
    starts = {"zero": peer.classifier.mean[0], "black": torch.zeros(3, 1, 1), "white": torch.ones(3, 1, 1)}
    halves = torch.zeros(2, *ours.maps.shape)
    for index, seed in enumerate(seeds):
        for number, (place, pick) in enumerate(zip(*drawn(seed, samples, 3), strict=True)):
            is_bank, end = baseline == "noise", peer.images[index]
            start = bank[pick] if is_bank else starts[baseline]
            point = (start + place * (end - start)).requires_grad_()
            (peer.classifier(point[None])[0] * target[index]).sum().backward()
            # The halves of a bank have different baselines.
            halves[(pick if is_bank else number) % 2, index] += ((end - start) * point.grad).sum(dim=0) / samples
        assert ours.reliability[index] == pytest.approx(stepped_up(*halves[:, index]), abs=1e-3)
    assert error_of(ours.maps, halves.sum(dim=0)) <= 1e-4
    assert ours.draws == [samples] * len(ours.maps)


@pytest.mark.slow
@KINKS
@pytest.mark.parametrize("baseline", ["noise", "zero", "black", "white"])
def test_gradient_shap_matches_captum_on_same_draws(baseline, peer, error_of, monkeypatch):
    """P3's code calls captum like this (zeros after normalisation). With our points, captum's maps must agree."""
    explainer = load_explainer("gradient_shap", baseline=baseline, baselines=1, samples=5)
    ours = explainer(peer.classifier, peer.images, peer.target, seeds=[5, 6, 7])
    points = np.concatenate([drawn(seed, 5, 1)[0] for seed in (5, 6, 7)])
    monkeypatch.setattr(np.random, "uniform", lambda low, high, size: points)
    mean, shape = peer.classifier.mean, (1, *peer.images.shape[1:])
    starts = {"noise": gradient_shap.bank(peer.classifier, 1, 0, peer.images), "zero": mean.expand(shape),
              "black": torch.zeros(shape), "white": torch.ones(shape)}  # fmt: skip
    start = (starts[baseline] - mean) / peer.classifier.std
    theirs = captum.attr.GradientShap(peer.model).attribute(peer.inputs, start, n_samples=5, target=peer.labels)
    assert error_of(ours, theirs.sum(dim=1)) <= 1e-4


def test_gradient_shap_bank_is_normal_noise_and_uses_run_seed():
    classifier = load_classifier(
        nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu"
    )
    images = torch.rand(1, 3, 40, 50)
    noise = (gradient_shap.bank(classifier, 5, 0, images) - 0.5) / 0.2
    assert noise.shape == (5, 3, 40, 50)
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(1, abs=0.02)
    assert not torch.equal(noise, (gradient_shap.bank(classifier, 5, 1, images) - 0.5) / 0.2)
    assert dict(load_explainer("gradient_shap").seeded(3).options)["seed"] == 3
