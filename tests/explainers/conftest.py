"""A vision transformer written out, which keeps its attention: what the explainers of attention are checked against."""

import pytest
import torch
from torch import nn


class Tiny(nn.Module):
    """Patches of 4 pixels, `before` tokens in front of them (the first is the class token), blocks of one attention and
    one perceptron. The head reads the class token, or with before=0 the mean of the patches."""

    def __init__(self, blocks=2, heads=2, width=8, patches=6, before=1, classes=3, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.heads, self.before = heads, before
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.front = nn.Parameter(torch.randn(1, before, width))
        self.place = nn.Parameter(torch.randn(1, before + patches, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width), "up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width)
                }
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.6)
        self.kept = []

    def forward(self, x):
        self.kept = []
        x = self.patch(x.to(self.place.dtype)).flatten(2).transpose(1, 2)
        x = torch.cat([self.front.expand(len(x), -1, -1), x], dim=1) + self.place
        for block in self.blocks:
            q, k, v = block["qkv"](block["norm1"](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            attention = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(dim=-1)
            self.kept.append(attention)
            x = x + block["out"]((attention @ v).transpose(1, 2).flatten(2))
            x = x + block["down"](nn.functional.gelu(block["up"](block["norm2"](x))))
        x = self.norm(x)
        return self.head(x[:, 0] if self.before else x.mean(dim=1))


@pytest.fixture(scope="session")
def tiny():
    return Tiny


@pytest.fixture(scope="session")
def attended():
    """attended(model, images, weights) -> of each block (B, heads, T, T): the attention, the score's gradient."""

    def of(model, images, weights):
        score = (model(images) * weights).sum()
        gradients = torch.autograd.grad(score, model.kept)
        return [a.detach().numpy() for a in model.kept], [g.numpy() for g in gradients]

    return of
