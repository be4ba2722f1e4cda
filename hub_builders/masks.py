"""A dataset with the masks that annotators drew on its images in a study (`saliency-bench annotate`).

    saliency-bench annotate --dataset photos --store study.db
    saliency-bench build masks --dataset photos --annotations study.db --out my-data
    saliency-bench run --dataset my-data --model M --explainers gradcam random --metrics saliency_miou --out runs/first

Source: the dataset that was passed to `annotate` (a built dataset or a folder of images), and the store of the study.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _own
from saliency_bench.hub_builders._source import needed
from saliency_bench.utils.pictures import Picture, UnreadableError

if TYPE_CHECKING:
    from saliency_bench.studies.annotating import Annotating
    from saliency_bench.studies.study import Answer

VERSION = "1"
OWN_DATA = "dataset"
DERIVED = True
SECTION = "made from a dataset and hand-drawn masks"
USAGE = "--dataset photos --annotations study.db"
ALSO_CALLED = ("annotations", "study")
TITLE = "Masks of a study"
ANNOTATORS = ("crowdsourced",)
SOURCES = ("original",)
LICENSE = _own.LICENSE
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
PRIVATE = ("annotations",)
GROUP = "the image, if the study includes several classes per image"
SPLIT = "test"
CITATION = _own.CITATION
RULE = """Each image of the dataset is one sample. The image is the version that annotators saw: upright, with 8 bits.
The mask is the consensus of the annotators' masks according to `rule`: `half` (pixels that at least half of the
annotators marked; for two annotators the union), `majority` (pixels that more than half marked; for two annotators the
intersection), or `staple`. Skipped and rejected answers are ignored, and so are all answers of annotators whose mean
IoU with the honeypots is below `honeypot_iou`. An image without an answer has no mask. The answer "no region" is an
empty mask. If the study left out an image because the dataset already has its mask, this mask is kept. `mask_source`
names the source of the mask."""


def check(*, annotations: str, rule: str, honeypot_iou: float, **others: object) -> None:
    """Raise UserError for invalid options."""
    from saliency_bench.errors import unknown
    from saliency_bench.studies.agreement import RULES

    if not annotations:
        raise UserError("`build masks` needs the store of the study; pass --annotations study.db")
    if rule not in RULES:
        raise unknown("consensus rule", rule, RULES)
    if not 0 <= honeypot_iou <= 1:
        raise UserError(f"honeypot_iou must be a number from 0 to 1; got {honeypot_iou}")


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns of the dataset, with the classes of the original dataset."""
    from datasets import ClassLabel, Value

    return {
        "label": ClassLabel(names=classes["label"]),
        "mask_source": Value("string"),
        "annotators": Value("int64"),
    }


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    annotations: str = "",
    study: str = "",
    split: str = "test",
    rule: str = "half",
    people: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    accepted: bool = False,
    honeypot_iou: float = 0.0,
    seed: int = 0,
) -> Iterator[dict]:
    """Yield the samples in the order of the dataset.

    Args:
        source: folder of the dataset.
        log: build log, which records what is left out and why.
        annotations: store of the study, study.db or a PostgreSQL URL.
        study: name of the study, if the store contains several.
        split: split of the dataset.
        rule: rule for the consensus: half, majority or staple.
        people: annotators whose masks are used (default: all).
        exclude: annotators to leave out.
        accepted: use only masks that a reviewer has accepted.
        honeypot_iou: leave out annotators whose mean IoU with the honeypots is below this value.
        seed: has no effect.
    """
    from saliency_bench.data.loading import find
    from saliency_bench.studies.annotating import KIND, Annotating, AnswerChoice
    from saliency_bench.studies.answer_store import Store
    from saliency_bench.studies.images import StudyImages

    rows, _ = find(str(needed(source, "masks", "the dataset of the study, --dataset DIR"))).load_usual(split)
    store = Store(annotations, create=False)
    try:
        annotating = Annotating(store.find(study or None, KIND, "--study"), StudyImages(rows))
        answers = annotating.counted(AnswerChoice(people, exclude, accepted, honeypot_iou))
    finally:
        store.close()
    if strangers := sorted(set(answers) - set(annotating.images.units)):
        raise UserError(
            f"the study belongs to a different dataset: {source} has no image {strangers[0]}; pass the dataset of the "
            "study"
        )
    labels = {unit: annotating.images.label(unit) or "image" for unit in annotating.images.units}
    log.classes = {"label": sorted(set(labels.values()))}
    _remark_pairs(log, answers, rule)
    units = annotating.images.units
    log.expected = len(units)
    for unit in units:
        if sample := sample_of(log, unit, annotating, answers.get(unit, []), rule):
            yield sample


def _remark_pairs(log: BuildLog, answers: "dict[str, list[Answer]]", rule: str) -> None:
    """Log how many images have exactly two masks.

    For these, every rule except STAPLE returns the union or intersection.
    """
    pairs = sum(len(of_image) == 2 for of_image in answers.values())
    if pairs and rule != "staple":
        result = "union" if rule == "half" else "intersection"
        log.remark(
            "consensus",
            f"{pairs} of {len(answers)} images have masks from exactly two people, so the consensus is the {result} "
            "of both masks",
        )


def sample_of(log: BuildLog, unit: str, annotating: "Annotating", answers: "list[Answer]", rule: str) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out.

    Args:
        log: Build log, which records why the image or its mask is left out.
        unit: Unit of the study.
        annotating: The study.
        answers: Answers for this image.
        rule: Rule for the consensus.
    """
    images = annotating.images
    try:
        shown = images.shown(unit)
    except UnreadableError as error:
        log.leave_out(unit, "image", str(error))
        return None
    was_asked = unit in annotating.units
    try:
        mask = _mask(log, unit, shown.sha256, annotating, answers, rule) if was_asked else annotating.known_mask(unit)
    except UnreadableError as error:
        log.leave_out(unit, "mask", str(error))
        mask = None
    group = {} if images.image_id(unit) == unit else {"group": images.image_id(unit)}
    return {
        "image_id": unit,
        "image": Picture(shown.path.read_bytes(), shown.path.suffix, shown.width, shown.height),
        "label": images.label(unit) or "image",
        "mask": mask,
        "mask_source": "people" if was_asked else "dataset",
        "annotators": len(answers),
        **group,
    }


def _mask(
    log: BuildLog, unit: str, sha256: str, annotating: "Annotating", answers: "list[Answer]", rule: str
) -> np.ndarray | None:
    """Return the consensus mask, or log the reason and return None if there is none."""
    from saliency_bench.studies.agreement import consensus

    if not answers:
        log.leave_out(unit, "mask", "the image has no valid answer")
        return None
    if any(answer.image_sha256 not in (None, sha256) for answer in answers):
        log.leave_out(unit, "mask", "the mask was drawn on a different image")
        return None
    return consensus([annotating.pixels(answer) for answer in answers], rule)
