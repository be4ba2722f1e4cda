"""Grad-CAM (Selvaraju et al., 2017; P1 2.1.4): feature maps weighted by their mean gradient.

    weight_c = mean over pixels of d score / d A_c        map = sum_c weight_c A_c

A is the output of the last convolutional block, (B, C, h, w). Negative values are cut off if and only if no weight of
the sample's target is negative (a map for "A, not B" keeps what speaks for B). The map is enlarged to the image by
bilinear interpolation (`align_corners=False`); it is not normalised. The backward pass stops at the layer.
"""

import torch
from torch.nn import functional as F

from saliency_bench.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.hooks import detached_at
from saliency_bench.targets import score
from saliency_bench.types import Images, Maps, Target

VERSION = 1


def gradcam(
    classifier: Classifier, images: Images, target: Target, *, layer: str | None = None, on: str = "logit"
) -> Maps:
    """Maps (B, H, W). `layer`: dotted name of a module that gives (B, C, h, w); default: the last convolutional block.

    Errors: UserError where there is no such layer or it gives another shape.
    """
    layer = layer or classifier.cam_layer(images)
    with detached_at(classifier.module_named(layer)) as outputs:
        total = score(classifier(images), target, on).sum()
    if not outputs:
        raise UserError(f"layer {layer} of {classifier.id} is not called in a forward pass; name another")
    activation = outputs[-1]  # (B, C, h, w)
    if activation.ndim != 4:
        raise UserError(f"layer {layer} gives {tuple(activation.shape)}; gradcam needs a feature map (B, C, h, w)")
    (gradient,) = torch.autograd.grad(total, activation)
    weight = gradient.mean(dim=(2, 3), keepdim=True)  # (B, C, 1, 1)
    cam = (weight * activation.detach()).sum(dim=1, keepdim=True)  # (B, 1, h, w)
    is_positive = (target >= 0).all(dim=1).view(-1, 1, 1, 1)
    cam = torch.where(is_positive, cam.relu(), cam)
    return F.interpolate(cam, size=images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
