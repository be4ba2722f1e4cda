"""Compute the network's prediction for each sample, batch by batch.

`predict` passes a batch through the network. `StoredPredictions` reads the rows in part files. `with_predictions`
combines the rows with samples for explaining and scoring.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import torch

from saliency_bench.bound_metric import Metric
from saliency_bench.compute.classified import classified
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.loaded import Pairs, RunModel, RunQuestion, metrics_of
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.reading import ReadBatch, stored
from saliency_bench.compute.scoring.partners import PartnerPlan, Predictions, plan_of
from saliency_bench.compute.targets.rules import ordered_classes
from saliency_bench.errors import UserError
from saliency_bench.read.parts import POSITION, Part, PartNote, RunStore, StoredResult
from saliency_bench.target_weights import no_probabilities, probabilities, recognised
from saliency_bench.types import Samples

GROUP = "predictions"  # the group and key of all part files
BEST = 5  # classes that top-5 accuracy counts


class StoredPredictions:
    """Predictions in part files. Only one file at a time is in memory.

    Attributes:
        is_stored: Whether a file contains the prediction, Bool (samples,).
        is_readable: Bool (samples,), False if the sample could not be read or the network raised an error for the
            sample.
    """

    def __init__(self, parts: Sequence[Part], count: int):
        """Index the predictions of the run's first `count` samples."""
        self._parts = parts
        self._part_at = np.full(count, -1)
        self.is_readable = np.ones(count, bool)
        for number, entry in ((number, entry) for number, part in enumerate(parts) for entry in part.entries):
            positions, unreadable = entry.positions(), entry.positions(entry.about["unreadable"])
            self._part_at[positions[positions < count]] = number
            self.is_readable[unreadable[unreadable < count]] = False
        self.is_stored = self._part_at >= 0
        self._read: tuple[Part, list[str] | None, pa.Table] | None = None

    @classmethod
    def read(cls, store: RunStore, data: SplitTable, model: RunModel, *, check: bool = False) -> "StoredPredictions":
        """Find the predictions of a network in the part files of a run.

        If `check` is True, damaged files are deleted. In a strict run, files that contain a sample without a prediction
        are deleted too. Only the main process may pass True, while it holds the lock.
        """

        def redo(entry: PartNote) -> bool:
            return data.spec.strict and bool(entry.about["unreadable"])

        folder = store.predictions(model.folder, data.schema)
        return cls(folder.check(redo) if check else folder.parts(), data.end)

    @property
    def parts(self) -> list[Part]:
        """Return the files that contain predictions."""
        return [self._parts[number] for number in np.unique(self._part_at[self.is_stored])]

    def table(self, batch: range, columns: list[str] | None = None) -> pa.Table:
        """Return the stored rows of a batch, in order, by default with all columns."""
        return pa.concat_tables([rows for _, rows in self.tables(columns, batch)])

    def tables(self, columns: list[str] | None = None, batch: range | None = None) -> Iterator[tuple[range, pa.Table]]:
        """Yield (positions, rows) of the predictions of these batches (by default all), file by file in order."""
        batch = range(len(self._part_at)) if batch is None else batch
        part_at = self._part_at[batch.start : batch.stop]
        edges = [0, *(np.flatnonzero(np.diff(part_at)) + 1).tolist(), len(part_at)]
        for first, stop in pairwise(edges):
            if part_at[first] >= 0:
                positions = range(batch.start + first, batch.start + stop)
                yield positions, self._rows(self._parts[part_at[first]], positions, columns)

    def _rows(self, part: Part, positions: range, columns: list[str] | None) -> pa.Table:
        if self._read is None or self._read[0] is not part or self._read[1] != columns:
            named = None if columns is None else [POSITION, *columns]
            self._read = part, columns, part.read(GROUP, named)[GROUP]
        table = self._read[2]
        start, end = np.searchsorted(table[POSITION].to_numpy(), [positions.start, positions.stop])
        return table.slice(start, end - start).drop_columns(POSITION)


def predict(
    classifier: Classifier, question: RunQuestion, read: ReadBatch, schema: pa.Schema
) -> tuple[list[dict], StoredResult]:
    """Return the classifier's predictions for a batch, as rows and as the result to store.

    The values of an unreadable sample are null. A sample without probabilities has no prediction.
    """
    table = pa.Table.from_pylist(answers(classifier, question, read, schema.names), schema=schema)
    rows = table.to_pylist()  # as in the file, so the result does not depend on the process that predicted
    first = read.positions[0]
    without = [place - first for place, row in zip(read.positions, rows, strict=True) if row["logits"] is None]
    table = table.add_column(0, POSITION, pa.array(read.positions, pa.int64()))
    return rows, StoredResult(GROUP, read.positions, {GROUP: table}, {"unreadable": without})


def answers(classifier: Classifier, question: RunQuestion, read: ReadBatch, names: Sequence[str]) -> list[dict]:
    """Predict each row of a batch, and return those columns of the predictions that are listed in `names`."""
    samples = read.samples
    columns: dict[int, dict] = {position: {"left_out": reason} for position, reason in read.faults.items()}
    if samples is not None:
        logits, raised = classified(classifier, samples.batch.images)
        columns |= {samples.positions[index]: {"left_out": reason} for index, reason in raised.items()}
        for index, values in zip((index for index in range(len(samples)) if index not in raised), logits, strict=True):
            columns[samples.positions[index]] = _predicted(classifier.activation, question, samples, index, values)
    rows = []
    for position, row in zip(read.positions, read.rows, strict=True):
        known = {stored(name): value for name, value in row.items()} | columns[position]
        rows.append({name: known.get(name) for name in names})
    return rows


def with_predictions(
    samples: Samples, rows: Mapping[int, dict], of_other: Mapping[int, dict] | None, *, strict: bool
) -> Samples | None:
    """Return the samples that have predictions, together with these predictions, or None if there are no such samples.

    Args:
        samples: The readable samples.
        rows: {position in the run: the classifier's prediction}.
        of_other: {position in the run: the other model's prediction}; None if there is none.
        strict: Whether to raise an error if the network raised an error for a sample.

    Raises:
        UserError: The network raised an error for a sample, and the run is strict.
    """
    networks = [rows] if of_other is None else [rows, of_other]
    raised = [row[position] for row in networks for position in samples.positions if row[position]["logits"] is None]
    if raised and strict:
        raise UserError(f"image {raised[0]['image_id']}: {raised[0]['left_out']}")
    kept = samples.at([position for position in samples.positions if rows[position]["logits"] is not None])
    if kept is None:
        return None
    others = None if of_other is None else [of_other[position] for position in kept.positions]
    return replace(kept, rows=[rows[position] for position in kept.positions], rows_of_other=others)


def _predicted(activation: str, question: RunQuestion, samples: Samples, index: int, logits: torch.Tensor) -> dict:
    """Return the columns of a sample's prediction that are computed from its logits (K,)."""
    batch, about = samples.batch, samples.rows[index]
    reason, right = batch.left_out[index], question.right(about)
    row = {
        "mask_share": None if reason else float(batch.masks[index].float().mean()),
        "left_out": reason,
        "logits": logits.tolist(),
        "target_confidence": _target_confidence(activation, question, about, logits),
    }
    p = probabilities(logits[None].double(), activation)[0]
    if p.isnan().any():  # `target.no_probabilities`
        return row
    best = ordered_classes(logits.numpy())[0]  # two probabilities may both round to 1, so compare logits
    row |= {"prediction": best, "confidence": float(p[best])}
    if right is None or not right.any():  # no label, or a label that is not a class of the model
        return row
    five = activation == "softmax" and len(p) > BEST
    first = np.argsort(-p.numpy(), kind="stable")[:BEST]
    return row | {
        "correct": bool(recognised(p.numpy(), right, activation)),
        "top5": bool(right[first].any()) if five else None,
    }


def _target_confidence(activation: str, question: RunQuestion, about: Mapping, logits: torch.Tensor) -> float | None:
    """Return the classifier's confidence in a sample's target, or None without a target or probabilities.

    The confidence is the probability of the target classes minus the probability of the contrasted classes, as in
    perturbation curves.
    """
    p = probabilities(logits[None].double(), activation)[0]
    if p.isnan().any() or not question.has_target(about):
        return None
    terms = question.target_of(about, logits.numpy())
    return float(p[list(terms.plus)].sum() - p[list(terms.minus)].sum())


def plans_of(store: RunStore, data: SplitTable, model: RunModel, pairs: Pairs) -> dict[Metric, PartnerPlan]:
    """Return the partner plans of the metrics that need partners, computed from the stored predictions.

    Raises:
        UserError: Some predictions were lost.
    """
    planning = [metric for metric in metrics_of(pairs) if metric.declaration.plan is not None]
    if not planning:
        return {}
    predictions = StoredPredictions.read(store, data, model)
    if not predictions.is_stored.all():
        raise UserError(
            f"a part of the predictions in {store.out} was damaged or lost during the run; start the run again"
        )
    known = _for_plans(predictions, data, model)
    return {metric: plan_of(metric, known) for metric in planning}


def _for_plans(predictions: StoredPredictions, data: SplitTable, model: RunModel) -> Predictions:
    """Return the predictions of a run's samples in the form that partner plans need."""
    count, question, classifier = data.count, model.question, model.classifier
    p = np.full((len(predictions.is_stored), question.classes), np.nan, dtype=np.float32)
    right, ids = np.zeros(p.shape, dtype=bool), []
    for positions, table in predictions.tables(["image_id", "label", "labels", "logits"]):
        ids += table["image_id"].to_pylist()
        for place, row in zip(positions, table.select(["label", "labels"]).to_pylist(), strict=True):
            classes = question.right(row)
            right[place] = False if classes is None else classes
        logits = table["logits"].combine_chunks()
        there = positions.start + np.flatnonzero(logits.is_valid().to_numpy(zero_copy_only=False))
        known = logits.drop_null().flatten().to_numpy().reshape(len(there), question.classes)
        p[there] = probabilities_of(classifier, torch.from_numpy(known.copy()))
    return Predictions(data.spec.seed, ids[:count], right[:count], p[:count], classifier.activation)


def probabilities_of(classifier: Classifier, logits: torch.Tensor) -> np.ndarray:
    """Convert logits (n, K) to probabilities (n, K). They are NaN if a sample's logits define no probabilities."""
    p = probabilities(logits.double(), classifier.activation).numpy()
    p[no_probabilities(logits, classifier.activation)] = np.nan
    return p
