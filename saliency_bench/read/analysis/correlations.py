"""Correlate two metrics over the samples of one explainer, and over the mean scores on several datasets.

Pearson's r measures whether scores lie on a line. Spearman's rho, which uses ranks and gives ties their mean rank,
measures whether scores have the same order. Metrics where lower is better are negated first, so that 1 always means
agreement. The interval of a correlation over samples is a percentile bootstrap over clusters that recomputes both
correlations in each draw. A correlation over datasets has one point per dataset (eight in table 3 of the Saliency-Bench
paper) and Fisher's interval (`over_points`), which is valid for new datasets from the same population.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from saliency_bench.read.analysis.common_names import names_of
from saliency_bench.read.analysis.tables import Findings, Table, dicts, finite_or_none
from saliency_bench.read.cell import CellResult
from saliency_bench.read.cell_table import CellTable
from saliency_bench.read.run_folder import CellScores
from saliency_bench.read.statistics.intervals import Estimate, cluster_bootstrap, t_quantile

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

SAMPLES = ("dataset", "model", "explainer", "metric", "other", "spearman", "spearman low", "spearman high", "pearson",
           "pearson low", "pearson high", "n", "clusters")  # fmt: skip
DATASETS = ("model", "explainer", "metric", "other", "spearman", "spearman low", "spearman high", "pearson",
            "pearson low", "pearson high", "datasets")  # fmt: skip
FEWEST = 3  # points; with fewer, no correlation is reported


def correlation(runs: Sequence["Run"]) -> Findings:
    """Correlate each pair of metrics, for each explainer over samples, and over datasets if there are three or more."""
    rows = [row for run in runs for row in _over_samples(run)]
    tables = [Table(SAMPLES, rows)]
    if means := list(_over_datasets(runs)):
        tables.append(Table(DATASETS, means, "datasets"))
    notes = ["Metrics where lower is better are negated: 1 means that both metrics agree.",
             "Intervals: 95 %, percentile bootstrap over clusters, not corrected for multiple tests."]  # fmt: skip
    if means:
        notes.append("Intervals over datasets: Fisher's transformation, for at least four datasets.")
    if len(runs) > 1 and not means:
        notes.append(_why_no_datasets(runs))
    return Findings("correlation", tables, {"samples": dicts(SAMPLES, rows), "datasets": dicts(DATASETS, means)}, notes)


def _why_no_datasets(runs: Sequence["Run"]) -> str:
    """Return a sentence that says why there is no correlation over datasets."""
    datasets = sorted({run.dataset_id for run in runs})
    why = (
        f"needs runs on {FEWEST} datasets with different ids; these runs are on {', '.join(datasets)}"
        if len(datasets) < FEWEST
        else f"needs a model and an explainer with the same two metrics on {FEWEST} datasets, but these runs have none"
    )
    return f"No correlation over datasets: it {why}."


def _over_samples(run: "Run") -> Iterator[tuple]:
    """Yield a row of SAMPLES for each explainer and each pair of metrics of a run."""
    for row in run.table.rows:
        cells = [
            (column.name, cell)
            for column in run.table.columns
            if (cell := run.table.cell(row, column)) and not cell.aggregate
        ]
        for (metric, first), (other, second) in combinations(cells, 2):
            estimates = cell_correlations(run, first, second)
            numbers = [end for estimate in estimates for end in estimate.known]
            yield *run.subject, row.name, metric, other, *numbers, estimates[0].n, estimates[0].clusters


def cell_correlations(run: "Run", first: CellResult, second: CellResult) -> tuple[Estimate, Estimate]:
    """Return (Spearman's, Pearson's) correlation of two cells over their common samples.

    Scores are oriented so that higher is better.
    """
    scores = [run.scores.oriented(cell) for cell in (first, second)]
    rows = np.flatnonzero(np.isfinite(scores[0]) & np.isfinite(scores[1]))
    codes = run.scores.codes([run.scores.ids[row] for row in rows])
    x, y = (column[rows] for column in scores)
    seed = run.seed
    ranked = Ranked(x), Ranked(y)

    def spearman(weights: np.ndarray) -> np.ndarray:
        return pearson(ranked[0].ranks(weights), ranked[1].ranks(weights), weights)

    def linear(weights: np.ndarray) -> np.ndarray:
        return pearson(x - _centre(x), y - _centre(y), weights)

    return cluster_bootstrap(spearman, codes, seed), cluster_bootstrap(linear, codes, seed)


def _centre(values: np.ndarray) -> float:
    """Return the mean of values, or 0 if there are none.

    The mean is subtracted before squares are summed, because sums of large values with little spread lose precision.
    """
    return float(values.mean()) if len(values) else 0.0


def pearson(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted correlation (draws,) of values (n,) or (draws, n), NaN if either is constant.

    r = sum w (x - mean x) (y - mean y) / sqrt(sum w (x - mean x)^2 sum w (y - mean y)^2)
    """
    total = weights.sum(axis=1, keepdims=True)
    x = first - (weights * first).sum(axis=1, keepdims=True) / total
    y = second - (weights * second).sum(axis=1, keepdims=True) / total
    squares = (weights * x**2).sum(axis=1), (weights * y**2).sum(axis=1)
    # In a constant column, only the rounding error of the mean remains.
    least = [1e-20 * total[:, 0] * (np.abs(column).max(initial=0) + 1e-300) ** 2 for column in (first, second)]
    is_constant = (squares[0] <= least[0]) | (squares[1] <= least[1])
    scale = np.where(is_constant, np.nan, np.sqrt(squares[0] * squares[1]))
    return (weights * x * y).sum(axis=1) / scale


class Ranked:
    """Values (n,), prepared so that they can be ranked in many draws with replacement."""

    def __init__(self, values: np.ndarray):
        self.distinct, self.index = np.unique(values, return_inverse=True)
        self.order = np.argsort(self.index, kind="stable")
        self.starts = np.searchsorted(self.index[self.order], np.arange(len(self.distinct)))

    def ranks(self, weights: np.ndarray) -> np.ndarray:
        """Return the rank of each sample in each draw, of shape (draws, n). Ties get their mean rank.

        `weights` (draws, n) states how often each draw contains each sample.
        """
        repeats = np.add.reduceat(weights[:, self.order], self.starts, axis=1)
        below = np.cumsum(repeats, axis=1) - repeats
        return (below + (repeats + 1) / 2)[:, self.index]


def metric_agreement(table: CellTable, scores: CellScores) -> dict | None:
    """Return Spearman's correlation of each pair of metrics over explainers, averaged over samples.

    A sample is ignored if all explainers have equal scores on one of the metrics.

    Returns:
        {"columns": metrics, "explainers": number of explainers, "table": rows of (correlation, number of samples), with
        None on the diagonal}; or None if there are fewer than two metrics or fewer than three explainers.
    """
    rows = [row for row in table.rows if all(table.cell(row, column) for column in table.columns)]
    if len(table.columns) < 2 or len(rows) < FEWEST:
        return None
    ranks = []
    for column in table.columns:
        cells = [cell for row in rows if (cell := table.cell(row, column))]
        ranks.append(_centred_ranks(scores, cells))
    means = [[None if first is second else _mean_correlation(first, second) for second in ranks] for first in ranks]
    return {"columns": table.columns, "table": means, "explainers": len(rows)}


def _centred_ranks(scores: CellScores, cells: Sequence[CellResult]) -> np.ndarray:
    """Return the ranks (samples, explainers) of explainers within each sample, centred on zero.

    Ties get their mean rank. All ranks of a sample with a missing score are NaN.
    """
    columns = np.stack(list(map(scores.oriented, cells)), axis=1)
    return stats.rankdata(columns, axis=1, nan_policy="propagate") - (len(cells) + 1) / 2


def _mean_correlation(first: np.ndarray, second: np.ndarray) -> tuple[float, int] | None:
    """Return (mean of the row-wise correlations of two tables of centred ranks, number of rows with a correlation)."""
    scale = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    counts = scale > 0  # False if all ranks of a row are tied, or a rank is NaN
    if not counts.any():
        return None
    return float(((first * second).sum(axis=1)[counts] / scale[counts]).mean()), int(counts.sum())


def _over_datasets(runs: Sequence["Run"]) -> Iterator[tuple]:
    """Yield a row of DATASETS, the correlation of means over datasets, for a model, an explainer and two metrics."""
    explainers, metrics_of_runs = names_of(runs)
    means: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for run in runs:
        for cell in run.cells:
            if cell.value is not None:
                key = run.summary["model"]["id"], explainers.text(cell)
                of_metric = means.setdefault(key, {}).setdefault(metrics_of_runs.text(cell), {})
                of_metric.setdefault(run.dataset_id, cell.oriented)
    for (model, explainer), metrics in means.items():
        for (metric, first), (other, second) in combinations(metrics.items(), 2):
            shared = [dataset for dataset in first if dataset in second]
            if len(shared) >= FEWEST:
                x, y = (
                    np.array([means_of_metric[dataset] for dataset in shared]) for means_of_metric in (first, second)
                )
                equal = np.ones((1, len(shared)))
                ranks = pearson(Ranked(x).ranks(equal), Ranked(y).ranks(equal), equal)
                line = pearson(x - x.mean(), y - y.mean(), equal)
                ends = (*over_points(ranks[0], len(x), 1 + ranks[0] ** 2 / 2), *over_points(line[0], len(x)))
                yield model, explainer, metric, other, *map(finite_or_none, ends), len(shared)


def over_points(correlation: float, count: int, spread: float = 1.0) -> tuple[float, float, float]:
    """Return (r, low, high) of a correlation over points: tanh(artanh r -+ 1.96 sqrt(v / (D - 3))).

    v is 1 for Pearson's r (Fisher, 1915) and 1 + rho^2 / 2 for Spearman's rho (Bonett and Wright, 2000). The ends are
    NaN if there are fewer than four points, or if the points lie on a line.

    Args:
        correlation: r or rho.
        count: Number of points D.
        spread: v.
    """
    if count < 4 or not abs(correlation) < 1:
        return correlation, np.nan, np.nan
    half = t_quantile(np.inf) * np.sqrt(spread / (count - 3))
    low, high = np.tanh(np.arctanh(correlation) + half * np.array([-1, 1]))
    return correlation, float(low), float(high)
