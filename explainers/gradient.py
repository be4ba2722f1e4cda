"""Gradient (Simonyan et al., 2014): sensitivity of the score to each pixel.

    map = max over channels of |d score / d x|        reduction="sum": sum over channels of d score / d x

x is the image in [0, 1]. Li et al. (2020, section 2.1.1) sum the signed values. See docs/other_packages.md for the
definitions in other packages.
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
    """Return maps of the sensitivity of the score to each pixel.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        reduction: Reduction over channels: the largest absolute value ("max") or the sum of the signed values ("sum").
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").

    Returns:
        Maps of shape (B, H, W), non-negative for reduction "max" and signed for "sum".
    """
    return over_channels(gradient_at(classifier, images, target, on), reduction)
