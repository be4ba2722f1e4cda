"""Predict: the network's prediction of each sample, batch by batch.

`predict` passes a batch through the network; `StoredPredictions` are the rows that part files hold; `with_predictions`
adds the rows to the samples, from which explaining and scoring start.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import torch

from saliency_bench.compute.classified import classified
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.context import RunContext
from saliency_bench.compute.reading import ReadBatch, scalar_columns, stored
from saliency_bench.compute.scoring.partners import Predictions
from saliency_bench.compute.targets.rules import ordered_classes
from saliency_bench.errors import UserError
from saliency_bench.read import records
from saliency_bench.read.parts import POSITION, Part, PartFolder, PartNote, StoredResult
from saliency_bench.target_weights import no_probabilities, probabilities, recognised
from saliency_bench.types import Samples
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


class StoredPredictions:
    """The predictions in part files; one file at a time is in memory.

    Attributes:
        is_stored: Bool (samples,), whether a file holds the prediction.
        is_readable: Bool (samples,), False where the sample could not be read or the network raised for it.
    """

    def __init__(self, parts: Sequence[Part], count: int):
        """Index the predictions of the first `count` samples of the run."""
        self._parts = parts
        self._part_at = np.full(count, -1)
        self.is_readable = np.ones(count, bool)
        for number, entry in ((number, entry) for number, part in enumerate(parts) for entry in part.entries):
            positions, unreadable = entry.positions(), entry.positions(entry.about["unreadable"])
            self._part_at[positions[positions < count]] = number
            self.is_readable[unreadable[unreadable < count]] = False
        self.is_stored = self._part_at >= 0
        self._read: tuple[Part, list[str] | None, pa.Table] | None = None

    @property
    def parts(self) -> list[Part]:
        """Return the files that hold predictions."""
        return [self._parts[number] for number in np.unique(self._part_at[self.is_stored])]

    def table(self, batch: range, columns: list[str] | None = None) -> pa.Table:
        """Return the stored rows of a batch, in order; all columns unless some are named."""
        part_at = self._part_at[batch.start : batch.stop]
        edges = [0, *(np.flatnonzero(np.diff(part_at)) + 1).tolist(), len(part_at)]
        tables = [
            self._rows(self._parts[part_at[first]], batch.start + first, batch.start + stop, columns)
            for first, stop in pairwise(edges)
            if part_at[first] >= 0
        ]
        return pa.concat_tables(tables)

    def _rows(self, part: Part, first: int, stop: int, columns: list[str] | None) -> pa.Table:
        """Return the rows of a file for the positions from `first` to before `stop`."""
        if self._read is None or self._read[0] is not part or self._read[1] != columns:
            named = None if columns is None else [POSITION, *columns]
            self._read = part, columns, part.read(GROUP, named)[GROUP]
        table = self._read[2]
        start, end = np.searchsorted(table[POSITION].to_numpy(), [first, stop])
        return table.slice(start, end - start).drop_columns(POSITION)


def stored_predictions(context: RunContext, *, check: bool = False) -> StoredPredictions:
    """Return the predictions that files hold.

    Args:
        context: the run.
        check: delete damaged files and, if the run is strict, files with a sample that has no prediction; for the main
            process, under the lock.
    """
    folder = prediction_parts(context)

    def redo(entry: PartNote) -> bool:
        return context.spec.strict and bool(entry.about["unreadable"])

    return StoredPredictions(folder.check(redo) if check else folder.parts(), context.end)


def read_predictions(
    context: RunContext, predictions: StoredPredictions, columns: list[str]
) -> Iterator[tuple[range, pa.Table]]:
    """Yield (batch, these columns of its predictions) of each batch whose predictions are stored, in order."""
    for batch in context.batches:
        if predictions.is_stored[batch.start : batch.stop].all():
            yield batch, predictions.table(batch, columns)


def predict(context: RunContext, read: ReadBatch) -> tuple[list[dict], StoredResult]:
    """Return the classifier's predictions for a batch, as rows and as they are stored.

    A sample that could not be read has nulls, and a sample without probabilities has no prediction.
    """
    table = pa.Table.from_pylist(answers(context, read), schema=prediction_schema(context))
    rows = table.to_pylist()  # as the file returns them, so that it does not matter who predicted
    first = read.positions[0]
    without = [place - first for place, row in zip(read.positions, rows, strict=True) if row["logits"] is None]
    table = table.add_column(0, POSITION, pa.array(read.positions, pa.int64()))
    return rows, StoredResult(GROUP, read.positions, {GROUP: table}, {"unreadable": without})


def answers(context: RunContext, read: ReadBatch) -> list[dict]:
    """Return the classifier's prediction for each row of a batch, without reading what was written."""
    names, samples = prediction_schema(context).names, read.samples
    columns: dict[int, dict] = {position: {"left_out": reason} for position, reason in read.faults.items()}
    if samples is not None:
        logits, raised = classified(context.classifier, samples.batch.images)
        columns |= {samples.positions[index]: {"left_out": reason} for index, reason in raised.items()}
        for index, values in zip((index for index in range(len(samples)) if index not in raised), logits, strict=True):
            columns[samples.positions[index]] = _predicted(context, samples, index, values)
    rows = []
    for position, row in zip(read.positions, read.rows, strict=True):
        known = {stored(name): value for name, value in row.items()} | columns[position]
        rows.append({name: known.get(name) for name in names})
    return rows


def with_predictions(
    context: RunContext, samples: Samples, rows: Mapping[int, dict], of_other: Mapping[int, dict] | None
) -> Samples | None:
    """Return the samples that the network has predicted, with the rows of the predictions; None if there are none.

    Args:
        context: the run.
        samples: those that could be read.
        rows: {position in the run: the classifier's prediction}.
        of_other: the same of the other model; None without one.

    Raises:
        UserError: The network raised for a sample, and the run is strict.
    """
    raised = [rows[position] for position in samples.positions if rows[position]["logits"] is None]
    if raised and context.spec.strict:
        raise UserError(f"image {raised[0]['image_id']}: {raised[0]['left_out']}")
    kept = samples.at([position for position in samples.positions if rows[position]["logits"] is not None])
    if kept is None:
        return None
    others = None if of_other is None else [of_other[position] for position in kept.positions]
    return replace(kept, rows=[rows[position] for position in kept.positions], rows_of_other=others)


def _predicted(context: RunContext, samples: Samples, index: int, logits: torch.Tensor) -> dict:
    """Return the columns of a sample that follow from its logits (K,)."""
    batch, about, activation = samples.batch, samples.rows[index], context.classifier.activation
    reason, right = batch.left_out[index], context.question.right(about)
    row = {
        "mask_share": None if reason else float(batch.masks[index].float().mean()),
        "left_out": reason,
        "logits": logits.tolist(),
        "target_confidence": _target_confidence(context, about, logits),
    }
    p = probabilities(logits[None].double(), activation)[0]
    if p.isnan().any():  # `target.no_probabilities`
        return row
    best = ordered_classes(logits.numpy())[0]  # probabilities may both round to 1, logits differ
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
    if not predictions.is_stored.all():
        raise UserError(
            f"a part of the predictions in {context.out} was damaged or lost during the run; start it again"
        )
    p = np.full((context.data.count, context.question.classes), np.nan, dtype=np.float32)
    right, ids = np.zeros(p.shape, dtype=bool), []
    for batch, table in read_predictions(context, predictions, ["image_id", "label", "labels", "logits"]):
        start = batch.start
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
