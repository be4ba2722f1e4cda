"""Rank explainers. Reports, console tables, comparisons and the board all use this ranking.

For each metric, all explainers are compared pairwise on their common samples (`paired_test`), and the significant pairs
determine the ranks. The error rate is controlled for each metric, not across metrics. The p-value of a pair with a
baseline is also adjusted over all explainers and metrics, so that "beats random on ..." may list several metrics. If
the value of a metric is an aggregate of the means of its parts, differences have intervals, but there is no test and no
rank.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from itertools import chain, combinations
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter

from saliency_bench.bound_metric import registered_metric
from saliency_bench.errors import UserError
from saliency_bench.read.cell import FEW, CellKey, CellResult, Count, Hash, StrictModel, Text, by_metric, read_list
from saliency_bench.read.statistics.clusters import Matched, effective_clusters
from saliency_bench.read.statistics.intervals import (
    TAIL,
    Aggregate,
    Estimate,
    aggregate_difference,
    aggregate_interval,
    p_with_failures,
    paired_difference,
)
from saliency_bench.read.statistics.paired_test import (
    ALPHA,
    Member,
    Pair,
    SignFlips,
    adjusted_p,
    columns_in,
    outlasting_failures,
    step_down,
)
from saliency_bench.read.statistics.trainings import has_few

TEST = 2  # version of the paired test; increase this number whenever a rank or a p changes
RANKED_FROM = 50  # effective clusters; with fewer there are no ranks and no tests
TOO_FEW = "too few to rank"
FEW_TRAININGS = "too few trainings to rank"
ALONE = "nothing to rank against"
NO_DIFFERENCE = "no difference found"  # a difference may still exist
TOO_FEW_TO_TELL = "too few samples to tell"
UNRANKED = "an aggregate over all samples, which is not ranked"
NOT_TESTED = "not tested"  # for two values that are aggregates


class Contrast(StrictModel):
    """Comparison of two explainers on one metric, over their n common samples: first minus second.

    Attributes:
        effective: Number of clusters of equal size that would be just as informative; None if this equals `clusters`.
        low: Lower end of the 95 % interval, not corrected for multiple comparisons; None with fewer than 10 clusters.
        high: Upper end of the interval; None with fewer than 10 clusters.
        p: Adjusted p; None with too few samples, and for aggregates.
        rare: Whether the interval was widened because the samples do not rule out rare, very different scores.
    """

    metric: Text
    explainers: tuple[Text, Text]
    cells: tuple[Hash, Hash]
    n: Count
    clusters: Count
    difference: float
    low: float | None
    high: float | None
    p: Annotated[float, Field(gt=0, le=1)] | None
    effective: Annotated[float, Field(ge=0)] | None = None
    rare: bool = False

    @property
    def small(self) -> bool:
        """Return whether the comparison has so few samples that their number must be displayed."""
        return (self.clusters if self.effective is None else self.effective) < FEW

    def seen_from(self, cell_id: str) -> "Contrast":
        """Return the comparison with `cell_id` as the first cell, negating the difference if necessary."""
        if cell_id == self.cells[0]:
            return self
        turned = {"low": None if self.high is None else -self.high, "high": None if self.low is None else -self.low}
        return self.model_copy(
            update=turned
            | {"explainers": self.explainers[::-1], "cells": self.cells[::-1], "difference": -self.difference}
        )

    def sign(self, higher_is_better: bool) -> int:
        """Return 1 if the first explainer is significantly better, -1 if worse, 0 if no difference was found."""
        return sign_of(self.difference, self.p, higher_is_better)


CONTRASTS = TypeAdapter(list[Contrast])


def read_contrasts(content: object) -> list[Contrast]:
    """Validate and return the comparisons of a summary.

    The UserError for invalid content names the first invalid field.
    """
    return read_list("comparisons", CONTRASTS, content)


@dataclass(frozen=True)
class Standing:
    """Rank of a cell, its fraction of scored samples, and whether it beats the baselines.

    Attributes:
        rank: As in `rank_sets`; None if the cell is not ranked.
        unranked: Reason why the cell has no rank; None if it has a rank.
        scored: Fraction of the samples for which the cell has scores.
        beats_baselines: As in `beat_baselines`.
    """

    rank: tuple[int, int] | None
    unranked: str | None
    scored: float
    beats_baselines: bool | None = None

    def as_dict(self) -> dict:
        """Return the fields that are copied to a `CellResult`."""
        return asdict(self)


def compare(
    keys: Sequence[CellKey],
    scores: Mapping[str, np.ndarray],
    codes: np.ndarray,
    seed: int,
    parts: Mapping[str, np.ndarray] | None = None,
) -> tuple[list[Contrast], dict[str, Standing]]:
    """Compare all pairs of explainers on each metric, and rank the explainers.

    Args:
        keys: The cells.
        scores: {cell id: score of each sample, NaN if missing}, over the same samples for all cells.
        codes: Cluster of each sample (`clusters.cluster_codes`).
        seed: Seed of the sign flips.
        parts: {cell id: parts (n, P)} for cells that are aggregates. Parts are needed for the comparisons of these
            cells and for the fraction of scored samples. Without parts, a `CellResult` keeps its fraction.

    Returns:
        (one contrast for each metric and each pair of explainers that share samples, {cell id: standing}).
    """
    aggregates = [group for group in by_metric(keys) if group[0].aggregate]
    contrasts, standings = _tested([group for group in by_metric(keys) if not group[0].aggregate], scores, codes, seed)
    for group in aggregates:
        contrasts += _of_aggregates(group, parts or {}, codes, seed)
        standings |= _standings_of_aggregates(group, parts or {})
    return contrasts, standings


def ranked(
    keys: Sequence[CellKey],
    scores: Mapping[str, np.ndarray],
    codes: np.ndarray,
    seed: int,
    parts: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Standing]:
    """Return the standings of `compare` without computing contrasts."""
    rivals = [group for group in by_metric(keys) if not group[0].aggregate]
    matched = [Matched([scores[key.cell_id] for key in group], codes, group[0].limits) for group in rivals]
    tested = [
        _with_enough(group, pairs, combinations(range(len(group)), 2))
        for group, pairs in zip(rivals, matched, strict=True)
    ]
    adjusted = adjusted_p(matched, tested, _against_baselines(rivals, tested), seed)
    standings: dict[str, Standing] = {}
    for group, pairs, p in zip(rivals, matched, adjusted, strict=True):
        standings |= _standings(group, pairs.known, codes, _signs(group, pairs, p))
    for group in by_metric(keys):
        if group[0].aggregate:
            standings |= _standings_of_aggregates(group, parts or {})
    return standings


def ranked_among(
    keys: Sequence[CellKey],
    scores: Mapping[str, np.ndarray],
    codes: np.ndarray,
    seed: int,
    chosen: Sequence[Sequence[int]],
) -> Iterator[tuple[dict[tuple[str, str], int], dict[str, Standing]]]:
    """Rank several subsets of one metric's explainers, each as if there were no other explainers.

    Args:
        keys: Cells of all explainers.
        scores: As for `compare`.
        codes: As for `compare`.
        seed: Seed of the sign flips.
        chosen: Indices of keys in each subset, in ascending order; each subset includes the first key.

    Yields:
        For each subset, ({cell ids of a tested pair: 1 if the first is significantly better, -1 if worse, else 0},
        standings).
    """
    matched = Matched([scores[key.cell_id] for key in keys], codes, keys[0].limits)
    wanted = dict.fromkeys(chain.from_iterable(combinations(indices, 2) for indices in chosen))
    tested = _with_enough(keys, matched, wanted)
    flips = next((flipped for _, _, flipped in SignFlips([matched], [tested], seed).families_in_turn()), None)
    for indices in chosen:
        among: dict[tuple[str, str], int] = {}
        if flips and (pairs := [pair for pair in combinations(indices, 2) if pair in flips.seen]):
            by_pair = flips.seen, flips.outlasting
            seen, outlasting = (np.array([numbers[pair] for pair in pairs]) for numbers in by_pair)
            p_values = step_down(seen, outlasting, lambda index: flips.under_flips(pairs[index]))
            columns = columns_in(pairs)
            for pair, p in zip(pairs, p_values.tolist(), strict=True):
                if p < ALPHA:
                    p = outlasting_failures(p, p_with_failures(matched, *pair), columns)
                among[_ids(keys, pair)] = sign_of(flips.totals[pair], p, keys[0].higher_is_better)
            matched.forget()
        yield among, _standings([keys[index] for index in indices], matched.known[:, indices], codes, among)


def _ids(keys: Sequence[CellKey], pair: Pair) -> tuple[str, str]:
    return keys[pair[0]].cell_id, keys[pair[1]].cell_id


def _with_enough(group: Sequence[CellKey], matched: Matched, pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs with enough clusters to be tested; [] for a metric with too few training runs."""
    if has_few(group[0]):
        return []
    enough: dict[int, bool] = {}
    kept = []
    for pair in pairs:
        if id(counts := matched.counts(*pair)) not in enough:  # pairs with the same samples share their counts
            enough[id(counts)] = effective_clusters(counts) >= RANKED_FROM
        if enough[id(counts)]:
            kept.append(pair)
    matched.forget()
    return kept


def _signs(keys: Sequence[CellKey], matched: Matched, adjusted: Mapping[Pair, float]) -> dict[tuple[str, str], int]:
    """Return {cell ids of a pair: 1 if the first is significantly better, -1 if it is worse, else 0}."""
    signs = {}
    for pair, p in adjusted.items():
        first, second, _ = matched.pair(*pair)
        total = float((matched.columns[first] - matched.columns[second]).sum())
        signs[_ids(keys, pair)] = sign_of(total, p, keys[0].higher_is_better)
    matched.forget()
    return signs


def aggregate_of(key: CellKey) -> Aggregate | None:
    """Return the function that computes a cell's value from the means of its parts.

    The result is None if the installed package has no function for this version of the metric.
    """
    try:
        metric = registered_metric(key.metric, **key.metric_options)
    except UserError:
        return None
    function = metric.aggregate
    if function is None or metric.version != key.metric_version:
        return None
    return lambda means: function(means, dict(metric.options))


def aggregated(key: CellKey, parts: np.ndarray, codes: np.ndarray, seed: int, tail: float = TAIL) -> Estimate:
    """Return the value of a cell that is an aggregate of parts (n, P), with an interval."""
    if (aggregate := aggregate_of(key)) is not None:
        return aggregate_interval(aggregate, parts, codes, seed, tail)
    return Estimate.alone(np.nan, np.bincount(codes[np.isfinite(parts).any(axis=1)]))


def _standings_of_aggregates(group: Sequence[CellKey], parts: Mapping[str, np.ndarray]) -> dict[str, Standing]:
    """Return standings without ranks, with the share of scored samples computed from parts or kept from results."""
    if all(key.cell_id in parts for key in group):
        shares = scored_shares([np.isfinite(parts[key.cell_id]).any(axis=1) for key in group])
    else:
        shares = [key.scored if isinstance(key, CellResult) else 0.0 for key in group]
    return {key.cell_id: Standing(None, UNRANKED, share) for key, share in zip(group, shares, strict=True)}


def _of_aggregates(
    group: Sequence[CellKey], parts: Mapping[str, np.ndarray], codes: np.ndarray, seed: int
) -> list[Contrast]:
    """Return the contrasts of one metric's cells whose parts are available."""
    aggregate, contrasts = aggregate_of(group[0]), []
    for pair in combinations(range(len(group)), 2):
        columns = [parts.get(group[index].cell_id) for index in pair]
        if aggregate is not None and columns[0] is not None and columns[1] is not None:
            estimate = aggregate_difference(aggregate, columns[0], columns[1], codes, seed)
            contrasts += (
                [_contrast(group, pair, estimate, None)] if np.isfinite(estimate.value) else []
            )  # a part may be missing for all samples
    return contrasts


def _tested(
    rivals: Sequence[Sequence[CellKey]], scores: Mapping[str, np.ndarray], codes: np.ndarray, seed: int
) -> tuple[list[Contrast], dict[str, Standing]]:
    """Return contrasts and standings for metrics whose scores are tested sample by sample."""
    matched = [Matched([scores[key.cell_id] for key in group], codes, group[0].limits) for group in rivals]
    estimates = [_differences(pairs, len(group)) for group, pairs in zip(rivals, matched, strict=True)]
    # Pairs with few clusters or training runs have no p, so they are excluded before the adjustment.
    tested = [
        [pair for pair, estimate in pairs.items() if estimate.effective >= RANKED_FROM and not has_few(group[0])]
        for group, pairs in zip(rivals, estimates, strict=True)
    ]
    adjusted = adjusted_p(matched, tested, _against_baselines(rivals, tested), seed)
    contrasts: list[Contrast] = []
    standings: dict[str, Standing] = {}
    for group, pairs, estimates_of_pairs, p in zip(rivals, matched, estimates, adjusted, strict=True):
        metric = [
            _contrast(group, pair, estimate, p.get(pair)) for pair, estimate in estimates_of_pairs.items() if estimate.n
        ]
        contrasts += metric
        signs = {contrast.cells: contrast.sign(group[0].higher_is_better) for contrast in metric}
        standings |= _standings(group, pairs.known, codes, signs)
    return contrasts, standings


def _differences(matched: Matched, width: int) -> dict[Pair, Estimate]:
    """Return {pair: mean difference with an interval} for all pairs of `width` explainers."""
    estimates = {pair: paired_difference(matched, *pair) for pair in combinations(range(width), 2)}
    matched.forget()
    return estimates


def _contrast(group: Sequence[CellKey], pair: Pair, estimate: Estimate, p: float | None) -> Contrast:
    first, second = (group[index] for index in pair)
    _, low, high = estimate.known
    return Contrast(
        metric=first.metric_text,
        explainers=(first.explainer_text, second.explainer_text),
        cells=(first.cell_id, second.cell_id),
        n=estimate.n,
        clusters=estimate.clusters,
        effective=None if estimate.effective == estimate.clusters else estimate.effective,
        difference=estimate.value,
        low=low,
        high=high,
        p=p,
        rare=estimate.rare,
    )


def _against_baselines(rivals: Sequence[Sequence[CellKey]], tested: Sequence[Sequence[Pair]]) -> list[list[Member]]:
    """Return, for each baseline, its pairs with explainers that use the network, over all metrics.

    The p-values of each list are adjusted together, so "beats random on ..." is valid for several metrics together.
    """
    families: dict[str, list[Member]] = {}
    for number, (group, pairs) in enumerate(zip(rivals, tested, strict=True)):
        for pair in pairs:
            baselines = [group[index] for index in pair if group[index].baseline]
            if len(baselines) == 1:
                families.setdefault(baselines[0].explainer_id, []).append((number, pair))
    return list(families.values())


def sign_of(difference: float, p: float | None, higher_is_better: bool) -> int:
    """Return 1 if the first of two explainers is significantly better, -1 if worse, 0 if no difference was found."""
    if p is None or p >= ALPHA:
        return 0
    return 1 if (difference > 0) == higher_is_better else -1


def _standings(
    group: Sequence[CellKey], known: np.ndarray, codes: np.ndarray, signs: Mapping[tuple[str, str], int]
) -> dict[str, Standing]:
    """Return {cell id: standing} for the cells of one metric.

    `known` (bool (n, k)) states whether each sample has a score in each cell, and `signs` is the result of `_signs`.
    """
    clusters = [effective_clusters(np.bincount(codes[scored])) for scored in known.T]
    shares = scored_shares(list(known.T))
    in_ranks = [
        key.cell_id for key, count in zip(group, clusters, strict=True) if count >= RANKED_FROM and not has_few(key)
    ]
    decided = [(first, second) if sign > 0 else (second, first) for (first, second), sign in signs.items() if sign]
    sets = rank_sets(in_ranks, decided)
    beats = beat_baselines(in_ranks, {key.cell_id for key in group if key.baseline}, decided)
    reason = ALONE if len(group) == 1 else FEW_TRAININGS if has_few(group[0]) else TOO_FEW
    return {
        key.cell_id: Standing(
            sets.get(key.cell_id), None if key.cell_id in sets else reason, share, beats.get(key.cell_id)
        )
        for key, share in zip(group, shares, strict=True)
    }


def scored_shares(masks: Sequence[np.ndarray]) -> list[float]:
    """Return the number of each explainer's scored samples, divided by the number of samples with any score.

    Args:
        masks: For each explainer, a bool mask (n,), or scores (n,) that are NaN if missing.
    """
    present = np.stack([mask if mask.dtype == bool else np.isfinite(mask) for mask in masks])
    return [float(count) for count in present.sum(axis=1) / max(int(present.any(axis=0).sum()), 1)]


def beat_baselines(
    names: Sequence[str], baselines: Set[str], decided: Iterable[tuple[str, str]]
) -> dict[str, bool | None]:
    """Return {name: whether it is significantly better than every ranked baseline, or None if no baseline is ranked}.

    Args:
        names: All ranked names.
        baselines: Names of explainers that ignore the network; entries that are not in `names` are ignored.
        decided: (better, worse) names of each significant pair.
    """
    won, others = set(decided), [name for name in names if name in baselines]
    return {
        name: all((name, other) in won for other in others) if others else None
        for name in names
        if name not in baselines
    }


def rank_sets(names: Sequence[str], decided: Iterable[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """Return {name: (best possible rank, worst possible rank)} of k names; {} for fewer than two names.

    The best possible rank is 1 plus the number of significantly better names. The worst is k minus the number of
    significantly worse names. `decided` contains the (better, worse) names of each significant pair.
    """
    if len(names) < 2:
        return {}
    sets = {name: [1, len(names)] for name in names}
    for better, worse in decided:
        if better in sets and worse in sets:
            sets[worse][0] += 1
            sets[better][1] -= 1
    return {name: (low, high) for name, (low, high) in sets.items()}
