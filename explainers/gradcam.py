"""Grad-CAM (Selvaraju et al., 2017; P1 2.1.4): feature maps weighted by their mean gradient.

    weight_c = mean over pixels of d score / d A_c        map = sum_c weight_c A_c

A is the output of the last convolutional block, (B, C, h, w). Negative values are cut off if and only if no weight of
the sample's target is negative (a map for "A, not B" keeps what speaks for B). The map is enlarged to the image by
bilinear interpolation (`align_corners=False`); it is not normalised. The backward pass stops at the layer.
"""

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.geometry import enlarge
from saliency_bench.classifiers.layers import cam_layer
from saliency_bench.explainers._features import activation_and_gradient, cut_if_positive
from saliency_bench.types import Images, Maps, Target

VERSION = 1
NEEDS = "activations, gradients"


def gradcam(
    classifier: Classifier, images: Images, target: Target, *, layer: str | None = None, on: str = "logit"
) -> Maps:
    """Maps (B, H, W). `layer`: dotted name of a module that gives (B, C, h, w); default: the last convolutional block.

    Raises: UserError where there is no such layer or it gives another shape.
    """
    layer = layer or cam_layer(classifier, images)
    activation, gradient = activation_and_gradient("gradcam", classifier, images, target, layer, on)
    weight = gradient.mean(dim=(2, 3), keepdim=True)  # (B, C, 1, 1)
    cam = (weight * activation).sum(dim=1)  # (B, h, w)
    return enlarge(cut_if_positive(cam, target), images)


def passes(options: dict, height: int, width: int) -> int:
    return 1
