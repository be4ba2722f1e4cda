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
    """A row as it is ranked.

    Attributes:
        key: unique on the board.
        cell: its numbers.
        ids: of the samples.
        groups: of the samples.
        scores: of `ids`, NaN where there is none.
        recomputed: whether it is ranked officially.
    """

    key: str
    cell: CellResult
    ids: Sequence[str]
    groups: Sequence[str | None]
    scores: np.ndarray
    official: bool


@dataclass(frozen=True)
class Place:
    """Where a row stands.

    Attributes:
        rank: official.
        if_true: as the module says.
        why: there is no official rank.
        best: by official ranks.
        beats: the baselines that it beats, by the same test as its rank.
        not_beaten: the baselines that it was tested against and does not beat.
    """

    rank: RankSet
    if_true: RankSet
    why: str
    best: bool
    beats: tuple[str, ...] = ()
    not_beaten: tuple[str, ...] = ()


def question_of(cell: CellKey, setting: Identity) -> str:
    """Return what all rows share that can be compared: a hash of everything but the explainer."""
    metric = known_metric(cell)
    if metric is None:
        return hash_of(setting.model_dump(mode="json"), cell.metric, cell.metric_options, cell.metric_version)
    return setting.cell_id(ANY, metric.identity, metric.needs, cell.asked_for)


def places(entries: Sequence[Entry], seed: int) -> dict[str, Place]:
    """Return {key: its place} of the rows of a question, all of which cover the same samples."""
    official = [entry for entry in entries if entry.official]
    (contrasts, ranked), (all_contrasts, possible) = _standings(official, seed), _standings(entries, seed)
    baselines = {entry.key: entry.cell.explainer_text for entry in entries if entry.cell.baseline}
    several = any(standing.rank and standing.rank[0] > 1 for standing in ranked.values())
    by_key = {}
    for entry in entries:
        place = ranked.get(entry.key)
        rank = place.rank if place else None
        best = several and rank is not None and rank[0] == 1 and place is not None and place.scored >= BEST_FROM
        if_true = possible[entry.key].rank if not entry.official else None
        why = "" if rank else (place.unranked or ALONE if place else "its scores have not been recomputed")
        own_contrasts = contrasts if entry.official else all_contrasts
        beats, not_beaten = _against(entry, baselines, own_contrasts)
        by_key[entry.key] = Place(rank, if_true, why, best and not entry.cell.baseline, beats, not_beaten)
    return by_key


def _against(
    entry: Entry, baselines: Mapping[str, str], contrasts: Sequence[Contrast]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (the baselines that a row beats, those that it does not), of those that it was tested against."""
    if entry.cell.baseline:
        return (), ()
    sides: dict[bool, list[str]] = {True: [], False: []}
    for contrast in contrasts:
        if entry.key in contrast.cells and contrast.p is not None:
            seen = contrast.seen_from(entry.key)
            if seen.cells[1] in baselines:
                sides[seen.sign(entry.cell.higher_is_better) > 0].append(baselines[seen.cells[1]])
    not_beaten = tuple(sorted(set(sides[False])))  # of two rows of one baseline neither may be left unbeaten
    return tuple(sorted(set(sides[True]) - set(not_beaten))), not_beaten


def _standings(entries: Sequence[Entry], seed: int) -> tuple[list[Contrast], Mapping[str, Standing]]:
    """Return (each pair that was compared, {key: its standing})."""
    if not entries:
        return [], {}
    first = entries[0]
    place = {image_id: index for index, image_id in enumerate(first.ids)}
    scores = {}
    for entry in entries:
        scores[entry.key] = column = np.full(len(first.ids), np.nan)
        column[[place[image_id] for image_id in entry.ids]] = entry.scores
    cell = first.cell
    keys = [
        entry.cell.model_copy(
            update={"cell_id": entry.key, "metric_text": cell.metric_text, "metric_version": cell.metric_version}
        )
        for entry in entries
    ]
    if cell.aggregate:
        return [], {key.cell_id: Standing(None, UNRANKED, 1.0) for key in keys}
    return compare(keys, scores, cluster_codes(first.ids, first.groups), seed)
