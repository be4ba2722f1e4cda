"""Attention (P0 5.2.5): attention of the class token in the last block of a vision transformer.

    map = mean over heads of A[class token, patches]

A = softmax(q k^T / sqrt(d)) is the last block's matrix, (B, heads, T, T). A head that reads the distillation token as
well, or the mean of the patch tokens in place of a class token: the mean of the rows it reads (the patch tokens count
as one). Columns of class, distillation and register tokens are left out. The grid of patches is enlarged to the image
by bilinear interpolation (`align_corners=False`). It ignores the target: maps of all classes are the same.
"""

import torch

from saliency_bench.compute.classifiers.attention import recording_attention
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.types import Images, Maps, Target


@explainer(version=2, needs="attention", targeted=False, passes=1, also_called=("raw attention",))
def attention(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return maps of the class token's attention in the last block of a vision transformer.

    One forward pass; memory: the matrices of all blocks.

    Args:
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: not used: maps of all classes are the same.

    Returns:
        Maps (B, H, W), in [0, 1].

    Raises:
        UserError: The network has no attention, or its attention is not from all patches to all patches.
    """
    with torch.no_grad(), recording_attention(classifier, images) as seen:
        classifier(images)
    return seen.maps(seen.matrices[-1].float().mean(dim=1), images)
