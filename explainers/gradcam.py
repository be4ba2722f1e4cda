"""Grad-CAM (Selvaraju et al., 2017): feature maps weighted by their mean gradient.

    weight_c = mean over pixels of d score / d A_c        map = sum_c weight_c A_c

A is the last feature map before any pooling, of shape (B, C, h, w). For images of 224 x 224 pixels, A has 14 x 14 x 512
values in VGG-16, as in Li et al. (2020, section 4.3.1); published code may use the pooled 7 x 7 map. In ResNet, A is
the 7 x 7 output of layer4, and in ConvNeXt the output of the last stage. Transformers with windows or stages (Swin,
PVT) may store A as (B, h, w, C) or as tokens (B, h * w, C).

A contains all evidence only if no branch bypasses the layer; this is not the case in a network with two streams. If the
last feature map does not meet this condition, the nearest earlier feature map that does is used; if no feature map
does, an error is raised. A layer that the user chooses is used even if a branch bypasses it, but a message is printed.

Negative values are set to 0 if and only if no weight of the sample's target is negative; a map for "A, not B" keeps the
evidence for B. The map is upsampled to the size of the image by bilinear interpolation (`align_corners=False`) in
float64, so that values that are equal in theory stay equal. It is not normalised. The backward pass stops at the layer.
"""

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.data.geometry import enlarge
from saliency_bench.declarations import explainer
from saliency_bench.explainers._features import activation_and_gradient, cut_if_positive
from saliency_bench.types import Images, Maps, OnWeighted, Target


@explainer(
    version=3,
    needs="activations, gradients",
    passes=1,
    signed={"on": "weighted"},
    also_called=("cam",),
    elsewhere=(
        (
            "pytorch-grad-cam",
            'GradCAM(model=model, target_layers=[classifier.module_named("{layer}")])'
            "(x, [ClassifierOutputTarget(label)] * len(x))",
        ),
    ),
)
def gradcam(
    classifier: Classifier, images: Images, target: Target, *, layer: str | None = None, on: OnWeighted = "logit"
) -> Maps:
    """Return the sum of feature maps, weighted by their mean gradients.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        layer: Dotted name of a module with a feature map. None: the last module whose feature map contains all
            evidence.
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability"). "weighted":
            explain the classes with a positive weight against all other classes (Wang and Wang, 2022; `_contrast.py`).

    Returns:
        Maps of shape (B, H, W), non-negative for samples whose target has no negative weight, unless `on="weighted"`.

    Raises:
        UserError: The layer does not exist, has no feature map or runs on several views of an image, or no layer
            contains all evidence.
    """
    activation, gradient = activation_and_gradient("gradcam", classifier, images, target, layer, on)
    weight = gradient.mean(dim=(2, 3), keepdim=True)  # (B, C, 1, 1)
    cam = (weight * activation).sum(dim=1)  # (B, h, w)
    return enlarge(cut_if_positive(cam, target, on), images)
