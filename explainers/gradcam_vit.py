"""Grad-CAM on a vision transformer (Chefer et al., 2021, CVPR; P3's "GCV"): the heads' attention as feature maps.

    weight_h = mean over patches of d score / d A_h[class token, patch]      map = mean over heads of weight_h A_h

A is the last block's softmax(q k^T / sqrt(d)), (B, heads, T, T), of which the class token's row over the patches is
taken. A head that reads the distillation token as well, or the mean of the patch tokens in place of a class token: the
same of each row it reads, then the mean of these rows (the patch tokens count as one). Negative values are cut off if
and only if no weight of the sample's target is negative, as in gradcam. The grid of patches is enlarged to the image by
bilinear interpolation (`align_corners=False`); it is not normalised.
"""

from saliency_bench.compute.classifiers.attention import recording_attention
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.data.geometry import enlarge
from saliency_bench.declarations import explainer
from saliency_bench.explainers._contrast import explained_score
from saliency_bench.explainers._features import cut_if_positive
from saliency_bench.explainers._gradients import derivative
from saliency_bench.types import Images, Maps, OnWeighted, Target


@explainer(
    version=2,
    needs="attention, gradients",
    passes=1,
    signed={"on": "weighted"},
    also_called=("gcv", "vit", "transformer gradcam"),
)
def gradcam_vit(classifier: Classifier, images: Images, target: Target, *, on: OnWeighted = "logit") -> Maps:
    """Return Grad-CAM maps of a vision transformer, with the heads' attention as feature maps.

    One forward pass, and a backward pass that stops at the last block's attention; memory: the matrices of all blocks.

    Args:
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), weights over the logits.
        on: whether the target's weights apply to logits ("logit") or to probabilities ("probability"); "weighted":
            explain the classes of positive weight against all others (Wang and Wang, 2022; `_contrast.py`).

    Returns:
        Maps (B, H, W); non-negative for samples whose target has no negative weight, unless `on="weighted"`.

    Raises:
        UserError: The network has no attention, or its attention is not from all patches to all patches.
    """
    with recording_attention(classifier, images, start=-1) as seen:
        total = explained_score(classifier, images, target, on).sum()
    matrix = seen.matrices[-1]
    gradient = derivative(classifier, total, matrix)
    weight = gradient.float()[..., seen.tokens.patches.flatten()].mean(dim=-1, keepdim=True)  # (B, heads, T, 1)
    cam = seen.read((weight * matrix.detach().float()).mean(dim=1))  # (B, h, w)
    return enlarge(cut_if_positive(cam, target, on), images)
