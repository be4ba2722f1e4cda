"""The plot and the page of a suite's tables."""

from collections.abc import Mapping, Sequence
from io import StringIO
from math import nan
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saliency_bench.engine.suites.grids import Grid, Number
from saliency_bench.engine.suites.layout import FEW, JOIN, Laid, figure_of, interval_of
from saliency_bench.engine.suites.plan import Step, plan_notes, plan_rows
from saliency_bench.reports import words
from saliency_bench.reports.plots import STYLE
from saliency_bench.reports.suite import Section, Shown, SuitePage

ROW, PANEL = 0.26, 3.0  # inches
MOST = 5  # panels beside each other


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
    """SVG of a table: a panel for each last name of its columns or rows; "" where there is nothing to draw.

    "points": a row of the plot per row of the table, a colour for each of the other names. "lines": curves along the
    rows. Equal tables give equal bytes.
    """
    grid, kind = laid.grid, laid.grid.table.plot
    if not kind or all(number.value is None for number in grid.numbers.values()):
        return ""
    panels = list(dict.fromkeys(column[-1] for column in grid.columns)) if len(grid.table.columns) > 1 else [""]
    panels = panels[:MOST]
    with rc_context(STYLE):
        height = 1.2 + (ROW * len(grid.rows) if kind == "points" else 2.4)
        figure = Figure(figsize=(PANEL * len(panels) + 1.5, height))
        for number, panel in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), number + 1)
            _panel(axes, laid, [column for column in grid.columns if panel in ("", column[-1])], kind, number == 0)
            axes.set_title(laid.names.get(panel, panel))
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if len(labels) > 1:
            figure.legend(handles, labels, loc="lower center", ncols=min(len(labels), 6), frameon=False)
        figure.tight_layout(rect=(0, 0.6 / height, 1, 1))
        text = StringIO()
        figure.savefig(
            text, format="svg", bbox_inches="tight", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return text.getvalue()


def _panel(axes: Axes, laid: Laid, columns: Sequence[tuple[str, ...]], kind: str, first: bool) -> None:
    grid, labels = laid.grid, [JOIN.join(laid.called(row)) for row in laid.grid.rows]
    places = np.arange(len(labels))
    for index, column in enumerate(columns):
        value, low, high = _ends(grid, column)
        name = JOIN.join(laid.called(column[:-1] or column))
        if kind == "lines":
            axes.plot(places, value, marker="o", markersize=3, label=name)
            axes.fill_between(places, low, high, alpha=0.15)
        else:
            at = places + 0.6 * (index / max(len(columns) - 1, 1) - 0.5)
            axes.errorbar(value, at, xerr=[value - low, high - value], fmt="o", markersize=3, linewidth=0.8, label=name)
    if kind == "lines":
        axes.set_xticks(places, labels, rotation=45 if max(map(len, labels)) > 4 else 0, ha="right")
        return
    axes.set_yticks(places, labels if first else [""] * len(labels))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="y", color="0.93")


def _ends(grid: Grid, column: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, low, high along the rows; NaN where there is none, the value itself where it has no interval."""
    numbers = [grid.numbers.get((row, column)) or Number() for row in grid.rows]
    value = np.array([nan if one.value is None else one.value for one in numbers])
    low = np.array([nan if one.low is None else one.low for one in numbers])
    high = np.array([nan if one.high is None else one.high for one in numbers])
    return value, np.where(np.isnan(low), value, low), np.where(np.isnan(high), value, high)
