"""Submit a run or precomputed maps to a results repository, as a pull request.

Cells that the repository already contains with the same values are not sent again. Cells with different values are
reported and sent.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import CommitOperationAdd, DatasetInfo, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from jinja2 import Template

from saliency_bench.board.board import Contradiction, contradictions
from saliency_bench.board.checks import CheckedSubmission
from saliency_bench.board.copies import covers
from saliency_bench.board.hub_table import NO_RESULT, ROWS, table_of
from saliency_bench.board.published_maps import PUBLISHED, hashes_of, shards_in
from saliency_bench.board.recorded import MOST_ROWS
from saliency_bench.board.source import BoardSource, asking
from saliency_bench.board.standing import ScoredCell
from saliency_bench.board.submission import Submission, of_run, too_much
from saliency_bench.board.submission_schema import FORMAT, LICENSE, RECORDS, RESULT, SCHEMA, json_schema
from saliency_bench.data.card import template_file
from saliency_bench.data.dataset_names import NAMESPACE
from saliency_bench.errors import UserError
from saliency_bench.hub import client, failures
from saliency_bench.hub.upload_plan import Publication, size
from saliency_bench.read import records
from saliency_bench.read.cell import CellResult
from saliency_bench.read.finished_run import Run
from saliency_bench.read.summary import table
from saliency_bench.utils.files import write_with
from saliency_bench.utils.messages import counted

EMPTY = "columns"  # folder of tables with columns but no results
NOBODY = "you"  # name of the submitter in a dry run without login


@dataclass
class SubmissionPlan:
    """Plan of a submission. `publish()` executes the plan.

    Attributes:
        private: Whether the repository is or will be private.
        create: Whether the repository will be created.
        bare: Whether to add a card. This is true if the repository is new, or if it belongs to the account and has no
            card.
        rights: Write permission of the submitting account.
        new: Cells that the repository does not contain, or contains only with fewer samples.
        known: Cells that the repository already contains with the same values. These cells are not sent.
        conflicts: New cells for which the repository contains different values. Both values are kept.
        maps: Folder with maps that are published together with the scores.
        pending: URL of an open pull request with exactly these cells.
        pull_request: URL of the new pull request, or the folder of the submission on a local board.
        api: `HfApi` client for the submitting account.
        board: Folder of a local board. The files are written there, and no pull request is opened.
    """

    repo: str
    private: bool
    create: bool
    bare: bool
    rights: client.Rights
    submission: Submission
    new: list[CellResult]
    known: list[CellResult]
    conflicts: list[Contradiction]
    maps: Path | None = None
    pending: str | None = None
    pull_request: str | None = None
    api: HfApi = field(default_factory=client.default_api, repr=False)
    board: Path | None = None

    @property
    def nothing(self) -> bool:
        """Return whether there is nothing left to send."""
        return not self.new or self.pending is not None

    @cached_property
    def sent(self) -> Submission:
        """Return a submission that contains only the new cells."""
        return self.submission.only({cell.cell_id for cell in self.new})

    @cached_property
    def files(self) -> dict[str, bytes | Path]:
        """Return {path: content or local path} for the files of the new or pending pull request."""
        if not self.new:
            return {}
        with TemporaryDirectory() as folder:
            written = self.sent.write(Path(folder))
            files: dict[str, bytes | Path] = {
                path.relative_to(folder).as_posix(): path.read_bytes() for path in written
            }
        shards = shards_in(self.maps) if self.maps else []
        return files | {f"{self.sent.result.folder}/{path.name}": path for path in shards}

    @property
    def sizes(self) -> dict[str, int]:
        """{path: size in bytes} of `files`."""
        return {path: content.stat().st_size if isinstance(content, Path) else len(content)
                for path, content in self.files.items()}  # fmt: skip

    def lines(self, *, several: bool = False) -> list[str]:
        """Describe the plan.

        Args:
            several: Whether the pull request also contains other runs, which have already been described.
        """
        lines: list[str] = []
        if self.known:
            lines += [_already(len(self.known), self.repo)]
            lines += map(_line, self.known)
        lines += map(str, self.conflicts)
        if self.pending:
            return [*lines, f"{'the rest' if self.known else 'this'} is already proposed: {self.pending}"]
        if not self.new:
            return [*lines, "nothing to submit"]
        visibility = "private" if self.private else "public"
        head = [f"create the {visibility} dataset {self.repo}"] if self.create else []
        head += [f"pull request to the {visibility} dataset {self.repo}, by {self.submission.result.submitter}:"]
        head += [f"  licence: {LICENSE}, to which you agree by submitting"]
        head += [] if self.rights.may else [f"  {self.rights.line}"]
        if self.board is not None:
            made = [f"create the board {self.board}"] * self.create
            head = [*made, f"add to the board {self.board}, by {self.submission.result.submitter}:"]
        lines += [f"in the same pull request, {self.submission.where}:"] if several else head
        lines += map(_line, self.new)
        return lines + [f"  + {path}  {size(count)}" for path, count in self.sizes.items()]

    def description(self) -> str:
        """Return the text of the pull request as Markdown. Scores, note, link and command are in code blocks."""
        result = self.sent.result
        parts = {"": "\n".join([*self.lines(), "", table(result.cells, result.dataset.used)])}
        parts |= {"Note": result.note, "Code or paper": result.link, "Command": result.command}
        blocks = [(f"{title}:\n\n" if title else "") + f"```text\n{text.replace('```', chr(39) * 3)}\n```\n"
                  for title, text in parts.items() if text]  # fmt: skip
        return "\n".join(blocks)

    def as_dict(self) -> dict:
        """Return the plan as a dict for `--json`."""
        return {
            "repo": self.repo,
            "private": self.private,
            "may_submit": self.rights.may,
            "license": LICENSE,
            "create": self.create,
            "submitter": self.submission.result.submitter,
            "new": list(map(_about, self.new)),
            "known": list(map(_about, self.known)),
            "conflicts": [item.as_dict() for item in self.conflicts],
            "files": {} if self.nothing else self.sizes,
            "pull_request": self.pull_request or self.pending,
        }

    def publish(self) -> str | None:
        """Open the pull request and return its URL, or None if there is nothing to send."""
        return propose([self])

    def write_card(self) -> None:
        """Add the card, the schema and the example tables to the repository."""
        self.api.create_commit(
            self.repo,
            [CommitOperationAdd(path, content) for path, content in board_files(self.repo).items()],
            repo_type="dataset",
            commit_message="Add the dataset card",
        )

    def title(self) -> str:
        """Return the title of the pull request."""
        result, explainers = self.submission.result, dict.fromkeys(cell.explainer_text for cell in self.new)
        names = ", ".join(list(explainers)[:3]) + (" ..." if len(explainers) > 3 else "")
        return f"{counted(len(self.new), 'cell')}: {names} on {result.dataset.id} with {result.model.id}"


def board_files(repo: str) -> dict[str, bytes]:
    """Return the files that a results repository contains before the first submission.

    The tables contain a placeholder row, because the Hub does not display empty tables.
    """
    row = dict.fromkeys(records.SCHEMA.names) | {"reason": NO_RESULT}
    with BytesIO() as buffer:
        pq.write_table(pa.Table.from_pylist([row], schema=records.SCHEMA), buffer)
        return {
            "README.md": card(repo).encode(),
            SCHEMA: (json.dumps(json_schema(), indent=2) + "\n").encode(),
            ROWS: table_of(None),  # replaced when the owner merges or recomputes a submission
            f"{EMPTY}/{RECORDS}": buffer.getvalue(),
        }


def board_publication(namespace: str) -> Publication:
    """Return the publication that creates the results repository in a namespace."""
    repo = f"{namespace}/results"
    return Publication("dataset", repo, dict(board_files(repo)), LICENSE, mark=(SCHEMA, ""), first=(ROWS,))


def check_sizes(plans: Sequence[SubmissionPlan]) -> None:
    """Raise UserError if the review would reject the pull request because of its size."""
    sent = [plan for plan in plans if not plan.nothing]
    sizes = {path: size for plan in sent for path, size in plan.sizes.items()}
    if problems := too_much(sizes, len(sent)):
        raise UserError(f"nothing was sent: {problems[0]}; submit fewer runs at a time")
    for plan in sent:
        if (rows := len(plan.submission.records)) > MOST_ROWS:
            where = f"{RECORDS} of {plan.submission.where}"
            raise UserError(f"{where} has {rows:,} rows, more than the limit of {MOST_ROWS:,} for a board")


def propose(plans: Sequence[SubmissionPlan]) -> str | None:
    """Open one pull request with all submissions and return its URL, or None if there is nothing to send.

    For a local board, write the submissions into the board's folder and return this folder.
    """
    sent = [plan for plan in plans if not plan.nothing]
    if not sent:
        return None
    check_sizes(sent)
    first = sent[0]
    if first.board is not None:
        return _write(sent, first.board)
    if first.submission.result.submitter == NOBODY:
        raise UserError(client.LOGIN)
    title = f"{first.title()} and {len(sent) - 1} more" if len(sent) > 1 else first.title()
    with asking(first.repo):
        if first.create:
            first.api.create_repo(first.repo, repo_type="dataset", private=first.private, exist_ok=True)
        if first.bare:
            first.write_card()
        commit = first.api.create_commit(
            first.repo,
            [CommitOperationAdd(path, content) for plan in sent for path, content in plan.files.items()],
            repo_type="dataset",
            commit_message=title,
            commit_description="\n".join(plan.description() for plan in sent),
            create_pr=True,
        )
    for plan in sent:
        plan.pull_request = commit.pr_url
    return commit.pr_url


def _write(plans: Sequence[SubmissionPlan], board: Path) -> str:
    if plans[0].create:
        for path, made in board_files(board.name).items():
            write_with(board / path, partial(_copy, made))
    for plan in plans:
        files = plan.files
        place = board / plan.sent.result.folder
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place.parent, prefix=".") as temporary:
            folder = Path(temporary) / place.name
            folder.mkdir()
            for path, content in files.items():
                _copy(content, folder / PurePosixPath(path).name)
            folder.rename(place)
        plan.pull_request = str(place)
    return str(board)


def _copy(content: bytes | Path, path: Path) -> None:
    path.write_bytes(content.read_bytes() if isinstance(content, Path) else content)


def runs_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return (finished runs, unfinished runs) in the folder of a run or of a suite that contains runs.

    Raises:
        UserError: The folder is a suite without a finished run.
    """
    if not is_suite(folder):
        return [folder], []
    runs = sorted(path for path in (folder / "runs").iterdir() if path.is_dir())
    finished = [path for path in runs if (path / "summary.json").is_file()]
    if not finished:
        raise UserError(f"{folder} contains no finished run; run the suite again")
    return finished, [path for path in runs if path not in finished]


def is_suite(folder: Path) -> bool:
    """Return whether a folder is a suite, which contains runs but is not itself a run."""
    return (folder / "runs").is_dir() and not (folder / "summary.json").is_file()


def _already(count: int, repo: str) -> str:
    are, they = ("is", "it is") if count == 1 else ("are", "they are")
    return f"{counted(count, 'cell')} {are} already in {repo} with the same values, so {they} not sent:"


def _line(cell: CellResult) -> str:
    value = f"no value ({cell.without})" if cell.value is None else f"{cell.value:.3f}"
    return f"  {cell.explainer_text} by {cell.metric_text}: {value}, n = {cell.n}"


def _about(cell: CellResult) -> dict:
    names = {"explainer": cell.explainer_text, "metric": cell.metric_text}
    return {"cell_id": cell.cell_id, **names, "value": cell.value, "n": cell.n}


def card(repo: str) -> str:
    """Return the README of a results repository."""
    template = Template(template_file("results.md.j2").read_text(encoding="utf-8"), keep_trailing_newline=True)
    names = {"result": RESULT, "rows": ROWS, "records": RECORDS, "empty": EMPTY}
    return template.render(repo=repo, format=FORMAT, license=LICENSE, **names)


def plan(
    run: str | Path,
    *,
    namespace: str = NAMESPACE,
    private: bool = False,
    note: str = "",
    link: str = "",
    with_maps: bool = False,
    dry_run: bool = False,
    api: HfApi | None = None,
    read: Callable[..., Submission] = of_run,
) -> SubmissionPlan:
    """Plan the submission of a finished run to `namespace`/results, without changing anything on the Hub.

    Args:
        run: Folder of the run.
        namespace: Namespace of the results repository.
        private: Whether to make the repository private if it must be created.
        note: Short note for readers.
        link: URL (https) of the code or paper.
        with_maps: Whether to publish the maps that `score_maps` has written into the folder.
        dry_run: If true, only compare the run with what is already published. This requires neither a login nor a
            connection.
        api: `HfApi` client for the submitting account. Defaults to the logged-in account.
        read: Function that creates the submission. Use `of_upload` for untrusted runs.

    Raises:
        UserError: The folder contains no finished run, or the Hub rejects the submission.
    """
    repo, api = f"{namespace}/results", api or client.default_api()
    maps = Path(run) / PUBLISHED if with_maps else None
    submission = read(
        run, NOBODY, note, link
    )  # called first, so that errors in the run are reported before errors from the Hub
    if maps is not None:
        submission = replace(submission, result=submission.result.model_copy(update={"maps": hashes_of(maps)}))
    try:
        account, info = _account(api, repo, dry_run), _info(api, repo)
    except UserError as error:
        if not (dry_run and failures.is_network_error(error)):
            raise
        rights = client.Rights(
            None,
            "the Hub cannot be reached, so the run was not compared with the board and your permissions were not "
            "checked",
        )
        proposed = SubmissionPlan(
            repo, private, False, False, rights, submission, submission.result.cells, [], [], maps, api=api
        )
        check_sizes([proposed])
        return proposed
    rights = _rights(account, repo, info)
    if rights.may is False and not dry_run:
        raise UserError(rights.line)
    if account is not None:
        submission = replace(submission, result=submission.result.model_copy(update={"submitter": account.name}))
    if info is not None and private and not info.private:
        raise UserError(f"{repo} exists and is public; remove --private, or choose a different --namespace")
    is_private = private if info is None else bool(info.private)
    ours = account is not None and account.refusal(repo) is None
    bare = info is None or (ours and "README.md" not in {file.rfilename for file in info.siblings or ()})
    proposed = SubmissionPlan(repo, is_private, info is None, bare, rights, submission, [], [], [], maps, api=api)
    _sort_cells(proposed, None if info is None else info.sha)
    check_sizes([proposed])
    if info is not None and proposed.new and account is not None:
        proposed.pending = _pending(proposed, account.name)
    return proposed


def plan_for_folder(
    run: str | Path, board: str | Path, by: str, *, note: str = "", link: str = "", with_maps: bool = False
) -> SubmissionPlan:
    """Plan the submission of a finished run to a local board. `publish` creates the board's folder if it is missing.

    Args:
        run: Folder of the run.
        board: Folder of the board.
        by: Name of the submitter.
        note: Short note for readers.
        link: URL (https) of the code or paper.
        with_maps: Whether to publish the maps that `score_maps` has written into the run's folder.

    Raises:
        UserError: The folder is not a board, or the run cannot be read.
    """
    board = Path(board).expanduser()
    maps = Path(run) / PUBLISHED if with_maps else None
    submission = of_run(run, by, note, link)
    if maps is not None:
        submission = replace(submission, result=submission.result.model_copy(update={"maps": hashes_of(maps)}))
    create = not board.exists() or (board.is_dir() and not any(board.iterdir()))
    if not create and not (board / SCHEMA).is_file():
        raise UserError(f"{board} is not a board, because it has no {SCHEMA}; specify a new folder with --to")
    rights = client.Rights(True, "")
    proposed = SubmissionPlan(str(board), False, create, False, rights, submission, [], [], [], maps, board=board)
    _sort_cells(proposed, None if create else "")
    check_sizes([proposed])
    return proposed


def _account(api: HfApi, repo: str, dry_run: bool) -> client.Account | None:
    """Return the submitting account, or None for a dry run without login."""
    if client.token_of(api) is None:
        if dry_run:
            return None
        raise UserError(client.LOGIN)
    with asking(repo):
        return client.account(api)


def _rights(account: client.Account | None, repo: str, info: DatasetInfo | None) -> client.Rights:
    """Return whether an account may submit, and the reason if it may not.

    Anyone with a write token may submit to a public repository. Only the owner of the namespace may create the
    repository.
    """
    if account is None:
        return client.Rights(None, "write access not checked: you are not logged in")
    if account.read_only:
        return client.Rights(False, f"{account.name} may not submit to {repo} {client.READ_ONLY}")
    refusal = account.refusal(repo)
    if info is None and refusal:
        if account.role(repo):
            return client.Rights(False, refusal)
        yours = " or ".join(name for name in account.roles if account.refusal(f"{name}/results") is None)
        return client.Rights(
            False,
            f"cannot submit to {repo}: it does not exist, or is private; check --namespace (your namespaces: {yours})",
        )
    return client.Rights(True, f"{account.name} may submit")


def _info(api: HfApi, repo: str) -> DatasetInfo | None:
    with asking(repo):
        try:
            return api.dataset_info(repo)
        except RepositoryNotFoundError:
            return None
    return None


def _sort_cells(proposed: SubmissionPlan, revision: str | None) -> None:
    """Compare the cells with the repository, sample by sample, and fill in `new`, `known` and `conflicts`."""
    ours = proposed.submission.checked
    published = [] if revision is None else _published(proposed, revision)
    for cell in ours.cells:
        others = [other for other in published if cell.cell_id in other.recorded.outcomes]
        is_published = any(covers(ScoredCell(other, cell), ScoredCell(ours, cell)) for other in others)
        (proposed.known if is_published else proposed.new).append(cell)
    new = {cell.cell_id for cell in proposed.new}
    conflicts = [conflict for other in published for conflict in contradictions(other, ours)]
    proposed.conflicts = [conflict for conflict in conflicts if conflict.cell_id in new]


def _published(proposed: SubmissionPlan, revision: str) -> list[CheckedSubmission]:
    result = proposed.submission.result
    ids = {cell.cell_id for cell in result.cells}
    beside = BoardSource(proposed.board or proposed.repo, revision, proposed.api).beside(result)
    return [other for other in beside if ids & {cell.cell_id for cell in other.cells}]


def _pending(proposed: SubmissionPlan, author: str) -> str | None:
    """Return the URL of an open pull request by this author that contains exactly these cells, or None."""
    paths = list(proposed.files)
    with asking(proposed.repo):
        for pull in proposed.api.get_repo_discussions(
            proposed.repo, author=author, discussion_type="pull_request", discussion_status="open", repo_type="dataset"
        ):
            present = proposed.api.get_paths_info(
                proposed.repo, paths, revision=f"refs/pr/{pull.num}", repo_type="dataset"
            )
            if len(present) == len(paths):
                return f"{client.shown_endpoint(proposed.api)}/datasets/{proposed.repo}/discussions/{pull.num}"
    return None


def submit(
    run: Run | str | Path,
    *,
    namespace: str = NAMESPACE,
    name: str | None = None,
    private: bool = False,
    dry_run: bool = False,
    note: str = "",
    link: str = "",
    with_maps: bool = False,
    **scoring: Any,
) -> SubmissionPlan:
    """Submit a run, or precomputed maps, to the board `namespace`/results with a pull request.

    By submitting, you agree to publish your results under CC-BY-4.0. The records of the run are read into memory. Each
    record needs about 0.4 kB.

    Args:
        run: A finished run, the folder of a run, or precomputed maps, which are scored first. Precomputed maps can be a
            filled-in template, or any folder or file that the `maps` argument of `run` accepts.
        namespace: Namespace of the board.
        name: Name of your method. Required for precomputed maps.
        private: Whether to make a new repository private. Repositories are created only in your namespaces.
        dry_run: If true, compare the run with the board and send nothing.
        note: Short note for readers.
        link: URL (https) of the code or paper of your method.
        with_maps: Whether to publish the maps too. Anyone, including the owner of the board, can then recompute the
            scores. The maps are rounded to float16 before they are scored.
        **scoring: Other arguments for `score_maps`. Only for precomputed maps.

    Returns:
        The plan. `pull_request` is the URL of the pull request, or None after a dry run or if the board already
        contains all cells.

    Raises:
        UserError: The run cannot be read, the maps cannot be scored, or the Hub rejects the submission.
    """
    proposed = plan(
        scored(run, name, with_maps=with_maps, **scoring), namespace=namespace, private=private, dry_run=dry_run,
        note=note, link=link, with_maps=with_maps,
    )  # fmt: skip
    if not dry_run:
        proposed.publish()
    return proposed


def scored(run: Run | str | Path, name: str | None = None, **scoring: Any) -> Path:
    """Return the folder of a finished run. Precomputed maps are scored first, which creates a run.

    Args:
        run: A run, the folder of a run, or maps, as for `submit`.
        name: Name of the method. Only for maps.
        **scoring: Other arguments for `score_maps`. Only for maps.
    """
    path = run.folder if isinstance(run, Run) else Path(run)
    if (path / "summary.json").is_file():
        options = {"name": name, **scoring}
        if unused := [option for option, value in options.items() if value and option not in ("progress", "say")]:
            raise UserError(
                f"{path} is a finished run, which is submitted unchanged; remove {', '.join(unused)}: "
                f"{'this option applies' if len(unused) == 1 else 'these options apply'} only to maps"
            )
        return path
    if not path.exists():
        raise UserError(f"{path} does not exist; specify a run folder or a folder of maps")
    if name is None:
        raise UserError(f"{path} is not a finished run; if it contains maps, name your method with --name NAME")
    from saliency_bench.board.template import score_maps  # imported only here, because it runs networks

    return score_maps(path, name, **scoring).folder
