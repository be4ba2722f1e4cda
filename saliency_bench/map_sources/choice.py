"""The explainer for a network that nobody chose one for."""

import torch

from saliency_bench.classifiers.attention import tokens_of
from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.layers import has_feature_maps, is_cut, last_feature_map
from saliency_bench.errors import UserError
from saliency_bench.types import Images
from saliency_bench.utils.devices import is_out_of_memory


def fitting(classifier: Classifier, images: Images) -> tuple[str, str]:
    """Return (the name of an explainer that is defined for a network and takes one pass or few, why it is this one).

    gae where several blocks attend from all patches to all patches: it follows the attention of every block, and not
    that of the last one alone; gradcam where there is a feature map that holds all evidence; integrated_gradients of
    any other network; rise where no gradient comes back.
    """
    if not _has_gradient(classifier, images):
        return "rise", "it has no gradients"
    if classifier.layer is not None:
        if is_cut(classifier, images, classifier.layer):
            return "gradcam", f"it was loaded with layer={classifier.layer}"
        return "integrated_gradients", f"its layer {classifier.layer} holds only part of the evidence"
    if _blocks(classifier, images) > 1:
        return "gae", "it is a vision transformer"
    if last_feature_map(classifier, images) is not None:
        return "gradcam", "it has feature maps"
    if has_feature_maps(classifier, images):
        return "integrated_gradients", "no layer holds all evidence (it has several branches, or views of the image)"
    return "integrated_gradients", "it has neither feature maps nor attention between patches that can be read"


def _has_gradient(classifier: Classifier, images: Images) -> bool:
    """Return whether a gradient comes back from the logits."""
    with torch.enable_grad():
        image = images[:1].clone().requires_grad_()
        try:
            total = classifier(image).sum()
            return total.requires_grad and torch.autograd.grad(total, image, allow_unused=True)[0] is not None
        except (UserError, RuntimeError) as error:  # a pass without gradients went well
            if is_out_of_memory(error):
                raise
            return False


def _blocks(classifier: Classifier, images: Images) -> int:
    """Number of consecutive attentions over the patches; 0 of a network without."""
    try:
        return tokens_of(classifier, images).blocks
    except UserError:
        return 0
