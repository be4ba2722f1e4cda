"""Extend an annotation study to more images, or to more people per image, under the same name.

The row of a study never changes. Each extension is called a revision of the protocol and is stored as an event with the
new settings. The last revision applies, and the report lists all revisions.
"""

from dataclasses import replace
from typing import Any

from sqlalchemy import select

from saliency_bench.errors import UserError
from saliency_bench.studies.events import add_event, events_of
from saliency_bench.studies.images import StudyImages
from saliency_bench.studies.study import Study
from saliency_bench.studies.study_tables import studies

MAY_GROW = ("annotators", "per_person")


def revised(study: Study) -> Study:
    """Return a study that has the settings and the dataset of the last revision."""
    revisions = events_of(study, "protocol")
    if not revisions:
        return study
    last = revisions[-1].payload
    return replace(study, dataset=last["dataset"], configuration=study.configuration | {"settings": last["settings"]})


def protocol(study: Study) -> list[dict[str, Any]]:
    """Return the time, the people per image and the number of images for each revision.

    The first entry is the original study.
    """
    with study.store.reading() as connection:
        made = connection.scalars(select(studies.c.configuration).where(studies.c.id == study.id)).one()
    rows = [
        {
            "since": None,
            "annotators": made["settings"]["annotators"],
            "images": made.get("images"),
        }
    ]
    for event in events_of(study, "protocol"):
        settings = event.payload["settings"]
        rows.append({"since": event.created, "annotators": settings["annotators"], "images": event.payload["images"]})
    return rows


def grow(study: Study, images: StudyImages, fingerprint: str, settings: dict[str, Any]) -> Study:
    """Store a revision, and return the revised study.

    Args:
        study: The current study.
        images: Images in the new dataset. They must include all images that were ever assigned.
        fingerprint: Fingerprint of the new dataset.
        settings: New settings. No value may be smaller than the current value.

    Raises:
        UserError: A setting cannot be changed, or an image is missing or was replaced.
    """
    before = study.configuration["settings"]
    for name, value in settings.items():
        most = float("inf") if name == "per_person" else 0
        is_less = name in MAY_GROW and (value or most) < (before[name] or most)
        if value != before.get(name) and (name not in MAY_GROW or is_less):
            raise UserError(f"--{name.replace('_', '-')} was {before.get(name)}; an existing study can only get more "
                            "annotators, more images per person or a larger dataset")  # fmt: skip
    _check_images(study, images)
    revisions = events_of(study, "protocol")
    payload = {"settings": settings, "dataset": fingerprint, "images": len(images.units)}
    add_event(study, "protocol", payload, request=f"{len(revisions)} {fingerprint} {sorted(settings.items())}")
    return revised(study)


def _check_images(study: Study, images: StudyImages) -> None:
    """Raise UserError if an assigned image is missing or differs from the image that was annotated."""
    people = study.people("annotator")
    given = {entry.unit for entry in study.assignments() if entry.person in people}
    if missing := sorted(given - set(images.positions)):
        raise UserError(f"the dataset has no image {missing[0]}, which was already assigned; keep all assigned images")
    for answer in study.answers(masks=False):
        if answer.image_sha256 is not None and images.shown(answer.unit).sha256 != answer.image_sha256:
            raise UserError(
                f"the image {answer.unit} differs from the annotated image; give the new image a different name"
            )
