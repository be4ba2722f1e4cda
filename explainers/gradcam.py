"""Grad-CAM (Selvaraju et al., 2017; P1 2.1.4): feature maps weighted by their mean gradient.

    weight_c = mean over pixels of d score / d A_c        map = sum_c weight_c A_c

A is the last feature map before any pooling, (B, C, h, w): of images of 224 x 224 14 x 14 x 512 in VGG-16 (P1 4.3.1),
where published code may take the pooled 7 x 7, layer4's 7 x 7 in ResNet, the last stage's in ConvNeXt. Transformers of
windows or stages (Swin, PVT) may hold it as (B, h, w, C) or as tokens (B, h * w, C). It holds all evidence only if no
branch bypasses it, as in a network with two streams: if the last feature map fails this test, an earlier one that
passes is read, or the network is refused; a layer that the user names is read anyway, with a message. Negative values
are cut off if and only if no weight of the sample's target is negative (a map for "A, not B" keeps the evidence for B).
The map is enlarged to the image by bilinear interpolation (`align_corners=False`) in float64, so that values that are
equal in theory stay equal; it is not normalised. The backward pass stops at the layer.
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
    """Return feature maps weighted by their mean gradient.

    Args:
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), weights over the logits.
        layer: dotted name of a module with a feature map; None: the last one that holds all evidence.
        on: whether the target's weights apply to logits ("logit") or to probabilities ("probability"); "weighted":
            explain the classes of positive weight against all others (Wang and Wang, 2022; `_contrast.py`).

    Returns:
        Maps (B, H, W); non-negative for samples whose target has no negative weight, unless `on="weighted"`.

    Raises:
        UserError: The layer does not exist, has no feature map or runs on several views of an image; or no layer holds
            all evidence.
    """
    activation, gradient = activation_and_gradient("gradcam", classifier, images, target, layer, on)
    weight = gradient.mean(dim=(2, 3), keepdim=True)  # (B, C, 1, 1)
    cam = (weight * activation).sum(dim=1)  # (B, h, w)
    return enlarge(cut_if_positive(cam, target, on), images)
