"""Puts files on the Hub: says first what it will do, sends only what differs, goes on where it was interrupted."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, RepoFile, constants
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import are_progress_bars_disabled, validate_repo_id
from huggingface_hub.utils.sha import git_hash
from tqdm.contrib.logging import logging_redirect_tqdm

from saliency_bench.errors import UserError
from saliency_bench.hub import client as hub
from saliency_bench.utils.hashing import sha256_of
from saliency_bench.utils.progress import bar

PAUSES = (2, 8)  # seconds before trying again what may pass; huggingface_hub itself tries each file several times
LONGEST_WAIT = 300  # seconds that the Hub may ask us to wait
SDK = "gradio"  # of Spaces


@dataclass(frozen=True)
class Publication:
    """What a repository is to hold. `files`: {path there: a file here, or its content}.

    owned: patterns of paths that are ours; such a file that is no longer in `files` is removed there.
    """

    kind: str  # "dataset", "model" or "space"
    repo: str
    files: dict[str, Path | bytes]
    license: str | None
    owned: Sequence[str] = ()

    @property
    def place(self) -> str:
        return self.repo if self.kind == "model" else f"{self.kind}s/{self.repo}"

    def bytes(self, path: str) -> int:
        content = self.files[path]
        return len(content) if isinstance(content, bytes) else content.stat().st_size


@dataclass(frozen=True)
class UploadPlan:
    """What publishing would do. `changes`: {path: "new", "changed", "removed" or "unchanged"}.

    `head` is the commit that was compared with; None if the repository does not exist, or was not looked at. `rights`
    are of the one who asks; None where nothing would be sent.
    """

    publication: Publication
    private: bool
    exists: bool
    changes: dict[str, str]
    head: str | None = None
    compared: bool = True
    rights: hub.Rights | None = None

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to send."""
        return all(change == "unchanged" for change in self.changes.values())

    @property
    def operations(self) -> "list[_Addition | CommitOperationDelete]":
        files = self.publication.files
        return [
            CommitOperationDelete(path)
            if change == "removed"
            else _Addition(path, content if isinstance(content := files[path], bytes) else str(content))
            for path, change in self.changes.items()
            if change != "unchanged"
        ]

    def lines(self) -> list[str]:
        """For a person to read before anything is sent."""
        what, sizes = self.publication, {path: self.publication.bytes(path) for path in self.publication.files}
        differ = [path for path, change in self.changes.items() if change != "unchanged"]
        state = "exists" if self.exists else "new" if self.compared else "not compared with the Hub"
        visibility = "private" if self.private else "public"
        upload = sum(sizes.get(path, 0) for path in differ)
        marks = {"new": "+", "changed": "~", "removed": "-"}
        return [
            f"{what.kind} {what.repo} ({state}, {visibility}), licence: {what.license or 'not stated'}",
            f"  {len(sizes)} files, {size(sum(sizes.values()))}; to send: {len(differ)}, {size(upload)}",
            *(f"    {marks[self.changes[path]]} {path}  {size(sizes.get(path, 0))}" for path in differ),
            *([f"  {self.rights.line}"] if self.rights else []),
        ]

    def as_dict(self) -> dict[str, Any]:
        what = self.publication
        sizes = {path: what.bytes(path) for path in what.files}
        return {
            "kind": what.kind,
            "repo": what.repo,
            "exists": self.exists,
            "compared": self.compared,
            "private": self.private,
            "may_write": self.rights and self.rights.may,
            "license": what.license,
            "bytes": sum(sizes.values()),
            "files": [
                {"path": path, "bytes": sizes.get(path, 0), "change": change} for path, change in self.changes.items()
            ],
        }


@dataclass(frozen=True)
class Published:
    """`commit` is where the repository stands; None after a dry run. `changed`: whether anything was sent."""

    plan: UploadPlan
    url: str
    commit: str | None
    changed: bool
    dry_run: bool

    def __str__(self) -> str:
        if self.dry_run:
            return "dry run: nothing was sent"
        return f"{'published' if self.changed else 'nothing changed'}: {self.url} (commit {self.commit})"

    def as_dict(self) -> dict[str, Any]:
        return self.plan.as_dict() | {
            "url": self.url,
            "commit": self.commit,
            "changed": self.changed,
            "dry_run": self.dry_run,
        }


class _Addition(CommitOperationAdd):
    """A file to send that tells `hears` how many bytes more were read for that; what is sent again does not count."""

    furthest = 0

    @staticmethod
    def hears(count: int) -> object:
        """Nobody does."""

    @contextmanager
    def as_file(self, with_tqdm: bool = False) -> Iterator[Any]:
        with super().as_file() as file:
            if with_tqdm:  # huggingface_hub says so when it sends it
                read = file.read

                def watched(size: int = -1) -> bytes:
                    data = read(size)
                    more = max(file.tell() - self.furthest, 0)
                    self.furthest += more
                    self.hears(more)
                    return data

                file.read = watched  # type: ignore[method-assign]
            yield file

    def b64content(self) -> bytes:
        content = super().b64content()  # of a small file, which travels with the commit
        self.hears(self.upload_info.size - self.furthest)
        self.furthest = self.upload_info.size
        return content


@contextmanager
def _one_bar(operations: Sequence[_Addition | CommitOperationDelete]) -> Iterator[None]:
    """One bar for all files together, where huggingface_hub has one for each. With hf_xet it has a display for all."""
    xet = find_spec("hf_xet") is not None and not constants.HF_HUB_DISABLE_XET
    if xet or are_progress_bars_disabled():
        yield
        return
    files = [one for one in operations if isinstance(one, _Addition)]
    total = sum(one.upload_info.size for one in files)
    with (
        hub.no_bars(),
        bar(desc="sending", total=total, unit="B", unit_scale=True, leave=False) as sending,
        logging_redirect_tqdm([logging.getLogger("huggingface_hub")]),  # what it says of a retry is a line of its own
    ):
        for one in files:
            one.hears = sending.update  # type: ignore[method-assign]
        yield


def publish(
    publication: Publication,
    *,
    private: bool = False,
    dry_run: bool = False,
    api: HfApi | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Published:
    """Make the repository hold the files of `publication`; equal files are not sent, and if all are equal nothing is.

    say: gets the plan, line by line, before anything is sent. private: for a repository that is made now. What broke
    half-way, here or at the last call, goes on: files that arrived are not sent again, and the commit is made once.
    Raises: UserError, for who may not write there, what the Hub refuses, a connection that stays broken, and `private`
    where it is public.
    """
    api = api or hub.client()
    _check(publication, api, dry_run)
    url, begun = f"{api.endpoint}/{publication.place}", False
    for pause in (*PAUSES, None):
        try:
            plan = _compared_if_possible(publication, private, api) if dry_run else compare(publication, private, api)
            if not begun:
                plan = plan if plan.nothing else replace(plan, rights=hub.rights(api, publication.repo))
                for line in plan.lines():
                    say(line)
            if dry_run:
                return Published(plan, url, None, False, True)
            if plan.nothing:
                return Published(plan, url, plan.head, begun, False)
            if plan.rights and plan.rights.may is False:
                raise UserError(f"{plan.rights.line}; give --namespace YOUR-NAME, or log in with a token that may")
            begun = True
            return Published(plan, url, _send(plan, api), True, False)
        except UserError:
            raise
        except Exception as error:
            wait = hub.retry_after(error) or pause
            if pause is None or wait is None or wait > LONGEST_WAIT or not hub.may_pass(error):
                hub.refuse(error, publication.repo, hub.token_of(api))
            say(f"{hub.reason(error, publication.repo, hub.token_of(api))}; trying again in {wait} s")
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def compare(publication: Publication, private: bool, api: HfApi) -> UploadPlan:
    """The plan, after a look at what is there."""
    try:
        info: Any = api.repo_info(publication.repo, repo_type=publication.kind)
    except RepositoryNotFoundError as error:
        if hub.status_of(error) == 401 and hub.token_of(api):  # with a token, a repository that is not there is a 404
            raise
        return UploadPlan(publication, private, False, dict.fromkeys(sorted(publication.files), "new"))
    if private and not info.private:
        raise UserError(
            f"{publication.repo} exists and is public; make it private in its settings first, or leave out --private"
        )
    listed = api.list_repo_tree(publication.repo, repo_type=publication.kind, revision=info.sha, recursive=True)
    there = {file.path: file for file in listed if isinstance(file, RepoFile)}
    gone = [p for p in there if p not in publication.files and any(fnmatch(p, own) for own in publication.owned)]
    changes = {path: _change(content, there.get(path)) for path, content in sorted(publication.files.items())}
    return UploadPlan(publication, info.private, True, changes | dict.fromkeys(sorted(gone), "removed"), info.sha)


def size(count: int) -> str:
    """Bytes for a person: 512 B, 1.2 kB, 3.4 MB."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def _send(plan: UploadPlan, api: HfApi) -> str:
    """One commit on top of what was compared; its id."""
    what = plan.publication
    head = plan.head
    if head is None:
        sdk = SDK if what.kind == "space" else None
        api.create_repo(what.repo, repo_type=what.kind, private=plan.private, exist_ok=True, space_sdk=sdk)
        head = api.repo_info(what.repo, repo_type=what.kind).sha
    operations = plan.operations
    with _one_bar(operations):
        done = api.create_commit(
            what.repo,
            operations,
            commit_message=f"saliency-bench push {what.kind}",
            repo_type=what.kind,
            parent_commit=head,
        )
    return done.oid


def _compared_if_possible(publication: Publication, private: bool, api: HfApi) -> UploadPlan:
    """A dry run is of use without network as well."""
    try:
        return compare(publication, private, api)
    except Exception as error:
        if not hub.unreached(error):
            raise
        changes = dict.fromkeys(sorted(publication.files), "new")
        return UploadPlan(publication, private, False, changes, compared=False)


def _change(content: Path | bytes, there: RepoFile | None) -> str:
    if there is None:
        return "new"
    if (len(content) if isinstance(content, bytes) else content.stat().st_size) != there.size:
        return "changed"
    if there.lfs is not None:
        here = sha256(content).hexdigest() if isinstance(content, bytes) else sha256_of(content)
        return "unchanged" if here == there.lfs.sha256 else "changed"
    here = git_hash(content if isinstance(content, bytes) else content.read_bytes())
    return "unchanged" if here == there.blob_id else "changed"


def _check(publication: Publication, api: HfApi, dry_run: bool) -> None:
    try:
        validate_repo_id(publication.repo)
    except ValueError as error:
        raise UserError(f"'{publication.repo}' cannot be a name on the Hub: {error}") from error
    if not dry_run and hub.token_of(api) is None:
        raise UserError(hub.LOGIN)
