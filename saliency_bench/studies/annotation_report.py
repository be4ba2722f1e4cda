"""The report of an annotation study: progress, agreement, checks by honeypots, reviews."""

from collections import Counter
from typing import Any

import numpy as np

from saliency_bench.errors import one_line
from saliency_bench.results.intervals import Estimate, bounded
from saliency_bench.studies.agreement import iou, study_agreement
from saliency_bench.studies.annotating import Annotating
from saliency_bench.studies.study import Answer


def annotation_report(annotating: Annotating) -> dict[str, Any]:
    """The report as plain data; estimates are {"value", "low", "high", "n"}, null where there is none."""
    last = annotating.study.answers(masks=False)
    counted = annotating.counted()
    masks = ([annotating.pixels(one) for one in answers] for answers in counted.values() if len(answers) > 1)
    verdicts = Counter(one.verdict for one in annotating.study.reviews().values())
    per_unit = annotating.settings["annotators"]
    return {
        "study": annotating.study.name,
        "images": len(annotating.units),
        "images complete": sum(len(answers) >= per_unit for answers in counted.values()),
        "images with an answer": len(counted),
        "people": len({one.person for one in last}),
        "answers": dict(sorted(Counter(one.payload["kind"] for one in last).items())),
        "reasons to skip": dict(Counter(one.payload["reason"] for one in last if one.payload["kind"] == "skip")),
        "median seconds": float(np.median([one.seconds for one in last])) if last else None,
        "reviews": {"accept": verdicts["accept"], "reject": verdicts["reject"], "open": len(annotating.to_review())},
        "agreement": {name: _plain(one) for name, one in study_agreement(masks).items()},
        "honeypots": {person: _plain(one) for person, one in honeypot_scores(annotating).items()},
    }


def honeypot_scores(annotating: Annotating) -> dict[str, Estimate]:
    """{person: IoU with the known masks}, of the first answer to each honeypot; a skipped one is left out."""
    scores: dict[str, list[float]] = {}
    pots = set(annotating.honeypots)
    for one in annotating.study.answers(last=False):
        if one.unit in pots and one.revision == 1 and one.payload["kind"] != "skip":
            known = _known(annotating, one)
            scores.setdefault(one.person, []).append(iou(annotating.pixels(one), known))
    return {person: bounded(np.array(own), np.arange(len(own)), (0.0, 1.0)) for person, own in sorted(scores.items())}


def _known(annotating: Annotating, answer: Answer) -> np.ndarray:
    known = annotating.images.known_mask(answer.unit)
    assert known is not None, "honeypots are chosen among images with a mask"
    return known


def _plain(estimate: Estimate) -> dict[str, float | int | None]:
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: float(one) if np.isfinite(one) else None for name, one in numbers.items()} | {"n": estimate.n}


def report_rows(report: dict[str, Any]) -> list[list[str]]:
    """The report as a table of two columns, with a header; what people wrote is escaped, so that it forges no line."""
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
    rows += [[f"agreement: {name}", _shown(one, "images")] for name, one in report["agreement"].items()]
    rows += [[f"honeypots: {person}", f"IoU {_shown(one, 'images')}"] for person, one in report["honeypots"].items()]
    return [[one_line(cell) for cell in row] for row in rows]


def _shown(estimate: dict[str, Any], what: str) -> str:
    if estimate["value"] is None:
        return "-"
    ends = "" if estimate["low"] is None else f" ({estimate['low']:.3f} to {estimate['high']:.3f})"
    return f"{estimate['value']:.3f}{ends}, {estimate['n']} {what}"
