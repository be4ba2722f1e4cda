"""Grad-CAM on a vision transformer (Chefer et al., 2021, CVPR): the heads' attention as feature maps.

    weight_h = mean over patches of d score / d A_h[class token, patch]      map = mean over heads of weight_h A_h

A = softmax(q k^T / sqrt(d)) is the attention matrix of the last block, of shape (B, heads, T, T); the map uses the
class token's row over the patches. If the classification head also reads the distillation token, or reads the mean of
the patch tokens instead of a class token, the maps from the rows of these tokens are averaged. In this average, all
patch tokens together count as one token. As in gradcam, negative values are set to 0 if and only if no weight of the
sample's target is negative. The grid of patches is upsampled to the size of the image by bilinear interpolation
(`align_corners=False`), without normalisation. Elisha et al. (2025) call this method GCV.
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

    The cost is one forward pass, a backward pass that stops at the last block's attention, and memory for the matrices
    of all blocks.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability"). "weighted":
            explain the classes with a positive weight against all other classes (Wang and Wang, 2022; `_contrast.py`).

    Returns:
        Maps of shape (B, H, W), non-negative for samples whose target has no negative weight, unless `on="weighted"`.

    Raises:
        UserError: The network has no attention, or its attention does not cover all pairs of patches.
    """
    with recording_attention(classifier, images, start=-1) as seen:
        total = explained_score(classifier, images, target, on).sum()
    matrix = seen.matrices[-1]
    gradient = derivative(classifier, total, matrix)
    weight = gradient.float()[..., seen.tokens.patches.flatten()].mean(dim=-1, keepdim=True)  # (B, heads, T, 1)
    cam = seen.read((weight * matrix.detach().float()).mean(dim=1))  # (B, h, w)
    return enlarge(cut_if_positive(cam, target, on), images)
