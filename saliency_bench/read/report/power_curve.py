"""Draw the curve of the command `power`: the probability of finding a difference against the number of clusters."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.power import Needed, power_at
from saliency_bench.read.report.plots import COLOURS, STYLE, check_form, write_figure
from saliency_bench.read.statistics.ranking import ALPHA

POINTS = 40


def write_curves(path: Path, needed: Sequence[tuple[str, Needed, int]], power: float) -> None:
    """Draw a curve for each entry, and write the figure to a PDF, SVG or PNG file.

    Args:
        path: File to write.
        needed: Tuples (name, result of `power`, number of differences that are tested together).
        power: Power at which a horizontal line is drawn.

    Raises:
        UserError: The file type is not supported, or no difference can be found.
    """
    check_form(path)
    known = [(name, item, comparisons) for name, item, comparisons in needed if item.clusters is not None]
    if not known:
        raise UserError("none of the differences can be found with any number of images, so there is no curve to draw")
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.subplots()
        for name, item, comparisons in known:
            clusters = np.unique(np.linspace(2, 2 * (item.clusters or 2), POINTS).astype(int))
            alpha = ALPHA / comparisons
            chances = [power_at(int(count), item.spread, item.difference, alpha, item.failures) for count in clusters]
            axes.plot(clusters, chances, label=name)
        axes.axhline(power, color=COLOURS["muted"], linewidth=0.8, linestyle="--")
        axes.set(xlabel="clusters", ylabel="probability of finding the difference", ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(frameon=False, loc="lower right")
        write_figure(figure, path)
