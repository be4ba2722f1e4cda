"""The images that networks are retrained on and asked about, each with the class of the model that it stands for."""

from dataclasses import dataclass

import numpy as np

from saliency_bench.engine.context import RunContext
from saliency_bench.engine.ordering import first_positions
from saliency_bench.engine.reading import Samples, readable, sample_ids
from saliency_bench.errors import UserError


@dataclass(frozen=True)
class Split:
    """labels: Int (N,), the class of the model that each sample is trained for; -1 where there is none."""

    name: str
    samples: Samples
    labels: np.ndarray


@dataclass(frozen=True)
class Splits:
    """content: a hash of the images and labels that are trained on."""

    train: Split
    validation: Split
    test: Split
    content: str

    @property
    def all(self) -> tuple[Split, Split, Split]:
        return self.train, self.validation, self.test

    @classmethod
    def of(cls, context: RunContext, images: int | None) -> "Splits":
        """images: how many of the training images are used, drawn by the run's seed.

        Raises: UserError for a dataset or classifier that cannot be retrained on.
        """
        _check_classes(context)
        found: list[Split] = []
        for name, own in context.training.items():
            limit = images if name == "train" else None
            positions = first_positions(own.rows, limit, context.spec.seed, own.content)
            rows = own.rows.select(positions)
            samples = Samples(readable(rows), sample_ids(rows), [own.digests[position] for position in positions])
            split = Split(name, samples, _labels(context, samples))
            if (split.labels < 0).all():
                raise UserError(f"the split {name} of {context.spec.dataset} has no labelled image to train on")
            found.append(split)
        test = Split("test", context.data, _labels(context, context.data))
        return cls(found[0], found[1], test, context.trained_on)


def _check_classes(context: RunContext) -> None:
    """Raises: UserError where the classes are not such that each image is one class of the model."""
    if context.classifier.activation != "softmax":
        raise UserError(
            "retraining fits a softmax, and this classifier ends in a sigmoid; leave out saliency_roar and saliency_kar"
        )
    for name, members in zip(context.names or (), context.members or (), strict=True):
        if len(members) > 1:
            raise UserError(
                f"the class {name} stands for {len(members)} classes of the model, of which retraining needs one; "
                "leave out saliency_roar and saliency_kar, or give a --label-map"
            )


def _labels(context: RunContext, samples: Samples) -> np.ndarray:
    given = samples.rows["label"]
    member = [members[0] if members else -1 for members in context.members or []]
    return np.array([-1 if label is None or label < 0 else member[label] for label in given], np.int64)
