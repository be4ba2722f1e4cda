"""Code that the formats share: regions in files, the selection of regions, file names and checks."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.errors import SHOWN, UserError, one_line
from saliency_bench.utils.pictures import ENDINGS, MAX_PIXELS

FORMATS = ("png", "coco", "label-studio", "cvat")
MODULES = {"png": "png_folders", "coco": "coco", "label-studio": "label_studio", "cvat": "cvat"}
OTHERS = "coco or label-studio"  # formats that do not use names of people or images as file names
MOST_BYTES = 200  # maximum length of a file name
CONSENSUS = "consensus"  # name used as the person of the consensus mask


@dataclass(frozen=True)
class PersonMask:
    """A mask, bool (H, W), drawn by a person or computed as the consensus.

    Attributes:
        image_id: Id of the image.
        label: Class of the image.
        person: Pseudonym of the person.
        mask: The mask.
        votes: For a consensus, the number of people who marked each pixel, uint16 (H, W).
        corrected: (revision, reviewer) if a reviewer corrected the answer, else None.
    """

    image_id: str
    label: str
    person: str
    mask: np.ndarray
    votes: np.ndarray | None = None
    corrected: tuple[int, str] | None = None


@dataclass(frozen=True)
class Region:
    """A region in a file, or a different entry that is only counted.

    Attributes:
        person: Pseudonym of the person, or "" if the file does not contain it.
        image_id: Name of the image in the file.
        mask: Function that decodes the region, or None for an entry that is not drawn.
        why: Reason why the region is not drawn. If `is_region` is False, the type of the entry, such as "prediction".
        labels: Labels of the region, or ().
        annotation: Rank and number of the annotation. If an image has several annotations, only the one that ranks
            highest is used.
        is_region: Whether the entry is a region. False for predictions and for the answer "no region".
    """

    person: str
    image_id: str
    mask: Callable[[], np.ndarray] | None = None
    why: str = ""
    labels: tuple[str, ...] = ()
    annotation: tuple = ()
    is_region: bool = True


@dataclass(frozen=True)
class ImagePlace:
    """An image that a file refers to.

    Attributes:
        image: Id in the dataset.
        units: {unit: class}. If the class is None, it matches any label. "" means that the dataset has no classes.
    """

    image: str
    units: dict[str, str | None]


def anywhere(names: Iterable[str]) -> dict[str, ImagePlace]:
    """Return {name: image}, in which each name is a separate image that matches every label."""
    return {name: ImagePlace(name, {name: None}) for name in names}


@dataclass
class PersonRegions:
    """Assigns a person's regions to units. Regions of other people, and regions that match no unit, are only counted.

    Attributes:
        places: {name in the file: `ImagePlace`} for names that match an image of the dataset.
        label: Label of the regions to import. If "", regions labelled with the class of the image are imported.
        check: Function that raises UserError if a mask does not match its unit. If None, a region that cannot be drawn
            makes the whole file invalid; otherwise only its image is left out.
        drawn: Number of regions that became part of a mask.
        skipped: {reason: number of regions}.
        passed: {type: number} of entries that are not regions, such as predictions.
        strange: Names that match no image.
        left_out: {name: reason} for images that were skipped because a region cannot be drawn.
    """

    places: Callable[[Iterable[str]], dict[str, ImagePlace]] = anywhere
    label: str = ""
    check: Callable[[str, np.ndarray], None] | None = None
    drawn: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    strange: dict[str, None] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def masks(self, regions: Iterable[Region], person: str, where: str) -> dict[str, np.ndarray]:
        """Return {unit: mask}. A mask is the union of the person's regions.

        Raises:
            UserError: Labels are ambiguous, or no mask can be drawn.
        """
        mine = [region for region in regions if self._is_drawable(region, person)]
        places = self.places(dict.fromkeys(region.image_id for region in mine))
        mine = [region for region in mine if self._is_known(region, places)]
        last: dict[str, tuple] = {}
        for region in mine:
            image = places[region.image_id].image
            last[image] = max(region.annotation, last.get(image, region.annotation))
        labels = Counter(label for region in mine for label in region.labels)
        self._check_label(labels, where, bool(mine))
        taken: dict[str, list[Region]] = {}
        lacking = 0  # number of regions whose label is not the class of the image
        for region in mine:
            place = places[region.image_id]
            if region.annotation != last[place.image]:
                self._skip("of an annotation that is older or was not accepted", region)
            elif units := self._units(region, place, labels, where):
                for unit in units:
                    taken.setdefault(unit, []).append(region)
                self.drawn += region.is_region
            else:
                lacking += 1
                self._skip(f"labelled {', '.join(region.labels)}" if region.labels else "without a label", region)
        if lacking and not taken:
            classes = sorted({str(name) for place in places.values() for name in place.units.values()})
            raise UserError(
                f"{where} has no region whose label is the class of its image ({_list(classes)}); its labels are "
                f"{_list(sorted(labels))}; set --label to the label to import"
            )
        return self._draw(taken, where)

    def _is_drawable(self, region: Region, person: str) -> bool:
        """Return whether an entry is a drawable region by this person. All other entries are counted."""
        if region.mask is not None and region.person == person:
            return True
        self._skip(region.why or "of other people", region)
        return False

    def _is_known(self, region: Region, places: dict[str, ImagePlace]) -> bool:
        """Return whether the image of a region is in the dataset. If it is not, count the region."""
        if region.image_id in places:
            return True
        self.strange[region.image_id] = None
        self._skip("for an image that is not in the dataset", region)
        return False

    def _skip(self, why: str, region: Region) -> None:
        if region.is_region:
            self.skipped[why] += 1
        elif region.why:
            self.passed[region.why] += 1

    def _check_label(self, labels: Counter[str], where: str, is_any: bool) -> None:
        """Raise UserError if no region has the label that --label selects."""
        if self.label and is_any and not any(_same(self.label, label) for label in labels):
            known = (
                f"its labels are {_list(sorted(labels))}" if labels else "its regions have no labels; remove --label"
            )
            raise UserError(f"{where} has no region labelled {self.label}; {known}")

    def _units(self, region: Region, place: ImagePlace, labels: Counter[str], where: str) -> list[str]:
        if not region.is_region or None in place.units.values():
            return list(place.units)
        if not region.labels:  # the class is unknown if other regions have labels
            return list(place.units) if not labels and len(place.units) == 1 else []
        if self.label:
            if not any(_same(self.label, label) for label in region.labels):
                return []
            named = [unit for unit, name in place.units.items() if _same(self.label, name or "")]
            return list(place.units) if len(place.units) == 1 else named
        if "" in place.units.values() and len(labels) > 1:
            raise UserError(f"the dataset has no classes, but {where} has several labels ({_list(sorted(labels))}); "
                            "set --label NAME")  # fmt: skip
        return [unit for unit, name in place.units.items()
                if not name or any(_same(name, label) for label in region.labels)]  # fmt: skip

    def _draw(self, taken: dict[str, list[Region]], where: str) -> dict[str, np.ndarray]:
        """Return {unit: mask}. Units with a region that cannot be drawn are skipped."""
        masks: dict[str, np.ndarray] = {}
        for unit, regions in taken.items():
            try:
                for region in regions:
                    joined(masks, unit, region.mask())  # type: ignore[misc] # entries without a mask have been counted
                if self.check:
                    self.check(unit, masks[unit])
            except UserError as error:
                if self.check is None:
                    raise UserError(f"{where}, image {regions[0].image_id[:100]}: {error}") from None
                masks.pop(unit, None)
                count = sum(region.is_region for region in regions)
                self.drawn -= count
                self.skipped["of an image that was left out"] += count
                self.left_out[regions[0].image_id] = str(error)
        if self.left_out and not masks:
            name, why = next(iter(self.left_out.items()))
            raise UserError(f"{where} has no mask that can be stored (image {name[:100]}: {why})")
        return masks

    def counts(self) -> dict[str, Any]:
        """Return the numbers of regions that were read, that were drawn, and that were skipped for each reason."""
        return {"read": self.drawn + sum(self.skipped.values()), "drawn": self.drawn, "skipped": dict(self.skipped)}

    def line(self) -> str:
        """Summarise in one line what happened to the regions."""
        counts, skipped = self.counts(), sum(self.skipped.values())
        reasons = ", ".join(f"{number} {why}" for why, number in self.skipped.most_common())
        others = ", ".join(f"{number} {kind}{'s' * (number > 1)}" for kind, number in self.passed.most_common())
        read = counts["read"]
        text = f"{read} region{'s' * (read != 1)} read: {self.drawn} drawn, {skipped} skipped"
        return text + (f" ({reasons})" if reasons else "") + (f"; ignored: {others}" if others else "")


def _same(first: str, second: str) -> bool:
    """Return whether two labels are the same. Case is ignored."""
    return first.strip().casefold() == second.strip().casefold()


def _list(names: list[str]) -> str:
    return ", ".join(name[:40] for name in names[:SHOWN]) + f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)


def check_person(name: str) -> str:
    """Check a pseudonym for imported masks and return it.

    Raises:
        UserError: The pseudonym is reserved or not a plain name.
    """
    if not re.fullmatch(r"[\w-][\w.-]{0,99}", name) or len(name.encode()) > MOST_BYTES:
        raise UserError(
            "--person must consist of 1 to 100 letters, digits, '.', '_' and '-', and must not start with '.'; "
            f"got {one_line(ascii(name), 60)}"
        )
    if name.casefold() == CONSENSUS:
        raise UserError(f"--person {name} is reserved for the consensus mask; use a different name")
    return name


def folder_name(person: str) -> str:
    """Return the folder name for a person.

    Raises:
        UserError: The name is a path or not a valid folder name.
    """
    if person.startswith(".") or "/" in person or not _is_name(person):
        raise UserError(
            f"the person's name {ascii(person)[:100]} cannot be used as a folder name; export as {OTHERS}, or add "
            "--without-people"
        )
    return person


def file_stem(image_id: str) -> str:
    """Return the stem of an image's file names, which is the id without its file extension and with "_" instead of "/".

    Raises:
        UserError: The result is not a valid file name.
    """
    stem = image_id.replace("/", "_")
    if stem.lower().endswith(ENDINGS) and not stem.startswith("."):
        stem = stem.rpartition(".")[0]
    if stem in (".", "..") or not _is_name(stem):
        raise UserError(f"the image id {ascii(image_id)[:100]} cannot be used as a file name; export as cvat, {OTHERS}")
    return stem


def _is_name(text: str) -> bool:
    return bool(text) and text.isprintable() and "\\" not in text and len(text.encode()) <= MOST_BYTES


def check_stems(drawn: Iterable[PersonMask]) -> None:
    """Raise UserError if two images would have the same file name."""
    names: dict[str, str] = {}
    for entry in drawn:
        stem = file_stem(entry.image_id)
        if names.setdefault(stem, entry.image_id) != entry.image_id:
            raise UserError(
                f"the images {names[stem]} and {entry.image_id} would share a file name; export as cvat, {OTHERS}, "
                "which do not name files after images"
            )


def file_in(path: Path, name: str) -> Path:
    """Return `path`. If it is a folder, return the file with this name in the folder.

    Raises:
        UserError: The folder does not contain the file.
    """
    if not path.is_dir():
        return path
    if not (path / name).is_file():
        raise UserError(f"{path} is a folder without {name}; specify the file to import")
    return path / name


def folder_of(path: Path, folders: Iterable[Path], person: str) -> Path:
    """Return the subfolder of `path` for a person.

    Raises:
        UserError: The person has no subfolder.
    """
    named = {folder.name: folder for folder in sorted(folders)}
    return named[_chosen(named, person, str(path))]


def masks_of(
    regions: Iterable[Region], person: str, path: Path, selection: PersonRegions | None = None
) -> dict[str, np.ndarray]:
    """Return {unit: mask} for the selected regions. By default, all images and labels are selected.

    If the file names people, only the regions drawn by `person` are used.

    Raises:
        UserError: The file contains only masks of other people, labels are ambiguous, or no mask can be drawn.
    """
    regions = list(regions)
    people = {region.person for region in regions if region.mask is not None}
    wanted = "" if people <= {""} else _chosen(people - {""}, person, str(path))
    return (selection or PersonRegions()).masks(regions, wanted, str(path))


def _chosen(people: Iterable[str], person: str, path: str) -> str:
    """Return the name of the person whose masks are imported, as written in the file.

    Raises:
        UserError: The file does not contain this person.
    """
    people = sorted(set(people) - {CONSENSUS})
    if person in people:
        return person
    known = f"set --person to one of: {_list(people)}" if people else "it contains no person's masks"
    raise UserError(f"{path} has no masks of {person}; {known}")


def check_size(height: object, width: object) -> tuple[int, int]:
    """Validate the size of an image and return it.

    Raises:
        UserError: The size is invalid.
    """
    if type(height) is not int or type(width) is not int or not 0 < height * width <= MAX_PIXELS or height < 1:
        raise UserError("an image has no usable height and width; export the annotations again")
    return height, width


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return the bounding box (left, top, width, height) of a non-empty mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def joined(masks: dict[str, np.ndarray], image_id: str, mask: np.ndarray) -> None:
    """Add a region to the mask of its image.

    Raises:
        UserError: The region and the mask have different sizes.
    """
    if image_id in masks and masks[image_id].shape != mask.shape:
        raise UserError(f"image {image_id[:100]} has regions for images of different sizes")
    masks[image_id] = masks[image_id] | mask if image_id in masks else mask
