"""The tables of a store in SQLite and PostgreSQL. Rows are only added; triggers reject changes.

study       kind, name, fingerprint of the dataset, configuration, seed
person      a pseudonym, and the SHA-256 of the person's key; role "annotator", "reviewer" or "owner"
assignment  a unit assigned to a person, and its position in the person's order
answer      an answer; `revision` counts the answers of a person to a unit
review      a reviewer's verdict on an answer; the last verdict counts
correction  a reviewer's correction of an answer; the last correction counts
invite      a link for one person: the SHA-256 of the request to join that the link contains
parameter   parameters in the URL that a person opened, such as PROLIFIC_PID; stored separately from answers
event       other events: consent, consent forms and instructions that were displayed, actions of the owner
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    DDL,
    JSON,
    Column,
    Engine,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    event,
)

FORMAT = 1  # version of the tables; stores with a different version are rejected

metadata = MetaData()


def _key() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _of(table: str) -> Column[int]:
    return Column(table, ForeignKey(f"{table}.id"), nullable=False, index=True)


def _text(name: str, *, unique: bool | None = None) -> Column[str]:
    return Column(name, Text, nullable=False, unique=unique)


def _created() -> Column[str]:
    """Return a column for UTC times in ISO 8601 with microseconds. These strings sort chronologically."""
    return _text("created")


versions = Table("store_format", metadata, Column("number", Integer, primary_key=True))

studies = Table(
    "study",
    metadata,
    _key(),
    _text("kind"),
    _text("name", unique=True),
    _text("dataset"),
    Column("configuration", JSON, nullable=False),
    Column("seed", Integer, nullable=False),
    _created(),
)
people = Table(
    "person",
    metadata,
    _key(),
    _of("study"),
    _text("name"),
    _text("role"),
    _text("key_sha256", unique=True),
    _text("request", unique=True),
    _created(),
    UniqueConstraint("study", "name"),
)
assignments = Table(
    "assignment",
    metadata,
    _key(),
    _of("study"),
    _text("person"),
    _text("unit"),
    Column("position", Integer, nullable=False),
    _created(),
    UniqueConstraint("study", "person", "unit"),
    UniqueConstraint("study", "person", "position"),
)
answers = Table(
    "answer",
    metadata,
    _key(),
    _of("study"),
    _text("unit"),
    _text("person"),
    Column("revision", Integer, nullable=False),
    _text("request", unique=True),
    Column("payload", JSON, nullable=False),
    Column("mask", LargeBinary),
    Column("image_sha256", Text),
    Column("seconds", Float, nullable=False),
    _created(),
    UniqueConstraint("study", "unit", "person", "revision"),
)
reviews = Table(
    "review",
    metadata,
    _key(),
    _of("answer"),
    _text("reviewer"),
    _text("verdict"),
    _text("comment"),
    _text("request", unique=True),
    _created(),
)
corrections = Table(
    "correction",
    metadata,
    _key(),
    _of("answer"),
    _text("reviewer"),
    _text("request", unique=True),
    Column("payload", JSON, nullable=False),
    Column("mask", LargeBinary),
    Column("seconds", Float, nullable=False),
    _created(),
)
invites = Table("invite", metadata, _key(), _of("study"), _text("request", unique=True), _created())
parameters = Table(
    "parameter",
    metadata,
    _key(),
    _of("study"),
    _text("person"),
    _text("request", unique=True),
    Column("given", JSON, nullable=False),
    _created(),
)
events = Table(
    "event",
    metadata,
    _key(),
    _of("study"),
    _text("kind"),
    Column("person", Text),  # person that the event concerns; NULL for the entire study
    _text("request", unique=True),
    Column("payload", JSON, nullable=False),
    _created(),
)

SQLITE_GUARD = """CREATE TRIGGER IF NOT EXISTS {table}_no_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END"""
POSTGRES_FUNCTION = """CREATE OR REPLACE FUNCTION saliency_bench_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME; END $$"""
POSTGRES_GUARD = """CREATE OR REPLACE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION saliency_bench_append_only()"""


def _guard(table: Table) -> None:
    for verb in ("UPDATE", "DELETE"):
        text = SQLITE_GUARD.format(table=table.name, verb=verb)
        event.listen(table, "after_create", DDL(text).execute_if(dialect="sqlite"))
    for text in (POSTGRES_FUNCTION.replace("%", "%%"), POSTGRES_GUARD.format(table=table.name)):
        event.listen(table, "after_create", DDL(text).execute_if(dialect="postgresql"))


for _table in (studies, people, assignments, answers, reviews, corrections, invites, parameters, events):
    _guard(_table)


def prepare_sqlite(engine: Engine, patience: Callable[[], float]) -> None:
    """Configure SQLite so that readers do not wait (WAL) and every answer is on disk before it is confirmed (FULL).

    Write transactions acquire the lock when they begin (BEGIN IMMEDIATE). Otherwise, a transaction that first reads and
    then writes could fail halfway.

    Args:
        engine: SQLAlchemy engine for the file.
        patience: Function that returns the maximum time in seconds to wait for the lock.
    """

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions are started explicitly below
        for line in ("busy_timeout = 60000", "journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {line}")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(1000 * patience())}")
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
