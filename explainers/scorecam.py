"""Score-CAM (Wang et al., 2020): feature maps weighted by the scores of the images that they mask.

    M_c = A_c upsampled to the image, min-max scaled to [0, 1]        weight = softmax over c of score(x * M_c)
    map = sum_c weight_c A_c

A is the feature map that gradcam uses, of shape (B, C, h, w). Masked pixels of the image become zero after
normalisation; a constant channel masks the whole image. The paper first subtracts the score of a baseline image, which
does not change a softmax. Negative values of the map are set to 0 if and only if no weight of the sample's target is
negative. The map is upsampled bilinearly and not normalised. For a target of zeros (a contrast of a class with itself),
all channels have equal weights, so the map is their mean, not zero.

See docs/other_packages.md for the definitions in other packages. Each sample needs C + 1 forward passes for C channels.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.layers import cam_layer, detached_at
from saliency_bench.compute.classifiers.passes import scores_of
from saliency_bench.data.geometry import enlarge
from saliency_bench.declarations import explainer
from saliency_bench.explainers._checks import check_batch_size
from saliency_bench.explainers._features import cut_if_positive, feature_layout
from saliency_bench.types import Images, Maps, On, Target


def passes(options: dict, height: int, width: int, channels: int = 512) -> int:
    """Return the number of forward passes for one image: one per channel, and one that computes the channels.

    The layer has 512 channels in ResNet-18 and 2048 in ResNet-50.
    """
    return channels + 1


def check(*, batch_size: int | None = None, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    check_batch_size("scorecam", batch_size)


@explainer(
    version=4,
    needs="activations, outputs",
    passes=passes,
    check=check,
    elsewhere=(
        (
            "pytorch-grad-cam",
            'ScoreCAM(model=model, target_layers=[classifier.module_named("{layer}")])'
            "(x, [ClassifierOutputTarget(label)] * len(x))",
        ),
    ),
)
def scorecam(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    layer: str | None = None,
    align_corners: bool = False,
    on: On = "logit",
    batch_size: int | None = None,
) -> Maps:
    """Return the sum of feature maps, weighted by the scores of the images that they mask.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        layer: Dotted name of a module with a feature map. None: the last module whose feature map contains all
            evidence.
        align_corners: Whether corner pixels are aligned when masks are upsampled.
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").
        batch_size: Number of pictures in memory and in one forward pass. None: for images of 224 x 224 pixels, 10 on a
            CPU and 256 on a GPU.

    Returns:
        Maps of shape (B, H, W), non-negative for samples whose target has no negative weight.

    Raises:
        UserError: The layer does not exist, has no feature map or runs on several views of an image, or no layer
            contains all evidence.
    """
    size = images.shape[2:]
    layer = layer or cam_layer(classifier, images)
    with torch.no_grad(), detached_at(classifier.module_named(layer)) as outputs:
        classifier(images)
    layout = feature_layout("scorecam", classifier, images, layer, outputs)
    activation = layout.channels_first(outputs[-1].detach())  # (B, C, h, w)

    def masked(samples: Tensor, pictures: Tensor) -> Images:
        """Return the images masked by their upsampled channels."""
        chosen = activation[samples, pictures][:, None]  # (n, 1, h, w)
        mask = F.interpolate(chosen, size=size, mode="bilinear", align_corners=align_corners)
        low, high = mask.amin(dim=(2, 3), keepdim=True), mask.amax(dim=(2, 3), keepdim=True)
        mask = (mask - low) / (high - low).clamp_min(torch.finfo(mask.dtype).tiny)
        return classifier.mean + mask * (images[samples] - classifier.mean)

    scores = scores_of(classifier, images, target, activation.shape[1], masked, on, batch_size)
    cam = torch.einsum("bc,bchw->bhw", scores.softmax(dim=1), activation)  # (B, h, w)
    return enlarge(cut_if_positive(cam, target), images)
