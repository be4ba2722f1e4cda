"""A suite's tables as files: Markdown and LaTeX for people, CSV and JSON with a line per number and its run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saliency_bench.analysis.tables import Table as Printed
from saliency_bench.analysis.tables import Value
from saliency_bench.engine.suites.grids import Grid
from saliency_bench.engine.suites.places import Key
from saliency_bench.engine.suites.pooling import Number
from saliency_bench.reports import words
from saliency_bench.results.intervals import INTERVAL_FROM
from saliency_bench.utils.files import write_json, write_text

BEST, FEW = "*", "†"
SHOWN = ("value", "low", "high", "n", "least", "best", "missing", "cell")
QUANTITY = "quantity"  # what CSV and JSON call the axis value, beside the number itself
JOIN = ", "


@dataclass(frozen=True)
class Laid:
    """A grid as text. names: what the paper calls our names. compare: with the paper's figures and the difference.

    about: what is to be known of all its runs.
    """

    grid: Grid
    names: Mapping[str, str]
    compare: bool = False
    about: Sequence[str] = ()

    def called(self, key: Key) -> list[str]:
        return [self.names.get(name, name) for name in key]

    @property
    def printed(self) -> Printed:
        table = self.grid.table
        lines: list[tuple[Value, ...]] = []
        for row in self.grid.rows:
            numbers = (self.grid.numbers.get((row, column)) for column in self.grid.columns)
            lines.append((*self.called(row), *(text_of(number, self.compare) for number in numbers)))
        header = (*table.rows, *(JOIN.join(self.called(column)) for column in self.grid.columns))
        return Printed(header, lines, self.grid.name)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A line per number, with all its digits."""
        axes = [QUANTITY if axis == "value" else axis for axis in (*self.grid.table.rows, *self.grid.table.columns)]
        lines = []
        for (row, column), number in self.grid.numbers.items():
            about: dict[str, Any] = dict(zip(axes, (*row, *column), strict=True))
            about |= {name: getattr(number, name) for name in SHOWN}
            about |= {"paper": number.paper, "difference": number.difference, "notes": " ".join(number.notes)}
            lines.append(about | {"runs": " ".join(number.folders)})
        return lines

    @property
    def has_numbers(self) -> bool:
        return any(number.value is not None for number in self.grid.numbers.values())

    @property
    def notes(self) -> list[str]:
        """What must be known to read the table."""
        own = [note for number in self.grid.numbers.values() if number.paper is not None for note in number.notes]
        found = [f"The paper: {note}" for note in dict.fromkeys(own)] if self.compare else []
        found += [f"{count} of {len(self.grid.numbers)} numbers are missing: {reason}."
                  for reason, count in self.grid.missing.items()]  # fmt: skip
        numbers = list(self.grid.numbers.values())
        if self.compare and not self.grid.table.figures:
            found.append("This table has no figures to compare with.")
        if any(number.best for number in numbers):
            found.append(f"{BEST}: among the best of its run by this metric, by the paired test.")
        if any(number.is_of_few for number in numbers):
            found.append(f"{FEW}: rests on fewer than {INTERVAL_FROM} images of a run, which have no interval.")
        return [*found, *self.about]

    def markdown(self) -> str:
        lines = [f"# {self.grid.name}: {self.grid.table.title}", "", self.printed.markdown()]
        return "\n".join([*lines, *(f"{note}\n" for note in self.notes)])

    def write(self, folder: Path) -> list[Path]:
        """Write TABLE.md .tex .csv .json; returns their paths."""
        rows = self.rows
        header = tuple(rows[0]) if rows else ()
        values: list[tuple[Value, ...]] = [tuple(row.values()) for row in rows]
        texts = {
            ".md": self.markdown(),
            ".tex": self.printed.latex(),
            ".csv": Printed(header, values).csv(),
        }
        paths = [folder / f"{self.grid.name}{suffix}" for suffix in texts]
        for path, text in zip(paths, texts.values(), strict=True):
            write_text(path, text)
        data = {"table": self.grid.name, "title": self.grid.table.title, "numbers": rows, "notes": self.notes}
        write_json(folder / f"{self.grid.name}.json", data)
        return [*paths, folder / f"{self.grid.name}.json"]


def text_of(number: Number | None, compare: bool) -> str:
    """0.312 [0.288, 0.337]*, with the paper's figure and the difference where they are compared."""
    if number is None:
        return ""
    interval, figure = interval_of(number), figure_of(number, compare)
    text = words.number(number.value) + f" {interval}" * bool(interval) + BEST * number.best + FEW * number.is_of_few
    return text + f" ({figure})" * bool(figure)


def interval_of(number: Number) -> str:
    """[0.288, 0.337]; "" where there is none."""
    return "" if number.low is None else f"[{words.number(number.low)}, {words.number(number.high)}]"


def figure_of(number: Number, compare: bool) -> str:
    """paper 0.300, +0.012; "" where nothing is compared."""
    if not compare or number.paper is None:
        return ""
    difference = "" if number.difference is None else f", {words.signed(number.difference)}"
    return f"paper {words.number(number.paper)}{difference}"
