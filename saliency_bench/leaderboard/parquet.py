"""Bound what a stranger's Parquet file unpacks to, by the headers of its pages, before anything is unpacked.

A megabyte can hold gigabytes: one long text a million times, or a footer whose sizes are not those of its pages. What
the decoder allocates follows from the headers of the pages. They are uncompressed, in Thrift's compact protocol
(https://github.com/apache/parquet-format), and are all that is read here. pyarrow has no such bounds, and a page
that contradicts its header can make it end the process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow.parquet as pq

from saliency_bench.utils.files import check_readable

FOOTER = 2_000_000  # bytes of the footer, which is unfolded to objects
ROW_GROUPS = 300
GROUP_ROWS = 2**20  # of one row group, as pyarrow writes by default
UNPACKED = 96_000_000  # bytes of the pages of one row group
PAGES = 50_000  # of the whole file
HEADER = 2**14  # bytes of the header of a page, with its statistics

DICTIONARY, DATA, DATA_V2 = 2, 0, 3  # kinds of pages
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8
ENCODINGS = {PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY}  # of others a few bytes can unfold to long texts
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12  # kinds of fields
DEEPEST = 8


@dataclass(frozen=True)
class Page:
    """The header of a page.

    Attributes:
        kind: DICTIONARY, DATA or DATA_V2.
        values: how many it holds, nulls included.
        unpacked: bytes in memory.
        packed: bytes in the file.
    """

    kind: int
    values: int
    encoding: int
    unpacked: int
    packed: int


def check_table(path: Path, most_bytes: int, most_rows: int) -> pq.FileMetaData:
    """Check that a flat table can be unpacked row group by row group in little memory, and return its footer.

    Args:
        path: of the Parquet file.
        most_bytes: largest size of the file.
        most_rows: largest number of rows.

    Raises:
        ValueError: A bound is broken, or footer and pages contradict each other; the text says which.
        OSError: The file cannot be read.
        pa.ArrowException: The footer is damaged.
    """
    check_readable(path, most_bytes)
    with path.open("rb") as file:
        _check_footer(file)
        about = pq.read_metadata(file)
        if about.num_rows > most_rows:
            raise ValueError(f"it has {about.num_rows:,} rows, of which at most {most_rows:,} are read")
        if about.num_row_groups > ROW_GROUPS:
            raise ValueError(f"it has {about.num_row_groups:,} row groups, of which at most {ROW_GROUPS} are read")
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        if sum(group.num_rows for group in groups) != about.num_rows:
            raise ValueError("its row groups do not have as many rows as its footer says")
        pages_left = PAGES
        for group in groups:
            pages_left -= _check_group(file, group, pages_left)
    return about


def _check_footer(file: BinaryIO) -> None:
    """Raise ValueError for a file that does not end as a Parquet file, or whose footer is too large."""
    size = file.seek(0, 2)
    file.seek(max(size - 8, 0))
    end = file.read(8)
    if size < 12 or end[4:] != b"PAR1":
        raise ValueError("it is not a Parquet file")
    if (length := int.from_bytes(end[:4], "little")) > min(FOOTER, size - 12):
        raise ValueError(f"its footer is said to have {length:,} bytes, of which at most {FOOTER:,} are read")
    file.seek(0)


def _check_group(file: BinaryIO, group: pq.RowGroupMetaData, most_pages: int) -> int:
    """Check the pages of a row group, and return how many there are."""
    if not 0 <= group.num_rows <= GROUP_ROWS:
        raise ValueError(f"a row group has {group.num_rows:,} rows, of which at most {GROUP_ROWS:,} are read")
    unpacked = count = 0
    for index in range(group.num_columns):
        column, values = group.column(index), 0
        for page in pages_of(file, column):
            count += 1
            unpacked += page.unpacked
            values += page.values * (page.kind != DICTIONARY)
            if page.values > GROUP_ROWS or page.encoding not in ENCODINGS or count > most_pages:
                raise ValueError(f"column {column.path_in_schema} has pages that are not as saliency-bench writes them")
            if unpacked > UNPACKED:
                raise ValueError(f"{group.num_rows:,} of its rows unpack to more than {UNPACKED:,} bytes")
        if not values == column.num_values == group.num_rows:
            raise ValueError(f"column {column.path_in_schema} has {values:,} values in {group.num_rows:,} rows")
    return count


def pages_of(file: BinaryIO, column: pq.ColumnChunkMetaData) -> Iterator[Page]:
    """Yield the pages of a column of a row group. Raise ValueError for headers that cannot be read."""
    starts = [column.data_page_offset]
    starts += [column.dictionary_page_offset] if column.has_dictionary_page else []
    position = min(starts)
    end = position + column.total_compressed_size
    if position < 4 or column.total_compressed_size < 0:
        raise ValueError(f"column {column.path_in_schema} lies outside of the file")
    while position < end:
        file.seek(position)
        header = _Thrift(file.read(min(HEADER, end - position)))
        page = _page(header.struct())
        yield page
        position += header.place + page.packed
    if position != end:
        raise ValueError(f"column {column.path_in_schema} has pages that are not as saliency-bench writes them")


def _page(fields: dict) -> Page:
    """Return a page from the fields of its header (`PageHeader` in parquet.thrift, by number)."""
    kind, unpacked, packed = (_count(fields, number) for number in (1, 2, 3))
    details = fields.get({DATA: 5, DICTIONARY: 7, DATA_V2: 8}.get(kind, -1))
    if not isinstance(details, dict):
        raise ValueError(f"it has a page of an unknown kind ({kind})")
    encoding = _count(details, 4 if kind == DATA_V2 else 2)
    return Page(kind, _count(details, 1), encoding, unpacked, packed)


def _count(fields: dict, number: int) -> int:
    """Return a field that must be a number of at least 0."""
    value = fields.get(number)
    if not isinstance(value, int) or value < 0:
        raise ValueError("the header of a page is damaged")
    return value


class _Thrift:
    """Reader of Thrift's compact protocol: structures become {field number: value}; texts are skipped."""

    def __init__(self, content: bytes):
        self.content, self.place = content, 0

    def struct(self, depth: int = 0) -> dict[int, object]:
        """Read a structure: fields of (difference of field number, kind) in a byte and a value, until a zero byte."""
        if depth > DEEPEST:
            raise ValueError("the header of a page is damaged")
        fields: dict[int, object] = {}
        number = 0
        while (byte := self._byte()) != 0:
            number = number + (byte >> 4) if byte >> 4 else self._zigzag()
            fields[number] = self._value(byte & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> object:
        """Read a value; None for kinds that no bound needs."""
        if kind in (I16, I32, I64):
            return self._zigzag()
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (BYTE, DOUBLE):
            self._skip(1 if kind == BYTE else 8)
        elif kind == BINARY:
            self._skip(self._varint())
        elif kind not in (TRUE, FALSE):  # the header of a page has no lists, sets or maps
            raise ValueError("the header of a page is damaged")
        return None

    def _skip(self, size: int) -> None:
        """Move on by `size` bytes, within the content."""
        self.place += size
        if self.place > len(self.content):
            raise ValueError("the header of a page is damaged or too long")

    def _byte(self) -> int:
        """Read a byte."""
        self._skip(1)
        return self.content[self.place - 1]

    def _varint(self) -> int:
        """Read an unsigned number: seven bits per byte, lowest first; the eighth bit says that more bytes follow."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("the header of a page is damaged")

    def _zigzag(self) -> int:
        """Read a signed number: 0, -1, 1, -2, ... are stored as 0, 1, 2, 3, ..."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
