"""What a Parquet file unpacks to, from the headers of its pages; the sizes in its footer may be false.

A reader allocates what the header of a page states, and unpacks the page into it. Headers are structs of Thrift's
compact protocol (https://github.com/apache/parquet-format); most of their fields are skipped.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.utils.files import LARGEST_ARRAYS

MOST_BYTES = 4 * LARGEST_ARRAYS  # of the pages of a row group
PREFIXES = 7  # the encoding DELTA_BYTE_ARRAY: a page of 1 kB can hold texts of gigabytes, each the one before
LONGEST_HEADER = 2**24  # bytes, as in Arrow
BOOLEANS, BYTE, WHOLE, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12  # types of fields
TYPE, UNPACKED, PACKED, DATA, DATA_2 = 1, 2, 3, 5, 8  # fields of a page header
VALUES, ENCODING = 1, {DATA: 2, DATA_2: 4}  # of a header of data in it


def check_pages(
    path: Path, about: pq.FileMetaData, columns: Collection[str] | None = None, most: int = MOST_BYTES, *,
    at_once: bool = False,
) -> int:  # fmt: skip
    """Check what columns of a file unpack to, before anything is unpacked.

    Args:
        path: the file.
        about: its metadata.
        columns: names of the columns that will be read; None: all.
        most: bytes that a row group may unpack to.
        at_once: the limit is that of all row groups together.

    Returns:
        The number of values in all pages of these columns.

    Raises:
        ValueError: The columns unpack to more, hold texts that share prefixes, or a header is damaged.
    """
    values = unpacked = 0
    with path.open("rb") as file:
        for group in map(about.row_group, range(about.num_row_groups)):
            unpacked = unpacked if at_once else 0
            for column in map(group.column, range(group.num_columns)):
                if columns is not None and column.path_in_schema.partition(".")[0] not in columns:
                    continue
                for header in _headers(file, column):
                    unpacked += header[UNPACKED]
                    values += _values(header, column)
                    if unpacked > most:
                        raise ValueError(f"it unpacks to more than {most:,} bytes")
    return values


def read_parquet(path: Path, about: pq.FileMetaData, columns: Collection[str]) -> pa.Table:
    """Read columns of a file into memory; texts are read as dictionaries.

    Raises:
        ValueError: The columns unpack to more than is read.
    """
    schema = about.schema.to_arrow_schema()
    texts = [name for name in columns if pa.types.is_string(schema.field(name).type)]
    check_pages(path, about, texts, LARGEST_ARRAYS, at_once=True)
    check_pages(path, about, set(columns).difference(texts), at_once=True)
    table = pq.ParquetFile(path, metadata=about, read_dictionary=texts).read(list(columns))
    check_texts(chunk for name in texts for chunk in table[name].chunks)
    return table


def check_file(path: Path, most: int = MOST_BYTES) -> None:
    """Check what the row groups of a file unpack to; `most` is the limit of a row group.

    Raises:
        ValueError: The row groups unpack to more than is read.
    """
    about = pq.read_metadata(path)
    check_pages(path, about, most=most)
    schema = about.schema.to_arrow_schema()
    texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    check_pages(path, about, texts, LARGEST_ARRAYS)
    with pq.ParquetFile(path, metadata=about, read_dictionary=texts) as file:
        for number in range(file.num_row_groups if texts else 0):
            check_texts(chunk for column in file.read_row_group(number, texts).columns for chunk in column.chunks)


def check_texts(columns: Iterable[pa.DictionaryArray]) -> None:
    """Raise ValueError for texts of too many bytes, each counted as often as it comes."""
    sizes = (pc.binary_length(texts.dictionary).cast(pa.int64()).take(texts.indices) for texts in columns)
    if (length := sum(pc.sum(lengths).as_py() or 0 for lengths in sizes)) > LARGEST_ARRAYS:
        raise ValueError(f"its texts have {length:,} bytes, of which at most {LARGEST_ARRAYS:,} are read at once")


def _values(header: dict, column: pq.ColumnChunkMetaData) -> int:
    """Return how many values a page holds, 0 of a dictionary."""
    values = 0
    for kind, encoding in ENCODING.items():
        about = header.get(kind, {})
        values += about.get(VALUES, 0)
        if about.get(encoding) == PREFIXES:
            name = column.path_in_schema
            raise ValueError(f"its column {name} has the encoding DELTA_BYTE_ARRAY, which is not read")
    return values


def _headers(file: IO[bytes], column: pq.ColumnChunkMetaData) -> list[dict]:
    """Return the headers of the pages of a column in a row group; they are where Arrow looks for them."""
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    end, headers = start + column.total_compressed_size, []
    if start < 0:
        raise ValueError("it has pages before its start")
    while start < end:
        file.seek(start)
        header = _struct(file, start + LONGEST_HEADER)
        if min(size := header.get(PACKED, -1), header.get(UNPACKED, -1)) < 0:
            raise ValueError("a header of its pages has no size")
        headers.append(header)
        start = file.tell() + size
    return headers


def _struct(file: IO[bytes], end: int, depth: int = 0) -> dict:
    """Return {number of a field: its value} of a struct, of fields that are whole numbers or structs."""
    fields: dict = {}
    number = 0
    while head := _byte(file, end):
        number = number + (head >> 4) if head >> 4 else _whole(file, end)
        fields[number] = _value(file, head & 15, end, depth)
    return fields


def _value(file: IO[bytes], kind: int, end: int, depth: int) -> int | dict | None:
    """Return a whole number or a struct; skip anything else."""
    if depth > len(ENCODING):
        raise ValueError("a header of its pages nests too deep")
    if kind == STRUCT:
        return _struct(file, end, depth + 1)
    if kind in WHOLE:
        return _whole(file, end)
    if kind in BOOLEANS:
        return None
    if kind not in (BYTE, DOUBLE, BINARY):  # headers have no lists
        raise ValueError(f"a header of its pages has a field of the type {kind}")
    file.seek({BYTE: 1, DOUBLE: 8}.get(kind) or _unsigned(file, end), 1)
    return None


def _whole(file: IO[bytes], end: int) -> int:
    number = _unsigned(file, end)
    return (number >> 1) ^ -(number & 1)


def _unsigned(file: IO[bytes], end: int) -> int:
    number = 0
    for shift in range(0, 70, 7):
        number |= ((byte := _byte(file, end)) & 127) << shift
        if byte < 128:
            return number
    raise ValueError("a header of its pages has a number that does not end")


def _byte(file: IO[bytes], end: int) -> int:
    if not (byte := file.read(1)) or file.tell() > end:
        raise ValueError("a header of its pages is cut off")
    return byte[0]
