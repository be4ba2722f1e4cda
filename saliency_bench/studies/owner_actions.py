"""Actions of the owner of a running study: pause, close or reopen the study, and exclude or readmit a person.

Each action is an event. The last action applies, and the store contains all actions with their times. A closed study
accepts answers about images that are already assigned, but does not assign new images. Excluded people do not get new
images either. Their answers are kept, results are reported with and without these answers, and their images are
assigned to other people.
"""

from typing import Any

from saliency_bench.errors import UserError
from saliency_bench.studies.database import check_text
from saliency_bench.studies.events import add_event, events_of
from saliency_bench.studies.study import Study

STATUS = {"open": "open", "pause": "paused", "close": "closed"}  # {action: status of the study afterwards}
OF_PEOPLE = ("exclude", "include")
LONGEST_REASON = 300  # maximum length in characters


def act(study: Study, action: object, request: object, person: object = None, reason: object = "") -> None:
    """Store an action taken by the owner. A repeated request is stored only once.

    Raises:
        UserError: The action or the person is unknown.
    """
    if action not in (*STATUS, *OF_PEOPLE) or not isinstance(action, str):
        raise UserError(f"action must be one of {', '.join((*STATUS, *OF_PEOPLE))}")
    if action in STATUS:
        person = None
    elif not isinstance(person, str) or person not in participants(study):
        raise UserError("no person with this name takes part in the study")
    check_text("request", request, 200)
    payload = {"reason": str(reason or "")[:LONGEST_REASON]}
    add_event(study, action, payload, person=person, request=str(request))


def participants(study: Study) -> set[str]:
    """Return the people who have joined as annotators or whose masks were imported."""
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
    """Return the page data for a person who gets no new images, with the reason as "stopped".

    Return None for other people.
    """
    why = "excluded" if person in excluded(study) else status(study)
    if why == "open":
        return None
    count = len(study.answered(person))
    return {"stopped": why, "done": count, "total": count}
