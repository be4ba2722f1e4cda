"""A saliency map drawn over its picture."""

import numpy as np
import torch
from PIL import Image


def eight_bit(image: torch.Tensor) -> np.ndarray:
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def overlay(image: np.ndarray, values: np.ndarray, strength: float = 0.6) -> Image.Image:
    """The picture (H, W, 3) uint8 in grey with a map (h, w) in [0, 1] over it: the brighter, the more it counts."""
    from matplotlib import colormaps

    height, width = image.shape[:2]
    heat = Image.fromarray(np.round(values * 255).astype(np.uint8)).resize((width, height), Image.Resampling.BILINEAR)
    colour = colormaps["inferno"](np.asarray(heat) / 255.0)[..., :3]
    grey = image.mean(axis=2, keepdims=True).repeat(3, axis=2) / 255.0
    return Image.fromarray(np.round(255 * ((1 - strength) * grey + strength * colour)).astype(np.uint8))
