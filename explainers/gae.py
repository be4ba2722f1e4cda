"""GAE, generic attention explainability (Chefer et al., 2021, ICCV): relevance that each block adds to the tokens.

    R = I;   for each block:  R = R + mean over heads of relu(d score / d A_l x A_l) R

A_l is block l's softmax(q k^T / sqrt(d)), (B, heads, T, T); map = R[class token, patches]. Rows are not normalised. A
head that reads the distillation token as well, or the mean of the patch tokens in place of a class token: the mean of
the rows of R - I that it reads (the patch tokens count as one; for a class token's row, I is zero at the patches), so
that a target of no weight gives exactly zero. Columns of class, distillation and register tokens are left out. The grid
of patches is enlarged to the image by bilinear interpolation (`align_corners=False`).
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

    One forward pass, and a backward pass down to block `start`; memory: as a training step of the blocks above it.

    Args:
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), weights over the logits.
        start: the first block that counts, from 0 (the authors' default as well).
        on: whether the target's weights apply to logits ("logit") or to probabilities ("probability").

    Returns:
        Maps (B, H, W), non-negative.

    Raises:
        UserError: The network has no attention, or its attention is not from all patches to all patches.
    """
    check(start=start)
    with recording_attention(classifier, images, start) as seen:
        total = score(classifier(images), target, on, classifier).sum()
    matrices = seen.matrices[start:]
    gradients = derivatives(classifier, total, matrices)
    return seen.maps(product(positive(g, matrix) for g, matrix in zip(gradients, matrices, strict=True)), images)
