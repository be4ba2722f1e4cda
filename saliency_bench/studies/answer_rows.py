"""Convert rows of a store to lines of JSON, and merge such lines into other stores.

A line is {"table": "answer", "study": NAME, ...}. Lines do not contain row numbers. Instead, they identify a study by
its name and a reviewed answer by its `request`. Because rows are only ever added, the lines of one store can be added
to another store in any order and any number of times. The result is always the rows of both stores.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, Table, insert, select
from sqlalchemy.dialects import sqlite

from saliency_bench.errors import UserError, one_line
from saliency_bench.studies.database import Database, differences
from saliency_bench.studies.study_tables import (
    answers,
    assignments,
    corrections,
    events,
    invites,
    parameters,
    people,
    reviews,
    studies,
)

TABLES = (
    studies,
    people,
    assignments,
    answers,
    reviews,
    corrections,
    invites,
    parameters,
    events,
)  # rows refer only to earlier tables
OF_ANSWERS = (reviews, corrections)  # tables whose rows refer to an answer
SETTINGS = ("kind", "dataset", "configuration", "seed")  # columns of a study
KEYS = {"assignment": ("study", "person", "unit")}  # columns that identify a row (default: request)
Marks = dict[str, int]  # {table: number of the last row}


class Added(NamedTuple):
    """Number of rows that were added, and number of rows that were skipped because they contradict existing rows."""

    added: int
    left_out: int


def lines_after(store: Database, marks: Marks) -> tuple[list[str], Marks]:
    """Return the rows added since `marks`, as lines, and the new marks."""
    lines, marks = [], dict(marks)
    with store.reading() as connection:
        names = dict(connection.execute(select(studies.c.id, studies.c.name)).tuples().all())
        for table in TABLES:
            for row in connection.execute(_after(table, marks.get(table.name, 0))).mappings():
                values = dict(row)
                marks[table.name] = values.pop("id")
                if table in OF_ANSWERS:
                    values["answer"] = values.pop("of")
                if "study" in values:
                    values["study"] = names[values["study"]]
                if values.get("mask") is not None:
                    values["mask"] = b64encode(values["mask"]).decode()
                lines.append(json.dumps({"table": table.name, **values}))
    return lines, marks


def _after(table: Table, mark: int) -> Select[Any]:
    """Return a query for a table's rows after a row number.

    If a row refers to an answer, the result includes the request of this answer.
    """
    query = select(table).where(table.c.id > mark).order_by(table.c.id)
    if table in OF_ANSWERS:
        query = query.add_columns(answers.c.request.label("of")).join(answers, answers.c.id == table.c.answer)
    return query


def add_lines(store: Database, lines: Iterable[str], source: str) -> Added:
    """Add the rows that a SQLite store does not contain yet, in one transaction.

    Raises:
        UserError: A line is not a row, or its study is missing or exists with different settings.
    """
    rows = _parse(lines, source)
    added = left_out = 0
    with store.writing() as connection:
        numbers = _add_studies(connection, rows[studies.name])
        if lost := {values["study"] for values in chain(*rows.values()) if "study" in values} - numbers.keys():
            raise UserError(f"{source} has rows of the study '{min(lost)}' but not the study itself")
        for table in TABLES[1:]:
            for values in _missing(connection, table, rows[table.name], numbers):
                # A row that violates a constraint contradicts an existing row, such as a different first answer.
                result = connection.execute(sqlite.insert(table).values(**values).on_conflict_do_nothing())
                added, left_out = added + result.rowcount, left_out + 1 - result.rowcount
    return Added(added, left_out)


def _parse(lines: Iterable[str], source: str) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {table.name: [] for table in TABLES}
    columns = {table.name: {column.name for column in table.c} - {"id"} for table in TABLES}
    for line in lines:
        try:
            values = json.loads(line)
            name = values.pop("table")
            if values.keys() != columns[name]:
                raise ValueError(f"a row of the table {name} has unexpected columns")
            if values.get("mask") is not None:
                values["mask"] = b64decode(values["mask"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{source} is not a copy of a store ({one_line(error)})") from None
        rows[name].append(values)
    return rows


def _add_studies(connection: Connection, rows: list[dict[str, Any]]) -> dict[str, int]:
    """Add missing studies. Return {name: row number} for all studies."""
    for values in rows:
        here = connection.execute(select(studies).where(studies.c.name == values["name"])).mappings().first()
        if here is None:
            connection.execute(insert(studies).values(**values))
        elif different := differences(values, {key: here[key] for key in SETTINGS}):
            raise UserError(
                f"both contain the study '{values['name']}', but with a different {different}; use a different --name"
            )
    return dict(connection.execute(select(studies.c.name, studies.c.id)).tuples().all())


def _missing(
    connection: Connection, table: Table, rows: list[dict[str, Any]], numbers: dict[str, int]
) -> list[dict[str, Any]]:
    names = KEYS.get(table.name, ("request",))
    here = set(map(tuple, connection.execute(select(*(table.c[name] for name in names)))))
    if table in OF_ANSWERS:  # skip rows that refer to a skipped answer
        of_request = dict(connection.execute(select(answers.c.request, answers.c.id)).tuples().all())
        rows = [row | {"answer": of_request[row["answer"]]} for row in rows if row["answer"] in of_request]
    else:
        rows = [row | {"study": numbers[row["study"]]} for row in rows]
    return [row for row in rows if tuple(row[name] for name in names) not in here]


def copy_without(store: Database, target: Database, people_left_out: Collection[str]) -> Added:
    """Copy all rows to an empty SQLite store, except those of some people.

    This is the only way to erase people from a store to which rows can only be added. Reviews and corrections of their
    answers, and reviews written by them, are not copied either.
    """
    lines, _ = lines_after(store, {})

    def is_theirs(line: str) -> bool:
        row = json.loads(line)
        name = row["name"] if row["table"] == people.name else row.get("person") or row.get("reviewer")
        return row["table"] != studies.name and name in people_left_out

    return add_lines(target, [line for line in lines if not is_theirs(line)], store.text)
