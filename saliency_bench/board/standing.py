"""Ranks on a board: comparable rows of all submissions, ranked with the test of `read.statistics.ranking`.

Rows are comparable ("for the same question") if everything that determines their scores, except the explainer, is the
same: dataset, model, target, seed and metric. Official ranks compare rows whose explainers the board has run. Any other
row has a rank "if true": its rank among the official rows, assuming that the scores in all rows of its submitter are
true. Rows of other submitters affect both kinds of rank only if the board has run their explainers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from saliency_bench.board.checks import CheckedSubmission, known_metric
from saliency_bench.board.known import RUN
from saliency_bench.board.row import Row
from saliency_bench.read.cell import CellKey, CellResult, RankSet, is_best
from saliency_bench.read.identity import CellIds
from saliency_bench.read.statistics.ranking import ALONE, UNRANKED, Standing, ranked_among
from saliency_bench.utils.hashing import hash_of

ANY = ("", "{}", 0)  # placeholder for the explainer in the id of a question
Signs = Mapping[tuple[str, str], int]  # {keys of a pair: 1 if the first is significantly better, -1 if worse, else 0}
Sides = tuple[tuple[str, ...], tuple[str, ...]]
NOT_RUN = "the board has not run the explainer"


@dataclass(frozen=True)
class ScoredCell:
    """A cell of a submission, with its scores."""

    submission: CheckedSubmission
    cell: CellResult

    @property
    def scores(self) -> np.ndarray:
        """Return the cell's scores in the order of the submission's ids. Missing scores are NaN."""
        return self.submission.recorded.outcomes[self.cell.cell_id].scores


@dataclass(frozen=True)
class BoardEntry(ScoredCell):
    """A row of a board that has not been ranked yet.

    Attributes:
        row: The row without ranks.
        content: Hash of the submission's files.
        key: A key that is unique on the board.
    """

    row: Row
    content: str
    key: str

    @property
    def official(self) -> bool:
        """Return whether the board has run the explainer."""
        return self.row.status == RUN

    @property
    def submitter(self) -> str:
        """Return the first submitter of the row."""
        return self.row.submitters[0]


@dataclass(frozen=True)
class BoardRank:
    """The ranks of a row.

    Attributes:
        rank: Official rank, or None.
        if_true: Rank if the scores of the submitter are assumed to be true. None for official rows.
        why: Reason why there is no official rank, or "".
        best: Whether the row may be the best: its range of official ranks starts at 1, it beats every baseline with an
            official rank, and nearly all of its samples are scored.
        beats: Baselines that the row beats in the test that determines the rank.
        not_beaten: Baselines that the row was tested against but does not beat.
    """

    rank: RankSet
    if_true: RankSet
    why: str
    best: bool
    beats: tuple[str, ...] = ()
    not_beaten: tuple[str, ...] = ()


def question_of(cell: CellKey, ids: CellIds) -> str:
    """Return a hash of everything that determines a row's scores, except the explainer.

    Rows are comparable if they have the same hash.
    """
    metric = known_metric(cell)
    if metric is None:
        return hash_of(ids.identity.model_dump(mode="json"), cell.metric, cell.metric_options, cell.metric_version)
    return ids.id_of(ANY, metric.identity, metric.inputs, cell.asked_for)


def places(entries: Sequence[BoardEntry], seed: int) -> dict[str, BoardRank]:
    """Return {key: rank} for comparable rows, which differ only in the explainer and cover the same samples."""
    official = [entry for entry in entries if entry.official]
    baselines = {entry.key: entry.cell.explainer_text for entry in entries if entry.cell.baseline}
    others: dict[str, list[BoardEntry]] = {}
    for entry in entries:
        if not entry.official:
            others.setdefault(entry.submitter, []).append(entry)
    ranked = _standings(official, list(others.values()), seed)
    signs, standings = next(ranked)
    # If no row is beaten, all share the first rank, and "best" would be meaningless.
    several = any(other.rank and other.rank[0] > 1 for other in standings.values())
    placed, against = {}, _against(signs, baselines)
    for entry in official:
        standing = standings[entry.key]
        best = several and is_best(standing.rank, standing.scored, standing.beats_baselines)
        why = "" if standing.rank else standing.unranked or ALONE
        placed[entry.key] = BoardRank(standing.rank, None, why, best and not entry.cell.baseline, *against(entry))
    # The tests are adjusted for multiple comparisons, so rows of other people would widen the range of possible ranks.
    # Therefore, each submitter is ranked separately.
    for theirs, (signs, standings) in zip(others.values(), ranked, strict=True):
        against = _against(signs, baselines)
        for entry in theirs:
            placed[entry.key] = BoardRank(None, standings[entry.key].rank, NOT_RUN, False, *against(entry))
    return placed


def hidden_places(entries: Sequence[BoardEntry]) -> dict[str, BoardRank]:
    """Return {key: rank} for comparable rows that were scored with hidden masks.

    Only rounded values and intervals are known, so a row counts as better than another row only if their intervals do
    not overlap. This is stricter than the paired test, which is used for other rows.
    """
    placed = {}
    for entry in entries:
        rank, beats, not_beaten, why = None, [], [], "the row has no interval"
        if None not in (entry.row.low, entry.row.high):
            signs = [(_sign(entry.row, other.row), other) for other in entries if other is not entry]
            rank = 1 + sum(sign < 0 for sign, _ in signs), len(entries) - sum(sign > 0 for sign, _ in signs)
            against = [pair for pair in signs if pair[1].cell.baseline and not entry.cell.baseline]
            beats = sorted({other.cell.explainer_text for sign, other in against if sign > 0})
            not_beaten = sorted({other.cell.explainer_text for sign, other in against if sign <= 0})
            why = ALONE if len(entries) == 1 else ""
        placed[entry.key] = BoardRank(None if why else rank, None, why, False, tuple(beats), tuple(not_beaten))
    return placed


def _sign(row: Row, other: Row) -> int:
    """Return 1 if a row's entire interval is better than another row's interval, -1 if it is worse, else 0."""
    if row.low is None or row.high is None or other.low is None or other.high is None:
        return 0
    sign = int(row.low > other.high) - int(row.high < other.low)
    return sign if row.cell.higher_is_better else -sign


def _against(signs: Signs, baselines: Mapping[str, str]) -> Callable[[BoardEntry], Sides]:
    """Return a function that maps a row to (baselines that it beats, other baselines that it was tested against)."""
    sides: dict[str, dict[bool, set[str]]] = {}
    for (first, second), sign in signs.items():
        for key, other, own_sign in ((first, second, sign), (second, first, -sign)):
            if other in baselines and key not in baselines:
                sides.setdefault(key, {True: set(), False: set()})[own_sign > 0].add(baselines[other])

    def against(entry: BoardEntry) -> Sides:
        of_row = sides.get(entry.key, {True: set(), False: set()})
        # If a baseline has two rows, a row must beat both.
        return tuple(sorted(of_row[True] - of_row[False])), tuple(sorted(of_row[False]))

    return against


def _standings(
    official: Sequence[BoardEntry], others: Sequence[Sequence[BoardEntry]], seed: int
) -> Iterator[tuple[Signs, Mapping[str, Standing]]]:
    """Yield (signs of the tested pairs, {key: rank}), first for the official rows, then with each submitter's rows."""
    if not official:  # the first row of each submitter then provides the range of scores
        yield {}, {}
        for theirs in others:
            yield from _rank(theirs, [range(len(theirs))], seed)
        return
    ends = np.cumsum([len(official), *map(len, others)])
    run = range(len(official))
    groups = [run, *([*run, *range(first, last)] for first, last in pairwise(ends.tolist()))]
    yield from _rank([*official, *chain.from_iterable(others)], groups, seed)


def _rank(
    entries: Sequence[BoardEntry], groups: Sequence[Sequence[int]], seed: int
) -> Iterator[tuple[Signs, Mapping[str, Standing]]]:
    """Yield (signs of the tested pairs, {key: rank}) for each group of entries."""
    question, first = entries[0].cell, entries[0].submission.recorded
    scores = {}
    for entry in entries:
        scores[entry.key] = column = np.full(len(first.ids), np.nan)
        column[first.positions(entry.submission.recorded.ids)] = entry.scores
    keys = [entry.cell.model_copy(update={"cell_id": entry.key}) for entry in entries]
    if question.aggregate:
        for group in groups:
            yield {}, {keys[index].cell_id: Standing(None, UNRANKED, 1.0) for index in group}
        return
    yield from ranked_among(keys, scores, first.codes, seed, groups)
