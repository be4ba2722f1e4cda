"""Cache a study's assignments and their state in memory, and update them from new rows of the store.

Rows are only added, and only by one writer at a time, so row numbers increase in the order in which rows become
visible. Data that was read up to a row number therefore remains valid, and the cost of a request does not depend on the
size of the study. Several servers may write to the same store.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from saliency_bench.studies.database import lately
from saliency_bench.studies.owner_actions import OF_PEOPLE
from saliency_bench.studies.study import LEASE_HOURS, Study
from saliency_bench.studies.study_tables import answers, assignments, events, reviews
from saliency_bench.utils.seeds import seed_of

TABLES = (assignments, answers, reviews, events)
SETTLED, OPEN = "settled", "open"


@dataclass(slots=True)
class _Place:
    """Assignment of a unit to a person.

    Attributes:
        position: Position in the person's order, or None if the unit was answered but never assigned.
        first: Id of the first answer, or 0 if there is none.
        last: Id of the last answer, or 0 if there is none.
        kind: Value of `kind` in the payload of the last answer.
        state: SETTLED, OPEN, or None if the assignment does not count.
    """

    position: int | None = None
    first: int = 0
    last: int = 0
    kind: str | None = None
    state: str | None = None


class Places:
    """Thread-safe cache of a study's assignments. `units` are the units that can be assigned."""

    def __init__(self, study: Study, units: Sequence[str]):
        self.study = study
        self.order = sorted(units, key=lambda unit: seed_of(study.seed, "order", unit))
        self._index = {unit: index for index, unit in enumerate(self.order)}
        self._settled = np.zeros(len(self.order), np.int32)  # (N,): number of people with a settled answer, per unit
        self._people: dict[str, dict[str, _Place]] = {}
        self._open: dict[str, set[str]] = {}  # {person: assigned units that are unanswered or sent back}
        self._times: dict[str, list[str]] = {}  # {person: sorted times of assignments and answers}
        self._comments: dict[int, str] = {}  # {number of an answer that was sent back: the reviewer's comment}
        self._excluded: set[str] = set()
        self._seen = dict.fromkeys(TABLES, 0)  # {table: number of the last row that was read}
        self._lock = RLock()

    def refresh(self) -> None:
        """Read the rows that were added since the last call.

        Within a transaction, call this before the first write, because the transaction may be rolled back.
        """
        newest = select(*(select(func.max(table.c.id)).scalar_subquery() for table in TABLES))
        with self._lock, self.study.store.reading() as connection:
            last = connection.execute(newest).one()
            for table, number in zip(TABLES, last, strict=True):
                if (number or 0) > self._seen[table]:
                    self._read(connection, table)
                    self._seen[table] = number

    def _read(self, connection: Connection, table: Any) -> None:
        columns: tuple[Any, ...]
        if table is assignments:
            columns = assignments.c.person, assignments.c.unit, assignments.c.position, assignments.c.created
            for person, unit, position, created in self._new(connection, table, *columns):
                self._place(person, unit).position = position
                self._stamp(person, unit, created)
        elif table is answers:
            of_payload = answers.c.payload["kind"].as_string()
            columns = answers.c.person, answers.c.unit, answers.c.id, of_payload, answers.c.created
            for person, unit, number, kind, created in self._new(connection, table, *columns):
                place = self._place(person, unit)
                place.first, place.last, place.kind = place.first or number, number, kind
                self._stamp(person, unit, created)
        elif table is reviews:
            columns = answers.c.person, answers.c.unit, answers.c.id, reviews.c.verdict, reviews.c.comment
            for person, unit, number, verdict, comment in self._new(connection, table, *columns):
                self._comments.pop(number, None)
                if verdict == "reject":
                    self._comments[number] = comment
                self._count(person, unit)
        else:
            for kind, person in self._new(connection, table, events.c.kind, events.c.person):
                if kind in OF_PEOPLE:
                    (self._excluded.add if kind == "exclude" else self._excluded.discard)(person)

    def _new(self, connection: Connection, table: Any, *columns: Any) -> Sequence[Any]:
        """Return these columns of a table's new rows. The oldest row comes first."""
        rows = select(*columns).where(table.c.id > self._seen[table]).order_by(table.c.id)
        rows = rows.join(answers, answers.c.id == reviews.c.answer) if table is reviews else rows
        return connection.execute(rows.where((answers if table is reviews else table).c.study == self.study.id)).all()

    def _place(self, person: str, unit: str) -> _Place:
        return self._people.setdefault(person, {}).setdefault(unit, _Place())

    def _stamp(self, person: str, unit: str, created: str) -> None:
        """Store the time of a person's activity, and update the state of the assignment."""
        insort(self._times.setdefault(person, []), created)
        self._count(person, unit)

    def _count(self, person: str, unit: str) -> None:
        """Recompute the state of an assignment, and the number of people who count for its unit.

        A person who skipped the unit does not count. A unit whose answer was sent back counts as unanswered.
        """
        place = self._place(person, unit)
        is_given = place.position is not None and place.kind != "skip"
        is_settled = place.last > 0 and place.last not in self._comments
        before, place.state = place.state, (SETTLED if is_settled else OPEN) if is_given else None
        if (index := self._index.get(unit)) is not None:
            self._settled[index] += (place.state == SETTLED) - (before == SETTLED)
        units = self._open.setdefault(person, set())
        (units.add if place.state == OPEN else units.discard)(unit)

    # queries: the state at the last `refresh`

    def given(self, person: str) -> list[str]:
        """Return the units assigned to a person, in the person's order."""
        with self._lock:
            places = self._people.get(person, {})
            given = [(place.position, unit) for unit, place in places.items() if place.position is not None]
        return [unit for _, unit in sorted(given)]

    def is_given(self, person: str, unit: str) -> bool:
        """Return whether a unit is assigned to a person. New rows are read if necessary."""

        def known() -> bool:
            place = self._people.get(person, {}).get(unit)
            return place is not None and place.position is not None

        if not known():
            self.refresh()
        return known()

    def answered(self, person: str) -> list[str]:
        """Return the units that a person has answered, in the order of the first answer to each."""
        with self._lock:
            done = [(place.first, unit) for unit, place in self._people.get(person, {}).items() if place.first]
        return [unit for _, unit in sorted(done)]

    def sent_back(self, person: str) -> dict[str, str]:
        """Return {unit: comment} for units whose last answer was sent back to the person.

        The oldest answer comes first.
        """
        with self._lock:
            last = [(place.last, unit) for unit, place in self._people.get(person, {}).items()]
            return {unit: self._comments[number] for number, unit in sorted(last) if number in self._comments}

    def counts(self, lease_hours: float = LEASE_HOURS) -> np.ndarray:
        """For each unit in `order`, return the number of people who have answered or reserved it, (N,).

        Open units are reserved for `lease_hours` after the person's last assignment or answer. Excluded people and
        skipped units do not count.
        """
        first, last = lately(lease_hours)
        with self._lock:
            counts = self._settled.copy()
            for person in self._excluded:
                counts[self._indices(person, SETTLED)] -= 1
            for person, units in self._open.items():
                if units and person not in self._excluded and self._is_active(person, first, last):
                    counts[[self._index[unit] for unit in units if unit in self._index]] += 1
        return counts

    def _indices(self, person: str, state: str) -> list[int]:
        places = self._people.get(person, {}).items()
        return [self._index[unit] for unit, place in places if unit in self._index and place.state == state]

    def _is_active(self, person: str, first: str, last: str) -> bool:
        times = self._times[person]
        index = bisect_left(times, first)
        return index < len(times) and times[index] <= last

    def left(self, person: str, allowed: np.ndarray, per_unit: int, lease_hours: float = LEASE_HOURS) -> np.ndarray:
        """Return the indices in `order` of the units that are available to a person.

        Units with the fewest people come first.

        Args:
            person: Pseudonym of the person.
            allowed: Mask, bool (N,), of the units in `order` that can be assigned.
            per_unit: Maximum number of people per unit.
            lease_hours: Duration of reservations, as for `counts`.
        """
        counts = self.counts(lease_hours)
        free = allowed & (counts < per_unit)
        with self._lock:
            given = [self._index[unit] for unit in self.given(person) if unit in self._index]
        free[given] = False
        indices = np.flatnonzero(free)
        return indices[np.argsort(counts[indices], kind="stable")]

    def draw(
        self, person: str, allowed: np.ndarray, per_unit: int, count: int = 1, lease_hours: float = LEASE_HOURS
    ) -> list[str]:
        """Assign up to `count` more units to a person, and return these units. `left` describes the other arguments.

        All units are assigned in one transaction, so no other assignment can happen in between. Units with the same
        number of people are assigned in a pseudo-random order that depends on the study and the unit.
        """
        with self.study.store.writing() as connection:
            self.refresh()
            chosen = [self.order[index] for index in self.left(person, allowed, per_unit, lease_hours)[:count]]
            self.study.append_new(connection, person, chosen, len(self.given(person)))
        self.refresh()
        return chosen
