"""Records: one sample, one metric, a row of Parquet; and their identities."""

import json
import sys
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.files import write_with

FLAT = "flat map"  # the reason beside a value that stands: a constant map was scored as zeros
FLAT_UNRANKED = "flat map, not ranked"  # no value, where a constant map would be the best possible
UNDEFINED = "not defined for this sample"  # what the metric says of it may follow after a colon
NO_MAP = "no map was handed in"  # of maps that were made elsewhere
NOT_FINITE = "the map holds NaN or infinite values"
NO_PROBABILITIES = "the classifier gave NaN or infinite values"
NO_PROBABILITIES_CHANGED = f"{NO_PROBABILITIES} for a changed image"
# Reasons for leaving a sample out that lie in the data or the definition; any other is a fault.
EXPECTED = ("no mask", "empty mask", "mask emptied by the crop", UNDEFINED, FLAT, FLAT_UNRANKED, NO_MAP)
MARKS = "; "  # between several reasons beside a value that stands
OWN_MAPS = "maps-"  # how the version of an explainer begins that is a folder of such maps; then a hash of them

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
        ("label", pa.string()),
        ("prediction", pa.string()),
        ("target", pa.string()),
        ("exposure", pa.float64()),
        ("value", pa.float64()),
        ("reason", pa.string()),
    ]
)

PREDICTIONS = pa.schema(
    [
        ("image_id", pa.string()),
        ("label", pa.int64()),
        ("prediction", pa.int64()),
        ("confidence", pa.float64()),
        ("correct", pa.bool_()),
        ("mask_share", pa.float64()),  # of the prepared frame; null where there is no usable mask
        ("left_out", pa.string()),  # why there is none
        ("logits", pa.list_(pa.float32())),
    ]
)


def is_expected(reason: str) -> bool:
    """Whether a reason lies in the data or the definition of a metric."""
    return reason in EXPECTED or reason.startswith(f"{UNDEFINED}: ")


def reason(value: float | None, flat: bool, undefined: str, mark: str = "") -> str | None:
    """Why a metric gave a sample no value, or what must be known beside it, with `MARKS` between."""
    if value is not None:
        return MARKS.join(filter(None, (FLAT if flat else "", mark))) or None
    return FLAT_UNRANKED if flat else f"{UNDEFINED}: {undefined}" if undefined else UNDEFINED


def identity(*parts: object) -> str:
    """16 hexadecimal digits of a hash of the parts' canonical JSON."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def write(path: Path, rows: list[dict] | pa.Table, schema: pa.Schema, **notes: object) -> pa.Table:
    """Parquet, whole or not at all; `notes` go into the file's metadata as JSON. The table that was written."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
    if notes:
        table = table.replace_schema_metadata({"saliency-bench": json.dumps(notes, sort_keys=True)})
    write_with(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))
    return table


def complain(text: str) -> None:
    """What a person should know about a run that goes on: one line on standard error."""
    print(f"saliency-bench: {text}", file=sys.stderr, flush=True)


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
