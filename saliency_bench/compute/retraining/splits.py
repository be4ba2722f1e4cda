"""The setup of a retraining, and the images that networks are trained and tested on."""

from dataclasses import dataclass

import numpy as np

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.context import RunContext
from saliency_bench.compute.ordering import first_positions
from saliency_bench.compute.reading import SplitRows, readable
from saliency_bench.data.loading import sample_ids
from saliency_bench.errors import UserError


@dataclass(frozen=True)
class Setup:
    """Common setup of all trainings of a run.

    Attributes:
        classifier: The run's classifier, whose structure the networks have.
        base: The checkpoint that its own training started from, if the run needs it.
        classes: Number of its classes.
        seed: Seed of the run.
        batch_size: Images in a batch when they are prepared and explained.
    """

    classifier: Classifier
    base: Classifier | None
    classes: int
    seed: int
    batch_size: int

    @classmethod
    def from_context(cls, context: RunContext) -> "Setup":
        """Return the setup of a run."""
        classes, spec = context.question.classes, context.spec
        return cls(context.classifier, context.retraining.base, classes, spec.seed, spec.batch_size)


@dataclass(frozen=True)
class RetrainingSplit:
    """Images of a split; `labels` is Int (N,), the class of the model each is trained for, -1 where there is none."""

    name: str
    samples: SplitRows
    labels: np.ndarray


@dataclass(frozen=True)
class Splits:
    """The three splits of a retraining; `content` is a hash of all rows of train and validation."""

    train: RetrainingSplit
    validation: RetrainingSplit
    test: RetrainingSplit
    content: str

    @property
    def all(self) -> tuple[RetrainingSplit, RetrainingSplit, RetrainingSplit]:
        """All splits."""
        return self.train, self.validation, self.test

    @classmethod
    def from_context(cls, context: RunContext, images: int | None) -> "Splits":
        """Return the splits of a run, with this many training images, drawn by the run's seed.

        Raises:
            UserError: The dataset or classifier cannot be retrained on.
        """
        _check_classes(context)
        splits: dict[str, RetrainingSplit] = {}
        for name, source in context.retraining.rows.items():
            limit = images if name == "train" else None
            positions = first_positions(source.rows, limit, context.spec.seed, source.content)
            rows = source.rows.select(positions)
            samples = SplitRows(readable(rows), sample_ids(rows), [source.digests[position] for position in positions])
            splits[name] = RetrainingSplit(name, samples, _labels(context, samples))
            if (splits[name].labels < 0).all():
                raise UserError(f"the split {name} of {context.spec.dataset} has no labelled image to train on")
        test = RetrainingSplit("test", context.data.samples, _labels(context, context.data.samples))
        return cls(splits["train"], splits["validation"], test, context.retraining.trained_on)


def _check_classes(context: RunContext) -> None:
    """Raise UserError unless each image is of exactly one class of the model."""
    if context.classifier.activation != "softmax":
        raise UserError(
            "retraining fits a softmax, and this classifier ends in a sigmoid; leave out saliency_roar and saliency_kar"
        )
    for name, members in zip(context.question.names or (), context.question.members or (), strict=True):
        if len(members) > 1:
            raise UserError(
                f"the class {name} stands for {len(members)} classes of the model, of which retraining needs one; "
                "leave out saliency_roar and saliency_kar, or give a --label-map"
            )


def _labels(context: RunContext, samples: SplitRows) -> np.ndarray:
    """Return the class of the model of each sample, -1 where there is none."""
    member = [members[0] if members else -1 for members in context.question.members or []]
    labels = samples.rows["label"]
    return np.array([-1 if label is None or label < 0 else member[label] for label in labels], np.int64)
