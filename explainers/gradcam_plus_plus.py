"""Grad-CAM++ (Chattopadhay et al., 2018): Grad-CAM with gradients weighted by their higher powers.

    alpha_cp = g_cp^2 / (2 g_cp^2 + S_c g_cp^3 + 1e-6), 0 where g_cp = 0
    weight_c = sum over pixels p of relu(g_cp) alpha_cp        map = sum_c weight_c A_c

A is the feature map that gradcam uses, S_c is the sum of A_c over its pixels, and g = d score / d A. The paper
differentiates exp(score), whose higher derivatives are these powers if the network is linear above the layer; here g is
the gradient of the score itself. See docs/other_packages.md for the definitions in other packages. If the denominator
is exactly zero, alpha is 0. As in gradcam, negative values are set to 0 if and only if no weight of the sample's target
is negative. The layer and the bilinear upsampling are also the same as in gradcam.
"""

import torch

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.data.geometry import enlarge
from saliency_bench.declarations import explainer
from saliency_bench.explainers._features import activation_and_gradient, cut_if_positive
from saliency_bench.types import Images, Maps, On, Target


@explainer(
    version=3,
    needs="activations, gradients",
    passes=1,
    also_called=("gradcampp",),
    elsewhere=(
        (
            "pytorch-grad-cam",
            'GradCAMPlusPlus(model=model, target_layers=[classifier.module_named("{layer}")])'
            "(x, [ClassifierOutputTarget(label)] * len(x))",
        ),
    ),
)
def gradcam_plus_plus(
    classifier: Classifier, images: Images, target: Target, *, layer: str | None = None, on: On = "logit"
) -> Maps:
    """Return the sum of feature maps, weighted by their gradients and the higher powers of these gradients.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        layer: Dotted name of a module with a feature map. None: the last module whose feature map contains all
            evidence.
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").

    Returns:
        Maps of shape (B, H, W), non-negative for samples whose target has no negative weight.

    Raises:
        UserError: The layer does not exist, has no feature map or runs on several views of an image, or no layer
            contains all evidence.
    """
    activation, gradient = activation_and_gradient("gradcam_plus_plus", classifier, images, target, layer, on)
    square = gradient**2
    below = 2 * square + activation.sum(dim=(2, 3), keepdim=True) * square * gradient + 1e-6
    alpha = torch.where(below != 0, square / below, 0)
    weight = (gradient.relu() * alpha).sum(dim=(2, 3), keepdim=True)  # (B, C, 1, 1)
    cam = (weight * activation).sum(dim=1)  # (B, h, w)
    return enlarge(cut_if_positive(cam, target), images)
