"""Folders of PNG files: masks/PERSON/ID.png, consensus/ID.png and votes/ID.png. "/" in an id is replaced by "_".

Masks have the values 0 and 255. The value of a pixel in `votes` is the number of people who marked it, up to 255.
`saliency-bench build gender-xai` and `saliency-bench build environment-xai` read the `masks` folder.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.studies.formats.regions import (
    PersonMask,
    PersonRegions,
    Region,
    check_stems,
    file_stem,
    folder_name,
    folder_of,
    masks_of,
)
from saliency_bench.utils.masks import object_in
from saliency_bench.utils.pictures import UnreadableError, opened, png


def check(drawn: Sequence[PersonMask]) -> None:
    """Raise UserError if a person's name is not a valid folder name, or if two images would have the same file name."""
    check_stems(drawn)
    for person in {entry.person for entry in drawn}:
        folder_name(person)


def write(out: Path, drawn: Sequence[PersonMask]) -> None:
    """Write a PNG file for each person's mask of an image, for the consensus mask, and for the votes."""
    for entry in drawn:
        name = f"{file_stem(entry.image_id)}.png"
        if entry.votes is not None:
            _save(out / "consensus" / name, entry.mask)
            _save(out / "votes" / name, np.minimum(entry.votes, 255).astype(np.uint8))
        else:
            _save(out / "masks" / folder_name(entry.person) / name, entry.mask)


def _save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(pixels))


def read(path: Path, person: str, selection: PersonRegions | None = None) -> dict[str, np.ndarray]:
    """Read {unit: mask, bool (H, W)} from one person's folder, or from the folder that contains everyone's folders."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder; specify the folder with the PNG files of one person")
    files = sorted(path.glob("*.png"))
    above = path / "masks" if (path / "masks").is_dir() else path
    if not files and (folders := [folder for folder in above.iterdir() if any(folder.glob("*.png"))]):
        path = folder_of(path, folders, person)
        files = sorted(path.glob("*.png"))
    if not files:
        raise UserError(f"{path} has no PNG files; specify the folder with the PNG files of one person")
    return masks_of([Region("", file.stem, partial(_mask, file)) for file in files], person, path, selection)


def _mask(path: Path) -> np.ndarray:
    try:
        return object_in(opened(path))
    except UnreadableError as error:
        raise UserError(f"{path.name} is not a mask: {error}") from None
