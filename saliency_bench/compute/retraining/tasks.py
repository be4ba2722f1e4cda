"""Retrain one network: initialise weights, train on changed pictures, and classify the run's images.

OUT/retraining/.../states/KEY.pt        state of a training task between two epochs
OUT/retraining/.../outcomes/KEY.json    outcome of a finished task: predicted classes of the run's images
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.fitting import Counted, Recipe, Training
from saliency_bench.compute.retraining.changed_pictures import RetrainingPictures
from saliency_bench.compute.retraining.map_exposures import read_gathered
from saliency_bench.compute.retraining.splits import RetrainingSplit, Setup, Splits
from saliency_bench.compute.scoring.retraining import NO_ANSWER, RetrainingProtocol, Test, changed
from saliency_bench.errors import UserError
from saliency_bench.read.statistics.exposures import EXPOSURES
from saliency_bench.types import Images
from saliency_bench.utils.devices import sent
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.seeds import seed_of

VERSION = 1  # part of every key; increase it when training changes, so that all tasks run again


@dataclass(frozen=True)
class Task:
    """Task of training one network.

    Attributes:
        explainer: Explainer whose maps determine which pixels are changed. None if pictures are not changed or are
            replaced completely.
        exposure: Index of the exposure in `EXPOSURES`.
        number: Number of the repetition, starting at 1. Initial weights and the order of images depend on the number.
        protocol: Training protocol.
    """

    explainer: Explainer | None
    exposure: int
    number: int
    protocol: RetrainingProtocol

    @classmethod
    def make(cls, explainer: Explainer, exposure: int, number: int, protocol: RetrainingProtocol) -> "Task":
        """Return a normalised task. Identical training runs for different explainers or metrics become one task."""
        trained = replace(protocol, test="modified", trainings=1, exposures=EXPOSURES)
        if 0 < exposure < len(EXPOSURES) - 1:
            return cls(explainer, exposure, number, trained)
        # At the first and last exposure, pictures are whole or empty for every map, so the options are normalised.
        is_whole = (exposure == 0) == (protocol.keeps == "rest")
        return cls(None, 0 if is_whole else len(EXPOSURES) - 1, number, replace(trained, keeps="rest"))

    @property
    def key(self) -> str:
        """Name of the task's files. The name of the folder depends on the images, the classifier and the seed."""
        identity = None if self.explainer is None else self.explainer.identity
        protocol = {name: value for name, value in vars(self.protocol).items() if name != "exposures"}
        if protocol["initial"] == "new":  # preserves the keys of runs from before this option
            del protocol["initial"]
        return hash_of(VERSION, identity, self.exposure, self.number, protocol)


def outcome_file(folder: Path, task: Task) -> Path:
    """Return the path of a task's outcome."""
    return folder / "outcomes" / f"{task.key}.json"


def is_done(folder: Path, task: Task) -> bool:
    """Return whether a task has an undamaged outcome."""
    path = outcome_file(folder, task)
    if not path.is_file():
        return False
    try:
        outcome = read_json(path)
        return outcome["hash"] == hash_of(outcome["answers"])
    except (UserError, KeyError, TypeError):
        return False


@dataclass(frozen=True)
class Changed:
    """Images of a split, changed according to a task.

    Attributes:
        task: The training task.
        split: The split.
        pictures: Prepared images of all splits.
        kept: Positions of the images in use.
        first: Result of `first_exposures`, Uint8 (N, H * W); None for a task without maps.
        device: Device of the batches.
    """

    task: Task
    split: RetrainingSplit
    pictures: RetrainingPictures
    kept: np.ndarray
    first: np.ndarray | None
    device: torch.device

    @classmethod
    def make(cls, task: Task, split: RetrainingSplit, pictures: RetrainingPictures, device: torch.device) -> "Changed":
        """Select the samples that have an image, a label and (if the task uses maps) a map.

        Raise UserError if there are no such samples.
        """
        is_kept, first = (pictures.predicted[split.name] >= 0) & (split.labels >= 0), None
        if task.explainer is not None:
            first, has_map = read_gathered(pictures.folder, task.explainer, split)
            is_kept &= has_map
        kept = np.flatnonzero(is_kept)
        if len(kept) == 0:
            raise UserError(f"{task.explainer} returns no map for any image of the split {split.name}")
        return cls(task, split, pictures, kept, first, device)

    def __len__(self) -> int:
        return len(self.kept)

    def batch(self, positions: np.ndarray) -> tuple[Images, Tensor]:
        """Return changed images and their labels."""
        places = self.kept[positions]
        return self.changed(places), torch.from_numpy(self.split.labels[places]).to(self.device)

    def plain(self, places: np.ndarray) -> Images:
        """Return the images at these positions of the split, unchanged."""
        return sent(self.pictures.images(self.split.name, places), self.device)

    def changed(self, places: np.ndarray) -> Images:
        """Return the changed images at these positions of the split."""
        images = self.plain(places)
        first = None
        if self.first is not None:
            first = torch.from_numpy(self.first[places]).view(-1, *images.shape[2:]).to(self.device)
        return changed(images, first, self.task.exposure, self.task.protocol.keeps, self.pictures.colour)


def retrain(
    setup: Setup, splits: Splits, pictures: RetrainingPictures, folder: Path, task: Task, advance: Callable[[], object]
) -> None:
    """Train a network, or resume after the last complete epoch, and write the outcome to `folder`.

    `advance` is called for each batch of an epoch.

    Raises:
        UserError: The loss is not finite.
    """
    classifier = new_classifier(setup, task.number, task.protocol.initial != "new")
    train, validation, test = (Changed.make(task, split, pictures, classifier.device) for split in splits.all)
    protocol = task.protocol
    seed = seed_of(setup.seed, "retraining", task.number)
    training = Training(Recipe(protocol.epochs, protocol.learning_rate, protocol.batch_size, seed=seed), classifier)
    state = folder / "states" / f"{task.key}.pt"
    training.resume(state, settings := {"key": task.key})
    for _ in range(len(training.log), protocol.epochs):
        training.next_epoch(Counted(train, advance), Counted(validation, advance))
        training.write(state, settings)
    classifier.model.load_state_dict(training.best)  # sets the weights of the best epoch
    answers = _answers(classifier, test, protocol.batch_size)
    outcome = {"hash": hash_of(answers), "answers": answers, "weights": classifier.digest, "epochs": training.log}
    write_json(outcome_file(folder, task), outcome)
    state.unlink(missing_ok=True)


@torch.no_grad()
def _answers(classifier: Classifier, test: Changed, batch_size: int) -> dict[str, list[int]]:
    """Predict the classes of the run's changed and unchanged images.

    Returns:
        {"modified": classes, "clean": classes}. The class is `NO_ANSWER` for an image without a map or label.
    """
    classifier.eval()
    answers = {kind: np.full(len(test.split.labels), NO_ANSWER) for kind in get_args(Test)}
    for start in range(0, len(test), batch_size):
        places = test.kept[start : start + batch_size]
        for kind, images in (("modified", test.changed(places)), ("clean", test.plain(places))):
            answers[kind][places] = classifier(images).argmax(dim=1).cpu().numpy()
    return {kind: classes.tolist() for kind, classes in answers.items()}


def new_classifier(setup: Setup, number: int, from_base: bool = False) -> Classifier:
    """Return a classifier with the structure of the run's classifier and new weights.

    Args:
        setup: Setup of the run.
        number: Number of the repetition. The weights depend on the number and the run's seed.
        from_base: Whether to start from the checkpoint that the run's classifier was fine-tuned from, if there is one.
    """
    model = setup.classifier
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(setup.seed, "retraining weights", number))
        network = anew(model.model, model.id)
    if from_base and setup.base is not None:
        start_from(network, setup.base)
    return Classifier(
        network, id=model.id, geometry=model.geometry, frame=model.frame, mean=model.mean.flatten().tolist(),
        std=model.std.flatten().tolist(), labels=model.labels, channels=model.channels, logits=model.logits,
        activation=model.activation,
    ).to(model.device)  # fmt: skip


def start_from(network: nn.Module, base: Classifier) -> None:
    """Load the weights of a checkpoint, except last-layer weights of a different shape.

    Raises:
        UserError: The checkpoint has a different structure.
    """
    weights, given = network.state_dict(), base.model.state_dict()
    if differing := sorted(weights.keys() ^ given.keys()):
        raise UserError(
            f"{base.id} has a different structure from the model: only one of the two has {differing[0]}; leave out "
            "initial=base"
        )
    same_shape = {name: tensor for name, tensor in given.items() if tensor.shape == weights[name].shape}
    network.load_state_dict(weights | same_shape)


def anew(network: nn.Module, name: str) -> nn.Module:
    """Return a network of the same structure with freshly initialised weights, drawn from torch's generator.

    Raises:
        UserError: A module has weights but no method to initialise them.
    """
    if hasattr(network, "config") and hasattr(network, "from_pretrained"):  # a transformers model
        return type(network)(copy.deepcopy(network.config))
    other = copy.deepcopy(network)
    for path, module in other.named_modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
        elif parameter := next(iter(dict(module.named_parameters(recurse=False))), None):
            raise UserError(
                f"{name} cannot be retrained from new weights: {type(module).__name__} "
                f"{path or '(the network itself)'} has no reset_parameters() that initialises its {parameter}; add "
                "this method"
            )
    return other
