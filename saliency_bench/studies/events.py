"""Events in a study other than answers: consent, displayed consent forms and instructions, and the owner's actions.

Events are never changed. The latest events determine the current state.
"""

import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import insert, select

from saliency_bench.studies.database import now, plain_json
from saliency_bench.studies.study import Study
from saliency_bench.studies.study_tables import events


@dataclass(frozen=True)
class Event:
    """An event, with its kind, its person (None for the entire study), its payload, and the time when it was stored."""

    kind: str
    person: str | None
    payload: Any
    created: str


def add_event(study: Study, kind: str, payload: Any, *, person: str | None = None, request: str | None = None) -> None:
    """Store an event. A repeated request is stored only once.

    Args:
        study: The study.
        kind: Kind of event, such as "consent".
        payload: JSON data.
        person: Person that the event concerns, or None for the entire study.
        request: Id of the event, or None to create a new id.
    """
    plain_json(payload)
    digest = _request(study, kind, person, secrets.token_hex(16) if request is None else request)
    row = {"study": study.id, "kind": kind, "person": person, "payload": payload, "request": digest, "created": now()}
    with study.store.writing() as connection:
        if connection.scalar(select(events.c.id).where(events.c.request == digest)) is None:
            connection.execute(insert(events).values(**row))


def has_event(study: Study, kind: str, *, person: str | None = None, request: str) -> bool:
    """Return whether an event with this request is stored."""
    digest = _request(study, kind, person, request)
    with study.store.reading() as connection:
        return connection.scalar(select(events.c.id).where(events.c.request == digest)) is not None


def _request(study: Study, kind: str, person: str | None, request: str) -> str:
    """Return the id of an event. The id is based on the name of the study, so it is the same in all stores."""
    return sha256(f"{study.name} {kind} {person} {request}".encode()).hexdigest()


def events_of(study: Study, *kinds: str) -> list[Event]:
    """Return the events of these kinds in the order in which they were stored."""
    columns = events.c.kind, events.c.person, events.c.payload, events.c.created
    rows = select(*columns).where(events.c.study == study.id, events.c.kind.in_(kinds)).order_by(events.c.id)
    with study.store.reading() as connection:
        return [Event(*row) for row in connection.execute(rows)]
