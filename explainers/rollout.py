"""Attention rollout (Abnar & Zuidema, 2020): attention followed through all blocks and the residual paths beside them.

    R = N_L ... N_1 N_0        N_l = (mean over heads of A_l + I), each row divided by its sum

A_l is block l's softmax(q k^T / sqrt(d)), (B, heads, T, T); map = R[class token, patches]. The rows of R sum to one. A
head that reads the distillation token as well, or the mean of the patch tokens in place of a class token: the mean of
the rows it reads (the patch tokens count as one). Columns of class, distillation and register tokens are left out. The
grid of patches is enlarged to the image by bilinear interpolation (`align_corners=False`). It ignores the target: maps
of all classes are the same.

Some published scripts leave out block 0; that is `start=1`.
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

    One forward pass; memory: the matrices of all blocks, 4 * blocks * heads * T^2 bytes per image.

    Args:
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: not used: maps of all classes are the same.
        start: the first block that counts, from 0.

    Returns:
        Maps (B, H, W), in [0, 1].

    Raises:
        UserError: The network has no attention, or its attention is not from all patches to all patches.
    """
    check(start=start)
    with torch.no_grad():  # for the products as well: a network that switches gradients off may give inference tensors
        with recording_attention(classifier, images, start) as seen:
            classifier(images)
        joint = product(by_row(matrix.float().mean(dim=1)) for matrix in seen.matrices[start:])
    return seen.maps(joint + torch.eye(joint.shape[-1], device=joint.device), images)
