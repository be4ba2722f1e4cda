"""Actions of the owner of a running study: pause, close, reopen it, exclude a person, readmit a person.

Each action is an event, so that nothing is lost: the last one applies, and all of them stay in the store with their
times. A closed study accepts answers to images that people already have, and gives out no new images. An excluded
person gets no new images either; their answers stay, results are shown with and without them, and their images go to
others.
"""

from typing import Any

from saliency_bench.errors import UserError
from saliency_bench.studies.database import check_text
from saliency_bench.studies.events import add_event, events_of
from saliency_bench.studies.study import Study

STATUS = {"open": "open", "pause": "paused", "close": "closed"}  # {action: status of the study afterwards}
OF_PEOPLE = ("exclude", "include")
LONGEST_REASON = 300  # characters


def act(study: Study, action: object, request: object, person: object = None, reason: object = "") -> None:
    """Store an action of the owner; repeated requests are stored once.

    Raises:
        UserError: There is no such action, or no such person.
    """
    if action not in (*STATUS, *OF_PEOPLE) or not isinstance(action, str):
        raise UserError(f"action must be one of {', '.join((*STATUS, *OF_PEOPLE))}")
    if action in STATUS:
        person = None
    elif not isinstance(person, str) or person not in participants(study):
        raise UserError("nobody of this name takes part")
    check_text("request", request, 200)
    payload = {"reason": str(reason or "")[:LONGEST_REASON]}
    add_event(study, action, payload, person=person, request=str(request))


def participants(study: Study) -> set[str]:
    """Return the people who have joined as annotators, or whose answers were imported."""
    return {*study.people("annotator"), *(answer.person for answer in study.answers(masks=False))}


def status(study: Study) -> str:
    """Return "open", "paused" or "closed"."""
    actions = events_of(study, *STATUS)
    return STATUS[actions[-1].kind] if actions else "open"


def excluded(study: Study) -> dict[str, str]:
    """Return {excluded person: reason}."""
    reasons: dict[str, str] = {}
    for event in events_of(study, *OF_PEOPLE):
        if event.kind == "exclude":
            reasons[str(event.person)] = event.payload["reason"]
        else:
            reasons.pop(str(event.person), None)
    return reasons


def stopped(study: Study, person: str) -> dict[str, Any] | None:
    """Return the state of the page of a person who gets no images: the reason ("stopped") and progress; else None."""
    why = "excluded" if person in excluded(study) else status(study)
    if why == "open":
        return None
    count = len(study.answered(person))
    return {"stopped": why, "done": count, "total": count}
