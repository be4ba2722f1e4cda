"""Tables for paying participants: the work of each person, and a separate table of their external ids."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from saliency_bench.studies.events import events_of
from saliency_bench.studies.study import CORRECTED, Answer, Study

PAYMENTS = ("person", "answers", "median seconds", "minutes", "checks right", "checks", "accepted", "rejected",
            "corrected", "last answer", "agreed")  # fmt: skip


def payment_rows(study: Study, checks: Mapping[str, Sequence[bool]]) -> list[tuple]:
    """Return one row of the table PAYMENTS for each person who has joined or answered.

    The seconds are the time for which questions were on the screen. A corrected image counts once, with its total time.

    Args:
        study: Study of any protocol.
        checks: {person: whether each attention check or honeypot was answered correctly}.
    """
    by_person: dict[str, list[Answer]] = {name: [] for name in study.people("annotator")}
    for answer in study.answers(last=False, masks=False):
        by_person.setdefault(answer.person, []).append(answer)
    verdicts = _verdicts(study)
    agreed = {event.person: event.created for event in events_of(study, "consent")}  # latest consent
    rows = []
    for person, given in by_person.items():
        seconds: dict[str, float] = defaultdict(float)
        for answer in given:
            seconds[answer.unit] += answer.seconds
        times = list(seconds.values())
        rows.append(
            (
                person,
                len(seconds),
                float(np.median(times)) if times else None,
                round(sum(times) / 60, 2),
                sum(checks.get(person, [])),
                len(checks.get(person, [])),
                verdicts[person, "accept"],
                verdicts[person, "reject"],
                verdicts[person, CORRECTED],
                given[-1].created if given else None,
                agreed.get(person),
            )
        )
    return rows


def _verdicts(study: Study) -> Counter[tuple[str, str]]:
    """Return {(person, verdict): number of the person's last answers with this verdict}."""
    reviews = study.reviews()
    last = study.answers(masks=False)
    return Counter((answer.person, reviews[answer.id].verdict) for answer in last if answer.id in reviews)


def parameter_table(study: Study) -> tuple[tuple[str, ...], list[tuple]]:
    """Return (header, rows) with the URL parameters in the link that each person opened. Missing values are ""."""
    of_people = study.parameters()
    names = sorted({name for values in of_people.values() for name in values})
    rows = [(person, *(values.get(name, "") for name in names)) for person, values in of_people.items()]
    return ("person", *names), rows
