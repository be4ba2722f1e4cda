"""A SQLite store kept in a private dataset repository of the Hub, for servers that lose their disk, such as Spaces.

    sync = Sync(Path("study.db"), "someone/answers", minutes=5, say=print)
    sync.restore()               # before the store is opened: the newest copy of the repository, or a new repository
    with sync:                   # a consistent copy is committed every 5 minutes if answers came, and at the end
        serve(...)

Nothing is lost but what came after the last commit. A commit names the one that it follows, so the Hub refuses it if
another server of the study was faster; what that one has committed is then added to the store here (`merging`), and the
commit holds the answers of both. `huggingface_hub.CommitScheduler` commits whatever its folder holds over what is
there, so a second server would overwrite the answers of the first; it also cannot be woken to end.
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from time import sleep
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, RepoFile
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from saliency_bench.errors import UserError
from saliency_bench.hub.client import default_api, no_bars, rights, token_of
from saliency_bench.hub.errors import may_pass, reason, refuse, status_of
from saliency_bench.studies.database import POSTGRES, Database
from saliency_bench.studies.merging import merge
from saliency_bench.utils.files import write_with
from saliency_bench.utils.messages import complain

PAUSES = (2, 8, 30)  # seconds before another try at the start
RACES = 5  # commits that other servers may make while one of ours is under way
TABLES = ("study", "person", "assignment", "answer", "review")
MINUTES = 5.0


@dataclass(frozen=True)
class Remote:
    """The copy in the repository at a commit.

    Attributes:
        commit: the commit.
        content: hash of the copy; None where there is none.
    """

    commit: str
    content: str | None


class Sync:
    """Keeps a store in a private dataset repository.

    Args:
        store: path of the file.
        repo: OWNER/NAME of a private dataset repository, made if there is none.
        say: gets a line on what was restored and committed.

    Raises:
        UserError: The store or the name cannot be synced.
    """

    def __init__(
        self, store: str | Path, repo: str, minutes: float = MINUTES, say: Callable[[str], object] = lambda line: None,
        api: HfApi | None = None,
    ):  # fmt: skip
        if str(store).startswith(POSTGRES):
            raise UserError("--sync copies a SQLite file; a PostgreSQL database is backed up by its own server")
        if not 0 < minutes <= 24 * 60:
            raise UserError(f"--sync-every is a number of minutes, up to 1440, not {minutes:g}")
        try:
            validate_repo_id(repo)
        except ValueError:
            repo = ""
        if repo.count("/") != 1:
            raise UserError("--sync is OWNER/NAME, a private dataset repository on the Hub")
        self.path, self.repo, self.minutes, self.say = Path(store).expanduser().absolute(), repo, minutes, say
        self.api = api or default_api()
        self.synced: datetime | None = None
        self.problem = ""  # why the last try failed
        self._seen: str | None = None  # content of the repository that the store here includes
        self._sent: tuple[int, ...] = ()  # rows of each table in it
        self._lock, self._ending = Lock(), Event()
        self._thread = Thread(target=self._run, name="sync", daemon=True)

    def restore(self, *, writing: bool = True) -> None:
        """Make the store hold what the repository holds.

        Args:
            writing: make the repository if there is none.

        Raises:
            UserError: The repository is public, cannot be reached or written, or holds another study.
        """
        if token_of(self.api) is None:
            raise UserError(f"--sync {self.repo} needs a token: log in with `hf auth login`, or set HF_TOKEN")
        if writing and (allowed := rights(self.api, self.repo)).may is False:
            raise UserError(f"{allowed.line}; --sync needs a token that may")
        for pause in (*PAUSES, None):
            try:
                remote = self._remote(create=writing)
                if remote.content is None and not writing:
                    raise UserError(f"{self.repo} holds no {self.path.name}; it has: {self._stores(remote.commit)}")
                self._take(remote)
                return
            except UserError:
                raise
            except Exception as error:
                if pause is None or not may_pass(error):
                    refuse(error, self.repo, token_of(self.api))
                complain(f"{self._reason(error)}; trying again in {pause} s")
                sleep(pause)

    def __enter__(self) -> "Sync":
        self._try()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._try()

    def status(self) -> str:
        """Return lines for the page: when answers were last committed, and whether that works.

        They name no repository.
        """
        earlier = "before this start" if self._sent else "not yet"
        time = earlier if self.synced is None else f"at {self.synced:%Y-%m-%d %H:%M:%S} UTC"
        waiting = self._rows()[3] - (self._sent[3] if self._sent else 0)
        lines = [f"answers copied to the Hub: {time}", f"answers since then: {waiting}"]
        if self.problem:
            lines.append("COPYING FAILS: these answers are on this server only; its log says why")
        return "\n".join(lines) + "\n"

    def push(self) -> None:
        """Commit a consistent copy, if rows were added since the last; raise UserError, and errors of the Hub."""
        with self._lock:
            for _ in range(RACES):
                rows = self._rows()
                if rows == self._sent:
                    return
                remote = self._remote()
                if remote.content != self._seen:
                    self._take(remote)
                    continue
                if self._commit(remote):
                    self._sent, self.synced = rows, datetime.now(UTC)
                    self.say(f"{rows[3]:,} answers copied to {self.repo} at {self.synced:%Y-%m-%d %H:%M:%S} UTC")
                    return
        raise UserError(f"other servers keep changing {self.repo}")

    def _run(self) -> None:
        """Push again and again until the server ends."""
        while not self._ending.wait(60 * self.minutes):
            self._try()

    def _try(self) -> None:
        """Push, and go on whatever becomes of the copy: a study is not stopped by it."""
        try:
            self.push()
            self.problem = ""
        except Exception as error:
            self.problem = str(error) if isinstance(error, UserError) else self._reason(error)
            since = "the start" if self.synced is None else f"{self.synced:%H:%M:%S} UTC"
            then = "start again to copy them" if self._ending.is_set() else f"trying again in {self.minutes:g} min"
            complain(f"NOT SYNCED, answers since {since} are in {self.path.name} only: {self.problem}; {then}")

    def _reason(self, error: Exception) -> str:
        """Return why a copy could not be committed, in a line without secrets."""
        return reason(error, self.repo, token_of(self.api))

    # the repository

    def _remote(self, create: bool = False) -> Remote:
        """Return the newest copy; raise UserError for a public repository, and errors of the Hub."""
        try:
            info: Any = self.api.repo_info(self.repo, repo_type="dataset")
        except RepositoryNotFoundError as error:
            if not create or status_of(error) == 401:
                raise
            self.api.create_repo(self.repo, repo_type="dataset", private=True, exist_ok=True)
            info = self.api.repo_info(self.repo, repo_type="dataset")
        if not info.private:
            raise UserError(
                f"the dataset repository {self.repo} is public; answers of people are copied to private ones only: "
                "make it private in its settings, or name another"
            )
        return self._file(info.sha)

    def _file(self, commit: str) -> Remote:
        """Return the copy at a commit."""
        infos = self.api.get_paths_info(self.repo, [self.path.name], repo_type="dataset", revision=commit)
        file = next((info for info in infos if isinstance(info, RepoFile)), None)
        return Remote(commit, None if file is None else file.lfs.sha256 if file.lfs else file.blob_id)

    def _stores(self, commit: str) -> str:
        """Return the names of other stores in the repository, as text."""
        listed = self.api.list_repo_files(self.repo, repo_type="dataset", revision=commit)
        return ", ".join(name for name in listed if name.endswith(Path(self.path.name).suffix)) or "no store"

    def _commit(self, follows: Remote) -> bool:
        """Commit the store; return False if another commit came first."""
        with TemporaryDirectory(prefix="saliency-bench-") as folder, no_bars():
            copy = _copy(self.path, Path(folder))
            try:
                commit = self.api.create_commit(
                    self.repo, [CommitOperationAdd(self.path.name, str(copy))], commit_message="answers",
                    repo_type="dataset", parent_commit=follows.commit,
                )  # fmt: skip
            except Exception as error:
                if status_of(error) == 412:
                    return False
                raise
        self._seen = self._file(commit.oid).content
        return True

    def _take(self, remote: Remote) -> None:
        """Add what the repository holds to the store here."""
        if remote.content is not None:
            with TemporaryDirectory(prefix="saliency-bench-") as folder, no_bars():
                got = self.api.hf_hub_download(
                    self.repo, self.path.name, repo_type="dataset", revision=remote.commit, local_dir=folder
                )
                self._add(Path(got), remote)
        self._seen = remote.content

    def _add(self, got: Path, remote: Remote) -> None:
        """Add to the store what the downloaded copy holds."""
        where = f"{self.path.name} of {self.repo}"
        try:
            Database(got, create=False).close()  # a store of ours, and of this format
            if not self.path.exists():
                for left in ("-wal", "-shm"):  # of a store that was deleted: SQLite would apply them to this one
                    self.path.with_name(self.path.name + left).unlink(missing_ok=True)
                write_with(self.path, lambda partial: shutil.copyfile(got, partial))
                self._sent = self._rows()
                self.say(f"{self._sent[3]:,} answers restored from {self.repo}")
                return
            Database(self.path).close()
            merged = merge(self.path, got)
        except (UserError, sqlite3.Error) as error:
            raise UserError(f"{where} cannot be continued here: {str(error).replace(str(got), where)}") from error
        if not merged.ahead:
            self._sent = self._rows()
        if merged.added:
            self.say(f"{merged.added:,} rows added from {self.repo}, which another server has written")
        if merged.left_out:
            complain(
                f"{merged.left_out:,} rows of {where} contradict answers here and are left out; "
                f"its history keeps them (commit {remote.commit[:12]})"
            )

    def _rows(self) -> tuple[int, ...]:
        """Return the number of rows of each table, which are only ever added."""
        if not self.path.exists():
            return ()
        with closing(sqlite3.connect(self.path, timeout=60)) as connection:
            return tuple(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)


def _copy(store: Path, folder: Path) -> Path:
    """Return a copy in one file, whole and consistent while others write."""
    database = Database(store, create=False)
    try:
        path = database.backup(folder / store.name)
    finally:
        database.close()
    with closing(sqlite3.connect(path)) as copy:
        copy.execute("PRAGMA journal_mode = DELETE")  # no further files beside it
    return path
