"""Draw the plots of a suite's tables, and write the suite's page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saliency_bench.read.report.plots import STYLE, save_figure
from saliency_bench.read.report.templates import render
from saliency_bench.recipes.suites.suite_plan import Step, plan_notes, plan_rows
from saliency_bench.recipes.suites.suite_tables import (
    FEW,
    JOIN,
    QUANTITY,
    Key,
    SuiteTable,
    figure_of,
    interval_of,
    keys_of,
    number_of,
    rests_on_few,
)
from saliency_bench.utils.files import write_text

PANEL = 3.0  # inches, the width of a panel
MARK = 0.09  # inches, the height of one interval
ABREAST = 3  # panels


@dataclass(frozen=True)
class Section:
    """A table or picture on the suite's page.

    Attributes:
        name: Name of the table or picture.
        title: Title of the table or picture.
        notes: Lines of text below the table or picture.
        plot: SVG, or "" if there is no plot.
        axes: Names of the row axes of a table.
        columns: One tuple per column, with a name for each column axis.
        rows: One (names of the row, formatted numbers) per row.
    """

    name: str
    title: str
    notes: Sequence[str]
    plot: str
    axes: Sequence[str] = ()
    columns: Sequence[Sequence[str]] = ()
    rows: Sequence[tuple[Sequence[str], Sequence[dict[str, Any]]]] = ()


def write_page(
    path: Path, title: str, paper: str, sections: Sequence[Section], steps: Sequence[Step],
    settings: Sequence[Sequence[str]], failed: Mapping[Path, str], smoke: bool,
) -> None:  # fmt: skip
    """Write suite.html with the tables, plots, pictures, plan, and links to the reports of the runs."""
    folders = {step.job.folder for step in steps}
    reports = {folder.name: folder / "report.html" for folder in folders}
    # Links are relative, so that the folder can be moved or served unchanged.
    links = {name: str(page.relative_to(path.parent)) for name, page in reports.items() if page.is_file()}
    write_text(path, render(
        "suite.html.j2", title=title, paper=paper, smoke=smoke, sections=sections, plan=plan_rows(steps),
        plan_notes=plan_notes(steps), settings=settings, runs=links,
        failed={folder.name: why for folder, why in failed.items()},
    ))  # fmt: skip


def section_of(table: SuiteTable, folder: Path) -> Section:
    """Draw a table's plot into `folder` and return the table as a section of the page."""
    nothing = {"text": "", "interval": "", "best": False, "figure": "", "why": ""}
    shown = {
        place: {
            "text": number_of(table, record) + FEW * rests_on_few(record),
            "interval": interval_of(record),
            "best": record["best"],
            "figure": figure_of(table, record),
            "why": record["missing"],
        }
        for place, record in table.cells.items()
    }
    rows = [(table.called(row), [shown.get((row, column), nothing) for column in table.columns]) for row in table.rows]
    columns = [table.called(column) for column in table.columns]
    return Section(table.name, table.table.title, table.notes, plot_of(table, folder), table.table.rows, columns, rows)


def plot_of(table: SuiteTable, folder: Path) -> str:
    """Draw a table's plot into a folder and return the SVG, or "" if there is nothing to draw.

    Identical tables produce identical files. The plot has one panel per quantity. If the table has only one quantity
    but several column axes, the plot has one panel per name on the last column axis. The table's rows are laid out
    along the panel. Each name on the other column axes has its own colour. Its values are drawn as "points" with
    intervals or as "lines".
    """
    kind, axes = table.table.plot, table.row_axes + table.column_axes
    # Quantities have different scales, so each has a panel.
    panel_axis = QUANTITY if QUANTITY in axes else axes[-1] if len(table.column_axes) > 1 else ""
    groups = table.numbers.groupby(panel_axis, sort=False) if panel_axis else [("", table.numbers)]
    panels = {str(name): panel for name, panel in groups if panel["value"].notna().any()}
    if not kind or not panels:
        return ""
    rows, columns = ([axis for axis in names if axis != panel_axis] for names in (table.row_axes, table.column_axes))
    width = min(len(panels), ABREAST)
    with rc_context(STYLE):
        figure = Figure(figsize=_size(panels, kind, rows, columns), layout="constrained")
        for number, (name, panel) in enumerate(panels.items()):
            axes_of_panel = figure.add_subplot(-(-len(panels) // width), width, number + 1)
            labels = [JOIN.join(table.called(row)) for row in keys_of(panel, rows)]
            for index, series in enumerate(all_series := keys_of(panel, columns)):
                # Spread the series over 0.7 of a row.
                offset = 0.7 * (index / max(len(all_series) - 1, 1) - 0.5) * (len(all_series) > 1)
                ends = _ends(panel, rows, columns, series)
                _draw_series(axes_of_panel, ends, JOIN.join(table.called(series)), kind, offset)
            _label(axes_of_panel, labels, kind, with_names=number % width == 0)
            axes_of_panel.set_title(table.names.get(name, name))
        handles, names = figure.axes[0].get_legend_handles_labels()
        if len(names) > 1:
            figure.legend(handles, names, loc="outside upper left", ncols=2 + 2 * width, frameon=False)
        if table.smoke:
            mark_smoke(figure)
        return save_figure(figure, folder, table.name)


def mark_smoke(figure: Figure) -> None:
    """Add a note to a figure, saying that the numbers come from synthetic images and small networks."""
    text = "smoke test: synthetic images and small networks, not a result"
    figure.text(0.5, -0.02, text, ha="center", va="top", color="#b00020", fontsize=8)


def _size(panels: Mapping[str, pd.DataFrame], kind: str, rows: list[str], columns: list[str]) -> tuple[float, float]:
    """Return (width, height) of the figure in inches."""
    height = 2.4
    if kind == "points":
        heights = [
            len(keys_of(panel, rows)) * max(0.22, MARK * len(keys_of(panel, columns))) for panel in panels.values()
        ]
        height = max(heights) + 0.5
    width = min(len(panels), ABREAST)
    return max(PANEL * width + 1.5, 6.0), height * -(-len(panels) // width) + 0.5


def _ends(panel: pd.DataFrame, rows: list[str], columns: list[str], series: Key) -> np.ndarray:
    """Return the value, lower bound and upper bound of a series in each row, shape (3, R).

    Missing numbers are NaN. If a number has no interval, both bounds equal the value.
    """
    ends = {
        tuple(record[axis] for axis in rows): (record["value"], record["low"], record["high"])
        for record in panel.to_dict("records")
        if tuple(record[axis] for axis in columns) == series
    }
    value, low, high = np.array([ends.get(row, (np.nan,) * 3) for row in keys_of(panel, rows)], float).T
    return np.array([value, np.where(np.isnan(low), value, low), np.where(np.isnan(high), value, high)])


def _draw_series(axes: Axes, ends: np.ndarray, name: str, kind: str, offset: float) -> None:
    """Draw one series of a panel. `offset` moves its points below or above the middle of the row."""
    value, low, high = ends
    places = np.arange(len(value))
    if kind == "lines":
        axes.plot(places, value, marker="o", markersize=3, label=name)
        axes.fill_between(places, low, high, alpha=0.15)
        return
    axes.errorbar(value, places + offset, xerr=[value - low, high - value], fmt="o", markersize=3, linewidth=0.8,
                  label=name)  # fmt: skip


def _label(axes: Axes, labels: list[str], kind: str, with_names: bool) -> None:
    """Label the rows of a panel below the panel if it has lines, otherwise on the left.

    If `with_names` is False, the labels are blank.
    """
    places = np.arange(len(labels))
    if kind == "lines":
        axes.set_xticks(places, labels, rotation=45 if max(map(len, labels)) > 4 else 0, ha="right")
        return
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_yticks(places, labels if with_names else [""] * len(labels))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    for between in places[1:]:
        axes.axhline(between - 0.5, color="0.9", linewidth=0.6, zorder=0)
