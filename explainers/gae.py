"""GAE, generic attention explainability (Chefer et al., 2021, ICCV): relevance that each block adds to the tokens.

    R = I;   for each block:  R = R + mean over heads of relu(d score / d A_l x A_l) R

A_l = softmax(q k^T / sqrt(d)) is the attention matrix of block l, of shape (B, heads, T, T). The map is R[class token,
patches]. Rows are not normalised. If the classification head also reads the distillation token, or reads the mean of
the patch tokens instead of a class token, the rows of R - I for these tokens are averaged. In this average, all patch
tokens together count as one token. (In the row of a class token, I is zero at the patches.) Because I is subtracted, a
target of zeros yields a map of exact zeros. Columns of class, distillation and register tokens are left out. The grid
of patches is upsampled to the size of the image by bilinear interpolation (`align_corners=False`).
"""

from saliency_bench.compute.classifiers.attention import recording_attention
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.explainers._flow import check_start, positive, product
from saliency_bench.explainers._gradients import derivatives
from saliency_bench.target_weights import score
from saliency_bench.types import Images, Maps, On, Target


def check(*, start: int, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    check_start("gae", start)


@explainer(
    version=2, needs="attention, gradients", passes=1, check=check, also_called=("generic attention explainability",)
)
def gae(classifier: Classifier, images: Images, target: Target, *, start: int = 0, on: On = "logit") -> Maps:
    """Return maps of the relevance that each block of a vision transformer adds to the tokens.

    The cost is one forward pass, a backward pass down to block `start`, and as much memory as a training step of the
    blocks from `start` on.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        start: Index of the first block that is included. The default 0 is also the authors' default.
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").

    Returns:
        Non-negative maps of shape (B, H, W).

    Raises:
        UserError: The network has no attention, or its attention does not cover all pairs of patches.
    """
    check(start=start)
    with recording_attention(classifier, images, start) as seen:
        total = score(classifier(images), target, on, classifier).sum()
    matrices = seen.matrices[start:]
    gradients = derivatives(classifier, total, matrices)
    return seen.maps(product(positive(g, matrix) for g, matrix in zip(gradients, matrices, strict=True)), images)
