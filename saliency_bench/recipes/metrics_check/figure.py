"""Draw a heat map of the metrics' detection rates for each kind of damage."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from saliency_bench.read.report.plots import COLOURS, STYLE, write_figure
from saliency_bench.recipes.metrics_check.check import Count
from saliency_bench.recipes.metrics_check.damaged_maps import DAMAGED

WIDTH, ROW = 3.75, 0.19  # inches; at this width, the figure fits a phone screen of 375 pixels
# Colours from "prefers the damaged map" through "no preference" to "prefers the correct map".
MAP = LinearSegmentedColormap.from_list("detection", ["#b3541e", "#fdfdfb", COLOURS["accent"]])


def draw_figure(rates: Sequence[tuple[str, Sequence[Count | None]]], path: Path) -> None:
    """Draw a heat map of detection rates in percent. Each row is (name of a metric, count for each kind of damage)."""
    with rc_context(STYLE | {"font.size": 7}):
        figure = Figure(figsize=(WIDTH, ROW * len(rates) + 0.95), layout="constrained")
        axes = figure.subplots()
        values = [[float("nan") if count is None else count.rate for count in counts] for _, counts in rates]
        axes.imshow(values, cmap=MAP, vmin=0, vmax=1, aspect="auto")
        for row, (_, counts) in enumerate(rates):
            for column, count in enumerate(counts):
                text, rate = ("–", 0.5) if count is None or not count.n else (f"{100 * count.rate:.0f}", count.rate)
                strong = COLOURS["page"] if abs(rate - 0.5) > 0.3 else COLOURS["text"]
                axes.text(column, row, text, ha="center", va="center", color=strong, fontsize=6)
        axes.set_xticks(range(len(DAMAGED)), list(DAMAGED), rotation=60, ha="left", rotation_mode="anchor")
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(rates)), [name for name, _ in rates])
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        write_figure(figure, path)
