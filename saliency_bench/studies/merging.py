"""Two copies of a SQLite store as one: rows that only the other copy holds are added, and nothing is changed.

Rows of a store are only added, so two copies that began as one differ in what was added to each. A row is the same row
in both by what the browser or the study made of it (`request`, or person and unit), whatever its number.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saliency_bench.errors import UserError

# The pseudonym here of whoever is `t.person` there: a browser that joined both copies got one from each.
PERSON = """coalesce((SELECT p.name FROM other.person q JOIN main.person p ON p.request = q.request
    WHERE q.study = t.study AND q.name = t.person), t.person)"""
SAME = {  # how a row `t` of the other copy is found in this one, `o`; s: the number of its study here
    "person": "o.request = t.request",
    "assignment": f"o.study = s.here AND o.person = {PERSON} AND o.unit = t.unit",
    "answer": "o.request = t.request",
    "review": "o.request = t.request",
}
COLUMNS = {
    "person": ("name", "role", "key_sha256", "request", "created"),
    "assignment": ("person", "unit", "position", "created"),
    "answer": ("unit", "person", "revision", "request", "payload", "mask", "image_sha256", "seconds", "created"),
}
SETTINGS = ("kind", "dataset", "configuration", "seed")


@dataclass(frozen=True)
class Merged:
    """What a merge has done.

    Attributes:
        added: rows that came in.
        left_out: rows that contradict one here, such as another first answer of a person.
        ahead: whether this copy holds rows that the other one lacks.
    """

    added: int
    left_out: int
    ahead: bool


def merge(here: Path, other: Path) -> Merged:
    """Add to the store `here` what only the store `other` holds, in one transaction.

    Raises:
        UserError: Both hold a study of one name with other settings.
    """
    with _attached(here, other) as connection:
        before = _count(connection)
        _studies(connection)
        left_out = sum(_add(connection, table) for table in COLUMNS) + _add_reviews(connection)
        total, added = _count(connection), _count(connection) - before
        return Merged(added, left_out, ahead=total > _count(connection, "other") - left_out)


@contextmanager
def _attached(here: Path, other: Path) -> Iterator[sqlite3.Connection]:
    """Open a store with another one attached to it."""
    with closing(sqlite3.connect(here, timeout=60, isolation_level=None)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("ATTACH ? AS other", (str(other),))
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _count(connection: sqlite3.Connection, copy: str = "main") -> int:
    """Return the number of rows of a copy."""
    tables = ("study", *SAME)
    return sum(connection.execute(f"SELECT count(*) FROM {copy}.{table}").fetchone()[0] for table in tables)


def _studies(connection: sqlite3.Connection) -> None:
    """Add studies of the other copy, and make the temporary table `same_study` of their numbers (there, here)."""
    settings = ", ".join(SETTINGS)
    for name, *there in connection.execute(f"SELECT name, {settings} FROM other.study").fetchall():
        here = connection.execute(f"SELECT {settings} FROM main.study WHERE name = ?", (name,)).fetchone()
        if different := [] if here is None else _different(here, there):
            raise UserError(f"it holds the study '{name}' with another {' and '.join(different)}; give another --name")
    connection.execute(
        f"INSERT INTO main.study (name, {settings}, created) SELECT name, {settings}, created FROM other.study t "
        "WHERE NOT EXISTS (SELECT 1 FROM main.study o WHERE o.name = t.name) ORDER BY id"
    )
    connection.execute(
        "CREATE TEMP TABLE same_study AS SELECT t.id AS there, o.id AS here FROM other.study t "
        "JOIN main.study o ON o.name = t.name"
    )


def _different(here: Sequence[Any], there: Sequence[Any]) -> list[str]:
    """Return the settings in which two studies of a name differ."""
    pairs = zip(SETTINGS, here, there, strict=True)
    same = {"configuration": json.loads}  # the text of JSON may differ where its meaning does not
    return [key for key, our, their in pairs if same.get(key, str)(our) != same.get(key, str)(their)]


def _add(connection: sqlite3.Connection, table: str) -> int:
    """Add rows that are missing here; return how many cannot be added, as another row has their place."""
    names = ", ".join(COLUMNS[table])
    missing = (
        f"FROM other.{table} t JOIN same_study s ON s.there = t.study "
        f"WHERE NOT EXISTS (SELECT 1 FROM main.{table} o WHERE {SAME[table]})"
    )
    wanted = connection.execute(f"SELECT count(*) {missing}").fetchone()[0]
    columns = ", ".join(PERSON if name == "person" else f"t.{name}" for name in COLUMNS[table])
    connection.execute(
        f"INSERT OR IGNORE INTO main.{table} (study, {names}) SELECT s.here, {columns} {missing} ORDER BY t.id"
    )
    return wanted - connection.execute("SELECT changes()").fetchone()[0]


def _add_reviews(connection: sqlite3.Connection) -> int:
    """Add reviews of answers that are here; those of answers that were left out are left out, too."""
    missing = f"FROM other.review t WHERE NOT EXISTS (SELECT 1 FROM main.review o WHERE {SAME['review']})"
    wanted = connection.execute(f"SELECT count(*) {missing}").fetchone()[0]
    connection.execute(
        "INSERT OR IGNORE INTO main.review (answer, reviewer, verdict, comment, request, created) "
        "SELECT a.id, r.reviewer, r.verdict, r.comment, r.request, r.created FROM (SELECT t.* " + missing + ") r "
        "JOIN other.answer b ON b.id = r.answer JOIN main.answer a ON a.request = b.request ORDER BY r.id"
    )
    return wanted - connection.execute("SELECT changes()").fetchone()[0]
