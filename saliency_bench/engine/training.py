"""Train a classifier on a dataset: the recipe of P0 (Adam, learning rate 0.001, best epoch by validation accuracy).

The checkpoint is a transformers folder: weights as safetensors, class names, and an image processor that squashes to a
square, so that no mask loses foreground to a crop.
"""

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn

from saliency_bench.classifiers import checkpoints
from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.data.loading import class_names, fingerprint, load_dataset, origin
from saliency_bench.errors import UserError
from saliency_bench.utils.files import read_json, write_json, write_with
from saliency_bench.utils.processes import accelerator_on
from saliency_bench.utils.progress import bar
from saliency_bench.utils.seeds import random_bits, seed_of

HOLDS_A_MODEL = "{out} already holds a trained model; choose another --out"


def train(
    *,
    dataset: str,
    model,
    out: str | Path,
    epochs: int = 30,
    learning_rate: float = 1e-3,
    batch_size: int = 32,
    size: int = 224,
    seed: int = 0,
    limit: int | None = None,
    device: str | None = None,
    progress: bool = True,
) -> Path:
    """Train on the split "train", keep the epoch that is best on "validation", report on "test"; the folder `out`.

    model: a Hub id or folder of pretrained weights (the head is replaced), or a transformers config (an object or a
    `config.json`), which starts from random weights. size: side of the square images are squashed to. limit: number of
    training images. A killed training continues at the last whole epoch and ends with the same weights.
    """
    out = Path(out).resolve()
    state_file = out.with_name(out.name + ".training.pt")
    _check(out, state_file, epochs, batch_size, learning_rate, size, limit)
    accelerator = accelerator_on(device)
    if accelerator.num_processes > 1:
        raise UserError("train works in one process; start it without torchrun or accelerate launch")
    splits = {name: load_dataset(dataset, split=name) for name in ("train", "validation", "test")}
    called, repo = origin(dataset)
    if limit is not None:
        splits["train"] = splits["train"].select(range(min(limit, len(splits["train"]))))
    if empty := [name for name, rows in splits.items() if len(rows) == 0]:
        raise UserError(f"the split {empty[0]} of {dataset} is empty; a training needs train, validation and test")
    names = class_names(splits["train"])

    with torch.random.fork_rng():
        torch.manual_seed(seed_of(seed, "weights"))
        network, processor = new_network(model, names, size)
    geometry, frame, mean, std = checkpoints.frame_of(processor, str(out))
    classifier = Classifier(network, id=str(out), geometry=geometry, frame=frame, mean=mean, std=std, labels=names).to(
        accelerator.device
    )
    optimizer = torch.optim.Adam(classifier.parameters(), lr=learning_rate)

    settings = {"dataset": dataset, "epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size,
                "size": size, "seed": seed, "limit": limit, "images": fingerprint(splits["train"]),
                "start": classifier.digest}  # fmt: skip
    if (out / "model.safetensors").exists():  # killed between its last rename and the removal of its state
        if read_json(out / "training_log.json")["settings"] != settings:
            raise UserError(HOLDS_A_MODEL.format(out=out))
        state_file.unlink()
        return out
    best, log = resume(state_file, settings, classifier, optimizer)
    shown = bar(range(len(log), epochs), shown=progress, desc="train", unit="epoch", initial=len(log), total=epochs)
    for epoch in shown:
        loss = one_epoch(classifier, optimizer, splits["train"], batch_size, seed_of(seed, "epoch", epoch))
        accuracy = accuracy_of(classifier, splits["validation"], batch_size)
        if accuracy > max((entry["validation_accuracy"] for entry in log), default=-1.0):
            best = {key: value.detach().cpu().clone() for key, value in classifier.model.state_dict().items()}
        log.append({"epoch": epoch, "loss": loss, "validation_accuracy": accuracy})
        shown.set_postfix(loss=f"{loss:.3f}", validation=f"{accuracy:.3f}")
        state = {"settings": json.dumps(settings), "model": classifier.model.state_dict(), "best": best, "log": log,
                 "optimizer": optimizer.state_dict()}  # fmt: skip
        write_with(state_file, partial(torch.save, state))

    classifier.model.load_state_dict(best)
    accuracy = accuracy_of(classifier, splits["test"], batch_size)
    start = model if isinstance(model, str) else None
    told = {"model": start, "dataset": {"name": called, "repo": repo}, "settings": settings}
    save(out, network, processor, told | {"test_accuracy": accuracy, "epochs": log})
    state_file.unlink(missing_ok=True)
    return out


def _check(
    out: Path, state_file: Path, epochs: int, batch_size: int, learning_rate: float, size: int, limit: int | None
) -> None:
    """Before anything is loaded. Raises: UserError."""
    is_model = (out / "model.safetensors").exists()
    if is_model and not state_file.exists():
        raise UserError(HOLDS_A_MODEL.format(out=out))
    if not is_model and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; choose another --out")
    if min(epochs, batch_size, size, 1 if limit is None else limit) < 1 or not learning_rate > 0:
        raise UserError("--epochs, --batch-size, --size and --limit must be at least 1, --learning-rate above 0")
    if size < 16:
        raise UserError(f"--size {size} is too small for a network; use 16 or more")


def new_network(model, names: list[str], size: int) -> tuple[nn.Module, object]:
    """A network with one logit per class name, and the processor that squashes to size x size."""
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification, ViTImageProcessor

    id2label = dict(enumerate(names))
    label2id = {name: index for index, name in id2label.items()}
    if str(model).startswith("torchvision:"):
        raise UserError(f"{model} cannot be saved as a transformers checkpoint; train a Hub id, say timm/vgg16.tv_in1k")
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
        raise checkpoints.not_there(str(model), error) from error
    if hasattr(pretrained, "val_transforms"):
        return network, _timm_squash(network, pretrained, size)
    processor = ViTImageProcessor(
        size={"height": size, "width": size}, image_mean=pretrained.image_mean, image_std=pretrained.image_std
    )
    return network, processor


def _timm_squash(network: nn.Module, pretrained, size: int) -> object:
    """The timm wrapper keeps its processor in the model's config."""
    settings = {"input_size": [3, size, size], "crop_mode": "squash", "crop_pct": 1.0}
    config: Any = network.config
    config.pretrained_cfg = {**pretrained.data_config, **(config.pretrained_cfg or {}), **settings}
    return type(pretrained)(config.pretrained_cfg)


def one_epoch(classifier: Classifier, optimizer, rows, batch_size: int, seed: int) -> float:
    """Mean loss. Order and dropout come from the seed alone, so an epoch is the same after a continuation."""
    order = np.argsort(random_bits(seed, len(rows)), kind="stable")
    classifier.train()
    total = 0.0
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for images, labels in batches(classifier, rows, order, batch_size):
            if len(images) == 1 and len(rows) > 1:  # batch norm cannot learn from one image
                continue
            loss = nn.functional.cross_entropy(classifier(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(images)
    return total / len(rows)


@torch.no_grad()
def accuracy_of(classifier: Classifier, rows, batch_size: int) -> float:
    classifier.eval()
    right = 0
    for images, labels in batches(classifier, rows, np.arange(len(rows)), batch_size):
        right += int((classifier(images).argmax(dim=1) == labels).sum())
    return right / len(rows)


def batches(
    classifier: Classifier, rows, order: np.ndarray, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    rows = rows.select_columns([name for name in ("image", "label", "image_id") if name in rows.column_names])
    for start in range(0, len(order), batch_size):
        batch = classifier.prepare(rows[order[start : start + batch_size]])
        yield batch.images, batch.labels.to(classifier.device)


def resume(state_file: Path, settings: dict, classifier: Classifier, optimizer) -> tuple[dict, list[dict]]:
    """(best weights, log) of a training that stopped half-way, its weights and optimizer put in place; else empty."""
    if not state_file.exists():
        return {}, []
    state = torch.load(state_file, weights_only=True, map_location=classifier.device)
    if state["settings"] != json.dumps(settings):
        raise UserError(
            f"{state_file} is the state of a training with other settings; delete it or choose another --out"
        )
    classifier.model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["best"], state["log"]


def save(out: Path, network, processor, log: dict) -> None:
    """The checkpoint folder, whole or not at all."""
    for stale in out.parent.iterdir():  # of a training that was killed while it wrote
        if stale.name.startswith(f".{out.name}.") and stale.name.endswith(".tmp"):
            shutil.rmtree(stale, ignore_errors=True) if stale.is_dir() else stale.unlink()
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with checkpoints.quiet():
            network.save_pretrained(temporary)
            processor.save_pretrained(temporary)
        write_json(temporary / "training_log.json", log)
        if out.is_dir():
            out.rmdir()
        temporary.rename(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; make room and start again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
