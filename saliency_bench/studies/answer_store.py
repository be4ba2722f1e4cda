"""A store for the answers of all types of studies, in a SQLite file or a PostgreSQL database.

    store = Store("study.db")                                  # or Store("postgresql://user@host/database")
    study = store.study("annotate", "gender", dataset=fingerprint(rows), configuration={"annotators": 3}, seed=0)
    person = study.join(request)                               # a pseudonym and its key; the page stores the key
    study.assign(person.name, ["000000000036", ...])           # units for this person, in this order
    study.record(person.name, "000000000036", request, {"kind": "mask"}, mask=mask, seconds=21.5)
    study.answers()                                            # the last answer of each person to each unit

A *unit* is the item that a question is about. The protocol defines the name of a unit. It is the id of an image to
annotate, or an image together with the explainer whose map people rate or use to guess the class. If a person answers a
unit several times, the answers are revisions 1, 2, ..., such as corrections of a mask, or the exposures of a
peek-a-boom image. `payload` can be any JSON.

**Answers are never lost, duplicated or overwritten.** Rows are only added; triggers in the database reject all other
changes. `request` is an id that the page creates for each answer. If a request is repeated (a double click, or a retry
after a lost connection or a restart of the server), nothing is stored, and the stored row is returned. `record` returns
only after the row has been written to disk. Writers wait for each other; readers never wait. Opening a study with an
existing name resumes that study.

Requires `pip install "saliency-bench[studies]"`; PostgreSQL also requires `psycopg`.
"""

import json
from typing import Any

from sqlalchemy import insert, select

from saliency_bench.errors import UserError
from saliency_bench.studies.database import Database, check_text, differences, now, plain_json
from saliency_bench.studies.study import Study
from saliency_bench.studies.study_tables import studies


class Store(Database):
    """A store in a SQLite file (path) or in a PostgreSQL database (URL). If the store is missing, it is created.

    Raises:
        UserError: The file or database is not a store, or cannot be reached or written. Messages contain no passwords.
    """

    def study(
        self, kind: str, name: str, *, dataset: str = "", configuration: dict[str, Any] | None = None, seed: int = 0
    ) -> Study:
        """Return the study with this name. If it is missing, create it.

        Args:
            kind: "annotate", "assess" or "peekaboom".
            name: Name of the study.
            dataset: Fingerprint of the images.
            configuration: Settings as JSON.
            seed: Seed for the order of units.

        Raises:
            UserError: A study with this name exists but has a different kind, dataset, configuration or seed.
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
                f"{self.text} contains a study '{name}' with a different {different}; use the same settings to resume "
                "it, or a different --name"
            )
        return self._study(dict(row))

    def get(self, name: str) -> Study | None:
        """Return the study with this name, or None."""
        with self.reading() as connection:
            row = connection.execute(select(studies).where(studies.c.name == name)).mappings().first()
        return None if row is None else self._study(dict(row))

    def all(self) -> list[Study]:
        """Return all studies in order of creation."""
        with self.reading() as connection:
            rows = connection.execute(select(studies).order_by(studies.c.id)).mappings().all()
        return [self._study(dict(row)) for row in rows]

    def find(self, name: str | None = None, kind: str | None = None, option: str = "--name") -> Study:
        """Return the study with this name, or the only study.

        Args:
            name: Name of the study, or None if there is only one study (of this kind).
            kind: Required kind, such as "annotate", or None for any kind.
            option: Command-line option that sets the name, which error messages mention.

        Raises:
            UserError: No study matches, or several studies match and no name is given.
        """
        every = self.all()
        fitting = [study for study in every if name in (None, study.name) and kind in (None, study.kind)]
        if len(fitting) == 1:
            return fitting[0]
        known = ", ".join(f"{study.name} ({study.kind})" for study in every) or "none"
        problem = f"several studies; specify {option}" if fitting else "no such study"
        raise UserError(f"{self.text} contains {problem}; available: {known}")

    def _study(self, row: dict[str, Any]) -> Study:
        return Study(self, **{key: row[key] for key in ("id", "kind", "name", "dataset", "configuration", "seed")})
