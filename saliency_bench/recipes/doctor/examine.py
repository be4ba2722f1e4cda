"""Read the images for `doctor`, and classify them with the declared preprocessing and with alternatives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, inf
from time import perf_counter

import numpy as np
from PIL import Image

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.explain import explain
from saliency_bench.compute.loaded import RunModel
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.predictions import answers
from saliency_bench.compute.reading import ReadBatch
from saliency_bench.compute.targets.rules import stack
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError
from saliency_bench.recipes.choosing.candidates import seconds_per_pass
from saliency_bench.recipes.doctor.checks import ENOUGH
from saliency_bench.recipes.doctor.variants import Variant, is_grey, variants
from saliency_bench.spec import RunSpec
from saliency_bench.types import Batch, Images
from saliency_bench.utils.pictures import UnreadableError, opened

MOST = 256  # maximum number of images, unless the limit is higher
BASELINES = ("random", "centre")
ALIGNMENT = ("saliency_miou", "saliency_pointing_game", "saliency_average_precision")
Scores = dict[tuple[str, str], list[float]]


@dataclass
class Examined:
    """Images that were read, and their predictions.

    Attributes:
        data: Samples of the run.
        model: Network of the run.
        rows: Predictions for the images, in the format that a run uses.
        first: The first batch. `first_rows` contains the predictions for it.
        correct: {variant: whether the prediction of each image is correct, or None if unknown}.
        refused: Variants whose images the network rejects.
        scores: {(baseline, metric): score of each image with a mask}. `scored` contains the predictions for these
            images.
        sizes: (width, height) of the image files of the first batch.
        grey: Whether all images of the first batch are grey.
        seconds_per_pass: Seconds per image for a forward pass.
    """

    data: SplitTable
    model: RunModel
    first: ReadBatch
    first_rows: list[dict]
    sizes: list[tuple[int, int]]
    grey: bool
    seconds_per_pass: float
    rows: list[dict] = field(default_factory=list)
    correct: dict[Variant, list[bool | None]] = field(default_factory=dict)
    refused: list[Variant] = field(default_factory=list)
    scores: Scores = field(default_factory=dict)
    scored: list[dict] = field(default_factory=list)

    @property
    def images(self) -> Images:
        """Return the preprocessed images of the first batch."""
        assert self.first.samples is not None
        return self.first.samples.batch.images


def examine(data: SplitTable, model: RunModel, seconds: float) -> Examined:
    """Read and classify as many of the run's first images as the time allows.

    If there is not enough time for all batches, the number of batches is rounded down to a power of two, so that the
    number rarely depends on the load of the machine.

    Raises:
        UserError: None of the first images can be read.
    """
    start = perf_counter()
    classifier, count, size = model.classifier, data.count, data.spec.batch_size
    first = _read(data, classifier, 0)
    reading = (perf_counter() - start) / len(first.rows)
    if first.samples is None:
        raise UserError(f"the first images of {data.source.name} cannot be read: {next(iter(first.faults.values()))}")
    images = first.samples.batch.images
    predicted = _predict(data, model, first)
    pass_seconds = seconds_per_pass(classifier, images)
    sizes = _sizes(data, len(first.rows))
    others = variants(classifier, images, sizes) if model.question.members is not None else []
    examined = Examined(data, model, first, predicted, sizes, is_grey(images), pass_seconds)
    resized = sum(other.kind == "size" for other in others)
    per_image = reading * (1 + resized) + pass_seconds * (1 + sum(other.cost for other in others))
    batches = _count(data.spec, count, (seconds - (perf_counter() - start)) / max(per_image, 1e-9))
    is_enough = min(batches * size, count) >= ENOUGH
    examined.correct = {other: [] for other in others if is_enough}
    for number in range(batches):
        read = first if number == 0 else _read(data, classifier, number)
        _add(examined, read, predicted if number == 0 else _predict(data, model, read))
    return examined


def _add(examined: Examined, read: ReadBatch, rows: list[dict]) -> None:
    """Add a batch: the predictions with the declared preprocessing and with all variants, and the baselines' scores."""
    data, model = examined.data, examined.model
    examined.rows += rows
    for other in [other for other in examined.correct if other not in examined.refused]:
        predicted = other.answers(data, model.question, read)
        if not any(row["logits"] is not None for row in predicted):
            predicted = []
            examined.refused += [other] * (read is examined.first)
        examined.correct[other] += [row["correct"] for row in predicted] or [None] * len(rows)
    if read.samples is None:
        return
    samples, row_at = read.samples, dict(zip(read.positions, rows, strict=True))
    masked = [index for index, reason in enumerate(samples.batch.left_out) if reason is None]
    if not masked:
        return
    batch = samples.batch.part(masked)
    scored = [row_at[samples.positions[index]] for index in masked]
    examined.scored += scored
    for name, maps in _baseline_maps(model, batch, scored, data.spec.seed).items():
        for metric in ALIGNMENT:
            values = as_metric(metric)(maps, batch.masks.numpy())
            examined.scores.setdefault((name, metric), []).extend(values.tolist())


def _baseline_maps(model: RunModel, batch: Batch, rows: list[dict], seed: int) -> dict[str, np.ndarray]:
    """Return {baseline: maps}, equal to the maps of a run with this seed. Random maps also depend on the target."""
    question = model.question
    terms = [
        question.target_of(row, np.asarray(row["logits"]))
        if row["logits"] is not None and question.has_target(row)
        else TargetTerms((0,))
        for row in rows
    ]
    target = stack(terms, question.classes).to(batch.images.device)
    made = {
        name: explain(model.classifier, batch, as_explainer(name), target, seed, strict=False).maps
        for name in BASELINES
    }
    return {name: maps.cpu().numpy() for name, maps in made.items() if maps is not None}


def _read(data: SplitTable, classifier: Classifier, number: int) -> ReadBatch:
    """Read a batch without the samples beyond the limit."""
    positions = data.batches[number]
    return data.read(classifier, range(positions.start, min(positions.stop, data.count)))


def _predict(data: SplitTable, model: RunModel, read: ReadBatch) -> list[dict]:
    return answers(model.classifier, model.question, read, data.schema.names)


def _count(spec: RunSpec, images: int, affordable: float) -> int:
    """Return the number of batches to classify if there is enough time for `affordable` images."""
    size = spec.batch_size
    most = images if spec.limit else min(images, MOST)
    batches = ceil(most / size)
    if affordable == inf or affordable >= most:
        return batches
    fitting = max(1, int(affordable // size))
    return min(batches, 2 ** (fitting.bit_length() - 1))


def _sizes(data: SplitTable, count: int) -> list[tuple[int, int]]:
    """Return (width, height) of the first `count` readable image files."""
    return list(islice(_readable_sizes(data.samples.at(range(count))), count))


def _readable_sizes(samples: Sequence[dict]) -> list[tuple[int, int]]:
    sizes = []
    for sample in samples:
        try:
            picture: Image.Image = opened(sample["image"])
        except UnreadableError:
            continue
        sizes.append(picture.size)
    return sizes
