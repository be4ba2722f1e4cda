from itertools import product

import numpy as np
import pytest
import torch
from refusals import refused
from small_networks import Custom, loaded
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, registry, targets

cebp = registry.load("explainers", "cebp")


class Network(nn.Module):
    """Network with all supported layers: convolutions, batch norm, a skip connection, pooling, two linear layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.body = (nn.Conv2d(channels, 4, 3, padding=1) for channels in (3, 4))
        self.norm = nn.BatchNorm2d(4)
        self.down, self.hidden, self.head = nn.Conv2d(4, 6, 3, stride=2), nn.Linear(6, 12), nn.Linear(12, 3)
        self.relu = nn.ReLU(inplace=True)
        self.norm.running_mean.uniform_(-0.2, 0.2)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, x):
        x = self.relu(self.stem(x))
        out = self.norm(self.body(x))
        out += x
        out = F.max_pool2d(self.relu(out), 2)
        out = self.relu(self.down(out))
        out = F.adaptive_avg_pool2d(out, 1).flatten(1)
        return self.head(self.relu(self.hidden(out)))


def excite(p, a, connections):
    """Return p_j = sum_i p_i a_j w_ij+ / sum_j a_j w_ij+ unit by unit; connections[i] lists (j, w_ij) of output i."""
    result = np.zeros(len(a))
    for i, pairs in enumerate(connections):
        total = sum(a[j] * max(w, 0) for j, w in pairs)
        for j, w in pairs:
            if total > 0:
                result[j] += p[i] * a[j] * max(w, 0) / total
    return result


def of_linear(weight):
    return [list(enumerate(row)) for row in weight.tolist()]


def of_convolution(weight, shape, stride, padding):
    """Return the inputs of each output unit (channel, row, column), as positions in the flattened (C, h, w)."""
    channels, height, width = shape
    outs, _, size, _ = weight.shape
    tall, wide = (height + 2 * padding - size) // stride + 1, (width + 2 * padding - size) // stride + 1
    connections = []
    for o, y, x in product(range(outs), range(tall), range(wide)):
        connections.append([])
        for c, i, j in product(range(channels), range(size), range(size)):
            v, u = y * stride + i - padding, x * stride + j - padding
            if 0 <= v < height and 0 <= u < width:
                connections[-1].append(((c * height + v) * width + u, weight[o, c, i, j].item()))
    return connections


def literal(model, image, row, contrastive):
    """Return the relevance at the stem's output for one image, computed with NumPy loops."""
    with torch.no_grad():
        x = F.relu(model.stem(image[None]))
        branch = model.norm(model.body(x))
        summed = F.relu(branch + x)
        pooled, winners = F.max_pool2d(summed, 2, return_indices=True)
        low = F.relu(model.down(pooled))
        mean = low.mean(dim=(2, 3))
        hidden = F.relu(model.hidden(mean))
    flat = {key: value.double().flatten().numpy() for key, value in locals().items() if torch.is_tensor(value)}
    unit = (row @ model.head.weight.detach())[None]  # the virtual output unit
    p = excite([1.0], flat["hidden"], of_linear(unit))
    if contrastive:
        p = p - excite([1.0], flat["hidden"], of_linear(-unit))
    p = excite(p, flat["mean"], of_linear(model.hidden.weight))
    area = low[0, 0].numel()
    p = excite(p, flat["low"], [[(c * area + i, 1 / area) for i in range(area)] for c in range(6)])
    p = excite(p, flat["pooled"], of_convolution(model.down.weight, pooled.shape[1:], 2, 0))
    spread, size = np.zeros(summed.numel()), summed[0, 0].numel()
    for position, (winner, value) in enumerate(zip(winners.flatten().tolist(), p, strict=True)):
        spread[position // pooled[0, 0].numel() * size + winner] += value
    to_branch, to_skip = np.zeros_like(spread), np.zeros_like(spread)
    for i, value in enumerate(spread):
        a, b = max(flat["branch"][i], 0), max(flat["x"][i], 0)
        if a + b > 0:
            to_branch[i], to_skip[i] = value * a / (a + b), value * b / (a + b)
    p = to_skip + excite(to_branch, flat["x"], of_convolution(model.body.weight, x.shape[1:], 1, 1))
    return p.reshape(x.shape[1:])


@pytest.mark.parametrize(("target", "contrastive"), [
    (targets.one_hot([0, 2], 3), False), (targets.contrast([0, 1], [2, 0], 3), True), (targets.group([0, 2], 3), True),
])  # fmt: skip
def test_cebp_matches_literal_loop(contrastive, target):
    model, images = Network().eval(), torch.rand(2, 3, 13, 12)
    classifier = load_classifier(model, mean=(0.4,) * 3, std=(0.3,) * 3, device="cpu")
    ours = load_explainer("cebp", layer="stem", contrastive=contrastive)(classifier, images, target)
    for index, image in enumerate((images - 0.4) / 0.3):
        relevance = literal(model, image, target[index % len(target)], contrastive)
        assert contrastive or relevance.sum() == pytest.approx(1)
        expected = torch.from_numpy(relevance.sum(axis=0).clip(min=0))
        assert expected.max() > 0
        torch.testing.assert_close(ours[index].double(), expected, rtol=1e-4, atol=1e-6)


REFUSED = {
    "gelu": lambda x: F.gelu(x), "mul": lambda x: x.relu() * x.relu().sigmoid(),
    "softmax": lambda x: x.softmax(dim=1), "linear of negative values": lambda x: x - 100.0,
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_cebp_rejects_unsupported_operations(what):
    other = Custom(lambda net, x: net.head(REFUSED[what](net.convolution(x)).flatten(1)),
                   convolution=nn.Conv2d(3, 4, 3), head=nn.Linear(4 * 6 * 6, 3))  # fmt: skip
    refused("cebp.*gradcam.*gradient.*rise", load_explainer("cebp"), loaded(other), torch.rand(1, 3, 8, 8),
            targets.one_hot([0], 3))  # fmt: skip
