"""Classifiers from transformers checkpoints (including timm's), torchvision weights and plain modules."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import get_token
from PIL import Image
from safetensors import SafetensorError
from torch import nn

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.geometry import Geometry, probe
from saliency_bench.classifiers.processors import frame_of, pair_of
from saliency_bench.errors import UserError, unknown
from saliency_bench.hub.errors import reason, status_of

# Checkpoints the papers use, for `list models` and for suggestions.
KNOWN = (
    "facebook/convnext-base-224",
    "facebook/deit-small-patch16-224",
    "google/vit-base-patch16-224",
    "microsoft/resnet-18",
    "microsoft/resnet-50",
    "timm/inception_v3.tv_in1k",
    "timm/vgg16.tv_in1k",
    "timm/vgg19.tv_in1k",
    "timm/vit_small_patch16_224.augreg_in21k_ft_in1k",
)


def plain(
    model: nn.Module,
    mean: Sequence[float],
    std: Sequence[float],
    layer: str | None,
    labels: Sequence[str] | None,
    size: int | tuple[int, int] | None,
) -> Classifier:
    from torchvision.transforms.v2 import functional as T

    size = (size, size) if isinstance(size, int) else size
    for name, values in (("mean", mean), ("std", std)):
        if np.shape(values) != (3,):
            raise UserError(f"{name} needs three numbers, one per channel; got {values}")

    def frame(image: Image.Image) -> torch.Tensor:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR) if size else image
        return T.pil_to_tensor(image).float() / 255

    return Classifier(
        model,
        id=f"module:{type(model).__name__}",
        geometry=Geometry(resize=size),
        frame=frame,
        mean=mean,
        std=std,
        labels=labels,
        layer=layer,
    )


def torchvision(name: str, layer: str | None) -> Classifier:
    from torchvision import models
    from torchvision.transforms.v2 import functional as T

    if name not in (known := models.list_models(module=models)):
        raise unknown("torchvision model", name, known)
    weights: Any = models.get_model_weights(name).DEFAULT
    try:
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(f"the weights of torchvision:{name} contain more than tensors and are not loaded") from error
    except (OSError, RuntimeError) as error:
        raise UserError(f"the weights of torchvision:{name} could not be downloaded: {_first_line(error)}") from error
    # Pretrained, torchvision builds these two networks with an input transform, which is part of the network.
    extra = {"transform_input": True, "aux_logits": True} if name in ("inception_v3", "googlenet") else {}
    model = models.get_model(name, weights=None, **extra)
    model.load_state_dict(state)
    preset = weights.transforms(mean=(0.0,) * 3, std=(1.0,) * 3)
    resize, crop = pair_of(preset.resize_size), pair_of(preset.crop_size)
    assert crop is not None
    defaults = weights.transforms()
    return _checked(
        model,
        id=f"torchvision:{name}",
        revision=str(weights),
        geometry=Geometry(
            resize, crop if isinstance(crop, tuple) else (crop, crop), "round", preset.interpolation.value
        ),
        frame=lambda image: preset(T.pil_to_tensor(image)) if preset.antialias is None else preset(image),
        mean=defaults.mean,
        std=defaults.std,
        labels=weights.meta["categories"],
        layer=layer,
    )


def transformers(name: str, revision: str | None, layer: str | None) -> Classifier:
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification

    try:
        with quiet():
            config = AutoConfig.from_pretrained(name, revision=revision)
            _refuse_other_heads(name, config)
            model, loading = AutoModelForImageClassification.from_pretrained(
                name, revision=revision, use_safetensors=True, output_loading_info=True
            )
            processor = AutoImageProcessor.from_pretrained(name, revision=revision)
    except ImportError as error:
        raise UserError(f"{name} needs a library that is not installed: {_first_line(error)}") from error
    except UserError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise loading_error(name, error) from error
    if loading["missing_keys"]:
        raise UserError(
            f"{name} has no weights for {', '.join(sorted(loading['missing_keys'])[:3])}: it was saved without its "
            "classification head; train one with: saliency-bench train"
        )
    geometry, frame, mean, std = frame_of(processor, name)
    return _checked(
        model,
        id=name,
        revision=getattr(config, "_commit_hash", None),
        geometry=geometry,
        frame=frame,
        mean=mean,
        std=std,
        labels=[str(config.id2label[index]) for index in sorted(config.id2label)],
        layer=layer,
    )


def _checked(model: nn.Module, **settings: Any) -> Classifier:
    """A classifier whose masks follow its images. Raises: UserError of `probe`."""
    probe(settings["geometry"], settings["frame"], settings["id"])
    return Classifier(model, **settings)


def _refuse_other_heads(name: str, config: Any) -> None:
    if getattr(config, "problem_type", None) == "multi_label_classification":
        raise UserError(f"{name} has a multi-label head; maps are defined here for a softmax over K >= 2 classes")
    if config.num_labels < 2:
        raise UserError(f"{name} has a single-logit head; maps are defined here for a softmax over K >= 2 classes")


def loading_error(name: str, error: Exception) -> UserError:
    """A readable error for one raised while loading a checkpoint, with the nearest names."""
    path = Path(name)
    if path.is_dir():
        return UserError(f"the folder {name} holds no loadable image classifier: {_first_line(error)}")
    if status_of(error) not in (None, 401, 404):
        return UserError(reason(error, name, get_token()))
    siblings = [str(config.parent) for config in path.parent.glob("*/config.json")]
    near = [other for other in get_close_matches(name, [*KNOWN, *siblings], n=3, cutoff=0.6) if other != name]
    fix = f"did you mean {' or '.join(near)}?" if near else "give a Hub id, a folder or torchvision:NAME"
    return UserError(
        f"unknown model '{name}': not a local folder and not found on the Hub ({_first_line(error)[:120]}); {fix}"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers logs only errors and shows no progress bars for reading files."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
