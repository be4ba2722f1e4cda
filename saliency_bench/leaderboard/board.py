"""The board: all submissions to a results repository, merged by cell id.

    board = sb.load_results("saliency-bench/results")
    board.table().to_pandas()

A cell that several people submit is shown once, with all their names, if they agree on every sample that they share (up
to the last digits); its numbers are those over most samples. Values that contradict each other are all shown.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from itertools import combinations
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

from saliency_bench import displays
from saliency_bench.analysis.differences import Conflict, conflicts
from saliency_bench.errors import UserError
from saliency_bench.hub import client, errors
from saliency_bench.leaderboard.schema import RESULT, Result, Submission, read_result, read_submission
from saliency_bench.results.cell import CellResult
from saliency_bench.utils.messages import complain

REFUSALS = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled)
FEATURES = datasets.Features(
    {name: datasets.Value("string") for name in ("cell_id", "dataset", "split", "fingerprint", "model", "digest",
                                                 "target", "precision", "explainer", "explainer_version",
                                                 "metric_version",
                                                 "dataset_repo", "dataset_revision", "model_repo", "model_revision")}
    | {"seed": datasets.Value("int64"), "baseline": datasets.Value("bool"), "metric": datasets.Value("string"),
       "higher_is_better": datasets.Value("bool")}
    | {name: datasets.Value("float64") for name in ("value", "low", "high", "accuracy")}
    | {"n": datasets.Value("int64"), "clusters": datasets.Value("int64"), "rank": datasets.Value("string"),
       "samples": datasets.Value("int64"), "left_out": datasets.Value("int64")}
    | {"submitters": datasets.List(datasets.Value("string")), "conflict": datasets.Value("bool")}
    | {"source": datasets.Value("string")}
)  # fmt: skip

NO_RESULT = "no result: this row only shows the columns"
SHOWN = 30  # cells in a notebook
CELLS = "cells.parquet"  # for the Hub's dataset viewer; nothing here reads it


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


@dataclass(frozen=True, repr=False)
class Board:
    """All submissions of a results repository.

    cells       a row per cell and distinct value, with its interval, n, and `submitters`; `conflict` marks those whose
                values contradict each other; `source` is the folder of the submission that the numbers come from
    conflicts   each pair of submissions that contradict each other on a cell
    refused     a line for each submission that does not fit the schema, with the reason
    results     {folder: Result} of all others
    """

    cells: list[dict]
    conflicts: list[Contradiction]
    refused: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)

    def table(self) -> datasets.Dataset:
        """The cells as a dataset."""
        return datasets.Dataset.from_list(self.cells, features=FEATURES)

    def __str__(self) -> str:
        lines = [f"{len(self.cells)} cells of {len(self.results)} submissions, {len(self.conflicts)} conflicts"]
        return "\n".join([*lines, *map(str, self.conflicts)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns = ("explainer", "metric", "dataset", "model", "score", "n", "submitters")
        rows = [[row[name] if name in row else _shown(row) for name in columns] for row in self.cells[:SHOWN]]
        rows = [[*row[:-1], ", ".join(row[-1])] for row in rows]
        more = len(self.cells) - SHOWN
        below = [f"and {more} more; .table() has all of them"] * (more > 0)
        below += [*map(str, self.conflicts), *(f"left out: {line}" for line in self.refused)]
        title = f"{len(self.cells)} cells of {len(self.results)} submissions, {len(self.conflicts)} conflicts"
        shown = [displays.paragraph(title, strong=True), displays.table(rows, columns)]
        return "\n".join(shown + [displays.paragraph(line) for line in below])


def _shown(row: dict) -> str:
    """A score with its interval."""
    if row["value"] is None:
        return "-"
    interval = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
    return f"{row['value']:.3f}{interval}"


def load_results(location: str | Path, revision: str | None = None, *, records: bool = False) -> Board:
    """All submissions in a local folder, or in a dataset repository "NAMESPACE/results" of the Hub.

    revision: a branch, commit or pull request ("refs/pr/1") of the repository. records: read and check the records of
    all submissions; by default only of those that share a cell, to see whether they contradict each other.
    A submission that does not fit the schema is left out and named, on standard error and in `refused`.
    Raises: UserError for a folder without results, or a Hub that cannot be reached.
    """
    local = isinstance(location, Path) or Path(location).expanduser().is_dir()
    source = Source(Path(location).expanduser() if local else str(location), revision)
    results, refused = source.results()
    if not results and not refused and isinstance(source.location, Path):
        raise UserError(f"{location} holds no results (DATASET/MODEL/SUBMITTER/{RESULT})")
    needed = list(results) if records else sharing(results)
    contradictory = contradictions(source.submissions(needed, results, refused))
    for line in refused:
        complain(f"left out: {line}")
    return Board(_merged(results, contradictory), contradictory, refused, results)


@contextmanager
def asking(repo: str) -> Iterator[None]:
    """Inside, what the Hub refuses or the network loses becomes one line that says how to fix it; no progress bars."""
    try:
        with client.no_bars():
            yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, LocalEntryNotFoundError) and errors.status_of(error) is None:
            raise UserError(f"{repo} is not in the cache, and the Hub cannot be reached; try again later") from error
        if isinstance(error, REFUSALS) or errors.is_network_error(error):
            errors.refuse(error, repo, get_token())
        raise


class Source:
    """A folder of results (a path), or a repository of the Hub (text), of which only what is needed is downloaded."""

    def __init__(self, location: str | Path, revision: str | None = None, api: HfApi | None = None):
        self.location, self.revision, self.api = location, revision, api or client.default_api()
        if isinstance(self.location, Path) and not self.location.is_dir():
            raise UserError(f"{location} is not a folder; give a folder of results, or NAMESPACE/results of the Hub")

    def root(self, patterns: Sequence[str]) -> Path:
        if isinstance(self.location, Path):
            return self.location
        with asking(self.location):
            return Path(snapshot_download(
                self.location, repo_type="dataset", revision=self.revision, allow_patterns=list(patterns),
                endpoint=self.api.endpoint, token=self.api.token,
            ))  # fmt: skip

    def results(self, group: str = "*/*") -> tuple[dict[str, Result], list[str]]:
        """({folder: result} of a group of folders, a line for each that is refused)."""
        root = self.root([f"{group}/*/{RESULT}", "README.md"])  # a pattern that matches no file causes a warning
        results: dict[str, Result] = {}
        refused: list[str] = []
        for path in sorted(root.glob(f"{group}/*/{RESULT}")):
            folder = path.parent.relative_to(root).as_posix()
            try:
                result = read_result(path)
                if result.folder != folder:
                    raise UserError(f"{path}: its content belongs in the folder {result.folder}")
                results[folder] = result
            except UserError as error:
                refused.append(_without(root, error))
        return results, refused

    def submissions(self, folders: Sequence[str], results: dict[str, Result], refused: list[str]) -> list[Submission]:
        """Results with their records; those whose records are invalid move from `results` to `refused`."""
        if not folders:
            return []
        root, submissions = self.root([f"{folder}/*" for folder in folders]), []
        for folder in folders:
            try:
                submissions.append(read_submission(root / folder, folder))
            except UserError as error:
                del results[folder]
                refused.append(_without(root, error))
        return submissions


def _without(root: Path, error: UserError) -> str:
    """The message without the folder of the cache."""
    return str(error).replace(f"{root}/", "")


def sharing(results: dict[str, Result]) -> list[str]:
    """The folders that have a cell in common with another one."""
    holders: dict[str, list[str]] = {}
    for folder, result in results.items():
        for cell in result.cells:
            holders.setdefault(cell.cell_id, []).append(folder)
    shared = {folder for folders in holders.values() if len(folders) > 1 for folder in folders}
    return [folder for folder in results if folder in shared]


def contradictions(submissions: Sequence[Submission]) -> list[Contradiction]:
    """What each pair of submissions with common cells disagrees about."""
    return [
        Contradiction(
            **vars(conflict),
            submitters=(first.result.submitter, second.result.submitter),
            folders=(first.where, second.where),
        )
        for first, second in combinations(submissions, 2)
        if first.data.cell_ids & second.data.cell_ids
        for conflict in conflicts(first.data, second.data)
    ]


def _merged(results: dict[str, Result], contradictory: list[Contradiction]) -> list[dict]:
    """The cells of all, those over most samples first; each is joined to the first that it does not contradict."""
    conflicting = {(item.cell_id, frozenset(item.folders)) for item in contradictory}
    disputed = {item.cell_id for item in contradictory}
    entries: dict[str, list[tuple[dict, list[str]]]] = {}  # {cell id: [(row, folders that agree on it)]}
    for folder, result in sorted(results.items(), key=lambda item: -item[1].dataset.used):
        for cell in result.cells:
            known = entries.setdefault(cell.cell_id, [])
            for row, folders in known:
                if not any((cell.cell_id, frozenset((folder, other))) in conflicting for other in folders):
                    row["submitters"] = list(dict.fromkeys([*row["submitters"], result.submitter]))
                    folders.append(folder)
                    break
            else:
                known.append((_row(folder, result, cell, cell.cell_id in disputed), [folder]))
    rows = [row for known in entries.values() for row, _ in known]
    return sorted(rows, key=lambda row: (row["dataset"], row["model"], row["metric"], row["explainer"], row["source"]))


def shown_cells(result: Result | None) -> bytes:
    """`cells.parquet`: a row per cell of a submission, as its submitter says; None: a row that shows the columns."""
    columns = {name: kind for name, kind in FEATURES.items() if name not in ("submitters", "conflict")}
    features = datasets.Features(columns | {"submitter": datasets.Value("string")})
    rows = [dict.fromkeys(features) | {"explainer": NO_RESULT}]  # `datasets` loads no table without a row
    if result is not None:
        rows = [_row(result.folder, result, cell, False) | {"submitter": result.submitter} for cell in result.cells]
    with BytesIO() as buffer:
        pq.write_table(pa.Table.from_pylist(rows, schema=features.arrow_schema), buffer)
        return buffer.getvalue()


def _row(folder: str, result: Result, cell: CellResult, conflict: bool) -> dict:
    return {
        "cell_id": cell.cell_id,
        "dataset": result.dataset.id,
        "split": result.dataset.split,
        "fingerprint": result.dataset.fingerprint,
        "dataset_repo": result.dataset.repo,
        "dataset_revision": result.dataset.revision,
        "model": result.model.id,
        "model_repo": result.model.repo,
        "model_revision": result.model.revision,
        "digest": result.model.digest,
        "target": result.target,
        "precision": result.setting.precision,
        "seed": result.setting.seed,
        "explainer": cell.explainer_text,
        "explainer_version": str(cell.explainer_version),
        "baseline": cell.baseline,
        "metric": cell.metric_text,
        "metric_version": str(cell.metric_version),
        "higher_is_better": cell.higher_is_better,
        "value": cell.value,
        "low": cell.low,
        "high": cell.high,
        "n": cell.n,
        "clusters": cell.clusters,
        "rank": cell.ranks or cell.unranked,
        "samples": result.dataset.samples,
        "left_out": sum(cell.left_out.values()),
        "accuracy": result.model.accuracy.value,
        "submitters": [result.submitter],
        "conflict": conflict,
        "source": folder,
    }
