"""Attention (Zhang et al., 2023): attention of the class token in the last block of a vision transformer.

    map = mean over heads of A[class token, patches]

A = softmax(q k^T / sqrt(d)) is the attention matrix of the last block, of shape (B, heads, T, T). If the classification
head also reads the distillation token, or reads the mean of the patch tokens instead of a class token, the rows of
these tokens are averaged. In this average, all patch tokens together count as one token. Columns of class, distillation
and register tokens are left out. The grid of patches is upsampled to the size of the image by bilinear interpolation
(`align_corners=False`). The target is ignored, so the maps of all classes are the same. Zhang et al. describe the
method in section 5.2.5.
"""

import torch

from saliency_bench.compute.classifiers.attention import recording_attention
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.types import Images, Maps, Target


@explainer(version=2, needs="attention", targeted=False, passes=1, also_called=("raw attention",))
def attention(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return maps of the class token's attention in the last block of a vision transformer.

    The cost is one forward pass and the memory for the attention matrices of all blocks.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Not used, because the maps of all classes are the same.

    Returns:
        Maps of shape (B, H, W) with values in [0, 1].

    Raises:
        UserError: The network has no attention, or its attention does not cover all pairs of patches.
    """
    with torch.no_grad(), recording_attention(classifier, images) as seen:
        classifier(images)
    return seen.maps(seen.matrices[-1].float().mean(dim=1), images)
