"""New transformers checkpoints: a network with one logit per class, its image processor, and the folder of both.

The processor squashes images to a square, so that no mask loses foreground to a crop.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from saliency_bench.classifiers import checkpoints
from saliency_bench.errors import UserError
from saliency_bench.utils.files import write_json

WEIGHTS = "model.safetensors"
LOG = "training_log.json"


def new_network(model: Any, names: list[str], size: int) -> tuple[Any, Any]:
    """A network with one logit per class name, and the processor that squashes images to size x size.

    model: a Hub id or folder of pretrained weights, whose head is replaced; or a transformers config (an object or a
    `config.json`), which starts from random weights.
    Raises: UserError for a model that cannot be loaded, or that transformers cannot save.
    """
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification, ViTImageProcessor

    id2label = dict(enumerate(names))
    label2id = {name: index for index, name in id2label.items()}
    if str(model).startswith("torchvision:"):
        raise UserError(
            f"{model} cannot be saved as a transformers checkpoint; train a Hub id, for example timm/vgg16.tv_in1k"
        )
    is_config = hasattr(model, "model_type") or str(model).endswith("config.json")
    try:
        with checkpoints.quiet():
            if is_config:
                config = model if hasattr(model, "model_type") else AutoConfig.from_pretrained(str(model))
                config.id2label, config.label2id = id2label, label2id
                network = AutoModelForImageClassification.from_config(config)
                return network, ViTImageProcessor(size={"height": size, "width": size})
            pretrained = AutoImageProcessor.from_pretrained(str(model))
            network = AutoModelForImageClassification.from_pretrained(
                str(model), id2label=id2label, label2id=label2id, ignore_mismatched_sizes=True, use_safetensors=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise checkpoints.loading_error(str(model), error) from error
    if hasattr(pretrained, "val_transforms"):
        return network, _timm_processor(network, pretrained, size)
    processor = ViTImageProcessor(
        size={"height": size, "width": size}, image_mean=pretrained.image_mean, image_std=pretrained.image_std
    )
    return network, processor


def _timm_processor(network: nn.Module, pretrained: Any, size: int) -> Any:
    """The timm wrapper keeps the processor's settings in the model's config."""
    settings = {"input_size": [3, size, size], "crop_mode": "squash", "crop_pct": 1.0}
    config: Any = network.config
    config.pretrained_cfg = {**pretrained.data_config, **(config.pretrained_cfg or {}), **settings}
    return type(pretrained)(config.pretrained_cfg)


def save_checkpoint(out: Path, network: Any, processor: Any, log: dict[str, Any]) -> None:
    """Write the checkpoint folder atomically. Raises: UserError where it cannot be written."""
    for stale in out.parent.iterdir():  # left by a training that was killed while writing
        if stale.name.startswith(f".{out.name}.") and stale.name.endswith(".tmp"):
            shutil.rmtree(stale, ignore_errors=True) if stale.is_dir() else stale.unlink()
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with checkpoints.quiet():
            network.save_pretrained(temporary)
            processor.save_pretrained(temporary)
        write_json(temporary / LOG, log)
        if out.is_dir():
            out.rmdir()
        temporary.rename(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; free some space and start again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
