"""Define the setup of retraining and the images on which networks are trained and tested."""

from dataclasses import dataclass

import numpy as np

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.loaded import RunModel, RunQuestion
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.ordering import first_positions
from saliency_bench.compute.reading import SplitRows, readable
from saliency_bench.data.loading import sample_ids
from saliency_bench.errors import UserError


@dataclass(frozen=True)
class Setup:
    """Setup shared by all networks that a run retrains.

    Attributes:
        classifier: The run's classifier. The retrained networks have the same structure.
        base: Checkpoint from which the classifier was fine-tuned, if the run needs it.
        classes: Number of the classifier's classes.
        seed: Seed of the run.
        batch_size: Number of images that are prepared and explained in a batch.
    """

    classifier: Classifier
    base: Classifier | None
    classes: int
    seed: int
    batch_size: int

    @classmethod
    def make(cls, data: SplitTable, model: RunModel) -> "Setup":
        """Return the setup of a run."""
        classes, spec = model.question.classes, data.spec
        return cls(model.classifier, model.retraining.base, classes, spec.seed, spec.batch_size)


@dataclass(frozen=True)
class RetrainingSplit:
    """Images of a split. `labels`, Int (N,), contains the training class of each image, or -1 if it has none."""

    name: str
    samples: SplitRows
    labels: np.ndarray


@dataclass(frozen=True)
class Splits:
    """The three splits used for retraining. `content` is a hash of all rows of the splits "train" and "validation"."""

    train: RetrainingSplit
    validation: RetrainingSplit
    test: RetrainingSplit
    content: str

    @property
    def all(self) -> tuple[RetrainingSplit, RetrainingSplit, RetrainingSplit]:
        """All three splits."""
        return self.train, self.validation, self.test

    @classmethod
    def make(cls, data: SplitTable, model: RunModel, images: int | None) -> "Splits":
        """Return the splits of a run. `images` training images are drawn with the run's seed; None uses all of them.

        Raises:
            UserError: The dataset or classifier cannot be used for retraining.
        """
        spec, question = data.spec, model.question
        _check_classes(question)
        splits: dict[str, RetrainingSplit] = {}
        for name, source in model.retraining.rows.items():
            limit = images if name == "train" else None
            positions = first_positions(source.rows, limit, spec.seed, source.content)
            rows = source.rows.select(positions)
            samples = SplitRows(readable(rows), sample_ids(rows), [source.digests[position] for position in positions])
            splits[name] = RetrainingSplit(name, samples, _labels(question, samples))
            if (splits[name].labels < 0).all():
                raise UserError(f"the split {name} of {spec.dataset} has no labelled image to train on")
        test = RetrainingSplit("test", data.samples, _labels(question, data.samples))
        return cls(splits["train"], splits["validation"], test, model.retraining.trained_on)


def _check_classes(question: RunQuestion) -> None:
    """Raise UserError unless each image has exactly one class of the model."""
    if question.activation != "softmax":
        raise UserError(
            "retraining needs a softmax, but the classifier ends in a sigmoid; leave out saliency_roar and saliency_kar"
        )
    for name, members in zip(question.names or (), question.members or (), strict=True):
        if len(members) > 1:
            raise UserError(
                f"the class {name} matches {len(members)} classes of the model, but retraining needs exactly one; "
                "leave out saliency_roar and saliency_kar, or use a --label-map"
            )


def _labels(question: RunQuestion, samples: SplitRows) -> np.ndarray:
    """Return the class of each sample among the model's classes, or -1 if there is none."""
    member = [members[0] if members else -1 for members in question.members or []]
    labels = samples.rows["label"]
    return np.array([-1 if label is None or label < 0 else member[label] for label in labels], np.int64)
