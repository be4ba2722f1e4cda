"""Plots of scores, drawn by matplotlib in one style.

    report            mean_plot, distribution_plot, difference_plot, difference_histogram    SVG inside a page
    analysis          plot                                                                   an SVG file
    seed study        seed_plot                                                              a PDF, SVG or PNG file
    suite             STYLE and save_figure, for figures drawn elsewhere                     PDF, SVG and PNG files
    board             STYLE and svg_text, for figures drawn elsewhere                        SVG inside a page

Equal scores give identical files. Text in SVG files stays text, so that the text can be read aloud, searched and
copied.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.differences import RunPair
from saliency_bench.read.analysis.seed_studies import NetworkMean
from saliency_bench.read.analysis.tables import Findings
from saliency_bench.read.cell_table import CellTable, MetricColumn
from saliency_bench.read.finished_run import Run
from saliency_bench.read.report.words import number, percent
from saliency_bench.read.run_folder import CellScores, maps_in
from saliency_bench.utils.files import write_text, write_with
from saliency_bench.utils.overlays import LEVELS, heat_map, scaled
from saliency_bench.utils.storage import check_output_file

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "saliency-bench",  # equal figures get the same ids
    "pdf.fonttype": 42,  # TrueType, because many publishers reject Type 3 fonts
}
# Colours of pages. The names are CSS variables in report.css, which adapt to dark mode.
COLOURS = {
    "page": "#fdfdfb",
    "text": "#1a1e23",
    "muted": "#58626c",
    "grid": "#e6e8e4",
    "accent": "#0a5ea8",
    "fill": "#4a90c9",
    "hollow": "#8a939b",
    "band": "#d5d9dc",
}
WIDTH, ROW = 8.0, 0.32  # inches; size of the plots of analyses
PAGE_WIDTH, PAGE_ROW, AXIS = 4.6, 0.31, 0.3  # inches; size of the plots of a report (AXIS: height below the rows)
NAMES, NUMBERS = 1.55, 0.6  # inches; width of the names left of a plot, and of the numbers right of it
DOT = 6.5  # points; width of the dot of a mean
LONGEST_NAME = 22  # characters in a line of a name
BINS = 32
FEW_BINS = 12  # bins for histograms of yes/no scores
MOST_TILES = 12  # tiles in a gallery
FORMS = (".pdf", ".svg", ".png")  # file types of figures
NO_DATES = {"pdf": {"CreationDate": None, "Creator": None, "Producer": None}, "png": {"Software": None}}


def svg_text(figure: Figure, tight: bool = True) -> str:
    """Return a figure as the text of an SVG file, cropped to its contents if `tight`. Equal figures give the same text.

    Create the figure and call this function inside the same `rc_context(STYLE)`.
    """
    text = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(text, format="svg", bbox_inches="tight" if tight else None, metadata=nothing)
    return text.getvalue()


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write a figure for a paper as NAME.pdf, NAME.svg and NAME.png, and return the SVG.

    Create the figure and call this function inside the same `rc_context(STYLE)`.
    """
    svg = svg_text(figure)
    write_text(folder / f"{name}.svg", svg)
    figure.set_layout_engine("none")  # the other files have the same layout, which is slow to compute
    for form in NO_DATES:
        write_figure(figure, folder / f"{name}.{form}")
    return svg


def write_figure(figure: Figure, path: Path, tight: bool = True) -> None:
    """Write a figure as PDF, SVG or PNG, according to the suffix of the path.

    Create the figure and call this function inside the same `rc_context(STYLE)`.

    Raises:
        UserError: The suffix is not supported.
    """
    check_form(path)
    kind = path.suffix.lower()[1:]
    if kind == "svg":
        write_text(path, svg_text(figure, tight))
        return
    box = "tight" if tight else None
    write_with(path, partial(figure.savefig, format=kind, dpi=200, bbox_inches=box, metadata=NO_DATES[kind]))


def check_form(path: Path, forms: Sequence[str] = FORMS, flag: str = "--out") -> None:
    """Raise UserError if the suffix of a path is not a figure format, or the file cannot be written."""
    if path.suffix.lower() not in forms:
        raise UserError(f"{flag} {path} must end in {', '.join(forms[:-1])} or {forms[-1]}")
    check_output_file(path)


def seed_plot(rows: Sequence[NetworkMean], path: Path, labels: Mapping[str, str]) -> None:
    """Draw a panel per metric with the means of explainers over networks, their intervals, and each network as a tick.

    Args:
        rows: Rows of all metrics, in the order of the figure.
        path: File to write; the suffix determines the format.
        labels: {name of an explainer or metric: label to print instead}.
    """
    metrics = list(dict.fromkeys(row.metric for row in rows))
    names = list(dict.fromkeys(row.explainer for row in rows))
    with rc_context(STYLE):
        figure = Figure(figsize=(2.3 * len(metrics) + 1.2, ROW * len(names) + 0.9), layout="constrained")
        panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
        for axes, metric in zip(panels, metrics, strict=True):
            of_metric = [row for row in rows if row.metric == metric]
            for row in of_metric:
                _draw_networks(axes, row, names.index(row.explainer))
            arrow = "↑" if of_metric[0].cell.higher_is_better else "↓"
            axes.set_title(f"{labels.get(metric, metric)} {arrow}", fontsize=8)
            axes.grid(axis="x", color=COLOURS["grid"], linewidth=0.8)
            axes.set_axisbelow(True)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_yticks(range(len(names)), [labels.get(name, name) for name in names])
            axes.set_ylim(len(names) - 0.5, -0.5)
        line = "; line: 95 % interval" * any(np.isfinite(row.estimate.low) for row in rows)
        figure.supxlabel(f"dot: mean over {len(rows[0].means)} networks{line}; tick: one network", fontsize=7)
        write_figure(figure, path)


def _draw_networks(axes: Axes, row: NetworkMean, height: int) -> None:
    """Draw networks' means as ticks, and the overall mean as a dot (hollow for a baseline) with its interval."""
    value, low, high = row.estimate[:3]
    axes.plot(row.means, [height] * len(row.means), "|", color=COLOURS["muted"], markersize=9, zorder=2)
    axes.hlines(height, low, high, color=COLOURS["accent"], linewidth=1.5, zorder=3)
    face = COLOURS["page"] if row.cell.baseline else COLOURS["accent"]
    axes.plot(value, height, "o", color=COLOURS["accent"], markerfacecolor=face, markersize=5, zorder=4)


# --- Plots of a report: one row per explainer, with the name on the left and a number on the right ---


@dataclass(frozen=True)
class _Row:
    """Row of a plot of a report: an explainer, and the number at the right end of the row."""

    name: str
    baseline: bool
    text: str = ""

    @property
    def colour(self) -> str:
        return COLOURS["hollow" if self.baseline else "fill"]


def mean_plot(table: CellTable, column: MetricColumn) -> str:
    """Return an SVG of the means on a metric, with intervals. The interval of `random` is a band in the background."""
    cells = table.cells_of_column(column)
    rows = [_Row(row.name, row.baseline, number(cell.value)) for row, cell in cells]

    def draw(axes: Axes) -> None:
        for row, cell in cells:
            if row.baseline and row.name == "random" and cell.ends:
                axes.axvspan(*cell.ends, color=COLOURS["band"], linewidth=0, zorder=0)
        _draw_dots(axes, rows, [(cell.value, cell.low, cell.high) for _, cell in cells])

    return _row_plot(rows, draw)


def rank_plot(table: CellTable, column: MetricColumn) -> str:
    """Return an SVG of the possible ranks of each explainer on a metric; "" if no explainer is ranked.

    Explainers whose bars share no rank are significantly different, like explainers without a common line in a
    critical-difference diagram.
    """
    cells = sorted(
        ((row, cell) for row, cell in table.cells_of_column(column) if cell.rank),
        key=lambda pair: pair[1].rank or (0, 0),
    )
    rows = [_Row(row.name, row.baseline, cell.ranks) for row, cell in cells]

    def draw(axes: Axes) -> None:
        axes.set_xlim(0.5, len(rows) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(min(len(rows), 9), integer=True))
        for index, (row, (_, cell)) in enumerate(zip(rows, cells, strict=True)):
            first, last = cell.rank or (0, 0)
            axes.barh(index, last - first + 0.5, left=first - 0.25, height=0.4, color=row.colour, linewidth=0)

    return _row_plot(rows, draw) if rows else ""


def distribution_plot(table: CellTable, scores: CellScores, column: MetricColumn) -> tuple[str, str]:
    """Return (SVG with histograms of the scores, name of the number at the end of a row).

    The number is the median, drawn as a tick, with a bar between the quartiles. Quartiles are uninformative for yes/no
    scores, even if a few scores lie in between. For yes/no scores, the number is therefore the fraction of samples
    with the higher score.
    """
    cells = table.cells_of_column(column)
    known = [values[np.isfinite(values)] for values in (scores.values[cell.cell_id] for _, cell in cells)]
    pooled = np.concatenate(known)
    yes = _yes_value(pooled)
    if yes is None:
        texts = [number(float(np.median(values)) if len(values) else None) for values in known]
    else:
        texts = [percent(float(np.mean(values == yes)) if len(values) else None) for values in known]
    rows = [_Row(row.name, row.baseline, text) for (row, _), text in zip(cells, texts, strict=True)]
    bins = BINS if yes is None else FEW_BINS
    low, high = (float(pooled.min()), float(pooled.max())) if len(pooled) else (0.0, 1.0)
    # Scores that differ only by rounding errors would need bins that are too narrow for floating point.
    margin = (high - low) * 0.5 / bins if high - low > 1e-9 * max(abs(low), abs(high)) else abs(low) * 0.1 or 0.1
    limits = low - margin, high + margin

    def draw(axes: Axes) -> None:
        axes.set_xlim(limits)
        _draw_histograms(axes, rows, known, limits, bins)
        for index, values in enumerate(known):
            if yes is None and len(values):
                first, median, third = np.percentile(values, [25, 50, 75])
                axes.hlines(index + 0.43, first, third, color=COLOURS["text"], linewidth=2)
                axes.vlines(median, index + 0.12, index + 0.46, color=COLOURS["text"], linewidth=1.4)

    return _row_plot(rows, draw), "median" if yes is None else f"fraction with a score of {number(yes)}"


def difference_plot(pairs: Sequence[RunPair]) -> str:
    """Return an SVG of the mean differences between two runs and their intervals, with one row per explainer."""
    rows = [_Row(pair.explainer, pair.baseline) for pair in pairs]

    def draw(axes: Axes) -> None:
        axes.axvline(0, color=COLOURS["text"], linewidth=0.8)
        _draw_dots(axes, rows, [(pair.mean, pair.low, pair.high) for pair in pairs])

    return _row_plot(rows, draw)


def difference_histogram(pairs: Sequence[RunPair]) -> str:
    """Return an SVG with histograms of the samples' differences.

    Samples with equal scores are omitted, because they would dominate the histogram.
    """
    rows = [_Row(pair.explainer, pair.baseline) for pair in pairs]
    differing = [pair.differences[pair.differences != 0] for pair in pairs]
    widest = 1.02 * max((float(np.abs(values).max()) for values in differing if len(values)), default=1.0)

    def draw(axes: Axes) -> None:
        axes.set_xlim(-widest, widest)
        _draw_histograms(axes, rows, differing, (-widest, widest), BINS)
        axes.axvline(0, color=COLOURS["text"], linewidth=0.8)

    return _row_plot(rows, draw)


def _row_plot(rows: Sequence[_Row], draw: Callable[[Axes], None]) -> str:
    """Return an SVG of a plot with one row per explainer.

    All plots of a page have the same width and margins, so that rows and axes of neighbouring plots are aligned.
    """
    with rc_context(STYLE | {"font.size": 9, "axes.spines.left": False, "text.color": COLOURS["text"]}):
        drawn, height = PAGE_ROW * len(rows), PAGE_ROW * len(rows) + AXIS
        numbers = NUMBERS if any(row.text for row in rows) else 0.15
        figure = Figure(figsize=(PAGE_WIDTH, height), facecolor="none")
        width = (PAGE_WIDTH - NAMES - numbers) / PAGE_WIDTH
        axes = figure.add_axes((NAMES / PAGE_WIDTH, AXIS / height, width, drawn / height), facecolor="none")
        axes.set_axisbelow(True)
        axes.grid(axis="x", color=COLOURS["grid"], linewidth=0.8)
        axes.spines["bottom"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.tick_params(axis="x", length=0, labelcolor=COLOURS["muted"])
        axes.tick_params(axis="y", length=0, labelcolor=COLOURS["text"], labelsize=8.5, pad=NAMES * 72 - 2)
        axes.set_yticks(np.arange(len(rows)), [_lines_of(row.name) for row in rows], ha="left", linespacing=0.95)
        for index, row in enumerate(rows):
            axes.axhline(index + 0.5, color=COLOURS["grid"], linewidth=0.6)
            axes.annotate(row.text, (1, index), (numbers * 72 - 2, 0), axes.get_yaxis_transform(), "offset points",
                          ha="right", va="center", annotation_clip=False)  # fmt: skip
        draw(axes)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        return _for_page(svg_text(figure, tight=False))


def _lines_of(name: str) -> str:
    """Break a long name between options into at most two lines."""
    if len(name) <= LONGEST_NAME:
        return name
    words = re.sub(r"([_:,(=])", r"\1 ", name)
    lines = [line.replace(" ", "") for line in textwrap.wrap(words, LONGEST_NAME)]
    return "\n".join(lines[:2]) + ("…" if len(lines) > 2 else "")


def _draw_dots(
    axes: Axes, rows: Sequence[_Row], ends: Sequence[tuple[float | None, float | None, float | None]]
) -> None:
    """Draw (mean, low, high) of each row as a dot and a whisker. Dots of baselines are hollow."""
    for index, (row, values) in enumerate(zip(rows, ends, strict=True)):
        mean, low, high = np.array(values, dtype=float)  # None becomes NaN, which is not drawn
        axes.hlines(index, low, high, color=COLOURS["accent"], linewidth=1.5)
        # Dots are lines of zero length with round ends, because markers need ids, which must be unique on a page.
        dot: dict[str, Any] = {"solid_capstyle": "round", "zorder": 3}
        axes.plot([mean, mean], [index, index], color=COLOURS["accent"], linewidth=DOT, **dot)
        if row.baseline:
            axes.plot([mean, mean], [index, index], color=COLOURS["page"], linewidth=DOT - 3, **dot)


def _draw_histograms(
    axes: Axes, rows: Sequence[_Row], scores: Sequence[np.ndarray], limits: tuple[float, float], bins: int
) -> None:
    for index, (row, values) in enumerate(zip(rows, scores, strict=True)):
        counts, edges = np.histogram(values, bins=bins, range=limits)
        base = index + 0.45  # the y axis points down
        heights = base - 0.85 * counts / max(counts.max(), 1)
        axes.stairs(heights, edges, baseline=base, fill=True, color=row.colour, linewidth=0)


def _yes_value(values: np.ndarray) -> float | None:
    """Return the higher of two values that make up at least 90 % of the scores; None if the scores are not yes/no."""
    distinct, counts = np.unique(values, return_counts=True)
    common = np.sort(counts)[-2:]
    if len(common) < 2 or common.sum() < 0.9 * len(values) or common.min() == 1:
        return None
    return float(distinct[np.argsort(counts, kind="stable")[-2:]].max())


def _for_page(svg: str) -> str:
    """Return the `<svg>` element for a page, with colours as CSS variables and without ids, which could clash."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    # Nothing is drawn outside the axes, so clip paths are not needed. Without them, a page has no url() references.
    svg = re.sub(r"<clipPath.*?</clipPath>", "", svg, flags=re.S)
    svg = re.sub(r' clip-path="[^"]*"', "", svg)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, count=1, flags=re.S)  # the style would apply to the whole page
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name}, {colour})")
    return svg


# --- Plots of analyses ---


def plot(findings: Findings, runs: Sequence[Run], path: Path) -> None:
    """Draw the results of an analysis, and write the plot to an SVG file."""
    with rc_context(STYLE):
        write_text(path, svg_text(DRAWN[findings.what](findings, runs)))


def _correlations(findings: Findings, runs: Sequence[Run]) -> Figure:
    """Draw the correlations of each pair of metrics over samples, with one row per explainer and pair of metrics."""
    rows = [
        (_label(row, ("explainer", "metric", "other"), runs), [_ends(row, "spearman"), _ends(row, "pearson")])
        for row in findings.data["samples"]
    ]
    return _whiskers(rows, ("Spearman", "Pearson"), "correlation over samples")


def _agreements(findings: Findings, runs: Sequence[Run]) -> Figure:
    """Draw the rank correlations of each pair of metrics over explainers."""
    rows = [
        (_label(row, ("metric", "other"), runs), [_ends(row, "spearman"), _ends(row, "kendall", "kendall tau-b")])
        for row in findings.data["pairs"]
    ]
    return _whiskers(rows, ("Spearman", "Kendall tau-b"), "agreement on the order of explainers")


def _ratings(findings: Findings, runs: Sequence[Run]) -> Figure:
    """Draw the mean ratings of explainers by people, with one dot per question."""
    questions = list(findings.data["questions"])
    frame = pd.DataFrame(findings.data["ratings"]).set_index(["explainer", "question"])
    columns = ["mean", "low", "high"]
    rows = [
        (name, [tuple(frame.loc[(name, question), columns].astype(float)) for question in questions])
        for name in frame.index.unique("explainer")
    ]
    highest = len(findings.data["scale"])
    return _whiskers(rows, questions, f"mean rating, 1 to {highest}, and 95 % interval", (1, highest))


def _ends(row: Mapping[str, Any], name: str, value: str = "") -> tuple[float, ...]:
    """Return (value, low, high) of a row of a table, with NaN for missing numbers."""
    return tuple(np.array([row[value or name], row[f"{name} low"], row[f"{name} high"]], dtype=float))


def _label(row: Mapping[str, Any], names: Iterable[str], runs: Sequence[Run]) -> str:
    """Return the label of a row, including dataset and model if there are several runs."""
    parts = [str(row[name]).replace("saliency_", "") for name in names]
    return ", ".join([*([row["dataset"], row["model"].rpartition("/")[2]] if len(runs) > 1 else []), *parts])


def _whiskers(
    rows: Sequence[tuple[str, Sequence[tuple[float, ...]]]], names: Sequence[str], title: str,
    limits: tuple[float, float] = (-1, 1),
) -> Figure:  # fmt: skip
    """Draw one row per label, with a dot and a whisker for each of `names`. `limits` are the possible values."""
    figure = Figure(figsize=(WIDTH, 1 + ROW * max(len(rows), 1)))
    axes = figure.add_subplot()
    for index, name in enumerate(names):
        value, low, high = np.array([ends[index] for _, ends in rows]).reshape(-1, 3).T
        y = np.arange(len(rows)) + 0.2 * index
        axes.errorbar(value, y, xerr=[value - low, high - value], fmt="o", markersize=3, label=name)
    axes.set_yticks(np.arange(len(rows)), [label for label, _ in rows])
    if limits[0] < 0:
        axes.axvline(0, color="0.7", linewidth=0.8)
    margin = 0.025 * (limits[1] - limits[0])
    axes.set(xlim=(limits[0] - margin, limits[1] + margin), ylim=(len(rows) - 0.3, -0.5), xlabel=title)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names))
    return figure


def _ranks(findings: Findings, runs: Sequence[Run]) -> Figure:
    """Draw a line per explainer through its ranks in all settings, with one panel per metric."""
    figure, panels = _panels_of(findings.data["settings"], "dataset", "model", "metric")
    for axes, (_, _, metric), frame in panels:
        for name, rows in frame.groupby("explainer", sort=False):
            settings = rows["setting"].str.replace("saliency_", "")
            axes.plot(settings.to_list(), rows["rank"].to_list(), "o-", markersize=3, label=name)
        axes.invert_yaxis()
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(axis="x", rotation=30)
        axes.set(title=metric, ylabel="rank by mean")
        _legend(axes)
    return figure


def _sweeps(findings: Findings, runs: Sequence[Run]) -> Figure:
    """Draw a line per explainer over the values of an option, with one panel per metric and option."""
    figure, panels = _panels_of(findings.data["points"], "dataset", "model", "metric", "option")
    for axes, (_, _, metric, option), frame in panels:
        for name, rows in frame.groupby("explainer", sort=False):
            settings = rows["at"].to_list()
            are_numbers = all(isinstance(setting, int | float) for setting in settings)
            _curve(axes, settings if are_numbers else list(map(str, settings)), rows, "value", name)
        axes.set(title=metric, xlabel=option, ylabel="mean and 95 % interval")
        _legend(axes)
    return figure


def _similarities(findings: Findings, runs: Sequence[Run]) -> Figure:
    """Draw a line per explainer through the layers, from the logits down, and a line at the bound."""
    figure, panels = _panels_of(findings.data["layers"], "dataset", "model", "metric")
    for axes, (_, _, metric), frame in panels:
        for name, rows in frame.groupby("explainer", sort=False):
            _curve(axes, rows["down to"].to_list(), rows, "similarity", name)
        axes.axhline(findings.data["bound"], color="0.5", linewidth=0.8, linestyle="--")
        axes.tick_params(axis="x", rotation=30)
        axes.set(title=metric, xlabel="new weights, down to", ylabel="similarity and 95 % interval")
        _legend(axes)
    return figure


def _exposures(findings: Findings, runs: Sequence[Run]) -> Figure:
    """Draw the agreement with people at each exposure, with one panel per metric."""
    figure, panels = _panels_of(findings.data["exposures"], "dataset", "model", "metric")
    for axes, (_, _, metric), rows in panels:
        shown = (100 * rows["exposure"]).to_list()
        _curve(axes, shown, rows, "spearman", "Spearman", ("spearman low", "spearman high"))
        _curve(axes, shown, rows, "kendall tau-b", "Kendall tau-b", ("kendall low", "kendall high"))
        axes.set(title=metric, xlabel="exposure, % of the pixels", ylabel="agreement with people", ylim=(-1.05, 1.05))
        axes.axhline(0, color="0.7", linewidth=0.8)
        _legend(axes)
    return figure


def _people_by_exposure(findings: Findings, runs: Sequence[Run]) -> Figure:
    """Draw people's accuracy at each exposure, the difficulty of the images, and people's ability."""
    figure, (curves, images, people) = _panels(3)
    for name, rows in pd.DataFrame(findings.data["accuracies"]).groupby("explainer", sort=False):
        _curve(curves, (100 * rows["exposure"]).to_list(), rows, "accuracy", name)
    curves.set(xlabel="exposure, % of the pixels", ylabel="accuracy of people and 95 % interval", ylim=(0, 1.02))
    _legend(curves)
    for axes, key in ((images, "images"), (people, "people")):
        means = [100 * row["mean exposure"] for row in findings.data[key] if row["mean exposure"] is not None]
        axes.hist(means, bins=np.arange(0, 105, 5).tolist())
        axes.set(xlabel="mean exposure of correct answers, % of the pixels", ylabel=key, xlim=(0, 100))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _curve(
    axes: Axes, x: list, rows: pd.DataFrame, column: str, label: object, ends: tuple[str, str] = ("low", "high")
) -> None:
    """Draw a column of a table as a line, with the interval of each value."""
    value, low, high = rows[[column, *ends]].to_numpy(dtype=float).T
    axes.errorbar(x, value, yerr=[value - low, high - value], fmt="o-", markersize=3, label=str(label))


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH * 0.7, 3.2 * count), layout="constrained")
    return figure, [figure.add_subplot(count, 1, index + 1) for index in range(count)]


def _panels_of(rows: Sequence[dict], *keys: str) -> tuple[Figure, list[tuple[Axes, tuple, pd.DataFrame]]]:
    """Return (figure, [(axes, values of `keys`, rows)]) with one panel for each group of rows."""
    groups = list(pd.DataFrame(rows).groupby(list(keys), sort=False))
    figure, panels = _panels(len(groups))
    return figure, [(axes, key, frame) for axes, (key, frame) in zip(panels, groups, strict=True)]


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def _gallery(findings: Findings, runs: Sequence[Run]) -> Figure:
    """Draw the first samples with a stored image or map, with the map over the image."""
    samples = findings.data["samples"]
    tiles = [(row, *pictures) for row in samples if (pictures := _pictures(row, runs)) is not None][:MOST_TILES]
    columns = 4
    lines = max(1, -(-len(tiles) // columns))
    figure = Figure(figsize=(WIDTH, 2.6 * lines), layout="constrained")
    if not tiles:
        text = "No pictures: start the run again with --keep-maps." if samples else "No sample found."
        figure.text(0.05, 0.5, text)
    elif notes := _about_tiles(len(samples), [image for _, image, _ in tiles]):
        figure.suptitle(notes, fontsize=7)
    for index, (row, image, heat) in enumerate(tiles):
        axes = figure.add_subplot(lines, columns, index + 1)
        axes.set_axis_off()
        if image is not None:
            axes.imshow(image)
        axes.imshow(heat, alpha=0.6 if image is not None else 1.0, extent=_extent(image, heat))
        axes.set_title(
            f"{row['sample'][:24]}\n{row['target']} {row['confidence']:.2f}, {row['explainer'][:20]}\n"
            f"pointing {row['pointing game']:.2f}, insertion {row['insertion']:.2f}",
            fontsize=6,
        )
    return figure


def _about_tiles(count: int, images: Sequence[np.ndarray | None]) -> str:
    """Describe how many of `count` samples a gallery shows, and why some tiles show only a map."""
    shown = f"{len(images)} of the {count} found" if len(images) < count else ""
    lacking = any(image is None for image in images)
    alone = (
        "some tiles have no photograph, because a run stores only the photographs of its examples" if lacking else ""
    )
    return "; ".join(filter(None, [shown, alone]))


def _extent(image: np.ndarray | None, heat: np.ndarray) -> tuple[float, float, float, float]:
    """Return the extent (left, right, bottom, top), in pixels, over which a map is drawn on its image."""
    height, width = (heat if image is None else image).shape[:2]
    return -0.5, width - 0.5, height - 0.5, -0.5


def _pictures(row: dict, runs: Sequence[Run]) -> tuple[np.ndarray | None, np.ndarray] | None:
    """Return (image or None, coloured map) of a sample, from the examples or the stored maps of its run."""
    for run in runs:
        if run.subject != (row["dataset"], row["model"]):
            continue
        ids = [str(image_id) for image_id in run.examples.get("ids", [])]
        explainer_id = next(line.explainer_id for line in run.table.rows if line.name == row["explainer"])
        image = run.examples["images"][ids.index(row["sample"])] if row["sample"] in ids else None
        if image is not None and f"maps/{explainer_id}" in run.examples:
            return image, _coloured(run.examples[f"maps/{explainer_id}"][ids.index(row["sample"])])
        for folder in dict.fromkeys(origin.folder for origin in run.origins.values()):
            try:
                values = maps_in(folder)[row["explainer"]][row["sample"]]
            except (UserError, KeyError):
                continue
            return image, _coloured(LEVELS * scaled(values))
    return None


def _coloured(levels: np.ndarray) -> np.ndarray:
    """Return a coloured map, as uint8 (h, w, 3), from levels of `heat_map`."""
    return np.asarray(heat_map(levels).convert("RGB"))


DRAWN: dict[str, Callable[[Findings, Sequence[Run]], Figure]] = {
    "correlation": _correlations,
    "rank": _agreements,
    "sensitivity": _ranks,
    "sweep": _sweeps,
    "clever-hans": _gallery,
    "randomisation": _similarities,
    "agreement": _exposures,
    "peekaboom": _people_by_exposure,
    "assess": _ratings,
}
