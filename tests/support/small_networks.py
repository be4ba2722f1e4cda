"""Define small convolutional networks with random weights for tests of several explainers."""

import torch
from torch import nn

from saliency_bench import load_classifier


def loaded(network, **settings):
    return load_classifier(network, **{"device": "cpu", "mean": 0, "std": 1} | settings)


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 4),
    ).eval()  # fmt: skip


class Custom(nn.Module):
    """Network from modules and a function (network, images) -> output."""

    def __init__(self, function, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


class Branched(nn.Module):
    """Network with a skip connection and a ReLU module that is used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.relu, self.head = nn.ReLU(), nn.Linear(8, 4)

    def forward(self, x):
        x = self.relu(self.stem(x))
        return self.head(self.relu(x + self.body(x)).mean(dim=(2, 3)))


def gradient(classifier, images, target):
    """Return the gradient, summed over the channels, as a minimal explainer."""
    images = images.detach().requires_grad_()
    return torch.autograd.grad((classifier(images) * target).sum(), images)[0].sum(dim=1)


def input_x_gradient(classifier, images, target):
    images = images.detach().requires_grad_()
    (found,) = torch.autograd.grad((classifier(images) * target).sum(), images)
    return (found * images.detach()).sum(dim=1)
