"""Who beats whom on a board: the test of `results.ranking`, over the rows of all submissions that ask one question.

Two rows ask one question if everything but the explainer is the same: dataset, model, target, seed and metric, with all
that makes their scores. Official ranks are those among rows whose scores the owner has recomputed. The rank "if true"
of a row is the one that it would have if the scores of all checked rows were true.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from saliency_bench.leaderboard.checks import known_metric
from saliency_bench.results.cell import BEST_FROM, CellKey, CellResult, RankSet
from saliency_bench.results.clusters import cluster_codes
from saliency_bench.results.identity import Identity
from saliency_bench.results.ranking import ALONE, UNRANKED, Contrast, Standing, compare
from saliency_bench.utils.hashing import hash_of

ANY = ("", "{}", 0)  # an explainer, whichever


@dataclass(frozen=True)
class Entry:
    """A row as it is ranked. key: unique on the board. scores: of `ids`, NaN where there is none."""

    key: str
    cell: CellResult
    ids: Sequence[str]
    groups: Sequence[str | None]
    scores: np.ndarray
    official: bool


@dataclass(frozen=True)
class Place:
    """rank: official. if_true: as the module says. why: there is no official rank. best: by official ranks.

    beats, not_beaten: the baselines that it was tested against, by the same test as its rank.
    """

    rank: RankSet
    if_true: RankSet
    why: str
    best: bool
    beats: tuple[str, ...] = ()
    not_beaten: tuple[str, ...] = ()


def question_of(cell: CellKey, setting: Identity) -> str:
    """What all rows share that can be compared: a hash of everything but the explainer."""
    metric = known_metric(cell)
    if metric is None:
        return hash_of(setting.model_dump(mode="json"), cell.metric, cell.metric_options, cell.metric_version)
    return setting.cell_id(ANY, metric.identity, metric.needs, cell.asked_for)


def places(entries: Sequence[Entry], seed: int) -> dict[str, Place]:
    """{key: its place} of the rows of one question, all of which cover the same samples."""
    official = [entry for entry in entries if entry.official]
    (contrasts, ranked), (all_contrasts, possible) = _standings(official, seed), _standings(entries, seed)
    baselines = {entry.key: entry.cell.explainer_text for entry in entries if entry.cell.baseline}
    several = any(one.rank and one.rank[0] > 1 for one in ranked.values())
    found = {}
    for entry in entries:
        own = ranked.get(entry.key)
        rank = own.rank if own else None
        best = several and rank is not None and rank[0] == 1 and own is not None and own.scored >= BEST_FROM
        if_true = possible[entry.key].rank if not entry.official else None
        why = "" if rank else (own.unranked or ALONE if own else "its scores have not been recomputed")
        own_contrasts = contrasts if entry.official else all_contrasts
        beats, not_beaten = _against(entry, baselines, own_contrasts)
        found[entry.key] = Place(rank, if_true, why, best and not entry.cell.baseline, beats, not_beaten)
    return found


def _against(
    entry: Entry, baselines: Mapping[str, str], contrasts: Sequence[Contrast]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the baselines that a row beats, those that it does not), of those that it was tested against."""
    if entry.cell.baseline:
        return (), ()
    sides: dict[bool, list[str]] = {True: [], False: []}
    for one in contrasts:
        if entry.key in one.cells and one.p is not None:
            own = one.seen_from(entry.key)
            if own.cells[1] in baselines:
                sides[own.sign(entry.cell.higher_is_better) > 0].append(baselines[own.cells[1]])
    not_beaten = tuple(sorted(set(sides[False])))  # of two rows of one baseline neither may be left unbeaten
    return tuple(sorted(set(sides[True]) - set(not_beaten))), not_beaten


def _standings(entries: Sequence[Entry], seed: int) -> tuple[list[Contrast], Mapping[str, Standing]]:
    """(each pair that was compared, {key: its standing})"""
    if not entries:
        return [], {}
    first = entries[0]
    place = {image_id: index for index, image_id in enumerate(first.ids)}
    scores = {}
    for entry in entries:
        scores[entry.key] = column = np.full(len(first.ids), np.nan)
        column[[place[image_id] for image_id in entry.ids]] = entry.scores
    one = first.cell
    keys = [
        entry.cell.model_copy(
            update={"cell_id": entry.key, "metric_text": one.metric_text, "metric_version": one.metric_version}
        )
        for entry in entries
    ]
    if one.aggregate:
        return [], {key.cell_id: Standing(None, UNRANKED, 1.0) for key in keys}
    return compare(keys, scores, cluster_codes(first.ids, first.groups), seed)
