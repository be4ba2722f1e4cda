"""The report of an annotation study: progress, agreement, honeypots and reviews."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from saliency_bench.errors import one_line
from saliency_bench.read.statistics.intervals import Estimate, bounded
from saliency_bench.studies.agreement import study_agreement
from saliency_bench.studies.annotating import Annotating, AnswerChoice
from saliency_bench.studies.growing import protocol
from saliency_bench.studies.owner_actions import excluded
from saliency_bench.studies.practice import attempts, practice_report
from saliency_bench.studies.study import CORRECTED, Answer


def annotation_report(annotating: Annotating, choice: AnswerChoice | None = None) -> dict[str, Any]:
    """Return the report as plain data. Estimates are {"value", "low", "high", "n"}, or None if missing.

    Args:
        annotating: The study.
        choice: People and answers that count for the agreement and for the number of complete images. Progress always
            includes everyone.
    """
    last = [entry for entry in annotating.study.answers(masks=False) if entry.unit not in annotating.practice]
    counted = annotating.counted(choice)
    left_out, choice = excluded(annotating.study), choice or AnswerChoice()
    corrections = _corrections(counted)
    verdicts = Counter(entry.verdict for entry in annotating.study.reviews().values())
    per_unit = annotating.settings["annotators"]
    return {
        "study": annotating.study.name,
        "protocol": protocol(annotating.study),
        "images": len(annotating.units),
        "images complete": sum(len(answers) >= per_unit for answers in counted.values()),
        "images with an answer": len(counted),
        "people": len({entry.person for entry in last}),
        "answers": dict(sorted(Counter(entry.payload["kind"] for entry in last).items())),
        "reasons to skip": dict(Counter(entry.payload["reason"] for entry in last if entry.payload["kind"] == "skip")),
        "median seconds": float(np.median([entry.seconds for entry in last])) if last else None,
        "reviews": {
            "accept": verdicts["accept"],
            "reject": verdicts["reject"],
            "correct": verdicts[CORRECTED],
            "open": len(annotating.to_review()),
        },
        "agreement": _agreement(annotating, counted),
        "corrections": corrections,
        "agreement as drawn": (
            _agreement(annotating, annotating.counted(replace(choice, as_drawn=True))) if corrections else {}
        ),
        "left out": left_out,
        "agreement with everyone": (
            _agreement(annotating, annotating.counted(replace(choice, with_excluded=True))) if left_out else {}
        ),
        "honeypots": {person: _plain(entry) for person, entry in honeypot_estimates(annotating).items()},
        "practice": practice_report(
            attempts(annotating.study, annotating.practice), annotating.settings.get("practice_iou", 0.0)
        ),
    }


def _corrections(counted: Mapping[str, Sequence[Answer]]) -> list[dict[str, Any]]:
    return [
        {"image": unit, "person": entry.person, "revision": entry.revision, "corrected by": entry.corrected_by}
        for unit, answers in counted.items()
        for entry in answers
        if entry.corrected_by
    ]


def _agreement(annotating: Annotating, counted: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    masks = ([annotating.pixels(entry) for entry in answers] for answers in counted.values() if len(answers) > 1)
    return {name: _plain(entry) for name, entry in study_agreement(masks).items()}


def honeypot_estimates(annotating: Annotating) -> dict[str, Estimate]:
    """Return {person: mean IoU between the person's answers to honeypots and the known masks}."""
    return {
        person: bounded(np.array(values), np.arange(len(values)), (0.0, 1.0))
        for person, values in sorted(annotating.honeypot_scores().items())
    }


def _plain(estimate: Estimate) -> dict[str, float | int | None]:
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: float(number) if np.isfinite(number) else None for name, number in numbers.items()} | {
        "n": estimate.n
    }


def report_rows(report: dict[str, Any]) -> list[list[str]]:
    """Return the report as a table with two columns and a header.

    Text written by participants is escaped, so that it cannot be mistaken for a row.
    """
    rows = [["annotation study", report["study"]]]
    if len(report["protocol"]) > 1:
        rows += [
            [
                f"protocol {number}",
                f"{revision['annotators']} people per image, {revision['images'] or '?'} images"
                + (f", since {revision['since'][:16]}" if revision["since"] else ""),
            ]
            for number, revision in enumerate(report["protocol"], 1)
        ]
    for name in ("images", "images with an answer", "images complete", "people"):
        rows.append([name, f"{report[name]:,}"])
    rows += [[f"answers: {kind}", f"{count:,}"] for kind, count in report["answers"].items()]
    rows += [
        [f"skipped: {reason.strip() or 'no reason'}", f"{count:,}"]
        for reason, count in report["reasons to skip"].items()
    ]
    if report["median seconds"] is not None:
        rows.append(["median time per answer", f"{report['median seconds']:.0f} s"])
    rows += [[f"reviews: {verdict}", f"{count:,}"] for verdict, count in report["reviews"].items()]
    rows += [[f"agreement: {name}", _show(estimate, "images")] for name, estimate in report["agreement"].items()]
    by_reviewer = Counter(correction["corrected by"] for correction in report["corrections"])
    rows += [[f"corrected by {reviewer}", f"{count:,} masks"] for reviewer, count in sorted(by_reviewer.items())]
    rows += [
        [f"agreement as drawn: {name}", _show(estimate, "images")]
        for name, estimate in report["agreement as drawn"].items()
    ]
    rows += [[f"left out: {person}", reason or "no reason given"] for person, reason in report["left out"].items()]
    rows += [
        [f"agreement with everyone: {name}", _show(estimate, "images")]
        for name, estimate in report["agreement with everyone"].items()
    ]
    rows += [
        [f"honeypots: {person}", f"IoU {_show(estimate, 'images')}"] for person, estimate in report["honeypots"].items()
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


def _show(estimate: dict[str, Any], unit: str) -> str:
    if estimate["value"] is None:
        return "-"
    ends = "" if estimate["low"] is None else f" ({estimate['low']:.3f} to {estimate['high']:.3f})"
    return f"{estimate['value']:.3f}{ends}, {estimate['n']} {unit}"
