"""Define a small network and its probabilities for pictures built pixel by pixel."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.maps import tie_breaker

B, H, W, K = 3, 6, 5, 4
MEAN = (0.5, 0.4, 0.3)


class Small(nn.Module):
    """Network whose logits are so large that removing pixels changes the top class."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.linear = nn.Linear(3 * H * W, K, bias=False)
        self.pictures = 0

    def forward(self, images):
        self.pictures += len(images)
        return 8 * self.linear(images.flatten(1))


class Slow:
    """The network, images, maps with ties, and a literal computation of probabilities."""

    def __init__(self):
        torch.manual_seed(0)
        self.classifier = Small().eval()
        self.images = torch.rand(B, 3, H, W)
        self.maps = np.random.default_rng(0).integers(-3, 6, (B, H, W)).astype(np.float32)
        place = {int(pixel): position for position, pixel in enumerate(tie_breaker(H, W))}
        self.orders = [sorted(range(H * W), key=lambda pixel: (-one.flat[pixel], place[pixel])) for one in self.maps]

    def curves(self, target):
        return Curves(self.classifier, self.images, target, self.maps)

    def kept(self, i, pixels, fill="black"):
        """Return the probabilities of image i with only these pixels; others are black or the normalisation mean."""
        picture = torch.zeros(1, 3, H, W)
        for pixel in range(H * W):
            y, x = divmod(pixel, W)
            for channel in range(3):
                other = MEAN[channel] if fill == "mean" else 0.0
                picture[0, channel, y, x] = self.images[i, channel, y, x] if pixel in pixels else other
        with torch.no_grad():
            logits = self.classifier(picture)[0].tolist()
        if getattr(self.classifier, "activation", "softmax") == "sigmoid":
            return [1 / (1 + math.exp(-logit)) for logit in logits]
        exponentials = [math.exp(logit) for logit in logits]
        return [e / sum(exponentials) for e in exponentials]

    def top(self, i, count, fill="black"):
        return self.kept(i, set(self.orders[i][:count]), fill)

    def rest(self, i, count, fill="black"):
        return self.kept(i, set(self.orders[i][count:]), fill)


@pytest.fixture
def slow():
    return Slow()
