"""Actions of the owner of a running study: pause, close, open it again, leave a person out, take them in again.

Each is an event, so that nothing is lost: the last one holds, and all of them, with their times, stay in the store.
A closed study accepts answers that people still send and gives out no new images. Whoever is left out is given
nothing new either; their answers stay, results are shown with and without them, and their images go to others.
"""

from typing import Any

from saliency_bench.errors import UserError
from saliency_bench.studies.database import check_text
from saliency_bench.studies.events import add_event, events_of
from saliency_bench.studies.study import Study

STATUS = {"open": "open", "pause": "paused", "close": "closed"}  # what a study is after each of these actions
OF_PEOPLE = ("exclude", "include")
LONGEST_REASON = 300  # characters


def act(study: Study, action: object, request: object, person: object = None, reason: object = "") -> None:
    """Store what the owner did, once however often this request is repeated.

    Raises:
        UserError: There is no such action, or no such person.
    """
    if action not in (*STATUS, *OF_PEOPLE) or not isinstance(action, str):
        raise UserError(f"action is one of {', '.join((*STATUS, *OF_PEOPLE))}")
    if action in STATUS:
        person = None
    elif not isinstance(person, str) or person not in participants(study):
        raise UserError("nobody of this name takes part")
    check_text("request", request, 200)
    payload = {"reason": str(reason or "")[:LONGEST_REASON]}
    add_event(study, action, payload, person=person, request=str(request))


def participants(study: Study) -> set[str]:
    """Return those who have joined to answer, or whose answers were imported."""
    return {*study.people("annotator"), *(answer.person for answer in study.answers(masks=False))}


def status(study: Study) -> str:
    """Return "open", "paused" or "closed"."""
    actions = events_of(study, *STATUS)
    return STATUS[actions[-1].kind] if actions else "open"


def excluded(study: Study) -> dict[str, str]:
    """Return {person who is left out: the reason}."""
    reasons: dict[str, str] = {}
    for event in events_of(study, *OF_PEOPLE):
        if event.kind == "exclude":
            reasons[str(event.person)] = event.payload["reason"]
        else:
            reasons.pop(str(event.person), None)
    return reasons


def stopped(study: Study, person: str) -> dict[str, Any] | None:
    """Return what the page of a person who is given nothing says: why ("stopped"), and how much is done; else None."""
    why = "excluded" if person in excluded(study) else status(study)
    if why == "open":
        return None
    count = len(study.answered(person))
    return {"stopped": why, "done": count, "total": count}
