"""Measure the unpacked size of a Parquet file from the headers of its pages, because its footer may state wrong sizes.

A reader allocates as much memory as the header of a page states, and unpacks the page into it. PyArrow does not expose
these headers. They are structs of Thrift's compact protocol (https://github.com/apache/parquet-format). Most of their
fields are skipped here.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from operator import length_hint
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.utils.files import LARGEST_ARRAYS

MOST_BYTES = 4 * LARGEST_ARRAYS  # maximum unpacked bytes of a row group
PREFIXES = 7  # the encoding DELTA_BYTE_ARRAY, with which a page of 1 kB can expand to gigabytes of text
DICTIONARY = (2, 8)  # encodings of values as indices into a dictionary
BYTES = "BYTE_ARRAY"  # type of text and binary values
HEADERS = [2**power for power in range(9, 25, 3)]  # sizes to try when reading a header; Arrow stops at the largest
BOOLEANS, BYTE, WHOLE, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12  # types of fields
TYPE, UNPACKED, PACKED, DATA, DATA_2 = 1, 2, 3, 5, 8  # fields of a page header
VALUES, ENCODING = 1, {DATA: 2, DATA_2: 4}  # fields of the header of a data page


def check_pages(
    path: Path, about: pq.FileMetaData, columns: Collection[str] | None = None, most: int = MOST_BYTES, *,
    at_once: bool = False, repeated: Counter[int] | None = None,
) -> Counter[str]:  # fmt: skip
    """Check the unpacked size of columns without unpacking them.

    The limit is `LARGEST_ARRAYS` bytes for text and `most` bytes for all columns together.

    Args:
        path: Path of the file.
        about: Metadata of the file.
        columns: Names of the columns that will be read, or None for all.
        most: Maximum unpacked bytes of a row group.
        at_once: Whether the limits apply to all row groups together.
        repeated: Counter that receives {row group: upper bound on the bytes of its text and binary values, including
            repeated values}.

    Returns:
        {column: number of values in its pages}.

    Raises:
        ValueError: The columns exceed a limit or contain text stored as prefixes, or a page header is damaged.
    """
    texts = set(text_columns(about))
    _check_overlap(path, about)
    values: Counter[str] = Counter()
    unpacked = of_texts = 0
    with path.open("rb") as file:
        for number, group in enumerate(map(about.row_group, range(about.num_row_groups))):
            unpacked, of_texts = (unpacked, of_texts) if at_once else (0, 0)
            for column in map(group.column, range(group.num_columns)):
                name = column.path_in_schema.partition(".")[0]
                if columns is not None and name not in columns:
                    continue
                headers = _headers(file, column)
                if repeated is not None and column.physical_type == BYTES:
                    repeated[number] += _longest(headers)
                for header in headers:
                    unpacked += header[UNPACKED]
                    of_texts += header[UNPACKED] * (name in texts)
                    values[name] += _values(header, column)
                    for size, limit in ((of_texts, LARGEST_ARRAYS), (unpacked, most)):
                        if size > limit:
                            raise ValueError(f"it unpacks to more than {limit:,} bytes")
    return values


def text_columns(about: pq.FileMetaData) -> list[str]:
    """Return the names of the text columns."""
    kinds = ((field.name, field.type) for field in about.schema.to_arrow_schema())
    plain = ((name, kind.value_type if pa.types.is_dictionary(kind) else kind) for name, kind in kinds)
    return [name for name, kind in plain if pa.types.is_string(kind) or pa.types.is_large_string(kind)]


def read_checked(path: Path, about: pq.FileMetaData, columns: Collection[str]) -> pa.Table:
    """Read columns into memory after `check_pages` has checked their pages. Text columns become dictionary arrays.

    Raises:
        ValueError: The text, including repeated text, exceeds the limit.
    """
    texts = [name for name in text_columns(about) if name in columns]
    table = pq.ParquetFile(path, metadata=about, read_dictionary=texts).read(list(columns))
    check_texts(chunk for name in texts for chunk in table[name].chunks)
    return table


def check_table(path: Path, most: int = MOST_BYTES) -> None:
    """Check the unpacked size of each row group of a file, including repeated text and binary values.

    Raises:
        ValueError: A row group expands to more than `most` bytes, or its text to more than `LARGEST_ARRAYS` bytes.
    """
    about = pq.read_metadata(path)
    repeated: Counter[int] = Counter()
    check_pages(path, about, most=most, repeated=repeated)
    if not (groups := [group for group, size in repeated.items() if size > LARGEST_ARRAYS]):
        return
    columns = [about.schema.column(index) for index in range(len(about.schema))]
    leaves = [column.path for column in columns if column.physical_type == BYTES]
    texts = text_columns(about)
    with pq.ParquetFile(path, metadata=about, read_dictionary=leaves) as file:
        for table in (file.read_row_group(group, leaves) for group in groups):
            check_texts(chunk for name in texts for chunk in table[name].chunks)
            check_texts(chain.from_iterable(map(_dictionaries, chain(*(c.chunks for c in table.columns)))), most)


def _check_overlap(path: Path, about: pq.FileMetaData) -> None:
    """Raise ValueError if columns share bytes of the file. Unpacking shared bytes many times can take hours."""
    groups = map(about.row_group, range(about.num_row_groups))
    sizes = [group.column(index).total_compressed_size for group in groups for index in range(group.num_columns)]
    if min(sizes, default=0) < 0 or sum(sizes) > path.stat().st_size:
        raise ValueError("its columns are larger than the file")


def _longest(headers: Iterable[dict]) -> int:
    """Return an upper bound on the size in bytes of all values that are stored as indices into a dictionary."""
    sizes = [header[UNPACKED] for header in headers if not ENCODING.keys() & header.keys()]
    pages = [(header[kind], ENCODING[kind]) for header in headers for kind in ENCODING if kind in header]
    values = sum(page.get(VALUES, 0) for page, encoding in pages if page.get(encoding) in DICTIONARY)
    return max(sizes, default=0) * values


def _dictionaries(array: pa.Array) -> Iterator[pa.DictionaryArray]:
    """Yield the arrays of text and binary values in a column, at any depth."""
    if pa.types.is_dictionary(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        yield from chain.from_iterable(map(_dictionaries, array.flatten()))
    elif pa.types.is_nested(array.type):
        yield from _dictionaries(array.flatten() if hasattr(array, "flatten") else array.storage)


def check_texts(columns: Iterable[pa.DictionaryArray], most: int | None = None) -> None:
    """Raise ValueError if columns have more than `most` bytes (None: `LARGEST_ARRAYS`), including repeated values."""
    most = LARGEST_ARRAYS if most is None else most
    sizes = (pc.binary_length(texts.dictionary).cast(pa.int64()).take(texts.indices) for texts in columns)
    if (length := sum(pc.sum(lengths).as_py() or 0 for lengths in sizes)) > most:
        raise ValueError(f"its strings take up {length:,} bytes, more than the limit of {most:,}")


def _values(header: dict, column: pq.ColumnChunkMetaData) -> int:
    """Return the number of values in a page. A dictionary page has 0 values."""
    values = 0
    for kind, encoding in ENCODING.items():
        about = header.get(kind, {})
        values += about.get(VALUES, 0)
        if about.get(encoding) == PREFIXES:
            name = column.path_in_schema
            raise ValueError(f"its column {name} has the encoding DELTA_BYTE_ARRAY, which is not supported")
    return values


def _headers(file: IO[bytes], column: pq.ColumnChunkMetaData) -> list[dict]:
    """Read the page headers of a column in a row group, at the positions that Arrow uses."""
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    end, headers = start + column.total_compressed_size, []
    if start < 0:
        raise ValueError("a page starts before the beginning of the file")
    while start < end:
        header, length = _header(file, start)
        if min(size := header.get(PACKED, -1), header.get(UNPACKED, -1)) < 0:
            raise ValueError("a page header has no size")
        headers.append(header)
        start += length + size
    return headers


def _header(file: IO[bytes], start: int) -> tuple[dict, int]:
    for most in HEADERS:
        file.seek(start)
        block = file.read(most)
        rest = iter(block)
        with suppress(StopIteration):
            return _struct(rest), len(block) - length_hint(rest)
    raise ValueError("a page header is truncated")


def _struct(rest: Iterator[int], depth: int = 0) -> dict:
    """Read a struct and return {field number: value} for the fields that are integers or structs."""
    fields: dict = {}
    number = 0
    while head := next(rest):
        number = number + (head >> 4) if head >> 4 else _whole(rest)
        fields[number] = _value(rest, head & 15, depth)
    return fields


def _value(rest: Iterator[int], kind: int, depth: int) -> int | dict | None:
    """Read an integer or a struct and return it. Skip values of other types and return None."""
    if depth > len(ENCODING):
        raise ValueError("a page header is nested too deeply")
    if kind == STRUCT:
        return _struct(rest, depth + 1)
    if kind in WHOLE:
        return _whole(rest)
    if kind in BOOLEANS:
        return None
    if kind not in (BYTE, DOUBLE, BINARY):  # headers contain no lists
        raise ValueError(f"a page header has a field of unknown type {kind}")
    skipped = {BYTE: 1, DOUBLE: 8}.get(kind) or _unsigned(rest)
    deque(islice(rest, min(skipped, HEADERS[-1])), maxlen=0)
    return None


def _whole(rest: Iterator[int]) -> int:
    number = _unsigned(rest)
    return (number >> 1) ^ -(number & 1)


def _unsigned(rest: Iterator[int]) -> int:
    number = 0
    for shift in range(0, 70, 7):
        number |= ((byte := next(rest)) & 127) << shift
        if byte < 128:
            return number
    raise ValueError("a page header has a number without an end")
