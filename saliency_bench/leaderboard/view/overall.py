"""Scores across datasets: how much better than `random` an explainer is, by one metric, over the fixed core of a board.

    score     S = (1 / D) sum_d s m_d     m_d: mean of (explainer - random) on the samples both have; s = 1 where higher
                                          is better, else -1, so that more is always better
    interval  S +- t sqrt(sum_d se_d^2) / D,  "for these datasets"; t of C - 1 degrees of freedom, C the fewest clusters
              of any dataset; with six datasets or more also that of Student's t over the D means, "for new datasets"
    ranks     sets, by the paired test of `results.paired_test` over all pairs, cluster sums weighted by 1 / (D n_d);
              n_d: the samples of d that `random` has scored

Only recomputed rows are ranked, and only explainers that have one for each dataset of the core. Of others it says what
is missing; nothing is ever averaged over some of the core. Metrics are not averaged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from saliency_bench.results.clusters import Matched, cluster_codes
from saliency_bench.results.intervals import Estimate, difference, t_quantile
from saliency_bench.results.paired_test import Pair, adjusted_p
from saliency_bench.results.ranking import ALONE, RANKED_FROM, TOO_FEW, rank_sets, sign_of

REFERENCE = "random"
NEW_FROM = 6  # datasets
SEED = 0


@dataclass(frozen=True)
class Scored:
    """An explainer's scores (n,) on one dataset of the core; official: its row is recomputed."""

    ids: Sequence[str]
    groups: Sequence[str | None]
    scores: np.ndarray
    official: bool = True


@dataclass(frozen=True)
class Overall:
    """An explainer across the core, by one metric.

    value, low, high   S with its interval for these datasets; None where a dataset is missing
    new                its interval for new datasets; None with fewer than six
    by_dataset         {dataset: s m_d} of those that it has
    rank, unranked     its rank set, or why it has none
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

    @property
    def unbeaten(self) -> bool:
        return self.rank is not None and self.rank[0] == 1


def overall(
    scored: Mapping[str, Mapping[str, Scored]], core: Sequence[str], baselines: frozenset[str], higher_is_better: bool
) -> list[Overall]:
    """All explainers of one metric, those with a rank first, then by score.

    scored: {explainer: {dataset of the core: its scores}}. baselines: the explainers that ignore the network.
    """
    reference = scored.get(REFERENCE, {})
    found = [_one(name, own, reference, core, name in baselines, higher_is_better) for name, own in scored.items()]
    complete = {one.name: scored[one.name] for one in found if not one.unranked}
    sets, reason = _ranked(complete, reference, core, higher_is_better) if complete else ({}, "")
    found = [
        one if one.unranked else replace(one, rank=sets.get(one.name), unranked="" if one.name in sets else reason)
        for one in found
    ]
    return sorted(found, key=lambda one: (one.rank is None, one.value is None, -(one.value or 0), one.name))


def _one(
    name: str, own: Mapping[str, Scored], reference: Mapping[str, Scored], core: Sequence[str], baseline: bool,
    higher_is_better: bool,
) -> Overall:  # fmt: skip
    """Without its rank. `unranked` says what is missing."""
    sign = 1 if higher_is_better else -1
    estimates = {dataset: _minus(own[dataset], reference[dataset]) for dataset in core
                 if dataset in own and dataset in reference}  # fmt: skip
    estimates = {dataset: one for dataset, one in estimates.items() if one.n}
    means = {dataset: sign * one.value + 0.0 for dataset, one in estimates.items()}
    missing = [f"no scores on {dataset}" for dataset in core if dataset not in own]
    missing += [f"no sample in common with {REFERENCE} on {dataset}" for dataset in core
                if dataset in own and dataset not in means]  # fmt: skip
    pending = [f"not recomputed on {dataset}" for dataset in core if dataset in own and not own[dataset].official]
    pending += [f"{REFERENCE} is not recomputed on {dataset}" for dataset in core
                if dataset in reference and not reference[dataset].official and name != REFERENCE]  # fmt: skip
    unranked = "; ".join([*missing, *pending])
    if missing:
        return Overall(name, baseline, by_dataset=means, unranked=unranked)
    value, low, high = _mean(list(estimates.values()), sign)
    return Overall(name, baseline, value, low, high, _for_new(list(means.values())), means, None, unranked)


def _minus(one: Scored, other: Scored) -> Estimate:
    """The mean difference on the samples that both have."""
    matched = Matched(_aligned([one, other]), cluster_codes(*_samples([one, other])))
    return difference(matched, 0, 1)


def _samples(several: Sequence[Scored]) -> tuple[list[str], list[str | None]]:
    """(all ids, their groups)"""
    known = {image_id: group for one in several for image_id, group in zip(one.ids, one.groups, strict=True)}
    return list(known), list(known.values())


def _aligned(several: Sequence[Scored]) -> list[np.ndarray]:
    """The scores of each over all samples, NaN where it has none."""
    place = {image_id: index for index, image_id in enumerate(_samples(several)[0])}
    columns = []
    for one in several:
        column = np.full(len(place), np.nan)
        column[[place[image_id] for image_id in one.ids]] = one.scores
        columns.append(column)
    return columns


def _mean(estimates: Sequence[Estimate], sign: int) -> tuple[float, float | None, float | None]:
    """(S, the ends of its interval for these datasets)"""
    value = sign * float(np.mean([one.value for one in estimates])) + 0.0  # never -0
    if any(np.isnan(one.low) for one in estimates):
        return value, None, None
    errors = [(one.high - one.low) / 2 / t_quantile(one.clusters - 1) for one in estimates]
    error = float(np.sqrt(np.square(errors).sum())) / len(errors)
    half = error * t_quantile(min(one.clusters for one in estimates) - 1)
    return value, value - half, value + half


def _for_new(means: Sequence[float]) -> tuple[float, float] | None:
    count = len(means)
    if count < NEW_FROM:
        return None
    half = t_quantile(count - 1) * float(np.std(means, ddof=1)) / count**0.5
    return float(np.mean(means)) - half, float(np.mean(means)) + half


def _ranked(
    scored: Mapping[str, Mapping[str, Scored]], reference: Mapping[str, Scored], core: Sequence[str],
    higher_is_better: bool,
) -> tuple[dict[str, tuple[int, int]], str]:  # fmt: skip
    """({explainer: its rank set}, why there are none)"""
    names = list(scored)
    columns: list[list[np.ndarray]] = [[] for _ in names]
    codes, clusters = [], 0
    for dataset in core:
        several = [scored[name][dataset] for name in names]
        own = cluster_codes(*_samples(several))
        weight = 1 / (len(core) * max(int(np.isfinite(reference[dataset].scores).sum()), 1))
        for column, values in zip(columns, _aligned(several), strict=True):
            column.append(weight * values)
        codes.append(own + clusters)
        clusters += int(own.max(initial=-1)) + 1
        if int(own.max(initial=-1)) + 1 < RANKED_FROM:
            return {}, TOO_FEW
    if len(names) < 2:
        return {}, ALONE
    matched = Matched([np.concatenate(column) for column in columns], np.concatenate(codes))
    pairs: list[Pair] = list(combinations(range(len(names)), 2))
    differences = {pair: _sum_of_differences(matched, pair) for pair in pairs}
    matched.forget()
    decided = []
    for pair, p in adjusted_p([matched], [pairs], seed=SEED)[0].items():
        if sign := sign_of(differences[pair], p, higher_is_better):
            first, second = (names[index] for index in pair)
            decided.append((first, second) if sign > 0 else (second, first))
    return rank_sets(names, decided), ""


def _sum_of_differences(matched: Matched, pair: Pair) -> float:
    one, other, _ = matched.pair(*pair)
    return float((matched.columns[one] - matched.columns[other]).sum())
