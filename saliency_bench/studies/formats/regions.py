"""What the formats share: regions of people in files, names of files, and the checks of what is read."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saliency_bench.errors import SHOWN, UserError, one_line
from saliency_bench.utils.pictures import MAX_PIXELS

FORMATS = ("png", "coco", "label-studio", "cvat")
MODULES = {"png": "png_folders", "coco": "coco", "label-studio": "label_studio", "cvat": "cvat"}
OTHERS = "coco, label-studio"  # which need no file names
ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
MOST_BYTES = 200  # of a file name
CONSENSUS = "consensus"  # the person whom the mask of most people is ascribed to


@dataclass(frozen=True)
class Drawn:
    """A mask, bool (H, W), of a person or of the consensus.

    Attributes:
        image_id: of its image.
        label: the class.
        person: the pseudonym.
        mask: the pixels.
        votes: uint16 (H, W), of a consensus: how many people marked each pixel.
        corrected: (revision, reviewer) of an answer that a reviewer has corrected.
    """

    image_id: str
    label: str
    person: str
    mask: np.ndarray
    votes: np.ndarray | None = None
    corrected: tuple[int, str] | None = None


@dataclass(frozen=True)
class Region:
    """A region in a file.

    Attributes:
        person: the pseudonym; "" where the file does not say whose it is.
        image_id: what the file calls the image.
        mask: decodes the region, if it is wanted.
    """

    person: str
    image_id: str
    mask: Callable[[], np.ndarray]


def check_person(name: str) -> str:
    """Return a pseudonym for what is imported.

    Raises:
        UserError: It is reserved or could be more than a name.
    """
    if not re.fullmatch(r"[\w-][\w.-]{0,99}", name) or len(name.encode()) > MOST_BYTES:
        raise UserError(
            f"--person is 1 to 100 letters, digits, '.', '_' and '-', the first of them no '.', "
            f"not {one_line(ascii(name), 60)}"
        )
    if name.casefold() == CONSENSUS:
        raise UserError(f"--person {name} is reserved for the mask of most people; give another name")
    return name


def folder_name(person: str) -> str:
    """Return the name of a person as that of a folder.

    Raises:
        UserError: It is a path or no name.
    """
    if person.startswith(".") or "/" in person or not _is_name(person):
        raise UserError(
            f"the person {ascii(person)[:100]} cannot be the name of a folder; export as {OTHERS}, or --without-people"
        )
    return person


def file_stem(image_id: str) -> str:
    """Return the name of the files of an image: its id without the ending of a picture, "/" replaced by "_".

    Raises:
        UserError: That is no file name.
    """
    stem = image_id.replace("/", "_")
    if stem.lower().endswith(ENDINGS) and not stem.startswith("."):
        stem = stem.rpartition(".")[0]
    if stem in (".", "..") or not _is_name(stem):
        raise UserError(f"the image id {ascii(image_id)[:100]} cannot be the name of a file; export another format")
    return stem


def _is_name(text: str) -> bool:
    """Return whether a text is the name of a file and no path."""
    return bool(text) and text.isprintable() and "\\" not in text and len(text.encode()) <= MOST_BYTES


def check_stems(drawn: Iterable[Drawn]) -> None:
    """Raise UserError for two images whose files would have the same name."""
    names: dict[str, str] = {}
    for entry in drawn:
        stem = file_stem(entry.image_id)
        if names.setdefault(stem, entry.image_id) != entry.image_id:
            raise UserError(
                f"the images {names[stem]} and {entry.image_id} would share a file name; export as {OTHERS} or cvat, "
                "which keep their names"
            )


def file_in(path: Path, name: str) -> Path:
    """Return a file, or the one of this name in a folder.

    Raises:
        UserError: The folder has no such file.
    """
    if not path.is_dir():
        return path
    if not (path / name).is_file():
        raise UserError(f"{path} is a folder without {name}; give the file to import")
    return path / name


def folder_of(path: Path, folders: Iterable[Path], person: str) -> Path:
    """Return the folder of a person, of folders in `path` that are named after people.

    Raises:
        UserError: There is none.
    """
    named = {folder.name: folder for folder in sorted(folders)}
    return named[_chosen(named, person, str(path))]


def masks_of(regions: Iterable[Region], person: str, path: Path) -> dict[str, np.ndarray]:
    """Return {image id: mask}, of several regions of an image all together.

    Only those of `person` where a file names people.

    Raises:
        UserError: The file is of other people.
    """
    regions = list(regions)
    people = {region.person for region in regions}
    wanted = "" if people <= {""} else _chosen(people - {""}, person, str(path))
    masks: dict[str, np.ndarray] = {}
    for region in regions:
        if region.person == wanted:
            joined(masks, region.image_id, region.mask())
    return masks


def _chosen(people: Iterable[str], person: str, path: str) -> str:
    """Return the person whose masks are taken.

    Raises:
        UserError: The file does not name this person.
    """
    people = sorted(set(people) - {CONSENSUS})
    if person in people:
        return person
    names = ", ".join(name[:40] for name in people[:SHOWN]) + (
        f" and {len(people) - SHOWN} more" * (len(people) > SHOWN)
    )
    raise UserError(f"{path} has no masks of {person}; give --person, one of: {names or 'nobody'}")


def check_size(height: object, width: object) -> tuple[int, int]:
    """Return the size of a picture.

    Raises:
        UserError: It is none.
    """
    if type(height) is not int or type(width) is not int or not 0 < height * width <= MAX_PIXELS or height < 1:
        raise UserError("an image has no usable height and width; export the annotations again")
    return height, width


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return (left, top, width, height) of the marked pixels of a mask that marks some."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def joined(masks: dict[str, np.ndarray], image_id: str, mask: np.ndarray) -> None:
    """Add a region to the mask of an image.

    Raises:
        UserError: The region has another size.
    """
    if image_id in masks and masks[image_id].shape != mask.shape:
        raise UserError(f"image {image_id[:100]} has regions for images of different sizes")
    masks[image_id] = masks[image_id] | mask if image_id in masks else mask
