"""What the classifier says of each sample: one file per chunk, the same whoever wrote it."""

from pathlib import Path

import pyarrow as pa
import torch

from saliency_bench.engine.context import RunContext
from saliency_bench.engine.reading import scalar_columns
from saliency_bench.results import records
from saliency_bench.types import Batch, Chunk

OURS = ("image_id", "group", "label")  # columns of the predictions that are the dataset's


def prediction_file(context: RunContext, number: int) -> Path:
    return context.out / "predictions" / f"{number:06d}.parquet"


def prediction_schema(context: RunContext) -> pa.Schema:
    """`records.PREDICTIONS` and the scalar columns of the dataset; one whose name is taken gets "dataset_" in front."""
    scalars = scalar_columns(context.rows.features)
    return pa.schema(
        [*records.PREDICTIONS, *((_stored(name), kind) for name, kind in scalars.items() if name != "group")]
    )


def _stored(name: str) -> str:
    return f"dataset_{name}" if name in records.PREDICTIONS.names and name not in OURS else name


def is_predicted(context: RunContext, number: int) -> bool:
    return records.read_whole(prediction_file(context, number)) is not None


def predict(context: RunContext, number: int, chunk: Chunk) -> list[dict]:
    """What the classifier says of a chunk, row by row; null where a sample could not be read. Written if not there.

    A sample without probabilities has no prediction.
    """
    path = prediction_file(context, number)
    if (table := records.read_whole(path)) is not None:
        return table.to_pylist()
    logits = None
    if chunk.batch is not None:
        with torch.no_grad():
            logits = context.classifier(chunk.batch.images).cpu()
    index_of = {position: index for index, position in enumerate(chunk.readable)}
    schema = prediction_schema(context)
    rows = []
    for position, about in enumerate(chunk.rows):
        row = {_stored(name): value for name, value in about.items()} | {"left_out": chunk.faults.get(position)}
        if position in index_of and logits is not None and chunk.batch is not None:
            row |= _predicted(context, chunk.batch, index_of[position], logits, about["label"])
        rows.append({name: row.get(name) for name in schema.names})
    # As the file gives it back, so that it makes no difference who wrote it.
    return records.write(path, rows, schema, faults=len(chunk.faults)).to_pylist()


def _predicted(context: RunContext, batch: Batch, index: int, logits: torch.Tensor, label: int) -> dict:
    reason = batch.left_out[index]
    row = {
        "mask_share": None if reason else float(batch.masks[index].float().mean()),
        "left_out": reason,
        "logits": logits[index].tolist(),
    }
    confidence, prediction = logits[index].double().softmax(dim=0).max(dim=0)
    if confidence.isnan():  # no probabilities (`target.no_probabilities`)
        return row
    return row | {
        "prediction": int(prediction),
        "confidence": float(confidence),
        "correct": int(prediction) in context.members[label],
    }
