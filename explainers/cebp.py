"""Contrastive excitation backpropagation (Zhang et al., 2016): activations that support only the target.

    P(a_j | a_i) = a_j w_ij+ / sum_j a_j w_ij+        map = relu(sum over channels of P(target) - P(dual of target))

A virtual output unit has the weights sum_k w_k W_k of the target and a relevance of 1. Its dual unit has the negated
weights. P propagates the relevance of both units down, layer by layer. Where the normaliser is zero, P is 0.
`_excitation.py` contains the rule for each layer: biases are ignored, batch norm does not change relevance, and skip
connections split relevance in proportion to activation.

The relevance of the dual unit is subtracted at the inputs of the last linear layer (the average pool of a ResNet, the
penultimate linear layer of a VGG). P is linear, so subtraction at any other layer is equivalent. The map is the
relevance at the last feature map that is larger than the feature map of the last convolution: ResNet's third stage
(layer3), the last ReLU before the fourth pooling in VGG, or Mixed_6e in Inception v3. If there is no such feature map,
Grad-CAM's layer is used. The map is upsampled bilinearly. Li et al. (2020) evaluate the method in section 2.1.5.

TorchRay splits skip connections by signed activations, so its fractions can be outside [0, 1]. Here, as in the paper,
negative activations receive no relevance. Use `contrastive=False` for plain excitation backpropagation.
"""

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.cuts import check_gradient
from saliency_bench.compute.classifiers.layers import cam_layer, detached_at, last_convolution, last_feature_map
from saliency_bench.data.geometry import enlarge
from saliency_bench.declarations import explainer
from saliency_bench.explainers._excitation import Excitation
from saliency_bench.explainers._features import feature_layout
from saliency_bench.explainers._gradients import derivative
from saliency_bench.target_weights import score
from saliency_bench.types import Images, Maps, Target


@explainer(
    version=3,
    needs="activations, gradients",
    passes=1,
    also_called=("ebp", "excitation backprop", "contrastive excitation backprop"),
)
def cebp(
    classifier: Classifier, images: Images, target: Target, *, layer: str | None = None, contrastive: bool = True
) -> Maps:
    """Return maps of the activations that support only the target.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        layer: Dotted name of the module whose output (B, C, h, w) receives the relevance. None: the last module whose
            feature map is larger than the output of the last convolution, or else Grad-CAM's layer.
        contrastive: Whether to subtract the relevance of the dual unit. False: plain excitation backpropagation.

    Returns:
        Non-negative maps of shape (B, H, W).

    Raises:
        UserError: The network above the layer has operations other than convolutions, ReLUs, pooling, batch norm, sums
            and linear layers, or the logits do not come from the last layer alone.
    """
    layer = layer or excitation_layer(classifier, images)
    check_gradient(classifier, images, classifier.module_named(layer))
    excitation = Excitation(classifier.id, contrastive)
    with detached_at(classifier.module_named(layer)) as outputs, excitation:
        logits = classifier(images)
    excitation.check_end(logits)
    layout = feature_layout("cebp", classifier, images, layer, outputs)
    relevance = layout.channels_first(derivative(classifier, score(logits, target).sum(), outputs[-1]))
    return enlarge(relevance.sum(dim=1).relu(), images)


def excitation_layer(classifier: Classifier, images: Images) -> str:
    """Return the last module with a larger feature map than the last convolution, or else Grad-CAM's layer."""
    pixels = last_convolution(classifier, images)
    larger = None if pixels is None else last_feature_map(classifier, images, pixels)
    return larger or cam_layer(classifier, images)
