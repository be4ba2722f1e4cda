"""Results of an analysis as plain data, and as tables that can be written as CSV, Markdown and LaTeX."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from saliency_bench.utils.csv_text import csv_text

Value = str | float | int | None
# LaTeX forms of characters that a backslash does not escape.
SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$",
         "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--", "−": "$-$", "†": r"\dag{}", "±": r"$\pm$"}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table of an analysis.

    Attributes:
        header: Names of the columns.
        rows: Rows of strings and numbers, with None for missing values.
        name: Suffix of the names of the table's files; "" for the main table.
    """

    header: tuple[str, ...]
    rows: list[tuple[Value, ...]]
    name: str = ""

    def texts(self, without: Collection[str] = ()) -> list[list[str]]:
        """Return the header and the rows as readable strings, without the columns in `without`."""
        kept = [index for index, name in enumerate(self.header) if name not in without]
        return [[self.header[k] for k in kept], *([shown(row[k]) for k in kept] for row in self.rows)]

    def csv(self) -> str:
        """Return the table as CSV, with all digits of numbers."""
        return csv_text(self.header, ([None if _missing(value) else value for value in row] for row in self.rows))

    def markdown(self) -> str:
        """Return the table in Markdown."""
        header, *rows = [[text.replace("|", "\\|") for text in row] for row in self.texts()]
        lines = [header, ["---"] * len(header), *rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        """Return the table in LaTeX, with rules from the package booktabs."""
        header, *rows = [" & ".join(map(latex, row)) + r" \\" for row in self.texts()]
        numbers = (all(not isinstance(row[index], str) for row in self.rows) for index in range(len(self.header)))
        columns = "".join("r" if is_number else "l" for is_number in numbers)
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([*lines, r"\end{tabular}", ""])


@dataclass(frozen=True)
class Findings:
    """Results of one analysis of one or more runs.

    Attributes:
        what: Name of the analysis.
        tables: Results as tables.
        data: Results as JSON data.
        notes: Remarks that explain the tables.
    """

    what: str
    tables: list[Table]
    data: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def shown(value: Value) -> str:
    """Return a value as readable text."""
    if _missing(value):
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def latex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(SIGNS.get(sign, f"\\{sign}" if sign in "{}&%$#_" else sign) for sign in text)


def finite_or_none(value: float) -> float | None:
    """Return a number for JSON, with None instead of NaN and infinity."""
    return float(value) if isfinite(value) else None


def _missing(value: Value) -> bool:
    """Return whether a value is None, NaN or infinite."""
    return value is None or (isinstance(value, float) and not isfinite(value))


def dicts(header: Sequence[str], rows: Sequence[Sequence[Value]]) -> list[dict[str, Value]]:
    """Return rows as dicts by column name."""
    return [dict(zip(header, row, strict=True)) for row in rows]
