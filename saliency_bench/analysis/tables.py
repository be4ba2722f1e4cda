"""Results of an analysis: tables that can be written as CSV, Markdown and LaTeX, and the same as plain data."""

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from io import StringIO
from math import isfinite
from typing import Any

Value = str | float | int | None
# Of LaTeX, beside the signs that a backslash escapes.
SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$",
         "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--", "−": "$-$", "†": r"\dag{}"}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """name: of its files; "" for the main one. rows: numbers stay numbers; None where there is none."""

    header: tuple[str, ...]
    rows: list[tuple[Value, ...]]
    name: str = ""

    def texts(self, without: Collection[str] = ()) -> list[list[str]]:
        """The header and the rows as people read them. without: columns to leave out."""
        kept = [index for index, name in enumerate(self.header) if name not in without]
        return [[self.header[k] for k in kept], *([shown(row[k]) for k in kept] for row in self.rows)]

    def csv(self) -> str:
        """Numbers with all their digits."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([["" if _missing(value) else value for value in row] for row in self.rows])
        return text.getvalue()

    def markdown(self) -> str:
        header, *rows = [[text.replace("|", "\\|") for text in row] for row in self.texts()]
        lines = [header, ["---"] * len(header), *rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        """With the rules of the package booktabs."""
        header, *rows = [" & ".join(map(latex, row)) + r" \\" for row in self.texts()]
        numbers = (all(not isinstance(row[index], str) for row in self.rows) for index in range(len(self.header)))
        columns = "".join("r" if is_number else "l" for is_number in numbers)
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([*lines, r"\end{tabular}", ""])


@dataclass(frozen=True)
class Findings:
    """Results of one analysis of some runs. data: as JSON holds it; notes: what must be known to read the tables."""

    what: str
    tables: list[Table]
    data: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def shown(value: Value) -> str:
    if _missing(value):
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def latex(text: str) -> str:
    return "".join(SIGNS.get(sign, f"\\{sign}" if sign in "{}&%$#_" else sign) for sign in text)


def known(value: float) -> float | None:
    """A number as JSON holds it."""
    return float(value) if isfinite(value) else None


def _missing(value: Value) -> bool:
    return value is None or (isinstance(value, float) and not isfinite(value))


def dicts(header: Sequence[str], rows: Sequence[Sequence[Value]]) -> list[dict[str, Value]]:
    return [dict(zip(header, row, strict=True)) for row in rows]
