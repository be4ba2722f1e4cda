"""Shared code of explainers that use a feature map: compute the map and its gradient, and remove negative values."""

import torch
from torch import Tensor

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.cuts import check_gradient
from saliency_bench.compute.classifiers.layers import MapLayout, cam_layer, check_cut, detached_at, layout_of
from saliency_bench.errors import UserError
from saliency_bench.explainers._contrast import explained_score
from saliency_bench.explainers._gradients import derivative
from saliency_bench.types import Images, Target


def activation_and_gradient(
    name: str, classifier: Classifier, images: Images, target: Target, layer: str | None, on: str
) -> tuple[Tensor, Tensor]:
    """Return the feature map A and d score / d A at the last call of a layer, both of shape (B, C, h, w).

    The backward pass stops at the layer. The default `layer` is Grad-CAM's layer.
    """
    layer = layer or cam_layer(classifier, images)
    with detached_at(classifier.module_named(layer)) as outputs:
        total = explained_score(classifier, images, target, on).sum()
    layout = feature_layout(name, classifier, images, layer, outputs)
    check_gradient(classifier, images, classifier.module_named(layer))
    gradient = derivative(classifier, total, outputs[-1])
    return layout.channels_first(outputs[-1].detach()), layout.channels_first(gradient)


def feature_layout(name: str, classifier: Classifier, images: Images, layer: str, outputs: list[Tensor]) -> MapLayout:
    """Return the layout of the feature map in the last output of a layer.

    Raises:
        UserError: The layer is not called, has no feature map, or cannot be explained (`check_cut`).
    """
    if not outputs:
        raise UserError(f"layer {layer} of {classifier.id} is not called in a forward pass; choose a different layer")
    check_cut(classifier, images, layer, outputs)
    layout = layout_of(classifier, images, layer)
    if layout is None:
        fix = "; for the tokens of a transformer, use gradcam_vit or gae" if outputs[-1].ndim == 3 else ""
        shape = tuple(outputs[-1].shape)
        raise UserError(
            f"layer {layer} returns a tensor of shape {shape}; {name} needs a feature map (B, C, h, w){fix}"
        )
    return layout


def cut_if_positive(cam: Tensor, target: Target, on: str = "logit") -> Tensor:
    """Set negative values of maps (B, h, w) to 0 for samples without a negative weight in the target.

    If `on` is "weighted" (a weighted contrast), all values are kept.
    """
    if on == "weighted":
        return cam
    is_positive = (target >= 0).all(dim=1).view(-1, 1, 1)
    return torch.where(is_positive, cam.relu(), cam)
