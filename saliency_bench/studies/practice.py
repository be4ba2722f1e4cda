"""Practice before the real images: everybody draws on images with a known mask, and is shown it.

An attempt is an answer like any other, with its IoU with the known mask in the payload, {"kind": "mask", "iou": 0.63}.
Whoever reaches the IoU that is wanted goes on, and after `ATTEMPTS` everybody does, so that nobody is stuck; the report
says what each person reached. Practice is no part of consensus, agreement and review.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from saliency_bench.studies.agreement import iou
from saliency_bench.studies.runs import runs_of
from saliency_bench.studies.study import Answer, Study

ATTEMPTS = 3


def attempts(study: Study, units: Sequence[str], person: str | None = None) -> dict[str, dict[str, list[float]]]:
    """Return {person: {unit of practice: IoU of each attempt}}, of one person or of all."""
    reached: dict[str, dict[str, list[float]]] = {}
    for answer in study.answers(person, last=False, masks=False):
        if answer.unit in units:
            reached.setdefault(answer.person, {}).setdefault(answer.unit, []).append(answer.payload["iou"])
    return reached


def is_over(ious: Sequence[float], needed: float) -> bool:
    """Return whether an image of practice is done with."""
    return len(ious) >= ATTEMPTS or any(value >= needed for value in ious)


def feedback(answer: Answer, known: np.ndarray, needed: float) -> dict[str, Any]:
    """Return what the page shows after an attempt: what was reached and needed, and the known mask."""
    reached = answer.payload["iou"]
    return {
        "unit": answer.unit,
        "iou": reached,
        "needed": needed,
        "passed": reached >= needed,
        "again": reached < needed and answer.revision < ATTEMPTS,
        "runs": runs_of(known),
    }


def score(mask: np.ndarray | None, known: np.ndarray) -> float:
    """Return the IoU of an attempt with the known mask; of none, 0."""
    return 0.0 if mask is None else round(iou(mask, known), 4)


def practice_report(reached: Mapping[str, Mapping[str, Sequence[float]]], needed: float) -> dict[str, dict[str, Any]]:
    """Return {person: mean IoU of first and of last attempts, their number, and the images that were passed}."""
    return {
        person: {
            "first": float(np.mean([ious[0] for ious in by_unit.values()])),
            "last": float(np.mean([ious[-1] for ious in by_unit.values()])),
            "attempts": sum(map(len, by_unit.values())),
            "passed": sum(max(ious) >= needed for ious in by_unit.values()),
            "images": len(by_unit),
        }
        for person, by_unit in sorted(reached.items())
    }
