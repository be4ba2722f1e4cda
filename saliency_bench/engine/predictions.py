"""What the classifier says of each sample: part files whose key is the chunk, the same whoever wrote it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import torch

from saliency_bench.classifiers.classifier import RefusedImagesError
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.reading import scalar_columns, stored
from saliency_bench.errors import UserError
from saliency_bench.map_sources.map_provider import reason_of
from saliency_bench.results import records
from saliency_bench.results.parts import POSITION, SAMPLES, Part, PartFolder, span_of
from saliency_bench.scoring.partners import Predictions
from saliency_bench.target_weights import no_probabilities, probabilities, recognised
from saliency_bench.types import Batch, Chunk, Images
from saliency_bench.utils.devices import is_out_of_memory
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

LOGITS = 2**24  # of one file of predictions in the end
# What a network raises for a picture. A refusal in our own words, a UserError, which is a ValueError, ends the run.
RAISED = (RuntimeError, ArithmeticError, AssertionError, LookupError, TypeError, AttributeError, MemoryError)
BEST = 5  # classes that top-5 accuracy looks at


def prediction_parts(context: RunContext) -> PartFolder:
    """Where the predictions of chunks are kept; wide ones, of many classes, in files of fewer chunks."""
    samples = min(SAMPLES, LOGITS // context.classes)
    run = hash_of(context.run_id, str(prediction_schema(context)))  # a file of an earlier version has other columns
    size = context.spec.batch_size
    return PartFolder(context.out / context.folder, run, size, span_of(size, samples))


def prediction_schema(context: RunContext) -> pa.Schema:
    """`records.PREDICTIONS` and the scalar columns of the dataset; one whose name is taken gets "dataset_" in front."""
    scalars = scalar_columns(context.rows.features)
    return pa.schema(
        [*records.PREDICTIONS, *((stored(name), kind) for name, kind in scalars.items() if name != "group")]
    )


def key_of(number: int) -> str:
    """What the rows of a chunk are called in a part file."""
    return f"{number:06d}"


def predicted_chunks(parts: Iterable[Part]) -> dict[int, Part]:
    """{chunk: the part file that holds its predictions}"""
    return {int(key): part for part in parts for key in part.groups}


def unpredicted(context: RunContext) -> list[int]:
    """The chunks without predictions; what is damaged is deleted first. Only the main process, under the lock."""
    known = predicted_chunks(prediction_parts(context).check())
    return [number for number in context.chunks if number not in known]


def read_predictions(context: RunContext, parts: dict[int, Part], columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
    """(chunk, its predictions) of each that is there, one file in memory at a time. parts: of `predicted_chunks`."""
    current, tables = None, {}
    for number in sorted(parts.keys() & set(context.chunks)):
        if parts[number] is not current:
            current, tables = parts[number], parts[number].whole(columns)
        yield number, tables[key_of(number)]


def predict(context: RunContext, number: int, chunk: Chunk, part: Part | None = None) -> list[dict]:
    """What the classifier says of a chunk, row by row; null where a sample could not be read.

    A sample without probabilities has no prediction. part: a file that holds it already; else one is written.
    """
    if part is not None:
        return part.read(key_of(number)).drop_columns(POSITION).to_pylist()
    schema, rows = prediction_schema(context), answers(context, chunk)
    table = pa.Table.from_pylist(rows, schema=schema)
    start = number * context.spec.batch_size
    table = table.add_column(0, POSITION, pa.array(range(start, start + len(rows)), pa.int64()))
    prediction_parts(context).write(number, {key_of(number): table}, None)
    return table.drop_columns(POSITION).to_pylist()  # as the file gives it back, so that it does not matter who wrote


def answers(context: RunContext, chunk: Chunk) -> list[dict]:
    """What the classifier says of the samples of a chunk, row by row, whatever has been written."""
    chunk, logits = _classified(context, chunk)
    index_of = {position: index for index, position in enumerate(chunk.readable)}
    rows, names = [], prediction_schema(context).names
    for position, about in enumerate(chunk.rows):
        row = {stored(name): value for name, value in about.items()} | {"left_out": chunk.faults.get(position)}
        if position in index_of and logits is not None and chunk.batch is not None:
            row |= _predicted(context, chunk.batch, index_of[position], logits, context.right(about))
        rows.append({name: row.get(name) for name in names})
    return rows


def _classified(context: RunContext, chunk: Chunk) -> tuple[Chunk, torch.Tensor | None]:
    """(the samples that the classifier takes, their logits): where it raises, it gets the samples one by one."""
    if chunk.batch is None:
        return chunk, None
    with torch.no_grad(), suppress(RefusedImagesError, *RAISED):
        return chunk, _logits(context, chunk.batch.images)
    logits, faults = [], {}
    for index, position in enumerate(chunk.readable):
        try:
            with torch.no_grad():
                logits.append(context.classifier(chunk.batch.images[index : index + 1]).cpu())
        except (RefusedImagesError, *RAISED) as error:
            faults[position] = reason_of(error, "the model")
    return chunk.without(faults), torch.cat(logits) if logits else None


def _logits(context: RunContext, images: Images) -> torch.Tensor:
    """Of a batch, or where it does not fit in memory of its halves."""
    try:
        return context.classifier(images).cpu()
    except (RuntimeError, MemoryError) as error:
        if len(images) == 1 or not is_out_of_memory(error):
            raise
    complain(f"{len(images)} images do not fit in memory at once; trying half as many")
    return torch.cat([_logits(context, half) for half in images.tensor_split(2)])


def of_predicted(context: RunContext, chunk: Chunk, predicted: Sequence[Mapping]) -> Chunk:
    """The samples of a chunk that are predicted; the model raised for the others.

    Raises: UserError for one of these, if the run is strict.
    """
    faults = {place: predicted[place]["left_out"] for place in chunk.readable if predicted[place]["logits"] is None}
    for position, reason in faults.items():
        if context.spec.strict:
            raise UserError(f"image {predicted[position]['image_id']}: {reason}")
    return chunk.without(faults)


def _predicted(context: RunContext, batch: Batch, index: int, logits: torch.Tensor, right: np.ndarray | None) -> dict:
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
    row |= {"prediction": int(p.argmax()), "confidence": float(p.max())}
    if right is None or not right.any():  # no label, or one that is no class of the model
        return row
    five = activation == "softmax" and len(p) > BEST
    best = np.argsort(-p.numpy(), kind="stable")[:BEST]
    return row | {
        "correct": bool(recognised(p.numpy(), right, activation)),
        "top5": bool(right[best].any()) if five else None,
    }


def all_predictions(context: RunContext) -> Predictions:
    """Of the samples that the run is about, for plans of partners. Raises: UserError where some were lost."""
    parts = predicted_chunks(prediction_parts(context).parts())
    if not parts.keys() >= set(context.chunks):
        raise UserError(
            f"a part of the predictions in {context.out} was damaged or lost during the run; start it again"
        )
    p = np.full((context.samples, context.classes), np.nan, dtype=np.float32)
    right, ids = np.zeros(p.shape, dtype=bool), []
    for number, table in read_predictions(context, parts, ["image_id", "label", "labels", "logits"]):
        start = number * context.spec.batch_size
        table = table.slice(0, context.samples - start)
        ids += table["image_id"].to_pylist()
        for place, row in enumerate(table.drop_columns(["logits", "image_id"]).to_pylist(), start):
            known = context.right(row)
            right[place] = False if known is None else known
        logits = table["logits"].combine_chunks()
        there = start + np.flatnonzero(logits.is_valid().to_numpy(zero_copy_only=False))
        p[there] = _probabilities(context, logits.drop_null().flatten().to_numpy().reshape(len(there), context.classes))
    return Predictions(context.spec.seed, ids, right, p, context.classifier.activation)


def _probabilities(context: RunContext, logits: np.ndarray) -> np.ndarray:
    """(n, K) of logits (n, K), NaN for a sample without."""
    given = torch.from_numpy(logits.copy())
    p = probabilities(given.double(), context.classifier.activation).numpy()
    p[no_probabilities(given, context.classifier.activation)] = np.nan
    return p


def selected(context: RunContext, number: int, predicted: Sequence[Mapping] | None) -> list[int]:
    """The positions in a chunk of the samples that are explained: all, where its predictions are not there yet."""
    size = min(context.spec.batch_size, len(context.rows) - number * context.spec.batch_size)
    if context.selection is None or predicted is None:
        return list(range(size))
    return [position for position in range(size) if context.selection.keeps(predicted[position])]


def wanted(context: RunContext, parts: dict[int, Part]) -> np.ndarray:
    """Bool (chunks, samples of a chunk): those that are explained. parts: as `predicted_chunks` gives them."""
    columns = [name for name in prediction_schema(context).names if name != "logits"]
    chosen = np.zeros((len(context.chunks), context.spec.batch_size), bool)
    for number in context.chunks:
        chosen[number, selected(context, number, None)] = True
    if context.selection is not None:
        for number, table in read_predictions(context, parts, columns):
            chosen[number] = False
            chosen[number, selected(context, number, table.to_pylist())] = True
    return chosen
