"""Store the Hub's data: files by content hash, and repositories with commits, branches and discussions.

All data are in one folder, and the next server that is started there reads them again.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

KINDS = ("models", "datasets", "spaces")
LARGE = (".parquet", ".safetensors", ".bin", ".npy", ".npz", ".arrow", ".png", ".jpg", ".gif", ".zip", ".gz", ".mask")
LARGE_BYTES = 10_000_000


class RefusedError(Exception):
    """A response other than 2xx, with `status`, the Hub's `X-Error-Code` if there is one, and a message."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


@dataclass(frozen=True)
class Entry:
    """A file of a commit. `oid` is the git object id, or the id of the pointer for a file in LFS mode."""

    sha256: str
    size: int
    oid: str
    lfs: bool

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass
class Commit:
    parent: str | None
    files: dict[str, Entry]
    title: str
    message: str
    author: str
    date: str

    def id(self) -> str:
        return hashlib.sha1(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass
class Discussion:
    num: int
    title: str
    author: str
    date: str
    is_pull_request: bool
    status: str = "open"
    base: str | None = None  # the commit of main that a pull request started from
    merged: str | None = None
    events: list[dict] = field(default_factory=list)


@dataclass
class Repo:
    kind: str
    id: str
    private: bool
    settings: dict
    refs: dict[str, str] = field(default_factory=dict)  # refs/heads/main, refs/tags/v1, refs/pr/1 -> commit
    commits: dict[str, Commit] = field(default_factory=dict)
    discussions: list[Discussion] = field(default_factory=list)

    def commit_id(self, revision: str) -> str:
        for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in self.refs:
                return self.refs[name]
        short = [commit for commit in self.commits if len(revision) >= 7 and commit.startswith(revision)]
        if len(short) != 1:
            raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return short[0]

    def files(self, revision: str) -> dict[str, Entry]:
        return self.commits[self.commit_id(revision)].files

    def entry(self, revision: str, path: str) -> Entry:
        if path not in (files := self.files(revision)):
            raise RefusedError(404, "Entry not found", "EntryNotFound")
        return files[path]

    def history(self, revision: str) -> list[tuple[str, Commit]]:
        """Return the commits of a revision, newest first."""
        found, place = [], self.commit_id(revision)
        while place:
            found.append((place, self.commits[place]))
            place = self.commits[place].parent or ""
        return found

    def write(self, ref: str, files: dict[str, Entry], title: str, message: str, author: str) -> str:
        commit = Commit(self.refs.get(ref), files, title, message, author, now())
        self.commits[commit.id()] = commit
        self.refs[ref] = commit.id()
        return commit.id()

    def conflicts(self, pull: Discussion) -> list[str]:
        """Return the paths that main and the pull request have changed differently since it was opened."""
        base, ours, theirs = (self.files(place) for place in (pull.base or "", "main", f"refs/pr/{pull.num}"))
        changed = {path for path in base | theirs if base.get(path) != theirs.get(path)}
        return sorted(p for p in changed if base.get(p) != ours.get(p) and ours.get(p) != theirs.get(p))

    def merge(self, pull: Discussion, author: str) -> str:
        if self.conflicts(pull):
            raise RefusedError(409, "This pull request has conflicts and cannot be merged")
        base, ours, theirs = (self.files(place) for place in (pull.base or "", "main", f"refs/pr/{pull.num}"))
        files = dict(ours)
        for path in base | theirs:
            if base.get(path) != theirs.get(path):
                files.pop(path, None)
                files |= {path: theirs[path]} if path in theirs else {}
        pull.status = "merged"
        pull.merged = self.write("refs/heads/main", files, f"{pull.title} (#{pull.num})", "", author)
        return pull.merged


class Store:
    def __init__(self, root: Path):
        self.root = root
        (root / "blobs").mkdir(parents=True, exist_ok=True)
        (root / "repos").mkdir(exist_ok=True)
        self.repos = {(repo.kind, repo.id): repo for repo in map(_loaded, sorted((root / "repos").glob("*.json")))}

    def blob(self, sha256: str) -> Path:
        return self.root / "blobs" / sha256

    def has(self, sha256: str) -> bool:
        return self.blob(sha256).is_file()

    def keep(self, content: bytes) -> str:
        name = hashlib.sha256(content).hexdigest()
        if not self.has(name):
            temporary = self.blob(f".{name}.tmp")
            temporary.write_bytes(content)
            os.replace(temporary, self.blob(name))
        return name

    def small(self, content: bytes) -> Entry:
        return Entry(self.keep(content), len(content), git_oid(content), lfs=False)

    def large(self, sha256: str) -> Entry:
        if not self.has(sha256):
            raise RefusedError(400, f"LFS object {sha256} was never uploaded")
        size = self.blob(sha256).stat().st_size
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
        return Entry(sha256, size, git_oid(pointer.encode()), lfs=True)

    def entry_of(self, path: str, content: bytes) -> Entry:
        return self.large(self.keep(content)) if is_large(path, len(content)) else self.small(content)

    def save(self, repo: Repo) -> None:
        path = self.root / "repos" / f"{repo.kind}--{repo.id.replace('/', '--')}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(repo)))
        os.replace(temporary, path)

    def delete(self, repo: Repo) -> None:
        del self.repos[repo.kind, repo.id]
        (self.root / "repos" / f"{repo.kind}--{repo.id.replace('/', '--')}.json").unlink()


def is_large(path: str, size: int) -> bool:
    return path.endswith(LARGE) or size > LARGE_BYTES


def _loaded(path: Path) -> Repo:
    repo = Repo(**json.loads(path.read_text()))
    commits: dict[str, dict] = repo.commits  # type: ignore[assignment]
    for name, commit in commits.items():
        files = {place: Entry(**entry) for place, entry in commit["files"].items()}
        repo.commits[name] = Commit(**commit | {"files": files})
    repo.discussions = [Discussion(**each) for each in repo.discussions]  # type: ignore[arg-type]
    return repo
