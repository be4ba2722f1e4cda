"""A saliency map drawn over its picture."""

from functools import cache

import numpy as np
import torch
from PIL import Image

STRENGTH = 0.6  # of a map over its picture


def eight_bit(image: torch.Tensor) -> np.ndarray:
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def overlay(image: np.ndarray, values: np.ndarray, strength: float = STRENGTH) -> Image.Image:
    """The picture (H, W, 3) uint8 in grey with a map (h, w) in [0, 1] over it: the brighter, the more it counts."""
    height, width = image.shape[:2]
    heat = Image.fromarray(np.round(values * 255).astype(np.uint8)).resize((width, height), Image.Resampling.BILINEAR)
    colour = _colours()[np.asarray(heat)]
    grey = image.mean(axis=2, keepdims=True).repeat(3, axis=2) / 255.0
    return Image.fromarray(np.round(255 * ((1 - strength) * grey + strength * colour)).astype(np.uint8))


def heat_map(values: np.ndarray) -> Image.Image:
    """A map (h, w) uint8 alone, in the colours of `overlay`."""
    image = Image.fromarray(values).convert("P")
    image.putpalette(np.round(255 * _colours()).astype(np.uint8).tobytes())
    return image


@cache
def _colours() -> np.ndarray:
    """(256, 3) in [0, 1], for each of 256 levels."""
    from matplotlib import colormaps

    return colormaps["inferno"](np.arange(256))[:, :3]
