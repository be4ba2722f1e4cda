import copy
import signal

import numpy as np
import pytest
import torch
import torchvision
from refusals import refused
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForImageClassification

from saliency_bench import load_classifier
from saliency_bench.compute.classifiers import fast_forward as fast_forward_module
from saliency_bench.compute.classifiers.fast_forward import fast_forward


class Network(nn.Module):
    """Convolution, batch norm, ReLU, convolution, batch norm; `way` computes the part up to the second convolution."""

    def __init__(self, way=lambda net, x: F.relu(net.norm(net.first(x)), inplace=True), **parts: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second, self.last = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        for name, part in parts.items():
            self.add_module(name, part)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                for name, value in module.state_dict().items():
                    if name != "num_batches_tracked":
                        value.uniform_(0.5, 1.5)
        self.head, self.way = nn.Linear(6, 4), way

    def forward(self, x):
        return self.head(self.last(self.second(self.way(self, x))).mean(dim=(2, 3)))


class Activated(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


class Layout(nn.Module):
    """Network whose result depends on the memory layout."""

    def forward(self, x):
        return x * (2 if x.is_contiguous(memory_format=torch.channels_last) else 1)


class Uncopied(nn.Identity):
    """Module that raises this error when it is copied."""

    def __init__(self, error=RuntimeError):
        super().__init__()
        self.error = error

    def __deepcopy__(self, memo):
        raise self.error("no copies of this")


def hooked():
    model = Network()
    model.first.register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def replaced():
    model = Network()
    plain = model.norm.forward
    model.norm.forward = lambda x: plain(x) + 1
    return model


def classifier_of(model, **options):
    return load_classifier(model, mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu", **options)


def folded(forward) -> list[str]:
    """Return the names of the batch norms that are folded in the copy used by `forward`."""
    fused = forward.__closure__[[*forward.__code__.co_freevars].index("fused")].cell_contents
    return [name.removeprefix("model.") for name, module in fused.named_modules() if isinstance(module, nn.Identity)]


class Masked(Network):
    """Network with one masked-out class."""

    def forward(self, x):
        return super().forward(x).masked_fill(torch.arange(4) == 2, -torch.inf)


CASES = {
    "all pairs": (Network, ["norm", "last"]),
    "a class at minus infinity": (Masked, ["norm", "last"]),
    "an output read twice": (lambda: Network(lambda net, x: F.relu(net.norm(y := net.first(x)) + y)), ["last"]),
    # by the in-place ReLU between, which returns the same tensor
    "an output written over": (lambda: Network(lambda net, x: net.norm(F.relu(net.first(x), inplace=True))), ["last"]),
    # one convolution with two alternating batch norms, and one batch norm after two convolutions
    "modules used twice": (lambda: Network(lambda net, x: net.norm(net.first(x)) + net.last(net.first(x.flip(3)))), []),
    "weights read elsewhere": (
        lambda: Network(lambda net, x: F.relu(net.norm(net.first(x)) * net.first.weight.mean())), ["last"],
    ),
    # another path for some pictures; noise passes through the batch norms
    "a decision by values": (
        lambda: Network(lambda net, x: F.relu(net.norm(y) if (y := net.first(x)).std() > 0 else y)), [],
    ),
    "a hook": (hooked, ["last"]),
    "a replaced method": (replaced, ["last"]),
    "a subclass": (lambda: Network(norm=Activated(6)), ["last"]),
    "statistics of the batch": (lambda: Network(norm=nn.BatchNorm2d(6, track_running_stats=False)), ["last"]),
    "no weights": (lambda: Network(norm=nn.BatchNorm2d(6, affine=False)), ["norm", "last"]),
    "groups and strides": (lambda: Network(first=nn.Conv2d(3, 6, 3, 2, groups=3)), ["norm", "last"]),
    "padding by reflection": (
        lambda: Network(first=nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect")), ["norm", "last"],
    ),
    "a parametrisation": (
        lambda: Network(first=nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 6, 3))), ["last"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_copy_folds_expected_batch_norms_and_keeps_logits(case):
    make, expected = CASES[case]
    classifier = classifier_of(make())
    images = torch.rand(3, 3, 12, 10)
    forward = fast_forward(classifier, images)
    assert folded(forward) == expected
    torch.testing.assert_close(forward(images), classifier(images), rtol=1e-5, atol=1e-5)


def hf(kind, **sizes):
    """Return a function that makes a small network of a family of transformers."""
    return lambda: AutoModelForImageClassification.from_config(
        AutoConfig.for_model(kind, image_size=64, num_labels=6, **sizes)
    )


# {network: (function that makes the network, number of its batch norms)}
KNOWN = {
    "resnet18": (lambda: torchvision.models.resnet18(weights=None), 20),
    "mobilenet_v3": (torchvision.models.mobilenet_v3_small, 34),
    "resnet, basic": (
        hf("resnet", embedding_size=8, hidden_sizes=[8, 12], depths=[2, 1], layer_type="basic"), 8),
    "resnet, bottleneck": (
        hf("resnet", embedding_size=8, hidden_sizes=[8, 12], depths=[2, 1], layer_type="bottleneck"), 11),
    "mobilenet_v2": (hf("mobilenet_v2", depth_multiplier=0.35), 52),
    "convnext": (hf("convnext", hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 2, 1]), 0),
    "vit": (hf("vit", hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
@torch.no_grad()
def test_known_networks_fold_every_batch_norm_and_keep_logits(name):
    make, count = KNOWN[name]
    network, images = make(), torch.rand(3, 3, 64, 64)
    for channels_last in (False, True):
        classifier = classifier_of(network, channels_last=channels_last)
        forward = fast_forward(classifier, images)
        assert (forward is classifier) == (name == "vit")
        if forward is not classifier:
            before = sum(isinstance(module, nn.Identity) for module in classifier.modules())
            assert len(folded(forward)) == count + before
        expected = classifier(images)
        assert (forward(images) - expected).abs().max() <= 1e-4 * min(1, float(expected.max() - expected.min()))


@torch.no_grad()
def test_fast_forward_keeps_classifier_unchanged():
    classifier = classifier_of(Network())
    weights = {name: value.clone() for name, value in classifier.state_dict().items()}

    def places():
        return [(value.stride(), value.data_ptr()) for value in classifier.state_dict().values()]

    before, modules, digest = places(), list(classifier.modules()), classifier.digest
    forward = fast_forward(classifier, torch.rand(2, 3, 12, 10))
    assert classifier.passes == 0
    forward(torch.rand(5, 3, 12, 10))
    assert classifier.passes == 5
    assert all(torch.equal(value, weights[name]) for name, value in classifier.state_dict().items())
    assert all(one is other for one, other in zip(modules, classifier.modules(), strict=True))
    assert (places(), classifier.digest, classifier.channels_last) == (before, digest, False)


@pytest.mark.parametrize("make", [
    lambda: Network(norm=Layout()),
    lambda: Network(norm=Uncopied()),
    lambda: nn.Sequential(nn.Conv2d(3, 4, 4), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(252, 3)),
], ids=["other logits", "cannot be copied", "one convolution"])  # fmt: skip
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@torch.no_grad()
def test_classifier_runs_itself_without_a_useful_copy(precision, make):
    classifier = classifier_of(make(), precision=precision)
    assert fast_forward(classifier, torch.rand(2, 3, 12, 10)) is classifier
    assert classifier.precision == precision


@torch.no_grad()
def test_copy_computes_in_half_precision():
    classifier, images = classifier_of(Network(), precision="bf16"), torch.rand(3, 3, 12, 10)
    forward = fast_forward(classifier, images)
    assert folded(forward) == ["norm", "last"]
    assert classifier.precision == "bf16"
    exact = classifier_of(Network())(images)
    error = (forward(images) - exact).abs().max() / (exact.max() - exact.min())
    assert 1e-5 < error < 0.02


def test_copies_are_bit_identical_in_any_grad_mode():
    classifier, images = classifier_of(Network()), torch.rand(4, 3, 12, 10)
    copies = []
    for mode, first in ((torch.inference_mode, images), (torch.enable_grad, torch.zeros(1, 3, 12, 10))):
        with mode():
            copies.append(fast_forward(copy.deepcopy(classifier), first))
        assert folded(copies[-1]) == ["norm", "last"]
    with torch.no_grad():
        assert torch.equal(copies[0](images), copies[1](images))


@torch.no_grad()
def test_network_errors_propagate_and_count_no_passes():
    def failing(net, x):
        raise RuntimeError("on purpose")

    classifier = classifier_of(Network(failing))
    with pytest.raises(RuntimeError, match="on purpose"):
        fast_forward(classifier, torch.rand(1, 3, 12, 10))(torch.rand(1, 3, 12, 10))
    assert classifier.passes == 0


BRANCHES = {
    "equal": lambda x: torch.equal(x[:, 0], x[:, 1]),
    "item": lambda x: (x[:, 0] - x[:, 1]).abs().max().item() == 0,
    "bool": lambda x: bool((x[:, 0] == x[:, 1]).all()),
    "tolist": lambda x: (x[:, 0] - x[:, 1]).abs().amax(dim=(1, 2)).tolist() == [0.0] * len(x),
    "numpy": lambda x: not (x[:, 0] - x[:, 1]).numpy().any(),
    "asarray": lambda x: not np.asarray(x[:, 0] - x[:, 1]).any(),
    "nonzero": lambda x: len((x[:, 0] - x[:, 1]).nonzero()) == 0,
    "mask": lambda x: len(x[:, 0][x[:, 0] != x[:, 1]]) == 0,
}


@pytest.mark.parametrize("name", BRANCHES)
@torch.no_grad()
def test_copy_matches_network_with_data_dependent_branch(name):
    """Grey pictures skip the batch norm, but the recorded noise does not."""

    def way(net, x):
        y = net.first(x)
        return F.relu(y if BRANCHES[name](x) else net.norm(y))

    classifier = load_classifier(Network(way), mean=0, std=1, device="cpu").eval()
    colour = torch.rand(4, 3, 12, 10)
    for images in (colour, colour[:, :1].repeat(1, 3, 1, 1)):
        found = fast_forward(classifier, images)(images)
        torch.testing.assert_close(found, classifier(images), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_gpu_copy_keeps_batch_norms_and_needs_half_precision(monkeypatch):
    for known in (fast_forward_module.GAINING, fast_forward_module.FOLDING):
        monkeypatch.setitem(known, "cpu", known["cuda"])
    classifier, images = classifier_of(Network()), torch.rand(3, 3, 12, 10)
    assert fast_forward(classifier, images) is classifier
    forward = fast_forward(classifier.computing("bf16", None), images)
    assert forward is not classifier
    assert folded(forward) == []
    torch.testing.assert_close(forward(images), classifier(images), rtol=2e-2, atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.thorough)])
def test_compiled_copy_keeps_logits_for_any_batch_size(precision):
    classifier = load_classifier(classifier_of(Network()), precision=precision, compile=True)
    assert classifier.arithmetic == f"{precision}, compiled"
    plain = fast_forward(load_classifier(classifier, compile=False), torch.rand(2, 3, 12, 10))
    forward = fast_forward(classifier, torch.rand(2, 3, 12, 10))
    torch._dynamo.utils.counters.clear()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for count in (2, 9, 4):
                images = torch.rand(count, 3, 12, 10)
                tolerance = 1e-5 if precision == "fp32" else 2e-2
                torch.testing.assert_close(forward(images), plain(images), rtol=tolerance, atol=tolerance)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2  # one network per mode


def test_compile_rejects_data_dependent_network():
    deciding = Network(lambda net, x: net.norm(net.first(x if float(x.mean()) > 9 else 2 * x)))
    compiled, words = (
        load_classifier(classifier_of(deciding), compile=True),
        "run without --compile, and choose a different",
    )
    refused(f"Network cannot run in compiled form here .*; {words}", fast_forward, compiled, torch.rand(2, 3, 12, 10))


def test_signal_errors_during_copying_propagate():
    """Otherwise, the results would depend on when the signal arrived."""

    class Late(nn.Identity):
        def __deepcopy__(self, memo):
            signal.raise_signal(signal.SIGUSR1)
            return self

    def tell(number, frame):
        raise TimeoutError("too late")

    before = signal.signal(signal.SIGUSR1, tell)
    try:
        with pytest.raises(TimeoutError, match="too late"):
            fast_forward(classifier_of(Network(late=Late())), torch.rand(1, 3, 12, 10))
        assert signal.getsignal(signal.SIGUSR1) is tell
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_copy_that_exceeds_memory_is_skipped_and_counted():
    classifier = classifier_of(Network(large=Uncopied(MemoryError)))
    assert fast_forward(classifier, torch.rand(1, 3, 12, 10)) is classifier
    assert classifier.halved == 1


class Scaled(Network):
    """Network whose forward reads a value that no version counter and no hook covers."""

    scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale


def test_copy_follows_changes_of_the_network():
    classifier, images = classifier_of(Scaled()), torch.rand(2, 3, 12, 10)
    changes = [
        lambda: setattr(classifier.model, "scale", 3.0),
        lambda: classifier.model.first.weight.data.normal_(),
        lambda: classifier.model.first.weight.data[0, 0, 0, 0].neg_(),
        lambda: setattr(classifier.model, "head", nn.Linear(6, 4)),
        lambda: setattr(classifier.model.second, "stride", (2, 2)),
        lambda: classifier.model.norm.running_var.data.mul_(4),
        lambda: classifier.model.norm.running_mean.add_(1),
        lambda: torch.optim.SGD(classifier.model.parameters(), lr=0.1, fused=True).step(),
    ]
    for parameter in classifier.parameters():
        parameter.grad = torch.ones_like(parameter)
    with torch.no_grad():
        for change in changes:
            fast_forward(classifier, images)
            change()
            forward = fast_forward(classifier, images)
            assert folded(forward) == ["norm", "last"]
            torch.testing.assert_close(forward(images), classifier(images), rtol=1e-5, atol=1e-5)


def test_copy_is_reused_until_network_changes(monkeypatch):
    made = []
    make = fast_forward_module._fused_copy
    monkeypatch.setattr(fast_forward_module, "_fused_copy", lambda *args: made.append(args) or make(*args))
    classifier, images = classifier_of(Network()), torch.rand(2, 3, 12, 10)
    first = fast_forward(classifier, images)(images)
    assert torch.equal(fast_forward(classifier, images + 0.1)(images), first)
    assert len(made) == 1
    changes = [
        lambda: classifier.model.second.train(),
        lambda: classifier.model.second.eval(),
        lambda: setattr(classifier.model.last, "running_mean", classifier.model.last.running_mean + 1),
        lambda: classifier.model.first.register_forward_hook(lambda *_: None),
        lambda: classifier.computing("bf16", None),
    ]
    for count, change in enumerate(changes, 2):
        change()
        fast_forward(classifier, images)
        fast_forward(classifier, images)
        assert len(made) == count
    fast_forward(classifier, torch.rand(2, 3, 10, 12))
    assert len(made) == len(changes) + 2


def test_log_explains_missing_copy(caplog):
    with caplog.at_level("INFO"):
        fast_forward(classifier_of(Network(norm=Uncopied())), torch.rand(2, 3, 12, 10))
        fast_forward(classifier_of(Network(norm=Layout())), torch.rand(2, 3, 12, 10))
    assert "without a faster copy: RuntimeError: no copies of this" in caplog.messages[0]
    assert "the logits of the copy are off by" in caplog.messages[1]
