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
        """Return plain columns."""
        return super().as_dict() | {"submitters": list(self.submitters), "folders": list(self.folders)}


@dataclass(frozen=True)
class Row:
    """A cell as one or several submissions have it.

    Attributes:
        cell: the numbers, as they follow from the records; what the package knows of explainer and metric.
        status: "recomputed": the owner of the board computed a sample of its scores again, or all from the maps;
            "checked": consistent with itself, over exactly the samples of the dataset; "claimed": dataset or metric are
            not known to the board, or not all samples are covered.
        why: it has no better status; "".
        rank: the ranks that it may have among recomputed rows; None of all others.
        rank_if_true: of a checked row, the ranks that it may have if the scores of all checked rows are true.
        unranked: why there is no official rank; "".
        best: by official ranks, with nearly all samples scored; never a baseline.
        not_comparable: why it can be compared with no other row; "".
        beats: the baselines that it beats, by the test that gives its ranks.
        not_beaten: the baselines that it was tested against and does not beat.
        dataset: its name, by the owner of the board where the owner knows it ("dataset" is in `named`).
        model: its name, by the owner of the board where the owner knows it ("model" is in `named`).
        named: what the owner of the board names.
        own_method: the explainer is not one of the package.
        recomputed: on how many samples, and the largest difference.
        submitters: all that agree.
        folders: theirs, the first of which the rest is taken from.
        result: what that submission says: who, settings, provenance, note, link. None of it is checked but settings.
        question: what rows share that can be compared: a hash of everything but the explainer.
        conflict: another row of the same cell has other values.
        same_as: methods of another name with exactly these scores, as copied maps have; of a method of one's own.
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
        """The score."""
        return self.cell.value

    @property
    def low(self) -> float | None:
        """The lower end of its interval."""
        return self.cell.low

    @property
    def high(self) -> float | None:
        """The upper end of its interval."""
        return self.cell.high

    @property
    def n(self) -> int:
        """The number of samples with a score."""
        return self.cell.n

    @property
    def seconds(self) -> float | None:
        """The seconds that the explainer took, as its submitter says, on `result.provenance.device`."""
        return self.result.seconds.get(self.cell.explainer_id)

    @property
    def folder(self) -> str:
        """The folder of the submission."""
        return self.folders[0]

    def as_dict(self) -> dict:
        """Return plain columns, as in `Board.table`."""
        of_board = {
            "dataset": self.dataset, "model": self.model, "status": self.status, "why": self.why,
            "rank": rank_text(self.rank) or self.unranked, "rank_if_true": rank_text(self.rank_if_true),
            "best": self.best,
            "not_comparable": self.not_comparable, "own_method": self.own_method, "submitters": list(self.submitters),
            "conflict": self.conflict, "same_as": list(self.same_as),
        }  # fmt: skip
        return columns_of(self.folder, self.result, self.cell) | of_board


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
        """Return the rows as a dataset."""
        return datasets.Dataset.from_list(self.cells, features=FEATURES)

    def __str__(self) -> str:
        lines = [f"{len(self.rows)} cells of {len(self.results)} submissions, {len(self.conflicts)} conflicts"]
        return "\n".join([*lines, *map(str, self.conflicts)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the first rows as a table, for notebooks."""
        columns = ("explainer", "metric", "dataset", "model", "score", "n", "rank", "status", "submitters")
        shown = [row | {"score": _shown(row), "submitters": ", ".join(row["submitters"])} for row in self.cells[:SHOWN]]
        rows = [[row[name] for name in columns] for row in shown]
        more = len(self.rows) - SHOWN
        below = [f"and {more} more; .table() has all of them"] * (more > 0)
        below += [*map(str, self.conflicts), *(f"left out: {refused.line}" for refused in self.refused)]
        title = f"{len(self.rows)} cells of {len(self.results)} submissions, {len(self.conflicts)} conflicts"
        parts = [displays.paragraph(title, strong=True), displays.table(rows, columns)]
        return "\n".join(parts + [displays.paragraph(line) for line in below if line])


def _shown(row: dict) -> str:
    """Return a score with its interval as text."""
    if row["value"] is None:
        return "-"
    interval = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
    return f"{row['value']:.3f}{interval}"


def load_results(location: str | Path, revision: str | None = None, *, known: Iterable[object] = ()) -> Board:
    """Return all submissions in a local folder, or in a dataset repository "NAMESPACE/results" of the Hub, all checked.

    An invalid submission is left out and named, on standard error and in `refused`. What was checked once is kept in
    the cache folder.

    Args:
        location: the folder or repository.
        revision: a branch, commit or pull request ("refs/pr/1") of the repository.
        known: datasets whose samples you know, as `load_dataset` takes them (split test) or as `KnownDataset`, besides
            those that the owner of the board has listed: scores of these are compared sample by sample, and a
            submission with samples of its own is refused.

    Raises:
        UserError: A folder has no results, a dataset cannot be loaded, or the Hub cannot be reached.
    """
    local = isinstance(location, Path) or Path(location).expanduser().is_dir()
    source = Source(Path(location).expanduser() if local else str(location), revision)
    root, folders = source.folders()
    if not folders and isinstance(source.location, Path):
        raise UserError(f"{location} holds no results (DATASET/MODEL/SUBMITTER/{RESULT})")
    vouched, wrong = source.known()
    board = Board([], [], [Refused(line.partition(" ")[0].rstrip(":"), line) for line in wrong])
    vouched = vouched.adding(given if isinstance(given, KnownDataset) else known_dataset(given) for given in known)
    for group in _groups(folders):
        _add_group(board, root, group, vouched)
    board.rows.sort(key=lambda row: (row.dataset, row.model, row.cell.metric_text, row.cell.explainer_text, -row.n,
                                     row.folder))  # fmt: skip
    for given in board.refused:
        complain(f"left out: {given.line}")
    return board


def _groups(folders: Sequence[str]) -> list[list[str]]:
    """Return the folders of each dataset and model, by their hashes: names differ from person to person."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for folder in folders:
        groups.setdefault(tuple(level.rpartition("-")[2] for level in folder.split("/")[:2]), []).append(folder)
    return list(groups.values())


@dataclass
class _Entry:
    """A row in the making, with its scores.

    Attributes:
        row: what the board shows.
        submission: that it is of.
        content: the hash of the submission's files.
        key: unique on the board.
    """

    row: Row
    submission: Checked
    content: str
    key: str

    @property
    def scores(self) -> np.ndarray:
        """The score of each sample."""
        return self.submission.recorded.outcomes[self.row.cell.cell_id].scores

    @property
    def entry(self) -> Entry:
        """What ranks are computed from."""
        recorded = self.submission.recorded
        return Entry(
            self.key, self.row.cell, recorded.ids, recorded.groups, self.scores, self.row.status == "recomputed"
        )


def _add_group(board: Board, root: Path, folders: Sequence[str], known: Known) -> None:
    """Add the submissions of a dataset and model to the board."""
    by_cell: dict[str, list[_Entry]] = {}  # by cell id
    for folder in folders:
        try:
            content, submission = read_folder(root, folder, known)
            entries = [_entry(cell, submission, content, known) for cell in submission.cells]
        except UserError as error:
            board.refused.append(Refused(folder, str(error)))
            continue
        board.results[folder] = submission.result
        for entry in entries:
            _join(by_cell.setdefault(entry.row.cell.cell_id, []), entry)
    board.conflicts.extend(contradict(by_cell.values()))
    disputed = {item.cell_id for item in board.conflicts}
    questions: dict[str, list[_Entry]] = {}
    for entry in (entry for rivals in by_cell.values() for entry in rivals):
        questions.setdefault(entry.row.question, []).append(entry)
    for rivals in questions.values():
        for entry, row in zip(rivals, _placed(rivals), strict=True):
            board.rows.append(replace(row, conflict=entry.row.cell.cell_id in disputed))


def _entry(cell: CellResult, submission: Checked, content: str, known: Known) -> _Entry:
    """Return a row in the making."""
    result, setting = submission.result, submission.result.setting
    dataset, model = known.datasets.get((setting.fingerprint, setting.split)), known.models.get(setting.classifier)
    status, why, again = _trust(cell, submission, content, known)
    row = Row(
        cell=cell, result=result, question=question_of(cell, setting), status=status, why=why, recomputed=again,
        dataset=dataset.id if dataset else result.dataset.id,
        model=model.id if model else result.model.id,
        named=frozenset(["dataset"] * (dataset is not None) + ["model"] * (model is not None)),
        own_method=known_explainer(cell) is None, submitters=(result.submitter,), folders=(result.folder,),
    )  # fmt: skip
    return _Entry(row, submission, content, hash_of(cell.cell_id, result.folder))


def _trust(cell: CellResult, submission: Checked, content: str, known: Known) -> tuple[Trust, str, Recomputed | None]:
    """Return (the status of a row, why it has no better one, what recomputing it found)."""
    setting = submission.result.setting
    dataset = known.datasets.get((setting.fingerprint, setting.split))
    if dataset is None:
        return "claimed", "the samples of its dataset are not known to this board", None
    if known_metric(cell) is None:
        return "claimed", f"{cell.metric_text} is no metric of this version of saliency-bench", None
    if len(submission.recorded.ids) < len(dataset.samples):
        return "claimed", f"it covers {len(submission.recorded.ids)} of {len(dataset.samples)} samples", None
    status = known.statuses.get(content)
    if status is None:
        return "checked", "its scores have not been recomputed", None
    if (again := status.cells.get(cell.cell_id)) is None:
        return "checked", status.further.get(cell.cell_id, "its scores have not been recomputed"), None
    return "recomputed", "", again


def _join(rows: list[_Entry], entry: _Entry) -> None:
    """Add an entry to those of its cell, or join it with one of the same scores."""
    for place, other in enumerate(rows):
        if agree((entry.submission, entry.row.cell), (other.submission, other.row.cell)):
            first, second = (entry, other) if entry.row.status == "recomputed" != other.row.status else (other, entry)
            names = dict.fromkeys((*first.row.submitters, *second.row.submitters))
            folders = (*first.row.folders, *second.row.folders)
            rows[place] = replace(first, row=replace(first.row, submitters=tuple(names), folders=folders))
            return
    rows.append(entry)


def contradict(rivals: Iterable[Sequence[_Entry]]) -> list[Contradiction]:
    """Return what each pair of rows of the same cell disagrees about, on the samples that both have."""
    pairs: dict[tuple[str, str], tuple[Checked, Checked]] = {}
    wanted: dict[tuple[str, str], set[str]] = {}
    for rows in rivals:
        for first, second in combinations(rows, 2):
            folders = first.row.folder, second.row.folder
            pairs[folders] = first.submission, second.submission
            wanted.setdefault(folders, set()).add(first.row.cell.cell_id)
    return [
        item for folders, both in pairs.items() for item in contradictions(*both) if item.cell_id in wanted[folders]
    ]


def contradictions(first: Checked, second: Checked) -> list[Contradiction]:
    """Return what two submissions with common cells disagree about."""
    return [
        Contradiction(
            **vars(conflict),
            submitters=(first.result.submitter, second.result.submitter),
            folders=(first.result.folder, second.result.folder),
        )
        for conflict in conflicts(as_run(first), as_run(second))
    ]


def as_run(submission: Checked) -> RunData:
    """Return a submission as a run, to be compared with others."""
    records = submission.recorded
    return RunData(Path(submission.result.folder), submission.cells, records.ids, records.groups, records.values)


def _placed(rivals: Sequence[_Entry]) -> list[Row]:
    """Return the rows of a question with their ranks."""
    ranked = _ranked([entry for entry in rivals if entry.row.status != "claimed" and entry.row.n])
    places_by_key: dict[str, Place] = {}
    if ranked:
        contents = [entry.content for entry in ranked]
        places_by_key = cached_places(
            [entry.entry for entry in ranked], contents, ranked[0].submission.result.setting.seed
        )
    rows = []
    scored = [(entry.submission, entry.row.cell) for entry in rivals]
    for entry in rivals:
        names = other_names((entry.submission, entry.row.cell), scored)
        entry = replace(entry, row=replace(entry.row, same_as=tuple(names)))
        if (place := places_by_key.get(entry.key)) is None:
            why = TOO_MANY if entry.row.status == "checked" and entry.row.n else entry.row.why or "it has no value"
            rows.append(replace(entry.row, unranked=why, not_comparable=_alone(entry, rivals)))
        else:
            row = replace(entry.row, rank=place.rank, rank_if_true=place.if_true)
            row = replace(row, beats=place.beats, not_beaten=place.not_beaten)
            rows.append(replace(row, unranked=place.why, best=place.best))
    return rows


def _ranked(rows: list[_Entry]) -> list[_Entry]:
    """Return all recomputed rows, and as many of the others as can be compared, first of those who submit few."""
    checked = [entry for entry in rows if entry.row.status != "recomputed"]
    if len(checked) <= MOST_CHECKED:
        return rows
    counts = Counter(entry.row.submitters[0] for entry in checked)
    checked.sort(key=lambda entry: (counts[entry.row.submitters[0]], entry.key))
    left_out = {entry.key for entry in checked[MOST_CHECKED:]}
    return [entry for entry in rows if entry.key not in left_out]


def _alone(entry: _Entry, rivals: Sequence[_Entry]) -> str:
    """Return why a row can be compared with none of the others."""
    if known_metric(entry.row.cell) is None:
        return "its metric is not known here"
    ids = set(entry.submission.recorded.ids)
    others = [other for other in rivals if other is not entry and other.submission is not entry.submission]
    if others and all(ids.isdisjoint(other.submission.recorded.ids) for other in others):
        return "it shares no sample with any other row"
    return ""
