"""Reference images that are selected by name: zero after normalisation, black, white or the blurred image."""

from typing import Literal

import torch

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.scoring.perturbation import blurred
from saliency_bench.types import Images

Fill = Literal["zero", "black", "white", "blur"]


def filled(classifier: Classifier, images: Images, fill: str) -> Images:
    """Return one reference image per image, (B, 3, H, W).

    Args:
        classifier: Network whose normalisation is used.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        fill: "zero" (zero after normalisation), "black" (0), "white" (1) or "blur" (the blurred image).
    """
    if fill == "blur":
        return blurred(classifier, images)
    return classifier.mean.expand_as(images) if fill == "zero" else torch.full_like(images, float(fill == "white"))
