"""Contrastive excitation backpropagation (Zhang et al., 2016; P1 2.1.5): activations that support only the target.

    P(a_j | a_i) = a_j w_ij+ / sum_j a_j w_ij+        map = relu(sum over channels of P(target) - P(dual of target))

Relevance 1 of one virtual output unit with the weights sum_k w_k W_k of the target goes down by P, layer by layer, as
does that of its dual unit with negated weights; a zero normaliser gives 0. `_excitation.py` has the rule of each layer:
biases are ignored, batch norm passes relevance on, skip connections split it in proportion to activation.

The two are subtracted at the inputs of the last linear layer (the average pool of a ResNet, the penultimate linear
layer of a VGG); P is linear, so that any layer would do. The map is read at the last feature map that is larger than
the last convolution's: ResNet's third stage (layer3), in VGG the last ReLU before the fourth pooling, Mixed_6e of
Inception v3; where there is none, at Grad-CAM's layer. Enlarged bilinearly.

TorchRay splits skip connections by signed activations, whose shares leave [0, 1] where one is negative; here negative
activations, as in the paper's own rule, excite nothing. `contrastive=False` gives plain excitation backpropagation.
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
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), weights over the logits.
        layer: dotted name of the module at whose output, (B, C, h, w), the map is read; None: the last whose map is
            larger than the last convolution's, else Grad-CAM's.
        contrastive: subtract the dual of the target; False: plain excitation backpropagation.

    Returns:
        Maps (B, H, W), non-negative.

    Raises:
        UserError: Above the layer, the network has anything but convolutions, ReLUs, pooling, batch norm, sums and
            linear layers; or the logits do not come from its last layer alone.
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
    """Return the name of the last module whose map is larger than the last convolution's; else Grad-CAM's layer."""
    pixels = last_convolution(classifier, images)
    larger = None if pixels is None else last_feature_map(classifier, images, pixels)
    return larger or cam_layer(classifier, images)
