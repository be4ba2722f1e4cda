"""The board: all submissions to a results repository, each row with what may be believed of it.

    board = sb.load_results("saliency-bench/results")
    board.table().to_pandas()

Every submission is checked, and an invalid one is refused, in one line, without affecting others. A
cell that several people submit is shown once, with all their names, if they agree on all of the same samples (up to the
last digits). Values that contradict each other are all shown.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Literal, NamedTuple

import datasets
import numpy as np

from saliency_bench import displays
from saliency_bench.analysis.differences import Conflict, conflicts
from saliency_bench.errors import UserError
from saliency_bench.leaderboard.cache import cached_places
from saliency_bench.leaderboard.checks import Checked, known_explainer, known_metric
from saliency_bench.leaderboard.copies import agree, other_names
from saliency_bench.leaderboard.known import Known, KnownDataset, Recomputed, known_dataset
from saliency_bench.leaderboard.schema import RESULT, Result
from saliency_bench.leaderboard.source import Source, read_folder
from saliency_bench.leaderboard.standing import Entry, Place, question_of
from saliency_bench.leaderboard.submission import FEATURES, columns_of
from saliency_bench.results.cell import CellResult, RankSet, rank_text
from saliency_bench.results.run_folder import RunData
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

SHOWN = 30  # cells in a notebook
MOST_CHECKED = 100  # rows of a question that are ranked without having been recomputed: each is compared with each
TOO_MANY = f"more than {MOST_CHECKED} rows of this question have not been recomputed"
Trust = Literal["recomputed", "checked", "claimed"]


class Refused(NamedTuple):
    """A submission, or a file of the board's owner, that is invalid: where it lies, and why, in a line."""

    folder: str
    line: str

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True)
class Contradiction(Conflict):
    """A conflict between two submissions: by whom, in which folders."""

    submitters: tuple[str, str]
    folders: tuple[str, str]

    def __str__(self) -> str:
        sides = " and ".join(
            f"{'none' if cell.value is None else format(cell.value, '.6g')} by {submitter} (n = {cell.n})"
            for cell, submitter in zip(self.cells, self.submitters, strict=True)
        )
        return f"conflict: {self.explainer} by {self.metric} ({self.cell_id}): {sides}"

    def as_dict(self) -> dict:
        return super().as_dict() | {"submitters": list(self.submitters), "folders": list(self.folders)}


@dataclass(frozen=True)
class Row:
    """A cell as one or several submissions have it.

    cell            the numbers, as they follow from the records; what the package knows of explainer and metric
    status          "recomputed": the owner of the board computed a sample of its scores again, or all from the maps;
                    "checked": consistent with itself, over exactly the samples of the dataset; "claimed": dataset or
                    metric are not known to the board, or not all samples are covered
    why             it has no better status; ""
    rank            the ranks that it may have among recomputed rows; None of all others
    rank_if_true    of a checked row: the ranks that it may have if the scores of all checked rows are true
    unranked        why there is no official rank; ""
    best            by official ranks, with nearly all samples scored; never a baseline
    not_comparable  why it can be compared with no other row; ""
    beats, not_beaten  the baselines that it was tested against, by the test that gives its ranks
    dataset, model  names, by the owner of the board where the owner knows them (`named`: "dataset", "model" are in it)
    own_method      the explainer is not one of the package
    recomputed      on how many samples, and the largest difference
    submitters      all that agree; folders: theirs, the first of which the rest is taken from
    result          what that submission says: who, settings, provenance, note, link. None of it is checked but settings
    question        what rows share that can be compared: a hash of everything but the explainer
    conflict        another row of the same cell has other values
    same_as         methods of another name with exactly these scores, as copied maps have; of a method of one's own
    """

    cell: CellResult
    result: Result
    question: str
    status: Trust
    why: str
    dataset: str
    model: str
    named: frozenset[str]
    own_method: bool
    submitters: tuple[str, ...]
    folders: tuple[str, ...]
    recomputed: Recomputed | None = None
    rank: RankSet = None
    rank_if_true: RankSet = None
    unranked: str = ""
    best: bool = False
    not_comparable: str = ""
    beats: tuple[str, ...] = ()
    not_beaten: tuple[str, ...] = ()
    conflict: bool = False
    same_as: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        return self.cell.value

    @property
    def low(self) -> float | None:
        return self.cell.low

    @property
    def high(self) -> float | None:
        return self.cell.high

    @property
    def n(self) -> int:
        return self.cell.n

    @property
    def seconds(self) -> float | None:
        """That the explainer took, as its submitter says; on `result.provenance.device`."""
        return self.result.seconds.get(self.cell.explainer_id)

    @property
    def folder(self) -> str:
        return self.folders[0]

    def as_dict(self) -> dict:
        """Plain columns, as in `Board.table`."""
        own = {
            "dataset": self.dataset, "model": self.model, "status": self.status, "why": self.why,
            "rank": rank_text(self.rank) or self.unranked, "rank_if_true": rank_text(self.rank_if_true),
            "best": self.best,
            "not_comparable": self.not_comparable, "own_method": self.own_method, "submitters": list(self.submitters),
            "conflict": self.conflict, "same_as": list(self.same_as),
        }  # fmt: skip
        return columns_of(self.folder, self.result, self.cell) | own


@dataclass(frozen=True, repr=False)
class Board:
    """All submissions of a results repository.

    rows        a row per cell and distinct values
    conflicts   each pair of rows that contradict each other
    refused     each invalid submission, with the reason
    results     {folder: Result} of all others
    """

    rows: list[Row]
    conflicts: list[Contradiction]
    refused: list[Refused] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)

    @cached_property
    def cells(self) -> list[dict]:
        """The rows as plain data."""
        return [row.as_dict() for row in self.rows]

    def table(self) -> datasets.Dataset:
        """The rows as a dataset."""
        return datasets.Dataset.from_list(self.cells, features=FEATURES)

    def __str__(self) -> str:
        lines = [f"{len(self.rows)} cells of {len(self.results)} submissions, {len(self.conflicts)} conflicts"]
        return "\n".join([*lines, *map(str, self.conflicts)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns = ("explainer", "metric", "dataset", "model", "score", "n", "rank", "status", "submitters")
        shown = [row | {"score": _shown(row), "submitters": ", ".join(row["submitters"])} for row in self.cells[:SHOWN]]
        rows = [[row[name] for name in columns] for row in shown]
        more = len(self.rows) - SHOWN
        below = [f"and {more} more; .table() has all of them"] * (more > 0)
        below += [*map(str, self.conflicts), *(f"left out: {one.line}" for one in self.refused)]
        title = f"{len(self.rows)} cells of {len(self.results)} submissions, {len(self.conflicts)} conflicts"
        parts = [displays.paragraph(title, strong=True), displays.table(rows, columns)]
        return "\n".join(parts + [displays.paragraph(line) for line in below if line])


def _shown(row: dict) -> str:
    """A score with its interval."""
    if row["value"] is None:
        return "-"
    interval = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
    return f"{row['value']:.3f}{interval}"


def load_results(location: str | Path, revision: str | None = None, *, known: Iterable[object] = ()) -> Board:
    """All submissions in a local folder, or in a dataset repository "NAMESPACE/results" of the Hub, all checked.

    revision: a branch, commit or pull request ("refs/pr/1") of the repository. known: datasets whose samples you know,
    as `load_dataset` takes them (split test) or as `KnownDataset`, besides those that the owner of the board has
    listed: scores of these are compared sample by sample, and a submission with samples of its own is refused.
    An invalid submission is left out and named, on standard error and in `refused`. What was checked
    once is kept in the cache folder.
    Raises: UserError for a folder without results, a dataset that cannot be loaded, or a Hub that cannot be reached.
    """
    local = isinstance(location, Path) or Path(location).expanduser().is_dir()
    source = Source(Path(location).expanduser() if local else str(location), revision)
    root, folders = source.folders()
    if not folders and isinstance(source.location, Path):
        raise UserError(f"{location} holds no results (DATASET/MODEL/SUBMITTER/{RESULT})")
    vouched, wrong = source.known()
    board = Board([], [], [Refused(line.partition(" ")[0].rstrip(":"), line) for line in wrong])
    vouched = vouched.adding(one if isinstance(one, KnownDataset) else known_dataset(one) for one in known)
    for group in _groups(folders):
        _add_group(board, root, group, vouched)
    board.rows.sort(key=lambda row: (row.dataset, row.model, row.cell.metric_text, row.cell.explainer_text, -row.n,
                                     row.folder))  # fmt: skip
    for one in board.refused:
        complain(f"left out: {one.line}")
    return board


def _groups(folders: Sequence[str]) -> list[list[str]]:
    """The folders of each dataset and model, by their hashes: names differ from person to person."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for folder in folders:
        groups.setdefault(tuple(level.rpartition("-")[2] for level in folder.split("/")[:2]), []).append(folder)
    return list(groups.values())


@dataclass
class _Held:
    """A row in the making, with its scores. content: the hash of its submission's files. key: unique on the board."""

    row: Row
    found: Checked
    content: str
    key: str

    @property
    def scores(self) -> np.ndarray:
        return self.found.recorded.outcomes[self.row.cell.cell_id].scores

    @property
    def entry(self) -> Entry:
        own = self.found.recorded
        return Entry(self.key, self.row.cell, own.ids, own.groups, self.scores, self.row.status == "recomputed")


def _add_group(board: Board, root: Path, folders: Sequence[str], known: Known) -> None:
    """Read the submissions about one dataset and model, whose scores are let go afterwards."""
    held: dict[str, list[_Held]] = {}  # by cell id
    for folder in folders:
        try:
            content, found = read_folder(root, folder, known)
            own = [_held(cell, found, content, known) for cell in found.cells]
        except UserError as error:
            board.refused.append(Refused(folder, str(error)))
            continue
        board.results[folder] = found.result
        for one in own:
            _join(held.setdefault(one.row.cell.cell_id, []), one)
    board.conflicts.extend(contradict(held.values()))
    disputed = {item.cell_id for item in board.conflicts}
    questions: dict[str, list[_Held]] = {}
    for one in (one for rivals in held.values() for one in rivals):
        questions.setdefault(one.row.question, []).append(one)
    for rivals in questions.values():
        for one, row in zip(rivals, _placed(rivals), strict=True):
            board.rows.append(replace(row, conflict=one.row.cell.cell_id in disputed))


def _held(cell: CellResult, found: Checked, content: str, known: Known) -> _Held:
    result, setting = found.result, found.result.setting
    dataset, model = known.datasets.get((setting.fingerprint, setting.split)), known.models.get(setting.classifier)
    status, why, again = _trust(cell, found, content, known)
    row = Row(
        cell=cell, result=result, question=question_of(cell, setting), status=status, why=why, recomputed=again,
        dataset=dataset.id if dataset else result.dataset.id,
        model=model.id if model else result.model.id,
        named=frozenset(["dataset"] * (dataset is not None) + ["model"] * (model is not None)),
        own_method=known_explainer(cell) is None, submitters=(result.submitter,), folders=(result.folder,),
    )  # fmt: skip
    return _Held(row, found, content, hash_of(cell.cell_id, result.folder))


def _trust(cell: CellResult, found: Checked, content: str, known: Known) -> tuple[Trust, str, Recomputed | None]:
    """(the status of a row, why it has no better one, what recomputing it found)"""
    setting = found.result.setting
    dataset = known.datasets.get((setting.fingerprint, setting.split))
    if dataset is None:
        return "claimed", "the samples of its dataset are not known to this board", None
    if known_metric(cell) is None:
        return "claimed", f"{cell.metric_text} is no metric of this version of saliency-bench", None
    if len(found.recorded.ids) < len(dataset.samples):
        return "claimed", f"it covers {len(found.recorded.ids)} of {len(dataset.samples)} samples", None
    status = known.statuses.get(content)
    if status is None:
        return "checked", "its scores have not been recomputed", None
    if (again := status.cells.get(cell.cell_id)) is None:
        return "checked", status.further.get(cell.cell_id, "its scores have not been recomputed"), None
    return "recomputed", "", again


def _join(rows: list[_Held], one: _Held) -> None:
    """Join a row to the one that has the same scores of the same samples; else it stands for itself."""
    for place, other in enumerate(rows):
        if agree((one.found, one.row.cell), (other.found, other.row.cell)):
            first, second = (one, other) if one.row.status == "recomputed" != other.row.status else (other, one)
            names = dict.fromkeys((*first.row.submitters, *second.row.submitters))
            folders = (*first.row.folders, *second.row.folders)
            rows[place] = replace(first, row=replace(first.row, submitters=tuple(names), folders=folders))
            return
    rows.append(one)


def contradict(rivals: Iterable[Sequence[_Held]]) -> list[Contradiction]:
    """What each pair of rows of one cell disagrees about, on the samples that both have."""
    pairs: dict[tuple[str, str], tuple[Checked, Checked]] = {}
    wanted: dict[tuple[str, str], set[str]] = {}
    for rows in rivals:
        for first, second in combinations(rows, 2):
            folders = first.row.folder, second.row.folder
            pairs[folders] = first.found, second.found
            wanted.setdefault(folders, set()).add(first.row.cell.cell_id)
    return [
        item for folders, both in pairs.items() for item in contradictions(*both) if item.cell_id in wanted[folders]
    ]


def contradictions(first: Checked, second: Checked) -> list[Contradiction]:
    """What two submissions with common cells disagree about."""
    return [
        Contradiction(
            **vars(conflict),
            submitters=(first.result.submitter, second.result.submitter),
            folders=(first.result.folder, second.result.folder),
        )
        for conflict in conflicts(as_run(first), as_run(second))
    ]


def as_run(found: Checked) -> RunData:
    """A submission as a run, to be compared with others."""
    own = found.recorded
    return RunData(Path(found.result.folder), found.cells, own.ids, own.groups, own.values)


def _placed(rivals: Sequence[_Held]) -> list[Row]:
    """The rows of one question with their ranks."""
    ranked = _ranked([one for one in rivals if one.row.status != "claimed" and one.row.n])
    found: dict[str, Place] = {}
    if ranked:
        contents = [one.content for one in ranked]
        found = cached_places([one.entry for one in ranked], contents, ranked[0].found.result.setting.seed)
    rows = []
    scored = [(one.found, one.row.cell) for one in rivals]
    for one in rivals:
        names = other_names((one.found, one.row.cell), scored)
        one = replace(one, row=replace(one.row, same_as=tuple(names)))
        if (place := found.get(one.key)) is None:
            why = TOO_MANY if one.row.status == "checked" and one.row.n else one.row.why or "it has no value"
            rows.append(replace(one.row, unranked=why, not_comparable=_alone(one, rivals)))
        else:
            row = replace(one.row, rank=place.rank, rank_if_true=place.if_true)
            row = replace(row, beats=place.beats, not_beaten=place.not_beaten)
            rows.append(replace(row, unranked=place.why, best=place.best))
    return rows


def _ranked(rows: list[_Held]) -> list[_Held]:
    """All recomputed rows, and as many of the others as can be compared, first of those who submit few."""
    checked = [one for one in rows if one.row.status != "recomputed"]
    if len(checked) <= MOST_CHECKED:
        return rows
    counts = Counter(one.row.submitters[0] for one in checked)
    checked.sort(key=lambda one: (counts[one.row.submitters[0]], one.key))
    left_out = {one.key for one in checked[MOST_CHECKED:]}
    return [one for one in rows if one.key not in left_out]


def _alone(one: _Held, rivals: Sequence[_Held]) -> str:
    """Why a row can be compared with none of the others."""
    if known_metric(one.row.cell) is None:
        return "its metric is not known here"
    own = set(one.found.recorded.ids)
    others = [other for other in rivals if other is not one and other.found is not one.found]
    if others and all(own.isdisjoint(other.found.recorded.ids) for other in others):
        return "it shares no sample with any other row"
    return ""
