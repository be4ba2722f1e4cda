"""Draw the figures of docs/findings.md: value and interval of each explainer on each metric, one SVG per dataset."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saliency_bench.read.cell import CellResult
from saliency_bench.read.finished_run import Run
from saliency_bench.read.report.plots import COLOURS, STYLE, write_figure

PANELS, WIDTH, ROW = 4, 8.6, 0.17  # panels per row; width of the figure and height of an explainer, in inches


def draw(runs: Sequence[Run], path: Path, few: int) -> None:
    """Draw a panel per metric, with a dot and an interval per explainer.

    Args:
        runs: Runs on the same photographs. If several runs have a score, the first one is used.
        path: Path of the SVG file.
        few: Runs with at most this many photographs have hollow dots.
    """
    cells: dict[tuple[str, str], tuple[CellResult, bool]] = {}
    for run in runs:
        for cell in run.cells:
            cells.setdefault((cell.metric, cell.explainer), (cell, len(run.scores.ids) <= few))
    metrics = list(dict.fromkeys(metric for metric, _ in cells))
    names = ordered(cells, metrics[0])
    lines = -(-len(metrics) // PANELS)
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, lines * (ROW * len(names) + 0.6)), layout="constrained")
        panels = figure.subplots(lines, min(PANELS, len(metrics)), sharey=True, squeeze=False).ravel()
        for axes, metric in zip(panels, metrics, strict=False):
            _panel(axes, [cells.get((metric, name)) for name in names])
            axes.set_yticks(range(len(names)), names)
            axes.tick_params(axis="y", left=False)
            axes.set_ylim(len(names) - 0.5, -0.5)
        for axes in panels[len(metrics) :]:
            axes.set_visible(False)
        write_figure(figure, path)


def ordered(cells: dict[tuple[str, str], tuple[CellResult, bool]], metric: str) -> list[str]:
    """Return the explainers sorted from best to worst on a metric, with baselines last."""

    def place(name: str) -> tuple[bool, float]:
        cell = next(cell for (_, of), (cell, _) in cells.items() if of == name)
        first = cells.get((metric, name))
        return cell.baseline, -(first[0].value or 0) if first else 0

    return sorted(dict.fromkeys(name for _, name in cells), key=place)


def _panel(axes: Axes, entries: Sequence[tuple[CellResult, bool] | None]) -> None:
    """Draw the scores of all explainers on one metric, and a line at the best baseline."""
    shown = [(height, *entry) for height, entry in enumerate(entries) if entry and entry[0].value is not None]
    for baseline, few in product((False, True), repeat=2):
        colour = COLOURS["muted" if baseline else "accent"]
        group = [(height, cell) for height, cell, hollow in shown if (cell.baseline, hollow) == (baseline, few)]
        ends = [(height, cell.low, cell.high) for height, cell in group if cell.low is not None]
        if ends:
            axes.hlines(*zip(*ends, strict=True), color=colour, linewidth=1.2)
        axes.plot([cell.value for _, cell in group], [height for height, _ in group], "o", color=colour, markersize=4,
                  markerfacecolor="white" if few else colour)  # fmt: skip
    cell = shown[0][1]
    best = max if cell.higher_is_better else min
    axes.axvline(best(cell.value for _, cell, _ in shown if cell.baseline), color=COLOURS["muted"], linewidth=0.8,
                 linestyle="--", zorder=0)  # fmt: skip
    name = cell.metric.removeprefix("saliency_").replace("_", " ")
    axes.set_title(f"{name} {'↑' if cell.higher_is_better else '↓'}", fontsize=8)
    axes.grid(axis="x", color=COLOURS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(3))
