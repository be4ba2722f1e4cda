"""Edges: Sobel magnitude of the greyscale image, a baseline that uses the image but not the network.

    map = sqrt(gx^2 + gy^2)        gx = [1 2 1]^T [-1 0 1] / 8 applied to the mean of the channels, gy its transpose

The border is padded by repeating the outermost rows and columns. With the division by 8, a ramp of slope s has
magnitude s.
"""

import torch
from torch.nn import functional as F

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.types import Images, Maps, Target


@explainer(version=1, needs="nothing", passes=0, also_called=("sobel",))
def edges(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return the Sobel magnitude of the greyscale images.

    Args:
        classifier: Not used.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Not used.

    Returns:
        Maps of shape (B, H, W) with values from 0 to sqrt(2) / 2.
    """
    grey = F.pad(images.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")[:, 0]  # (B, H + 2, W + 2)
    down = grey[:, :-2] + 2 * grey[:, 1:-1] + grey[:, 2:]
    across = grey[:, :, :-2] + 2 * grey[:, :, 1:-1] + grey[:, :, 2:]
    return torch.hypot(down[:, :, 2:] - down[:, :, :-2], across[:, 2:] - across[:, :-2]) / 8
