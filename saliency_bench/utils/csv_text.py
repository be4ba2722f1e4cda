"""CSV that people may open in a spreadsheet: no text in it becomes a formula.

A spreadsheet computes a cell that begins with =, +, - or @. Some split a line at semicolons or tabs, so that what comes
after one begins a cell, too. An apostrophe before the sign keeps it a text; `unescaped` takes it away again.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence

CELL = r"(^|[;\t\r\n])"  # where a cell may begin
SIGN = r"([ ']*)(?=[=+\-@])"


def csv_text(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return CSV whose lines end in a line feed; None and NaN are empty, and numbers have all their digits."""
    lines = _Lines()
    writer = csv.writer(lines)
    writer.writerow(map(escaped, header))
    writer.writerows(map(_cell, row) for row in rows)
    return "".join(lines.texts)


class _Lines:
    """File of a csv writer, which puts a carriage return into quotes only if its own lines end in one."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, line: str) -> None:
        """Keep a line."""
        self.texts.append(f"{line[:-2]}\n")


def _cell(value: object) -> object:
    """Return a value as the writer takes it."""
    if value is None or value != value:
        return ""
    return escaped(value) if isinstance(value, str) else value


def escaped(text: str) -> str:
    """Return a text of which nothing becomes a formula; a number stays as it is.

    >>> escaped("=1+1"), escaped("-1.5"), escaped("a;@b"), escaped("a = b")
    ("'=1+1", '-1.5', "a;'@b", 'a = b')
    """
    return text if _is_number(text) else re.sub(CELL + SIGN, r"\1'\2", text)


def unescaped(text: str) -> str:
    """Return the text of which `escaped` made this one."""
    return re.sub(CELL + "'" + SIGN, r"\1\2", text)


def csv_rows(text: str) -> list[dict[str, str]]:
    """Return the rows of CSV with a header, {column: text} each, as `csv_text` was given them."""
    return [
        {name: unescaped(value or "") for name, value in row.items() if name is not None}
        for row in csv.DictReader(io.StringIO(text, newline=""))
    ]


def _is_number(text: str) -> bool:
    """Return whether a text is a number, such as an id."""
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|-", text, re.ASCII) is not None
