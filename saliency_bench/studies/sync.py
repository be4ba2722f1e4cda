"""Copy a SQLite store to a private dataset repository on the Hub, for servers without a persistent disk (Spaces).

    sync = Sync(Path("study.db"), "someone/answers", minutes=5, say=print)
    sync.restore()               # before opening the store: add the rows of the repository
    with sync:                   # commit new rows every 5 minutes and at the end
        serve(...)

Only rows added after the last commit can be lost. Each server appends lines (`answer_rows`) to its own files: first to
`study.db/SERVER-0000.jsonl`, then to `-0001` when this file is large. Therefore, the servers of a study never overwrite
each other's rows. Before each commit, rows that other servers have committed are added to the local store.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, RepoFile
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from saliency_bench.errors import UserError
from saliency_bench.hub.client import default_api, no_bars, rights, token_of
from saliency_bench.hub.failures import reason, status_of
from saliency_bench.hub.patience import patiently
from saliency_bench.studies.answer_rows import Marks, add_lines, lines_after
from saliency_bench.studies.database import POSTGRES, Database
from saliency_bench.utils.messages import complain

LARGE = 2**24  # characters after which a new file is started, because each commit sends the whole last file
MINUTES = 5.0


class Sync:
    """Copies a store to a private dataset repository.

    Args:
        store: Path of the SQLite file.
        repo: OWNER/NAME of a private dataset repository. It is created if it is missing.
        minutes: Minutes between commits.
        say: Function that prints a message for each restore and commit.
        api: `HfApi` client.

    Raises:
        UserError: The store is a PostgreSQL database, or `repo` or `minutes` is invalid.
    """

    def __init__(
        self, store: str | Path, repo: str, minutes: float = MINUTES, say: Callable[[str], object] = lambda line: None,
        api: HfApi | None = None,
    ):  # fmt: skip
        if str(store).startswith(POSTGRES):
            raise UserError("--sync needs a SQLite file; remove --sync, and back up the PostgreSQL database itself")
        if not 0 < minutes <= 24 * 60:
            raise UserError(f"--sync-every must be a positive number of minutes up to 1440, not {minutes:g}")
        try:
            validate_repo_id(repo)
        except ValueError:
            repo = ""
        if repo.count("/") != 1:
            raise UserError("--sync must be OWNER/NAME, a private dataset repository on the Hub")
        self.path, self.repo, self.minutes, self.say = Path(store).expanduser().absolute(), repo, minutes, say
        self.api = api or default_api()
        self.synced: datetime | None = None
        self.problem = ""  # error message of the last attempt
        self._server = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{token_hex(3)}"
        self._number, self._file = 0, ""  # number and content of the last file of this server
        self._read: dict[str, str] = {}  # {file of another server: content that the local store includes}
        self._there: set[bytes] = set()  # hashes of all lines in the repository
        self._unsent: list[str] = []
        self._marks: Marks = {}  # rows up to these marks are in the repository or in `_unsent`
        self._lock, self._ending = Lock(), Event()
        self._thread = Thread(target=self._run, name="sync", daemon=True)

    def restore(self, *, writing: bool = True) -> None:
        """Add the rows in the repository to the store.

        Args:
            writing: Whether to create the repository if it is missing.

        Raises:
            UserError: The repository is public, cannot be reached or written, or contains a different study.
        """
        if token_of(self.api) is None:
            raise UserError(f"--sync {self.repo} needs a token: log in with `hf auth login`, or set HF_TOKEN")
        if writing and (allowed := rights(self.api, self.repo)).may is False:
            raise UserError(f"{allowed.line}; --sync needs a token with write access")
        added = patiently(lambda: self._fetch(create=writing), self.repo, self.api, complain)
        if not self._read and not writing:
            raise UserError(f"{self.repo} contains no {self.path.name}; available: {self._stores()}")
        if added:
            self.say(f"{added:,} rows restored from {self.repo}")

    def __enter__(self) -> "Sync":
        self._try()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._try()

    def status(self) -> str:
        """Return lines for the page that state when the last commit was made and whether commits currently succeed.

        The text does not contain the name of the repository.
        """
        with self._lock:
            waiting = _answers(self._pending())
        earlier = "before this start" if self._read else "not yet"
        time = earlier if self.synced is None else f"at {self.synced:%Y-%m-%d %H:%M:%S} UTC"
        lines = [f"answers copied to the Hub: {time}", f"answers since then: {waiting}"]
        if self.problem:
            lines.append("COPYING FAILS: these answers are stored only on this server; see its log for the error")
        return "\n".join(lines) + "\n"

    def push(self) -> None:
        """Add rows that other servers have committed, then commit new rows. Raise UserError or errors from the Hub."""
        with self._lock:
            if not self._pending():
                return
            self._fetch()
            if not (pending := self._pending()):
                return
            if len(self._file) > LARGE:
                self._number, self._file = self._number + 1, ""
            content = self._file + "".join(line + "\n" for line in pending)
            name = f"{self.path.name}/{self._server}-{self._number:04}.jsonl"
            with no_bars():
                self.api.create_commit(
                    self.repo, [CommitOperationAdd(name, content.encode())], commit_message="answers",
                    repo_type="dataset",
                )  # fmt: skip
            self._file, self._unsent, self.synced = content, [], datetime.now(UTC)
            self._there |= set(map(_digest, pending))
            self.say(f"{_answers(pending):,} answers copied to {self.repo} at {self.synced:%Y-%m-%d %H:%M:%S} UTC")

    def _run(self) -> None:
        while not self._ending.wait(60 * self.minutes):
            self._try()

    def _try(self) -> None:
        """Call `push`. If it fails, report the failure without raising an error, because the study must not stop."""
        try:
            self.push()
            self.problem = ""
        except Exception as error:
            self.problem = str(error) if isinstance(error, UserError) else self._reason(error)
            since = "the start" if self.synced is None else f"{self.synced:%H:%M:%S} UTC"
            then = "restart to copy them" if self._ending.is_set() else f"trying again in {self.minutes:g} min"
            complain(f"NOT SYNCED: answers since {since} exist only in {self.path.name} ({self.problem}); {then}")

    def _reason(self, error: Exception) -> str:
        """Describe, in one line and without secrets, why rows could not be committed."""
        return reason(error, self.repo, token_of(self.api))

    def _pending(self) -> list[str]:
        if self.path.exists():
            store = Database(self.path)
            try:
                lines, self._marks = lines_after(store, self._marks)
            finally:
                store.close()
            self._unsent += lines
        self._unsent = [line for line in self._unsent if _digest(line) not in self._there]
        return self._unsent

    # the repository

    def _fetch(self, create: bool = False) -> int:
        """Add the rows of other servers to the store, and return how many were added.

        Raises:
            UserError: The repository is public, or its rows do not match the store. Errors from the Hub are raised
                unchanged.
        """
        self._check_private(create)
        files = {name: content for name, content in self._list().items() if self._read.get(name) != content}
        lines = self._downloaded(sorted(files))
        source = f"{self.path.name} of {self.repo}"
        added = 0
        if lines:
            store = Database(self.path)
            try:
                added, left_out = add_lines(store, lines, source)
            except UserError as error:
                raise UserError(f"{source} cannot be merged into the local store: {error}") from error
            finally:
                store.close()
            if left_out:
                complain(
                    f"{left_out:,} rows of {source} contradict local answers and are skipped; they remain in the "
                    "repository"
                )
        self._read |= files
        self._there |= set(map(_digest, lines))
        return added

    def _list(self) -> dict[str, str]:
        """Return {path in the repository: hash of the content} for the files that other servers wrote."""
        try:
            items = list(self.api.list_repo_tree(self.repo, self.path.name, repo_type="dataset"))
        except EntryNotFoundError:
            return {}
        files = [item for item in items if isinstance(item, RepoFile) and self._server not in item.path]
        return {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}

    def _downloaded(self, names: list[str]) -> list[str]:
        with TemporaryDirectory(prefix="saliency-bench-") as folder, no_bars():
            got = [self.api.hf_hub_download(self.repo, name, repo_type="dataset", local_dir=folder) for name in names]
            return [line for path in got for line in Path(path).read_text("utf-8").splitlines()]

    def _check_private(self, create: bool) -> None:
        """Raise UserError if the repository is public. Errors from the Hub are raised unchanged."""
        try:
            info: Any = self.api.repo_info(self.repo, repo_type="dataset")
        except RepositoryNotFoundError as error:
            if not create or status_of(error) == 401:
                raise
            self.api.create_repo(self.repo, repo_type="dataset", private=True, exist_ok=True)
            info = self.api.repo_info(self.repo, repo_type="dataset")
        if not info.private:
            raise UserError(
                f"the dataset repository {self.repo} is public, but people's answers are copied only to private "
                "repositories; make the repository private in its settings, or use a different repository"
            )

    def _stores(self) -> str:
        names = {name.partition("/")[0] for name in self.api.list_repo_files(self.repo, repo_type="dataset")}
        return ", ".join(sorted(name for name in names if name.endswith(self.path.suffix))) or "no store"


def _digest(line: str) -> bytes:
    return sha256(line.encode()).digest()


def _answers(lines: list[str]) -> int:
    return sum(line.startswith('{"table": "answer"') for line in lines)
