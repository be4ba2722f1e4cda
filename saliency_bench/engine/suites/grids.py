"""A suite's tables as grids of numbers, beside those that the paper prints."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from saliency_bench.engine.suites.numbers import Scores, number_of
from saliency_bench.engine.suites.places import Key, places_of
from saliency_bench.engine.suites.pooling import Number
from saliency_bench.engine.suites.schema import Suite, Table
from saliency_bench.errors import UserError


@dataclass(frozen=True)
class Grid:
    """A table with its numbers. rows, columns: the names along the axes; {(row, column): number}."""

    name: str
    table: Table
    rows: list[Key]
    columns: list[Key]
    numbers: dict[tuple[Key, Key], Number]

    @property
    def missing(self) -> dict[str, int]:
        """{why: how many numbers are missing}"""
        reasons = [number.missing for number in self.numbers.values() if number.missing]
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}


def grid_of(name: str, scores: Scores) -> Grid:
    """The table of this name with its numbers."""
    suite, table = scores.suite, scores.suite.tables[name]
    kept, rows, columns = places_of(suite, table)
    numbers = {}
    for place in kept:
        row, column = (tuple(place[axis] for axis in which) for which in (table.rows, table.columns))
        numbers[row, column] = number_of(scores, table, place)
    return _with_figures(Grid(name, table, rows, columns, numbers))


def check_figures(suite: Suite, tables: Iterable[str]) -> None:
    """Raises: UserError where the paper's figures have another shape than what a table shows of the paper."""
    for name in tables:
        table = suite.tables[name]
        _, rows, columns = places_of(suite, table)
        height = sum(_is_shown(table, table.rows, row) for row in rows)
        width = sum(_is_shown(table, table.columns, column) for column in columns)
        if len(table.figures) > height or any(len(line) != width for line in table.figures):
            shape = " or ".join(map(str, sorted({len(line) for line in table.figures})))
            raise UserError(
                f"tables.{name}.figures has {len(table.figures)} rows of {shape} figures, but the table shows {height} "
                f"rows of {width}; write null where the paper prints nothing"
            )


def _with_figures(grid: Grid) -> Grid:
    """With what the paper prints, and what is known of it."""
    table = grid.table
    rows = [row for row in grid.rows if _is_shown(table, table.rows, row)]
    columns = [column for column in grid.columns if _is_shown(table, table.columns, column)]
    figures = {
        (row, column): figure
        for row, line in zip(rows, table.figures, strict=False)
        for column, figure in zip(columns, line, strict=False)
    }
    numbers = {}
    for (row, column), number in grid.numbers.items():
        place = dict(zip((*table.rows, *table.columns), (*row, *column), strict=True))
        notes = tuple(
            note.note for note in table.notes if all(place.get(axis) in names for axis, names in note.where.items())
        )
        numbers[row, column] = replace(number, paper=figures.get((row, column)), notes=notes)
    return Grid(grid.name, table, grid.rows, grid.columns, numbers)


def _is_shown(table: Table, axes: Sequence[str], names: Key) -> bool:
    """Whether the paper's table has this row or column; what comes after it is ours."""
    return all(axis not in table.show or name in table.show[axis] for axis, name in zip(axes, names, strict=True))
