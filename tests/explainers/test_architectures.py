"""Test every explainer on the papers' convolutional networks: it returns a map or raises a helpful error."""

import contracts
import pytest
import torch
import torchvision
import transformers as hf
from torch import nn
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.models.vgg import VGG, cfgs, make_layers

from saliency_bench import load_classifier, targets
from saliency_bench.compute.classifiers.layers import cam_layer as find_cam_layer
from saliency_bench.explainers.cebp import excitation_layer

VERY_FEW = {"steps": 2, "samples": 10, "masks": 10}
ON_ALL = {"gradient", "gradcam", "rise"}


def resnet(**sizes):
    return lambda: hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=4, **sizes))


def timm(architecture, **sizes):
    config = hf.TimmWrapperConfig(architecture=architecture, model_args=sizes, num_labels=4)
    return lambda: hf.TimmWrapperForImageClassification(config)


def vgg(name):
    """Return torchvision's VGG with an eighth of the channels and 32 hidden units."""
    channels = [layer if layer == "M" else layer // 8 for layer in cfgs[name]]

    def make():
        features = make_layers(channels)
        with torch.device("meta"):  # do not create the large linear layers only to replace them
            model = VGG(features, num_classes=4, init_weights=False)
        model.classifier[0], model.classifier[3] = nn.Linear(64 * 49, 32), nn.Linear(32, 32)
        model.classifier[6] = nn.Linear(32, 4)
        return model

    return make


TINY = {"embedding_size": 8, "hidden_sizes": [8, 8, 12, 12]}
NARROW = {"stem_width": 8, "channels": (8, 8, 12, 12)}
ROUGH = {"dims": (8, 12, 16, 24), "depths": (1, 1, 2, 1)}
BLOCKS = [CNBlockConfig(8, 12, 1), CNBlockConfig(12, 16, 1), CNBlockConfig(16, None, 1)]

HF, SIDE, INCEPTION = "resnet.encoder.stages.", 64, torchvision.models.inception_v3
HF_CONVNEXT = hf.ConvNextConfig(num_labels=4, hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 2, 1])
# name: (function that creates the network, side of the images, Grad-CAM's layer, layer of cebp or None if cebp is
# undefined)
REDUCED = {
    "transformers resnet-18": (resnet(**TINY, depths=[2, 2, 2, 2], layer_type="basic"), SIDE, f"{HF}3", f"{HF}2"),
    "transformers convnext": (
        lambda: hf.ConvNextForImageClassification(HF_CONVNEXT), SIDE, "convnext.encoder.stages.3", None
    ),
    "timm resnet50": (timm("resnet50", **NARROW), SIDE, "timm_model.layer4", "timm_model.layer3"),
    "timm vgg16": (timm("vgg16", mlp_ratio=0.02), SIDE, "timm_model.features.29", "timm_model.features.22"),
    "timm convnext_base": (timm("convnext_base", **ROUGH), SIDE, "timm_model.stages", None),
    "torchvision resnet18": (lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4), SIDE, "layer4", "layer3"),
    "torchvision resnet50": (
        lambda: ResNet(Bottleneck, [1, 1, 1, 1], num_classes=4, width_per_group=8), SIDE, "layer4", "layer3"
    ),
    "torchvision vgg19": (vgg("E"), SIDE, "features.35", "features.26"),
    "torchvision convnext": (lambda: torchvision.models.ConvNeXt(BLOCKS, num_classes=4), SIDE, "features", None),
}  # fmt: skip
FULL = {
    "timm inception_v3": (timm("inception_v3"), 139, "timm_model.Mixed_7c", "timm_model.Mixed_6e"),
    "torchvision inception_v3": (lambda: INCEPTION(num_classes=4, init_weights=False), 80, "Mixed_6e", "Mixed_5d"),
}


def alive(model):
    """Scale the weights to preserve signal size, because in some untrained networks pixels do not affect the logits."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return model


def settled(model, side):
    """Update the batch norm statistics, so that signals keep their size through many layers."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.rand(4, 3, side, side) * 4 - 2)
    return model.eval()


def explain_all(make, side, cam_layer, cebp_layer, explainer_of, map_or_refusal, others_named):
    """Return {explainer: map}, and check that the errors of all other explainers suggest explainers with a map."""
    torch.manual_seed(0)
    classifier = load_classifier(make(), mean=(0.5,) * 3, std=(0.25,) * 3, device="cpu")
    images, target = torch.rand(1, 3, side, side), targets.contrast([0], [1], 4)
    assert find_cam_layer(classifier, images) == cam_layer
    assert cebp_layer is None or excitation_layer(classifier, images) == cebp_layer
    maps, refusals = {}, {}
    for name in contracts.complete("explainers"):
        # Use logits, because probabilities of a deep untrained network may be exactly 0 and 1.
        chosen = explainer_of(name, **VERY_FEW, window=side // 4, stride=side // 4, on="logit")
        found, refusal = map_or_refusal(chosen, classifier, images, target)
        if refusal:
            refusals[name] = others_named(refusal, name)
        else:
            maps[name] = found
    for name, found in maps.items():
        assert torch.isfinite(found).all(), name
        assert found.amax() > found.amin(), name
    for name, others in refusals.items():
        assert others, name
        assert others <= maps.keys(), name
    assert ("cebp" in refusals) == (cebp_layer is None)
    return maps


@pytest.mark.sample(2, 2)
@pytest.mark.parametrize("name", REDUCED)
def test_explainers_return_map_or_suggest_alternatives(name, explainer_of, map_or_refusal, others_named):
    make, *sizes = REDUCED[name]
    maps = explain_all(lambda: alive(make()), *sizes, explainer_of, map_or_refusal, others_named)
    assert maps.keys() >= ON_ALL


OF_ONE_SIZE = {  # and an unsupported image size
    "a kernel larger than its map": (FULL["torchvision inception_v3"][0], 32),
    "pooled to nothing": (REDUCED["timm vgg16"][0], 16),
    "flattened": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4)), 12),
}


@pytest.mark.parametrize("network", OF_ONE_SIZE)
def test_unsupported_image_size_is_rejected(network, explainer_of, map_or_refusal):
    make, side = OF_ONE_SIZE[network]
    classifier = load_classifier(make(), device="cpu", mean=0, std=1)
    for name in contracts.complete("explainers"):
        chosen = explainer_of(name, **VERY_FEW)
        maps, refusal = map_or_refusal(chosen, classifier, torch.rand(1, 3, side, side), targets.one_hot([0], 4))
        if chosen.baseline:
            assert maps is not None, name
        else:
            assert f"images of {side} x {side}" in refusal, name


@pytest.mark.thorough
@pytest.mark.parametrize("name", FULL)
def test_full_size_networks_have_map_or_alternatives(name, explainer_of, map_or_refusal, others_named):
    make, side, *layers = FULL[name]
    maps = explain_all(lambda: settled(alive(make()), side), side, *layers, explainer_of, map_or_refusal, others_named)
    assert maps.keys() >= ON_ALL
