"""The SQLite or PostgreSQL database of a store, with transactions, backups and the validation of values."""

import json
import os
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock, local
from time import monotonic
from typing import Any

from sqlalchemy import Connection, create_engine, event, insert, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from saliency_bench.errors import UserError, one_line
from saliency_bench.studies.study_tables import FORMAT, metadata, prepare_sqlite, versions

POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")
PATIENCE = 60.0  # seconds that a transaction waits for other writers; servers use a smaller value
# Settings of libpq that limit the wait for an unresponsive PostgreSQL server, in seconds except for tcp_user_timeout
# (milliseconds) and keepalives_count (attempts).
DEADLINES = {"connect_timeout": 10, "tcp_user_timeout": 20_000, "keepalives_idle": 10, "keepalives_interval": 5,
             "keepalives_count": 2}  # fmt: skip
SILENCE = 20.0  # seconds to wait for an unresponsive PostgreSQL server in addition to `patience`
CONNECTIONS = 40  # maximum number of simultaneous connections per server
LOCK = 20231008537  # id of the advisory lock for writers of a PostgreSQL store
LONGEST_VALUE = 40  # maximum length of a setting in a message
HASHES = ("dataset", "run")  # settings that are hashes, which messages do not display


def now() -> str:
    """Return the current UTC time in ISO 8601 with microseconds. These strings sort chronologically."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def hours_ago(hours: float) -> str:
    """Return the time `hours` ago, in the format of `now`."""
    return (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="microseconds")


def lately(hours: float) -> tuple[str, str]:
    """Return (earliest, latest) time that counts as recent: `hours` ago and `hours` from now, in the format of `now`.

    The upper limit excludes rows that were stored before the clock was set back.
    """
    return hours_ago(hours), hours_ago(-hours)


class NoStoreError(UserError):
    """Raised if a store is missing and should not be created."""


class Database:
    """A database in a SQLite file (path) or on a PostgreSQL server (URL). Missing tables are created.

    Raises:
        UserError: The file or database is not a store, or cannot be reached or written. Messages contain no passwords.
        NoStoreError: The store is missing, and `create` is False.
    """

    def __init__(self, place: str | Path, *, create: bool = True):
        text = str(place)
        self.path = None if text.startswith(POSTGRES) else Path(text).expanduser().absolute()
        self.patience = PATIENCE
        self.text = _without_password(text) if self.path is None else text
        if self.path is not None:
            _check_file(self.path, create)
        url = f"sqlite:///{self.path}" if self.path else "postgresql+psycopg://" + text.partition("://")[2]
        try:
            chosen = {} if self.path else make_url(url).query
            deadlines = {} if self.path else {name: most for name, most in DEADLINES.items() if name not in chosen}
            self.engine = create_engine(url, pool_size=CONNECTIONS, pool_timeout=120, connect_args=deadlines)
        except (ArgumentError, ValueError) as error:
            raise UserError(f"{self.text} is not the URL of a database ({one_line(error)})") from None
        except ModuleNotFoundError as error:
            raise UserError(f"{self.text} needs the library psycopg; run `pip install 'psycopg[binary]'`") from error
        if self.path is not None:
            prepare_sqlite(self.engine, lambda: self.patience)
        else:
            event.listen(self.engine, "connect", self._limit_silence, insert=True)
            event.listen(self.engine, "begin", self._limit_waiting)
        self._queue = Lock()
        self._of_thread = local()  # `.writer`: the connection of this thread's write transaction
        try:
            self._open(create)
        except (SQLAlchemyError, sqlite3.Error) as error:
            self.close()
            raise UserError(f"{self.text} cannot be used as a store: {_reason(error)}") from error

    def _open(self, create: bool) -> None:
        """Create the tables. If they exist, check them.

        Raises:
            UserError: The database belongs to a different program or version.
            NoStoreError: The database has no tables, and `create` is False.
        """
        with self.writing() as connection:
            names = inspect(connection).get_table_names()
            if names and versions.name not in names:
                raise UserError(
                    f"{self.text} is a database of a different program; use a different path or URL for the store"
                )
            if not names and not create:
                raise NoStoreError(f"{self.text} contains no store; check the URL")
            metadata.create_all(connection)
            formats = connection.scalars(select(versions.c.number)).all()
            if not formats:
                connection.execute(insert(versions).values(number=FORMAT))
            elif list(formats) != [FORMAT]:
                raise UserError(
                    f"{self.text} has format {formats[0]}, but this version reads format {FORMAT}; install the version "
                    "of saliency-bench that created the store, or start a new store"
                )

    def _limit_waiting(self, connection: Connection) -> None:
        """Limit the time for which a PostgreSQL transaction waits for locks to `patience` seconds."""
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(1000 * self.patience)}")

    def _limit_silence(self, connection: Any, _: Any) -> None:
        """Limit the time to wait for each response of a PostgreSQL server. TCP does not detect a stopped process."""
        wait = connection.wait

        def limited(waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            """Pass on the steps of `waiting`. Close the connection if the server sends nothing for too long."""
            ready, last = None, monotonic()
            with closing(waiting):
                while True:
                    try:
                        wanted = waiting.send(ready)
                    except StopIteration as done:
                        return done.value
                    if ready := (yield wanted):
                        last = monotonic()
                    elif monotonic() - last > self.patience + SILENCE:
                        connection.close()
                        raise connection.OperationalError("the server does not respond")

        connection.wait = lambda waiting, *args, **options: wait(limited(waiting), *args, **options)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a write transaction.

        A transaction is atomic, and only one write transaction runs at a time.

        Raises:
            sqlite3.OperationalError: The lock was not available within `patience` seconds.
        """
        with self._turn(), self.engine.connect().execution_options(writes=True) as connection, connection.begin():
            if self.path is None:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
            self._of_thread.writer = connection
            try:
                yield connection
            finally:
                self._of_thread.writer = None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other thread of this process writes.

        Without this queue, a thread might never get its turn, because SQLite polls for its lock and does not queue.
        """
        if not self._queue.acquire(timeout=self.patience):
            raise sqlite3.OperationalError("database is locked")
        try:
            yield
        finally:
            self._queue.release()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read transaction. Inside `writing`, it sees the changes made by that transaction."""
        if (writer := getattr(self._of_thread, "writer", None)) is not None:
            yield writer
            return
        with self.engine.connect() as connection, connection.begin():
            yield connection

    def backup(self, path: str | Path) -> Path:
        """Copy a SQLite store to a file. SQLite's backup API makes a consistent copy even during writes."""
        if self.path is None:
            raise UserError(f"{self.text} is a PostgreSQL database; back it up with pg_dump")
        target = Path(path)
        if not target.exists():
            _make_private(target)
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
        return target

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def plain_json(value: object) -> str:
    """Serialise a value as JSON.

    Raises:
        UserError: The value cannot be represented in JSON, for example NaN.
    """
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"cannot be stored as JSON: {one_line(error)}") from None


def differences(here: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Describe the differences between two descriptions of a study, or return "" if there are none.

    Settings are listed with both values: "configuration (annotators 3, now 5) and seed (0, now 4)". For hashes, and for
    lists of the same length, only the name is listed.
    """
    return " and ".join(_difference(name, here[name], given[name]) for name in given if here[name] != given[name])


def _difference(name: str, here: Any, given: Any) -> str:
    """Return the name of a setting that differs. If its two values are short, include them."""
    if isinstance(here, dict) and isinstance(given, dict):
        here, given = ({**value, **value.get("settings", {})} for value in (here, given))
        names = [key for key in {**here, **given} if key != "settings" and here.get(key) != given.get(key)]
        return f"{name} ({', '.join(_setting(key, here.get(key), given.get(key)) for key in names)})"
    values = _setting(name, here, given).removeprefix(name).strip()
    return f"{name} ({values})" if values else name


def _setting(name: str, here: Any, given: Any) -> str:
    """Format a difference as in "annotators 3, now 5".

    Of long lists, only the lengths are shown. Other long values are omitted.
    """
    texts = [json.dumps(value, ensure_ascii=False) for value in (here, given)]
    is_long = name in HASHES or max(map(len, texts)) > LONGEST_VALUE
    if is_long and isinstance(here, list) and isinstance(given, list) and len(here) != len(given):
        return f"{name} {len(here)}, now {len(given)}"
    return name if is_long else f"{name} {texts[0]}, now {texts[1]}"


def check_text(name: str, text: object, most: int = 500) -> str:
    """Check that `text` is a valid name, and return it.

    Raises:
        UserError: The text is empty or too long, or contains control characters.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > most or not text.isprintable():
        raise UserError(f"{name} must be 1 to {most} printable characters, not {one_line(ascii(text), 60)}")
    return text


def _without_password(text: str) -> str:
    try:
        return make_url(text).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return "the given URL"


def _reason(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return one_line(cause)


def _check_file(path: Path, create: bool) -> None:
    """Raise UserError if a file is not a SQLite database, or if it is missing and should not be created."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; specify a file for the store, such as {path / 'study.db'}")
    if not path.exists():
        if not create:
            raise NoStoreError(f"there is no store {path}; check the path")
        if not path.parent.is_dir():
            raise UserError(f"{path.parent} is not a folder; create it first, or choose a different path for the store")
        _make_private(path)
    elif path.is_file() and not path.stat().st_size:  # another user may have created it, for example in /tmp
        _make_private(path)


def _make_private(path: Path) -> None:
    """Create an empty file that only its owner can access. If the file exists, restrict access to it.

    SQLite uses the same permissions for the additional files that it creates.

    Raises:
        UserError: The file cannot be created, or belongs to another user.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise UserError(f"{path} cannot be used as a store: {error.strerror}") from error
