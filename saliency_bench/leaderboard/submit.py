"""From a run, or from maps made elsewhere, to a pull request on a results repository.

What is there already with the same values is not sent again; what contradicts it is named, and sent beside it.
"""

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitOperationAdd, DatasetInfo, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from jinja2 import Template

from saliency_bench import registry
from saliency_bench.data.names import NAMESPACE
from saliency_bench.engine.run import Run
from saliency_bench.errors import UserError
from saliency_bench.hub import client, errors
from saliency_bench.hub.plan import size
from saliency_bench.leaderboard.board import Source, asking, conflict_line, contradictions
from saliency_bench.leaderboard.schema import FORMAT, LICENSE, RECORDS, RESULT, Submission, json_schema, of_run
from saliency_bench.leaderboard.template import score_maps

NOBODY = "you"  # who submits in a dry run without login


@dataclass
class SubmissionPlan:
    """What a submission will do; `publish()` does it.

    new        cells that the repository does not have, or has over fewer samples
    known      cells that it has with the same values: not sent
    conflicts  of cells that it has with other values, who says what; sent beside them
    pending    the address of an open pull request that proposes just this
    create     whether the repository will be made; bare: whether it is ours and lacks its card, so that it gets one
    rights     of who submits
    """

    repo: str
    private: bool
    create: bool
    bare: bool
    rights: client.Rights
    submission: Submission
    new: list[dict]
    known: list[dict]
    conflicts: list[dict]
    pending: str | None = None
    pull_request: str | None = None
    api: HfApi = field(default_factory=client.default_api, repr=False)

    @property
    def nothing(self) -> bool:
        """Whether there is nothing left to send."""
        return not self.new or self.pending is not None

    @cached_property
    def files(self) -> dict[str, bytes]:
        """What the pull request holds, or would if it were not pending."""
        if not self.new:
            return {}
        sent = self.submission.only({cell["cell_id"] for cell in self.new})
        with TemporaryDirectory() as folder:
            written = sent.write(Path(folder))
            return {path.relative_to(folder).as_posix(): path.read_bytes() for path in written}

    def lines(self) -> list[str]:
        """For people: what will be done, before it is done."""
        told = [f"{len(self.known)} cells are in {self.repo} with the same values"] if self.known else []
        told += [conflict_line(conflict) for conflict in self.conflicts]
        if self.pending:
            return [*told, f"{'the rest' if self.known else 'this'} is proposed already: {self.pending}"]
        if not self.new:
            return [*told, "nothing to submit"]
        seen = "private" if self.private else "public"
        told += [f"create the {seen} dataset {self.repo}"] if self.create else []
        told += [f"pull request to the {seen} dataset {self.repo}, by {self.submission.result.submitter}:"]
        told += [f"  licence: {LICENSE}, to which you agree by submitting"]
        told += [f"  {cell['explainer_text']} by {cell['metric_text']}, n = {cell['n']}" for cell in self.new]
        told += [f"  + {path}  {size(len(content))}" for path, content in self.files.items()]
        return told if self.rights.may else [*told, f"  {self.rights.line}"]

    def as_dict(self) -> dict:
        return {
            "repo": self.repo,
            "private": self.private,
            "may_submit": self.rights.may,
            "license": LICENSE,
            "create": self.create,
            "submitter": self.submission.result.submitter,
            "new": [cell["cell_id"] for cell in self.new],
            "known": [cell["cell_id"] for cell in self.known],
            "conflicts": self.conflicts,
            "files": {} if self.nothing else {path: len(content) for path, content in self.files.items()},
            "pull_request": self.pull_request or self.pending,
        }

    def publish(self) -> str | None:
        """Make the pull request and return its address; None if there is nothing to send."""
        if self.nothing:
            return None
        if self.submission.result.submitter == NOBODY:
            raise UserError(client.LOGIN)
        with asking(self.repo):
            if self.create:
                self.api.create_repo(self.repo, repo_type="dataset", private=self.private, exist_ok=True)
            if self.bare:
                self._write_card()
            done = self.api.create_commit(
                self.repo,
                [CommitOperationAdd(path, content) for path, content in self.files.items()],
                repo_type="dataset",
                commit_message=self._title(),
                commit_description="\n".join(self.lines()),
                create_pr=True,
            )
        self.pull_request = done.pr_url
        return done.pr_url

    def _write_card(self) -> None:
        first = {"README.md": card(self.repo), "schema.json": json.dumps(json_schema(), indent=2) + "\n"}
        self.api.create_commit(
            self.repo,
            [CommitOperationAdd(path, text.encode()) for path, text in first.items()],
            repo_type="dataset",
            commit_message="What this repository holds",
        )

    def _title(self) -> str:
        result, explainers = self.submission.result, dict.fromkeys(cell["explainer_text"] for cell in self.new)
        named = ", ".join(list(explainers)[:3]) + (" ..." if len(explainers) > 3 else "")
        return f"{len(self.new)} cells: {named} on {result.dataset.id} with {result.model.id}"


def card(repo: str) -> str:
    """The README of a results repository."""
    path = next(folder / "results.md.j2" for folder in registry.folders("model_cards"))
    template = Template(path.read_text(encoding="utf-8"), keep_trailing_newline=True)
    return template.render(repo=repo, format=FORMAT, license=LICENSE, result=RESULT, records=RECORDS)


def plan(
    run: str | Path, *, namespace: str = NAMESPACE, private: bool = False, note: str = "", dry_run: bool = False
) -> SubmissionPlan:
    """What submitting a finished run to `namespace`/results would do; asks the Hub, changes nothing.

    Raises: UserError for a folder without finished run, or what the Hub refuses.
    """
    repo, api = f"{namespace}/results", client.default_api()
    submission = of_run(run, NOBODY, note)  # what is wrong with the run is said before the Hub is asked
    try:
        who, info = _who(api, repo, dry_run), _info(api, repo)
    except UserError as error:
        if not (dry_run and errors.is_network_error(error)):
            raise
        rights = client.Rights(None, "not compared with the Hub, rights not checked: it cannot be reached")
        cells = [cell.model_dump() for cell in submission.result.cells]
        return SubmissionPlan(repo, private, False, False, rights, submission, cells, [], [], api=api)
    rights = _rights(who, repo, info)
    if rights.may is False and not dry_run:
        raise UserError(rights.line)
    if who is not None:
        submission = replace(submission, result=submission.result.model_copy(update={"submitter": who.name}))
    if info is not None and private and not info.private:
        raise UserError(f"{repo} exists and is public; leave out --private, or choose another --namespace")
    seen = private if info is None else bool(info.private)
    ours = who is not None and who.refusal(repo) is None
    bare = info is None or (ours and "README.md" not in {file.rfilename for file in info.siblings or ()})
    found = SubmissionPlan(repo, seen, info is None, bare, rights, submission, [], [], [], api=api)
    _compare(found, None if info is None else info.sha)
    if info is not None and found.new and who is not None:
        found.pending = _pending(found, who.name)
    return found


def _who(api: HfApi, repo: str, dry_run: bool) -> client.Account | None:
    """None for a dry run of who is not logged in."""
    if client.token_of(api) is None:
        if dry_run:
            return None
        raise UserError(client.LOGIN)
    with asking(repo):
        return client.account(api)


def _rights(who: client.Account | None, repo: str, info: DatasetInfo | None) -> client.Rights:
    """Anyone may propose something to a public repository, with a token that may write; to make one it must be ours."""
    if who is None:
        return client.Rights(None, "rights not checked: not logged in")
    if who.read_only:
        return client.Rights(False, f"{who.name} cannot submit to {repo} with this token, which may only read")
    refusal = who.refusal(repo)
    if info is None and refusal:
        if who.role(repo):
            return client.Rights(False, refusal)
        yours = " or ".join(name for name in who.roles if who.refusal(f"{name}/results") is None)
        return client.Rights(
            False, f"cannot submit to {repo}: it does not exist, or is private; check --namespace (yours: {yours})"
        )
    return client.Rights(True, f"{who.name} may submit to it")


def _info(api: HfApi, repo: str) -> DatasetInfo | None:
    """None if there is no such repository."""
    with asking(repo):
        try:
            return api.dataset_info(repo)
        except RepositoryNotFoundError:
            return None
    return None


def _compare(found: SubmissionPlan, revision: str | None) -> None:
    """Sort the cells into new, known and contradicted, sample by sample."""
    mine, repo = found.submission, found.repo
    theirs: list[Submission] = []
    if revision is not None:
        source, refused = Source(repo, revision, found.api), list[str]()
        hashes = f"*-{mine.result.dataset.fingerprint[:8]}/*-{mine.result.model.digest[:8]}"
        results, _ = source.results(hashes)
        ids = {cell.cell_id for cell in mine.result.cells}
        shared = [folder for folder, one in results.items() if ids & {cell.cell_id for cell in one.cells}]
        theirs = source.whole(shared, results, refused)
    disputes = {one.where: contradictions([one, mine]) for one in theirs}
    for cell in mine.result.cells:
        agreeing = [
            other.n
            for one in theirs
            for other in one.result.cells
            if other.cell_id == cell.cell_id
            and not any(dispute["cell_id"] == cell.cell_id for dispute in disputes[one.where])
        ]
        (found.known if max(agreeing, default=-1) >= cell.n else found.new).append(cell.model_dump())
    new = {cell["cell_id"] for cell in found.new}
    found.conflicts = [one for each in disputes.values() for one in each if one["cell_id"] in new]


def _pending(found: SubmissionPlan, me: str) -> str | None:
    """The address of an open pull request of mine that proposes these very cells."""
    paths = list(found.files)
    with asking(found.repo):
        for pull in found.api.get_repo_discussions(
            found.repo, author=me, discussion_type="pull_request", discussion_status="open", repo_type="dataset"
        ):
            proposed = found.api.get_paths_info(found.repo, paths, revision=f"refs/pr/{pull.num}", repo_type="dataset")
            if len(proposed) == len(paths):
                return pull.url
    return None


def submit(
    what: Run | str | Path,
    *,
    namespace: str = NAMESPACE,
    name: str | None = None,
    private: bool = False,
    dry_run: bool = False,
    note: str = "",
    **scoring: Any,
) -> SubmissionPlan:
    """Propose a run, or maps that were made elsewhere, to the board `namespace`/results by a pull request.

    what: a finished run or its folder; or a filled-in template, a folder of .npy files or a Parquet file, which is
    scored first (`scoring`: template, metrics, out, partial, batch_size, device, progress of `score_maps`) under the
    `name` of your method. private: of a repository that is made now, which happens in your own namespaces only.
    dry_run: look and compare, send nothing. note: a few words for readers.

    Results are published under CC-BY-4.0; who submits agrees to that.

    Gives the plan, whose `pull_request` is the address of what was sent; it is None where everything was there already.
    Raises: UserError for what cannot be read, scored or sent.
    """
    found = plan(scored(what, name, **scoring), namespace=namespace, private=private, dry_run=dry_run, note=note)
    if not dry_run:
        found.publish()
    return found


def scored(what: Run | str | Path, name: str | None = None, **scoring: Any) -> Path:
    """The folder of a finished run: `what` itself, or the run that scores the maps in it."""
    path = what.folder if isinstance(what, Run) else Path(what)
    if (path / "summary.json").is_file():
        if given := [option for option, value in {"name": name, **scoring}.items() if value and option != "progress"]:
            raise UserError(f"{path} is a finished run and is submitted as it is; {', '.join(given)} is for maps")
        return path
    if not path.exists():
        raise UserError(f"{path} does not exist; give the folder of a run, or of maps")
    if name is None:
        raise UserError(f"{path} is no finished run; if it holds maps, say what your method is called with --name NAME")
    return score_maps(path, name, **scoring).folder
