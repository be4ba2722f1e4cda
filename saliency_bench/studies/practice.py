"""Practice before the actual task: everyone annotates images with a known mask, which is displayed afterwards.

An attempt is stored as an answer. Its payload contains the IoU with the known mask, {"kind": "mask", "iou": 0.63}. A
person moves on after reaching the required IoU or after `ATTEMPTS` attempts, so nobody gets stuck. The report shows the
IoU that each person reached. Practice images do not count towards consensus or agreement, and are not reviewed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from saliency_bench.studies.agreement import iou
from saliency_bench.studies.runs import runs_of
from saliency_bench.studies.study import Answer, Study

ATTEMPTS = 3


def attempts(study: Study, units: Sequence[str], person: str | None = None) -> dict[str, dict[str, list[float]]]:
    """Return {person: {practice unit: IoU of each attempt}}, for one person or for all people."""
    reached: dict[str, dict[str, list[float]]] = {}
    for answer in study.answers(person, last=False, masks=False):
        if answer.unit in units:
            reached.setdefault(answer.person, {}).setdefault(answer.unit, []).append(answer.payload["iou"])
    return reached


def is_over(ious: Sequence[float], needed: float) -> bool:
    """Return whether a practice image is finished."""
    return len(ious) >= ATTEMPTS or any(value >= needed for value in ious)


def feedback(answer: Answer, known: np.ndarray, needed: float) -> dict[str, Any]:
    """Return the feedback on an attempt: the IoU that it reached, the required IoU, and the known mask."""
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
    """Return the IoU between an attempt and the known mask, or 0 if the attempt is not a mask."""
    return 0.0 if mask is None else round(iou(mask, known), 4)


def practice_report(reached: Mapping[str, Mapping[str, Sequence[float]]], needed: float) -> dict[str, dict[str, Any]]:
    """Return {person: mean IoU of first and of last attempts, number of attempts, and number of images passed}."""
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
