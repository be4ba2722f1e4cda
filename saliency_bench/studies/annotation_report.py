"""The report of an annotation study: progress, agreement, checks by honeypots, reviews."""

from collections import Counter
from typing import Any

import numpy as np

from saliency_bench.errors import one_line
from saliency_bench.results.intervals import Estimate, bounded
from saliency_bench.studies.agreement import study_agreement
from saliency_bench.studies.annotating import Annotating, Choice
from saliency_bench.studies.practice import attempts, practice_report


def annotation_report(annotating: Annotating, choice: Choice | None = None) -> dict[str, Any]:
    """Return the report as plain data; estimates are {"value", "low", "high", "n"}, null where there is none.

    Args:
        annotating: the study.
        choice: whose answers agreement and complete images are of; progress is everybody's.
    """
    last = [entry for entry in annotating.study.answers(masks=False) if entry.unit not in annotating.practice]
    counted = annotating.counted(choice)
    masks = ([annotating.pixels(entry) for entry in answers] for answers in counted.values() if len(answers) > 1)
    verdicts = Counter(entry.verdict for entry in annotating.study.reviews().values())
    per_unit = annotating.settings["annotators"]
    return {
        "study": annotating.study.name,
        "images": len(annotating.units),
        "images complete": sum(len(answers) >= per_unit for answers in counted.values()),
        "images with an answer": len(counted),
        "people": len({entry.person for entry in last}),
        "answers": dict(sorted(Counter(entry.payload["kind"] for entry in last).items())),
        "reasons to skip": dict(Counter(entry.payload["reason"] for entry in last if entry.payload["kind"] == "skip")),
        "median seconds": float(np.median([entry.seconds for entry in last])) if last else None,
        "reviews": {"accept": verdicts["accept"], "reject": verdicts["reject"], "open": len(annotating.to_review())},
        "agreement": {name: _plain(entry) for name, entry in study_agreement(masks).items()},
        "honeypots": {person: _plain(entry) for person, entry in honeypot_estimates(annotating).items()},
        "practice": practice_report(
            attempts(annotating.study, annotating.practice), annotating.settings.get("practice_iou", 0.0)
        ),
    }


def honeypot_estimates(annotating: Annotating) -> dict[str, Estimate]:
    """Return {person: mean IoU with the known masks}."""
    return {
        person: bounded(np.array(values), np.arange(len(values)), (0.0, 1.0))
        for person, values in sorted(annotating.honeypot_scores().items())
    }


def _plain(estimate: Estimate) -> dict[str, float | int | None]:
    """Return an estimate as JSON holds it."""
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: float(number) if np.isfinite(number) else None for name, number in numbers.items()} | {
        "n": estimate.n
    }


def report_rows(report: dict[str, Any]) -> list[list[str]]:
    """Return the report as a table of two columns, with a header.

    What people wrote is escaped, so that it forges no line.
    """
    rows = [["annotation study", report["study"]]]
    for name in ("images", "images with an answer", "images complete", "people"):
        rows.append([name, f"{report[name]:,}"])
    rows += [[f"answers: {kind}", f"{count:,}"] for kind, count in report["answers"].items()]
    rows += [
        [f"skipped: {reason.strip() or 'no reason'}", f"{count:,}"]
        for reason, count in report["reasons to skip"].items()
    ]
    if report["median seconds"] is not None:
        rows.append(["median time of an answer", f"{report['median seconds']:.0f} s"])
    rows += [[f"reviews: {verdict}", f"{count:,}"] for verdict, count in report["reviews"].items()]
    rows += [[f"agreement: {name}", _shown(estimate, "images")] for name, estimate in report["agreement"].items()]
    rows += [
        [f"honeypots: {person}", f"IoU {_shown(estimate, 'images')}"]
        for person, estimate in report["honeypots"].items()
    ]
    rows += [
        [
            f"practice: {person}",
            f"IoU {reached['first']:.2f} at first, {reached['last']:.2f} in the end, {reached['attempts']} attempts, "
            f"{reached['passed']} of {reached['images']} passed",
        ]
        for person, reached in report["practice"].items()
    ]
    return [[one_line(cell) for cell in row] for row in rows]


def _shown(estimate: dict[str, Any], unit: str) -> str:
    """Return an estimate as text, and of how many images it is."""
    if estimate["value"] is None:
        return "-"
    ends = "" if estimate["low"] is None else f" ({estimate['low']:.3f} to {estimate['high']:.3f})"
    return f"{estimate['value']:.3f}{ends}, {estimate['n']} {unit}"
