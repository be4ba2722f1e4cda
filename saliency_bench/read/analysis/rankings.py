"""Compare rankings of explainers between metrics, and between settings of one metric."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.tables import Findings, Table, dicts
from saliency_bench.read.cell import CellResult, rank_text
from saliency_bench.read.cell_table import CellTable, ExplainerRow, MetricColumn
from saliency_bench.read.statistics.clusters import effective_clusters
from saliency_bench.read.statistics.intervals import INTERVAL_FROM, NOTHING, Estimate, drawn_statistics, t_quantile
from saliency_bench.read.statistics.paired_test import ALPHA

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

ENDS = ("spearman", "spearman low", "spearman high", "kendall tau-b", "kendall low", "kendall high")
AGREEMENT = ("dataset", "model", "metric", "other", *ENDS, "explainers", "n")
SETTINGS = ("dataset", "model", "metric", "explainer", "mean rank", "worst rank", "survives", "settings")
FEWEST = 3  # explainers; with fewer, orders are not compared
OPEN = "Each interval contains the values of all orders of the explainers that the samples do not rule out."
Means = Callable[[np.ndarray], Sequence[np.ndarray]]


def rank(runs: Sequence["Run"]) -> Findings:
    """Compare each pair of metrics by the order of the explainers' means: Spearman's rho and Kendall's tau-b.

    Means are computed over the n samples for which every explainer has scores on both metrics. Baselines are included,
    metrics are oriented so that higher is better, and equal means are tied. The interval contains the values of all
    orders on both metrics that are compatible with the samples (`rank_correlations`).
    """
    rows = [row for run in runs for row in _agreements(run)]
    if not rows:
        names = ", ".join(str(run.folder) for run in runs[:3])
        raise UserError(f"{names}: no run has two metrics that share {FEWEST} explainers; add explainers or metrics")
    notes = ["1: both metrics put the explainers in the same order; baselines such as random are included.", OPEN]
    return Findings("rank", [Table(AGREEMENT, rows)], {"pairs": dicts(AGREEMENT, rows)}, notes)


def _agreements(run: "Run") -> list[tuple]:
    """Return a row of AGREEMENT for each pair of metrics of a run that share enough explainers."""
    rows = []
    for first, second in combinations(run.table.columns, 2):
        cells = [
            (cell, other)
            for row in run.table.rows
            if (cell := run.table.cell(row, first))
            and (other := run.table.cell(row, second))
            and _has_mean(cell)
            and _has_mean(other)
        ]
        if len(cells) >= FEWEST:
            spearman, kendall = agreement(run, [cell for cell, _ in cells], [other for _, other in cells])
            ends = *spearman.known, *kendall.known
            subject = *run.subject, first.name, second.name
            rows.append((*subject, *ends, len(cells), spearman.n))
    return rows


def _has_mean(cell: CellResult) -> bool:
    """Return whether the value of a cell is a mean of scores, which can be resampled."""
    return cell.value is not None and not cell.aggregate


def agreement(run: "Run", first: Sequence[CellResult], second: Sequence[CellResult]) -> tuple[Estimate, Estimate]:
    """Return (Spearman's rho, Kendall's tau-b) of the orders of the same explainers on two metrics.

    The orders are computed over the samples for which all cells have scores; the result is NaN if there are no such
    samples.
    """
    columns = [np.stack([run.scores.oriented(cell) for cell in cells], axis=1) for cells in (first, second)]
    scored = np.isfinite(np.concatenate(columns, axis=1)).all(axis=1)
    if not scored.any():
        return NOTHING, NOTHING
    codes = run.scores.codes([run.scores.ids[index] for index in np.flatnonzero(scored)])
    values = [column[scored] for column in columns]
    return rank_correlations(lambda weights: [means_of(column, weights) for column in values], codes, run.seed)


def rank_correlations(means: Means, codes: np.ndarray, seed: int) -> tuple[Estimate, Estimate]:
    """Return (Spearman's rho, Kendall's tau-b) of two orders of explainers, with intervals.

    If means are close, a percentile bootstrap interval contains the true value in only 80 % of cases, because the
    orders in the draws are more random than the true orders. The interval therefore contains the values of all pairs of
    orders that are compatible with the samples. A metric decides the order of two explainers if |gap| > c se, where gap
    is the difference between their means, and se is its standard error, computed from draws of clusters. c is the .95
    quantile of the maximum |gap* - gap| / se over all pairs of both orders, so that all decisions are correct together
    in 95 % of cases.

    Args:
        means: Function that maps weights (draws, n) to the means (draws, k) on both metrics. A weight is the number of
            times that a draw contains a sample.
        codes: Cluster of each sample.
        seed: Seed of the draws.
    """
    orders = [order_of(column) for column in means(np.ones((1, len(codes))))]
    values = float(spearman_of(*orders)[0]), float(kendall_of(*orders)[0])
    rho, tau = (Estimate.alone(value, np.bincount(codes)) for value in values)
    if rho.effective < INTERVAL_FROM or not np.isfinite(values).all():
        return rho, tau
    signs, freedom = _decided(means, codes, seed), rho.effective - 1
    return rho.between(*_rho_left_open(*signs), freedom), tau.between(*_tau_left_open(*signs), freedom)


def _decided(means: Means, codes: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the signs (k, k) of the gaps on both metrics; 0 for a pair if the samples do not decide its order."""
    gaps, draws = (
        np.stack([column[:, :, None] - column[:, None, :] for column in columns], axis=1)
        for columns in (means(np.ones((1, len(codes)))), _drawn_means(means, codes, seed))
    )
    errors = draws.std(axis=0, ddof=1)
    # One bound on |gap* - gap| / se covers all gaps of both metrics, so all signs are correct with 95 % probability.
    with np.errstate(invalid="ignore", divide="ignore"):
        greatest = np.nanmax(np.abs(draws - gaps) / errors, axis=(1, 2, 3))  # NaN if a gap never varies
    counts = np.bincount(codes)
    # Draws vary less than samples, as in `cluster_bootstrap`.
    widened = np.sqrt(len(counts) / (len(counts) - 1)) * t_quantile(effective_clusters(counts) - 1) / t_quantile(np.inf)
    enough = np.abs(gaps[0]) > np.quantile(greatest, 1 - ALPHA) * widened * errors
    signs = np.where(enough, np.sign(gaps[0]), 0)
    return signs[0], signs[1]


def _drawn_means(means: Means, codes: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return the means (draws, k) on both metrics, for the draws in which no mean is missing."""
    both = drawn_statistics(lambda weights: np.concatenate(means(weights), axis=1), codes, seed)
    return np.split(both[np.isfinite(both).all(axis=1)], 2, axis=1)


def _tau_left_open(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return the minimum and maximum tau. Pairs that are undecided in either order may agree or disagree."""
    above = np.triu_indices(len(first), 1)
    products = (first * second)[above]
    known, is_open = products.sum(), np.count_nonzero(products == 0)
    return float(known - is_open) / len(products), float(known + is_open) / len(products)


def _rho_left_open(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return bounds of rho = 1 - 6 sum d^2 / (k^3 - k), where d is the difference between an explainer's two ranks."""
    k = len(first)
    # A centred rank is (number above - number below) / 2; an undecided pair moves the rank by 1/2 in either direction.
    gap = (first.sum(axis=1) - second.sum(axis=1)) / 2
    slack = sum(np.count_nonzero(signs == 0, axis=1) - 1 for signs in (first, second)) / 2
    least, most = (float((distance**2).sum()) for distance in (np.maximum(np.abs(gap) - slack, 0), np.abs(gap) + slack))
    return max(-1.0, 1 - 6 * most / (k**3 - k)), 1 - 6 * least / (k**3 - k)


def means_of(columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the means (draws, k) of columns (n, k), NaN where a score is missing, for weights (draws, n)."""
    has = np.isfinite(columns)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.einsum("dn,nk->dk", weights, np.where(has, columns, 0)) / np.einsum("dn,nk->dk", weights, has)


def order_of(means: np.ndarray) -> np.ndarray:
    """Return the sign (draws, k, k) of each difference of two means; 0 if they differ only in their last digits."""
    gaps = means[:, :, None] - means[:, None, :]
    equal = np.abs(gaps) <= 1e-12 * np.nanmax(np.abs(means), axis=1, initial=0)[:, None, None]
    return np.where(equal, 0, np.sign(gaps))


def kendall_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return tau-b: (concordant - discordant) / sqrt((pairs untied in the first) (pairs untied in the second))."""
    return _cosine(first.reshape(len(first), -1), second.reshape(len(second), -1))


def spearman_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation of centred ranks; a rank is (number below - number above) / 2."""
    return _cosine(first.sum(axis=2), second.sum(axis=2))


def _cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosine similarity of each pair of rows; NaN if a row is all zeros."""
    scale = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    return (first * second).sum(axis=1) / np.where(scale > 0, scale, np.nan)


def sensitivity(runs: Sequence["Run"]) -> Findings:
    """Rank each explainer over all settings of a metric: mean rank, worst rank, and whether the explainer survives.

    Explainers that have scores in all settings are ranked by their means; ties get their mean rank. An explainer
    survives if no other explainer is significantly better in any setting. If the explainer has no rank in a setting,
    the answer is None.
    """
    rows: list[tuple] = []
    details: list[dict[str, Any]] = []
    for run in runs:
        for name, columns in _settings(run.table).items():
            subject = *run.subject, name
            complete = _complete(run.table, columns)
            ranks = np.stack(
                [_ranks([cells[k].oriented for _, cells in complete]) for k in range(len(columns))], axis=1
            )
            of_metric = []
            for (row, cells), of_row in zip(complete, ranks, strict=True):
                sets = [cell.rank for cell in cells]
                survives = None if None in sets else all(rank_set is not None and rank_set[0] == 1 for rank_set in sets)
                answer = {None: None, True: "yes", False: "no"}[survives]
                of_metric.append((*subject, row.name, float(of_row.mean()), float(of_row.max()), answer, len(columns)))
                for column, rank_of_mean, cell in zip(columns, of_row, cells, strict=True):
                    details.append(dict(zip(SETTINGS[:4], (*subject, row.name), strict=True)) | {
                        "setting": column.name, "rank": float(rank_of_mean), "rank_set": cell.rank, "value": cell.value,
                    })  # fmt: skip
            rows += sorted(of_metric, key=lambda entry: (entry[4], entry[5]))
    if not rows:
        raise UserError(
            "no metric was run with more than one setting; add the same metric with different options, for example "
            "--metrics saliency_miou saliency_miou:threshold=0.3"
        )
    header = ("dataset", "model", "metric", "explainer", "setting", "rank", "rank set", "value")
    each = [
        tuple(rank_text(value) if isinstance(value, tuple) else value for value in detail.values())
        for detail in details
    ]
    notes = ["Survives: no other explainer is significantly better in any setting."]
    return Findings(
        "sensitivity", [Table(SETTINGS, rows), Table(header, each, "settings")],
        {"explainers": dicts(SETTINGS, rows), "settings": details}, notes,
    )  # fmt: skip


def _settings(table: CellTable) -> dict[str, list[MetricColumn]]:
    """Return {metric: its columns} for metrics with several sets of options."""
    columns_of: dict[str, list[MetricColumn]] = {}
    for column in table.columns:
        (_, cell), *_ = table.cells_of_column(column)
        columns_of.setdefault(cell.metric, []).append(column)
    return {name: columns for name, columns in columns_of.items() if len(columns) > 1 and _complete(table, columns)}


def _complete(table: CellTable, columns: Sequence[MetricColumn]) -> list[tuple[ExplainerRow, list[CellResult]]]:
    complete = []
    for row in table.rows:
        cells = [cell for column in columns if (cell := table.cell(row, column)) and cell.value is not None]
        if len(cells) == len(columns):
            complete.append((row, cells))
    return complete


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Return the rank of each value: 1 for the largest. Ties get their mean rank."""
    order = order_of(np.array([values], dtype=float))[0]
    return (len(values) + 1 - order.sum(axis=1)) / 2
