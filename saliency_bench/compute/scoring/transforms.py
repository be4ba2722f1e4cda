"""Define twelve image transforms, and inverse transforms for maps. A map should change in the same way as the image."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Choice = Literal["all", "right", "left", "down", "up", "rotate-15", "rotate-10", "rotate-5", "rotate+5", "rotate+10",
                 "rotate+15", "flip_horizontal", "flip_vertical"]  # fmt: skip


@dataclass(frozen=True)
class Transform:
    """Invertible transform of pictures, Float (B, C, H, W). `there` applies the transform and `back` undoes it.

    Pixels that come from outside the picture are 0.
    """

    there: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]

    def region(self, height: int, width: int) -> Tensor:
        """Return which pixels remain inside the picture after `there`, Bool (H, W)."""
        return self.back(torch.ones(1, 1, height, width, dtype=torch.float64))[0, 0] > 1 - 1e-9


def shifted(pictures: Tensor, down: float, right: float) -> Tensor:
    """Shift pictures by fractions of their height and width, rounded to whole pixels."""
    rows, columns = round(down * pictures.shape[2]), round(right * pictures.shape[3])
    # Negative padding crops.
    return F.pad(pictures, (columns, -columns, rows, -rows))


def rotated(pictures: Tensor, degrees: float) -> Tensor:
    """Rotate pictures counter-clockwise about their centre, with bilinear interpolation."""
    height, width = pictures.shape[2:]
    turn = math.radians(degrees)
    y = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    x = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    # Source position of each result pixel, in units of grid_sample: -1 and 1 are the centres of the outermost pixels.
    across = (math.cos(turn) * x - math.sin(turn) * y) * 2 / max(width - 1, 1)
    down = (math.sin(turn) * x + math.cos(turn) * y) * 2 / max(height - 1, 1)
    grid = torch.stack([across, down], dim=2).to(pictures).expand(len(pictures), -1, -1, -1)
    return F.grid_sample(pictures, grid, mode="bilinear", padding_mode="zeros", align_corners=True)


def _shift(down: float, right: float) -> Transform:
    return Transform(lambda x: shifted(x, down, right), lambda x: shifted(x, -down, -right))


def _rotation(degrees: float) -> Transform:
    return Transform(lambda x: rotated(x, degrees), lambda x: rotated(x, -degrees))


def _flip(axis: int) -> Transform:
    return Transform(lambda x: x.flip(axis), lambda x: x.flip(axis))


TRANSFORMS = {
    "right": _shift(0, 0.2),
    "left": _shift(0, -0.2),
    "down": _shift(0.2, 0),
    "up": _shift(-0.2, 0),
    **{f"rotate{degrees:+d}": _rotation(degrees) for degrees in (-15, -10, -5, 5, 10, 15)},
    "flip_horizontal": _flip(3),
    "flip_vertical": _flip(2),
}
