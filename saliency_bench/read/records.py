"""Records of a run: a Parquet table with one row per sample, metric and part of a score."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.errors import UserError, one_line
from saliency_bench.read.parts import POSITION
from saliency_bench.score_notes import MARKS, PARTS_ONLY, has_parts_only
from saliency_bench.utils.files import check_regular, write_with
from saliency_bench.utils.parquet_pages import check_pages, check_texts, read_checked, text_columns

ROWS = 100_000  # rows of a row group
READ = ROWS  # rows that are read at a time
MOST_ROWS, MOST_NUMBERS = 5_000_000, 2**28  # limits for loading one file into memory
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
        ("group", pa.string()),  # cluster of the sample; null if the dataset has no groups
        ("label", pa.string()),
        ("prediction", pa.string()),
        ("target", pa.string()),
        ("part", pa.string()),  # null for the score of the sample, or the name of a part
        ("value", pa.float64()),
        ("reason", pa.string()),
    ]
)

# Stored values of a map, computed by `Explained.values_of`. A map for which all values are null has no row in the file.
OF_MAP = [
    pa.field("reliability", pa.float64()),  # null if undefined
    pa.field("draws", pa.int64()),  # number of random draws that the map averages; null if there are none
]

# Columns of reliability.parquet, which has one row per explainer and sample.
RELIABILITY = pa.schema(
    [
        ("explainer_id", pa.string()),
        ("explainer", pa.string()),
        ("explainer_options", pa.string()),
        ("image_id", pa.string()),
        *OF_MAP,
    ]
)

# Columns of both tables that part files store. All other columns follow from the cell or the sample.
STORED = pa.schema(
    [(POSITION, pa.int64()), *(SCHEMA.field(name) for name in ("target", "part", "value", "reason")), *OF_MAP]
)

PREDICTIONS = pa.schema(
    [
        ("image_id", pa.string()),
        ("group", pa.string()),
        ("label", pa.int64()),
        ("labels", pa.list_(pa.int64())),  # all classes of the image, if the dataset has several
        ("prediction", pa.int64()),
        ("confidence", pa.float64()),  # probability of the predicted class
        ("target_confidence", pa.float64()),  # confidence in the target that the maps explain; null if there is none
        ("correct", pa.bool_()),  # null if the label is unknown or is not a class of the model
        ("top5", pa.bool_()),  # whether a correct class is in the top 5; null unless a softmax has over 5 classes
        ("mask_share", pa.float64()),  # share of the prepared frame; null if there is no usable mask
        ("left_out", pa.string()),  # why there is no usable mask
        ("logits", pa.list_(pa.float32())),
    ]
)


def write(path: Path, rows: list[dict] | pa.Table, schema: pa.Schema) -> None:
    """Write a Parquet file atomically."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
    write_with(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def stored(rows: pa.Table) -> pa.Table:
    """Add missing columns of `OF_MAP`, filled with nulls, to rows from a part file of an earlier version."""
    for column in OF_MAP:
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(len(rows), column.type))
    return rows


def concat(tables: Iterable[pa.Table], target: Path, schema: pa.Schema, rows: int = ROWS) -> None:
    """Write tables to one file, one at a time, so that memory does not grow with the number of tables.

    Args:
        tables: Tables in the order in which they are written.
        target: File to write.
        schema: Schema to which the tables are cast.
        rows: Rows per row group. The bytes of the file do not depend on how the rows are split into tables.
    """

    def stream(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for table in _row_groups(tables, schema, rows):
                writer.write_table(table)

    write_with(target, stream)


def _row_groups(tables: Iterable[pa.Table], schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """Yield tables of `rows` rows each. The last table may be shorter."""
    pending: list[pa.Table] = []
    count = 0
    for table in tables:
        rest = table.replace_schema_metadata(None).cast(schema)
        while count + len(rest) >= rows:
            yield pa.concat_tables([*pending, rest.slice(0, rows - count)]).combine_chunks()
            rest, pending, count = rest.slice(rows - count), [], 0
        if len(rest):
            pending.append(rest)
            count += len(rest)
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def read_columns(path: Path, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Read columns of a file into memory. Text columns are dictionary-encoded.

    Args:
        path: File to read.
        columns: Names of the columns.
        schema: Schema with the required types of these columns.

    Raises:
        UserError: The file is missing or damaged, or expands to more than the limit.
    """
    about = check_columns(path, columns, schema)
    try:
        return read_checked(path, about, columns)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise damaged(path, error) from error


def check_columns(path: Path, columns: Sequence[str], schema: pa.Schema) -> pq.FileMetaData:
    """Return the metadata of a file after checking its size and the types of its columns.

    Raises:
        UserError: The file is missing or damaged, lacks a column, has a column of a different type, or expands to more
            than the limit.
    """
    try:
        check_regular(path)
        about = pq.read_metadata(path)
        _check_types(about.schema.to_arrow_schema(), columns, schema)
        numbers = check_pages(path, about, columns, at_once=True).total()
        if about.num_rows > MOST_ROWS or numbers > MOST_NUMBERS:
            raise ValueError(f"it has {about.num_rows:,} rows and {numbers:,} values, more than the limit")
        return about
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UserError:
    """Return the error for a file that cannot be read."""
    return UserError(f"{path} is damaged ({one_line(error)}); start the run again to restore it")


def by_cell(
    path: Path, columns: Sequence[str], cells: Collection[str] | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (cell id, adjacent rows of the cell) from a file. Text columns are dictionary-encoded.

    A cell may be yielded several times. Its rows keep their order. At most `READ` rows are in memory. Runs write the
    rows of a cell next to each other; a file in a different order is read correctly, but more slowly.

    Args:
        path: File to read.
        columns: Columns to read.
        cells: Cells to read; row groups without them are skipped. By default, all cells are read.

    Raises:
        ValueError: The file lacks a column, has a row without a cell, or expands to more than the limit.
    """
    wanted, about = ["cell_id", *columns], pq.read_metadata(path)
    _check_types(about.schema.to_arrow_schema(), wanted)
    check_pages(path, about, wanted)
    texts = [name for name in text_columns(about) if name in wanted]
    with pq.ParquetFile(path, metadata=about, read_dictionary=texts) as file:
        groups = [number for number in range(file.num_row_groups) if cells is None or _holds(file, number, cells)]
        for batch in file.iter_batches(READ, row_groups=groups, columns=wanted):
            check_texts(batch.column(name) for name in texts)
            for cell_id, rows in stretches(batch):
                if cells is None or cell_id in cells:
                    yield cell_id, rows


def stretches(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (cell id, adjacent rows of the cell) from records with dictionary-encoded strings.

    Raises:
        ValueError: A row has no cell.
    """
    ids = batch.column("cell_id")
    if ids.null_count:
        raise ValueError("a row has no cell_id")
    codes = ids.indices.to_numpy()
    edges = np.flatnonzero(np.diff(codes)) + 1
    if len(edges) >= len(np.unique(codes)) > 0:  # the rows of a cell are not adjacent
        order = np.argsort(codes, kind="stable")
        batch, codes = batch.take(pa.array(order)), codes[order]
        edges = np.flatnonzero(np.diff(codes)) + 1
    for start, end in pairwise([0, *edges.tolist(), len(codes)]):
        if end > start:
            yield ids.dictionary[int(codes[start])].as_py(), batch.slice(start, end - start)


def _check_types(schema: pa.Schema, columns: Iterable[str], known: pa.Schema = SCHEMA) -> None:
    """Raise ValueError for a column whose type differs from the known schema."""
    for name in columns:
        if name not in schema.names:
            raise ValueError(f"it has no column {name}")
        expected, kind = known.field(name).type, schema.field(name).type
        if (kind.value_type if pa.types.is_dictionary(kind) else kind) != expected:
            raise ValueError(f"its column {name} is not {expected}")


def _holds(file: pq.ParquetFile, number: int, cells: Collection[str]) -> bool:
    """Return whether a row group contains rows of these cells.

    The ids themselves are read, because the minimum and maximum id in the footer may be wrong.
    """
    ids = file.read_row_group(number, ["cell_id"])["cell_id"]
    return not set(cells).isdisjoint(ids.unique().to_pylist())


def places_by_part(rows: pa.RecordBatch) -> Iterator[tuple[str | None, np.ndarray]]:
    """Yield (part, indices of its rows) in the order of first occurrence. The part is None for the score itself."""
    column = rows.column("part")
    codes = column.indices.fill_null(-1).to_numpy()
    codes_there, first = np.unique(codes, return_index=True)
    for code in codes_there[np.argsort(first)]:
        yield None if code < 0 else column.dictionary[int(code)].as_py(), np.flatnonzero(codes == code)


def by_part(path: Path, cells: Collection[str], ids: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """Read the parts of several cells in one pass over a file.

    Returns:
        {cell id: {part: values (n,) for these images, NaN if missing}}, with parts in the order of first occurrence.

    Raises:
        ValueError: As for `by_cell`.
    """
    known = pa.array(ids, pa.string())
    by_cell_id: dict[str, dict[str, np.ndarray]] = {cell_id: {} for cell_id in cells}
    for cell_id, rows in by_cell(path, ["image_id", "part", "value"], by_cell_id) if by_cell_id else ():
        places = pc.index_in(rows.column("image_id").cast(pa.string()), known).fill_null(-1).to_numpy()
        values = numbers(rows)
        for part, rows_of_part in places_by_part(rows):
            if part is not None:
                rows_of_part = rows_of_part[places[rows_of_part] >= 0]
                of_part = by_cell_id[cell_id].setdefault(part, np.full(len(ids), np.nan))
                of_part[places[rows_of_part]] = values[rows_of_part]
    return by_cell_id


def counted_reasons(scores: pa.RecordBatch) -> tuple[Counter[str], Counter[str]]:
    """Count reasons and remarks in records of scores. Records of parts must be filtered out beforehand.

    Returns:
        ({reason: number of omitted samples}, {remark: number of scored samples}). A sample with parts but without an
        overall score is not omitted.
    """
    reasons, has_value = scores.column("reason"), pc.is_valid(scores.column("value"))
    without = _times(reasons.filter(pc.invert(has_value)))
    by_parts = Counter({reason: times for reason, times in without.items() if has_parts_only(reason)})
    marks: Counter[str] = Counter()
    for reason, times in (_times(reasons.filter(has_value)) + by_parts).items():
        marks += Counter({mark: times * count for mark, count in Counter(reason.split(MARKS)).items()})
    del marks[PARTS_ONLY]
    return without - by_parts, marks


def _times(reasons: pa.Array) -> Counter[str]:
    plain = reasons.drop_null().cast(pa.string())
    return Counter({counted["values"]: counted["counts"] for counted in plain.value_counts().to_pylist()})


def numbers(rows: pa.RecordBatch) -> np.ndarray:
    """Return the values of records; NaN if missing."""
    return rows.column("value").to_numpy(zero_copy_only=False)
