"""Load a classifier from a name, a folder or a model object."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saliency_bench.compute.classifiers import checkpoints, model_objects, own_networks
from saliency_bench.compute.classifiers.classifier import Classifier, check_finite
from saliency_bench.compute.classifiers.networks import Select
from saliency_bench.compute.classifiers.prompts import read_prompts, texts_of
from saliency_bench.compute.classifiers.zero_shot import check_given
from saliency_bench.errors import UserError
from saliency_bench.utils.devices import device_of
from saliency_bench.utils.interrupts import handlers_end_work
from saliency_bench.utils.untouched import untouched


@handlers_end_work()
@untouched()
def load_classifier(
    model: Any,
    *,
    device: str | torch.device | None = None,
    revision: str | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layer: str | None = None,
    labels: Sequence[str] | None = None,
    size: int | tuple[int, int] | None = None,
    precision: str | None = None,
    channels_last: bool | None = None,
    compile: bool | None = None,
    activation: str | None = None,
    logits: Select | None = None,
    name: str | None = None,
    prompts: Any = None,
) -> Classifier:
    """Load a classifier from a Hub id, a local folder, "torchvision:resnet18", or a model object that returns logits.

    Weights are read as safetensors, or with `weights_only=True`; nothing downloaded is executed. If a folder with
    exactly this name exists, it is used, and a message is printed. "hub:owner/name" always means the model on the Hub.
    "owner/name@revision" selects one of the model's commits or branches.

    `model` may also be a string for your own network: "./net.py:make" (a function or class that returns a network),
    "timm:resnet18:weights=best.safetensors", "torchvision:resnet18:weights=best.pth" or "./net.pt" (TorchScript).
    `mean`, `std`, `size`, `labels` and `name` may follow as options (`compute.classifiers.own_networks`).

    A model object is any nn.Module, or a `transformers` pipeline. Normalisation, resizing and class names of a
    `transformers` or `timm` model are read from the model (see `model_objects`). For any other module, pass `mean` and
    `std`. Arguments override the settings of the object. A module with one channel receives grey images, and a message
    is printed. Wrappers of torch.compile and DataParallel are removed. A TorchScript network has outputs and gradients,
    but no layers that explainers could read.

    The model is put into evaluation mode. A `Classifier` is returned unchanged. If different settings are
    passed, a second classifier with the same weights is returned, and the given classifier keeps its settings.

    Args:
        model: Name, folder or object.
        device: By default "cuda" if available, else "cpu"; a model object stays on its current device.
        revision: Branch, tag or commit of a Hub id.
        mean: Mean of the normalisation applied before a module, one number or one per channel. Use mean=0, std=1 for a
            module that takes images in [0, 1].
        std: Standard deviation of the normalisation, one number or one per channel.
        layer: Layer that Grad-CAM reads.
        labels: Names of the classes.
        size: Size to which `prepare` squashes images; by default images keep their size.
        precision: "fp32" (default), "bf16", or on a GPU "fp16" or "tf32".
        channels_last: Whether to run the network in channels-last memory layout.
        compile: Whether methods that only need the outputs use a network compiled by torch.compile. Compiling takes
            seconds for each image size and needs a compiler (Triton on a GPU, else g++ or another C++ compiler).
        activation: "softmax", or "sigmoid" for multi-label and single-logit heads. The default is the activation in the
            checkpoint's config, else softmax (`classifier.assumed` is then true).
        logits: Function that extracts the logits (B, K) from the module's output if the output contains more:
            logits=lambda out: out["scores"].
        name: Name of a module in results and reports, instead of the name of its class.
        prompts: Texts with which a vision-language model (CLIP, SigLIP) compares images: templates such as ["a photo of
            a {}", "a drawing of a {}"], where {} is replaced by each of `labels`; {label: [texts]}; or a file with
            either form. The normalised embeddings of all texts of a class are averaged. The logits are the model's own
            similarities. The default activation is softmax; for SigLIP it is sigmoid.

    Raises:
        UserError: The model is unknown (the message suggests names), mean and std are unknown, weights are not finite,
            there is a single logit without an activation, or the image processor has a step that cannot be applied to
            masks.
    """
    # None leaves a model object on its device.
    target = None if device is None and not isinstance(model, str | Path) else device_of(device)
    if prompts is not None:
        labels = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else labels
        prompts = read_prompts(prompts, labels)
        texts = texts_of(prompts, labels)  # raises an error before anything is loaded
        # With a single logit the classifier has two class names, which differ from the single given name.
        prompts = texts if len(texts) == 1 else prompts
    given = model_objects.Given(mean, std, size, labels, logits, name, prompts)
    if isinstance(model, str | Path) and own_networks.is_own(str(model)):
        _refuse(None, revision, "")
        model, written = own_networks.opened(str(model))
        arguments = {key: value for key, value in vars(given).items() if value is not None}
        given = model_objects.Given(**(written | arguments))
    if isinstance(model, Classifier):
        _refuse(given, revision, "a Classifier already has these settings, so leave them out")
        return model.variant(layer, precision, channels_last, target, activation, compile).eval()
    if isinstance(model, nn.Module) or model_objects.is_pipeline(model):
        _refuse(None, revision, "")
        classifier = model_objects.from_object(model, given, layer, target)
    elif isinstance(model, str | Path):
        of_checkpoint = given if prompts is None else replace(given, prompts=None, labels=None)
        _refuse(of_checkpoint, None, "a checkpoint already has these settings, so leave them out")
        classifier = _named(str(model), revision, layer, activation, given, target)
    elif isinstance(model, Mapping) and any(isinstance(value, torch.Tensor) for value in model.values()):
        raise UserError("these are weights without a network; pass the network itself, after load_state_dict(...)")
    else:
        raise UserError(
            f"{type(model).__name__} is not a classifier; pass a Hub id, a folder, torchvision:NAME, or a torch module "
            "(to pass a function or a model from another library, wrap it in a module whose forward calls it)"
        )
    check_finite(classifier.model, classifier.id)
    if activation is not None:
        classifier.activate(activation)
    if isinstance(prompts, dict) and len(prompts) == 1 and classifier.activation == "softmax":
        raise UserError(f"{classifier.id} has only one class, whose softmax is always 1; add at least one other class")
    return classifier.to(target or classifier.place).eval().computing(precision, channels_last, compile)


def _named(
    name: str,
    revision: str | None,
    layer: str | None,
    activation: str | None,
    given: model_objects.Given,
    device: torch.device | None,
) -> Classifier:
    if name.startswith("torchvision:"):
        _refuse(None, revision, "")
        check_given(given.prompts, name, compares=False)
        return checkpoints.torchvision(name.partition(":")[2], layer)
    return checkpoints.transformers(name, revision, layer, activation, given.prompts, given.labels, device)


def _refuse(given: model_objects.Given | None, revision: str | None, reason: str) -> None:
    """Raise UserError if a setting applies only to torch modules or only to Hub ids. `reason` ends the message."""
    if given is not None and any(value is not None for value in vars(given).values()):
        raise UserError(
            f"mean=, std=, size=, labels=, prompts=, logits= and name= apply only to a torch module; {reason}"
        )
    if revision is not None:
        raise UserError(f"revision={revision} applies only to a Hub id; remove it")
