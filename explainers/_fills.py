"""Reference pictures that show nothing, by name."""

from typing import Literal

import torch

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.scoring.perturbation import blurred
from saliency_bench.types import Images

Fill = Literal["zero", "black", "white", "blur"]


def filled(classifier: Classifier, images: Images, fill: str) -> Images:
    """Return a picture that shows nothing (B, 3, H, W) in the prepared frame.

    It is zero after normalisation, 0 or 1 in [0, 1], or the blurred image.
    """
    if fill == "blur":
        return blurred(classifier, images)
    return classifier.mean.expand_as(images) if fill == "zero" else torch.full_like(images, float(fill == "white"))
