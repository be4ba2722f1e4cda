"""Describe the intended content of a repository, and plan the upload of the files that differ from those on the Hub."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, RepoFile
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils.sha import git_hash

from saliency_bench.errors import UserError, one_line
from saliency_bench.hub.client import Rights, no_bars, token_of
from saliency_bench.hub.failures import is_network_error, status_of
from saliency_bench.utils.hashing import sha256_of

STARTERS = (".gitattributes", "README.md", "LICENSE")  # files that a new repository may already have


@dataclass(frozen=True)
class Publication:
    """The intended content of a repository.

    Attributes:
        repo: Id of the repository.
        kind: Type of the repository: "dataset", "model" or "space".
        files: {path in the repository: local file, or content of the file}.
        license: Licence of the content, or None if it is not stated.
        owned: Patterns for the paths that this package manages. A matching file in the repository is removed if it is
            not in `files`.
        mark: Path of a JSON file in `files`, followed by keys of this file. If a repository already has files, it must
            contain this JSON file with the same values for these keys; otherwise, its content counts as unrelated work.
            If the file only has to exist, the only key is "".
        sdk: SDK of a Space.
        first: Paths that are sent only if the repository lacks them, because other programs may change them later.
    """

    kind: str  # "dataset", "model" or "space"
    repo: str
    files: dict[str, Path | bytes]
    license: str | None
    owned: Sequence[str] = ()
    mark: tuple[str, ...] | None = None
    sdk: str = "gradio"
    first: Sequence[str] = ()

    @property
    def url_path(self) -> str:
        """Path of the repository's page on the Hub."""
        return self.repo if self.kind == "model" else f"{self.kind}s/{self.repo}"

    def bytes(self, path: str) -> int:
        """Return the size of a file in bytes."""
        content = self.files[path]
        return len(content) if isinstance(content, bytes) else content.stat().st_size


@dataclass(frozen=True)
class UploadPlan:
    """Plan of an upload.

    `changes` is {path: "new", "changed", "removed" or "unchanged"}. `head` is the commit used for the comparison, or
    None if the repository does not exist or was not compared. `rights` is the write permission of the current account,
    or None if no file would be sent.
    """

    publication: Publication
    private: bool
    exists: bool
    changes: dict[str, str]
    head: str | None = None
    compared: bool = True
    rights: Rights | None = None

    @property
    def nothing(self) -> bool:
        """Return whether no file has to be sent."""
        return all(change == "unchanged" for change in self.changes.values())

    def lines(self) -> list[str]:
        """Return the lines that describe the plan. They are shown before any file is sent."""
        publication = self.publication
        sizes = {path: publication.bytes(path) for path in publication.files}
        differ = [path for path, change in self.changes.items() if change != "unchanged"]
        state = "exists" if self.exists else "new" if self.compared else "not compared with the Hub"
        visibility = "private" if self.private else "public"
        upload = sum(sizes.get(path, 0) for path in differ)
        marks = {"new": "+", "changed": "~", "removed": "-"}
        licence = publication.license or "not stated"
        return [
            f"{publication.kind} {publication.repo} ({state}, {visibility}), licence: {licence}",
            f"  {len(sizes)} files, {size(sum(sizes.values()))}; to send: {len(differ)}, {size(upload)}",
            *(f"    {marks[self.changes[path]]} {path}  {size(sizes.get(path, 0))}" for path in differ),
            *([f"  {self.rights.line}"] if self.rights else []),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        publication = self.publication
        sizes = {path: publication.bytes(path) for path in publication.files}
        return {
            "kind": publication.kind,
            "repo": publication.repo,
            "exists": self.exists,
            "compared": self.compared,
            "private": self.private,
            "may_write": self.rights and self.rights.may,
            "license": publication.license,
            "bytes": sum(sizes.values()),
            "files": [
                {"path": path, "bytes": sizes.get(path, 0), "change": change} for path, change in self.changes.items()
            ],
        }


def upload_plan(publication: Publication, private: bool, api: HfApi) -> UploadPlan:
    """Compare the files with those on the Hub and return the plan. Errors from the Hub are raised unchanged.

    Raises:
        UserError: The repository must be private but is public, or it contains unrelated work.
    """
    try:
        info: Any = api.repo_info(publication.repo, repo_type=publication.kind)
    except RepositoryNotFoundError as error:
        if status_of(error) == 401 and token_of(api):  # with a valid token, a missing repository gives status 404
            raise
        return UploadPlan(publication, private, False, dict.fromkeys(sorted(publication.files), "new"))
    if private and not info.private:
        raise UserError(
            f"{publication.repo} exists and is public; make it private in its settings first, or leave out --private"
        )
    listed = api.list_repo_tree(publication.repo, repo_type=publication.kind, revision=info.sha, recursive=True)
    remote = {file.path: file for file in listed if isinstance(file, RepoFile)}
    _refuse_other_work(publication, set(remote), info.sha, api)
    gone = [
        p for p in remote if p not in publication.files and any(fnmatch(p, pattern) for pattern in publication.owned)
    ]
    changes = {path: _change(content, remote.get(path)) for path, content in sorted(publication.files.items())}
    changes |= {path: "unchanged" for path in publication.first if path in remote}
    return UploadPlan(publication, info.private, True, changes | dict.fromkeys(sorted(gone), "removed"), info.sha)


def _refuse_other_work(publication: Publication, there: set[str], head: str, api: HfApi) -> None:
    """Raise UserError if a repository contains unrelated work, which must never be overwritten or mixed with new files.

    The message names the unrelated content.
    """
    others = sorted(there - set(STARTERS))
    if publication.mark is None or not others:
        return
    path, *keys = publication.mark
    fix = "choose a different --name or --namespace"
    if path not in there:
        shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise UserError(f"the {publication.kind} {publication.repo} contains unrelated work ({shown}); {fix}")
    if not any(keys):
        return
    with no_bars():
        downloaded = api.hf_hub_download(publication.repo, path, repo_type=publication.kind, revision=head)
    for key in keys:
        expected, theirs = _value(publication.files[path], key), _value(Path(downloaded), key)
        if expected != theirs:
            is_first = key == keys[0]  # the first key identifies the work itself
            values = [one_line(value, 100) if is_first else f"{key} {one_line(value, 100)}" if value else f"no {key}"
                     for value in (theirs, expected)]  # fmt: skip
            raise UserError(f"the {publication.kind} {publication.repo} contains {values[0]}, not {values[1]}; {fix}")


def _value(content: Path | bytes, key: str) -> object:
    """Return the value of a key in a JSON file, or None if the file has no such key."""
    try:
        read = json.loads(content if isinstance(content, bytes) else content.read_bytes())
    except (ValueError, RecursionError):
        return "something unreadable"
    return read.get(key) if isinstance(read, dict) else None


def plan_if_reachable(publication: Publication, private: bool, api: HfApi) -> UploadPlan:
    """Return the plan of an upload.

    If the Hub is unreachable, every file is marked as new, so a dry run works offline.
    """
    try:
        return upload_plan(publication, private, api)
    except Exception as error:
        if not is_network_error(error):
            raise
        changes = dict.fromkeys(sorted(publication.files), "new")
        return UploadPlan(publication, private, False, changes, compared=False)


def size(count: int) -> str:
    """Format a number of bytes for display, for example as 512 B, 1.2 kB or 3.4 MB."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def _change(content: Path | bytes, remote: RepoFile | None) -> str:
    """Return the state of a file relative to the Hub: "new", "changed" or "unchanged"."""
    if remote is None:
        return "new"
    if (len(content) if isinstance(content, bytes) else content.stat().st_size) != remote.size:
        return "changed"
    if remote.lfs is not None:
        digest = sha256(content).hexdigest() if isinstance(content, bytes) else sha256_of(content)
        return "unchanged" if digest == remote.lfs.sha256 else "changed"
    digest = git_hash(content if isinstance(content, bytes) else content.read_bytes())
    return "unchanged" if digest == remote.blob_id else "changed"
