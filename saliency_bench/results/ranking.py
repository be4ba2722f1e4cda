"""Who beats whom: the one criterion of report, console, comparison and board.

Explainers of a metric are compared in pairs on the samples that both have (`paired_test`); their ranks follow from the
significant pairs. Errors are controlled per metric, not across metrics; a pair with a baseline is adjusted over all
explainers and metrics as well, so that "beats random on ..." may list several. A metric whose value is an aggregate of
the means of its parts has differences with intervals, and neither test nor rank.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter

from saliency_bench.errors import UserError
from saliency_bench.metric import load_metric
from saliency_bench.results.cell import FEW, CellKey, CellResult, Count, Hash, StrictModel, Text, by_metric, read_list
from saliency_bench.results.clusters import Matched
from saliency_bench.results.intervals import Aggregate, Estimate, aggregate_difference, aggregate_interval, difference
from saliency_bench.results.paired_test import Member, Pair, adjusted_p

RANKED_FROM = 50  # clusters; with fewer there are no ranks and no verbs
ALPHA = 0.05
TOO_FEW = "too few to rank"
ALONE = "nothing to rank against"
NO_DIFFERENCE = "no difference found"  # which does not say that there is none
TOO_FEW_TO_TELL = "too few samples to tell"
UNRANKED = "an aggregate over all samples, which is not ranked"
NOT_TESTED = "not tested"  # two values that are aggregates


class Contrast(StrictModel):
    """Two explainers by one metric on the n samples that both have: first minus second.

    low, high: 95 %, not corrected for several; None with fewer than 10 clusters. p: adjusted; None where there are too
    few samples to tell, and of aggregates.
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

    @property
    def small(self) -> bool:
        """Whether it rests on so few samples that their number belongs beside it."""
        return self.clusters < FEW

    def seen_from(self, cell_id: str) -> "Contrast":
        """The same with this cell as the first."""
        if cell_id == self.cells[0]:
            return self
        turned = {"low": None if self.high is None else -self.high, "high": None if self.low is None else -self.low}
        return self.model_copy(
            update=turned
            | {"explainers": self.explainers[::-1], "cells": self.cells[::-1], "difference": -self.difference}
        )

    def sign(self, higher_is_better: bool) -> int:
        """1 if the first is significantly better, -1 if worse, 0 if no difference was found."""
        return sign_of(self.difference, self.p, higher_is_better)


CONTRASTS = TypeAdapter(list[Contrast])


def read_contrasts(content: object) -> list[Contrast]:
    """The comparisons of a summary's JSON. Raises: UserError that names the field."""
    return read_list("comparisons", CONTRASTS, content)


@dataclass(frozen=True)
class Standing:
    """The rank set of a cell, or why it has none, and the share of samples that it has scored."""

    rank: tuple[int, int] | None
    unranked: str | None
    scored: float

    def as_dict(self) -> dict:
        return {"rank": self.rank, "unranked": self.unranked, "scored": self.scored}


def compare(
    keys: Sequence[CellKey],
    scores: Mapping[str, np.ndarray],
    codes: np.ndarray,
    seed: int,
    parts: Mapping[str, np.ndarray] | None = None,
) -> tuple[list[Contrast], dict[str, Standing]]:
    """(each pair of explainers of a metric that share samples, {cell id: its standing}).

    scores: {cell id: a score per sample, NaN where there is none}, over the same samples for all cells. codes: the
    cluster of each sample (`clusters.cluster_codes`). parts: {cell id: (n, P)} of the cells that are aggregates, whose
    pairs and shares need them; without them a result keeps its share.
    """
    aggregates = [own for own in by_metric(keys) if own[0].aggregate]
    contrasts, standings = _tested([own for own in by_metric(keys) if not own[0].aggregate], scores, codes, seed)
    for own in aggregates:
        contrasts += _of_aggregates(own, parts or {}, codes, seed)
        shares = _shares_of_aggregates(own, parts or {})
        standings |= {key.cell_id: Standing(None, UNRANKED, share) for key, share in zip(own, shares, strict=True)}
    return contrasts, standings


def aggregate_of(key: CellKey) -> Aggregate | None:
    """What makes a cell's value of the means of its parts; None of a metric that this version does not have."""
    try:
        metric = load_metric(key.metric, **key.metric_options)
    except UserError:
        return None
    function = metric.aggregate
    if function is None or metric.version != key.metric_version:
        return None
    return lambda means: function(means, dict(metric.options))


def aggregated(key: CellKey, parts: np.ndarray, codes: np.ndarray, seed: int) -> Estimate:
    """The value of a cell that is an aggregate of parts (n, P), with its interval."""
    if (aggregate := aggregate_of(key)) is not None:
        return aggregate_interval(aggregate, parts, codes, seed)
    known = np.isfinite(parts).any(axis=1)
    return Estimate(np.nan, np.nan, np.nan, int(known.sum()), len(np.unique(codes[known])))


def _shares_of_aggregates(own: Sequence[CellKey], parts: Mapping[str, np.ndarray]) -> list[float]:
    if all(key.cell_id in parts for key in own):
        return scored_shares([np.isfinite(parts[key.cell_id]).any(axis=1) for key in own])
    return [key.scored if isinstance(key, CellResult) else 0.0 for key in own]


def _of_aggregates(
    own: Sequence[CellKey], parts: Mapping[str, np.ndarray], codes: np.ndarray, seed: int
) -> list[Contrast]:
    """Each pair of cells of one metric whose parts are there."""
    aggregate, found = aggregate_of(own[0]), []
    for pair in combinations(range(len(own)), 2):
        columns = [parts.get(own[index].cell_id) for index in pair]
        if aggregate is not None and columns[0] is not None and columns[1] is not None:
            one = aggregate_difference(aggregate, columns[0], columns[1], codes, seed)
            found += [_contrast(own, pair, one, None)] if np.isfinite(one.value) else []  # a part may be nowhere
    return found


def _tested(
    rivals: Sequence[Sequence[CellKey]], scores: Mapping[str, np.ndarray], codes: np.ndarray, seed: int
) -> tuple[list[Contrast], dict[str, Standing]]:
    """Those of metrics whose scores are tested sample by sample."""
    matched = [Matched([scores[key.cell_id] for key in own], codes) for own in rivals]
    estimates = [_differences(both, len(own)) for own, both in zip(rivals, matched, strict=True)]
    tested = [[pair for pair, one in own.items() if one.clusters >= RANKED_FROM] for own in estimates]
    adjusted = adjusted_p(matched, tested, _against_baselines(rivals, tested), seed)
    contrasts: list[Contrast] = []
    standings: dict[str, Standing] = {}
    for own, both, found, p in zip(rivals, matched, estimates, adjusted, strict=True):
        metric = [_contrast(own, pair, one, p.get(pair)) for pair, one in found.items() if one.n]
        contrasts += metric
        standings |= _standings(own, both, metric)
    return contrasts, standings


def _differences(matched: Matched, width: int) -> dict[Pair, Estimate]:
    found = {pair: difference(matched, *pair) for pair in combinations(range(width), 2)}
    matched.forget()
    return found


def _contrast(own: Sequence[CellKey], pair: Pair, one: Estimate, p: float | None) -> Contrast:
    first, second = (own[index] for index in pair)
    low, high = (None if end != end else end for end in (one.low, one.high))
    return Contrast(
        metric=first.metric_text,
        explainers=(first.explainer_text, second.explainer_text),
        cells=(first.cell_id, second.cell_id),
        n=one.n,
        clusters=one.clusters,
        difference=one.value,
        low=low,
        high=high,
        p=p,
    )


def _against_baselines(rivals: Sequence[Sequence[CellKey]], tested: Sequence[Sequence[Pair]]) -> list[list[Member]]:
    """For each baseline its pairs with the explainers that look at the network, over all metrics."""
    families: dict[str, list[Member]] = {}
    for number, (own, pairs) in enumerate(zip(rivals, tested, strict=True)):
        for pair in pairs:
            baselines = [own[index] for index in pair if own[index].baseline]
            if len(baselines) == 1:
                families.setdefault(baselines[0].explainer_id, []).append((number, pair))
    return list(families.values())


def sign_of(difference: float, p: float | None, higher_is_better: bool) -> int:
    """1 if the first is significantly better, -1 if worse, 0 if no difference was found."""
    if p is None or p >= ALPHA:
        return 0
    return 1 if (difference > 0) == higher_is_better else -1


def _standings(own: Sequence[CellKey], matched: Matched, contrasts: Iterable[Contrast]) -> dict[str, Standing]:
    clusters = [np.count_nonzero(np.bincount(matched.codes[known])) for known in matched.known.T]
    scored = scored_shares(list(matched.known.T))
    ranked = [key.cell_id for key, count in zip(own, clusters, strict=True) if count >= RANKED_FROM]
    decided = []
    for one in contrasts:
        if sign := one.sign(own[0].higher_is_better):
            decided.append(one.cells if sign > 0 else one.cells[::-1])
    sets = rank_sets(ranked, decided)
    reason = ALONE if len(own) == 1 else TOO_FEW
    return {
        key.cell_id: Standing(sets.get(key.cell_id), None if key.cell_id in sets else reason, share)
        for key, share in zip(own, scored, strict=True)
    }


def scored_shares(known: Sequence[np.ndarray]) -> list[float]:
    """Of each explainer the share of the samples that any of them has scored. known: of each Bool or scores (n,)."""
    there = np.stack([own if own.dtype == bool else np.isfinite(own) for own in known])
    return [float(count) for count in there.sum(axis=1) / max(int(there.any(axis=0).sum()), 1)]


def rank_sets(names: Sequence[str], decided: Iterable[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """{name: [1 + number significantly better, k - number significantly worse]} of k names; {} of one alone.

    decided: (the better, the worse) of each significant pair.
    """
    if len(names) < 2:
        return {}
    sets = {name: [1, len(names)] for name in names}
    for better, worse in decided:
        if better in sets and worse in sets:
            sets[worse][0] += 1
            sets[better][1] -= 1
    return {name: (low, high) for name, (low, high) in sets.items()}
