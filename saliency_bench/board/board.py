"""The board: all submissions to a results repository, with the verification status of each score.

    board = sb.load_results("saliency-bench/results")
    board.table().to_pandas()

Every submission is checked. An invalid submission is rejected with a one-line reason and does not affect other
submissions. If several people submit the same cell and their scores agree up to rounding, the board displays the cell
once, with all their names. If the scores differ, the board displays every value.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from saliency_bench import notebook_views
from saliency_bench.board.checks import CheckedSubmission, known_explainer, known_metric
from saliency_bench.board.columns import columns_of, features
from saliency_bench.board.copies import agree, other_names
from saliency_bench.board.hidden import attempts_of
from saliency_bench.board.known import CHECKED, CLAIMED, HIDDEN, RUN, SCORED, STATUSES, Known, Recomputed, Trust
from saliency_bench.board.row import Row
from saliency_bench.board.source import read_folder
from saliency_bench.board.standing import BoardEntry, BoardRank, hidden_places, question_of
from saliency_bench.board.submission_cache import cached_places, forget_oldest
from saliency_bench.board.submission_schema import Result
from saliency_bench.errors import UserError
from saliency_bench.read.analysis.differences import Conflict, conflicts
from saliency_bench.read.cell import CellResult
from saliency_bench.read.identity import CellIds
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import counted
from saliency_bench.utils.processors import cores

if TYPE_CHECKING:
    from datasets import Dataset

SHOWN = 30  # rows displayed in a notebook
MOST_CHECKED = 100  # maximum number of comparable unverified rows that get a rank "if true"
TOO_MANY = f"the board ranks at most {MOST_CHECKED} comparable rows whose explainers it has not run"


class Refused(NamedTuple):
    """An invalid submission, or an invalid file written by the board's owner, with a one-line reason."""

    folder: str
    line: str

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True)
class Contradiction(Conflict):
    """A conflict between two submissions, with the submitters and folders of both."""

    submitters: tuple[str, str]
    folders: tuple[str, str]

    def __str__(self) -> str:
        sides = " and ".join(
            f"{'none' if cell.value is None else format(cell.value, '.6g')} by {submitter} (n = {cell.n})"
            for cell, submitter in zip(self.cells, self.submitters, strict=True)
        )
        return f"conflict: {self.explainer} by {self.metric} ({self.cell_id}): {sides}"

    def as_dict(self) -> dict:
        """Return the conflict as a dict."""
        return super().as_dict() | {"submitters": list(self.submitters), "folders": list(self.folders)}


@dataclass(frozen=True, repr=False)
class Board:
    """All submissions in a results repository.

    Attributes:
        rows: One row per cell, or several if submissions have different values for the cell.
        conflicts: Pairs of rows that contradict each other.
        refused: Invalid submissions, and invalid files written by the board's owner, with the reasons.
        results: {folder: `Result`} of all valid submissions.
    """

    rows: list[Row]
    conflicts: list[Contradiction]
    refused: list[Refused] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)

    @cached_property
    def cells(self) -> list[dict]:
        """Return the rows as dicts."""
        return list(map(columns_of, self.rows))

    def table(self) -> "Dataset":
        """Return the rows as a dataset."""
        from datasets import Dataset

        return Dataset.from_list(self.cells, features=features())

    @property
    def _title(self) -> str:
        return (
            f"{counted(len(self.rows), 'cell')} of {counted(len(self.results), 'submission')}, "
            f"{counted(len(self.conflicts), 'conflict')}"
        )

    def __str__(self) -> str:
        return "\n".join([self._title, *map(str, self.conflicts)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns = ("explainer", "metric", "dataset", "model", "score", "n", "rank", "status", "submitters")
        shown = [row | {"score": _show(row), "submitters": ", ".join(row["submitters"])} for row in self.cells[:SHOWN]]
        rows = [[row[name] for name in columns] for row in shown]
        more = len(self.rows) - SHOWN
        below = [f"and {more} more; .table() returns all rows"] * (more > 0)
        below += [*map(str, self.conflicts), *(f"skipped: {refused.line}" for refused in self.refused)]
        parts = [notebook_views.paragraph(self._title, strong=True), notebook_views.table(rows, columns)]
        return "\n".join(parts + [notebook_views.paragraph(line) for line in below if line])


def _show(row: dict) -> str:
    if row["value"] is None:
        return "-"
    interval = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
    return f"{row['value']:.3f}{interval}"


def read_board(root: Path, folders: Sequence[str], owners: Known, problems: Sequence[str]) -> Board:
    """Read, check and rank all submissions.

    Args:
        root: Root folder of the results.
        folders: Folders of the submissions, relative to `root`.
        owners: Facts that the owner of the board vouches for.
        problems: A message for each invalid file written by the owner.
    """
    board = Board([], [], [Refused(line.partition(" ")[0].rstrip(":"), line) for line in problems])
    groups = _groups(folders)
    reading = _read_ahead(root, list(chain.from_iterable(groups)), owners)
    # Ranking is mostly numpy arithmetic, which releases the interpreter lock, so the next group is read in parallel.
    with _threads(cores()) as ranking:
        ranked: deque[Iterator[list[Row]]] = deque()
        for group in groups:
            questions = _add_group(board, [(folder, next(reading)) for folder in group], owners)
            ranked.append(ranking.map(_ranked_rows, questions))
            if len(ranked) > 1:
                board.rows.extend(chain.from_iterable(ranked.popleft()))
        board.rows.extend(chain.from_iterable(chain.from_iterable(ranked)))
    disputed = {conflict.cell_id for conflict in board.conflicts}
    board.rows[:] = [replace(row, conflict=True) if row.cell.cell_id in disputed else row for row in board.rows]
    board.rows.sort(key=lambda row: (row.dataset, row.model, row.cell.metric_text, row.cell.explainer_text, -row.n,
                                     row.folder))  # fmt: skip
    forget_oldest()
    return board


def _groups(folders: Sequence[str]) -> list[list[str]]:
    """Group the folders by dataset hash and model hash. Names are not used, because they differ between submitters."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for folder in folders:
        groups.setdefault(tuple(level.rpartition("-")[2] for level in folder.split("/")[:2]), []).append(folder)
    return list(groups.values())


def _read_ahead(root: Path, folders: Sequence[str], owners: Known) -> Iterator[Future[tuple[str, CheckedSubmission]]]:
    """For each folder, in order, yield a future of its `read_folder` call. Threads read the next folders in advance."""
    coming: deque[Future[tuple[str, CheckedSubmission]]] = deque()
    readers = min(cores(), 4)  # each thread starts a child process
    with _threads(readers) as pool:
        for index in range(len(folders)):
            for folder in folders[index + len(coming) : index + 4 * readers]:
                coming.append(pool.submit(read_folder, root, folder, owners))
            yield coming.popleft()


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Open a pool of threads. On exit, including after Ctrl-C, cancel the tasks that have not started."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _add_group(
    board: Board, group: Iterable[tuple[str, Future[tuple[str, CheckedSubmission]]]], owners: Known
) -> list[list[BoardEntry]]:
    """Add the submissions for one dataset and model to the board. Return their rows in groups of comparable rows.

    The scores stay in memory only until the rows are ranked, so memory use does not grow with the board.
    """
    by_cell: dict[str, list[BoardEntry]] = {}
    for folder, read in group:
        try:
            content, submission = read.result()
            ids = CellIds(submission.result.setting)
            candidates = [_candidate(cell, submission, folder, content, owners, ids) for cell in submission.cells]
        except UserError as error:
            board.refused.append(Refused(folder, str(error)))
            continue
        board.results[folder] = submission.result
        for candidate in candidates:
            _join(by_cell.setdefault(candidate.row.cell.cell_id, []), candidate)
    board.conflicts.extend(_conflicts(by_cell.values()))
    questions: dict[str, list[BoardEntry]] = {}
    for candidate in chain.from_iterable(by_cell.values()):
        questions.setdefault(candidate.row.question, []).append(candidate)
    return list(questions.values())


def _candidate(
    cell: CellResult, submission: CheckedSubmission, folder: str, content: str, owners: Known, ids: CellIds
) -> BoardEntry:
    """Return the row for a cell. The row has not been ranked yet.

    Args:
        cell: The cell.
        submission: The submission that contains the cell.
        folder: Folder of the submission (`Result.folder`). Its name contains a hash of all cells.
        content: Hash of the submission's files.
        owners: Facts that the owner of the board vouches for.
        ids: Hashes that identify the submission's settings.
    """
    result, setting = submission.result, submission.result.setting
    dataset, model = owners.datasets.get((setting.fingerprint, setting.split)), owners.models.get(setting.classifier)
    status, why, again = _trust(cell, submission, content, owners)
    suspicions: tuple[str, ...] = ()
    attempts = None
    if status in (SCORED, HIDDEN):
        suspicions = tuple(owners.statuses[content].suspicions.get(cell.explainer, ()))
    if again is not None and again.score is not None:
        attempts = len(attempts_of(owners.statuses.values(), result.submitter, setting.fingerprint))
        cell = cell.model_copy(update=again.score.model_dump() | {"left_out": {}})
    row = Row(
        cell=cell, result=result, question=question_of(cell, ids), status=status, why=why, recomputed=again,
        suspicions=suspicions, attempts=attempts,
        dataset=dataset.id if dataset else result.dataset.id,
        model=model.id if model else result.model.id,
        named=frozenset(["dataset"] * (dataset is not None) + ["model"] * (model is not None)),
        own_method=known_explainer(cell) is None, submitters=(result.submitter,), folders=(folder,),
    )  # fmt: skip
    return BoardEntry(submission, cell, row, content, hash_of(cell.cell_id, folder))


def _trust(
    cell: CellResult, submission: CheckedSubmission, content: str, owners: Known
) -> tuple[Trust, str, Recomputed | None]:
    """Return (status of a row, reason why the status is not better, result of recomputing the cell or None)."""
    setting = submission.result.setting
    dataset = owners.datasets.get((setting.fingerprint, setting.split))
    if dataset is None:
        return CLAIMED, "the board does not list the samples of this dataset", None
    if known_metric(cell) is None:
        return CLAIMED, f"{cell.metric_text} is not a metric of this version of saliency-bench", None
    if len(submission.recorded.ids) < len(dataset.samples):
        used = f"{len(submission.recorded.ids)} of {counted(len(dataset.samples), 'sample')}"
        return CLAIMED, f"the submission contains only {used}", None
    status = owners.statuses.get(content)
    if status is None:
        return CHECKED, "the board has not recomputed the scores", None
    if (again := status.cells.get(cell.cell_id)) is None:
        return CHECKED, status.further.get(cell.cell_id, "the board has not recomputed the scores"), None
    if again.score is not None:
        return HIDDEN, "", again
    if again.by == "maps":
        return SCORED, "the board scored the maps, but their origin is unknown", again
    return RUN, "", again


def _join(rows: list[BoardEntry], new: BoardEntry) -> None:
    """Add a row to the rows of its cell, or merge it with a row that has the same scores for the same samples."""
    for index, other in enumerate(rows):
        if agree(new, other):
            # Put the row with the better status first, because the other fields are copied from the first row.
            first, second = sorted((other, new), key=lambda candidate: STATUSES.index(candidate.row.status))
            names = dict.fromkeys((*first.row.submitters, *second.row.submitters))
            folders = (*first.row.folders, *second.row.folders)
            rows[index] = replace(first, row=replace(first.row, submitters=tuple(names), folders=folders))
            return
    rows.append(new)


def _conflicts(cells: Iterable[Sequence[BoardEntry]]) -> list[Contradiction]:
    """Return the conflicts between rows of the same cell. Each pair of submissions is compared only once."""
    pairs: dict[tuple[str, str], tuple[CheckedSubmission, CheckedSubmission]] = {}
    shared: dict[tuple[str, str], set[str]] = {}
    for rows in cells:
        for first, second in combinations(rows, 2):
            folders = first.row.folder, second.row.folder
            pairs[folders] = first.submission, second.submission
            shared.setdefault(folders, set()).add(first.row.cell.cell_id)
    return [
        conflict
        for folders, pair in pairs.items()
        for conflict in contradictions(*pair)
        if conflict.cell_id in shared[folders]
    ]


def contradictions(first: CheckedSubmission, second: CheckedSubmission) -> list[Contradiction]:
    """Return the conflicts between two submissions on the samples that both contain."""
    return [
        Contradiction(
            **vars(conflict),
            submitters=(first.result.submitter, second.result.submitter),
            folders=(first.result.folder, second.result.folder),
        )
        for conflict in conflicts((first.cells, first.recorded.scores), (second.cells, second.recorded.scores))
    ]


def _ranked_rows(rivals: Sequence[BoardEntry]) -> list[Row]:
    hidden = [candidate for candidate in rivals if candidate.row.status == HIDDEN]
    others = [candidate for candidate in rivals if candidate.row.status not in (CLAIMED, HIDDEN) and candidate.row.n]
    ranked = _to_rank(others)
    places: dict[str, BoardRank] = hidden_places(hidden)
    if ranked:
        places |= cached_places(ranked, ranked[0].submission.result.setting.seed)
    rows = []
    for candidate in rivals:
        row, names = candidate.row, tuple(other_names(candidate, rivals))
        if (place := places.get(candidate.key)) is None:
            why = TOO_MANY if row.status in (SCORED, CHECKED) and row.n else row.why or "the row has no value"
            row = replace(row, same_as=names, unranked=why, not_comparable=_not_comparable(candidate, rivals))
        else:
            row = replace(
                row, same_as=names, rank=place.rank, rank_if_true=place.if_true, beats=place.beats,
                not_beaten=place.not_beaten, unranked=row.why or place.why, best=place.best,
            )  # fmt: skip
        rows.append(row)
    return rows


def _to_rank(rows: list[BoardEntry]) -> list[BoardEntry]:
    """Return all official rows and at most `MOST_CHECKED` others. Submitters with the fewest rows have priority."""
    # All pairs of rows are compared, so the number of rows is limited. One account must not crowd out other people.
    checked = [candidate for candidate in rows if not candidate.official]
    if len(checked) <= MOST_CHECKED:
        return rows
    counts = Counter(candidate.submitter for candidate in checked)
    checked.sort(key=lambda candidate: (counts[candidate.submitter], candidate.key))
    left_out = {candidate.key for candidate in checked[MOST_CHECKED:]}
    return [candidate for candidate in rows if candidate.key not in left_out]


def _not_comparable(candidate: BoardEntry, rivals: Sequence[BoardEntry]) -> str:
    """Return the reason why a row cannot be compared with any of the `rivals`, or ""."""
    if known_metric(candidate.row.cell) is None:
        return "this version of saliency-bench does not contain the metric"
    ids = set(candidate.submission.recorded.ids)
    others = [other for other in rivals if other.submission is not candidate.submission]
    if others and all(ids.isdisjoint(other.submission.recorded.ids) for other in others):
        return "the row shares no sample with any other row"
    return ""
