"""Gradient rollout (Barkan et al., 2023): attention rollout of positive evidence for the score.

    R = N_L ... N_1 N_0        N_l = (mean over heads of relu(d score / d A_l x A_l) + I), each row divided by its sum

A_l = softmax(q k^T / sqrt(d)) is the attention matrix of block l, of shape (B, heads, T, T). The map is R[class token,
patches]. The rows of R sum to one. If the classification head also reads the distillation token, or reads the mean of
the patch tokens instead of a class token, the rows of R - I for these tokens are averaged. In this average, all patch
tokens together count as one token. (In the row of a class token, I is zero at the patches.) Because I is subtracted, a
target of zeros yields a map of exact zeros. Columns of class, distillation and register tokens are left out. The grid
of patches is upsampled to the size of the image by bilinear interpolation (`align_corners=False`).

Published code leaves out block 0, as with `start=1`. Here all blocks are included by default, as in rollout. The
repository of Elisha et al. (2025) also contains a version without the relu and with block 0, which yields signed maps:
`relu=False,start=0`. On ViTs with random weights and 12 blocks, the Spearman correlation with the maps of gae is 0.86
to 0.93 with the relu, and 0.63 to 0.79 without. The tables of Elisha et al. clearly distinguish gae from this method,
which they call Rollout, so the suite for their paper uses the version without the relu. The contrastive rollout of
Eriksson et al. (2025), which Elisha et al. cite, corresponds to `relu=False,on=weighted`. The notebook of Eriksson et
al. also drops the lowest nine tenths of the values in each matrix, multiplies each matrix by the gradient of the block
counted from the other end, and normalises columns instead of rows.
"""

from saliency_bench.compute.classifiers.attention import recording_attention
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.explainers._contrast import explained_score
from saliency_bench.explainers._flow import by_row, check_start, positive, product, signed
from saliency_bench.explainers._gradients import derivatives
from saliency_bench.types import Images, Maps, OnWeighted, Target


def check(*, start: int, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    check_start("gradient_rollout", start)


@explainer(version=2, needs="attention, gradients", passes=1, signed={"relu": False}, check=check)
def gradient_rollout(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    start: int = 0,
    relu: bool = True,
    on: OnWeighted = "logit",
) -> Maps:
    """Return attention rollout weighted by the gradients of the score.

    The cost is one forward pass and a backward pass down to block `start`. The method needs as much memory as a
    training step of the blocks from `start` on.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        start: Index of the first block that is included, starting at 0.
        relu: Whether to set negative products of gradient and attention to 0.
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability"). "weighted":
            explain the classes with a positive weight against all other classes (Wang and Wang, 2022; `_contrast.py`).

    Returns:
        Maps of shape (B, H, W), non-negative for a class token unless `relu=False`.

    Raises:
        UserError: The network has no attention, or its attention does not cover all pairs of patches.
    """
    check(start=start)
    with recording_attention(classifier, images, start) as seen:
        total = explained_score(classifier, images, target, on).sum()
    matrices = seen.matrices[start:]
    gradients = derivatives(classifier, total, matrices)
    weigh = positive if relu else signed
    weighted = (weigh(gradient, matrix) for gradient, matrix in zip(gradients, matrices, strict=True))
    return seen.maps(product(by_row(matrix) for matrix in weighted), images)
