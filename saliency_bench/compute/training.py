"""Train a classifier on a dataset as in Zhang et al. (2023), and save it as a transformers checkpoint."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict

from saliency_bench import registry
from saliency_bench.compute.checkpoint_writing import LOG, WEIGHTS, new_network, save_checkpoint, start_of
from saliency_bench.compute.classifiers import processors
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.sources import ModelSource
from saliency_bench.compute.fitting import DivergedError, Recipe, Rows, accuracy_of, fit
from saliency_bench.compute.ordering import first_rows
from saliency_bench.compute.preflight import check_dataset, check_empty, check_start, check_writable
from saliency_bench.compute.reading import classes_of, group_names, labelled
from saliency_bench.data.build_report import read_report
from saliency_bench.data.dataset_names import SPLITS
from saliency_bench.data.hub_datasets import UnknownSplitError
from saliency_bench.data.loading import FoundDataset, class_names, find, fingerprint, sample_ids
from saliency_bench.errors import UserError, unknown
from saliency_bench.options import defaults
from saliency_bench.utils.files import read_json
from saliency_bench.utils.messages import complain
from saliency_bench.utils.processes import accelerator_on
from saliency_bench.utils.progress import without_bars
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.untouched import untouched

BUILDERS = "hub_builders"
TRAINED_IN = ("fp32", "bf16")  # float16 gradients would need loss scaling


@untouched()
def train(
    *,
    dataset: str | Path | DatasetDict,
    model: Any,
    out: str | Path,
    epochs: int = Recipe.epochs,
    learning_rate: float = Recipe.learning_rate,
    batch_size: int = Recipe.batch_size,
    size: int = Recipe.size,
    seed: int = Recipe.seed,
    limit: int | None = Recipe.limit,
    label_column: str = "label",
    activation: str = "softmax",
    precision: str = "fp32",
    device: str | None = None,
    progress: bool = True,
) -> Path:
    """Train on the split "train", select the best epoch on "validation", and evaluate on "test".

    Interrupted training resumes after the last complete epoch and ends with the same weights.

    Args:
        dataset: Name, folder or DatasetDict with the three splits.
        model: Hub id or folder of pretrained weights (the head is replaced), or a transformers config (an object or a
            `config.json`), which starts from random weights.
        out: Folder of the checkpoint.
        epochs: Number of passes over the training images.
        learning_rate: Learning rate of Adam.
        batch_size: Number of images per step.
        size: Side of the square that images are squashed to, in pixels.
        seed: Seed of the initial weights, the order of the samples and dropout.
        limit: Number of training images, drawn in whole groups with the seed.
        label_column: Column with the labels.
        activation: "softmax" for one class per image, or "sigmoid" for all classes of each image. Sigmoid needs a
            dataset with a `labels` column: the loss is the binary cross-entropy of every class, the accuracy is the
            mean average precision, and an image with several rows counts once.
        precision: "fp32", or "bf16" for mixed precision (passes in bfloat16; weights, loss, steps and the final test in
            float32).
        device: Device; by default the best available.
        progress: Whether to show a progress bar.

    Returns:
        `out`.

    Raises:
        UserError: The dataset or model is unknown, the loss or the weights are not finite, a setting is invalid, `out`
            is not empty, or training was started in several processes.
    """
    out = Path(out).resolve()
    state_file = out.with_name(out.name + ".training.pt")
    _check_inputs(dataset, model, activation, precision)
    recipe = Recipe(epochs, learning_rate, batch_size, size, seed, limit)
    _check_output(out, recipe)
    accelerator = accelerator_on(device)
    if accelerator.num_processes > 1:
        raise UserError(
            "a network is trained in a single process; start the training without torchrun or accelerate launch"
        )
    with without_bars(not progress):
        source = find(dataset)
        splits = _splits(source, recipe, label_column)
    labels: dict[str, list[list[int]]] = {}
    if activation == "sigmoid":
        for name in SPLITS:
            splits[name], labels[name] = _one_row_per_image(splits[name], source)
    start = start_of(model)
    classifier, processor = new_classifier(recipe, start, class_names(splits["train"]), str(out), activation)
    classifier.to(accelerator.device).computing(precision, None)

    text = dataset if isinstance(dataset, str) else source.text
    settings = {"dataset": text, **asdict(recipe), "images": fingerprint(splits["train"]),  # includes the labels
                "start": classifier.digest} | ({"activation": activation} if labels else {})  # fmt: skip
    settings |= {"precision": precision} if precision != "fp32" else {}
    if (out / WEIGHTS).exists():
        if read_json(out / LOG)["settings"] != settings:
            raise _has_model(out)
        state_file.unlink(missing_ok=True)  # left by training that was killed after its last rename
        complain(f"{out} already contains the model of this training run")
        return out
    sources = {name: Rows(classifier, rows, labels.get(name)) for name, rows in splits.items()}
    try:
        log = fit(recipe, classifier, sources["train"], sources["validation"],
                  state_file=state_file, settings=settings, progress=progress)  # fmt: skip
    except DivergedError:
        state_file.unlink(missing_ok=True)
        raise
    classifier.computing("fp32", None)  # convert to float32, in which runs use the checkpoint
    content = {
        "model": model if isinstance(model, str) else None,
        "base": {"repo": start.repo, "revision": start.revision} if isinstance(start, ModelSource) else None,
        "dataset": {"name": source.name, "repo": source.repo, "revision": source.revision},
        "settings": settings,
        "test_accuracy": accuracy_of(classifier, sources["test"], batch_size),
        "test_samples": len(splits["test"]),
        "epochs": log,
    }
    save_checkpoint(out, classifier.model, processor, content)
    state_file.unlink(missing_ok=True)
    return out


def _check_inputs(dataset: str | Path | DatasetDict, model: Any, activation: str, precision: str) -> None:
    """Raise UserError for settings and names that are certainly wrong, before anything is loaded."""
    if activation not in ("softmax", "sigmoid"):
        raise unknown("activation", activation, ("softmax", "sigmoid"))
    if precision not in TRAINED_IN:
        raise unknown("precision", precision, TRAINED_IN)
    if isinstance(dataset, str):
        check_dataset(dataset)
    if isinstance(model, str | Path):
        check_start(str(model))


def new_classifier(
    recipe: Recipe, model: Any, names: list[str], id: str, activation: str = "softmax"
) -> tuple[Classifier, Any]:
    """Return (classifier for these classes, image processor). The initial weights depend on the recipe's seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(recipe.seed, "weights"))
        network, processor = new_network(model, names, recipe.size)
    if activation == "sigmoid":
        network.config.problem_type = "multi_label_classification"  # this marks the checkpoint as a sigmoid model
    geometry, frame, mean, std = processors.frame_of(processor, id)
    classifier = Classifier(network, id=id, geometry=geometry, frame=frame, mean=mean, std=std, labels=names,
                            activation=activation)  # fmt: skip
    return classifier, processor


def _one_row_per_image(rows: Dataset, source: FoundDataset) -> tuple[Dataset, list[list[int]]]:
    """Return (first row of each image, classes of each image). Raise UserError if there is no column `labels`."""
    if "labels" not in rows.column_names:
        raise UserError(
            f"{source.text} has no column `labels` with all classes of each image, which a sigmoid needs; add the "
            "column, or leave out --activation"
        )
    keys = zip(group_names(rows), sample_ids(rows), strict=True)
    # Reversed, so that the first row of an image overwrites later rows.
    first = {group or sample: position for position, (group, sample) in reversed(list(enumerate(keys)))}
    rows = rows.select(sorted(first.values()))
    return rows, [classes_of({"labels": labels}, rows.features) or [] for labels in rows["labels"]]


def _splits(source: FoundDataset, recipe: Recipe, label_column: str) -> dict[str, Dataset]:
    """Return the labelled rows of each split. The recipe's limit is applied to the training images."""
    try:
        splits = source.load_all(SPLITS)
    except UnknownSplitError as error:
        raise _missing_splits(source, error.known) from error
    content = "" if recipe.limit is None else fingerprint(splits["train"])
    first = labelled(splits["train"], label_column)
    names = class_names(first)
    splits = {name: labelled(rows, label_column, names) for name, rows in splits.items()} | {"train": first}
    splits["train"] = first_rows(splits["train"], recipe.limit, recipe.seed, content)
    if empty := [name for name, rows in splits.items() if len(rows) == 0]:
        raise UserError(
            f"the split {empty[0]} of {source.text} is empty; training needs the splits {', '.join(SPLITS)}"
        )
    return splits


def _missing_splits(source: FoundDataset, available: list[str]) -> UserError:
    """Return the error about missing splits. It names the command that creates them."""
    builder = read_report(source.folder).get("dataset", "folder") if source.folder else ""
    fix = "use a dataset that has all of these splits"
    if isinstance(source.rows, DatasetDict):
        fix = "create the missing splits with Dataset.train_test_split"
    elif builder in registry.names(BUILDERS) and "split" in defaults(registry.load(BUILDERS, builder).samples):
        fix = f"build it again with `saliency-bench build {builder} ... --split hash --out NEW`"
    lacking = ", ".join(name for name in SPLITS if name not in available)
    there = ", ".join(available)
    return UserError(f"{source.text} has no split {lacking}, which training needs (it has only {there}); {fix}")


def _check_output(out: Path, recipe: Recipe) -> None:
    """Raise UserError if the checkpoint cannot be written to the folder. This is checked before anything is loaded."""
    has_model = (out / WEIGHTS).exists()
    if has_model and not _has_log(out, asdict(recipe)):
        raise _has_model(out)
    check_writable(out) if has_model else check_empty(out)


def _has_log(out: Path, settings: dict[str, Any]) -> bool:
    """Return whether the training log in the folder of a model contains these settings."""
    log = read_json(out / LOG) if (out / LOG).is_file() else {}
    return settings.items() <= log.get("settings", {}).items()


def _has_model(out: Path) -> UserError:
    """Return the error for a folder that already contains a checkpoint."""
    return UserError(
        f"{out} already contains a model that was trained with different settings; choose a different --out"
    )
