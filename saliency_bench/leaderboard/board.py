"""The board: all submissions to a results repository, merged by cell id.

    board = sb.load_results("saliency-bench/results")
    board.table().to_pandas()

A cell that several submit is shown once, with all who did, if they agree on every sample that they share (but for the
last digits); the one over most samples speaks for it. Values that contradict each other are all shown.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import datasets
from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

from saliency_bench.analysis.comparison import conflicts
from saliency_bench.errors import UserError
from saliency_bench.hub import client, errors
from saliency_bench.leaderboard.schema import RESULT, Result, Submission, read_result, read_submission
from saliency_bench.utils.messages import complain

REFUSALS = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled)
FEATURES = datasets.Features(
    {name: datasets.Value("string") for name in ("cell_id", "dataset", "split", "fingerprint", "model", "digest",
                                                 "target", "precision", "explainer", "explainer_version")}
    | {"seed": datasets.Value("int64"), "baseline": datasets.Value("bool"), "metric": datasets.Value("string"),
       "metric_version": datasets.Value("int64"), "higher_is_better": datasets.Value("bool")}
    | {name: datasets.Value("float64") for name in ("value", "low", "high", "accuracy")}
    | {"n": datasets.Value("int64"), "samples": datasets.Value("int64"), "left_out": datasets.Value("int64")}
    | {"submitters": datasets.List(datasets.Value("string")), "conflict": datasets.Value("bool")}
    | {"source": datasets.Value("string")}
)  # fmt: skip


@dataclass(frozen=True)
class Board:
    """What `load_results` found.

    cells       a row per cell and distinct value, with its interval, n, and `submitters`; `conflict` marks those whose
                values contradict each other; `source` is the folder of the submission that speaks for it
    conflicts   each pair of submissions that contradict each other on a cell: which, by whom, on how many samples
    refused     of each submission that is not as the schema says, a line that says why
    results     {folder: Result} of all others
    """

    cells: list[dict]
    conflicts: list[dict]
    refused: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)

    def table(self) -> datasets.Dataset:
        return datasets.Dataset.from_list(self.cells, features=FEATURES)

    def __str__(self) -> str:
        lines = [f"{len(self.cells)} cells of {len(self.results)} submissions, {len(self.conflicts)} conflicts"]
        return "\n".join([*lines, *map(conflict_line, self.conflicts)])


def load_results(place: str | Path, revision: str | None = None, *, records: bool = False) -> Board:
    """All submissions in a local folder, or in a dataset repository "NAMESPACE/results" of the Hub.

    revision: a branch, commit or pull request ("refs/pr/1") of the repository. records: read and check the records of
    all submissions; by default only of those that share a cell, to see whether they contradict each other.
    A submission that is not as the schema says is left out and named, on standard error and in `refused`.
    Raises: UserError for a place that holds none, or a Hub that cannot be reached.
    """
    local = isinstance(place, Path) or Path(place).expanduser().is_dir()
    source = Source(Path(place).expanduser() if local else str(place), revision)
    found, refused = source.results()
    if not found and not refused and isinstance(source.place, Path):
        raise UserError(f"{place} holds no results (DATASET/MODEL/SUBMITTER/{RESULT})")
    disputes = contradictions(source.whole(list(found) if records else sharing(found), found, refused))
    for line in refused:
        complain(f"left out: {line}")
    return Board(_merged(found, disputes), disputes, refused, found)


@contextmanager
def asking(repo: str) -> Iterator[None]:
    """Inside, what the Hub refuses or the network loses becomes one line that says how to mend it; no bars."""
    try:
        with client.no_bars():
            yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, LocalEntryNotFoundError) and errors.status_of(error) is None:
            raise UserError(f"{repo} was not loaded before, and the Hub cannot be reached; try again later") from error
        if isinstance(error, REFUSALS) or errors.is_network_error(error):
            errors.refuse(error, repo, get_token())
        raise


class Source:
    """Where results lie: a folder (a path), or a repository (text), of which only what is needed is loaded."""

    def __init__(self, place: str | Path, revision: str | None = None, api: HfApi | None = None):
        self.place, self.revision, self.api = place, revision, api or client.default_api()
        if isinstance(self.place, Path) and not self.place.is_dir():
            raise UserError(f"{place} is no folder; give a folder of results, or NAMESPACE/results of the Hub")

    def root(self, patterns: Sequence[str]) -> Path:
        if isinstance(self.place, Path):
            return self.place
        with asking(self.place):
            return Path(snapshot_download(
                self.place, repo_type="dataset", revision=self.revision, allow_patterns=list(patterns),
                endpoint=self.api.endpoint, token=self.api.token,
            ))  # fmt: skip

    def results(self, group: str = "*/*") -> tuple[dict[str, Result], list[str]]:
        """({folder: result} of a group of folders, why others are refused)."""
        root = self.root([f"{group}/*/{RESULT}", "README.md"])  # a pattern without any file would be complained about
        found: dict[str, Result] = {}
        refused: list[str] = []
        for path in sorted(root.glob(f"{group}/*/{RESULT}")):
            folder = path.parent.relative_to(root).as_posix()
            try:
                found[folder] = read_result(path)
                if found[folder].folder != folder:
                    raise UserError(f"{path}: its content belongs into the folder {found[folder].folder}")
            except UserError as error:
                found.pop(folder, None)
                refused.append(_told(error, root))
        return found, refused

    def whole(self, folders: Sequence[str], found: dict[str, Result], refused: list[str]) -> list[Submission]:
        """With their records; those that are not as they should be go from `found` to `refused` instead."""
        if not folders:
            return []
        root, read = self.root([f"{folder}/*" for folder in folders]), []
        for folder in folders:
            try:
                read.append(read_submission(root / folder, folder))
            except UserError as error:
                del found[folder]
                refused.append(_told(error, root))
        return read


def _told(error: UserError, root: Path) -> str:
    """Without the folder of the cache, and without signs that would drive a terminal: the words are a stranger's."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(error).replace(f"{root}/", ""))


def sharing(found: dict[str, Result]) -> list[str]:
    """The folders that have a cell in common with another one."""
    holders: dict[str, list[str]] = {}
    for folder, result in found.items():
        for cell in result.cells:
            holders.setdefault(cell.cell_id, []).append(folder)
    shared = {folder for folders in holders.values() if len(folders) > 1 for folder in folders}
    return [folder for folder in found if folder in shared]


def contradictions(submissions: Sequence[Submission]) -> list[dict]:
    """What each pair with common cells disagrees about, as `comparing.conflicts` gives it, and who they are."""
    ids = [{cell.cell_id for cell in one.result.cells} for one in submissions]
    return [
        conflict | {"submitters": [one.result.submitter, two.result.submitter], "folders": [one.where, two.where]}
        for (first, one), (second, two) in combinations(enumerate(submissions), 2)
        if ids[first] & ids[second]
        for conflict in conflicts(one.data, two.data)
    ]


def conflict_line(conflict: dict) -> str:
    values = ["none" if value is None else f"{value:.6g}" for value in conflict["values"]]
    sides = " and ".join(
        f"{value} by {who} (n = {n})"
        for value, who, n in zip(values, conflict["submitters"], conflict["n"], strict=True)
    )
    return f"conflict: {conflict['explainer']} by {conflict['metric']} ({conflict['cell_id']}): {sides}"


def _merged(found: dict[str, Result], disputes: list[dict]) -> list[dict]:
    """The cells of all, those over most samples first; each is joined to the first that it does not contradict."""
    conflicting = {(one["cell_id"], frozenset(one["folders"])) for one in disputes}
    disputed = {one["cell_id"] for one in disputes}
    rows: dict[str, list[tuple[dict, list[str]]]] = {}
    for folder, result in sorted(found.items(), key=lambda item: -item[1].dataset.used):
        for cell in result.cells:
            here = rows.setdefault(cell.cell_id, [])
            for row, members in here:
                if not any((cell.cell_id, frozenset((folder, member))) in conflicting for member in members):
                    row["submitters"] = list(dict.fromkeys([*row["submitters"], result.submitter]))
                    members.append(folder)
                    break
            else:
                here.append((_row(folder, result, cell, cell.cell_id in disputed), [folder]))
    merged = [row for here in rows.values() for row, _ in here]
    return sorted(
        merged, key=lambda row: (row["dataset"], row["model"], row["metric"], row["explainer"], row["source"])
    )


def _row(folder: str, result: Result, cell, conflict: bool) -> dict:
    return {
        "cell_id": cell.cell_id,
        "dataset": result.dataset.id,
        "split": result.dataset.split,
        "fingerprint": result.dataset.fingerprint,
        "model": result.model.id,
        "digest": result.model.digest,
        "target": result.target,
        "precision": result.setting.precision,
        "seed": result.setting.seed,
        "explainer": cell.explainer_text,
        "explainer_version": str(cell.explainer_version),
        "baseline": cell.baseline,
        "metric": cell.metric_text,
        "metric_version": cell.metric_version,
        "higher_is_better": cell.higher_is_better,
        "value": cell.value,
        "low": cell.low,
        "high": cell.high,
        "n": cell.n,
        "samples": result.dataset.samples,
        "left_out": sum(cell.left_out.values()),
        "accuracy": result.model.accuracy.value,
        "submitters": [result.submitter],
        "conflict": conflict,
        "source": folder,
    }
