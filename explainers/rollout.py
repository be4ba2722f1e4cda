"""Attention rollout (Abnar & Zuidema, 2020): attention followed through all blocks and their residual paths.

    R = N_L ... N_1 N_0        N_l = (mean over heads of A_l + I), each row divided by its sum

A_l = softmax(q k^T / sqrt(d)) is the attention matrix of block l, of shape (B, heads, T, T). The map is R[class token,
patches]. The rows of R sum to one. If the classification head also reads the distillation token, or reads the mean of
the patch tokens instead of a class token, the rows of these tokens are averaged. In this average, all patch tokens
together count as one token. Columns of class, distillation and register tokens are left out. The grid of patches is
upsampled to the size of the image by bilinear interpolation (`align_corners=False`). The target is ignored, so the maps
of all classes are the same.

Some published scripts leave out block 0, as with `start=1`.
"""

import torch

from saliency_bench.compute.classifiers.attention import recording_attention
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.explainers._flow import by_row, check_start, product
from saliency_bench.types import Images, Maps, Target


def check(*, start: int) -> None:
    """Raise UserError if an option is out of range."""
    check_start("rollout", start)


@explainer(version=2, needs="attention", targeted=False, passes=1, check=check, also_called=("attention rollout",))
def rollout(classifier: Classifier, images: Images, target: Target, *, start: int = 0) -> Maps:
    """Return the attention of the class token, followed through all blocks and their residual paths.

    The cost is one forward pass, and 4 * blocks * heads * T^2 bytes per image for the matrices of all blocks.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Not used, because the maps of all classes are the same.
        start: Index of the first block that is included, starting at 0.

    Returns:
        Maps of shape (B, H, W) with values in [0, 1].

    Raises:
        UserError: The network has no attention, or its attention does not cover all pairs of patches.
    """
    check(start=start)
    with torch.no_grad():  # includes the products, because a network may return inference tensors
        with recording_attention(classifier, images, start) as seen:
            classifier(images)
        joint = product(by_row(matrix.float().mean(dim=1)) for matrix in seen.matrices[start:])
    return seen.maps(joint + torch.eye(joint.shape[-1], device=joint.device), images)
