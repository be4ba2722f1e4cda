"""Test the layer of Grad-CAM, Grad-CAM++, Score-CAM and IIA.

It is the last feature map before pooling, in any layout.
"""

import re

import numpy as np
import pytest
import timm
import torch
import transformers as hf
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from refusals import refused
from small_networks import Custom
from torch import nn
from torch.nn import functional as F
from torchvision import models

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.compute.classifiers.layers import MapLayout, cam_layer, layout_of
from saliency_bench.compute.maps.default_explainer import fitting
from saliency_bench.maps import normalise

READERS = ["gradcam", "gradcam_plus_plus", "scorecam", "iia:steps=2"]
SWIN = {"embed_dim": 12, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 2, 4)}

# name: (side, layer, (h, w))
TORCHVISION = {
    "squeezenet1_0": (224, "features", (13, 13)), "squeezenet1_1": (224, "features", (13, 13)),
    "alexnet": (224, "features.11", (13, 13)), "vgg11": (224, "features.19", (14, 14)),
    "resnet18": (224, "layer4", (7, 7)), "densenet121": (224, "features", (7, 7)),
    "googlenet": (224, "inception5b", (7, 7)), "inception_v3": (299, "Mixed_7c", (8, 8)),
    "mobilenet_v2": (224, "features", (7, 7)), "mobilenet_v3_small": (224, "features", (7, 7)),
    "efficientnet_b0": (224, "features", (7, 7)), "shufflenet_v2_x0_5": (224, "conv5", (7, 7)),
    "regnet_y_400mf": (224, "trunk_output", (7, 7)), "mnasnet0_5": (224, "layers", (7, 7)),
    "convnext_tiny": (224, "features", (7, 7)), "swin_t": (224, "permute", (7, 7)),
    "maxvit_t": (224, "blocks.3", (7, 7)),
}  # fmt: skip
SIZES = {"hidden_sizes": [8, 16, 24, 32], "num_labels": 4, "depths": [1] * 4}
HEADS = {"num_attention_heads": [1, 2, 2, 4]}
# name: (network, config, options of the config, layer, axes)
TRANSFORMERS = {
    "swin": (hf.SwinForImageClassification, hf.SwinConfig, {"num_labels": 4, "image_size": 64, "window_size": 2} | SWIN,
             "swin.layernorm", "BNC"),
    "swinv2": (hf.Swinv2ForImageClassification, hf.Swinv2Config,
               {"num_labels": 4, "image_size": 64, "window_size": 4} | SWIN, "swinv2.layernorm", "BNC"),
    "pvt v2": (hf.PvtV2ForImageClassification, hf.PvtV2Config, SIZES | HEADS | {"image_size": 64},
               "pvt_v2.encoder.layers.3.layer_norm", "BNC"),
    "segformer": (hf.SegformerForImageClassification, hf.SegformerConfig, SIZES | HEADS, "segformer.stages.3", "BCHW"),
    "convnext": (hf.ConvNextForImageClassification, hf.ConvNextConfig, SIZES, "convnext.encoder.stages.3", "BCHW"),
    "mobilenet": (hf.MobileNetV2ForImageClassification, hf.MobileNetV2Config,
                  {"num_labels": 4, "depth_multiplier": 0.1}, "mobilenet_v2.conv_1x1", "BCHW"),
    "focalnet": (hf.FocalNetForImageClassification, hf.FocalNetConfig,
                 {"num_labels": 4, "image_size": 64, "embed_dim": 8, "depths": [1] * 4}, "focalnet.layernorm", "BNC"),
}  # fmt: skip


def found(model, side):
    classifier = load_classifier(model, mean=(0.5,) * 3, std=(0.25,) * 3, device="cpu")
    images = torch.rand(1, 3, side, side)
    layer = cam_layer(classifier, images)
    return layer, layout_of(classifier, images, layer)


def torchvision(name):
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    if name == "maxvit_t":  # with few channels and blocks, because this network is slow
        return models.MaxVit((224, 224), 8, 7, [8] * 4, [1] * 4, 4, stochastic_depth_prob=0, num_classes=4)
    model = models.get_model(name, num_classes=4, **options)
    if name.startswith("vgg"):
        shrink(model)
    return model


def shrink(model):
    """Replace VGG's linear layers, which have most of the weights, by layers with eight hidden units."""
    model.classifier[0], model.classifier[3] = nn.Linear(512 * 49, 8), nn.Linear(8, 8)
    model.classifier[6] = nn.Linear(8, 4)


@pytest.mark.sample(2, 5)
@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_networks_use_expected_cam_layer(name):
    side, expected, grid = TORCHVISION[name]
    layer, layout = found(torchvision(name), side)
    assert (layer, layout.axes, layout.grid) == (expected, "BCHW", grid)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_networks_use_expected_cam_layer(name):
    network, config, options, expected, axes = TRANSFORMERS[name]
    layer, layout = found(network(config(**options)), 64)
    assert (layer, layout.axes, layout.grid) == (expected, axes, (2, 2))


# Blocks that end in pooling, as a function or a module, before or after the ReLU.
POOLING = {
    "module": (lambda net, x: net.last(x), "relu"),
    "function": (lambda net, x: F.max_pool2d(net.relu(net.conv(x)), 2), "relu"),
    "relu last": (lambda net, x: net.relu(net.last[2](net.conv(x))), "conv"),
}


@pytest.mark.parametrize("order", POOLING)
def test_cam_layer_is_before_pooling(order):
    torch.manual_seed(0)
    block, layer = POOLING[order]
    stem, conv, relu = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3), nn.ReLU()
    model = Custom(lambda net, x: net.head(block(net, F.avg_pool2d(net.stem(x).relu(), 2)).mean(dim=(2, 3))),
                     stem=stem, conv=conv, relu=relu, last=nn.Sequential(conv, relu, nn.MaxPool2d(2)),
                     head=nn.Linear(6, 4))  # fmt: skip
    assert found(model, 20) == (layer, layout_of_side(7))


def layout_of_side(side):
    return MapLayout("BCHW", (side, side))


def test_cam_layer_is_activation_inside_pooling_block():
    first, second = (Custom(lambda net, x: F.max_pool2d(net.act(net.conv(x)), 2), act=nn.ReLU(),
                              conv=nn.Conv2d(inside, outside, 3, padding=1))
                     for inside, outside in ((3, 4), (4, 6)))  # fmt: skip
    model = nn.Sequential(first, second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    assert found(model, 16) == ("1.act", layout_of_side(8))


def test_class_score_map_is_not_a_cam_layer():
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())
    scores = nn.Sequential(nn.Conv2d(6, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert found(nn.Sequential(features, scores), 16)[0] == "0"
    hidden = nn.Sequential(nn.Conv2d(6, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    assert found(nn.Sequential(features, hidden), 16)[0] == "1.1"
    only = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert found(only, 16)[0] == "0"


def alive(model):
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.25)
    return model.eval()


def swins():
    """Return Swin networks of three libraries, as (network, last module, conversion of its output to (B, C, h, w))."""
    torch.manual_seed(0)
    ours = hf.SwinForImageClassification(hf.SwinConfig(num_labels=4, image_size=64, window_size=2, **SWIN))
    yield "transformers", alive(ours), "swin.layernorm", lambda values: values.unflatten(1, (2, 2)).permute(0, 3, 1, 2)
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=4, img_size=64, window_size=2, **SWIN)
    yield "timm", alive(model), "norm", lambda values: values.permute(0, 3, 1, 2)
    model = models.SwinTransformer([4, 4], 12, list(SWIN["depths"]), list(SWIN["num_heads"]), [2, 2], num_classes=4)
    yield "torchvision", alive(model), "norm", lambda values: values.permute(0, 3, 1, 2)


def logits_of(net, x):
    output = net.model(x)
    return getattr(output, "logits", output)


@pytest.mark.parametrize("library", ["transformers", "timm", "torchvision"])
def test_gradcam_on_swin_matches_pytorch_grad_cam(library):
    """Test also that other readers of feature maps are defined, and that readers of attention refuse its windows."""
    ((model, layer, to_maps),) = [rest for name, *rest in swins() if name == library]
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    classifier = load_classifier(model, mean=(0.5,) * 3, std=(0.25,) * 3, device="cpu")
    ours = load_explainer("gradcam")(classifier, images, targets.one_hot([1, 2], 4)).numpy()
    network = Custom(logits_of, model=model)
    with GradCAM(network, [model.get_submodule(layer)], reshape_transform=to_maps) as cam:
        theirs = cam((images - 0.5) / 0.25, [ClassifierOutputTarget(1), ClassifierOutputTarget(2)])
    assert theirs.max() > 0.5
    np.testing.assert_allclose(normalise(ours), theirs, atol=1e-4)
    target = targets.contrast([0, 1], [1, 2], 4)
    for name in READERS:
        maps = load_explainer(name)(classifier, images, target)
        assert maps.shape == (2, 64, 64)
        assert (maps.amax(dim=(1, 2)) > maps.amin(dim=(1, 2))).all(), name
    for name in ("attention", "rollout", "gradient_rollout", "gae", "tattr", "gradcam_vit"):
        words = f"attention of .*{type(model).__name__} is not a map .*windows or stages.*gradcam"
        refused(words, load_explainer(name), classifier, images, target)


def body():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU())


def further(channels=6):
    return nn.Sequential(nn.Conv2d(6, channels, 3, padding=1), nn.ReLU())


def pooled(*maps):
    return torch.cat([values.mean((2, 3)) for values in maps], dim=1)


def read(net, features):
    return net.head(pooled(features))


def seen(net, x):
    return read(net, net.a(x))


def quarters(x):
    half = x.shape[-1] // 2
    return [x[..., top : top + half, left : left + half] for top in (0, half) for left in (0, half)]


def without_gradients(layer, x):
    with torch.no_grad():
        return layer(x)


def hooked():
    """Return a network whose layers are only used through a hook."""
    layers = nn.Sequential(body(), nn.Flatten(), nn.Linear(150, 4))
    layers.taken = []
    layers[0].register_forward_hook(lambda module, inputs, output: layers.taken.append(output))
    return layers


def taken(net, x):
    net.a(x)
    return net.a.taken.pop()


def joined(net, x):
    return torch.cat([net.a(x), net.b(x)], dim=1)


# {network in which all evidence passes through one layer: (layer, features, logits from the features, modules)}
CUT = {
    "a chain": ("a", lambda net, x: net.a(x), read, {"a": body}),
    "branches that a layer joins": (
        "c", lambda net, x: net.c(joined(net, x)), read, {"a": body, "b": body, "c": lambda: nn.Conv2d(12, 6, 1)},
    ),
    "two scales of one chain": (
        "a", lambda net, x: net.a(x), lambda net, early: net.head(pooled(early, net.b(early))),
        {"a": body, "b": further},
    ),
    "spatial attention": (
        "a", lambda net, x: net.a(x), lambda net, early: read(net, early * net.b(early).sigmoid()),
        {"a": body, "b": lambda: nn.Conv2d(6, 1, 3, padding=1)},
    ),
    "a layer again and again": (
        "b", lambda net, x: net.b(net.b(net.b(net.a(x)))), read, {"a": body, "b": further},
    ),
    "a shared ReLU": (
        "c", lambda net, x: net.c(net.b(net.c(net.a(x)))), read,
        {"a": lambda: nn.Conv2d(3, 4, 3), "b": lambda: nn.Conv2d(4, 6, 3), "c": nn.ReLU},
    ),
    "a mask of the image": (
        "a", lambda net, x: net.a(x * net.b(x).sigmoid()), read,
        {"a": body, "b": lambda: nn.Conv2d(3, 1, 3, padding=1)},
    ),
    "features that a hook takes": ("a.0", taken, read, {"a": hooked}),
    "a frozen encoder": (
        "b", lambda net, x: net.b(without_gradients(net.a, x)), read, {"a": body, "b": further},
    ),
}  # fmt: skip
# {network in which some evidence passes by every layer: (logits, modules, error message)}
PARTIAL = {
    "a mirrored copy": (lambda net, x: seen(net, x) + seen(net, x.flip(-1)), {"a": body}, "runs 2 times"),
    "a mirrored copy in the batch": (
        lambda net, x: seen(net, torch.cat([x, x.flip(-1)])).view(2, len(x), 4).mean(0),
        {"a": body}, "grows from 1 to 2",
    ),
    "crops in the batch": (
        lambda net, x: seen(net, torch.stack(quarters(x), 1).flatten(0, 1)).view(len(x), 4, 4).mean(1),
        {"a": body}, "grows from 1 to 4",
    ),
    "crops, one by one": (lambda net, x: sum(seen(net, part) for part in quarters(x)), {"a": body}, "runs 4 times"),
    "a pyramid": (lambda net, x: seen(net, x) + seen(net, F.avg_pool2d(x, 2)), {"a": body}, "runs 2 times"),
    "two streams": (
        lambda net, x: net.head(pooled(net.a(x), net.b(x))), {"a": body, "b": body}, "layer b .*another branch",
    ),
    "two networks": (
        lambda net, x: seen(net, x) + net.c(pooled(net.b(x))),
        {"a": body, "b": body, "c": lambda: nn.Linear(6, 4)}, "another branch",
    ),
    "a stream without gradients": (
        lambda net, x: net.head(pooled(without_gradients(net.a, x), net.b(x))),
        {"a": body, "b": body}, "another branch",
    ),
    "statistics of the image": (lambda net, x: net.head(pooled(net.a(x), x)), {"a": body}, "another branch"),
    "a gate of the image": (
        lambda net, x: read(net, net.a(x) * net.b(x).mean((2, 3), keepdim=True).sigmoid()),
        {"a": body, "b": body}, "another branch",
    ),
}  # fmt: skip
PICTURES = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(4))
TARGET = targets.contrast([0, 1], [1, 2], 4)


def made(logits, layers):
    torch.manual_seed(0)
    layers = {"head": lambda: nn.LazyLinear(4)} | layers
    network = Custom(logits, **{name: layer() for name, layer in layers.items()})
    network(PICTURES)
    return load_classifier(alive(network), mean=0, std=1, size=(16, 16), labels=list("abcd"), device="cpu")


@pytest.mark.parametrize("name", CUT)
def test_cam_layer_contains_all_evidence(name):
    layer, features, logits, layers = CUT[name]
    classifier = made(lambda net, x: logits(net, features(net, x)), layers)
    assert cam_layer(classifier, PICTURES) == layer
    expected = []
    for picture, row in zip(PICTURES, TARGET, strict=True):
        values = features(classifier.model, picture[None]).detach().requires_grad_()
        (logits(classifier.model, values)[0] * row).sum().backward()
        cam = (values.grad.mean((2, 3), keepdim=True) * values.detach()).sum(1, keepdim=True)
        expected.append(F.interpolate(cam, (16, 16), mode="bilinear")[0, 0])
    expected = torch.stack(expected)
    assert expected.abs().max() > 1e-3
    for chosen in (None, layer):
        maps = load_explainer("gradcam", layer=chosen)(classifier, PICTURES, TARGET)
        torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-6)
    if name != "a frozen encoder":  # without a gradient at the image
        assert fitting(classifier, PICTURES)[0] == "gradcam"


@pytest.mark.parametrize("name", PARTIAL)
def test_networks_without_layer_of_all_evidence_are_rejected(name):
    logits, layers, why = PARTIAL[name]
    classifier = made(logits, layers)
    for method in [*READERS, "cebp"]:
        refused(rf"{why}.*use gradient, integrated_gradients, occlusion or rise", load_explainer(method), classifier,
                PICTURES, TARGET)  # fmt: skip
    assert classifier.passes == 0
    chosen, reason = fitting(classifier, PICTURES)
    if name == "a stream without gradients":
        assert (chosen, reason) == ("rise", "it computes part of its forward pass without gradients")
    else:
        assert chosen == "integrated_gradients"
        assert "no layer contains all of the evidence" in reason


def test_named_layer_with_partial_evidence_logs_one_warning(caplog):
    torch.manual_seed(0)
    network = models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=4)
    classifier = load_classifier(alive(network), mean=0, std=1, device="cpu")
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(4))
    for _ in range(2):
        maps = load_explainer("gradcam", layer="layer3.0.conv1")(classifier, images, targets.one_hot([1, 2], 4))
    (line,) = caplog.messages
    assert re.search(
        "layer3.0.conv1 of module:ResNet contains only part.*use layer layer3.0, which contains all of the evidence",
        line,
    )
    with GradCAM(network, [network.layer3[0].conv1]) as cam:
        theirs = cam(images, [ClassifierOutputTarget(1), ClassifierOutputTarget(2)])
    np.testing.assert_allclose(normalise(maps.numpy()), theirs, atol=1e-4)
    caplog.clear()
    for layer in ("layer3.0", "layer3.0.relu", "layer4"):  # this ReLU runs twice; its last output is the block's
        load_explainer("gradcam", layer=layer)(classifier, images, TARGET)
    assert caplog.messages == []


@pytest.mark.parametrize(("name", "layer"), [("a mirrored copy", "a"), ("crops, one by one", "a.1")])
def test_named_layer_that_sees_several_views_is_rejected(name, layer):
    classifier, gradcam = made(*PARTIAL[name][:2]), load_explainer("gradcam", layer=layer)
    refused(r"runs \d times in one forward pass", gradcam, classifier, PICTURES, TARGET)
    loaded = classifier.variant(layer=layer)
    reason = f"its layer {layer} contains only part of the evidence"
    assert fitting(loaded, PICTURES) == ("integrated_gradients", reason)
    refused(r"runs \d times", load_explainer("scorecam"), loaded, PICTURES, TARGET)


class Ordered(nn.Module):
    """Network that turns the patches of a 32 x 32 image into tokens in a given order."""

    def __init__(self, order, mixes=False):
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.order, self.norm = nn.Conv2d(3, 8, 4, stride=4), order, nn.LayerNorm(8)
        self.mixed, self.head = nn.Linear(64, 64) if mixes else torch.tanh, nn.Linear(8, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2)[:, :, self.order]
        return self.head(self.norm((x + self.mixed(x).tanh()).transpose(1, 2)).tanh().mean(dim=1))


ROWS = torch.arange(64)
ORDERS = {
    "rows": ROWS, "Hiera's": ROWS.view(2, 2, 2, 2, 2, 2).permute(2, 5, 1, 4, 0, 3).flatten(),
    "columns": ROWS.view(8, 8).T.flatten(), "from the bottom": ROWS.flip(0),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_cam_layer_rejects_tokens_out_of_row_order(order):
    images, target = torch.rand(2, 3, 32, 32), targets.one_hot([0, 2], 3)

    def loaded(mixes, layer=None):
        return load_classifier(Ordered(ORDERS[order], mixes), mean=0.5, std=0.25, layer=layer, device="cpu")

    if order == "rows":
        assert {cam_layer(loaded(mixes), images) for mixes in (False, True)} == {"norm"}
        return
    assert cam_layer(loaded(mixes=False), images) == "patch"
    words = "tokens of layer norm .* are not in row-major order.*rise"
    for name in READERS:
        for classifier in (loaded(mixes=False, layer="norm"), loaded(mixes=True)):
            refused(words, load_explainer(name), classifier, images, target)


MOVED = {
    "mirrored": lambda x: x.flip(3), "turned": lambda x: x.transpose(2, 3), "cropped": lambda x: x[..., 4:-4, 4:-4],
    "cropped at one side": lambda x: x[..., 8:], "its halves swapped": lambda x: x.roll(16, 2),
    "moved by a quarter": lambda x: x.roll(8, 3), "padded": lambda x: F.pad(x, [16] * 4),
    "padded at one side": lambda x: F.pad(x, [0, 32, 0, 0]),
}  # fmt: skip
KEPT = {
    "as it is": lambda x: x,
    "enlarged": lambda x: F.interpolate(x, size=(48, 48), mode="bilinear"),
    "less than a cell cut off": lambda x: x[..., :-3, :-3],
    "padded by less than half a cell": lambda x: F.pad(x, [1, 1, 1, 1]),
}


@pytest.mark.parametrize("name", MOVED | KEPT)
def test_cam_layer_rejects_misaligned_feature_maps(name):
    move, images, target = (MOVED | KEPT)[name], torch.rand(2, 3, 32, 32), targets.one_hot([0, 2], 4)

    def loaded(layer=None, late=False):
        torch.manual_seed(0)
        net = Custom(lambda net, x: read(net, net.b(move(net.a(x)) if late else net.a(move(x)))),
                       a=nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()),
                       b=nn.Sequential(nn.Conv2d(6, 8, 3, stride=4, padding=1), nn.ReLU()),
                       head=nn.Linear(8, 4))  # fmt: skip
        return load_classifier(net, mean=0.5, std=0.25, size=32, layer=layer, device="cpu")

    for late in (False, True):
        if name in KEPT:
            assert cam_layer(loaded(late=late), images) == "b"
            continue
        for explainer in READERS:
            for classifier in (loaded(late=late), loaded("b", late)):
                refused(r"layer b .* is not aligned with the image: .* crops.*rise", load_explainer(explainer),
                        classifier, images, target)  # fmt: skip
        assert fitting(loaded(late=late), images)[0] == "integrated_gradients"
    if name in MOVED:  # before the features are moved, all positions are aligned
        assert load_explainer("gradcam")(loaded("a", late=True), images, target).max() > 0


DEEP = {  # networks in which each position sees nearly the whole image
    "mobilenet_v2": (lambda: models.mobilenet_v2(num_classes=4), 96),
    "resnet18": (lambda: models.resnet18(num_classes=4), 96),
    "vgg11": (lambda: models.vgg11(num_classes=4).features, 64),
    "mobilevit_xxs": (lambda: timm.create_model("mobilevit_xxs", num_classes=4), 96),
    "poolformerv2_s12": (lambda: timm.create_model("poolformerv2_s12", num_classes=4), 96),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", DEEP)
def test_misalignment_is_detected_in_wide_receptive_fields(name):
    make, side = DEEP[name]
    torch.manual_seed(0)
    net, images = make(), torch.rand(1, 3, side, side)
    net = nn.Sequential(net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 4)) if name == "vgg11" else net

    def layer(move):
        moved = Custom(lambda network, x: network.net(move(x)), net=net)
        return cam_layer(load_classifier(moved, mean=0.5, std=0.25, size=side, device="cpu"), images)

    assert layer(KEPT["as it is"]).startswith("net")
    for move in (
        lambda x: x.flip(3), lambda x: x.flip(2, 3), lambda x: x.transpose(2, 3), lambda x: x.roll(side // 2, 3),
        lambda x: F.pad(x, [0, side, 0, 0]),
    ):  # fmt: skip
        refused("is not aligned with the image", layer, move)


@pytest.mark.sample(1)
@pytest.mark.parametrize("side", [64, 128])
def test_hiera_uses_layer_with_tokens_in_row_order(side):
    torch.manual_seed(0)
    config = hf.HieraConfig(image_size=[side] * 2, embed_dim=16, depths=[1, 1, 2, 1], num_heads=[1, 2, 2, 2],
                            num_labels=5)  # fmt: skip
    classifier = load_classifier(hf.HieraForImageClassification(config), mean=0.5, std=0.25, size=side, device="cpu")
    images = torch.rand(1, 3, side, side)
    assert cam_layer(classifier, images) == "hiera.embeddings.patch_embeddings.projection"
    scrambled = classifier.variant(layer="hiera.encoder.stages.3.layers.0.layernorm_before")
    words = "layernorm_before .* are not in row-major order"
    refused(words, load_explainer("gradcam"), scrambled, images, targets.one_hot([1], 5))


def test_shared_module_matches_separate_modules():
    _, features, logits, layers = CUT["a shared ReLU"]
    shared = made(lambda net, x: logits(net, features(net, x)), layers)
    apart = made(lambda net, x: read(net, net.d(net.b(net.c(net.a(x))))), layers | {"d": nn.ReLU})
    apart.model.load_state_dict(shared.model.state_dict())
    for method in [*READERS, "cebp"]:
        explainer = load_explainer(method)
        assert torch.equal(explainer(shared, PICTURES, TARGET), explainer(apart, PICTURES, TARGET)), method


def overwritten(net, x):
    features = net.a(x)
    kept = net.b(features)
    features += 1  # the gradient of the last ReLU in `a` needs these values
    return read(net, kept + features)


def test_gradient_explainers_reject_in_place_changes():
    classifier = made(overwritten, {"a": body, "b": further})
    assert fitting(classifier, PICTURES)[0] == "rise"
    for method in ("gradient", "gradcam:layer=a.0", "iia:layer=a.0,steps=1"):
        refused("overwrites values .*rise", load_explainer(method), classifier, PICTURES, TARGET)


def two_stems(net, x):
    """Compute a transformer whose patches are a sum that is not the output of any module."""
    tokens = (net.c(x) + net.d(x)).flatten(2).transpose(1, 2)
    return net.e(net.encoder(tokens).mean(dim=1))


TRANSFORMED = [  # (logits, error message or "")
    (lambda net, x: net.vit(x).logits + net.vit(x.flip(-1)).logits, "runs 2 times"),
    (lambda net, x: net.vit(torch.cat([x, x.flip(-1)])).logits.view(2, len(x), 4).mean(0), "grows from 1 to 2"),
    (lambda net, x: net.vit(x).logits + net.head(pooled(x, x)), "another branch"),
    (lambda net, x: seen(net, x) + net.vit(x).logits, "projection .*another branch"),
    (lambda net, x: net.vit(x + net.b(x)).logits, ""),
    (two_stems, ""),
]


def test_branch_around_transformer_patches_is_rejected():
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    block = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    layers = {
        "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**sizes, intermediate_size=8, num_labels=4)),
        "a": body, "head": lambda: nn.Linear(6, 4), "b": lambda: nn.Conv2d(3, 3, 3, padding=1),
        "c": lambda: nn.Conv2d(3, 8, 4, 4), "d": lambda: nn.Conv2d(3, 8, 4, 4), "e": lambda: nn.Linear(8, 4),
        "encoder": lambda: nn.TransformerEncoder(block, 2),
    }  # fmt: skip
    methods = ["attention", "rollout", "gradient_rollout", "gae", "tattr", "gradcam_vit", "iia:steps=1"]
    for logits, why in TRANSFORMED:
        classifier = made(logits, layers)
        for method in methods:
            if why:
                refused(why, load_explainer(method), classifier, PICTURES, TARGET)
            else:
                load_explainer(method)(classifier, PICTURES, TARGET)
        assert fitting(classifier, PICTURES)[0] == ("integrated_gradients" if why else "gae")
