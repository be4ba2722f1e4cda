"""Load classifiers from transformers checkpoints (including timm's) and torchvision weights.

Nothing that is downloaded is executed: weights are read from safetensors files or with `weights_only=True`, and
`trust_remote_code` is always False.
"""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saliency_bench.compute.classifiers.classifier import ONE_LOGIT, Classifier
from saliency_bench.compute.classifiers.networks import channels_of
from saliency_bench.compute.classifiers.processors import frame_of, pair_of
from saliency_bench.compute.classifiers.prompts import Prompts, texts_of
from saliency_bench.compute.classifiers.sources import PROCESSORS, TOKENIZERS, ModelSource, source_of
from saliency_bench.compute.classifiers.untrusted import check_config, check_folder, check_weights, counted, room_of
from saliency_bench.compute.classifiers.zero_shot import (
    Texts,
    activation_of,
    check_given,
    is_vision_language,
    zero_shot,
)
from saliency_bench.data.geometry import Geometry, probe
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.utils.storage import storage_error

HEADLESS = "was saved without its classification head; train a new head with `saliency-bench train`"


def torchvision(name: str, layer: str | None) -> Classifier:
    """Load a torchvision model by name, with its default weights. `layer` is the layer that Grad-CAM reads."""
    from torchvision import models
    from torchvision.transforms.v2 import functional as T

    if name not in (names := models.list_models(module=models)):
        raise unknown("torchvision model", name, names)
    weights: Any = models.get_model_weights(name).DEFAULT
    try:
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"the weights of torchvision:{name} contain objects other than tensors, so they are not loaded"
        ) from error
    except (OSError, RuntimeError) as error:
        if named := storage_error(error):
            raise named from error
        raise UserError(f"the weights of torchvision:{name} could not be downloaded: {one_line(error, 200)}") from error
    # With pretrained weights, torchvision adds an input transform to these two networks, as part of the network.
    extra = {"transform_input": True, "aux_logits": True} if name in ("inception_v3", "googlenet") else {}
    model = models.get_model(name, weights=None, **extra)
    model.load_state_dict(state)
    preset = weights.transforms(mean=(0.0,) * 3, std=(1.0,) * 3)
    resize, crop = pair_of(preset.resize_size), pair_of(preset.crop_size)
    assert crop is not None
    defaults = weights.transforms()
    return checked(
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
        activation="softmax",
    )


def transformers(
    name: str,
    revision: str | None,
    layer: str | None,
    activation: str | None = None,
    prompts: Prompts | None = None,
    labels: Sequence[str] | None = None,
    device: torch.device | None = None,
) -> Classifier:
    """Load a checkpoint from a folder or the Hub.

    Args:
        name: Folder or Hub id.
        revision: Branch, tag or commit.
        layer: Layer that Grad-CAM reads.
        activation: Activation given by the user; required for a single logit.
        prompts: Prompts of a vision-language model.
        labels: Class names, if the prompts do not contain them.
        device: Device on which the text embeddings are computed.
    """
    from transformers import AutoModelForImageClassification

    source = source_of(name, revision)
    with readable(source.name):
        config = config_of(source)
        check_given(prompts, source.name, compares=is_vision_language(config))
        if prompts is not None:
            return _vision_language(source, config, layer, prompts, texts_of(prompts, labels), device)
        if config.num_labels == 0:
            raise UserError(f"{source.name} {HEADLESS}")
        if config.num_labels < 2 and activation is None:
            raise UserError(f"{source.name} {ONE_LOGIT}")
        with counted(source.name, room_of(source.folder)):
            model, loading = AutoModelForImageClassification.from_pretrained(
                source.folder, config=config, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
        processor = processor_of(source.folder, source.name)
    if loading["missing_keys"]:
        raise UserError(
            f"{source.name} has no weights for {', '.join(sorted(loading['missing_keys'])[:3])}: it {HEADLESS}"
        )
    geometry, frame, mean, std = frame_of(processor, source.name)
    return checked(
        model,
        id=source.name,
        repo=source.repo,
        revision=source.revision,
        geometry=geometry,
        frame=frame,
        mean=mean,
        std=std,
        labels=labels_of(config),
        layer=layer,
        channels=channels_of(model, source.name, geometry, mean, std),
    )


def _vision_language(
    source: ModelSource, config: Any, layer: str | None, prompts: Prompts, texts: Texts, device: torch.device | None
) -> Classifier:
    from transformers import AutoModelForZeroShotImageClassification

    with counted(source.name, room_of(source.folder)):
        model, loading = AutoModelForZeroShotImageClassification.from_pretrained(
            source.folder, config=config, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if loading["missing_keys"]:
        raise UserError(f"{source.name} lacks the weights {', '.join(sorted(loading['missing_keys'])[:3])}")
    network = zero_shot(model, tokenizer_of(source.folder, source.name), texts, source.name, device)
    geometry, frame, mean, std = frame_of(processor_of(source.folder, source.name), source.name)
    return checked(
        network,
        id=source.name,
        repo=source.repo,
        revision=source.revision,
        geometry=geometry,
        frame=frame,
        mean=mean,
        std=std,
        labels=list(texts),
        layer=layer,
        activation=activation_of(model),
        prompts=prompts,
    )


def tokenizer_of(folder: Path, name: str) -> Any:
    """Return the tokenizer of a checkpoint."""
    from transformers import AutoTokenizer

    check_folder(folder, str(folder))
    if not any((folder / file).exists() for file in TOKENIZERS):
        raise UserError(
            f"{name} has no tokenizer ({TOKENIZERS[0]}), so prompts cannot be embedded; save the tokenizer that the "
            "model was trained with to the model's folder (tokenizer.save_pretrained)"
        )
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def config_of(source: ModelSource) -> Any:
    """Return the checked config of a checkpoint.

    Raises:
        UserError: The folder has no safetensors, or `check_config` rejects the config.
    """
    from transformers import AutoConfig

    check_folder(source.folder, source.name)
    pickled = any(file.suffix in (".bin", ".pt", ".pth") for file in source.folder.iterdir())
    weights = "pickled weights (.bin, .pt) may contain code and are not loaded; " * pickled
    for pattern, fix in (
        ("config.json", "use the folder of a transformers checkpoint"),
        ("*.safetensors", f"{weights}save weights as safetensors, as save_pretrained and saliency-bench train do"),
    ):
        if not any(source.folder.glob(pattern)):
            raise UserError(f"{source.name} contains no loadable image classifier: there is no {pattern}; {fix}")
    check_config(source.folder / "config.json", source.name)
    check_weights(source.folder, source.name)
    return AutoConfig.from_pretrained(source.folder, trust_remote_code=False)


def processor_of(folder: Path, name: str) -> Any:
    """Return the image processor of a checkpoint, after checking its settings."""
    from transformers import AutoImageProcessor

    check_folder(folder, str(folder))
    try:
        return AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
    except OSError as error:
        if any((folder / file).exists() for file in PROCESSORS):
            raise
        raise UserError(
            f"{name} has no {PROCESSORS[0]}, which defines how images are resized and normalised; save the processor "
            "that the model was trained with to the model's folder (processor.save_pretrained), or pass the module to "
            "load_classifier with mean=, std= and size="
        ) from error


def labels_of(config: Any) -> list[str]:
    """Return the class names of a transformers config."""
    return [str(config.id2label[index]) for index in sorted(config.id2label)]


def checked(model: nn.Module, **settings: Any) -> Classifier:
    """Build a classifier, and check that `prepare` transforms masks in the same way as images (`probe`)."""
    probe(settings["geometry"], settings["frame"], settings["id"])
    return Classifier(model, **settings)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Convert any error raised by transformers to a one-line UserError, and silence warnings."""
    try:
        with quiet():
            yield
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"{name} needs a library that is not installed: {one_line(error, 200)}") from error
    except Exception as error:  # a downloaded file may contain anything and may cause any exception
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{name} needs Python code from its repository, and downloaded code is never executed; build the "
                "network "
                "yourself and pass the module to load_classifier"
            ) from error
        raise UserError(f"{name} contains no loadable image classifier: {one_line(error, 200)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers log only errors and show no progress bars while it reads files."""
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
