"""Modules of a network that output feature maps, found by one forward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.types import Images


def cam_layer(classifier: Classifier, images: Images) -> str:
    """The layer Grad-CAM reads: the classifier's own, or the last convolutional block.

    That is the last module that gives (B, C, h, w) with h * w > 1; pooling, dropout and identity do not count.
    Raises: UserError for a network whose last features are tokens.
    """
    name = classifier.layer or last_feature_map(classifier, images)
    if name is None:
        raise UserError(
            f"no convolutional block found in {classifier.id} (a transformer?); name a layer with layer=..., "
            "or use gradcam_vit or gae for a transformer, or an explainer that only uses outputs, such as rise"
        )
    return name


def last_feature_map(classifier: Classifier, images: Images, pixels: int = 1) -> str | None:
    """Name of the last, outermost module that gives a map (B, C, h, w) of more than `pixels`, if no tokens come after.

    What lies within a block whose own map is no larger than `pixels` (the first convolutions of one that halves it)
    does not count: other branches of the block go past it. A Sequential, or what holds the first convolution as well,
    is no block but a chain.
    """
    outputs = _outputs(classifier, images[:1])
    modules = dict(classifier.model.named_modules())
    first = next((name for name, _ in outputs if isinstance(modules[name], nn.Conv2d)), "")
    small = tuple(
        f"{name}." for name, output in outputs
        if output.ndim == 4 and output[0, 0].numel() <= pixels
        and not isinstance(modules[name], nn.Sequential) and not first.startswith(f"{name}.")
    )  # fmt: skip
    last: str | None = None
    for name, output in outputs:
        if output.ndim == 4 and output[0, 0].numel() > pixels and not name.startswith(small):
            last = name if _is_upright(output, images) else None
        elif output.ndim == 3:
            last = None
    return last


def last_convolution(classifier: Classifier, images: Images) -> int | None:
    """Pixels h * w of the last convolution's output, ignoring outputs of one pixel, which are linear layers."""
    modules = dict(classifier.model.named_modules())
    sizes = [
        output[0, 0].numel() for name, output in _outputs(classifier, images[:1])
        if isinstance(modules[name], nn.Conv2d) and output[0, 0].numel() > 1
    ]  # fmt: skip
    return sizes[-1] if sizes else None


def _outputs(classifier: Classifier, image: Images) -> list[tuple[str, Tensor]]:
    """The outputs of modules in a forward pass of one image, in the order in which they finish: tensors without memory.

    Modules that only pool or drop do not count. Recorded once per image size.
    """
    key = (image.shape[2:], tuple(map(id, classifier.model.modules())))
    if key not in classifier._seen:
        classifier._seen[key] = _recorded(classifier, image)
    return classifier._seen[key]


def _recorded(classifier: Classifier, image: Images) -> list[tuple[str, Tensor]]:
    outputs: list[tuple[str, Tensor]] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not type(module).__name__.startswith(_PASSIVE):
                outputs.append((name, output.to("meta")))

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in classifier.model.named_modules() if name]
    try:
        with torch.no_grad():
            classifier(image)
        classifier.passes -= len(image)
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def _is_upright(output: Tensor, image: Images) -> bool:
    """Whether the last two axes have the image's proportions, up to rounding: (B, C, h, w) and not (B, h, w, C)."""
    (tall, wide), (height, width) = output.shape[2:], image.shape[2:]
    return abs(wide - width * tall / height) <= 2


_PASSIVE = (
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
    "AvgPool",
    "MaxPool",
    "Dropout",
    "DropPath",
    "Identity",
    "SelectAdaptive",
)
