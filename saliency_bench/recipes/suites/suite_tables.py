"""A suite's tables, as data frames and as files.

Markdown and LaTeX are for reading; CSV and JSON have one row per number.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.paper_table import Line, PaperTable, PaperTables, TableEntry
from saliency_bench.read.analysis.tables import Table as Printed
from saliency_bench.read.analysis.tables import Value
from saliency_bench.read.report import words
from saliency_bench.read.statistics.intervals import INTERVAL_FROM
from saliency_bench.recipes.suites.numbers import Results, places_of
from saliency_bench.recipes.suites.suite_schema import Suite, TableSpec
from saliency_bench.utils.csv_text import csv_text
from saliency_bench.utils.files import write_json, write_text

BEST, FEW = "*", "†"
BOLD = (
    "Bold: among the best explainers of the run on this metric, and better than every baseline of the run according to "
    "the paired test"
)
SHOWN = ("value", "low", "high", "n", "least", "best", "missing", "text", "cell")
QUANTITY = "quantity"  # column for the axis `value`, because the column `value` contains the number
JOIN = ", "
SMOKE = "Smoke test: synthetic images and small networks, not the paper's data and networks. No number is a result."

Key = tuple[str, ...]


@dataclass(frozen=True)
class SuiteTable(PaperTables):
    """A table of a suite with its numbers.

    Attributes:
        name: Name in the suite.
        table: Specification in the suite.
        names: {name that the suite uses: name that the paper uses}.
        numbers: One row per number. The columns are the axes, `SHOWN`, the paper's number, the difference, notes and
            runs.
        compare: Whether to print the paper's numbers as well.
        about: Remarks on the runs that the numbers come from.
        smoke: Whether the numbers come from synthetic images and small networks.
    """

    name: str
    table: TableSpec
    names: Mapping[str, str]
    numbers: pd.DataFrame
    compare: bool = False
    about: Sequence[str] = ()
    smoke: bool = False

    @property
    def row_axes(self) -> list[str]:
        """The columns of `numbers` that identify a row of the table."""
        return columns_of(self.table.rows)

    @property
    def column_axes(self) -> list[str]:
        """The columns of `numbers` that identify a column of the table."""
        return columns_of(self.table.columns)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The numbers as dicts for JSON. Missing values are None."""
        return self.numbers.astype(object).where(self.numbers.notna(), None).to_dict("records")

    @property
    def rows(self) -> list[Key]:
        """Names of the rows."""
        return keys_of(self.numbers, self.row_axes)

    @property
    def columns(self) -> list[Key]:
        """Names of the columns."""
        return keys_of(self.numbers, self.column_axes)

    @property
    def cells(self) -> dict[tuple[Key, Key], dict[str, Any]]:
        """{(row, column): record}."""
        return {
            (tuple(record[axis] for axis in self.row_axes), tuple(record[axis] for axis in self.column_axes)): record
            for record in self.records
        }

    @property
    def has_numbers(self) -> bool:
        """Return whether the table has any number."""
        return bool(self.numbers["value"].notna().any())

    def called(self, key: Key) -> list[str]:
        """Return the names that the paper uses for a row or column."""
        return [self.names.get(name, name) for name in key]

    def is_count(self, record: Mapping[str, Any]) -> bool:
        """Return whether a number is an integer."""
        return self.table.values[record.get(QUANTITY, next(iter(self.table.values)))].is_count

    @property
    def printed(self) -> Printed:
        """The table as it is printed: each number with its interval, the paper's number and the difference."""
        cells = self.cells
        lines: list[tuple[Value, ...]] = [
            (*self.called(row), *(text_of(self, cells.get((row, column))) for column in self.columns))
            for row in self.rows
        ]
        header = (*self.table.rows, *(JOIN.join(self.called(column)) for column in self.columns))
        return Printed(header, lines, self.name)

    def paper_table(self) -> PaperTable:
        """Return the table in the form that `to_latex` and `to_markdown` format."""
        cells = self.cells
        lines = [
            Line(tuple(self.called(row)), [_entry(self, cells.get((row, column))) for column in self.columns])
            for row in self.rows
        ]
        columns = tuple(JOIN.join(self.called(column)) for column in self.columns)
        return PaperTable(tuple(self.table.rows), columns, ("",) * len(columns), lines, tuple(self.remarks), BOLD)

    @property
    def notes(self) -> list[str]:
        """The notes below the table: remarks, missing numbers, and explanations of bold numbers and of marks."""
        counts = self.numbers.loc[self.numbers["missing"] != "", "missing"].value_counts(sort=False)
        notes = [f"{count} of {len(self.numbers)} numbers are missing: {reason}." for reason, count in counts.items()]
        if self.numbers["best"].any():
            notes.append(
                f"{BEST}: among the best explainers of the run on this metric, and better than every baseline of the "
                "run according to the paired test."
            )
        if any(map(rests_on_few, self.records)):
            notes.append(f"{FEW}: a run has fewer than {INTERVAL_FROM} images, so there is no interval.")
        return [*self.remarks, *notes]

    @property
    def remarks(self) -> list[str]:
        """Remarks on the entire table."""
        compared = self.numbers[self.numbers["paper"].notna()]
        notes = [f"The paper: {note.note}" for note in self.table.notes
                 if self.compare and _fits(compared, note.where).any()]  # fmt: skip
        if self.compare and not self.table.figures:
            notes.append("The suite does not contain the paper's numbers for this table.")
        least = self.numbers["least"].dropna()
        if len(least):
            notes.append(f"Numbers are based on {_range(least.min(), least.max())} images per run.")
        return [SMOKE] * self.smoke + [*notes, *self.about]

    def markdown(self) -> str:
        """Return the table and its notes as Markdown."""
        lines = [f"# {self.name}: {self.table.title}", "", self.printed.markdown()]
        return "\n".join([*lines, *(f"{note}\n" for note in self.notes)])

    def write(self, folder: Path) -> None:
        """Write the table as TABLE.md, TABLE.tex, TABLE.csv and TABLE.json."""
        write_text(folder / f"{self.name}.md", self.markdown())
        write_text(folder / f"{self.name}.tex", self.to_latex())
        write_text(folder / f"{self.name}.csv", as_csv(self.numbers, self.smoke))
        content = {"table": self.name, "title": self.table.title, "smoke": self.smoke, "numbers": self.records,
                   "notes": self.notes}  # fmt: skip
        write_json(folder / f"{self.name}.json", content)


def as_csv(numbers: pd.DataFrame, smoke: bool) -> str:
    """Format numbers as CSV. In a smoke test, every row is marked in a `smoke` column."""
    frame = numbers.assign(smoke=True) if smoke else numbers
    rows = frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)
    return csv_text(list(frame.columns), rows)


def make_table(name: str, results: Results, compare: bool = False, about: Sequence[str] = ()) -> SuiteTable:
    """Create a table from its numbers and the paper's numbers."""
    table = results.suite.tables[name]
    axes = columns_of([*table.rows, *table.columns])
    frame = results.numbers_of(name).rename(columns={"value": QUANTITY})
    for column in SHOWN:
        frame[column] = [getattr(number, column) for number in frame["number"]]
    # Missing numbers become NaN. Int64 is pandas' integer type that allows missing values.
    frame = frame.astype({"value": float, "low": float, "high": float, "least": "Int64"})
    frame = frame.merge(figures_of(table, frame), how="left", on=axes)
    frame["difference"] = frame["value"] - frame["paper"]
    notes = [_fits(frame, note.where).map({True: note.note, False: ""}) for note in table.notes]
    frame["notes"] = [" ".join(filter(None, texts)) for texts in zip(*notes, strict=True)] if notes else ""
    frame["runs"] = [" ".join(number.runs) for number in frame["number"]]
    numbers = frame.drop(columns="number")
    return SuiteTable(name, table, results.suite.names, numbers, compare, about, results.choice.smoke)


def figures_of(table: TableSpec, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's numbers, one per row. The columns are the axes of the table and `paper`.

    Args:
        table: The table. Its `figures` are in the order of the names that the paper's table shows.
        frame: The axes of the table's numbers, in the order of the table.
    """
    rows, columns = _show(table, frame)
    figures = [
        (*row, *column, figure)
        for row, line in zip(rows, table.figures, strict=False)
        for column, figure in zip(columns, line, strict=False)
    ]
    axes = columns_of([*table.rows, *table.columns])
    return pd.DataFrame(figures, columns=[*axes, "paper"]).astype({"paper": float})


def check_figures(suite: Suite, tables: Iterable[str]) -> None:
    """Raise UserError if the paper's numbers in a suite's file do not have as many rows and columns as the table."""
    for name in tables:
        if (table := suite.tables.get(name)) is None:
            continue  # a picture
        rows, columns = _show(table, places_of(suite, table).rename(columns={"value": QUANTITY}))
        if len(table.figures) > len(rows) or any(len(line) != len(columns) for line in table.figures):
            shape = " or ".join(map(str, sorted({len(line) for line in table.figures})))
            raise UserError(
                f"tables.{name}.figures has {len(table.figures)} rows of {shape} numbers, but the table shows "
                f"{len(rows)} rows of {len(columns)}; write null where the paper has no number"
            )


def _show(table: TableSpec, frame: pd.DataFrame) -> tuple[list[Key], list[Key]]:
    """Return the rows and columns of the paper's table. Names that the suite adds are left out."""
    rows, columns = (
        [key for key in keys_of(frame, columns_of(axes)) if all(map(table.shows, axes, key))]
        for axes in (table.rows, table.columns)
    )
    return rows, columns


def columns_of(axes: Iterable[str]) -> list[str]:
    """Return the names of the columns that contain these axes in a frame of numbers."""
    return [QUANTITY if axis == "value" else axis for axis in axes]


def keys_of(frame: pd.DataFrame, columns: Sequence[str]) -> list[Key]:
    """Return the distinct names in these columns, in the order of the frame. If `columns` is empty, return [()]."""
    return list(dict.fromkeys(zip(*(frame[column] for column in columns), strict=True))) if columns else [()]


def _fits(frame: pd.DataFrame, where: Mapping[Any, Sequence[str]]) -> pd.Series:
    """Return which numbers a note applies to.

    If a note refers to an axis that the table lacks, it applies to no number.
    """
    fits = pd.Series(True, index=frame.index)
    for axis, names in where.items():
        (column,) = columns_of([axis])
        fits &= frame[column].isin(names) if column in frame else False
    return fits


def _range(low: int, high: int) -> str:
    """Format a range such as "5 to 10". If both ends are equal, one number is shown."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def rests_on_few(record: Mapping[str, Any]) -> bool:
    """Return whether a number comes from a run that has too few images for an interval."""
    return record["value"] is not None and record["least"] is not None and record["least"] < INTERVAL_FROM


def text_of(table: SuiteTable, record: Mapping[str, Any] | None) -> str:
    """Format a number as in 0.312 [0.288, 0.337]*. On request, the paper's number and the difference follow."""
    if record is None:
        return ""
    if record["text"]:
        return record["text"]
    interval, figure = interval_of(record), figure_of(table, record)
    text = number_of(table, record) + f" {interval}" * bool(interval)
    text += BEST * record["best"] + FEW * rests_on_few(record)
    return text + f" ({figure})" * bool(figure)


def _entry(table: SuiteTable, record: Mapping[str, Any] | None) -> TableEntry:
    if record is None:
        return TableEntry(text=" ")
    few = f"a run has fewer than {INTERVAL_FROM} images, so there is no interval"
    notes = [record["missing"]] * bool(record["missing"]) + [few] * rests_on_few(record)
    ends = None if record["low"] is None else (record["low"], record["high"])
    return TableEntry(record["value"], ends, best=bool(record["best"]), notes=tuple(notes), text=record["text"],
                 after=figure_of(table, record), count=table.is_count(record))  # fmt: skip


def number_of(table: SuiteTable, record: Mapping[str, Any], column: str = "value") -> str:
    """Format the number in a column of a record, such as 0.312. A count is formatted as in 4,318."""
    value = record[column]
    return f"{value:,.0f}" if table.is_count(record) and value is not None else words.number(value)


def interval_of(record: Mapping[str, Any]) -> str:
    """Format the interval as in [0.288, 0.337]. Return "" if there is no interval."""
    return "" if record["low"] is None else f"[{words.number(record['low'])}, {words.number(record['high'])}]"


def figure_of(table: SuiteTable, record: Mapping[str, Any]) -> str:
    """Return text such as "paper 0.300, +0.012". Return "" if the paper has no number to compare with."""
    if not table.compare or record["paper"] is None:
        return ""
    text, difference = f"paper {number_of(table, record, 'paper')}", record["difference"]
    if difference is None:
        return text
    signed = f"{difference:+,.0f}".replace("-", words.MINUS) if table.is_count(record) else words.signed(difference)
    return f"{text}, {signed}"
