"""Input times gradient (Shrikumar et al., 2016): each pixel's contribution to a locally linear score.

    map = sum over channels of z * d score / d z        z = (x - mean) / std, the normalised image

The map sums to the score for a network that is linear in z, and for a network of ReLUs without biases.
"""

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.explainers._gradients import gradient_at
from saliency_bench.types import Images, Maps, On, Target


@explainer(
    version=1,
    needs="gradients",
    passes=1,
    signed=True,
    also_called=("ixg", "gradient x input", "grad*input", "input times gradient"),
    elsewhere=(("captum", "captum.attr.InputXGradient(model).attribute(x, target=label).sum(1)"),),
)
def input_x_gradient(classifier: Classifier, images: Images, target: Target, *, on: On = "logit") -> Maps:
    """Return the normalised image times the gradient of the score.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").

    Returns:
        Signed maps of shape (B, H, W).
    """
    # z * d score / d z = (x - mean) / std * std * d score / d x
    return ((images - classifier.mean) * gradient_at(classifier, images, target, on)).sum(dim=1)
