"""Choose the default explainer for a network."""

import torch

from saliency_bench.compute.classifiers.attention import tokens_of
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.cuts import is_gradient_partial
from saliency_bench.compute.classifiers.layers import has_feature_maps, is_cut, last_feature_map
from saliency_bench.errors import UserError
from saliency_bench.types import Images
from saliency_bench.utils.devices import is_out_of_memory


def fitting(classifier: Classifier, images: Images) -> tuple[str, str]:
    """Return the name of a cheap explainer that works for a network, and the reason for the choice.

    The choice is gae if the network has several blocks that attend from all patches to all patches, because gae uses
    the attention in every block, not only in the last one. Otherwise, the choice is gradcam if a feature map contains
    all evidence from the image, else integrated_gradients. If there is no gradient, or it misses a part of the network,
    these explainers cannot be used, and the choice is rise.
    """
    if not _has_gradient(classifier, images):
        return "rise", "it has no gradients"
    name, why, layer = _by_gradient(classifier, images)
    module = None if layer is None else classifier.module_named(layer)
    if is_gradient_partial(classifier, images[:1], module):
        return "rise", "it computes part of its forward pass without gradients"
    return name, why


def _by_gradient(classifier: Classifier, images: Images) -> tuple[str, str, str | None]:
    """Choose as if the gradient were complete. Return (name of the explainer, reason, layer that it reads or None)."""
    if layer := classifier.layer:
        if is_cut(classifier, images, layer):
            return "gradcam", f"it was loaded with layer={layer}", layer
        return "integrated_gradients", f"its layer {layer} contains only part of the evidence", None
    if _blocks(classifier, images) > 1:
        return "gae", "it is a vision transformer", None
    if layer := last_feature_map(classifier, images):
        return "gradcam", "it has feature maps", layer
    if has_feature_maps(classifier, images):
        why = (
            "no layer contains all of the evidence (the network has several branches, or processes several views of "
            "the image)"
        )
        return "integrated_gradients", why, None
    return "integrated_gradients", "it has no feature maps, and no readable attention between patches", None


def _has_gradient(classifier: Classifier, images: Images) -> bool:
    with torch.enable_grad():
        image = images[:1].clone().requires_grad_()
        try:
            total = classifier(image).sum()
            return total.requires_grad and torch.autograd.grad(total, image, allow_unused=True)[0] is not None
        except (UserError, RuntimeError) as error:  # a pass without gradients has succeeded before
            if is_out_of_memory(error):
                raise
            return False


def _blocks(classifier: Classifier, images: Images) -> int:
    """Return the number of consecutive blocks with attention over the patches, or 0 for a network without attention."""
    try:
        return tokens_of(classifier, images).blocks
    except UserError:
        return 0
