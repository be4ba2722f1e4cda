"""What the explainers of a feature map have in common: the map with its gradient, and the cut at zero."""

import torch
from torch import Tensor

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.hooks import detached_at
from saliency_bench.errors import UserError
from saliency_bench.explainers._gradients import derivative
from saliency_bench.target import score
from saliency_bench.types import Images, Target


def activation_and_gradient(
    name: str, classifier: Classifier, images: Images, target: Target, layer: str, on: str
) -> tuple[Tensor, Tensor]:
    """A and d score / d A, both (B, C, h, w), at a layer's last call. The backward pass stops there."""
    with detached_at(classifier.module_named(layer)) as outputs:
        total = score(classifier(images), target, on).sum()
    activation = feature_map(name, classifier, layer, outputs)
    return activation.detach(), derivative(classifier, total, activation)


def feature_map(name: str, classifier: Classifier, layer: str, outputs: list[Tensor]) -> Tensor:
    """The last of a layer's outputs. Raises: UserError where there is none, or it is no feature map."""
    if not outputs:
        raise UserError(f"layer {layer} of {classifier.id} is not called in a forward pass; name another")
    if outputs[-1].ndim != 4:
        mend = "; for the tokens of a transformer use gradcam_vit or gae" if outputs[-1].ndim == 3 else ""
        shape = tuple(outputs[-1].shape)
        raise UserError(f"layer {layer} gives {shape}; {name} needs a feature map (B, C, h, w){mend}")
    return outputs[-1]


def cut_if_positive(cam: Tensor, target: Target) -> Tensor:
    """Negative values of (B, h, w) become 0 for samples whose target has no negative weight."""
    is_positive = (target >= 0).all(dim=1).view(-1, 1, 1)
    return torch.where(is_positive, cam.relu(), cam)
