"""Draw the figures of docs/reference.md as SVG files that are legible on phones (375 pixels wide)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from saliency_bench.read.finished_run import Run
from saliency_bench.read.report.plots import COLOURS, STYLE, write_figure
from saliency_bench.read.statistics.intervals import Estimate

WIDTH, ROW = 3.9, 0.19  # inches; the width is 375 pixels
MARKS = ("o", "s", "^")
DIVERGING = LinearSegmentedColormap.from_list("agreement", ["#c8553d", COLOURS["page"], COLOURS["fill"]])
RISING = LinearSegmentedColormap.from_list("share", [COLOURS["page"], COLOURS["fill"]])


def title_of(metric: str) -> str:
    """Return the name of a metric as shown in the plots."""
    return metric.removeprefix("saliency_").replace("average_precision", "avg. precision").replace("_", " ")


def draw_beaten(
    tables: Mapping[str, Mapping[str, Sequence[str]]], explained: Mapping[str, Sequence[str]], path: Path
) -> None:  # fmt: skip
    """Draw, for each network and explainer, the number of metrics on which the explainer beats all baselines."""
    names = list(dict.fromkeys(name for names in explained.values() for name in names))
    shares = np.full((len(names), len(tables)), np.nan)
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, ROW * len(names) + 0.5), layout="constrained")
        axes = figure.subplots()
        for column, (network, metrics) in enumerate(tables.items()):
            for row, name in enumerate(names):
                if name in explained[network]:
                    wins = sum(name in leading for leading in metrics.values())
                    shares[row, column] = wins / max(len(metrics), 1)
                    text = f"{wins}/{len(metrics)}" if metrics else "too few"
                    axes.text(column, row, text, ha="center", va="center", fontsize=7)
        axes.imshow(shares, aspect="auto", cmap=RISING, vmin=0, vmax=1)
        axes.set_yticks(range(len(names)), names)
        axes.set_xticks(range(len(tables)), [network.replace(", ", ",\n") for network in tables], fontsize=7)
        _bare(axes)
        write_figure(figure, path)


def draw_agreement(found: Mapping[str, Mapping[tuple[str, str], Estimate]], path: Path) -> None:
    """Draw a clustered matrix for each study, with correlations below the diagonal and intervals above it."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, WIDTH * len(found)), layout="constrained")
        panels = figure.subplots(len(found), 1, squeeze=False).ravel()
        for axes, (about, pairs) in zip(panels, found.items(), strict=True):
            names = clustered(pairs)
            matrix = np.full((len(names), len(names)), np.nan)
            for (first, other), rho in pairs.items():
                low, high = sorted((names.index(first), names.index(other)))
                matrix[high, low] = rho.value
                sure = rho.low is not None and not rho.low <= 0 <= rho.high
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontweight": "bold" if sure else "normal"}
                if np.isfinite(rho.value):
                    axes.text(low, high, _number(rho.value), fontsize=7, **style)
                if rho.low is not None:
                    axes.text(high, low, f"{_number(rho.low)}\n{_number(rho.high)}", fontsize=6, **style)
            axes.imshow(matrix, cmap=DIVERGING, vmin=-1, vmax=1)
            axes.set_yticks(range(len(names)), [title_of(name) for name in names], fontsize=7)
            axes.set_xticks(range(len(names)), [title_of(name) for name in names], rotation=90, fontsize=7)
            axes.set_title(about, fontsize=8)
            _bare(axes)
        write_figure(figure, path)


def clustered(pairs: Mapping[tuple[str, str], Estimate]) -> list[str]:
    """Return the metrics in the order of a hierarchical clustering (average linkage) with distance 1 - rho.

    An unknown rho counts as 0.
    """
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    distances = np.zeros((len(names), len(names)))
    for (first, other), rho in pairs.items():
        value = 1 - rho.value if np.isfinite(rho.value) else 1.0
        distances[names.index(first), names.index(other)] = distances[names.index(other), names.index(first)] = value
    if len(names) < 3:
        return names
    return [names[index] for index in leaves_list(linkage(squareform(distances), "average", optimal_ordering=True))]


def draw_orders(orders: Sequence[Any], path: Path) -> None:
    """Draw the correlation and interval for each metric and subject. Each subject has its own mark and height."""
    subjects = list(dict.fromkeys(order.subject for order in orders))
    metrics = list(dict.fromkeys(order.metric for order in orders))
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.5 * len(metrics) + 0.8), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color=COLOURS["muted"], linewidth=0.8, linestyle="--", zorder=0)
        for number, subject in enumerate(subjects):
            points = [(metrics.index(o.metric) + 0.24 * (number - (len(subjects) - 1) / 2), o.rho) for o in orders
                      if o.subject == subject]  # fmt: skip
            for height, rho in points:
                if rho.low is not None:
                    axes.hlines(height, rho.low, rho.high, color=COLOURS["accent"], linewidth=1)
            axes.plot([rho.value for _, rho in points], [height for height, _ in points], MARKS[number % 3],
                      color=COLOURS["accent"], markersize=4.5, markerfacecolor="white" if number else COLOURS["accent"],
                      label=subject)  # fmt: skip
        axes.set_xlim(-1.05, 1.05)
        axes.set_ylim(len(metrics) - 0.5, -0.5)
        axes.set_yticks(range(len(metrics)), [title_of(metric) for metric in metrics])
        axes.tick_params(axis="y", left=False)
        if subjects:
            figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=7)
        write_figure(figure, path)


def draw_costs(shown: Mapping[str, tuple[Run, Mapping[str, float]]], metric: str, path: Path) -> None:
    """Draw the score of each explainer, sorted by passes, with a panel for each network."""
    cells = {about: sorted((cell for cell in run.cells if cell.metric == metric and cell.value is not None),
                           key=lambda cell: passes[cell.explainer_text])
             for about, (run, passes) in shown.items()}  # fmt: skip
    sizes = [len(of) for of in cells.values()]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, ROW * sum(sizes) + 0.5 * len(sizes) + 0.3), layout="constrained")
        panels = figure.subplots(len(sizes), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": sizes})
        for axes, (about, of) in zip(panels.ravel(), cells.items(), strict=True):
            for row, cell in enumerate(of):
                colour = COLOURS["muted" if cell.baseline else "accent"]
                if cell.low is not None:
                    axes.hlines(row, cell.low, cell.high, color=colour, linewidth=1.2)
                axes.plot(cell.value, row, "o", color=colour, markersize=4)
            passes = shown[about][1]
            labels = [f"{cell.explainer} ({passes[cell.explainer_text]:.0f})" for cell in of]
            axes.set_yticks(range(len(of)), labels)
            axes.tick_params(axis="y", left=False)
            axes.set_ylim(len(of) - 0.5, -0.5)
            axes.set_title(about, fontsize=8)
        write_figure(figure, path)


def _number(value: float) -> str:
    """Return a correlation in at most four characters, such as ".85" or "-.20"."""
    text = f"{value:.2f}".replace("0.", ".")
    return {"1.00": "1", "-1.00": "-1", "-.00": ".00"}.get(text, text)


def _bare(axes: Axes) -> None:
    """Remove the frame and the ticks."""
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
