"""One retraining: a network with new weights, trained on changed pictures, and what it says of the run's images.

OUT/retraining/.../states/KEY.pt        a training between two epochs
OUT/retraining/.../outcomes/KEY.json    a finished one: the classes that it gives the images of the run
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.fitting import Counted, Recipe, Training
from saliency_bench.engine.retraining.maps import gathered
from saliency_bench.engine.retraining.pictures import Pictures
from saliency_bench.engine.retraining.splits import Split, Splits
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer
from saliency_bench.scoring.exposures import EXPOSURES
from saliency_bench.scoring.retraining import NO_ANSWER, Protocol, Test, changed
from saliency_bench.types import Images
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.seeds import seed_of

VERSION = 1  # of what is trained; another one trains anew


@dataclass(frozen=True)
class Task:
    """A training. explainer: None where pictures are left as they are, or replaced as a whole."""

    explainer: Explainer | None
    exposure: int  # its number in `EXPOSURES`
    number: int  # from 1 on: its initial weights and order of images
    protocol: Protocol

    @classmethod
    def of(cls, explainer: Explainer, exposure: int, number: int, protocol: Protocol) -> "Task":
        """Equal trainings are equal tasks, whichever explainer and metric they are for."""
        trained = replace(protocol, test="modified", trainings=1, exposures=EXPOSURES)
        if 0 < exposure < len(EXPOSURES) - 1:
            return cls(explainer, exposure, number, trained)
        whole = (exposure == 0) == (protocol.keeps == "rest")
        return cls(None, 0 if whole else len(EXPOSURES) - 1, number, replace(trained, keeps="rest"))

    @property
    def key(self) -> str:
        """Its name within the folder, which says the rest: images, classifier, seed of the run."""
        identity = None if self.explainer is None else self.explainer.identity
        protocol = {name: value for name, value in vars(self.protocol).items() if name != "exposures"}
        if protocol["initial"] == "new":  # as it was before networks could start from anything else
            del protocol["initial"]
        return hash_of(VERSION, identity, self.exposure, self.number, protocol)


def outcome_file(folder: Path, task: Task) -> Path:
    return folder / "outcomes" / f"{task.key}.json"


def is_done(folder: Path, task: Task) -> bool:
    """Whether a training has its outcome; one that is damaged is made anew."""
    path = outcome_file(folder, task)
    if not path.is_file():
        return False
    try:
        found = read_json(path)
        return found["hash"] == hash_of(found["answers"])
    except (UserError, KeyError, TypeError):
        return False


@dataclass(frozen=True)
class Changed:
    """A source of images of one split as a task changes them. kept: the positions of those it has."""

    task: Task
    split: Split
    pictures: Pictures
    kept: np.ndarray
    first: np.ndarray | None  # Uint8 (N, H * W), see `first_exposures`
    device: torch.device

    @classmethod
    def of(cls, task: Task, split: Split, pictures: Pictures, device: torch.device) -> "Changed":
        """Of all samples with an image, a label and, where it matters, a map. Raises: UserError for none."""
        kept, first = pictures.there[split.name], None
        kept = kept[split.labels[kept] >= 0]
        if task.explainer is not None:
            first, there = gathered(pictures.folder, task.explainer, split)
            kept = kept[there[kept]]
        if len(kept) == 0:
            raise UserError(f"{task.explainer} gives no map of any image of the split {split.name}")
        return cls(task, split, pictures, kept, first, device)

    def __len__(self) -> int:
        return len(self.kept)

    def batch(self, positions: np.ndarray) -> tuple[Images, Tensor]:
        places = self.kept[positions]
        return self.changed(places), torch.from_numpy(self.split.labels[places]).to(self.device)

    def plain(self, places: np.ndarray) -> Images:
        return self.pictures.images(self.split.name, places).to(self.device)

    def changed(self, places: np.ndarray) -> Images:
        images = self.plain(places)
        first = None
        if self.first is not None:
            first = torch.from_numpy(self.first[places]).view(-1, *images.shape[2:]).to(self.device)
        return changed(images, first, self.task.exposure, self.task.protocol.keeps, self.pictures.colour)


def retrain(
    context: RunContext, splits: Splits, pictures: Pictures, folder: Path, task: Task, step: Callable[[], object]
) -> None:
    """Train, or go on after the last complete epoch, and write the outcome.

    step: called for each batch of an epoch. Raises: UserError where the loss is not finite.
    """
    classifier = new_classifier(context, task.number, task.protocol.initial != "new")
    train, validation, test = (Changed.of(task, split, pictures, classifier.device) for split in splits.all)
    own = task.protocol
    seed = seed_of(context.spec.seed, "retraining", task.number)
    training = Training(Recipe(own.epochs, own.learning_rate, own.batch_size, seed=seed), classifier)
    state = folder / "states" / f"{task.key}.pt"
    training.resume(state, settings := {"key": task.key})
    for _ in range(len(training.log), own.epochs):
        training.next_epoch(Counted(train, step), Counted(validation, step))
        training.write(state, settings)
    classifier.model.load_state_dict(training.best)
    answers = _answers(classifier, test, own.batch_size)
    outcome = {"hash": hash_of(answers), "answers": answers, "weights": classifier.digest, "epochs": training.log}
    write_json(outcome_file(folder, task), outcome)
    state.unlink(missing_ok=True)


@torch.no_grad()
def _answers(classifier: Classifier, test: Changed, batch_size: int) -> dict[str, list[int]]:
    """{"modified", "clean": the class that the network gives each image of the run, `NO_ANSWER` where none is there}"""
    classifier.eval()
    found = {kind: np.full(len(test.split.labels), NO_ANSWER) for kind in get_args(Test)}
    for start in range(0, len(test), batch_size):
        places = test.kept[start : start + batch_size]
        for kind, images in (("modified", test.changed(places)), ("clean", test.plain(places))):
            found[kind][places] = classifier(images).argmax(dim=1).cpu().numpy()
    return {kind: answers.tolist() for kind, answers in found.items()}


def new_classifier(context: RunContext, number: int, from_base: bool = False) -> Classifier:
    """A classifier like the run's, with new weights that depend on the run's seed and this number.

    from_base: with those of the checkpoint that its training started from, where there are such.
    """
    own = context.classifier
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(context.spec.seed, "retraining weights", number))
        network = anew(own.model, own.id)
    if from_base and context.base is not None:
        start_from(network, context.base)
    return Classifier(
        network, id=own.id, geometry=own.geometry, frame=own.frame, mean=own.mean.flatten().tolist(),
        std=own.std.flatten().tolist(), labels=own.labels, channels=own.channels, logits=own.logits,
        activation=own.activation,
    ).to(own.device)  # fmt: skip


def start_from(network: nn.Module, base: Classifier) -> None:
    """Give a network the weights of a checkpoint, but for those of another shape, which are of its last layer.

    Raises: UserError for a checkpoint of another structure.
    """
    own, known = network.state_dict(), base.model.state_dict()
    if strange := sorted(own.keys() ^ known.keys()):
        raise UserError(f"{base.id} is of another structure than the model: one of both has no {strange[0]}")
    network.load_state_dict({name: known[name] if known[name].shape == own[name].shape else own[name] for name in own})


def anew(network: nn.Module, name: str) -> nn.Module:
    """A network of the same structure whose weights are drawn as when it was made, from torch's generator.

    Raises: UserError for one with weights that nothing says how to draw.
    """
    if hasattr(network, "config") and hasattr(network, "from_pretrained"):  # of transformers
        return type(network)(copy.deepcopy(network.config))
    other = copy.deepcopy(network)
    for path, module in other.named_modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
        elif own := next(iter(dict(module.named_parameters(recurse=False))), None):
            raise UserError(
                f"{name} cannot be retrained from new weights: {type(module).__name__} {path or '(the network itself)'}"
                f" has no reset_parameters() that draws its {own}; add one"
            )
    return other
