"""Scores across datasets: the advantage of an explainer over `random` on a metric, averaged over a board's core.

    score     S = (1 / D) sum_d s m_d     m_d: mean of (explainer - random) on common samples; s = 1 if higher is
                                          better, else -1, so that a higher S is always better
    interval  S +- t sqrt(sum_d se_d^2) / D,  "for these datasets", widened for rare failures in the same way as
              intervals of differences. t has the smallest degrees of freedom among the datasets. With six or more
              datasets, there is also Student's t interval over the D means, "for new datasets"
    ranks     sets, from the paired test of `read.statistics.paired_test` over all pairs. Cluster sums have the weight
              1 / (D n_d); n_d: number of samples of d on which `random` has a score. A difference must also remain
              significant if rare failures are taken into account

Only rows whose explainer the board has run are ranked. An explainer needs such a row for each dataset of the core; for
all other explainers, the table lists what is missing. Scores are never averaged over only a part of the core, or over
several metrics.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from saliency_bench.read.cell import is_best
from saliency_bench.read.statistics.clusters import Matched, cluster_codes, effective_clusters
from saliency_bench.read.statistics.intervals import (
    NOTHING,
    Estimate,
    difference,
    error_and_far,
    is_bounded,
    over_datasets,
    p_of_failures,
    t_quantile,
    widened_over_datasets,
)
from saliency_bench.read.statistics.paired_test import ALPHA, Pair, adjusted_p, outlasting_failures
from saliency_bench.read.statistics.ranking import ALONE, RANKED_FROM, TOO_FEW, beat_baselines, rank_sets, sign_of

REFERENCE = "random"
NEW_FROM = 6  # minimum number of datasets for an interval for new datasets
SEED = 0


@dataclass(frozen=True)
class Scored:
    """The scores of a row.

    Attributes:
        groups: Group of each sample in `ids`, None for a sample without a group.
        scores: Scores (n,) of these samples, NaN if missing.
        official: Whether the board has run the explainer.
        limits: Range (low, high) of the metric. Both ends can be infinite.
    """

    ids: Sequence[str]
    groups: Sequence[str | None]
    scores: np.ndarray
    official: bool = True
    limits: tuple[float, float] = (-np.inf, np.inf)

    def over(self, ids: Iterable[str]) -> np.ndarray:
        """Return the scores of the samples `ids`. Missing scores are NaN."""
        scores = dict(zip(self.ids, self.scores, strict=True))
        return np.array([scores.get(image_id, np.nan) for image_id in ids], dtype=float)


@dataclass(frozen=True)
class Overall:
    """Score and rank of an explainer across the core, for one metric.

    Attributes:
        value: The score S (see the module docstring), or None if a dataset is missing.
        low: Lower end of the interval for these datasets.
        high: Upper end of the interval for these datasets.
        new: Interval for new datasets, or None if there are fewer than `NEW_FROM` datasets.
        by_dataset: {dataset: s m_d} for the datasets that have scores.
        rank: Lowest and highest possible rank, or None.
        unranked: Reason why there is no rank, or "".
        beats_baselines: Whether the explainer beats the baselines (`ranking.beat_baselines`).
    """

    name: str
    baseline: bool
    value: float | None = None
    low: float | None = None
    high: float | None = None
    new: tuple[float, float] | None = None
    by_dataset: Mapping[str, float] = field(default_factory=dict)
    rank: tuple[int, int] | None = None
    unranked: str = ""
    beats_baselines: bool | None = None

    @property
    def best(self) -> bool:
        """Return whether the explainer is in the best set.

        If no two explainers differ significantly, the best set is empty.
        """
        return not self.baseline and is_best(self.rank, 1.0, self.beats_baselines)


def overall(
    scored: Mapping[str, Mapping[str, Scored]], core: Sequence[str], baselines: frozenset[str], higher_is_better: bool
) -> list[Overall]:
    """Return the results of all explainers for a metric, ranked explainers first, sorted by score.

    Args:
        scored: {explainer: {dataset of the core: scores}}.
        core: Datasets of the core that are used for the metric.
        baselines: Explainers that ignore the network.
        higher_is_better: Whether higher scores are better.
    """
    reference = scored.get(REFERENCE, {})
    results = [
        _without_rank(name, scored[name], reference, core, name in baselines, higher_is_better) for name in scored
    ]
    complete = {result.name: scored[result.name] for result in results if not result.unranked}
    decided, reason = _decided(complete, reference, core, higher_is_better) if complete else ([], "")
    sets = {} if reason else rank_sets(list(complete), decided)
    beats = beat_baselines(list(sets), baselines, decided)
    results = [
        result
        if result.unranked
        else replace(
            result,
            rank=sets.get(result.name),
            unranked="" if result.name in sets else reason,
            beats_baselines=beats.get(result.name),
        )
        for result in results
    ]
    return sorted(
        results, key=lambda result: (result.rank is None, result.value is None, -(result.value or 0), result.name)
    )


def _without_rank(
    name: str, scores: Mapping[str, Scored], reference: Mapping[str, Scored], core: Sequence[str], baseline: bool,
    higher_is_better: bool,
) -> Overall:  # fmt: skip
    """Return the result for an explainer that has no rank. `unranked` lists what is missing."""
    sign = 1 if higher_is_better else -1
    both = {dataset: _matched(scores[dataset], reference[dataset]) for dataset in core
            if dataset in scores and dataset in reference}  # fmt: skip
    estimates = {dataset: estimate for dataset, matched in both.items() if (estimate := difference(matched, 0, 1)).n}
    means = {dataset: sign * estimate.value + 0.0 for dataset, estimate in estimates.items()}
    missing = [f"no scores on {dataset}" for dataset in core if dataset not in scores]
    missing += [f"no sample in common with {REFERENCE} on {dataset}" for dataset in core
                if dataset in scores and dataset not in means]  # fmt: skip
    pending = [
        f"not run by the board on {dataset}" for dataset in core if dataset in scores and not scores[dataset].official
    ]
    pending += [f"{REFERENCE} was not run by the board on {dataset}" for dataset in core
                if dataset in reference and not reference[dataset].official and name != REFERENCE]  # fmt: skip
    unranked = "; ".join([*missing, *pending])
    if missing:
        return Overall(name, baseline, by_dataset=means, unranked=unranked)
    value, low, high = _mean([both[dataset] for dataset in estimates], sign)
    return Overall(name, baseline, value, low, high, _for_new(list(means.values())), means, None, unranked)


def _matched(first: Scored, second: Scored) -> Matched:
    return Matched(_aligned([first, second]), cluster_codes(*_samples([first, second])), first.limits)


def _samples(several: Sequence[Scored]) -> tuple[list[str], list[str | None]]:
    """Return (ids of the samples that occur in any of `several`, their groups)."""
    groups = {image_id: group for scored in several for image_id, group in zip(scored.ids, scored.groups, strict=True)}
    return list(groups), list(groups.values())


def _aligned(several: Sequence[Scored]) -> list[np.ndarray]:
    """Return each explainer's scores for all samples. Missing scores are NaN."""
    ids = _samples(several)[0]
    return [scored.over(ids) for scored in several]


def _mean(datasets: Sequence[Matched], sign: int) -> tuple[float, float | None, float | None]:
    """Return (S, lower end, upper end). The interval holds for these datasets."""
    pooled, error, far = _pooled(datasets)
    value, low, high = (pooled if far is None else widened_over_datasets(pooled, error, far)).known
    value = sign * (value or 0.0) + 0.0  # avoids -0
    if low is None or high is None:
        return value, None, None
    return (value, low, high) if sign > 0 else (value, -high, -low)


def _pooled(datasets: Sequence[Matched]) -> tuple[Estimate, float, tuple[float, float] | None]:
    """Return (estimate from `over_datasets`, its standard error, difference if an explainer fails on a sample).

    The last item is the (lowest, highest) such difference, averaged over datasets, or None for unbounded scores.
    """
    estimates = [difference(matched, 0, 1) for matched in datasets]
    if any(np.isnan(estimate.low) for estimate in estimates):
        value = float(np.mean([estimate.value for estimate in estimates]))
        return NOTHING._replace(value=value), np.nan, None
    known = [error_and_far(matched, 0, 1, estimate) for matched, estimate in zip(datasets, estimates, strict=True)]
    low, high = (float(np.mean([ends[side] for _, ends in known])) for side in (0, 1))
    far = (low, high) if all(is_bounded(matched.limits) for matched in datasets) else None
    return *over_datasets(estimates, [error for error, _ in known]), far


def _for_new(means: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of S for new datasets, which is Student's t interval over the dataset means."""
    count = len(means)
    if count < NEW_FROM:
        return None
    half = t_quantile(count - 1) * float(np.std(means, ddof=1)) / count**0.5
    return float(np.mean(means)) - half, float(np.mean(means)) + half


def _decided(
    scored: Mapping[str, Mapping[str, Scored]], reference: Mapping[str, Scored], core: Sequence[str],
    higher_is_better: bool,
) -> tuple[list[tuple[str, str]], str]:  # fmt: skip
    """Return ((better, worse) for each significantly different pair, reason why there are no ranks or "")."""
    names = list(scored)
    columns: list[list[np.ndarray]] = [[] for _ in names]
    codes, clusters = [], 0
    for dataset in core:
        several = [scored[name][dataset] for name in names]
        dataset_codes = cluster_codes(*_samples(several))
        # Datasets of any size have equal weight, and clusters of different datasets are always distinct.
        weight = 1 / (len(core) * max(int(np.isfinite(reference[dataset].scores).sum()), 1))
        for column, values in zip(columns, _aligned(several), strict=True):
            column.append(weight * values)
        codes.append(dataset_codes + clusters)
        clusters += int(dataset_codes.max(initial=-1)) + 1
        if effective_clusters(np.bincount(dataset_codes)) < RANKED_FROM:
            return [], TOO_FEW
    if len(names) < 2:
        return [], ALONE
    matched = Matched([np.concatenate(column) for column in columns], np.concatenate(codes))
    pairs: list[Pair] = list(combinations(range(len(names)), 2))
    differences = {pair: _sum_of_differences(matched, pair) for pair in pairs}
    matched.forget()
    decided = []
    for pair, p in adjusted_p([matched], [pairs], seed=SEED)[0].items():
        first, second = (names[index] for index in pair)
        if p < ALPHA:
            both = [_matched(scored[first][dataset], scored[second][dataset]) for dataset in core]
            p = outlasting_failures(p, _p_with_failures(both), len(names))
        if sign := sign_of(differences[pair], p, higher_is_better):
            decided.append((first, second) if sign > 0 else (second, first))
    return decided, ""


def _p_with_failures(datasets: Sequence[Matched]) -> tuple[float, float]:
    """For the difference of two explainers, averaged over datasets, return both p-values of `p_with_failures`."""
    pooled, error, far = _pooled(datasets)
    return (0.0, 0.0) if far is None else p_of_failures(pooled, error, far)


def _sum_of_differences(matched: Matched, pair: Pair) -> float:
    """Return the sum of the weighted differences between the first and the second explainer."""
    first, second, _ = matched.pair(*pair)
    return float((matched.columns[first] - matched.columns[second]).sum())
