"""Small convolutional networks with random weights, which several explainers are checked on."""

import torch
from torch import nn


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 4),
    ).eval()  # fmt: skip


class Branched(nn.Module):
    """A skip connection, and one ReLU module that is used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.relu, self.head = nn.ReLU(), nn.Linear(8, 4)

    def forward(self, x):
        x = self.relu(self.stem(x))
        return self.head(self.relu(x + self.body(x)).mean(dim=(2, 3)))
