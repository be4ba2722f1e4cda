"""The plot and the page of a suite's tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from math import nan
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saliency_bench.engine.suites.grids import Grid
from saliency_bench.engine.suites.layout import FEW, JOIN, Laid, figure_of, interval_of
from saliency_bench.engine.suites.places import Key
from saliency_bench.engine.suites.plan import Step, plan_notes, plan_rows
from saliency_bench.engine.suites.pooling import Number
from saliency_bench.reports import words
from saliency_bench.reports.plots import STYLE
from saliency_bench.reports.suite import Section, Shown, SuitePage

PANEL = 3.0  # inches, the width of a panel
MARK = 0.09  # inches, the height of one interval
ABREAST = 3  # panels


def write_page(
    path: Path, title: str, paper: str, laid: Sequence[Laid], steps: Sequence[Step], failed: Mapping[Path, str],
    smoke: bool,
) -> None:  # fmt: skip
    """suite.html: tables, plots, plan, links to the reports of the runs."""
    folders = {step.job.folder for step in steps}
    reports = {folder.name: folder / "report.html" for folder in folders}
    links = {name: str(page.relative_to(path.parent)) for name, page in reports.items() if page.is_file()}
    SuitePage(
        title=title, paper=paper, smoke=smoke, sections=[_section(one) for one in laid], plan=plan_rows(steps),
        plan_notes=plan_notes(steps), runs=links, failed={folder.name: why for folder, why in failed.items()},
    ).write(path)  # fmt: skip


def _section(laid: Laid) -> Section:
    grid = laid.grid
    rows = [
        (laid.called(row), [_shown(grid.numbers.get((row, column)), laid.compare) for column in grid.columns])
        for row in grid.rows
    ]
    columns = [laid.called(column) for column in grid.columns]
    return Section(grid.name, grid.table.title, grid.table.rows, columns, rows, laid.notes, plot_of(laid))


def _shown(number: Number | None, compare: bool) -> Shown:
    if number is None:
        return Shown("")
    value = words.number(number.value) + FEW * number.is_of_few
    return Shown(value, interval_of(number), number.best, figure_of(number, compare), number.missing)


def plot_of(laid: Laid) -> str:
    """SVG of a table: a panel per quantity, or else per last name of its columns; "" where there is nothing to draw.

    "points": a row of the plot per row of the table, a colour for each of the other names. "lines": curves along the
    rows. Equal tables give equal bytes.
    """
    grid, kind = laid.grid, laid.grid.table.plot
    panels = _panels(grid)
    if not kind or not panels:
        return ""
    with rc_context(STYLE):
        figure = Figure(figsize=_size(panels, kind), layout="constrained")
        wide = min(len(panels), ABREAST)
        for number, (name, panel) in enumerate(panels.items()):
            axes = figure.add_subplot(-(-len(panels) // wide), wide, number + 1)
            _draw(axes, laid, panel, kind, with_names=number % wide == 0)
            axes.set_title(laid.names.get(name, name))
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if len(labels) > 1:
            figure.legend(handles, labels, loc="outside upper left", ncols=2 + 2 * wide, frameon=False)
        text = StringIO()
        figure.savefig(
            text, format="svg", bbox_inches="tight", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return text.getvalue()


@dataclass
class Panel:
    """What is drawn together: {(row, series): number}, rows and series without the name that the panel has."""

    numbers: dict[tuple[Key, Key], Number] = field(default_factory=dict)

    @property
    def has_numbers(self) -> bool:
        return any(number.value is not None for number in self.numbers.values())

    @property
    def rows(self) -> list[Key]:
        return list(dict.fromkeys(row for row, _ in self.numbers))

    @property
    def series(self) -> list[Key]:
        return list(dict.fromkeys(series for _, series in self.numbers))


def _panels(grid: Grid) -> dict[str, Panel]:
    """{name: panel}. Quantities have scales of their own, so they never share a panel."""
    rows, columns = grid.table.rows, grid.table.columns
    axis = "value" if "value" in (*rows, *columns) else columns[-1] if len(columns) > 1 else ""
    panels: dict[str, Panel] = {}
    for (row, column), number in grid.numbers.items():
        names: dict[str, str] = dict(zip((*rows, *columns), (*row, *column), strict=True))
        own_row, own_column = (tuple(names[one] for one in axes if one != axis) for axes in (rows, columns))
        panels.setdefault(names.get(axis, ""), Panel()).numbers[own_row, own_column] = number
    return {name: panel for name, panel in panels.items() if panel.has_numbers}


def _size(panels: dict[str, Panel], kind: str) -> tuple[float, float]:
    """Inches."""
    high = 2.4
    if kind == "points":
        most = max(len(panel.rows) * max(0.22, MARK * len(panel.series)) for panel in panels.values())
        high = most + 0.5
    wide = min(len(panels), ABREAST)
    return max(PANEL * wide + 1.5, 6.0), high * -(-len(panels) // wide) + 0.5


def _draw(axes: Axes, laid: Laid, panel: Panel, kind: str, with_names: bool) -> None:
    labels = [JOIN.join(laid.called(row)) for row in panel.rows]
    places = np.arange(len(labels))
    for index, series in enumerate(panel.series):
        value, low, high = _ends([panel.numbers.get((row, series), Number()) for row in panel.rows])
        name = JOIN.join(laid.called(series))
        if kind == "lines":
            axes.plot(places, value, marker="o", markersize=3, label=name)
            axes.fill_between(places, low, high, alpha=0.15)
        else:
            at = places + 0.7 * (index / max(len(panel.series) - 1, 1) - 0.5) * (len(panel.series) > 1)
            axes.errorbar(value, at, xerr=[value - low, high - value], fmt="o", markersize=3, linewidth=0.8, label=name)
    if kind == "lines":
        axes.set_xticks(places, labels, rotation=45 if max(map(len, labels)) > 4 else 0, ha="right")
        return
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_yticks(places, labels if with_names else [""] * len(labels))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    for between in places[1:]:
        axes.axhline(between - 0.5, color="0.9", linewidth=0.6, zorder=0)


def _ends(numbers: Sequence[Number]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, low, high; NaN where there is none, the value itself where it has no interval."""
    value = np.array([nan if one.value is None else one.value for one in numbers])
    low = np.array([nan if one.low is None else one.low for one in numbers])
    high = np.array([nan if one.high is None else one.high for one in numbers])
    return value, np.where(np.isnan(low), value, low), np.where(np.isnan(high), value, high)
