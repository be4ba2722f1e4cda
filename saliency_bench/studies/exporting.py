"""Export the masks of an annotation study to files, and import masks from files."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from saliency_bench.errors import UserError, unknown
from saliency_bench.studies.agreement import consensus, votes
from saliency_bench.studies.annotating import Annotating, AnswerChoice
from saliency_bench.studies.formats.regions import (
    CONSENSUS,
    FORMATS,
    MODULES,
    ImagePlace,
    PersonMask,
    PersonRegions,
    check_person,
)
from saliency_bench.studies.images import StudyImages
from saliency_bench.studies.result_rows import write_rows
from saliency_bench.studies.study import Answer
from saliency_bench.utils.picture_names import PictureNames
from saliency_bench.utils.pictures import UnreadableError, png
from saliency_bench.utils.seeds import seed_of

CORRECTIONS = "corrections.csv"  # written next to exported masks if reviewers have corrected masks


def module_of(format: str) -> ModuleType:
    """Import the module that implements a format.

    Raises:
        UserError: The format is unknown.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return import_module(f"saliency_bench.studies.formats.{MODULES[format]}")


def export(
    annotating: Annotating, out: Path, format: str, *, people: bool = True, rule: str = "half",
    choice: AnswerChoice | None = None,
) -> int:  # fmt: skip
    """Write the masks that count, and each image's consensus mask, into a new folder. Return the number of images.

    Other users of the machine cannot read the folder. corrections.csv lists the masks that reviewers corrected.

    Args:
        annotating: The study.
        out: The new folder.
        format: Format of the files.
        people: Whether to include the pseudonyms. If False, the masks of an image are numbered in an order that differs
            between images, so that a person's masks of different images cannot be linked.
        rule: Rule that determines the consensus.
        choice: Selection of the people and answers that count.

    Raises:
        UserError: The folder exists, the study has no masks, or the format cannot represent a name.
    """
    if out.exists():
        raise UserError(f"{out} exists; specify a new folder")
    writer = module_of(format)
    drawn = list(all_drawn(annotating, people, rule, choice))
    if not drawn:
        raise UserError(f"the study {annotating.study.name} has no masks to export")
    if any(entry.person.casefold() == CONSENSUS and entry.votes is None for entry in drawn):
        raise UserError(
            f"the study {annotating.study.name} has a person called {CONSENSUS}, but this name is reserved for the "
            "consensus mask; export the study with --without-people"
        )
    writer.check(drawn)
    out.mkdir(0o700, parents=True)
    writer.write(out, drawn)
    if corrected := [entry for entry in drawn if entry.corrected is not None]:
        _write_corrections(out / CORRECTIONS, corrected, people)
    return len({entry.image_id for entry in drawn})


def _write_corrections(path: Path, corrected: Sequence[PersonMask], people: bool) -> None:
    """Write a list of the masks that reviewers corrected: person, revision and, if `people` is true, the reviewer."""
    rows = [(entry.image_id, entry.person, *(entry.corrected or ("", ""))) for entry in corrected]
    header = ("image", "person", "revision", "corrected by")
    write_rows(path, header, rows if people else [(*row[:3], "") for row in rows])


def all_drawn(
    annotating: Annotating, people: bool = True, rule: str = "half", choice: AnswerChoice | None = None
) -> Iterator[PersonMask]:
    """For every image, yield each person's mask and then the consensus. Images are in the order of the dataset."""
    counted = annotating.counted(choice)
    for unit in annotating.images.units:
        answers = counted.get(unit)
        if not answers:
            continue
        answers.sort(
            key=lambda answer: answer.person if people else str(seed_of(answer.mask, answer.person, answer.created))
        )
        masks = [annotating.pixels(answer) for answer in answers]
        label = annotating.images.label(unit) or "region"
        for number, (answer, mask) in enumerate(zip(answers, masks, strict=True), 1):
            corrected = (answer.revision, answer.corrected_by) if answer.corrected_by else None
            yield PersonMask(unit, label, answer.person if people else str(number), mask, corrected=corrected)
        yield PersonMask(unit, label, CONSENSUS, consensus(masks, rule), votes(masks))


@dataclass(frozen=True)
class Imported:
    """Masks that a person drew in another program.

    Attributes:
        person: Pseudonym of the person.
        masks: {unit: mask, bool (H, W)}.
        selection: Object that records which regions in the file were used.
    """

    person: str
    masks: dict[str, np.ndarray]
    selection: PersonRegions

    @property
    def strange(self) -> list[str]:
        """Return the names in the file that do not match any image."""
        return list(self.selection.strange)


def read_masks(images: StudyImages, path: Path, format: str, person: str, label: str = "") -> Imported:
    """Read a person's masks from a file. If the file does not name people, read all masks.

    Images are matched by their id, or by the end of their path as stated in the file.

    Args:
        images: Images of the study.
        path: Path of the file or folder.
        format: Format of the file.
        person: Pseudonym of the person whose masks are read.
        label: Label of the regions to import, or "" for the class of the image.

    Raises:
        UserError: The file cannot be read or contains only masks of other people, labels are ambiguous, or no mask
            matches.
    """
    check_person(person)
    selection = PersonRegions(partial(_places, images), label, partial(_check_mask, images))
    return Imported(person, module_of(format).read(path, person, selection), selection)


def store_masks(annotating: Annotating, imported: Imported) -> None:
    """Store imported masks as answers given by the person who drew them."""
    for unit, mask in imported.masks.items():
        _store(annotating, unit, mask, imported.person)


def _places(images: StudyImages, given: Iterable[str]) -> dict[str, ImagePlace]:
    """Return {name in a file: image} for each of the names that matches a unit or an image."""
    given = list(given)
    of_image: dict[str, dict[str, str | None]] = {}
    for unit in images.units:
        label = images.label(unit)
        image = images.image_id(unit).removesuffix(
            f":{label}"
        )  # dataset builders use the id IMAGE:CLASS for the sample of a class
        of_image.setdefault(image, {})[unit] = label
    names, units = PictureNames(of_image), {unit: unit for unit in images.units}
    for image in of_image:
        names.add(image.replace("/", "_"), image)  # spelling in PNG folders
    units |= {flat: unit for unit in images.units if (flat := unit.replace("/", "_")) not in units}
    exact = {name: units[name] for name in given if name in units}
    meant = names.resolved(name for name in given if name not in exact)
    places = {
        name: ImagePlace(match.picture, of_image[match.picture]) for name, match in meant.items() if match.picture
    }
    return places | {name: ImagePlace(unit, {unit: images.label(unit)}) for name, unit in exact.items()}


def _check_mask(images: StudyImages, unit: str, mask: np.ndarray) -> None:
    """Raise UserError if a mask does not have the same size as its image."""
    try:
        height, width = images.size(unit)
    except UnreadableError as error:
        raise UserError(f"image {unit} of the dataset cannot be read: {error}") from None
    if mask.shape != (height, width):
        raise UserError(
            f"the mask has {mask.shape[1]} x {mask.shape[0]} pixels, but the image has {width} x {height}; export "
            "masks of the same size as the images"
        )


def _store(annotating: Annotating, unit: str, mask: np.ndarray, person: str) -> Answer:
    study = annotating.study
    digest = sha256(b"\0".join([str(study.id).encode(), person.encode(), unit.encode(), png(mask)])).hexdigest()
    study.assign(person, [unit])
    payload = {"kind": "mask" if mask.any() else "no_region", "imported": True}
    sha = annotating.images.shown(unit).sha256
    return study.record(person, unit, f"import {digest}", payload, mask=mask if mask.any() else None, image_sha256=sha)
