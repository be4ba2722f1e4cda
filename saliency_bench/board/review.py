"""Review the pull request of a submission: check its author, the changed files, and the added submissions.

Nothing in a pull request is executed. Only submission files are downloaded, and only after their sizes have been
checked.
"""

from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import HfApi, RepoFile
from huggingface_hub.community import DiscussionWithDetails

from saliency_bench.board import copies
from saliency_bench.board.board import contradictions
from saliency_bench.board.checks import CheckedSubmission
from saliency_bench.board.hub_table import rewrite
from saliency_bench.board.index import write_index
from saliency_bench.board.known import Known
from saliency_bench.board.published_maps import SHARD, stated_names
from saliency_bench.board.source import BoardSource, asking, read_folder
from saliency_bench.board.submission import LARGEST, most_bytes, too_much
from saliency_bench.board.submission_schema import RECORDS, RESULT, Result
from saliency_bench.errors import UserError, one_line
from saliency_bench.hub import client
from saliency_bench.read.summary import table

SHOWN = 10  # maximum number of problems, and of notes, that are printed


@dataclass(frozen=True)
class ReviewVerdict:
    """The verdict on a pull request.

    Attributes:
        commit: The reviewed commit. Later commits were not reviewed.
        problems: Reasons why the pull request must not be merged. Empty if it may be merged.
        notes: Additional information for the reviewer.
        submissions: The valid submissions.
    """

    repo: str
    number: int
    author: str
    commit: str
    folders: list[str]
    problems: list[str]
    notes: list[str]
    submissions: list[CheckedSubmission] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        """Return whether the pull request may be merged."""
        return not self.problems

    def lines(self) -> list[str]:
        """Return the verdict as printable lines. Each untrusted text is kept on a single line."""
        head = f"pull request {self.number} of {self.repo} by {self.author}, commit {self.commit[:12]}"
        word = "may be merged" if self.fine else "must not be merged"
        lines = [f"{head}: {word}", *(f"- {one_line(problem, 500)}" for problem in self.problems[:SHOWN])]
        if (more := len(self.problems) - SHOWN) > 0:
            lines.append(f"- and {more} more")
        lines += [f"note: {one_line(note, 500)}" for note in self.notes[:SHOWN]]
        for submission in self.submissions:
            lines += ["", *table(submission.cells, submission.result.dataset.used).splitlines()]
        return lines

    def markdown(self) -> str:
        """Return the verdict as a Markdown comment. Its code block cannot be closed by the untrusted content inside."""
        text = "\n".join(self.lines()).replace("```", "'''")
        return f"```text\n{text}\n```\n"

    def as_dict(self) -> dict:
        """Return the verdict as a dict for `--json`."""
        names = ("repo", "number", "author", "commit", "folders", "problems", "notes")
        return {name: getattr(self, name) for name in names} | {"fine": self.fine}


def review(repo: str, number: int, api: HfApi | None = None) -> ReviewVerdict:
    """Review a pull request to a results repository.

    A pull request may be merged if its author is the submitter, it adds only submission files, and each submission is
    valid.

    Raises:
        UserError: There is no open pull request with this number, or the Hub cannot be reached.
    """
    api = api or client.default_api()
    with asking(repo):
        pull = api.get_discussion_details(repo, number, repo_type="dataset")
        if not pull.is_pull_request or pull.status not in ("open", "draft"):
            state = f"{pull.status}, not open" if pull.is_pull_request else "a discussion, not a pull request"
            raise UserError(f"number {number} of {repo} is {state}")
        files = _pulled(api, repo, number)
    folders, problems = _touched(files)
    if problems:
        return ReviewVerdict(repo, number, pull.author, files.commit, folders, problems, [])
    return _verdict(repo, pull, files, folders, api)


def review_folder(board: Path) -> list[tuple[str, list[str]]]:
    """Check all submissions of a local board, and write the board's index.

    Returns:
        [(folder of the submission, problems)], sorted by folder.

    Raises:
        UserError: The folder contains no submissions, or files written by the board's owner are invalid.
    """
    _, problems = Known.read(board)
    if problems:
        raise UserError(problems[0])
    _, folders = BoardSource(board).folders()
    if not folders:
        raise UserError(f"{board} contains no submissions; add one with `saliency-bench submit RUN --to {board}`")
    refused = {item.folder: item.line for item in write_index(board).refused}
    return [(folder, [refused[folder]] if folder in refused else []) for folder in folders]


def open_pulls(repo: str, api: HfApi | None = None) -> list[int]:
    """Return the numbers of the open pull requests. Raise UserError if the repository cannot be read."""
    api = api or client.default_api()
    with asking(repo):
        pulls = api.get_repo_discussions(
            repo, repo_type="dataset", discussion_type="pull_request", discussion_status="open"
        )
        return sorted(pull.num for pull in pulls)


def comment(verdict: ReviewVerdict, api: HfApi | None = None) -> None:
    """Post a verdict as a comment, unless it was already posted. Raise UserError if the account is not allowed to."""
    api = api or client.default_api()
    with asking(verdict.repo):
        events = api.get_discussion_details(verdict.repo, verdict.number, repo_type="dataset").events
        if not any(getattr(event, "content", None) == verdict.markdown() for event in events):
            api.comment_discussion(verdict.repo, verdict.number, verdict.markdown(), repo_type="dataset")


def merge(verdict: ReviewVerdict, api: HfApi | None = None) -> None:
    """Merge an accepted pull request at the reviewed commit.

    The Hub merges the current content of a pull request. Therefore, this content is compared with the reviewed commit
    just before and just after merging.

    Raises:
        UserError: The pull request must not be merged, or has changed since the review. A change may be detected only
            after merging.
    """
    api, repo = api or client.default_api(), verdict.repo
    if not verdict.fine:
        raise UserError(f"pull request {verdict.number} of {repo} must not be merged")
    with asking(repo):
        pull = _pulled(api, repo, verdict.number)
        if pull.commit != verdict.commit:
            raise UserError(f"pull request {verdict.number} of {repo} has changed since the review; review it again")
        added = {path: file for path, file in pull.after.items() if path not in pull.before}
        expected = _files(api, repo, "main") | added
        api.merge_pull_request(repo, verdict.number, repo_type="dataset")
        merged = _files(api, repo, "main")
    # Compare all files of main, because a merge with a forged history can delete files that nobody reviewed.
    strange = [path for path in expected.keys() | merged.keys() if _blob(merged, path) != _blob(expected, path)]
    if strange:
        raise UserError(
            f"pull request {verdict.number} of {repo} was merged, but {one_line(min(strange))} on main differs from "
            "the reviewed file: the file changed in between, or the pull request has a forged history; inspect the "
            "last commits of main and revert them"
        )
    with asking(repo):
        rewrite(repo, api)


@dataclass(frozen=True)
class _Pull:
    """The files of a pull request.

    Attributes:
        commit: Last commit of the pull request.
        before: Files on main at the commit that the pull request is based on.
        now: Current files on main.
        after: Files in the pull request.
    """

    commit: str
    before: dict[str, RepoFile]
    now: dict[str, RepoFile]
    after: dict[str, RepoFile]


def _blob(files: dict[str, RepoFile], path: str) -> str | None:
    return files[path].blob_id if path in files else None


def _pulled(api: HfApi, repo: str, number: int) -> _Pull:
    """Return the files of a pull request. Raise UserError if it does not consist of commits on top of main."""
    history, main = (
        [entry.commit_id for entry in api.list_repo_commits(repo, repo_type="dataset", revision=revision)]
        for revision in (f"refs/pr/{number}", "main")
    )
    # The commits, newest first, must be the commits of the pull request, then the commits of main up to its base. Any
    # other history, such as a merge of two states of main, could hide changes from a comparison with one state.
    base = next((commit for commit in history if commit in main), None)
    if base is None or history[history.index(base) :] != main[main.index(base) :]:
        raise UserError(
            f"pull request {number} of {repo} is not based on the main branch of the repository; submit it again"
        )
    return _Pull(history[0], *(_files(api, repo, revision) for revision in (base, main[0], history[0])))


def _files(api: HfApi, repo: str, revision: str) -> dict[str, RepoFile]:
    tree = api.list_repo_tree(repo, repo_type="dataset", revision=revision, recursive=True)
    return {file.path: file for file in tree if isinstance(file, RepoFile)}


def _touched(pull: _Pull) -> tuple[list[str], list[str]]:
    """Return (folders of the added submissions, a message for each change that is not allowed)."""
    before, after = pull.before, pull.after
    problems = [f"the pull request deletes {path}" for path in sorted(before.keys() - after.keys())]
    changed = (path for path in sorted(before.keys() & after.keys()) if _blob(before, path) != _blob(after, path))
    problems += [f"the pull request changes {path}" for path in changed]
    added = sorted(after.keys() - before.keys())
    problems += [f"the pull request adds {path}, which already exists on main" for path in added if path in pull.now]
    folders = sorted({folder for folder, _, name in (path.rpartition("/") for path in added) if name == RESULT})
    if not folders:
        return [], [*problems, f"the pull request adds no {RESULT}"]
    if many := too_much({}, len(folders)):
        return [], [*problems, *many]
    for path in added:
        folder = path.rpartition("/")[0]
        if folder not in folders or folder.count("/") != 2 or most_bytes(path) is None:
            problems.append(f"the pull request adds {path}, which is not a file of a submission")
    problems += too_much({path: after[path].size for path in added}, len(folders))
    missing = [f"{folder}/{RECORDS}" for folder in folders if f"{folder}/{RECORDS}" not in added]
    return folders, problems + [f"the pull request adds no {path}" for path in missing]


def _verdict(repo: str, pull: DiscussionWithDetails, files: _Pull, folders: list[str], api: HfApi) -> ReviewVerdict:
    """Download and check the submissions in these folders of a pull request, and return the verdict."""
    commit = files.commit
    source = BoardSource(repo, commit, api)
    owners, problems = BoardSource(repo, "main", api).known()
    verdict = ReviewVerdict(
        repo, pull.num, pull.author, commit, folders, [], [f"on the main branch: {line}" for line in problems]
    )
    root = source.root([f"{folder}/{name}" for folder in folders for name in LARGEST])
    for folder in folders:
        try:
            _, submission = read_folder(root, folder, owners)
        except UserError as error:
            verdict.problems.append(str(error))
            continue
        if (submitter := submission.result.submitter) != pull.author:
            verdict.problems.append(f"the author is {pull.author}, but the submitter in {RESULT} is {submitter}")
        verdict.problems.extend(_other_maps(submission.result, files.after))
        verdict.notes.extend(_notes(submission, owners, repo, api))
        verdict.submissions.append(submission)
    return verdict


def _other_maps(result: Result, files: dict[str, RepoFile]) -> list[str]:
    """Return a message for each map file that contradicts the result. The map files are not downloaded for this."""
    stated = {f"{result.folder}/{name}": digest for name, digest in stated_names(result.maps).items()}
    added = {
        path: file for path, file in files.items()
        if path.startswith(f"{result.folder}/") and SHARD.fullmatch(path.rpartition("/")[2])
    }  # fmt: skip
    lines = [f"the pull request adds no {path}, which {RESULT} lists" for path in stated if path not in added]
    lines += [f"the pull request adds {path}, which {RESULT} does not list" for path in added if path not in stated]
    # The Hub stores the SHA-256 of large files only. Small files are compared before they are scored or displayed.
    return lines + [
        f"{path} is not the file that {RESULT} lists: its SHA-256 differs"
        for path, file in added.items()
        if path in stated and file.lfs is not None and file.lfs.sha256 != stated[path]
    ]


def _notes(submission: CheckedSubmission, owners: Known, repo: str, api: HfApi) -> list[str]:
    """Return notes for the reviewer.

    The notes list cells that contradict the board or are already on it, and data that cannot be compared with the
    board's data.
    """
    setting = submission.result.setting
    lines = []
    if (setting.fingerprint, setting.split) not in owners.datasets:
        lines.append(
            f"the board does not list the dataset {submission.result.dataset.id} yet, so image ids and groups were not "
            "compared with published values; run `saliency-bench recompute` to list it"
        )
    published = list(BoardSource(repo, "main", api).beside(submission.result))
    lines += [str(conflict) for other in published for conflict in contradictions(other, submission)]
    return lines + copies.notes(submission, published)
