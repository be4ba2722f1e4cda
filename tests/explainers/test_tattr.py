import numpy as np
import pytest
import torch
from enlarging import rounding
from refusals import refused
from small_networks import Custom, loaded
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_explainer, targets

IMAGES = torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(1))
TARGETS = {
    "class": targets.one_hot([0, 2], 3), "group": targets.group([1, 2], 3),
    "contrast": targets.contrast([0, 1], [1, 2], 3), "class against group": targets.class_vs_group(0, [1, 2], 3),
}  # fmt: skip


def enlarged(grid):
    return F.interpolate(torch.tensor(grid)[:, None].float(), size=(8, 12), mode="bilinear", align_corners=False)[:, 0]


def divided(a, b):
    return np.where(b == 0, 0, a / np.where(b + 1e-9 == 0, 1e-9, b + 1e-9))


def of_linear(layer, x, relevance):
    """Distribute each output's relevance to its inputs in proportion to their positive contributions, one by one."""
    weight, result = layer.weight.detach().numpy(), np.zeros_like(x)
    for token in range(len(x)):
        for i in range(len(weight)):
            contributions = [max(x[token, j] * weight[i, j], 0) for j in range(x.shape[1])]
            for j, contribution in enumerate(contributions):
                result[token, j] += contribution * divided(relevance[token, i], sum(contributions))
    return result


def of_sum(x, y, relevance):
    a, b = x * divided(relevance, x + y), y * divided(relevance, x + y)
    whole = abs(a.sum()) + abs(b.sum())
    return tuple(x * divided(divided(abs(x.sum()), whole) * relevance.sum(), x.sum()) for x in (a, b))


def of_product(x, y, relevance):
    """Distribute the relevance of z = x @ y per head: x_im and y_mj each get half of x_im y_mj / z_ij."""
    z, of_x, of_y = x @ y, np.zeros_like(x), np.zeros_like(y)
    for head, i, j in np.ndindex(z.shape):
        for m in range(x.shape[2]):
            part = x[head, i, m] * y[head, m, j] * divided(relevance[head, i, j], z[head, i, j]) / 2
            of_x[head, i, m] += part
            of_y[head, m, j] += part
    return of_x, of_y


def heads_joined(x):
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)


def literal_relevance(model, image, weights):
    """Return the relevance of every block's attention (heads, T, T), with an array for each value of the network."""
    with torch.no_grad():
        values, x = [], model.patch(image[None].double()).flatten(2).transpose(1, 2)
        x = torch.cat([model.front, x], dim=1)[0] + model.place[0]
        for block in model.blocks:
            now = {"in": x, "norm1": block["norm1"](x)}
            q, k, v = block["qkv"](now["norm1"]).unflatten(1, (3, model.heads, -1)).permute(1, 2, 0, 3)
            now |= {"q": q, "k": k, "v": v, "A": (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(dim=-1)}
            now["joined"] = (now["A"] @ v).transpose(0, 1).flatten(1)
            now["attended"] = block["out"](now["joined"])
            now["middle"] = x + now["attended"]
            now["norm2"] = block["norm2"](now["middle"])
            now["up"] = F.gelu(block["up"](now["norm2"]))
            now["down"] = block["down"](now["up"])
            x = now["middle"] + now["down"]
            values.append({key: value.numpy() for key, value in now.items()})
        last = model.norm(x).numpy()
    start = last[:1] if model.before else last.mean(axis=0, keepdims=True)
    pooled, relevance = of_linear(model.head, start, weights[None]), np.zeros_like(last)
    if model.before:
        relevance[0] = pooled[0]
    else:
        relevance = last / len(last) * divided(pooled, start)
    found = []
    for block, now in zip(reversed(model.blocks), reversed(values), strict=True):
        straight, through = of_sum(now["middle"], now["down"], relevance)
        through = of_linear(block["up"], now["norm2"], of_linear(block["down"], now["up"], through))
        straight, through = of_sum(now["in"], now["attended"], straight + through)
        through = of_linear(block["out"], now["joined"], through)
        through = through.reshape(len(through), model.heads, -1).transpose(1, 0, 2)
        of_attention, of_values = of_product(now["A"], now["v"], through)
        found.append(of_attention)
        of_queries, of_keys = of_product(now["q"], now["k"].transpose(0, 2, 1), of_attention)
        packed = [of_queries, of_keys.transpose(0, 2, 1), of_values]
        packed = np.concatenate([heads_joined(part) for part in packed], axis=1)
        relevance = straight + of_linear(block["qkv"], now["norm1"], packed)
    return found[::-1], relevance


def literal(model, image, weights, gradients, start):
    """Return the token matrix of one image."""
    weights = weights.double().numpy()
    relevance, _ = literal_relevance(model, image, weights.clip(min=0))
    if (weights < 0).any():
        against, _ = literal_relevance(model, image, -weights.clip(max=0))
        relevance = [a - b for a, b in zip(relevance, against, strict=True)]
    joint = np.eye(relevance[0].shape[-1])
    for one, gradient in list(zip(relevance, gradients, strict=True))[start:]:
        joint = ((gradient * one).clip(min=0).mean(axis=0) + np.eye(len(joint))) @ joint
    return joint


@pytest.mark.parametrize(("form", "before", "start"), [
    ("class", 0, 0), ("group", 2, 1), ("contrast", 2, 0), ("class against group", 0, 1),
])  # fmt: skip
def test_tattr_matches_literal_propagation(form, before, start, tiny, attended):
    """Compare in double precision, because rules that divide by small sums amplify rounding errors."""
    model, target = tiny(width=4, before=before).double(), TARGETS[form].expand(2, -1)
    ours = load_explainer("tattr", start=start)(loaded(model), IMAGES, target)
    _, gradients = attended(model, IMAGES, target)
    expected = []
    for i in range(2):
        joint = literal(model, IMAGES[i], target[i], [block[i] for block in gradients], start)
        row = joint[0, before:] if before else (joint - np.eye(6)).mean(axis=0)
        expected.append(row.reshape(2, 3))
    allowed = rounding(expected)
    expected = enlarged(np.stack(expected))
    assert expected.max() > 1e-7
    assert (ours - expected).abs().max() <= 1e-5 * expected.max() + allowed


def with_activation(tiny, activation):
    """Return the tiny network with another activation in its perceptrons."""
    model = tiny()
    forward = model.forward

    def changed(x):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn.functional, "gelu", activation)
            return forward(x)

    model.forward = changed
    return model


QUICK = {"x * sigmoid(c x)": lambda x: x * torch.sigmoid(1.702 * x), "method": lambda x: x * (x * 1.702).sigmoid()}


@pytest.mark.parametrize("way", QUICK)
def test_tattr_supports_every_form_of_quick_gelu(way, tiny):
    """x * sigmoid(1.702 x) equals silu(1.702 x) / 1.702, and every step of it has a rule."""
    known = with_activation(tiny, lambda x: torch.nn.functional.silu(1.702 * x) / 1.702)
    maps = [load_explainer("tattr")(loaded(model), STEM_IMAGES, STEM_TARGET)
            for model in (known, with_activation(tiny, QUICK[way]))]  # fmt: skip
    assert maps[0].amax() > 0
    assert (maps[0] - maps[1]).abs().max() <= 1e-4 * maps[0].abs().max()


@pytest.mark.parametrize(("operation", "words"), [
    (lambda x: x * torch.sigmoid(x.flip(-1).roll(1, dims=-1)), "no rule"),
    (lambda x: x * (2 * x), "no rule for 'mul'"), (lambda x: x.add_(2 * x), "no rule for 'add_'"),
])  # fmt: skip
def test_operation_without_rule_is_rejected(operation, words, tiny):
    model = loaded(with_activation(tiny, operation))
    refused(f"{words}.*gae", load_explainer("tattr"), model, STEM_IMAGES, STEM_TARGET)


STEM_IMAGES = torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(3))
STEM_TARGET = targets.contrast([0, 1], [1, 2], 3)
STEMS = {
    "group norm": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True),
                                        nn.Conv2d(4, 3, 1)),
    "pooling": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(2), nn.Upsample(scale_factor=2),
                                     nn.Conv2d(4, 3, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ["tattr", "gae", "attention"])
@pytest.mark.parametrize("stem", STEMS)
def test_map_with_stem_matches_map_of_stem_output(stem, name, tiny):
    """The map equals the map of the network without the stem if the output of the stem is the image."""
    torch.manual_seed(0)
    first, network = STEMS[stem](), tiny()
    explainer = load_explainer(name)
    ours = explainer(loaded(nn.Sequential(first, network)), STEM_IMAGES, STEM_TARGET)
    with torch.no_grad():
        seen = first(STEM_IMAGES)
    alone = explainer(loaded(network), seen, STEM_TARGET)
    assert (ours - alone).abs().max() <= 1e-3 * alone.abs().max()


@pytest.mark.parametrize("name", ["attention", "rollout", "gradient_rollout", "gae", "tattr", "gradcam_vit", "iia"])
def test_attention_explainers_support_pooled_patches(name, tiny):
    network = tiny()
    network.patch = nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), nn.ReLU(), nn.AvgPool2d(2))
    maps = load_explainer(name)(
        loaded(Custom(lambda net, x: net.network(x), network=network)), STEM_IMAGES, STEM_TARGET
    )
    assert maps.shape == (2, 8, 12)
    assert (maps.amax(dim=(1, 2)) > maps.amin(dim=(1, 2))).all()
