"""Predict: what a network says of each sample, chunk by chunk, the same whoever wrote it.

`predict` passes a chunk through the network; `StoredPredictions` are the rows that part files hold; a `PredictedChunk`,
samples with what the networks say of them, is what explaining and scoring start from.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch

from saliency_bench.compute.classified import classified
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.context import RunContext
from saliency_bench.compute.reading import scalar_columns, stored
from saliency_bench.compute.scoring.partners import Predictions
from saliency_bench.compute.targets.rules import ordered_classes
from saliency_bench.errors import UserError
from saliency_bench.read import records
from saliency_bench.read.parts import POSITION, Part, PartFolder, StoredResult
from saliency_bench.target_weights import no_probabilities, probabilities, recognised
from saliency_bench.types import Batch, Chunk
from saliency_bench.utils.hashing import hash_of

GROUP = "predictions"  # the only group and key of the part files
BEST = 5  # classes that top-5 accuracy looks at


def prediction_parts(context: RunContext) -> PartFolder:
    """Return the folder of the part files of predictions."""
    # A file of an earlier version has other columns.
    return PartFolder(context.out / context.folder, hash_of(context.run_id, str(prediction_schema(context))))


def prediction_schema(context: RunContext) -> pa.Schema:
    """Return the columns: `records.PREDICTIONS` and the scalar columns of the dataset.

    A column of the dataset whose name is taken gets "dataset_" in front.
    """
    scalars = scalar_columns(context.rows.features)
    return pa.schema(
        [*records.PREDICTIONS, *((stored(name), kind) for name, kind in scalars.items() if name != "group")]
    )


@dataclass(frozen=True)
class PredictedChunk:
    """Samples of a chunk with the networks' predictions.

    Attributes:
        number: of the chunk.
        first: the position in the run of the chunk's first sample.
        positions: of the samples in the chunk.
        chunk: the samples.
        rows: the classifier's prediction for each of them.
        rows_of_other: what the other model says of each; None where there is none.
        is_whole: whether these are all samples of the chunk.
    """

    number: int
    first: int
    positions: tuple[int, ...]
    chunk: Chunk
    rows: list[dict]
    rows_of_other: list[dict] | None = None
    is_whole: bool = True

    def part(self, positions: Sequence[int]) -> "PredictedChunk":
        """Return the samples at these positions alone, of a whole chunk."""
        if len(positions) == len(self.rows):
            return self
        others = self.rows_of_other
        return replace(
            self,
            positions=tuple(positions),
            chunk=self.chunk.part(positions),
            rows=[self.rows[position] for position in positions],
            rows_of_other=None if others is None else [others[position] for position in positions],
            is_whole=False,
        )

    @property
    def batch(self) -> Batch | None:
        """Return the samples that could be read, prepared; None if there are none."""
        return self.chunk.batch

    @property
    def in_run(self) -> list[int]:
        """Return the position of each sample in the run."""
        return [self.first + position for position in self.positions]

    @property
    def readable_in_run(self) -> list[int]:
        """Return the position in the run of each sample that could be read."""
        return [self.in_run[position] for position in self.chunk.readable]

    @property
    def readable(self) -> list[dict]:
        """Return the classifier's prediction for each sample that could be read."""
        return [self.rows[position] for position in self.chunk.readable]

    @property
    def of_other(self) -> list[dict]:
        """Return the other model's prediction for each sample that could be read."""
        return [] if self.rows_of_other is None else [self.rows_of_other[position] for position in self.chunk.readable]


class StoredPredictions:
    """The predictions in part files, chunk by chunk; one file at a time is in memory.

    `number in predictions` says whether there are any of a chunk.
    """

    def __init__(self, parts: Iterable[Part], chunk_size: int):
        """Take the part files, and the number of samples of a chunk."""
        self._part_of = {number: part for part in parts for entry in part.entries for number in entry.chunks}
        self._size = chunk_size
        self._read: tuple[Part, list[str] | None, pa.Table] | None = None

    def __contains__(self, number: int) -> bool:
        return number in self._part_of

    @property
    def parts(self) -> list[Part]:
        """Return the files that hold predictions."""
        return list(dict.fromkeys(self._part_of.values()))

    def table(self, number: int, columns: list[str] | None = None) -> pa.Table:
        """Return the rows of a chunk; all columns unless some are named."""
        part = self._part_of[number]
        if self._read is None or self._read[0] is not part or self._read[1] != columns:
            named = None if columns is None else [POSITION, *columns]
            self._read = part, columns, part.read(GROUP, named)[GROUP]
        table = self._read[2]
        first, end = np.searchsorted(table[POSITION].to_numpy(), [number * self._size, (number + 1) * self._size])
        return table.slice(first, end - first).drop_columns(POSITION)


def stored_predictions(context: RunContext, *, check: bool = False) -> StoredPredictions:
    """Return the predictions that files hold; `check` deletes damaged ones: for the main process, under the lock."""
    folder = prediction_parts(context)
    return StoredPredictions(folder.check() if check else folder.parts(), context.spec.batch_size)


def read_predictions(
    context: RunContext, predictions: StoredPredictions, columns: list[str]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield (chunk, these columns of its predictions) of each chunk that has any, in order."""
    for number in context.chunks:
        if number in predictions:
            yield number, predictions.table(number, columns)


def predict(context: RunContext, number: int, chunk: Chunk) -> tuple[list[dict], StoredResult]:
    """Return the classifier's predictions for a chunk, as objects and as rows of a part file.

    What could not be read is null, and a sample without probabilities has no prediction.
    """
    table = pa.Table.from_pylist(answers(context, chunk), schema=prediction_schema(context))
    start = number * context.spec.batch_size
    rows = table.to_pylist()  # as the file gives it back, so that it does not matter who wrote
    table = table.add_column(0, POSITION, pa.array(range(start, start + len(rows)), pa.int64()))
    return rows, StoredResult(GROUP, number, {GROUP: table})


def answers(context: RunContext, chunk: Chunk) -> list[dict]:
    """Return the classifier's predictions for the samples of a chunk, without reading what was written."""
    chunk, logits = classified(context.classifier, chunk)
    index_of = {position: index for index, position in enumerate(chunk.readable)}
    rows, names = [], prediction_schema(context).names
    for position, about in enumerate(chunk.rows):
        row = {stored(name): value for name, value in about.items()} | {"left_out": chunk.faults.get(position)}
        if position in index_of and logits is not None and chunk.batch is not None:
            row |= _predicted(context, chunk.batch, index_of[position], logits, context.question.right(about))
            row["target_confidence"] = _target_confidence(context, about, logits[index_of[position]])
        rows.append({name: row.get(name) for name in names})
    return rows


def of_predicted(context: RunContext, chunk: Chunk, predicted: Sequence[Mapping]) -> Chunk:
    """Return a chunk without the samples for which the model raised.

    Raises:
        UserError: There is such a sample, and the run is strict.
    """
    rows = {position: predicted[position] for position in chunk.readable}
    faults = {position: row["left_out"] for position, row in rows.items() if row["logits"] is None}
    for position, reason in faults.items():
        if context.spec.strict:
            raise UserError(f"image {predicted[position]['image_id']}: {reason}")
    return chunk.without(faults)


def _predicted(context: RunContext, batch: Batch, index: int, logits: torch.Tensor, right: np.ndarray | None) -> dict:
    """Return the columns of a sample that follow from its logits; `right` says which classes are right."""
    reason = batch.left_out[index]
    row = {
        "mask_share": None if reason else float(batch.masks[index].float().mean()),
        "left_out": reason,
        "logits": logits[index].tolist(),
    }
    activation = context.classifier.activation
    p = probabilities(logits[index : index + 1].double(), activation)[0]
    if p.isnan().any():  # `target.no_probabilities`
        return row
    best = ordered_classes(logits[index].numpy())[0]  # probabilities may both round to 1, logits differ
    row |= {"prediction": best, "confidence": float(p[best])}
    if right is None or not right.any():  # no label, or one that is no class of the model
        return row
    five = activation == "softmax" and len(p) > BEST
    first = np.argsort(-p.numpy(), kind="stable")[:BEST]
    return row | {
        "correct": bool(recognised(p.numpy(), right, activation)),
        "top5": bool(right[first].any()) if five else None,
    }


def _target_confidence(context: RunContext, about: Mapping, logits: torch.Tensor) -> float | None:
    """Return the confidence in the target that a sample's maps explain; None without a target or probabilities.

    It is the probability of the target classes minus that of the contrasted classes, as in perturbation curves.
    """
    p = probabilities(logits[None].double(), context.classifier.activation)[0]
    if p.isnan().any() or not context.question.has_target(about):
        return None
    terms = context.question.target_of(about, logits.numpy())
    return float(p[list(terms.plus)].sum() - p[list(terms.minus)].sum())


def all_predictions(context: RunContext) -> Predictions:
    """Return the predictions of the samples that the run is about, for plans of partners.

    Raises:
        UserError: Some were lost during the run.
    """
    predictions = stored_predictions(context)
    if not all(number in predictions for number in context.chunks):
        raise UserError(
            f"a part of the predictions in {context.out} was damaged or lost during the run; start it again"
        )
    p = np.full((context.data.count, context.question.classes), np.nan, dtype=np.float32)
    right, ids = np.zeros(p.shape, dtype=bool), []
    for number, table in read_predictions(context, predictions, ["image_id", "label", "labels", "logits"]):
        start = number * context.spec.batch_size
        table = table.slice(0, context.data.count - start)
        ids += table["image_id"].to_pylist()
        for place, row in enumerate(table.drop_columns(["logits", "image_id"]).to_pylist(), start):
            classes = context.question.right(row)
            right[place] = False if classes is None else classes
        logits = table["logits"].combine_chunks()
        there = start + np.flatnonzero(logits.is_valid().to_numpy(zero_copy_only=False))
        known = logits.drop_null().flatten().to_numpy().reshape(len(there), context.question.classes)
        p[there] = probabilities_of(context.classifier, torch.from_numpy(known.copy()))
    return Predictions(context.spec.seed, ids, right, p, context.classifier.activation)


def probabilities_of(classifier: Classifier, logits: torch.Tensor) -> np.ndarray:
    """Return the probabilities (n, K) of logits (n, K), NaN for a sample without."""
    p = probabilities(logits.double(), classifier.activation).numpy()
    p[no_probabilities(logits, classifier.activation)] = np.nan
    return p
