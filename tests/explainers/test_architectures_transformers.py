"""Test every explainer on every type of vision transformer: it returns a map or a one-line error with alternatives."""

from functools import cache

import contracts
import pytest
import timm
import torch
import transformers as hf
from torchvision.models import vit_b_16

from saliency_bench import load_classifier, load_explainer, targets

NAMES = contracts.complete("explainers")
NETWORKS = (
    "vit", "vit eager", "deit", "distilled deit", "dinov2 with registers", "beit", "timm", "timm, distilled",
    "timm, registers", "timm, averaged", "timm, registers and no class token", "torchvision",
)  # fmt: skip
CHEAP = {"masks": 8, "steps": 3, "samples": 8}
IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
WIDE = torch.rand(2, 3, 16, 40, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def classifier_of(vision_transformer):
    @cache
    def make(network):
        return load_classifier(vision_transformer(network), mean=(0.5,) * 3, std=(0.3,) * 3, device="cpu")

    return make


@pytest.fixture
def explained(explainer_of, map_or_refusal):
    """Return a function that returns (maps, None), or (None, message of the error)."""

    def attempt(name, classifier, images):
        window = min(images.shape[2:]) // 2
        explainer = explainer_of(name, **CHEAP, window=window, stride=window // 2)
        return map_or_refusal(explainer, classifier, images, targets.one_hot([1], 5))

    return attempt


@pytest.fixture
def maps_or_a_way_out(explained, others_named):
    """Return a function that returns (maps, ""), or (None, name of a suggested explainer that is defined)."""

    def attempt(name, classifier, images):
        maps, refusal = explained(name, classifier, images)
        if refusal is None:
            return maps, ""
        others = sorted(others_named(refusal, name))
        return None, next((other for other in others if explained(other, classifier, images)[1] is None), "")

    return attempt


def are_maps_of(images, maps):
    return maps is not None and maps.shape == (len(images), *images.shape[2:]) and bool(torch.isfinite(maps).all())


OF_ATTENTION = ["attention", "rollout", "gradient_rollout", "gae", "tattr", "gradcam_vit", "iia"]


# Explainers that do not read attention meet no difference between most of these networks.
@pytest.mark.parametrize("network", NETWORKS[::4])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_ATTENTION])
def test_explainers_return_map_or_suggest_alternatives(name, network, classifier_of, maps_or_a_way_out):
    maps, way_out = maps_or_a_way_out(name, classifier_of(network), IMAGES)
    assert are_maps_of(IMAGES, maps) or way_out


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", OF_ATTENTION)
def test_attention_explainers_support_every_transformer(name, network, classifier_of):
    classifier, explainer = classifier_of(network), load_explainer(name)
    rows = [torch.eye(5)[[index, index]] for index in range(5)]
    maps = torch.stack([explainer(classifier, IMAGES, row) for row in rows])
    assert maps.shape == (5, 2, 32, 32)
    assert maps.std(dim=(2, 3)).max() > 0
    distinct = len({values.numpy().tobytes() for values in maps})
    assert distinct == 1 if name in ("attention", "rollout") else distinct > 1
    if name not in ("attention", "rollout"):
        assert explainer(classifier, IMAGES, targets.contrast(2, 2, 5)).abs().max() == 0


def _timm(architecture, sizes=None):
    if not timm.is_model(architecture):
        pytest.skip(f"timm {timm.__version__} has no {architecture}")
    config = hf.TimmWrapperConfig(architecture=architecture, num_labels=5, model_args=sizes or {})
    return hf.TimmWrapperForImageClassification(config)


SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
TOWER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
          "image_size": 32, "patch_size": 8}  # fmt: skip
WORDS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
         "vocab_size": 20}  # fmt: skip


def _clip():
    config = hf.CLIPConfig(vision_config=TOWER, text_config=WORDS, projection_dim=8)
    config.num_labels = 5
    return hf.CLIPForImageClassification(config)


WHOLLY = {
    "clip, transformers": _clip,
    "clip, timm": lambda: _timm("vit_base_patch32_clip_quickgelu_224", SMALL),
    "group norm in the stem": lambda: _timm("vit_tiny_r_s16_p8_224", SMALL | {"img_size": 64}),
    "beit, timm": lambda: _timm("beit_base_patch16_224", SMALL),
    "relative positions by a network": lambda: _timm("vit_relpos_base_patch16_clsgap_224", SMALL),
    "relative positions, shared": lambda: _timm("vit_srelpos_small_patch16_224", SMALL),
}
PARTLY = {  # function that creates the network, and the part without a rule in tattr
    "rotary positions, gated units": (lambda: _timm("eva02_tiny_patch14_224", SMALL), "mul"),
    "rotary positions and registers": (lambda: _timm("vit_small_patch16_dinov3", SMALL | {"init_values": 1.0}), "neg"),
    "gated units": (
        lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**TOWER, use_swiglu_ffn=True, num_labels=5)), "mul",
    ),
}  # fmt: skip
REFUSED = {  # a head that attends to the patches
    "siglip, transformers": lambda: hf.SiglipForImageClassification(hf.SiglipConfig(vision_config=TOWER, num_labels=5)),
    "siglip, timm": lambda: _timm("vit_base_patch16_siglip_224", SMALL),
}


def with_large_weights(make):
    torch.manual_seed(0)
    network = make()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return load_classifier(network, mean=(0.5,) * 3, std=(0.3,) * 3, device="cpu")


@pytest.mark.parametrize("network", WHOLLY | PARTLY)
def test_attention_explainers_support_network(network, explained, others_named):
    make, operation = PARTLY.get(network) or (WHOLLY[network], None)
    classifier = with_large_weights(make)
    side = 64 if "stem" in network else 32
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    for name in (one for one in OF_ATTENTION if one != "tattr" or not operation):
        maps, refusal = explained(name, classifier, images)
        assert refusal is None, name
        assert are_maps_of(images, maps), name
        assert network in WHOLLY or (maps.amax(dim=(1, 2)) > maps.amin(dim=(1, 2))).all(), name
    if operation:
        _, refusal = explained("tattr", classifier, images)
        assert f"no rule for '{operation}'" in refusal
        assert others_named(refusal, "tattr") == {"gae", "rise"}


@pytest.mark.parametrize("network", REFUSED)
def test_attention_explainers_reject_attention_pooling_head(network, explained, maps_or_a_way_out):
    classifier = with_large_weights(REFUSED[network])
    for name in OF_ATTENTION:
        _, refusal = explained(name, classifier, IMAGES)
        assert "attention-pooling head" in refusal, name
        assert maps_or_a_way_out(name, classifier, IMAGES)[1], name


@pytest.mark.parametrize("network", ["dinov2 with registers", "torchvision"])
@pytest.mark.parametrize("name", NAMES)
def test_wide_image_has_map_or_is_rejected(name, network, classifier_of, explained, maps_or_a_way_out):
    classifier = classifier_of(network)
    if network != "torchvision" or load_explainer(name).baseline:
        maps, way_out = maps_or_a_way_out(name, classifier, WIDE)
        assert are_maps_of(WIDE, maps) or way_out
    else:
        _, refusal = explained(name, classifier, WIDE)
        assert "images of 16 x 40" in refusal


TRUE_SIZES = {
    "vit-b/16, transformers": lambda: hf.ViTForImageClassification(hf.ViTConfig(num_labels=5)),
    "distilled deit, transformers": lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(num_labels=5)),
    "vit-s/16, timm": lambda: _timm("vit_small_patch16_224"),
    "vit-b/16, torchvision": lambda: vit_b_16(num_classes=5),
}


@pytest.mark.thorough
@pytest.mark.parametrize("network", TRUE_SIZES)
def test_full_size_transformers_have_map_or_alternatives(network, maps_or_a_way_out):
    torch.manual_seed(0)
    model = TRUE_SIZES[network]()
    if network.endswith("torchvision"):
        torch.nn.init.normal_(model.heads.head.weight, std=0.02)  # the head is zero before training
    classifier, images = load_classifier(model, device="cpu", mean=0, std=1), torch.rand(1, 3, 224, 224)
    found = {name: maps_or_a_way_out(name, classifier, images) for name in NAMES}
    defined = {name for name, (maps, _) in found.items() if are_maps_of(images, maps)}
    assert all(found[name][1] for name in NAMES if name not in defined)
    assert defined >= {"attention", "rollout", "gradient_rollout", "gae", "tattr", "gradcam_vit"}
    assert defined >= {"integrated_gradients", "rise", "iia"}
