"""Test that plots draw the numbers of their tables, inside their axes."""

from itertools import pairwise, product

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import StepPatch
from test_reporting import METHODS, METRICS, make_other_run, make_run

from saliency_bench.read.analysis.comparison import compare_runs
from saliency_bench.read.analysis.tables import Findings
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.report import plots

EXPLAINERS = ("gradcam", "rise", "random")
SPEARMAN = ("spearman", "spearman low", "spearman high")
KENDALL = ("kendall tau-b", "kendall low", "kendall high")
MEAN = ("value", "low", "high")
SETTING = {"dataset": ["pets"], "model": ["net"], "metric": list(METRICS[:2])}
ANALYSES = {  # {analysis: (table, values of the other columns, columns (value, low, high) to draw, their limits, axis)}
    "correlation": ("samples", {"explainer": EXPLAINERS, "metric": ["a"], "other": ["b", "c"]},
                    [SPEARMAN, ("pearson", "pearson low", "pearson high")], (-1, 1), 0),
    "rank": ("pairs", {"metric": ["a", "b"], "other": ["c", "d"]}, [SPEARMAN, KENDALL], (-1, 1), 0),
    "sweep": ("points", SETTING | {"option": ["steps"], "explainer": EXPLAINERS, "at": [1, 5, 20]}, [MEAN], (-9, 9), 1),
    "randomisation": ("layers", SETTING | {"explainer": EXPLAINERS, "down to": ["fc", "conv"]},
                      [("similarity", "low", "high")], (-1, 1), 1),
    "agreement": ("exposures", SETTING | {"exposure": [0.1, 0.5]}, [SPEARMAN, KENDALL], (-1, 1), 1),
    "assess": ("ratings", {"explainer": EXPLAINERS, "question": ["q", "r"]}, [("mean", "low", "high")], (1, 5), 0),
}  # fmt: skip
MORE = {"bound": 0.5, "questions": ["q", "r"], "scale": ["bad", "poor", "fair", "good", "very good"]}


def drawn(figure, axis: int) -> list[tuple]:
    """Return (value, low, high) of each dot with an interval, after checking that the intervals lie inside the axes."""
    found = []
    for axes in figure.axes:
        limits = sorted((axes.get_xlim, axes.get_ylim)[axis]())
        for container in axes.containers:
            line, _, (whiskers,) = container
            for point, ends in zip(line.get_xydata(), whiskers.get_segments(), strict=True):
                low, high = sorted(end[axis] for end in ends)
                found.append((point[axis], low, high))
                assert limits[0] <= low <= high <= limits[1]
    return found


@pytest.mark.parametrize("what", ANALYSES)
def test_plot_of_analysis_shows_every_interval(what):
    table, columns, triples, (lowest, highest), axis = ANALYSES[what]
    rng, rows, expected = np.random.default_rng(0), [], []
    for values in product(*columns.values()):
        rows.append(dict(zip(columns, values, strict=True)))
        for triple in triples:
            low, value, high = np.sort(rng.uniform(lowest, highest, 3))
            expected.append((value, low, high))
            rows[-1] |= dict(zip(triple, expected[-1], strict=True))
    figure = plots.DRAWN[what](Findings(what, [], {table: rows} | MORE), [])
    assert sorted(drawn(figure, axis)) == [pytest.approx(triple) for triple in sorted(expected)]
    bounds = [any(list(line.get_ydata()) == [0.5, 0.5] for line in axes.lines) for axes in figure.axes]
    assert bounds == [what == "randomisation"] * len(bounds)


def test_plot_of_sensitivity_shows_every_rank():
    settings = [{"dataset": "pets", "model": "net", "metric": "m", "setting": setting, "explainer": name, "rank": rank}
                for setting, ranks in {"s1": (1, 2, 3), "s2": (3, 1, 2)}.items()
                for name, rank in zip(EXPLAINERS, ranks, strict=True)]  # fmt: skip
    (axes,) = plots.DRAWN["sensitivity"](Findings("sensitivity", [], {"settings": settings}), []).axes
    found = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert found == {"gradcam": [1, 3], "rise": [2, 1], "random": [3, 2]}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(EXPLAINERS)


def test_plot_of_peekaboom_shows_accuracies_and_counts():
    accuracies = [{"explainer": name, "exposure": exposure, "accuracy": level + exposure, "low": level, "high": 1.0}
                  for name, level in (("gradcam", 0.3), ("rise", 0.1)) for exposure in (0.1, 0.5)]  # fmt: skip
    exposures = {"images": [0.01, 0.02, 0.51, None], "people": [0.99, 0.33]}
    counted = {key: [{"mean exposure": value} for value in values] for key, values in exposures.items()}
    figure = plots.DRAWN["peekaboom"](Findings("peekaboom", [], {"accuracies": accuracies} | counted), [])
    curves, *histograms = figure.axes
    points = [tuple(point) for container in curves.containers for point in container[0].get_xydata()]
    assert points == [(10, pytest.approx(0.4)), (50, 0.8), (10, 0.2), (50, 0.6)]
    for axes, expected in zip(histograms, ({0: 2, 50: 1}, {95: 1, 30: 1}), strict=True):
        assert {bar.get_x(): bar.get_height() for bar in axes.patches if bar.get_height()} == expected


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two runs that use the same images and different networks."""
    first, second = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
    make_run(first, pictures=False)
    make_other_run(second, methods=METHODS | {"gradcam": 0.8})
    return read_run(first), read_run(second)


@pytest.fixture
def axes_of(monkeypatch):
    """Return a function that calls a function of `plots` and returns the axes of its figure."""
    figures = []
    monkeypatch.setattr(plots, "svg_text", lambda figure, tight: figures.append(figure) or "<svg></svg>")

    def call(function, *given):
        function(*given)
        return figures[-1].axes[0]

    return call


def whiskers(axes) -> list[tuple]:
    lines = [collection for collection in axes.collections if isinstance(collection, LineCollection)]
    return [(start[0], end[0]) for (start, end), *_ in (line.get_segments() for line in lines)]


def check_histograms(axes, samples) -> None:
    """Compare the heights of the bars, relative to the highest bar of a row, with counts of the samples."""
    steps = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]
    for (values, edges, baseline), scores in zip(steps, samples, strict=True):
        heights = baseline - values
        counts = np.array([sum(low <= score < high for score in scores) for low, high in pairwise(edges)])
        assert counts.sum() == len(scores)
        assert heights / heights.max() == pytest.approx(counts / counts.max())


@pytest.mark.parametrize("metric", range(len(METRICS)))
def test_plots_of_report_show_the_scores(runs, axes_of, metric):
    run = runs[0]
    column = run.table.columns[metric]
    cells = [cell for _, cell in run.table.cells_of_column(column)]
    axes = axes_of(plots.mean_plot, run.table, column)
    assert whiskers(axes) == [(cell.low, cell.high) for cell in cells]
    assert {line.get_xdata()[0] for line in axes.lines} >= {cell.value for cell in cells}
    axes = axes_of(plots.rank_plot, run.table, column)
    bars = [(bar.get_x() + 0.25, bar.get_x() + bar.get_width() - 0.25) for bar in axes.patches]
    assert bars == [pytest.approx(cell.rank) for cell in sorted(cells, key=lambda cell: cell.rank)]
    axes = axes_of(plots.distribution_plot, run.table, run.scores, column)
    samples = [values[np.isfinite(values)] for values in (run.scores.values[cell.cell_id] for cell in cells)]
    check_histograms(axes, samples)


def test_plots_of_differences_show_the_differences(runs, axes_of):
    (difference,) = compare_runs(runs).differences
    pairs = [pair for pair in difference.pairs if pair.metric == METRICS[0]]
    axes = axes_of(plots.difference_plot, pairs)
    assert whiskers(axes) == [(pair.low, pair.high) for pair in pairs]
    assert {line.get_xdata()[0] for line in axes.lines} >= {pair.mean for pair in pairs}
    check_histograms(axes_of(plots.difference_histogram, pairs), [pair.differences for pair in pairs])
