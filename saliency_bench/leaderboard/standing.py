"""Ranks on a board: the test of `results.ranking` over the rows of all submissions that share a question.

Rows share a question if everything but the explainer is the same: dataset, model, target, seed and metric, with all
that determines their scores. Official ranks are those among rows whose explainers the board has run. The rank "if true"
of another row is the one that it would have beside these, if it and its submitter's other rows were true: what somebody
else submits changes neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from saliency_bench.leaderboard.checks import Checked, known_metric
from saliency_bench.leaderboard.known import RUN
from saliency_bench.leaderboard.row import Row
from saliency_bench.results.cell import BEST_FROM, CellKey, CellResult, RankSet
from saliency_bench.results.identity import Identity
from saliency_bench.results.ranking import ALONE, UNRANKED, Contrast, Standing, compare
from saliency_bench.utils.hashing import hash_of

ANY = ("", "{}", 0)  # stands for any explainer in the id of a question
NOT_RUN = "the board has not run its explainer"


@dataclass(frozen=True)
class ScoredCell:
    """A cell of a submission, with its scores."""

    submission: Checked
    cell: CellResult

    @property
    def scores(self) -> np.ndarray:
        """Return its scores, in the order of the submission's ids; NaN where there is none."""
        return self.submission.recorded.outcomes[self.cell.cell_id].scores


@dataclass(frozen=True)
class Candidate(ScoredCell):
    """A row of a board before it is ranked.

    Attributes:
        row: all else that is known of it.
        content: hash of the submission's files.
        key: unique on the board.
    """

    row: Row
    content: str
    key: str

    @property
    def official(self) -> bool:
        """Return whether the board has run its explainer."""
        return self.row.status == RUN

    @property
    def submitter(self) -> str:
        """Return who submitted it first."""
        return self.row.submitters[0]


@dataclass(frozen=True)
class Place:
    """The ranks of a row.

    Attributes:
        rank: the official one.
        if_true: the rank if the scores of its submitter are true; None for official rows.
        why: why there is no official rank; else "".
        best: whether it may be the first by official ranks.
        beats: baselines that it beats, by the test that gives its rank.
        not_beaten: the other baselines that it was tested against.
    """

    rank: RankSet
    if_true: RankSet
    why: str
    best: bool
    beats: tuple[str, ...] = ()
    not_beaten: tuple[str, ...] = ()


def question_of(cell: CellKey, setting: Identity) -> str:
    """Return what rows share that can be compared: a hash of everything but the explainer."""
    metric = known_metric(cell)
    if metric is None:
        return hash_of(setting.model_dump(mode="json"), cell.metric, cell.metric_options, cell.metric_version)
    return setting.cell_id(ANY, metric.identity, metric.inputs, cell.asked_for)


def places(entries: Sequence[Candidate], seed: int) -> dict[str, Place]:
    """Return {key: its place} of the rows of a question, all of which cover the same samples."""
    official = [entry for entry in entries if entry.official]
    baselines = {entry.key: entry.cell.explainer_text for entry in entries if entry.cell.baseline}
    contrasts, ranked = _standings(official, seed)
    # Where nobody is beaten, all are first, and "best" would say nothing.
    several = any(other.rank and other.rank[0] > 1 for other in ranked.values())
    placed = {}
    for entry in official:
        standing = ranked[entry.key]
        best = several and standing.rank is not None and standing.rank[0] == 1 and standing.scored >= BEST_FROM
        why = "" if standing.rank else standing.unranked or ALONE
        against = _against(entry, baselines, contrasts)
        placed[entry.key] = Place(standing.rank, None, why, best and not entry.cell.baseline, *against)
    # Tests are adjusted for their number, so rows of others would widen a rank: each submitter's stand alone.
    for submitter in dict.fromkeys(entry.submitter for entry in entries if not entry.official):
        theirs = [entry for entry in entries if not entry.official and entry.submitter == submitter]
        contrasts, possible = _standings([*official, *theirs], seed)
        for entry in theirs:
            against = _against(entry, baselines, contrasts)
            placed[entry.key] = Place(None, possible[entry.key].rank, NOT_RUN, False, *against)
    return placed


def hidden_places(entries: Sequence[Candidate]) -> dict[str, Place]:
    """Return {key: its place} of the rows of a question that were scored with hidden masks.

    Of these only rounded values and intervals are known, so that a row is better than another one where the intervals
    do not overlap, which is stricter than the paired test of other rows.
    """
    placed = {}
    for entry in entries:
        rank, beats, not_beaten, why = None, [], [], "it has no interval"
        if None not in (entry.row.low, entry.row.high):
            signs = [(_sign(entry.row, other.row), other) for other in entries if other is not entry]
            rank = 1 + sum(sign < 0 for sign, _ in signs), len(entries) - sum(sign > 0 for sign, _ in signs)
            against = [pair for pair in signs if pair[1].cell.baseline and not entry.cell.baseline]
            beats = sorted({other.cell.explainer_text for sign, other in against if sign > 0})
            not_beaten = sorted({other.cell.explainer_text for sign, other in against if sign <= 0})
            why = ALONE if len(entries) == 1 else ""
        placed[entry.key] = Place(None if why else rank, None, why, False, tuple(beats), tuple(not_beaten))
    return placed


def _sign(row: Row, other: Row) -> int:
    """Return 1 if the interval of a row lies on the better side of another row's, -1 if on the worse, else 0."""
    if row.low is None or row.high is None or other.low is None or other.high is None:
        return 0
    sign = int(row.low > other.high) - int(row.high < other.low)
    return sign if row.cell.higher_is_better else -sign


def _against(
    entry: Candidate, baselines: Mapping[str, str], contrasts: Sequence[Contrast]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (the baselines that a row beats, those that it does not), of those that it was tested against."""
    if entry.cell.baseline:
        return (), ()
    sides: dict[bool, list[str]] = {True: [], False: []}
    for contrast in contrasts:
        if entry.key in contrast.cells and contrast.p is not None:
            turned = contrast.seen_from(entry.key)
            if turned.cells[1] in baselines:
                sides[turned.sign(entry.cell.higher_is_better) > 0].append(baselines[turned.cells[1]])
    not_beaten = tuple(sorted(set(sides[False])))  # of two rows of one baseline neither may be left unbeaten
    return tuple(sorted(set(sides[True]) - set(not_beaten))), not_beaten


def _standings(entries: Sequence[Candidate], seed: int) -> tuple[list[Contrast], Mapping[str, Standing]]:
    """Return (each pair that was compared, {key: its standing})."""
    if not entries:
        return [], {}
    question, first = entries[0].cell, entries[0].submission.recorded
    scores = {}
    for entry in entries:
        scores[entry.key] = column = np.full(len(first.ids), np.nan)
        column[first.positions(entry.submission.recorded.ids)] = entry.scores
    # Texts may differ between submissions; rivals are those with the same text and version of the metric.
    keys = [
        entry.cell.model_copy(
            update={
                "cell_id": entry.key,
                "metric_text": question.metric_text,
                "metric_version": question.metric_version,
            }
        )
        for entry in entries
    ]
    if question.aggregate:
        return [], {key.cell_id: Standing(None, UNRANKED, 1.0) for key in keys}
    return compare(keys, scores, first.codes, seed)
