"""Write CSV text that contains no formulas, because users may open the file in a spreadsheet.

A spreadsheet evaluates a cell that begins with =, +, - or @. Some spreadsheets also split lines at semicolons or tabs,
so the text after a semicolon or tab also begins a cell. An apostrophe before the sign makes the cell plain text.
`unescaped` removes the apostrophe.
"""

import csv
import re
from collections.abc import Iterable, Sequence

CELL = r"(^|[;\t\r\n])"  # where a cell may begin
SIGN = r"([ ']*)(?=[=+\-@])"


def csv_text(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return CSV text with LF line endings. None and NaN become empty cells, and numbers keep all their digits."""
    lines = _CsvLines()
    writer = csv.writer(lines)
    writer.writerow(map(escaped, header))
    writer.writerows(map(_cell, row) for row in rows)
    return "".join(lines.texts)


class _CsvLines:
    """In-memory file for a csv writer that replaces the end of each line with a line feed.

    A csv writer quotes a cell with a carriage return only if the writer's line terminator contains a carriage return.
    The writer therefore uses such a terminator, and this file replaces it.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, line: str) -> None:
        self.texts.append(f"{line[:-2]}\n")


def _cell(value: object) -> object:
    """Convert a value for the csv writer.

    None and NaN become "", text is escaped, and numbers are not changed.
    """
    if value is None or value != value:
        return ""
    return escaped(value) if isinstance(value, str) else value


def escaped(text: str) -> str:
    """Escape text so that no part of it becomes a formula. Numbers remain unchanged.

    >>> escaped("=1+1"), escaped("-1.5"), escaped("a;@b"), escaped("a = b")
    ("'=1+1", '-1.5', "a;'@b", 'a = b')
    """
    return text if _is_number(text) else re.sub(CELL + SIGN, r"\1'\2", text)


def unescaped(text: str) -> str:
    """Reverse `escaped` and return the original text."""
    return re.sub(CELL + "'" + SIGN, r"\1\2", text)


def csv_rows(text: str) -> list[dict[str, str]]:
    """Parse CSV with a header, and return each row as {column: text}. Apostrophes that `escaped` added are removed.

    Line breaks inside a cell are dropped, because no id or name may contain a line break.
    """
    return [
        {name: unescaped(value or "") for name, value in row.items() if name is not None}
        for row in csv.DictReader(text.splitlines())
    ]


def _is_number(text: str) -> bool:
    """Return whether a string is a number, such as an id, or a single minus sign."""
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|-", text, re.ASCII) is not None
