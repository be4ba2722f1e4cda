"""Train a classifier with Adam, and keep the weights with the best validation accuracy (Zhang et al., 2023).

If images have several classes, each logit is trained separately, and mean average precision replaces accuracy.

    recipe = Recipe(epochs=5)
    train, validation = Rows(classifier, train_rows), Rows(classifier, validation_rows)
    log = fit(recipe, classifier, train, validation)   # the classifier then has the best weights

Sample order and dropout depend on the recipe's seed alone. The same recipe, rows and initial weights therefore result
in bit-identical weights, even if training was interrupted and resumed.
"""

import json
import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.read.accuracy import average_precision
from saliency_bench.types import Images
from saliency_bench.utils.files import write_with
from saliency_bench.utils.messages import complain
from saliency_bench.utils.progress import bar
from saliency_bench.utils.seeds import random_bits, seed_of

KEPT = 1 << 27  # largest size in bytes of prepared images that stay in memory between epochs
MASKED = 1e4  # sigmoid(-MASKED) is 0
SMALLEST = 16  # pixels, because networks halve an image several times


class DivergedError(UserError):
    """Training diverged: the loss is NaN or infinite, so the weights are unusable."""


class LabelledImages(Protocol):
    """Images with labels for training or validation."""

    def __len__(self) -> int: ...

    def batch(self, positions: np.ndarray) -> tuple[Images, Tensor]:
        """Return the prepared images and the labels of these samples on the classifier's device.

        Labels are Int (B,). For images with several classes, they are Float (B, K): 1 for each class of the image, 0
        for all other classes.
        """


class Rows:
    """Rows of a dataset. Images are prepared once if all of them fit in memory, and otherwise again for each batch.

    Args:
        classifier: Classifier that prepares the rows.
        rows: The rows.
        labels: Class numbers of each row; needed if images may have several classes.
    """

    def __init__(self, classifier: Classifier, rows: Dataset, labels: list[list[int]] | None = None):
        self.classifier = classifier
        self.rows = rows.select_columns([name for name in ("image", "label", "image_id") if name in rows.column_names])
        self.classes: Tensor | None = None
        if labels is not None:
            self.classes = torch.zeros(len(labels), len(classifier.labels or ()))
            for row, numbers in zip(self.classes, labels, strict=True):
                row[numbers] = 1
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # {row: image and label}

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, positions: np.ndarray) -> tuple[Images, Tensor]:
        """Return the images and labels of these rows."""
        wanted = [int(position) for position in positions]
        if all(position in self._kept for position in wanted):
            images, numbers = map(torch.stack, zip(*(self._kept[position] for position in wanted), strict=True))
        else:
            batch = self.classifier.prepare(self.rows[positions])
            images, numbers = batch.images, batch.labels
            # Preparation does not depend on the batch, so a stored image equals a newly prepared one.
            if len(self.rows) * images[0].numel() * images.element_size() <= KEPT:
                self._kept |= dict(zip(wanted, zip(images, numbers, strict=True), strict=True))
        labels = numbers if self.classes is None else self.classes[torch.from_numpy(positions)]
        return images, labels.to(self.classifier.device)


class Counted:
    """A source of images that advances a progress bar with each batch."""

    def __init__(self, source: LabelledImages, step: Callable[[], object]):
        self.source, self.step = source, step

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, positions: np.ndarray) -> tuple[Images, Tensor]:
        """Return a batch of the source and advance the progress bar."""
        self.step()
        return self.source.batch(positions)


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run.

    Attributes:
        epochs: Number of passes over the training images.
        learning_rate: Learning rate of Adam.
        batch_size: Number of images per step.
        size: Side of the square that images are squashed to, in pixels.
        seed: Seed of the initial weights, the order of the samples and dropout.
        limit: Number of training images. Whole groups are drawn with the seed. None uses all images.

    Raises:
        UserError: A value is invalid.
    """

    epochs: int = 30
    learning_rate: float = 1e-3
    batch_size: int = 32
    size: int = 224
    seed: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value} is too small; it must be at least 1")
        if not self.learning_rate > 0:
            raise UserError(f"--learning-rate {self.learning_rate} is too small; it must be above 0")
        if self.size < SMALLEST:
            raise UserError(f"--size {self.size} is too small for a network; use {SMALLEST} or more")


@dataclass
class Training:
    """State of a training run between two epochs: optimizer state, weights of the best epoch, and the log."""

    recipe: Recipe
    classifier: Classifier
    best: dict[str, Tensor] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.classifier.parameters(), lr=self.recipe.learning_rate)

    def next_epoch(self, train: LabelledImages, validation: LabelledImages) -> dict[str, Any]:
        """Train for one epoch, validate, and return the new log entry."""
        recipe, epoch = self.recipe, len(self.log)
        seed = seed_of(recipe.seed, "epoch", epoch)
        loss = one_epoch(self.classifier, self.optimizer, train, recipe.batch_size, seed)
        accuracy = accuracy_of(self.classifier, validation, recipe.batch_size)
        if accuracy > max((entry["validation_accuracy"] for entry in self.log), default=-1.0):
            weights = self.classifier.model.state_dict()
            self.best = {key: value.detach().cpu().clone() for key, value in weights.items()}
        self.log.append({"epoch": epoch, "loss": loss, "validation_accuracy": accuracy})
        return self.log[-1]

    def write(self, state_file: Path, settings: dict[str, Any]) -> None:
        """Write the state atomically. A later call of `resume` must pass the same `settings`."""
        state = {"settings": json.dumps(settings), "model": self.classifier.model.state_dict(), "best": self.best,
                 "log": self.log, "optimizer": self.optimizer.state_dict()}  # fmt: skip

        def save(temporary: Path) -> None:
            with temporary.open("wb") as file:  # with a path, torch would hide the reason for a failed write
                torch.save(state, file)

        write_with(state_file, save)

    def resume(self, state_file: Path, settings: dict[str, Any]) -> None:
        """Resume interrupted training if `state_file` exists and is intact.

        Raises:
            UserError: The state belongs to a training run with different settings.
        """
        if not state_file.exists():
            return
        try:
            state = torch.load(state_file, weights_only=True, map_location=self.classifier.device)
        except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError):
            complain(f"{state_file} cannot be read; training starts from the beginning")
            return
        if state["settings"] != json.dumps(settings):
            raise UserError(
                f"{state_file} is the state of a training run with different settings; delete the file or "
                "choose a different --out"
            )
        self.classifier.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best, self.log = state["best"], state["log"]


def fit(
    recipe: Recipe,
    classifier: Classifier,
    train: LabelledImages,
    validation: LabelledImages,
    *,
    state_file: Path | None = None,
    settings: dict[str, Any] | None = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Train a classifier in place and load the weights of the epoch that is best on `validation`.

    Args:
        recipe: Settings of the training run.
        classifier: The classifier.
        train: Images to train on.
        validation: Images on which the best epoch is chosen.
        state_file: File written after each epoch; a later call with the same `settings` resumes from this file.
        settings: Everything that the training result depends on; by default the recipe.
        progress: Whether to show a progress bar.

    Returns:
        Log of the epochs: number, mean training loss and validation accuracy of each epoch.
    """
    training, settings = Training(recipe, classifier), settings or asdict(recipe)
    if state_file is not None:
        training.resume(state_file, settings)
    start = len(training.log)
    batches_per_epoch = sum(math.ceil(len(source) / recipe.batch_size) for source in (train, validation))
    initial, total = start * batches_per_epoch, recipe.epochs * batches_per_epoch
    with bar(shown=progress, desc="train", unit="batch", initial=initial, total=total) as shown:
        train, validation = Counted(train, shown.update), Counted(validation, shown.update)
        for epoch in range(start, recipe.epochs):
            entry = training.next_epoch(train, validation)
            accuracy = f"{entry['validation_accuracy']:.3f}"
            shown.set_postfix(epoch=f"{epoch + 1}/{recipe.epochs}", loss=f"{entry['loss']:.3f}", validation=accuracy)
            if state_file is not None:
                training.write(state_file, settings)
    classifier.model.load_state_dict(training.best)
    return training.log


def one_epoch(
    classifier: Classifier,
    optimizer: torch.optim.Optimizer,
    source: LabelledImages,
    batch_size: int,
    seed: int,
) -> float:
    """Train for one epoch and return the mean loss.

    The order of the images and dropout depend on the seed alone, so resumed training repeats an epoch exactly.
    """
    order = np.argsort(random_bits(seed, len(source)), kind="stable")
    classifier.train()
    total = 0.0
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for images, labels in batches(source, order, batch_size):
            if len(images) == 1 and len(source) > 1:  # batch norm cannot learn from a single image
                continue
            loss = loss_of(classifier(images), labels)
            total += check_loss(loss.item(), optimizer.param_groups[0]["lr"]) * len(images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return total / len(source)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy: of the softmax or, if images have several classes, of the sigmoid of each logit.

    Raises:
        UserError: The logit of a label is minus infinity. Training cannot change such a logit.
    """
    of_labels = logits.gather(1, labels[:, None]) if labels.ndim == 1 else logits[labels > 0]
    if of_labels.isneginf().any():
        raise UserError(
            "the network returns a logit of minus infinity for the class of a training image, so the network cannot "
            "learn this class; unmask the class, or leave its images out"
        )
    if labels.ndim == 1:
        return nn.functional.cross_entropy(logits, labels)
    # Without this, torch would compute 0 times infinity for a masked-out class with a logit of -infinity.
    logits = logits.masked_fill(logits.isneginf() & (labels == 0), -MASKED)
    return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def check_loss(loss: float, learning_rate: float) -> float:
    """Return the loss, or raise DivergedError if it is NaN or infinite."""
    if not math.isfinite(loss):
        raise DivergedError(f"the loss became {loss}; use a smaller --learning-rate than {learning_rate:g}")
    return loss


@torch.no_grad()
def accuracy_of(classifier: Classifier, source: LabelledImages, batch_size: int) -> float:
    """Return the accuracy, or the mean average precision if images have several classes."""
    classifier.eval()
    every = batches(source, np.arange(len(source)), batch_size)
    outputs = [(classifier(images).cpu(), labels.cpu()) for images, labels in every]
    logits, labels = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    if labels.ndim == 1:
        return int((logits.argmax(dim=1) == labels).sum()) / len(source)
    return average_precision(logits.numpy(), labels.numpy() > 0)


def batches(source: LabelledImages, order: np.ndarray, batch_size: int) -> Iterator[tuple[Images, Tensor]]:
    """Yield (images, labels) for each batch of the samples in this order."""
    for start in range(0, len(order), batch_size):
        yield source.batch(order[start : start + batch_size])
