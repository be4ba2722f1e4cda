"""A store of studies: answers of people, of every protocol, in one SQLite file or a PostgreSQL database.

    store = Store("study.db")                                  # or Store("postgresql://user@host/database")
    study = store.study("annotate", "gender", dataset=fingerprint(rows), configuration={"annotators": 3}, seed=0)
    person = study.join(request)                               # a pseudonym and its key; the page keeps the key
    study.assign(person.name, ["000000000036", ...])           # units for this person, in this order
    study.record(person.name, "000000000036", request, {"kind": "mask"}, mask=mask, seconds=21.5)
    study.answers()                                            # the last answer of each person to each unit

A *unit* is the subject of an answer, named by the protocol: an image id to draw on; an image, a model and an explainer
to rate or to guess. Several answers of a person to a unit are revisions 1, 2, ...: corrections of a mask, or the
exposures of a peek-a-boom image. `payload` is any JSON.

**Nothing is lost, doubled or overwritten.** Rows are only added; triggers in the database refuse anything else.
`request` is an id that the page makes for each answer: the same request again (a double click, a repeat after a lost
connection or a restart of the server) stores nothing and returns the stored row. `record` returns once the row is on
the disk. Writers wait for each other; readers never wait. A study of the same name is the same study: it resumes.

Needs `pip install "saliency-bench[studies]"`; for PostgreSQL also `psycopg`.
"""

import json
from typing import Any

from sqlalchemy import insert, select

from saliency_bench.errors import UserError
from saliency_bench.studies.database import Database, check_text, differences, now, plain_json
from saliency_bench.studies.study import Study
from saliency_bench.studies.study_tables import studies


class Store(Database):
    """A store at `place`, the path of a SQLite file or the URL of a PostgreSQL database; it is created if missing.

    Raises:
        UserError: The place holds something else, or cannot be reached or written; passwords are not shown.
    """

    def study(
        self, kind: str, name: str, *, dataset: str = "", configuration: dict[str, Any] | None = None, seed: int = 0
    ) -> Study:
        """Return the study of this name, or create it.

        Args:
            kind: "annotate", "assess" or "peekaboom".
            name: name of the study.
            dataset: fingerprint of its images.
            configuration: settings, as JSON.
            seed: seed of its orders.

        Raises:
            UserError: A study of this name exists with another kind, dataset, configuration or seed.
        """
        wanted = {
            "kind": kind,
            "dataset": dataset,
            "configuration": json.loads(plain_json(configuration or {})),
            "seed": seed,
        }
        check_text("name of a study", name)
        with self.writing() as connection:
            row = connection.execute(select(studies).where(studies.c.name == name)).mappings().first()
            if row is None:
                connection.execute(insert(studies).values(name=name, created=now(), **wanted))
                row = connection.execute(select(studies).where(studies.c.name == name)).mappings().one()
        if different := differences(dict(row), wanted):
            raise UserError(
                f"{self.text} holds a study '{name}' with another {different}; give the same settings to resume it, "
                "or another --name"
            )
        return self._study(dict(row))

    def get(self, name: str) -> Study | None:
        """Return the study of this name, or None."""
        with self.reading() as connection:
            row = connection.execute(select(studies).where(studies.c.name == name)).mappings().first()
        return None if row is None else self._study(dict(row))

    def all(self) -> list[Study]:
        """Return all studies in the order of their creation."""
        with self.reading() as connection:
            rows = connection.execute(select(studies).order_by(studies.c.id)).mappings().all()
        return [self._study(dict(row)) for row in rows]

    def find(self, name: str | None = None, kind: str | None = None, option: str = "--name") -> Study:
        """Return the study of this name, or the only one (of a kind).

        Args:
            name: the study's; None for the only one.
            kind: "annotate" or another; None for any.
            option: option of the caller that takes the name, for the message.

        Raises:
            UserError: There is no such study, or there are several.
        """
        every = self.all()
        fitting = [study for study in every if name in (None, study.name) and kind in (None, study.kind)]
        if len(fitting) == 1:
            return fitting[0]
        known = ", ".join(f"{study.name} ({study.kind})" for study in every) or "none"
        problem = f"several studies; give {option}" if fitting else "no such study"
        raise UserError(f"{self.text} holds {problem}; it has: {known}")

    def _study(self, row: dict[str, Any]) -> Study:
        return Study(self, **{key: row[key] for key in ("id", "kind", "name", "dataset", "configuration", "seed")})
