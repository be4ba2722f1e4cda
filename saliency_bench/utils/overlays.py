"""Draw saliency maps over their images.

A map with negative values is drawn in blue below zero and red above zero, on a scale that ends at a high percentile of
its absolute values. Any other map is drawn on a scale from its smallest to its largest value, where brighter means more
important.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

STRENGTH = 0.6  # opacity of a map over its image
LEVELS = 255  # levels from zero to the end of a scale
PERCENTILE = 99.0  # end of a signed map's scale, because a few pixels of a gradient are far larger than the rest
ROUNDING = 1e-6  # negative values below this fraction of a map's largest absolute value do not make the map signed


def eight_bit(image: Tensor) -> np.ndarray:
    """Convert an image (3, H, W) in [0, 1] to uint8 (H, W, 3)."""
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def scaled(values: np.ndarray) -> np.ndarray:
    """Scale a finite map (h, w) for drawing.

    A signed map is scaled to [-1, 1], with 0 unchanged. Any other map is scaled to [0, 1].
    """
    values = values.astype(np.float64)
    low, high = values.min(), values.max()
    if low < -ROUNDING * np.abs(values).max():
        end = np.percentile(np.abs(values), PERCENTILE) or np.abs(values).max()
        return np.clip(values / end, -1, 1)
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def overlay(image: np.ndarray, values: np.ndarray, strength: float = STRENGTH) -> Image.Image:
    """Draw a map (h, w) over a grey version of its image, uint8 (H, W, 3)."""
    height, width = image.shape[:2]
    levels = Image.fromarray((LEVELS * scaled(values)).astype(np.float32))
    levels = levels.resize((width, height), Image.Resampling.BILINEAR)
    colour = np.asarray(heat_map(np.asarray(levels)).convert("RGB")) / 255.0
    grey = image.mean(axis=2, keepdims=True).repeat(3, axis=2) / 255.0
    return Image.fromarray(np.round(255 * ((1 - strength) * grey + strength * colour)).astype(np.uint8))


def heat_map(levels: np.ndarray) -> Image.Image:
    """Draw a map in the colours of `overlay`, but without an image.

    `levels` (h, w) is a `scaled` map multiplied by `LEVELS`.
    """
    signed = bool((levels < 0).any())
    level = (levels + LEVELS) / 2 if signed else levels
    image = Image.fromarray(np.clip(np.round(level), 0, LEVELS).astype(np.uint8)).convert("P")
    image.putpalette(np.round(255 * _colours("RdBu_r" if signed else "inferno")).astype(np.uint8).tobytes())
    return image


@cache
def _colours(name: str) -> np.ndarray:
    """Return the colours (256, 3) in [0, 1] of a matplotlib colour map."""
    from matplotlib import colormaps

    return colormaps[name](np.arange(256))[:, :3]
