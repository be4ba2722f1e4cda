"""Create classifiers from model objects, using the image processor and class names that the objects define.

A `transformers` model has class names in `config.id2label`. Its processor is read from `name_or_path` if that is a
folder or a Hub repository with a cached snapshot. A `timm` model defines its preprocessing and class names in
`pretrained_cfg`. A `transformers` pipeline contains a processor and a model with class names. Other modules define
neither preprocessing nor class names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.nn.parameter import is_lazy

from saliency_bench.compute.classifiers import checkpoints
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.networks import Select, channels_of
from saliency_bench.compute.classifiers.processors import channels, check_sides, frame_of
from saliency_bench.compute.classifiers.prompts import Prompts, texts_of
from saliency_bench.compute.classifiers.sources import PROCESSORS, TOKENIZERS, cached_snapshots
from saliency_bench.compute.classifiers.zero_shot import activation_of, check_given, is_vision_language, zero_shot
from saliency_bench.data.geometry import Frame, Geometry, probe
from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.messages import complain
from saliency_bench.utils.source_code import code_hash

HOW_TO_GIVE = "call load_classifier(model, mean=..., std=...), or use --model ./net.py:make:mean=0.5,std=0.5"
QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torchao", "bitsandbytes")
Values = float | Sequence[float]  # one number for all channels, or one per channel


@dataclass(frozen=True)
class Given:
    """The caller's settings for a model object. None keeps the object's own value."""

    mean: Values | None = None
    std: Values | None = None
    size: int | tuple[int, int] | None = None
    labels: Sequence[str] | None = None
    logits: Select | None = None
    name: str | None = None
    prompts: Prompts | None = None


def is_pipeline(model: object) -> bool:
    """Return whether this is a transformers pipeline with a model and an image processor."""
    return isinstance(getattr(model, "model", None), nn.Module) and hasattr(model, "image_processor")


def from_object(model: Any, given: Given, layer: str | None, device: torch.device | None = None) -> Classifier:
    """Return a classifier for a module or pipeline.

    Raises:
        UserError: Mean and std are neither passed nor defined by the object.
    """
    processor = tokenizer = None
    if is_pipeline(model):
        model, processor, tokenizer = model.model, model.image_processor, getattr(model, "tokenizer", None)
    model = _bare(model)
    name = getattr(model, "original_name", type(model).__name__)  # TorchScript modules store the original class name
    _refuse(model, name, given)
    _leave_inference_mode(model)
    called = f"module:{name if given.name is None else _checked_name(given.name)}"
    compares = is_vision_language(model)
    check_given(given.prompts, name, compares=compares)
    geometry, frame, mean, std = _preprocessing(model, processor, given, name)
    if mean is None or std is None:
        raise UserError(_unknown_normalisation(model, name))
    labels, activation = (_labels(model) if given.labels is None else given.labels), None
    if given.prompts is not None:
        texts, activation = texts_of(given.prompts, given.labels), activation_of(model)
        model, labels = zero_shot(model, tokenizer or _tokenizer(model, name), texts, name, device), list(texts)
    return Classifier(
        model,
        id=called,
        geometry=geometry,
        frame=frame,
        mean=mean,
        std=std,
        labels=labels,
        layer=layer,
        activation=activation,
        prompts=given.prompts,
        channels=channels_of(model, called, geometry, mean, std),
        logits=given.logits,
    )


def _checked_name(name: object) -> str:
    """Return the user's name for a model, or raise UserError if it is too long or has special characters."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-][\w. -]{0,99}", name):
        raise UserError(f"name={name!r} is not valid; use at most 100 letters, digits, dots, dashes and spaces")
    return name


def _bare(model: nn.Module) -> nn.Module:
    """Remove wrappers that compile a network, distribute it over devices or hide its layers."""
    while True:
        inner = vars(model).get("_actual_script_module")  # set by torch.jit.trace
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        elif hasattr(model, "_orig_mod"):  # set by torch.compile
            inner = model._orig_mod
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _leave_inference_mode(model: nn.Module) -> None:
    """Replace tensors created inside torch.inference_mode() with copies, because they cannot be used for gradients.

    Raises:
        UserError: A tensor is a TorchScript weight, which cannot be replaced.
    """
    copies: dict[int, torch.Tensor] = {}  # layers may share a weight
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            if any(value.is_inference() for value in [*module.parameters(), *module.buffers()]):
                raise UserError(
                    f"{type(module).__name__} was created inside torch.inference_mode(), so its gradients cannot be "
                    "computed; create it outside inference mode"
                )
            continue
        places: list[dict[str, Any]] = [module._parameters, module._buffers, vars(module)]
        for values in places:
            for key, value in values.items():
                if not isinstance(value, torch.Tensor) or is_lazy(value) or not value.is_inference():
                    continue
                if id(value) not in copies:
                    copy = value.detach().clone()
                    is_parameter = isinstance(value, nn.Parameter)
                    copies[id(value)] = nn.Parameter(copy, value.requires_grad) if is_parameter else copy
                values[key] = copies[id(value)]


def _refuse(model: nn.Module, name: str, given: Given) -> None:
    """Raise UserError if a network cannot be benchmarked or `logits` is not a function."""
    if given.logits is not None and not callable(given.logits):
        raise UserError(
            'logits= must be a function of the model\'s output, such as lambda output: output["scores"]; '
            f"got {one_line(repr(given.logits), 80)}"
        )
    if given.logits is not None and (unhashable := code_hash(given.logits).unhashable):
        complain(
            f"logits= of {name} cannot be hashed ({unhashable}), so a later run cannot reuse or extend these results"
        )  # fmt: skip
    parts = [*model.modules(), *model.parameters()]
    quantised = next((part for part in parts if type(part).__module__.startswith(QUANTISED)), None)
    if quantised is not None or getattr(model, "is_quantized", False):
        kind = type(quantised or model).__name__
        raise UserError(
            f"{name} is quantised ({kind}) and has no gradients; pass the original network, before quantisation"
        )
    if type(model).__module__.startswith("torchvision.models.detection") or "ObjectDetection" in name:
        raise UserError(f"{name} is an object detector; use a classifier of whole images")
    if "eval" in vars(model):  # torch.export adds an `eval` that raises
        raise UserError(
            f"{name} was created by torch.export, which fixes the mode (training or evaluation) and the batch size; "
            "pass the original network"
        )
    task = re.search(r"For([A-Z]\w+)$", name)
    if task and hasattr(model, "config") and "ImageClassification" not in name and given.logits is None:
        raise UserError(
            f"{name} is not for image classification; load the checkpoint with AutoModelForImageClassification, "
            "or call load_classifier(model, logits=...) with a function of its output that returns logits (B, K)"
        )
    for key, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.device.type == "meta":
            raise UserError(f"{name} has no weights ({key} is on the meta device); load the weights first")


def _preprocessing(
    model: Any, processor: Any, given: Given, name: str
) -> tuple[Geometry, Frame, Sequence[float] | None, Sequence[float] | None]:
    """Like `frame_of`, but the caller's values override the model's. Mean and std may be None."""
    geometry: Geometry = Geometry()
    frame: Frame = as_it_is
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    is_incomplete = any(value is None for value in (given.mean, given.std, given.size))
    if is_incomplete and (processor := processor or _processor(model)) is not None:
        geometry, frame, mean, std = frame_of(processor, name)
        probe(geometry, frame, name)
    if given.size is not None:
        geometry, frame = squashed(given.size)
    mean = mean if given.mean is None else channels("mean", given.mean)
    return geometry, frame, mean, std if given.std is None else channels("std", given.std)


def as_it_is(image: Image.Image) -> torch.Tensor:
    """Convert a picture to Float (3, H, W) in [0, 1] without resizing it."""
    from torchvision.transforms.v2 import functional as T

    return T.pil_to_tensor(image).float() / 255


def squashed(size: int | tuple[int, int]) -> tuple[Geometry, Frame]:
    """Return the geometry and the frame function that squash images to a size. An int means a square."""
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2:
        raise UserError(f"size must be a number of pixels, or (height, width); got {size}")
    check_sides("size=", sides)
    height, width = sides

    def frame(image: Image.Image) -> torch.Tensor:
        return as_it_is(image.resize((width, height), Image.Resampling.BILINEAR))

    return Geometry(resize=(height, width)), frame


def _processor(model: Any) -> Any:
    config = getattr(model, "config", None)
    settings = getattr(config if hasattr(config, "pretrained_cfg") else model, "pretrained_cfg", None)
    if isinstance(settings, dict):
        if not all(settings.get(key) for key in ("mean", "std", "input_size")):
            return None  # timm would assume the values of ImageNet
        from transformers import TimmWrapperImageProcessor

        return TimmWrapperImageProcessor(settings | _built_size(model))
    if not hasattr(config, "id2label"):
        return None
    for folder in _folders(model):
        if any((folder / file).is_file() for file in PROCESSORS):
            with checkpoints.readable(model.name_or_path):
                return checkpoints.processor_of(folder, model.name_or_path)
    return None


def _tokenizer(model: Any, name: str) -> Any:
    for folder in _folders(model):
        if any((folder / file).is_file() for file in TOKENIZERS):
            with checkpoints.readable(model.name_or_path):
                return checkpoints.tokenizer_of(folder, model.name_or_path)
    raise UserError(
        f"the tokenizer of {name} is unknown; pass the folder or Hub id of its checkpoint, or its pipeline: "
        'transformers.pipeline("zero-shot-image-classification", model, tokenizer=..., image_processor=...)'
    )


def _folders(model: nn.Module) -> list[Path]:
    """Return the folders that may contain a transformers model's checkpoint: its own folder or a cached snapshot."""
    name = getattr(model, "name_or_path", None)
    if not isinstance(name, str) or not name:
        return []
    return [Path(name)] if Path(name).is_dir() else _agreeing(cached_snapshots(name))


def _built_size(model: nn.Module) -> dict[str, tuple[int, int, int]]:
    """Return the square image size set by `img_size` of a timm network, which `pretrained_cfg` does not contain.

    For other sizes timm keeps the aspect ratio and pads images. Padding cannot be applied to masks, so the caller must
    set `size=`.
    """
    patches = getattr(getattr(model, "timm_model", model), "patch_embed", None)
    size = getattr(patches, "img_size", None)
    return {"input_size": (3, *size)} if isinstance(size, tuple) and len(set(size)) == 1 else {}


def _agreeing(snapshots: list[Path]) -> list[Path]:
    """Return [one of the snapshots] if all of them have identical processors, else [].

    A model object does not name the snapshot it was loaded from.
    """
    read = (*PROCESSORS, *TOKENIZERS)
    contents = {tuple((s / f).read_bytes() if (s / f).is_file() else b"" for f in read) for s in snapshots}
    return snapshots[:1] if len(contents) == 1 else []


def _labels(model: Any) -> list[str] | None:
    config = getattr(model, "config", None)
    if isinstance(getattr(config, "id2label", None), dict):
        return checkpoints.labels_of(config)
    settings = getattr(model, "pretrained_cfg", None)
    if not isinstance(settings, dict):
        return None
    from transformers import TimmWrapperConfig

    # The class names of the same network loaded as a checkpoint: names in the config, or ImageNet's names.
    names = checkpoints.labels_of(TimmWrapperConfig.from_dict({**settings, "pretrained_cfg": dict(settings)}))
    # Weights without a head, such as DINO's, have no classes, so the head of the object is new.
    has_names = bool(names) and ("label_names" in settings or not names[0].startswith("LABEL_"))
    return names if has_names and len(names) == getattr(model, "num_classes", None) else None


def _unknown_normalisation(model: nn.Module, name: str) -> str:
    line = (
        f"the mean and standard deviation that {name} was trained with are unknown; "
        f"{HOW_TO_GIVE} (mean=0, std=1 if it takes images in [0, 1])"
    )
    if type(model).__module__.startswith("torchvision.models"):
        return f"{line}; torchvision's own weights use mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), size=224"
    origin = getattr(model, "name_or_path", None)
    if not isinstance(origin, str):
        return line
    return f"{line}, or the folder or Hub id of its checkpoint" + (
        f"; no image processor for {origin} was found on this machine" if origin else ""
    )
