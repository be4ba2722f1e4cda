"""Compare attention explainers with second implementations, on a network that stores its attention."""

import numpy as np
import pytest
import torch
from enlarging import rounding
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets

IMAGES = torch.rand(3, 3, 8, 12, generator=torch.Generator().manual_seed(1))
TARGETS = {
    "class": targets.one_hot([0, 1, 2], 3),
    "contrast": targets.contrast([0, 1, 2], [1, 2, 0], 3),
    "group": torch.cat([targets.group([a, b], 3) for a, b in ((0, 1), (0, 2), (1, 2))]),
    "class against group": targets.class_vs_group(0, [1, 2], 3),
    "group against group": targets.group_vs_group([0], [1, 2], 3),
}


def last_block(attention, gradient, before, is_weighted):
    """Return the map (patches,) of one image: attention * weight, averaged over heads and over the tokens read."""
    heads, tokens, _ = attention.shape
    cells, reading = np.zeros(tokens - before), [0] if before else range(tokens)
    for token in reading:
        for head in range(heads):
            weight = sum(float(gradient[head, token, j]) for j in range(before, tokens)) / (tokens - before)
            for patch in range(tokens - before):
                value = float(attention[head, token, before + patch]) * (weight if is_weighted else 1)
                cells[patch] += value / heads / len(reading)
    return cells


def flow(blocks, mix, is_scaled):
    """Return the flow (T, T) of one image: the product over blocks of the mean attention plus the identity."""
    joint = np.eye(blocks[0][0].shape[-1])
    for attention, gradient in blocks:
        step = np.zeros_like(joint)
        for i, j in np.ndindex(step.shape):
            step[i, j] = np.mean([mix(a[i, j], g[i, j]) for a, g in zip(attention, gradient, strict=True)]) + (i == j)
        joint = (step / step.sum(axis=1, keepdims=True) if is_scaled else step) @ joint
    return joint


def literal(name, blocks, before, form, start=0, relu=True, on="logit"):
    """Return the map (patches,) of one image from the (attention, gradient) of each block."""
    if name in ("attention", "gradcam_vit"):
        cells = last_block(*blocks[-1], before, name == "gradcam_vit")
        return cells if name == "attention" or form == "contrast" or on == "weighted" else cells.clip(min=0)
    mixes = {"rollout": lambda a, g: a, "gae": lambda a, g: max(float(a) * float(g), 0),
             "gradient_rollout": lambda a, g: max(float(a) * float(g), 0) if relu else float(a) * float(g)}  # fmt: skip
    joint = flow(blocks[start:], mixes[name], name != "gae")
    if before:
        return joint[0, before:]
    return (joint if name == "rollout" else joint - np.eye(len(joint))).mean(axis=0)


CASES = [
    *(("attention", before, "class", {}) for before in (0, 1, 3)),
    ("rollout", 0, "class", {}), ("rollout", 3, "class", {"start": 1}),
    ("gae", 0, "class", {}),
    ("gae", 2, "contrast", {}), ("gae", 2, "group against group", {"start": 1}),
    ("gradient_rollout", 0, "class", {}),
    ("gradient_rollout", 2, "contrast", {"start": 1}), ("gradient_rollout", 2, "class", {"relu": False}),
    ("gradient_rollout", 2, "class against group", {"start": 1, "relu": False}),
    ("gradient_rollout", 1, "contrast", {"on": "weighted"}),
    *(("gradcam_vit", before, form, {}) for before in (0, 1, 3) for form in ("class", "contrast", "group")),
    ("gradcam_vit", 1, "class", {"on": "weighted"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "before", "form", "options"), CASES)
def test_attention_maps_match_literal_loop(name, before, form, options, tiny, attended):
    model = tiny(before=before, **({"seed": 5} if name == "gradcam_vit" else {"blocks": 3}))
    classifier = load_classifier(model, device="cpu", mean=0, std=1)
    ours = load_explainer(name, **options)(classifier, IMAGES, TARGETS[form])
    weights = TARGETS[form]
    if options.get("on") == "weighted":  # d p_t = p_t (d y_t - sum_k p_k d y_k)
        with torch.no_grad():
            p = model(IMAGES).double().softmax(1)
        weights = torch.stack([p[i, i] * (torch.eye(3).double()[i] - p[i]) for i in range(3)]).float()
    blocks = list(zip(*attended(model, IMAGES, weights), strict=True))
    cells = [literal(name, [(a[i], g[i]) for a, g in blocks], before, form, **options) for i in range(3)]
    cells = np.stack(cells).reshape(3, 2, 3)
    expected = F.interpolate(torch.tensor(cells)[:, None].float(), size=(8, 12), mode="bilinear")[:, 0]
    assert expected.abs().max() > 0
    tolerance = max(1e-6, 1e-4 * np.abs(cells).max()) if "on" in options else 1e-6
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=tolerance + rounding(cells))


@pytest.mark.parametrize("name", ["gradcam", "gradcam_vit"])
def test_backward_pass_stops_at_explained_layer(name, tiny):
    if name == "gradcam_vit":
        model = tiny()
        layer = model.blocks[1]["qkv"]
    else:
        layer = torch.nn.Conv2d(3, 8, 4, 4)
        model = torch.nn.Sequential(layer, torch.nn.Conv2d(8, 4, 1), torch.nn.Flatten(), torch.nn.Linear(24, 3))
    reached = []

    def watch(module, inputs, output):
        if output.requires_grad:
            output.register_hook(reached.append)

    layer.register_forward_hook(watch)
    classifier = load_classifier(model, device="cpu", mean=0, std=1)
    for explainer, gradients in ((name, 0), ("gradient", 1)):
        for _ in range(2):  # the first pass also inspects the network
            reached.clear()
            load_explainer(explainer)(classifier, IMAGES, TARGETS["class"])
        assert len(reached) == gradients
