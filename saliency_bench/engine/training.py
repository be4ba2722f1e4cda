"""Trains a classifier on a dataset by the recipe of P0 and saves it as a transformers checkpoint."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from saliency_bench.classifiers import processors
from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.data.loading import class_names, fingerprint, load_dataset, origin
from saliency_bench.engine.checkpoint_writing import LOG, WEIGHTS, new_network, save_checkpoint
from saliency_bench.engine.fitting import Recipe, accuracy_of, fit
from saliency_bench.errors import UserError
from saliency_bench.utils.files import read_json
from saliency_bench.utils.processes import accelerator_on
from saliency_bench.utils.seeds import seed_of

SPLITS = ("train", "validation", "test")


def train(
    *,
    dataset: str,
    model: Any,
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
    """Train on the split "train", keep the epoch that is best on "validation", evaluate on "test"; returns `out`.

    model: a Hub id or folder of pretrained weights (the head is replaced), or a transformers config (an object or a
    `config.json`), which starts from random weights. size: side of the square that images are squashed to, in pixels.
    limit: number of training images. A training that was killed resumes after the last complete epoch and ends with the
    same weights.
    Raises: UserError for an unknown dataset or model, invalid settings, an `out` that is not empty, or several
    processes.
    """
    out = Path(out).resolve()
    state_file = out.with_name(out.name + ".training.pt")
    _check_output(out, state_file)
    recipe = Recipe(epochs, learning_rate, batch_size, size, seed, limit)
    accelerator = accelerator_on(device)
    if accelerator.num_processes > 1:
        raise UserError("train runs in one process; start it without torchrun or accelerate launch")
    splits = _splits(dataset, limit)
    name, repo = origin(dataset)
    classifier, processor = new_classifier(recipe, model, class_names(splits["train"]), str(out))
    classifier.to(accelerator.device)

    settings = {"dataset": dataset, **recipe.as_dict(), "images": fingerprint(splits["train"]),
                "start": classifier.digest}  # fmt: skip
    if (out / WEIGHTS).exists():  # killed between its last rename and the removal of its state
        if read_json(out / LOG)["settings"] != settings:
            raise _has_model(out)
        state_file.unlink()
        return out
    log = fit(recipe, classifier, splits["train"], splits["validation"],
              state_file=state_file, settings=settings, progress=progress)  # fmt: skip
    about = {"model": model if isinstance(model, str) else None, "dataset": {"name": name, "repo": repo}}
    result = {"test_accuracy": accuracy_of(classifier, splits["test"], batch_size), "epochs": log}
    save_checkpoint(out, classifier.model, processor, about | {"settings": settings} | result)
    state_file.unlink(missing_ok=True)
    return out


def new_classifier(recipe: Recipe, model: Any, names: list[str], id: str) -> tuple[Classifier, Any]:
    """A classifier of these classes with its initial weights, which depend on the recipe's seed; and its processor."""
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(recipe.seed, "weights"))
        network, processor = new_network(model, names, recipe.size)
    geometry, frame, mean, std = processors.frame_of(processor, id)
    return Classifier(network, id=id, geometry=geometry, frame=frame, mean=mean, std=std, labels=names), processor


def _splits(dataset: str, limit: int | None) -> dict[str, Dataset]:
    splits = {name: load_dataset(dataset, split=name) for name in SPLITS}
    if limit is not None:
        splits["train"] = splits["train"].select(range(min(limit, len(splits["train"]))))
    if empty := [name for name, rows in splits.items() if len(rows) == 0]:
        raise UserError(f"the split {empty[0]} of {dataset} is empty; training needs {', '.join(SPLITS)}")
    return splits


def _check_output(out: Path, state_file: Path) -> None:
    """Before anything is loaded. Raises: UserError for a folder that cannot become the checkpoint."""
    has_model = (out / WEIGHTS).exists()
    if has_model and not state_file.exists():
        raise _has_model(out)
    if not has_model and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; choose another --out")


def _has_model(out: Path) -> UserError:
    return UserError(f"{out} already holds a trained model; choose another --out")
