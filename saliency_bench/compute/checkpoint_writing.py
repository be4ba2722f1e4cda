"""Write transformers checkpoints. A checkpoint is a folder with a network (one logit per class) and an image processor.

The processor squashes images to a square instead of cropping them, so that no part of an object is cut off.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from torch import nn

from saliency_bench.compute.classifiers import checkpoints
from saliency_bench.compute.classifiers.classifier import Classifier, check_finite
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.classifiers.sources import ModelSource, source_of
from saliency_bench.compute.classifiers.untrusted import check_config, counted, room_of
from saliency_bench.errors import UserError
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.storage import rename, storage_error

WEIGHTS = "model.safetensors"
LOG = "training_log.json"


def start_of(model: Any) -> Any:
    """Find the pretrained weights for a Hub id or folder. A transformers config is returned unchanged.

    Raises:
        UserError: The model cannot be found, or transformers cannot save it.
    """
    if str(model).startswith("torchvision:"):
        raise UserError(
            f"{model} cannot be saved as a transformers checkpoint; start from a Hub id, for example timm/vgg16.tv_in1k"
        )
    is_config = hasattr(model, "model_type") or str(model).endswith("config.json")
    return model if is_config or isinstance(model, ModelSource) else source_of(str(model))


def base_of(model: object) -> Classifier:
    """Load the checkpoint that a model was trained from. It is loaded on the CPU.

    The training log in the model's folder contains the name of the checkpoint.

    Raises:
        UserError: `model` is not the folder of a trained model, or it was trained from random weights.
    """
    path = Path(model).expanduser() / LOG if isinstance(model, str) else Path(LOG)
    if not isinstance(model, str) or not path.is_file():
        raise UserError(
            f"initial=base needs the folder of a model trained with `saliency-bench train`, but {model} has no {LOG}; "
            "use the folder of such a model, or leave out initial=base"
        )
    log = read_json(path)
    base, name = (log.get("base"), log.get("model")) if isinstance(log, dict) else (None, None)
    if not isinstance(base, dict):
        raise UserError(
            f"{path} does not name pretrained weights, because the training started from random weights; leave out "
            "initial=base"
        )
    repo, revision = base.get("repo"), base.get("revision")
    weights = (f"{repo}@{revision}" if revision else repo) if repo else name
    if not isinstance(weights, str):
        raise UserError(f"{path} does not name the pretrained weights; leave out initial=base")
    return load_classifier(weights, device="cpu")


def new_network(model: Any, names: list[str], size: int) -> tuple[Any, Any]:
    """Return a network with one logit per class name, and a processor that squashes images to size x size.

    Args:
        model: Hub id or folder of pretrained weights (the head is replaced), a transformers config object or
            `config.json` (the weights are initialised randomly), or a result of `start_of`.
        names: Names of the classes.
        size: Side of the images in pixels.

    Raises:
        UserError: The model cannot be loaded, or transformers cannot save it.
    """
    from transformers import AutoConfig, AutoModelForImageClassification, ViTImageProcessor

    source = start_of(model)
    if not isinstance(source, ModelSource):
        is_file = not hasattr(model, "model_type")
        name = str(model) if is_file else type(model).__name__
        with checkpoints.readable(name), counted(name):
            if is_file:
                check_config(Path(str(model)).expanduser(), name)
            config = AutoConfig.from_pretrained(str(model), trust_remote_code=False) if is_file else model
            _name_classes(config, names)
            network = AutoModelForImageClassification.from_config(config, trust_remote_code=False)
            return network, ViTImageProcessor(size={"height": size, "width": size})
    with checkpoints.readable(source.name):
        checkpoints.config_of(source)
        pretrained = checkpoints.processor_of(source.folder, source.name)
        with counted(source.name, room_of(source.folder)):
            network = AutoModelForImageClassification.from_pretrained(
                source.folder, num_labels=len(names), ignore_mismatched_sizes=True, use_safetensors=True,
                trust_remote_code=False,
            )  # fmt: skip
    _name_classes(network.config, names)
    check_finite(network, source.name)
    if hasattr(pretrained, "val_transforms"):
        return network, _timm_processor(network, pretrained, size)
    processor = ViTImageProcessor(
        size={"height": size, "width": size}, image_mean=pretrained.image_mean, image_std=pretrained.image_std
    )
    return network, processor


def _name_classes(config: Any, names: list[str]) -> None:
    config.id2label, config.label2id = dict(enumerate(names)), {name: index for index, name in enumerate(names)}
    if getattr(config, "label_names", None):  # timm's wrapper stores the class names here
        config.label_names = list(names)


def _timm_processor(network: nn.Module, pretrained: Any, size: int) -> Any:
    """Return a timm network's processor, and store the processor's settings in the config that timm's wrapper reads."""
    settings = {"input_size": [3, size, size], "crop_mode": "squash", "crop_pct": 1.0}
    config: Any = network.config
    config.pretrained_cfg = {**pretrained.data_config, **(config.pretrained_cfg or {}), **settings}
    return type(pretrained)(config.pretrained_cfg)


def save_checkpoint(out: Path, network: Any, processor: Any, log: dict[str, Any]) -> None:
    """Write the checkpoint folder atomically; raise UserError if it cannot be written."""
    for stale in out.parent.iterdir():  # left by a training run that was killed while writing
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
        rename(temporary, out)
    except UserError:
        raise
    except Exception as error:
        if named := storage_error(error, out):
            raise named from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
