"""Seed studies: results of the same explainers and metrics on networks that differ only in training, as one table.

Let x_it be the score of image i with network t, over the images that are scored for all T networks. The mean is
computed over all x_it. The spread s_T is the standard deviation (with T - 1) of the means of the T networks. The 95 %
interval allows for the variation between images and between training runs (`read/statistics/trainings.py`), with
se^2 = se_C^2 + s_T^2 / T. A study of two networks has no interval. In simulations, an interval for two networks
contained the mean in only 88 % of cases, and an interval for at least three networks in 93 % or more.

With at least five networks, two explainers are compared by their differences on the same images and networks: t = d /
se, corrected for all pairs of a metric (Holm). The degrees of freedom are (T - 1) se^2 / (s_T^2 / T), but not more than
those of se_C. This number is smaller than Satterthwaite's. Five equally good explainers on five networks were
simulated: up to 10 % of such studies found a difference with Satterthwaite's degrees of freedom, and at most 5 % with
the smaller number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.comparison import differing_question
from saliency_bench.read.analysis.differences import why_not
from saliency_bench.read.cell import FEWEST_TRAININGS, CellResult, RankSet, explainer_names, is_best, metric_names
from saliency_bench.read.manifest import NAMED
from saliency_bench.read.statistics.clusters import cluster_codes, effective_clusters
from saliency_bench.read.statistics.intervals import Estimate
from saliency_bench.read.statistics.paired_test import ALPHA, holm
from saliency_bench.read.statistics.ranking import RANKED_FROM
from saliency_bench.read.statistics.trainings import crossed, crossed_variances
from saliency_bench.score_notes import PRECOMPUTED

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

INTERVAL_FROM = 3  # networks


@dataclass(frozen=True)
class NetworkMean:
    """Result of an explainer on a metric over several networks.

    Attributes:
        cell: Cell of the first run.
        explainer: Name of the explainer.
        metric: Name of the metric.
        estimate: Mean and interval, over the images that are scored for all networks.
        means: Mean of each network.
        used: Number of images that the runs cover.
        rank: Possible ranks among all explainers of the metric, according to the test; None if there is no test.
        best: Whether no explainer is significantly better, and this explainer is significantly better than every
            baseline.
    """

    cell: CellResult
    explainer: str
    metric: str
    estimate: Estimate
    means: tuple[float, ...]
    used: int
    rank: RankSet = None
    best: bool = False

    @property
    def spread(self) -> float:
        """Return the standard deviation of the networks' mean scores."""
        return float(np.std(self.means, ddof=1))


@dataclass(frozen=True)
class Networks:
    """Results over networks.

    Attributes:
        rows: One result per explainer and metric.
        accuracies: Accuracy of each network; empty if one is unknown.
        left_out: Names of cells that some runs lack.
    """

    rows: list[NetworkMean]
    accuracies: tuple[float, ...]
    left_out: list[str]


def over_networks(runs: Sequence["Run"]) -> Networks:
    """Compute the results of explainers over several networks.

    Raises:
        UserError: There is only one run, two runs have the same network, runs differ in more than the network, or runs
            share no explainer and metric.
    """
    _check(runs)
    keyed = [{(_explainer_key(cell), cell.metric_id): cell for cell in run.cells} for run in runs]
    shared = [key for key in keyed[0] if all(key in cells for cells in keyed)]
    if not shared:
        raise UserError(
            f"{_name(runs)} share no pair of explainer and metric with the same versions; "
            "run the same explainers and metrics on each network"
        )
    others = {key: cell for cells in keyed for key, cell in cells.items() if key not in shared}
    left_out = [f"{cell.explainer_text} by {cell.metric_text}" for cell in others.values()]
    by_metric: dict[tuple, list[tuple]] = {}
    for key in shared:
        by_metric.setdefault(key[1], []).append(key)
    names = explainer_names(runs[0].cells)
    rows = [
        row
        for keys in by_metric.values()
        for row in _metric(runs, [[cells[key] for cells in keyed] for key in keys], names)
    ]
    accuracies = [run.accuracy.value for run in runs]
    known = tuple(value for value in accuracies if value is not None)
    return Networks(rows, known if len(known) == len(runs) else (), left_out)


def _check(runs: Sequence["Run"]) -> None:
    """Raise UserError unless the runs use different networks and the same settings."""
    if len(runs) < 2:
        raise UserError(
            "a seed study needs runs of at least two networks; train more with `saliency-bench train --seed`"
        )
    for first, second in combinations(runs, 2):
        if first.summary["model"]["digest"] == second.summary["model"]["digest"]:
            raise UserError(
                f"{first.folder} and {second.folder} have the same network; a seed study needs one run per network"
            )
    for run in runs[1:]:
        if reason := why_not(runs[0], run):
            raise UserError(f"{runs[0].folder} and {run.folder} cannot form a seed study: {reason}")
        if different := [name for name in differing_question(runs[0], run) if name != NAMED["classifier"]]:
            raise UserError(
                f"{runs[0].folder} and {run.folder} differ in more than the network: different "
                f"{', different '.join(different)}; run all networks with the same settings"
            )


def _name(runs: Sequence["Run"]) -> str:
    return ", ".join(str(run.folder) for run in runs)


def _explainer_key(cell: CellResult) -> tuple[str, str]:
    """Return the key that identifies an explainer in all runs. Precomputed maps are identified only by name."""
    version = str(cell.explainer_version)
    return cell.explainer_text, PRECOMPUTED if version.startswith(PRECOMPUTED) else version


def _metric(runs: Sequence["Run"], cells: list[list[CellResult]], names: Mapping[str, str]) -> list[NetworkMean]:
    """Return the rows of a metric, from cells (explainers, networks)."""
    ids = [image_id for image_id in runs[0].scores.ids if all(image_id in run.scores.position for run in runs)]
    codes = cluster_codes(ids, [runs[0].scores.groups[runs[0].scores.position[image_id]] for image_id in ids])
    places = [[run.scores.position[image_id] for image_id in ids] for run in runs]
    scores = [
        np.stack(
            [
                run.scores.values[cell.cell_id][place]
                for run, cell, place in zip(runs, of_explainer, places, strict=True)
            ],
            1,
        )
        for of_explainer in cells
    ]
    metric = metric_names(runs[0].cells)[cells[0][0].metric_id]
    rows = [
        NetworkMean(first, names[first.explainer_id], metric, *_mean(of_explainer, values, codes), len(ids))
        for of_explainer, values in zip(cells, scores, strict=True)
        for first in of_explainer[:1]
    ]
    return rows if cells[0][0].aggregate else _rank(rows, scores, codes)


def _mean(cells: Sequence[CellResult], scores: np.ndarray, codes: np.ndarray) -> tuple[Estimate, tuple[float, ...]]:
    """Return (mean of scores (n, T) with an interval, mean of each network)."""
    if cells[0].aggregate:  # aggregates are not means of scores, so the values of the networks are averaged
        means = [np.nan if cell.value is None else cell.value for cell in cells]
        return Estimate(float(np.mean(means)), np.nan, np.nan, min(cell.n for cell in cells), 0, 0.0), tuple(means)
    rows = np.isfinite(scores).all(axis=1)
    estimate = crossed(scores, codes, cells[0].limits)
    if scores.shape[1] < INTERVAL_FROM:
        estimate = estimate._replace(low=np.nan, high=np.nan)
    by_network = scores[rows].mean(axis=0) if rows.any() else np.full(scores.shape[1], np.nan)
    return estimate, tuple(by_network.tolist())


def _rank(rows: list[NetworkMean], scores: Sequence[np.ndarray], codes: np.ndarray) -> list[NetworkMean]:
    """Return rows with ranks if there are enough networks and images, else unchanged rows."""
    if len(rows[0].means) < FEWEST_TRAININGS:
        return rows
    tested = {pair: test for pair in combinations(range(len(rows)), 2)
              if (test := _test(scores[pair[0]] - scores[pair[1]], codes))}  # fmt: skip
    if not tested:
        return rows
    sign = 1 if rows[0].cell.higher_is_better else -1
    adjusted, better = holm(np.array([alone for _, alone in tested.values()])), set()
    for ((first, second), (difference, _)), p in zip(tested.items(), adjusted, strict=True):
        if p < ALPHA and difference:
            better.add((first, second) if sign * difference > 0 else (second, first))
    baselines = {index for index, row in enumerate(rows) if row.cell.baseline}
    by_any = np.any([np.isfinite(columns).all(axis=1) for columns in scores], axis=0).sum()
    ranked = []
    for index, row in enumerate(rows):
        worse_than, better_than = (sum(pair[side] == index for pair in better) for side in (1, 0))
        rank = (1 + worse_than, len(rows) - better_than)
        beats = all((index, baseline) in better for baseline in baselines) if baselines else None
        best = bool(better) and index not in baselines and is_best(rank, row.estimate.n / max(by_any, 1), beats)
        ranked.append(replace(row, rank=rank, best=best))
    return ranked


def _test(differences: np.ndarray, codes: np.ndarray) -> tuple[float, float] | None:
    """Return (mean of differences (n, T), two-sided p-value); None if there are too few images."""
    rows = np.isfinite(differences).all(axis=1)
    if effective_clusters(np.unique(codes[rows], return_counts=True)[1]) < RANKED_FROM:
        return None
    kept = np.unique(codes[rows], return_inverse=True)[1]
    mean, within, between, freedom = crossed_variances(differences[rows], kept)
    variance = within + between
    if variance == 0:
        return mean, float(mean == 0)
    if between:
        freedom = min(freedom, (differences.shape[1] - 1) * variance / between)
    return mean, float(2 * special.stdtr(freedom, -abs(mean) / sqrt(variance)))
