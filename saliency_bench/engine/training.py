"""Trains a classifier on a dataset by the recipe of P0 and saves it as a transformers checkpoint."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict

from saliency_bench import registry
from saliency_bench.classifiers import processors
from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.sources import Source
from saliency_bench.data.build_report import read_report
from saliency_bench.data.hub_datasets import UnknownSplitError
from saliency_bench.data.loading import Found, class_names, find, fingerprint
from saliency_bench.engine.checkpoint_writing import LOG, WEIGHTS, new_network, save_checkpoint, start_of
from saliency_bench.engine.fitting import DivergedError, Recipe, Rows, SeveralClasses, accuracy_of, fit
from saliency_bench.engine.fitting import Source as Samples
from saliency_bench.engine.ordering import first_rows
from saliency_bench.engine.preflight import check_dataset, check_start, check_writable
from saliency_bench.engine.reading import classes_of, group_names, labelled, sample_ids
from saliency_bench.errors import UserError, unknown
from saliency_bench.options import defaults
from saliency_bench.utils.files import read_json
from saliency_bench.utils.processes import accelerator_on
from saliency_bench.utils.seeds import seed_of

BUILDERS = "hub_builders"
SPLITS = ("train", "validation", "test")
TRAINED_IN = ("fp32", "bf16")  # gradients in float16 would need a scaled loss


def train(
    *,
    dataset: str | Path | DatasetDict,
    model: Any,
    out: str | Path,
    epochs: int = 30,
    learning_rate: float = 1e-3,
    batch_size: int = 32,
    size: int = 224,
    seed: int = 0,
    limit: int | None = None,
    label_column: str = "label",
    activation: str = "softmax",
    precision: str = "fp32",
    device: str | None = None,
    progress: bool = True,
) -> Path:
    """Train on the split "train", keep the epoch that is best on "validation", evaluate on "test"; returns `out`.

    model: a Hub id or folder of pretrained weights (the head is replaced), or a transformers config (an object or a
    `config.json`), which starts from random weights. size: side of the square that images are squashed to, in pixels.
    label_column: which column is the label. activation: "softmax", one class for each image; or "sigmoid", all classes
    of each image, for datasets with a column `labels`: the loss is the binary cross-entropy of every class, the
    accuracy the mean average precision, and an image with several rows counts once. precision: "fp32"; or "bf16", mixed
    precision: passes in bfloat16; weights, loss, steps and the final test in float32. limit: number of training images,
    drawn by the seed as whole groups. A training that was killed resumes after the last complete epoch and ends with
    the same weights.
    Raises: UserError for an unknown dataset or model, weights or a loss that are not finite, invalid settings, an
    `out` that is not empty, or several processes.
    """
    if activation not in ("softmax", "sigmoid"):
        raise unknown("activation", activation, ("softmax", "sigmoid"))
    if precision not in TRAINED_IN:
        raise unknown("precision", precision, TRAINED_IN)
    out = Path(out).resolve()
    state_file = out.with_name(out.name + ".training.pt")
    _check_output(out, state_file)
    if isinstance(dataset, str):
        check_dataset(dataset)
    if isinstance(model, str | Path):
        check_start(str(model))
    recipe = Recipe(epochs, learning_rate, batch_size, size, seed, limit)
    accelerator = accelerator_on(device)
    if accelerator.num_processes > 1:
        raise UserError("train runs in one process; start it without torchrun or accelerate launch")
    found = find(dataset)
    splits = _splits(found, recipe, label_column)
    several = {name: _several(rows, found) for name, rows in splits.items()} if activation == "sigmoid" else {}
    splits |= {name: rows for name, (rows, _) in several.items()}
    start = start_of(model)
    classifier, processor = new_classifier(recipe, start, class_names(splits["train"]), str(out), activation)
    classifier.to(accelerator.device).computing(precision, None)

    text = dataset if isinstance(dataset, str) else found.text
    settings = {"dataset": text, **recipe.as_dict(), "images": fingerprint(splits["train"]),  # of these labels
                "start": classifier.digest} | ({"activation": activation} if several else {})  # fmt: skip
    settings |= {"precision": precision} if precision != "fp32" else {}
    if (out / WEIGHTS).exists():  # killed between its last rename and the removal of its state
        if read_json(out / LOG)["settings"] != settings:
            raise _has_model(out)
        state_file.unlink()
        return out
    sources: dict[str, Samples] = {name: Rows(classifier, rows) for name, rows in splits.items()}
    for name, (rows, labels) in several.items():
        sources[name] = SeveralClasses(classifier, rows, labels, len(classifier.labels or ()))
    try:
        log = fit(recipe, classifier, sources["train"], sources["validation"],
                  state_file=state_file, settings=settings, progress=progress)  # fmt: skip
    except DivergedError:
        state_file.unlink(missing_ok=True)
        raise
    about = {
        "model": model if isinstance(model, str) else None,
        "base": {"repo": start.repo, "revision": start.revision} if isinstance(start, Source) else None,
        "dataset": {"name": found.name, "repo": found.repo, "revision": found.revision},
    }
    classifier.computing("fp32", None)  # as runs use the checkpoint
    result = {"test_accuracy": accuracy_of(classifier, sources["test"], batch_size),
              "test_samples": len(splits["test"]), "epochs": log}  # fmt: skip
    save_checkpoint(out, classifier.model, processor, about | {"settings": settings} | result)
    state_file.unlink(missing_ok=True)
    return out


def new_classifier(
    recipe: Recipe, model: Any, names: list[str], id: str, activation: str = "softmax"
) -> tuple[Classifier, Any]:
    """A classifier of these classes with its initial weights, which depend on the recipe's seed; and its processor."""
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(recipe.seed, "weights"))
        network, processor = new_network(model, names, recipe.size)
    if activation == "sigmoid":
        network.config.problem_type = "multi_label_classification"  # by which the checkpoint is known
    geometry, frame, mean, std = processors.frame_of(processor, id)
    classifier = Classifier(network, id=id, geometry=geometry, frame=frame, mean=mean, std=std, labels=names,
                            activation=activation)  # fmt: skip
    return classifier, processor


def _several(rows: Dataset, found: Found) -> tuple[Dataset, list[list[int]]]:
    """(the first row of each image, the classes of each). Raises: UserError for rows that do not know all classes."""
    if "labels" not in rows.column_names:
        raise UserError(
            f"{found.text} has no column labels with all classes of each image, which a sigmoid is trained on; leave "
            "out --activation"
        )
    keys = zip(group_names(rows), sample_ids(rows), strict=True)
    first = {group or own: place for place, (group, own) in reversed(list(enumerate(keys)))}
    rows = rows.select(sorted(first.values()))
    return rows, [classes_of({"labels": own}, rows.features) or [] for own in rows["labels"]]


def _splits(found: Found, recipe: Recipe, label_column: str) -> dict[str, Dataset]:
    if isinstance(found.rows, Dataset) or (found.folder is not None and found.folder.is_file()):
        raise UserError(
            f"{found.text} is one split, and training needs {', '.join(SPLITS)}; give a folder or a DatasetDict"
        )
    try:
        splits = {name: found.load(name) for name in SPLITS}
    except UnknownSplitError as error:
        raise _without_splits(found, error.known) from error
    content = "" if recipe.limit is None else fingerprint(splits["train"])
    first = labelled(splits["train"], label_column)
    names = class_names(first)
    splits = {name: labelled(rows, label_column, names) for name, rows in splits.items()} | {"train": first}
    splits["train"] = first_rows(splits["train"], recipe.limit, recipe.seed, content)
    if empty := [name for name, rows in splits.items() if len(rows) == 0]:
        raise UserError(f"the split {empty[0]} of {found.text} is empty; training needs {', '.join(SPLITS)}")
    return splits


def _without_splits(found: Found, known: list[str]) -> UserError:
    """What makes the splits that a dataset lacks: for one's own data, the command that builds it."""
    builder = read_report(found.folder).get("dataset", "folder") if found.folder else ""
    fix = "give a dataset that has them"
    if isinstance(found.rows, DatasetDict):
        fix = "make them with the train_test_split of its Dataset"
    elif builder in registry.names(BUILDERS) and "split" in defaults(registry.load(BUILDERS, builder).samples):
        fix = f"build it again with saliency-bench build {builder} ... --split hash --out NEW"
    lacking = ", ".join(name for name in SPLITS if name not in known)
    return UserError(f"{found.text} has no split {lacking} (only {', '.join(known)}), which training needs; {fix}")


def _check_output(out: Path, state_file: Path) -> None:
    """Before anything is loaded. Raises: UserError for a folder that cannot become the checkpoint."""
    has_model = (out / WEIGHTS).exists()
    if has_model and not state_file.exists():
        raise _has_model(out)
    if not has_model and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; choose another --out")
    check_writable(out)


def _has_model(out: Path) -> UserError:
    return UserError(f"{out} already holds a trained model; choose another --out")
