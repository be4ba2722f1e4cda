"""Loads a classifier from a name, a folder or a module."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from saliency_bench.classifiers import checkpoints
from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.utils.devices import device_of


def load_classifier(
    model: str | Path | nn.Module,
    *,
    device: str | torch.device | None = None,
    revision: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    layer: str | None = None,
    labels: Sequence[str] | None = None,
    size: int | tuple[int, int] | None = None,
    precision: str | None = None,
    channels_last: bool | None = None,
) -> Classifier:
    """A classifier from a Hub id, a local folder, "torchvision:resnet18", or any nn.Module that returns logits.

    device: default "cuda" if available, else "cpu". revision: of a Hub id. layer: the one Grad-CAM reads.
    For an nn.Module: mean and std of its normalisation (default none: it gets images in [0, 1]), labels = class names,
    size = what `prepare` squashes images to (default: unchanged).
    precision: "fp32" (default), "bf16", or on a GPU "fp16". channels_last: the memory layout.
    Weights are read as safetensors, or with `weights_only=True`; nothing downloaded is executed.

    The model is put into evaluation mode.
    Raises: UserError for an unknown model (with the nearest names), a head without a softmax over K >= 2 classes, or an
    image processor that masks cannot follow.
    """
    target = device_of(device)
    own = (mean, std, size, labels)
    if isinstance(model, nn.Module) and not isinstance(model, Classifier):
        mean, std = (0.0,) * 3 if mean is None else mean, (1.0,) * 3 if std is None else std
        classifier = checkpoints.plain(model, mean, std, layer, labels, size)
    elif any(given is not None for given in own):
        raise UserError("mean, std, size and labels are for a plain nn.Module; a checkpoint brings its own")
    elif isinstance(model, Classifier):
        classifier = model
        if layer is not None:
            classifier.module_named(layer)
            classifier.layer = layer
    elif str(model).startswith("torchvision:"):
        classifier = checkpoints.torchvision(str(model).partition(":")[2], layer)
    else:
        classifier = checkpoints.transformers(str(model), revision, layer)
    classifier.to(target).eval()
    return classifier.computing(precision, channels_last)
