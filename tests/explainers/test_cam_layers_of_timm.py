"""Test Grad-CAM's layer for families of timm networks without weights: it is the output of `forward_features`."""

import pytest
import timm
import torch
from refusals import refused
from torch import nn

from saliency_bench import load_classifier
from saliency_bench.compute.classifiers.layers import _outputs, cam_layer, layout_of

# {small member of a family: Grad-CAM's layer}.
FAMILIES = {
    "resnet10t": "layer4", "mixer_s32_224": "norm", "efficientformer_l1": "norm", "convnextv2_atto": "stages",
    "botnet26t_256": "stages", "coatnet_nano_rw_224": "norm", "cspresnet50": "stages", "davit_tiny": "stages",
    "dla46_c": "level5", "dpn48b": "features", "edgenext_xx_small": "stages", "efficientformerv2_s0": "norm",
    "efficientnet_lite0": "bn2", "efficientvit_m0": "stages", "fasternet_t0": "stages", "fastvit_t8": "final_conv",
    "focalnet_tiny_srf": "norm", "gcvit_xxtiny": "stages", "ghostnet_050": "blocks", "gmlp_ti16_224": "norm",
    "hardcorenas_a": "blocks", "hgnetv2_b0": "stages", "hiera_tiny_224": "blocks.11", "hrnet_w18_small": "final_layer",
    "iformer_t": "stages", "inception_next_atto": "stages", "lcnet_050": "blocks", "levit_conv_128s": "stages",
    "lowformer_b0": "in_conv", "mambaout_femto": "stages", "maxxvit_rmlp_nano_rw_256": "norm", "mixnet_s": "bn2",
    "mnasnet_small": "bn2", "mobilenetv4_conv_small": "blocks", "mobileone_s0": "stages", "mobilevit_xxs": "final_conv",
    "mobilevitv2_050": "stages", "mvitv2_tiny": "norm", "nest_tiny": "norm", "nextvit_small": "norm",
    "nf_resnet26": "final_act", "poolformer_s12": "stages", "rdnet_tiny": "dense_stages", "regnetx_002": "s4",
    "repghostnet_050": "blocks", "repvgg_a0": "stages", "repvit_m0_9": "stages", "res2net50_26w_4s": "layer4",
    "resmlp_12_224": "norm", "resnest14d": "layer4", "resnetv2_18": "norm", "rexnet_100": "features",
    "selecsls42": "head", "sequencer2d_s": "norm", "shvit_s1": "stages", "skresnet18": "layer4", "starnet_s1": "norm",
    "swiftformer_xs": "norm", "swinv2_cr_tiny_224": "stages", "tiny_vit_5m_224": "stages", "tresnet_m": "body",
    "twins_svt_small": "norm", "visformer_tiny": "norm", "vit_relpos_small_patch16_224": "blocks.11",
    "vitamin_small_224": "blocks", "ese_vovnet19b_dw": "stages", "xception41": "blocks",
}  # fmt: skip
# Networks whose last features are tokens including a class token, on several grids, or tokens of channels.
TOKENS = ("deit_tiny_patch16_224", "convit_tiny", "coat_lite_tiny", "crossvit_tiny_240", "eva02_tiny_patch14_224",
          "pit_ti_224", "tnt_s_patch16_224", "vit_tiny_r_s16_p8_224", "volo_d1_224",
          "xcit_nano_12_p16_224")  # fmt: skip


def built(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4).eval()
    side = model.pretrained_cfg["input_size"][-1]
    return load_classifier(model, mean=(0.5,) * 3, std=(0.25,) * 3, device="cpu"), torch.rand(1, 3, side, side)


@pytest.mark.sample(1, 8)
@pytest.mark.parametrize("name", FAMILIES)
def test_cam_layer_is_last_feature_map_of_family(name):
    classifier, images = built(name)
    layer = cam_layer(classifier, images)
    layout = layout_of(classifier, images, layer)
    assert layer == FAMILIES[name]
    with torch.no_grad():
        last = classifier.model.forward_features((images - 0.5) / 0.25)
        read = output_of(classifier, images, layer)
    maps = layout.channels_first(read)
    last = last if last.shape == maps.shape else layout.channels_first(last)
    if layer != "in_conv":  # part of the head, before pooling
        torch.testing.assert_close(maps, last)
    later = [output.name for output in outputs_after(classifier, images, layer) if output.layout.pixels > 1]
    assert later == [], "features that come after what is read"
    if layout.axes == "BNC":
        assert_row_by_row(classifier, images, layer, layout)


def output_of(classifier, images, layer):
    """Return the output of a layer for images."""
    kept = []
    handle = classifier.model.get_submodule(layer).register_forward_hook(lambda *call: kept.append(call[2]))
    classifier(images)
    handle.remove()
    return kept[-1]


def outputs_after(classifier, images, layer):
    """Return the maps after a layer that are not pooled."""
    outputs = _outputs(classifier, images)
    last = max(index for index, output in enumerate(outputs) if output.name == layer)
    return [output for output in outputs[last + 1 :] if output.layout and not output.passive and not output.pooled]


def assert_row_by_row(classifier, images, layer, layout):
    """Check that a change in a corner of the image changes the token of this corner most."""
    side, cell = images.shape[-1], images.shape[-1] // layout.grid[0]
    with torch.no_grad():
        before = layout.channels_first(output_of(classifier, images, layer))
        for row, column in ((0, 0), (0, layout.grid[1] - 1), (layout.grid[0] - 1, 0)):
            changed = images.clone()
            top, left = (0 if index == 0 else side - cell for index in (row, column))
            changed[:, :, top : top + cell, left : left + cell] = 0
            change = (layout.channels_first(output_of(classifier, changed, layer)) - before).norm(dim=1)[0]
            assert divmod(int(change.argmax()), layout.grid[1]) == (row, column)


@pytest.mark.sample(7, 0)
@pytest.mark.parametrize("name", TOKENS)
def test_tokens_without_grid_are_rejected(name):
    classifier, images = built(name)
    refused(r"name a layer with layer=.*rise", cam_layer, classifier, images)


class TwoHeads(nn.Module):
    """Network with a head for the class token and a second head for the patch tokens, like VOLO."""

    def __init__(self, channels, blocks):
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, channels, 4, 4), nn.Parameter(torch.zeros(1, 1, channels))
        self.block = nn.Sequential(nn.Linear(channels, channels), nn.LayerNorm(channels))
        self.head, self.aux = nn.Linear(channels, 4), nn.Linear(channels, 4) if blocks == "aux" else None

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        if self.aux is None:
            return self.head(self.block(tokens).mean(dim=1))
        tokens = self.block(torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1))
        return self.head(tokens[:, 0]) + 0.5 * self.aux(tokens[:, 1:]).amax(dim=1)


def test_second_token_head_is_not_a_cam_layer():
    images = torch.rand(1, 3, 16, 16)
    two = load_classifier(TwoHeads(6, "aux"), mean=0, std=1, device="cpu")
    refused("name a layer", cam_layer, two, images)
    assert cam_layer(load_classifier(TwoHeads(4, "one"), mean=0, std=1, device="cpu"), images) == "block"
