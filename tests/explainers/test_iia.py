import pytest
import torch
from small_networks import Custom, loaded
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, registry, targets


def parts():
    torch.manual_seed(0)
    trunk = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.Softplus()
    head = nn.Conv2d(8, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    return nn.Sequential(*trunk), nn.Sequential(*head)


def upsampled(small, *size):
    """Return a small map (h, w) enlarged to the image."""
    return F.interpolate(small[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]


@pytest.mark.parametrize(("published", "batch_size"), [(False, 2), (True, None)])
def test_iia_matches_literal_loop(published, batch_size, error_of):
    trunk, head = parts()
    classifier = load_classifier(nn.Sequential(trunk, head), mean=(0.4,) * 3, std=(0.2,) * 3, layer="0", device="cpu")
    images, target, steps = torch.rand(2, 3, 12, 10), targets.contrast([0, 3], [1, 2], 4), 4
    explainer = load_explainer("iia", steps=steps, published=published, batch_size=batch_size)
    ours = explainer(classifier, images, target)
    for index, x in enumerate((images - 0.4) / 0.2):
        with torch.no_grad():
            features = [trunk(a / steps * x[None])[0] for a in range(steps + 1)]
        low, products = torch.stack(features).amin(dim=0), []
        for feature in features:
            for b in range(steps + 1):
                v = (feature if published else low + b / steps * (feature - low)).clone().requires_grad_()
                (head(v[None])[0] * target[index]).sum().backward()
                products.append(v.grad * v.detach().relu())
        expected = upsampled((sum(products) / len(products)).sum(dim=0), 12, 10)
        assert error_of(ours[index], expected) <= 1e-4


def following(rest, **more):
    """Return a network that consists of a layer and the following modules."""
    torch.manual_seed(0)
    return Custom(rest, layer=nn.Conv2d(3, 4, 3), **more, head=nn.LazyLinear(3))


def past(join):
    """Return a network with a second branch that bypasses the layer and is added or concatenated."""
    return following(lambda net, x: net.head(join(net.layer(x), net.beside(x)).tanh().flatten(1)),
                     beside=nn.Conv2d(3, 4, 3))  # fmt: skip


def counting(arrange):
    """Return a network that arranges the features of its layer by the number of pictures."""
    return following(lambda net, x: net.head(arrange(net.layer(x).tanh(), len(x))))


AFTER_THE_LAYER = {
    "a sum": past(torch.add),
    "a concatenation": past(lambda a, b: torch.cat([a, b], dim=1)),
    "tokens by count": counting(lambda x, count: x.flatten(2).transpose(1, 2).reshape(count, -1, 4).mean(dim=1)),
    "features by count": counting(lambda x, count: x.reshape(count, -1)),
}


@pytest.mark.parametrize("model", AFTER_THE_LAYER.values(), ids=AFTER_THE_LAYER)
def test_iia_computes_other_branches_from_full_image(model, error_of):
    images, target = torch.rand(2, 3, 6, 6), targets.one_hot([1], 3)
    model(images)
    explainer = load_explainer("iia", steps=2, layer="layer", published=True, batch_size=2)
    ours = explainer(loaded(model), images, target)
    for index, image in enumerate(images.split(1)):
        small = torch.zeros(4, 4)
        for a in (0, 0.5, 1):
            v = model.layer(a * image).detach().requires_grad_()
            handle = model.layer.register_forward_hook(lambda *_, v=v: v)
            model(image)[0, 1].backward()
            handle.remove()
            small += (v.grad * v.detach().relu())[0].sum(dim=0) / 3
        assert error_of(ours[index], upsampled(small, 6, 6)) <= 1e-4


def attended(model, x, last=None):
    """Return Tiny's logits and attentions for one image, with the last attention replaced by `last`, (heads, T, T)."""
    tokens = model.patch(x[None]).flatten(2).transpose(1, 2)
    tokens = torch.cat([model.front, tokens], dim=1) + model.place
    kept = []
    for block in model.blocks:
        q, k, v = block["qkv"](block["norm1"](tokens))[0].chunk(3, dim=1)  # (T, C) each
        heads = [slice(i * len(q[0]) // model.heads, (i + 1) * len(q[0]) // model.heads) for i in range(model.heads)]
        matrix = torch.stack([(q[:, h] @ k[:, h].T / q[:, h].shape[1] ** 0.5).softmax(dim=1) for h in heads])
        kept.append(last if last is not None and len(kept) == len(model.blocks) - 1 else matrix)
        joined = torch.cat([matrix @ v[:, h] for h, matrix in zip(heads, kept[-1], strict=True)], dim=1)
        tokens = tokens + block["out"](joined)
        tokens = tokens + block["down"](F.gelu(block["up"](block["norm2"](tokens))))
    tokens = model.norm(tokens)[0]
    return model.head(tokens[0] if model.before else tokens.mean(dim=0)), kept


def points_of(model, x, steps, published):
    """Yield the logits and the attentions of each point, with v(a, b) as the last attention."""
    lasts = [attended(model, a / steps * x)[1][-1].detach() for a in range(steps + 1)]
    low = torch.zeros_like(lasts[0]) if published else torch.stack(lasts).amin(dim=0)
    for a, feature in enumerate(lasts):
        for b in range(steps + 1):
            v = (low + b / steps * (feature - low)).requires_grad_()
            yield attended(model, a / steps * x, v)


def rolled_out(model, x, weights, steps):
    """Return the gradient rollout (T, T) of the mean products, minus the identity."""
    means = [0.0] * len(model.blocks)
    for logits, matrices in points_of(model, x, steps, published=True):
        gradients = torch.autograd.grad((logits * weights).sum(), matrices)
        for block, (g, matrix) in enumerate(zip(gradients, matrices, strict=True)):
            means[block] = means[block] + (g * matrix).detach().relu().mean(dim=0) / (steps + 1) ** 2
    rollout = identity = torch.eye(len(means[0]))
    for mean in means:
        rollout = (mean + identity) / (mean + identity).sum(dim=1, keepdim=True) @ rollout
    return rollout - identity


def of_the_last_block(model, x, weights, steps):
    """Return the mean of gradient * relu(v) over points and heads, (T, T)."""
    products = []
    for logits, matrices in points_of(model, x, steps, published=False):
        (gradient,) = torch.autograd.grad((logits * weights).sum(), matrices[-1])
        products.append((gradient * matrices[-1].detach().relu()).mean(dim=0))
    return sum(products) / len(products)


@pytest.mark.parametrize(("published", "batch_size", "before"), [
    (False, None, 0), (False, 5, 3), (True, None, 1), (True, 5, 0),
])  # fmt: skip
def test_iia_on_attention_matches_literal_loop(published, batch_size, before, tiny, error_of):
    model = tiny(blocks=3, before=before)
    classifier = load_classifier(model, mean=(0.4,) * 3, std=(0.5,) * 3, device="cpu")
    images, target = torch.rand(2, 3, 8, 12), targets.contrast([0, 2], [1, 0], 3)
    explainer = load_explainer("iia", steps=3, published=published, batch_size=batch_size)
    ours = explainer(classifier, images, target)
    assert ours.abs().max() > 0
    for index, x in enumerate((images - 0.4) / 0.5):
        matrix = (rolled_out if published else of_the_last_block)(model, x, target[index], 3)
        row = matrix[0] if before else matrix.mean(dim=0)
        assert error_of(ours[index], upsampled(row[before:].view(2, 3), 8, 12)) <= 1e-4


@pytest.mark.parametrize(("published", "batch_size", "attention"), [
    (False, 7, False), (True, None, False), (False, None, True), (True, 7, True),
])  # fmt: skip
def test_iia_runs_declared_number_of_passes(published, batch_size, attention, tiny):
    network = tiny() if attention else nn.Sequential(*parts())
    classifier = loaded(network, layer=None if attention else "0")
    explainer = load_explainer("iia", published=published, batch_size=batch_size)
    for _ in range(2):  # the first call also inspects the network
        before = classifier.passes
        explainer(classifier, torch.rand(1, 3, 8, 12), targets.one_hot([1], 3 if attention else 4))
    passes = registry.load("explainers", "iia").passes(dict(explainer.options), 8, 12, attention=attention)
    assert classifier.passes - before == passes
