"""Records: one sample, one metric, a row of Parquet; and their identities."""

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.utils.files import write_with
from saliency_bench.utils.messages import complain

SCHEMA = pa.schema(
    [
        ("cell_id", pa.string()),
        ("dataset", pa.string()),
        ("split", pa.string()),
        ("model", pa.string()),
        ("explainer", pa.string()),
        ("explainer_options", pa.string()),
        ("metric", pa.string()),
        ("metric_options", pa.string()),
        ("image_id", pa.string()),
        ("group", pa.string()),  # the cluster of the sample; null where the dataset has none
        ("label", pa.string()),
        ("prediction", pa.string()),
        ("target", pa.string()),
        ("part", pa.string()),  # null: the score of the sample; else a part of it
        ("value", pa.float64()),
        ("reason", pa.string()),
    ]
)

PREDICTIONS = pa.schema(
    [
        ("image_id", pa.string()),
        ("group", pa.string()),
        ("label", pa.int64()),
        ("prediction", pa.int64()),
        ("confidence", pa.float64()),
        ("correct", pa.bool_()),
        ("mask_share", pa.float64()),  # of the prepared frame; null where there is no usable mask
        ("left_out", pa.string()),  # why there is none
        ("logits", pa.list_(pa.float32())),
    ]
)


def write(path: Path, rows: list[dict] | pa.Table, schema: pa.Schema, **notes: object) -> pa.Table:
    """Parquet, whole or not at all; `notes` go into the file's metadata as JSON. The table that was written."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
    if notes:
        table = table.replace_schema_metadata({"saliency-bench": json.dumps(notes, sort_keys=True)})
    write_with(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))
    return table


def read_whole(path: Path) -> pa.Table | None:
    """A file that is there and whole, else None; a torn one is named on standard error."""
    if not path.exists():
        return None
    try:
        table = pq.read_table(path)
        notes_in(table.schema)
        return table
    except (pa.ArrowException, OSError, ValueError, KeyError):
        complain(f"{path} cannot be read and is recomputed")
        return None


def notes_of(path: Path) -> dict:
    return notes_in(pq.read_schema(path))


def notes_in(schema: pa.Schema) -> dict:
    return json.loads((schema.metadata or {}).get(b"saliency-bench", b"{}"))


def concat(tables: Iterable[pa.Table], target: Path, schema: pa.Schema) -> None:
    """One file of many tables, one after the other, so that memory does not grow with their number."""

    def stream(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(None).cast(schema))

    write_with(target, stream)
