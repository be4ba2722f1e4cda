"""Overview of a running study for its owner: progress, speed, and which people and images to check.

People are marked as
    quick      if the median time per answer is below a third of the median over all people
    careless   if they answered fewer than half of their checks correctly, or if their agreement with others is below
               half of the median. If a study's results exclude people who fail a check, a single wrong answer suffices
    stuck      if they have an assignment and have been inactive for longer than the lease

Times are compared only among people with at least `ENOUGH` answers, and agreements only among people with at least
`ENOUGH` shared images. If there are fewer than `ENOUGH` such people, this comparison marks nobody. The marks are hints
for the owner and do not exclude anyone.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from saliency_bench.studies.agreement import iou
from saliency_bench.studies.annotating import Annotating
from saliency_bench.studies.database import lately
from saliency_bench.studies.events import events_of
from saliency_bench.studies.owner_actions import OF_PEOPLE, STATUS, excluded, status
from saliency_bench.studies.study import Answer, Study

ENOUGH = 3
QUICK, CARELESS_CHECKS, CARELESS_AGREEMENT = 1 / 3, 0.5, 0.5
LOW_IOU = 0.5  # agreement below which an image should be checked
DAY = 24.0  # hours over which speed is measured


def overview(
    study: Study,
    done: int,
    wanted: int,
    counted: Sequence[str],
    checks: Mapping[str, Sequence[bool]],
    lease_hours: float,
    agreement: Mapping[str, tuple[float, int]] | None = None,
    needed: float = CARELESS_CHECKS,
) -> dict[str, Any]:
    """Describe the state of a study as plain data. The study can use any protocol.

    Args:
        study: The study.
        done: Number of answers that count so far.
        wanted: Number of answers that the study needs.
        counted: Times at which the answers that count were given.
        checks: {person: whether each check was answered correctly}.
        lease_hours: Number of hours of inactivity after which a person with open assignments is marked as stuck.
        agreement: {person: (mean agreement with others, number of images)}, or None if the protocol does not define it.
        needed: Fraction of checks answered correctly below which a person is marked as careless.
    """
    answers = study.answers(last=False, masks=False)
    left, (first, last) = max(wanted - done, 0), lately(DAY)
    of_day = sum(first <= time <= last for time in counted)
    return {
        "study": study.name,
        "kind": study.kind,
        "status": status(study),
        "done": done,
        "wanted": wanted,
        "last day": of_day,
        "days left": round(left / of_day, 1) if of_day and left else None,
        "by day": dict(sorted(Counter(time[:10] for time in counted).items())[-30:]),
        "people": _people(study, answers, checks, lease_hours, agreement or {}, needed),
        "actions": [
            {"action": event.kind, "person": event.person, "reason": event.payload["reason"], "when": event.created}
            for event in events_of(study, *STATUS, *OF_PEOPLE)
        ],
    }


def _people(
    study: Study,
    answers: Sequence[Answer],
    checks: Mapping[str, Sequence[bool]],
    lease_hours: float,
    agreement: Mapping[str, tuple[float, int]],
    needed: float,
) -> list[dict[str, Any]]:
    """Return one row per person. People who should be checked come first."""
    seconds: dict[str, dict[str, float]] = {name: defaultdict(float) for name in study.people("annotator")}
    last: dict[str, str] = {}
    for answer in answers:
        seconds.setdefault(answer.person, defaultdict(float))[answer.unit] += answer.seconds
        last[answer.person] = answer.created
    waiting: Counter[str] = Counter()
    for entry in study.assignments():
        waiting[entry.person] += entry.unit not in seconds.get(entry.person, {})
        last[entry.person] = max(last.get(entry.person, ""), entry.created)
    without, (first, until) = excluded(study), lately(lease_hours)
    rows = []
    for person, times in seconds.items():
        mean, images = agreement.get(person, (None, 0))
        row: dict[str, Any] = {
            "person": person,
            "answers": len(times),
            "seconds": float(np.median(list(times.values()))) if times else None,
            "open": waiting[person],
            "last": last.get(person),
            "checks right": int(sum(checks.get(person, []))),
            "checks": len(checks.get(person, [])),
            "agreement": mean,
            "shared": images,
            "excluded": without.get(person),
        }
        row["stuck"] = bool(waiting[person] and not first <= last[person] <= until)
        rows.append(row)
    _mark(rows, needed)
    return sorted(rows, key=lambda row: (row["excluded"] is not None, -len(row["marks"]), -row["answers"]))


def _mark(rows: Sequence[dict[str, Any]], needed: float) -> None:
    """Add `marks` to the rows of people. The marks are "quick", "careless" and "stuck"."""
    usual = _median(row["seconds"] for row in rows if row["answers"] >= ENOUGH)
    agreeing = _median(row["agreement"] for row in rows if row["shared"] >= ENOUGH)
    for row in rows:
        quick = usual is not None and row["answers"] >= ENOUGH and row["seconds"] < QUICK * usual
        failed = row["checks"] > 0 and row["checks right"] < needed * row["checks"]
        alone = agreeing is not None and row["shared"] >= ENOUGH and row["agreement"] < CARELESS_AGREEMENT * agreeing
        marks = {"quick": quick, "careless": failed or alone, "stuck": row.pop("stuck")}
        row["marks"] = [name for name, holds in marks.items() if holds]


def _median(values: Any) -> float | None:
    """Return the median, or None if there are fewer than `ENOUGH` values."""
    values = list(values)
    return float(np.median(values)) if len(values) >= ENOUGH else None


@dataclass
class AnnotationOverview:
    """The overview of an annotation study, including its images. IoUs are cached until the answers change."""

    annotating: Annotating
    known: dict[str, tuple[tuple[int, ...], dict[tuple[str, str], float]]] = field(default_factory=dict)

    def __call__(self) -> dict[str, Any]:
        """Return the state of the study."""
        annotating = self.annotating
        without = excluded(annotating.study)
        answers: dict[str, list[Answer]] = {unit: [] for unit in annotating.units}
        for answer in annotating.study.answers(masks=False):
            if answer.unit in answers and answer.person not in without:
                answers[answer.unit].append(answer)
        per_unit = annotating.settings["annotators"]
        images = [self._image(unit, given) for unit, given in answers.items() if given]
        checks = {person: [value >= LOW_IOU for value in ious] for person, ious in annotating.honeypot_scores().items()}
        drawn = {unit: _without_skips(given) for unit, given in answers.items()}
        done = sum(min(len(given), per_unit) for given in drawn.values())
        counted = [answer.created for given in drawn.values() for answer in given]
        wanted, agreement = per_unit * len(answers), self._agreement(answers)
        about = overview(annotating.study, done, wanted, counted, checks, annotating.lease_hours, agreement)
        images.sort(key=lambda image: (-len(image["marks"]), 2.0 if image["iou"] is None else image["iou"]))
        return about | {"images": images, "annotators": per_unit}

    def _image(self, unit: str, given: Sequence[Answer]) -> dict[str, Any]:
        """Return the row that describes an image: answers by person, agreement, and reasons to check the image."""
        pairs = self._pairs(unit, given)
        kinds = Counter(answer.payload["kind"] for answer in given)
        mean = float(np.mean(list(pairs.values()))) if pairs else None
        marks = {
            "low agreement": mean is not None and mean < LOW_IOU,
            "skipped": kinds["skip"] > 0,
            "region or none": kinds["mask"] > 0 and kinds["no_region"] > 0,
        }
        return {
            "unit": unit,
            "label": self.annotating.images.label(unit),
            "people": len(_without_skips(given)),
            "iou": mean,
            "marks": [name for name, holds in marks.items() if holds],
        }

    def _pairs(self, unit: str, given: Sequence[Answer]) -> dict[tuple[str, str], float]:
        """Return {pair of people: IoU of their masks}."""
        drawn = _without_skips(given)
        ids = tuple(answer.id for answer in drawn)
        if unit not in self.known or self.known[unit][0] != ids:
            answers = [answer for answer in self.annotating.study.answers(unit=unit) if answer.id in ids]
            masks = {answer.person: self.annotating.pixels(answer) for answer in answers} if len(ids) > 1 else {}
            pairs = {(person, other): iou(masks[person], masks[other]) for person, other in combinations(masks, 2)}
            self.known[unit] = ids, pairs
        return self.known[unit][1]

    def _agreement(self, answers: Mapping[str, Sequence[Answer]]) -> dict[str, tuple[float, int]]:
        """Return {person: (mean IoU with other people's masks, number of images)}."""
        ious: dict[str, list[float]] = defaultdict(list)
        for unit, given in answers.items():
            of_unit: dict[str, list[float]] = defaultdict(list)
            for pair, value in self._pairs(unit, given).items():
                for person in pair:
                    of_unit[person].append(value)
            for person, values in of_unit.items():
                ious[person].append(float(np.mean(values)))
        return {person: (float(np.mean(values)), len(values)) for person, values in ious.items()}


def _without_skips(given: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in given if answer.payload["kind"] != "skip"]
