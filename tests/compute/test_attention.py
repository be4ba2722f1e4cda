import pytest
import timm
import torch
from refusals import refused
from torch import nn
from torch.nn import functional as F
from torchvision import models
from transformers import ConvNextConfig, ConvNextForImageClassification, SwinConfig, SwinForImageClassification

from saliency_bench import load_classifier
from saliency_bench.compute.classifiers.attention import AttentionRecorder, recording_attention, tokens_of
from saliency_bench.errors import UserError

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))

# name: (number of tokens before the patches, tokens that the head reads, whether the head reads the patches)
TOKENS = {
    "vit": (1, (0,), False),
    "vit eager": (1, (0,), False),
    "deit": (2, (0,), False),
    "distilled deit": (2, (0, 1), False),
    "dinov2 with registers": (5, (0,), True),
    "beit": (1, (), True),
    "timm": (1, (0,), False),
    "timm, distilled": (2, (0, 1), False),
    "timm, registers": (5, (0,), False),
    "timm, averaged": (1, (), True),
    "timm, registers and no class token": (4, (), True),
    "torchvision": (1, (0,), False),
}


def classifier_of(model):
    return load_classifier(model, mean=(0.5,) * 3, std=(0.3,) * 3, device="cpu")


def test_token_table_lists_every_vision_transformer(vision_transformer):
    assert set(TOKENS) == set(vision_transformer.names)


@pytest.mark.parametrize("name", TOKENS)
def test_recorder_keeps_logits_and_records_every_block(name, vision_transformer):
    classifier = classifier_of(vision_transformer(name))
    ordinary = classifier(IMAGES)
    with recording_attention(classifier, IMAGES) as seen:
        logits = classifier(IMAGES)
    assert (logits - ordinary).abs().max() <= 1e-5 * ordinary.abs().max()
    prefix, read, pooled = TOKENS[name]
    assert (seen.tokens.read, seen.tokens.pooled) == (read, pooled)
    assert torch.equal(seen.tokens.patches, prefix + torch.arange(16).view(4, 4))
    assert seen.tokens.blocks == len(seen.matrices) == 2
    for matrix in seen.matrices:
        assert matrix.shape == (3, 2, prefix + 16, prefix + 16)
        assert matrix.std() > 1e-3
        torch.testing.assert_close(matrix.sum(dim=-1), torch.ones(3, 2, prefix + 16))
    assert classifier.passes == 6
    assert torch.equal(classifier(IMAGES), ordinary)


@pytest.mark.parametrize("name", ["vit", "deit", "distilled deit", "dinov2 with registers", "beit"])
def test_matrices_and_gradients_match_transformers(name, vision_transformer):
    model = vision_transformer(name)
    classifier = classifier_of(model)
    with recording_attention(classifier, IMAGES, start=0) as seen:
        total = classifier(IMAGES)[:, 1].sum()
    ours = torch.autograd.grad(total, seen.matrices)
    model.set_attn_implementation("eager")
    output = model((IMAGES - 0.5) / 0.3, output_attentions=True)
    theirs = torch.autograd.grad(output.logits[:, 1].sum(), output.attentions)
    for pair in [*zip(seen.matrices, output.attentions, strict=True), *zip(ours, theirs, strict=True)]:
        assert (pair[0] - pair[1]).abs().max() <= 1e-5 * pair[1].abs().max()


def recorded(classifier, **options):
    with recording_attention(classifier, IMAGES, **options) as seen:
        classifier(IMAGES)
    return seen


def test_matrices_match_torch_multihead_attention(vision_transformer):
    model, given = vision_transformer("torchvision"), []
    layers = [layer.self_attention for layer in model.encoder.layers]
    handles = [layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0])) for layer in layers]
    model((IMAGES - 0.5) / 0.3)
    for handle in handles:
        handle.remove()
    for layer, x, matrix in zip(layers, given, recorded(classifier_of(model)).matrices, strict=True):
        torch.testing.assert_close(matrix, layer(x, x, x, average_attn_weights=False)[1])


def test_matrices_match_unfused_timm_attention(vision_transformer):
    model, theirs = vision_transformer("timm, registers"), []
    seen = recorded(classifier := classifier_of(model))
    for block in model.timm_model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, inputs, output: theirs.append(output))
    classifier(IMAGES)
    torch.testing.assert_close(seen.matrices, theirs)


def test_gradients_start_at_requested_block(vision_transformer):
    classifier = classifier_of(vision_transformer("vit")).requires_grad_(False)
    for start in (0, 1, -1):
        found = [matrix.requires_grad for matrix in recorded(classifier, start=start).matrices]
        assert found == [start == 0, True]
    with pytest.raises(UserError, match="has 2 blocks"), recording_attention(classifier, IMAGES, start=2):
        pass


def test_non_square_image_has_rectangular_patch_grid(vision_transformer):
    classifier = classifier_of(vision_transformer("timm, registers"))
    images = torch.rand(2, 3, 16, 40)
    with recording_attention(classifier, images) as seen:
        classifier(images)
    matrix = torch.zeros(2, 15, 15)
    matrix[:, 0, 5:] = torch.arange(10.0)
    assert torch.equal(seen.read(matrix)[1], torch.arange(10.0).reshape(2, 5))
    assert seen.maps(matrix, images).shape == (2, 16, 40)


def test_class_token_and_patch_rows_are_averaged(vision_transformer):
    seen, matrix = recorded(classifier_of(vision_transformer("dinov2 with registers"))), torch.rand(3, 21, 21)
    expected = (matrix[:, 0, 5:] + matrix[:, 5:, 5:].mean(dim=1)) / 2
    torch.testing.assert_close(seen.read(matrix).flatten(1), expected)


def test_token_layout_is_detected_once(vision_transformer):
    model = vision_transformer("vit")
    classifier = classifier_of(model)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    tokens, count = tokens_of(classifier, IMAGES), len(calls)
    assert count > 0
    assert tokens_of(classifier, IMAGES) is tokens
    assert len(calls) == count
    assert classifier.passes == 0
    # nothing is recorded after an exception
    with pytest.raises(RuntimeError), recording_attention(classifier, IMAGES) as seen:
        raise RuntimeError
    classifier(IMAGES)
    assert seen.matrices == []


def small_timm(name="vit_tiny_patch16_224", **options):
    return timm.create_model(name, img_size=32, depth=2, **options)


BLOCKS = timm.models.vision_transformer
REFUSED = {
    "swin": lambda: SwinForImageClassification(
        SwinConfig(image_size=32, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4)),
    "convnext": lambda: ConvNextForImageClassification(ConvNextConfig(hidden_sizes=[8] * 4, depths=[1] * 4)),
    "attention over channels": lambda: small_timm("xcit_nano_12_p16_224"),
    "mixed heads": lambda: small_timm("cait_xxs24_224"),
    "pooled keys": lambda: timm.create_model("pvt_v2_b0"),
    "pooled by attention": lambda: small_timm(global_pool="map"),
    "parallel blocks": lambda: small_timm(block_fn=BLOCKS.ParallelThingsBlock),
    "differences of attention": lambda: small_timm(block_fn=BLOCKS.DiffParallelScalingBlock),
    "are all weights of its head 0": lambda: models.VisionTransformer(32, 16, 1, 2, 16, 16),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_attention_error_suggests_other_methods(name):
    torch.manual_seed(0)
    line = refused(r"integrated_gradients.*rise", tokens_of, classifier_of(REFUSED[name]()), torch.rand(1, 3, 32, 32))
    assert ("attention-pooling head" in line) == (name == "pooled by attention")


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"attn_mask": "bool"}, {"attn_mask": "float"}])
def test_recorded_attention_matches_fused_attention(options):
    q, k, v = torch.rand(3, 2, 4, 6, 5)
    masks = {"bool": torch.rand(6, 6) > 0.3, "float": torch.rand(2, 4, 6, 6)}
    given = options | ({"attn_mask": masks[options["attn_mask"]]} if "attn_mask" in options else {})
    with AttentionRecorder() as seen:
        ours = F.scaled_dot_product_attention(q, k, v, **given)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, **given))
    torch.testing.assert_close(ours, seen.matrices[0] @ v)
    k, v = torch.rand(2, 2, 2, 6, 5)  # fewer key heads than query heads
    with AttentionRecorder():
        ours = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("averaged", [True, False])
def test_recorder_keeps_output_of_multihead_attention(batch_first, averaged):
    layer, x = nn.MultiheadAttention(8, 2, batch_first=batch_first), torch.rand(3, 5, 8)
    expected = layer(x, x, x, average_attn_weights=averaged)
    with AttentionRecorder():
        ours = layer(x, x, x, average_attn_weights=averaged)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("mask", [{"attn_mask": torch.zeros(5, 5)}, {"key_padding_mask": torch.zeros(3, 5)}])
def test_recorder_rejects_masked_multihead_attention(mask):
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.rand(3, 5, 8)
    with AttentionRecorder(), pytest.raises(UserError, match="masked attention"):
        layer(x, x, x, **mask)
