"""The pictures that networks are retrained on and asked about, each with the class of the model that it is trained for.

OUT/retraining/survey.json   what the pictures themselves say: their mean colour, which of them cannot be read
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from saliency_bench.data.fingerprints import content_of
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.ordering import first_rows
from saliency_bench.engine.reading import Samples, ahead, read_chunk, readable, sample_ids, training_splits
from saliency_bench.errors import UserError
from saliency_bench.types import Chunk


@dataclass(frozen=True)
class Split:
    """labels: Int (N,), the class of the model that each sample is trained for; -1 where there is none."""

    name: str
    samples: Samples
    labels: np.ndarray

    def numbers(self, size: int) -> list[int]:
        """Of all its chunks of this size."""
        return list(range(-(-len(self.labels) // size)))

    def chunks(
        self, context: RunContext, numbers: list[int], done: Callable[[], object]
    ) -> Iterator[tuple[int, Chunk]]:
        """(number, samples) of these chunks, each prepared in a thread while the one before is worked on.

        done: called after each.
        """
        size = context.spec.batch_size

        def read(number: int) -> Chunk:
            places = range(number * size, min((number + 1) * size, len(self.labels)))
            return read_chunk(self.samples, context.classifier, places, False)

        for number, chunk in ahead(read, numbers, lambda waited: None):
            yield number, chunk
            done()


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
        for name, rows in training_splits(context.found, context.spec.label_column, context.names).items():
            if name == "train" and images is not None:
                rows = first_rows(rows, images, context.spec.seed, content_of(rows)[0])
            samples = Samples(readable(rows), sample_ids(rows), content_of(rows)[1])
            split = Split(name, samples, _labels(context, samples))
            if (split.labels < 0).all():
                raise UserError(f"the split {name} of {context.spec.dataset} has no labelled image to train on")
            found.append(split)
        test = Split("test", context.data, _labels(context, context.data))
        return cls(found[0], found[1], test, context.trained_on)


def _check_classes(context: RunContext) -> None:
    """Raises: UserError where the classes are not such that each image is one class of the model."""
    if context.classifier.activation != "softmax":
        raise UserError("retraining fits a softmax, and this classifier ends in a sigmoid; leave roar and kar out")
    for name, members in zip(context.names or (), context.members or (), strict=True):
        if len(members) > 1:
            raise UserError(
                f"the class {name} stands for {len(members)} classes of the model, of which retraining needs one; "
                "leave roar and kar out, or give a --label-map"
            )


def _labels(context: RunContext, samples: Samples) -> np.ndarray:
    given = samples.rows["label"]
    member = [members[0] if members else -1 for members in context.members or []]
    return np.array([-1 if label is None or label < 0 else member[label] for label in given], np.int64)
