import captum.attr
import numpy as np
import pytest
import torch
from small_networks import Branched, Custom, small
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.compute.classifiers import windows
from saliency_bench.compute.scoring.perturbation import blurred

MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "window", "stride", "baseline"), [
    (Branched, 14, 3, "zero"), (small, 5, 5, "black"), (small, 6, 4, "white"), (small, 6, 4, "blur"),
])  # fmt: skip
def test_occlusion_matches_captum(make, window, stride, baseline):
    model = make().eval()
    images, labels = torch.rand(2, 3, 14, 18), torch.tensor([0, 3])
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu")
    explainer = load_explainer("occlusion", window=window, stride=stride, baseline=baseline)
    ours = explainer(classifier, images, targets.one_hot(labels, 4))
    fills = {"zero": 0 * images + classifier.mean, "black": 0 * images, "white": 0 * images + 1,
             "blur": blurred(classifier, images)}  # fmt: skip
    normalised, filled = ((shown - classifier.mean) / classifier.std for shown in (images, fills[baseline]))
    sizes = {"sliding_window_shapes": (3, window, window), "strides": (3, stride, stride)}
    theirs = captum.attr.Occlusion(model).attribute(normalised, target=labels, baselines=filled, **sizes)
    assert (ours - theirs[:, 0]).abs().max() <= 1e-4 * theirs.abs().max()


def conv(inputs, outputs, kernel, **options):
    """Return a convolution followed by a batch norm with random parameters."""
    norm = nn.BatchNorm2d(outputs)
    for value in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
        value.uniform_(0.5, 1.5)
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, **options), norm)


def head():
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))


def resnet():
    return Custom(
        lambda net, x: net.head(F.relu(net.down(y := F.relu_(net.body(z := net.stem(x)) + z)) + net.skip(y))),
        stem=nn.Sequential(conv(3, 8, 7, stride=2, padding=3), nn.ReLU(True), nn.MaxPool2d(3, 2, padding=1)),
        body=nn.Sequential(conv(8, 8, 3, padding=1), nn.ReLU(True), conv(8, 8, 3, padding=1)),
        down=conv(8, 8, 3, stride=2, padding=1), skip=conv(8, 8, 1, stride=2), head=head(),
    )  # fmt: skip


def vgg():
    return nn.Sequential(
        conv(3, 8, 3, padding=1), nn.ReLU(True), nn.Conv2d(8, 8, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True),
        conv(8, 8, (1, 3), padding="same"), nn.PReLU(8), nn.MaxPool2d((3, 2), 2, padding=1, dilation=(1, 2)), head(),
    )  # fmt: skip


def efficientnet_lite():
    return nn.Sequential(
        nn.ZeroPad2d((0, 1, 0, 1)), conv(3, 8, 3, stride=2), nn.ReLU6(True), nn.ZeroPad2d((1, 2, 1, 2)),
        conv(8, 8, 5, stride=2, groups=8), nn.ReLU6(), conv(8, 8, 1), nn.Dropout(), head(),
    )  # fmt: skip


def mobilenet():
    return Custom(
        lambda net, x: net.head(net.last(torch.cat([y := net.first(x), net.next(y) * net.gate(y).sigmoid()], dim=1))),
        first=nn.Sequential(conv(3, 8, (3, 5), stride=(1, 2), padding=(2, 0)), nn.Hardswish(True)),
        next=nn.Sequential(conv(8, 8, 3, padding=2, dilation=2, groups=8), nn.SiLU(True), nn.BatchNorm2d(8)),
        gate=nn.Conv2d(8, 8, 1), last=conv(16, 8, 3, stride=3), head=head(),
    )  # fmt: skip


@pytest.fixture
def checks(monkeypatch):
    """Allow partial computation of small images. Return a list that grows with each image that is computed in part."""
    for name in ("SMALLEST", "FEWEST"):
        monkeypatch.setattr(windows, name, 0)
    monkeypatch.setattr(windows, "SAVING", 1e-9)
    windows._log_once.cache_clear()
    outcomes, patched = [], windows._Unchanged.patched

    def counting(self, drawn, corner, side):
        outcomes.append(self)
        return patched(self, drawn, corner, side)

    monkeypatch.setattr(windows._Unchanged, "patched", counting)
    return outcomes


CASES = [
    (small, 9, 12, 4, 3, "probability", False, "blur"), (small, 8, 8, 8, 5, "logit", False, "black"),
    (small, 8, 8, 8, 5, "logit", True, "zero"), (small, 7, 10, 2, 2, "probability", True, "zero"),
    (resnet, 33, 40, 6, 5, "logit", True, "white"), (vgg, 30, 24, 5, 4, "probability", True, "zero"),
    (efficientnet_lite, 26, 33, 7, 6, "logit", True, "blur"), (mobilenet, 21, 30, 4, 4, "logit", True, "zero"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "height", "width", "window", "stride", "on", "in_part", "baseline"), CASES)
def test_occlusion_matches_literal_loop(make, height, width, window, stride, on, in_part, baseline, request):
    checks = request.getfixturevalue("checks") if in_part else []
    torch.manual_seed(0)
    classifier = load_classifier(make().eval(), mean=MEAN, std=STD, device="cpu")
    images, target = torch.rand(2, 3, height, width), targets.contrast([0, 2], [1, 3], 4)
    options = {"window": window, "stride": stride, "on": on, "baseline": baseline}
    fills = {"zero": 0 * images + classifier.mean, "black": 0 * images, "white": 0 * images + 1,
             "blur": blurred(classifier, images)}  # fmt: skip
    ours = load_explainer("occlusion", **options, batch_size=7)(classifier, images, target)

    def score(image, weights):
        with torch.no_grad():
            logits = classifier(image[None])[0].double()
        return float(((logits if on == "logit" else logits.softmax(0)) * weights).sum())

    for index, image in enumerate(images):
        total, count = np.zeros((height, width)), np.zeros((height, width))
        top = 0
        while True:
            left = 0
            while True:
                covered = image.clone()
                hidden = (slice(None), slice(top, top + window), slice(left, left + window))
                covered[hidden] = fills[baseline][index][hidden]
                drop = score(image, target[index]) - score(covered, target[index])
                total[hidden[1:]] += drop
                count[hidden[1:]] += 1
                if left + window >= width:
                    break
                left += stride
            if top + window >= height:
                break
            top += stride
        np.testing.assert_allclose(ours[index].numpy(), total / count, rtol=1e-4, atol=1e-6)
    assert len({id(unchanged) for unchanged in checks}) == 2 * in_part
    assert all(unchanged.saved > 0 for unchanged in checks) or window == height


def test_default_window_is_an_eighth_of_shorter_side():
    classifier = load_classifier(small(), device="cpu", mean=0, std=1)
    images, target = torch.rand(1, 3, 32, 48), targets.one_hot([1], 4)
    default = load_explainer("occlusion")(classifier, images, target)
    assert torch.equal(default, load_explainer("occlusion", window=4, stride=2)(classifier, images, target))


@pytest.mark.parametrize("make", [resnet, vgg, efficientnet_lite, mobilenet, lambda: begins(written_to_a_view)])
@pytest.mark.parametrize(("largest", "pictures"), [(0.5, 7), (0.2, 12), (2, 1)])
@torch.no_grad()
def test_partial_computation_keeps_logits(make, largest, pictures, monkeypatch):
    """Compare in float64, so that a single wrong position in a feature map is detected."""
    monkeypatch.setattr(windows, "LARGEST", largest)
    torch.manual_seed(pictures)
    model, image, side = make().eval().double(), torch.rand(1, 3, 41, 52, dtype=torch.float64), 5
    corners = torch.cartesian_prod(torch.tensor([0, 22, 36, 13]), torch.tensor([0, 47, 30]))[-pictures:]
    drawn = image.repeat(pictures, 1, 1, 1)
    for picture, (top, left) in zip(drawn, corners.tolist(), strict=True):
        picture[:, top : top + side, left : left + side] = torch.rand(3, side, side)
    unchanged = windows._Unchanged(image)
    for _ in range(2):  # the second call uses the stored feature maps of the first
        torch.testing.assert_close(model(unchanged.patched(drawn, corners, side)), model(drawn), rtol=1e-11, atol=1e-11)
    assert unchanged.saved > 0


def begins(function):
    """Return a network with `function` between its first two convolutions."""
    return Custom(lambda net, x: net.head(function(net, net.first(x))), first=conv(3, 8, 3, padding=1),
                  second=conv(8, 8, 3, padding=1), head=head())  # fmt: skip


def written_to_a_view(net, x):
    x[:, :4].mul_(2)
    return net.second(x)


def replaced_data(net, x):
    x.data = net.second(x)
    return x


@pytest.mark.parametrize("fewest", [0, 10**6])
@pytest.mark.parametrize("make", [resnet, mobilenet])
def test_covering_pixels_of_fill_colour_changes_nothing(make, fewest, checks, monkeypatch):
    monkeypatch.setattr(windows, "FEWEST", fewest)
    torch.manual_seed(0)
    classifier, target = load_classifier(make().eval(), mean=0.5, std=0.2, device="cpu"), targets.one_hot([1], 4)
    image = torch.full((1, 3, 40, 40), 0.5)
    image[:, :, 14:18, 22:26] = torch.rand(1, 3, 4, 4)
    drops = load_explainer("occlusion", window=4, stride=2, batch_size=40)(classifier, image, target)
    drops[:, 12:20, 20:28] = 0
    assert not drops.any()
    assert bool(checks) == (fewest == 0)


@torch.library.custom_op("test_occlusion::relu", mutates_args=())
def relu_of_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:, :, :14].relu(), x[:, :, 14:] * 2], dim=2)


WHOLE = {
    "a value is read": (lambda net, x: net.second(x * (1 + x.mean().item())), "its Python code reads a tensor value"),
    "a picture is read": (lambda net, x: net.second(x * float(x.numpy().mean() > 0)), "reads a tensor value"),
    "instance norm": (lambda net, x: net.second(F.instance_norm(x)), "not convolutions"),
    "squeeze and excitation": (lambda net, x: net.second(x * x.mean((2, 3), keepdim=True).sigmoid()), "not conv"),
    "a shape in place": (lambda net, x: net.second(x.unsqueeze_(0).squeeze(0)), "changes a shape in place"),
    "indices of a pool": (
        lambda net, x: net.second(F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)), "shape of indices",
    ),
    "other data": (replaced_data, "would differ from those of the full computation"),
    "a hook": (lambda net, x: net.second(x), "hooks"), "a hook of all modules": (lambda net, x: net.second(x), "hooks"),
    "a namesake of an operation": (lambda net, x: net.second(relu_of_rows(x)), "not convolutions"),
}  # fmt: skip


@pytest.mark.parametrize("case", WHOLE)
def test_unsupported_networks_get_whole_images_and_log_reason(case, checks, monkeypatch, caplog, request):
    function, reason = WHOLE[case]
    monkeypatch.setattr(windows, "SAVING", 0.6)
    torch.manual_seed(0)
    classifier = load_classifier(begins(function).eval(), mean=MEAN, std=STD, device="cpu")
    if case == "a hook":
        classifier.model.first.register_forward_hook(lambda module, inputs, output: output + 1)
    if case == "a hook of all modules":
        request.addfinalizer(nn.modules.module.register_module_forward_hook(lambda *args: None).remove)
    images, target = torch.rand(2, 3, 24, 24), targets.one_hot([0, 3], 4)
    explainer = load_explainer("occlusion", window=4, stride=4, batch_size=9)
    with caplog.at_level("INFO"):
        maps = explainer(classifier, images, target)
    (line,) = caplog.messages
    assert reason in line
    assert classifier.passes == 2 * 37
    monkeypatch.setattr(windows, "SMALLEST", 10**9)
    assert torch.equal(explainer(classifier, images, target), maps)
