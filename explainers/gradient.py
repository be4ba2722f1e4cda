"""Gradient (Simonyan et al., 2014; P1 2.1.1, P2): how fast the score changes with each pixel.

    map = max over channels of |d score / d x|        reduction="sum": sum over channels of d score / d x

x is the image in [0, 1]; P1 sums signed values. Other packages: docs/other_packages.md.
"""

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.explainers._gradients import Reduction, gradient_at, over_channels
from saliency_bench.types import Images, Maps, On, Target


@explainer(
    version=1,
    needs="gradients",
    passes=1,
    signed={"reduction": "sum"},
    also_called=("saliency", "vanilla", "vanilla gradient", "simple gradient"),
    elsewhere=(("captum", "captum.attr.Saliency(model).attribute(x, target=label).amax(1)"),),
)
def gradient(
    classifier: Classifier, images: Images, target: Target, *, reduction: Reduction = "max", on: On = "logit"
) -> Maps:
    """Return maps of how fast the score changes with each pixel.

    Args:
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), weights over the logits.
        reduction: over channels: "max" of the absolute values, or signed "sum".
        on: whether the target's weights apply to logits ("logit") or to probabilities ("probability").

    Returns:
        Maps (B, H, W): non-negative for reduction "max", signed for "sum".
    """
    return over_channels(gradient_at(classifier, images, target, on), reduction)
