"""Centred Gaussian: a baseline that always marks the middle and ignores the image and the network.

map(y, x) = exp(-(dy^2 + dx^2) / 2),   dy = (y - (H - 1) / 2) / (sigma H),   dx = (x - (W - 1) / 2) / (sigma W)
"""

import torch

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.errors import UserError
from saliency_bench.types import Images, Maps, Target


def check(*, sigma: float) -> None:
    """Raise UserError if an option is out of range."""
    if not sigma > 0:
        raise UserError(f"sigma of centre must be above 0; got {sigma}")


@explainer(version=1, needs="nothing", passes=0, check=check, also_called=("center", "gaussian"))
def centre(classifier: Classifier, images: Images, target: Target, *, sigma: float = 0.25) -> Maps:
    """Return a centred Gaussian for every image.

    Args:
        classifier: Not used.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Not used.
        sigma: Standard deviation as a fraction of each side.

    Returns:
        Maps of shape (B, H, W) with values in (0, 1].

    Raises:
        UserError: sigma is not above 0.
    """
    check(sigma=sigma)
    height, width = images.shape[2:]
    down = (torch.arange(height, device=images.device) - (height - 1) / 2) / (sigma * height)
    across = (torch.arange(width, device=images.device) - (width - 1) / 2) / (sigma * width)
    gaussian = torch.exp(-(down[:, None] ** 2 + across**2) / 2)
    return gaussian.expand(len(images), height, width).clone()
