"""Masks of a study in the formats of annotation programs: a module each, with `write` and `read`.

`write(out, drawn)` writes into an empty folder; `read(path)` gives {image id: mask}. Both keep every pixel. What is
read may come from a stranger: it is checked, and nothing of it is executed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.utils.pictures import MAX_PIXELS

FORMATS = ("png", "coco", "label-studio", "cvat")
MODULES = {"png": "png_folders", "coco": "coco", "label-studio": "label_studio", "cvat": "cvat"}
CONSENSUS = "consensus"  # the person whom the mask of most people is ascribed to


@dataclass(frozen=True)
class Drawn:
    """A mask, bool (H, W), of a person or of the consensus; `votes`, uint16 (H, W), beside a consensus."""

    image_id: str
    label: str
    person: str
    mask: np.ndarray
    votes: np.ndarray | None = None


def file_stem(image_id: str) -> str:
    """The name of the files of an image: its id, "/" replaced by "_". Raises: UserError for no file name."""
    stem = image_id.replace("/", "_")
    if stem in ("", ".", "..") or not stem.isprintable() or "\\" in stem or len(stem.encode()) > 200:
        raise UserError(f"the image id {ascii(image_id)[:100]} cannot be the name of a file; export another format")
    return stem


def check_stems(drawn: Iterable[Drawn]) -> None:
    """Raises: UserError for two images whose files would have one name."""
    names: dict[str, str] = {}
    for one in drawn:
        stem = file_stem(one.image_id)
        if names.setdefault(stem, one.image_id) != one.image_id:
            raise UserError(f"the images {names[stem]} and {one.image_id} would share a file name; rename one of them")


def check_size(height: object, width: object) -> tuple[int, int]:
    """Raises: UserError for anything but the size of a picture."""
    if type(height) is not int or type(width) is not int or not 0 < height * width <= MAX_PIXELS or height < 1:
        raise UserError("an image has no usable height and width; export the annotations again")
    return height, width


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    """(left, top, width, height) of the marked pixels of a mask that marks some."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def joined(masks: dict[str, np.ndarray], image_id: str, mask: np.ndarray) -> None:
    """Add a region to the mask of an image. Raises: UserError for one of another size."""
    if image_id in masks and masks[image_id].shape != mask.shape:
        raise UserError(f"image {image_id[:100]} has regions for images of different sizes")
    masks[image_id] = masks[image_id] | mask if image_id in masks else mask
