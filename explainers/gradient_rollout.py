"""Gradient rollout (Barkan et al., 2023; P3's "Rollout"): attention rollout of positive evidence for the score.

    R = N_L ... N_1 N_0        N_l = (mean over heads of relu(d score / d A_l x A_l) + I), each row divided by its sum

A_l is block l's softmax(q k^T / sqrt(d)), (B, heads, T, T); map = R[class token, patches]. The rows of R sum to one. A
head that reads the distillation token as well, or the mean of the patch tokens in place of a class token: the mean of
the rows of R - I that it reads (the patch tokens count as one; for a class token's row, I is zero at the patches), so
that a target of no weight gives exactly zero. Columns of class, distillation and register tokens are left out. The grid
of patches is enlarged to the image by bilinear interpolation (`align_corners=False`).

Published code leaves out block 0; that is `start=1`. Here all blocks count, as in rollout. P3's repository also holds
this without the relu and from block 0, `relu=False,start=0`: signed maps. With the relu the maps are nearly those of
gae (Spearman 0.86 to 0.93 on ViTs of random weights with 12 blocks, 0.63 to 0.79 without), and P3's tables distinguish
the two clearly: its suite uses the version without the relu. The contrastive rollout of Eriksson et al. (2025), which
P3 cites, is `relu=False,on=weighted`. Their notebook also drops the lowest nine tenths of each matrix, multiplies each
matrix by the gradient of the block counted from the other end, and normalises columns instead of rows.
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

    One forward pass, and a backward pass down to block `start`; memory: as a training step of the blocks above it.

    Args:
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), weights over the logits.
        start: the first block that counts, from 0.
        relu: cut off negative products of gradient and attention; False: keep them.
        on: whether the target's weights apply to logits ("logit") or to probabilities ("probability"); "weighted":
            explain the classes of positive weight against all others (Wang and Wang, 2022; `_contrast.py`).

    Returns:
        Maps (B, H, W), non-negative for a class token unless `relu=False`.

    Raises:
        UserError: The network has no attention, or its attention is not from all patches to all patches.
    """
    check(start=start)
    with recording_attention(classifier, images, start) as seen:
        total = explained_score(classifier, images, target, on).sum()
    matrices = seen.matrices[start:]
    gradients = derivatives(classifier, total, matrices)
    weigh = positive if relu else signed
    weighted = (weigh(gradient, matrix) for gradient, matrix in zip(gradients, matrices, strict=True))
    return seen.maps(product(by_row(matrix) for matrix in weighted), images)
