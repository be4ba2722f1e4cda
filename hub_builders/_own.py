"""Anyone's own pictures and masks: which mask belongs to which picture, and which of its pixels are the object."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image, ImageColor

from saliency_bench.data.jobs import BuildLog
from saliency_bench.data.untrusted import PICTURES, UNWRITABLE
from saliency_bench.errors import UserError
from saliency_bench.hub_builders._source import turn_of, walked
from saliency_bench.utils.pictures import Picture, UnreadableError, decode, file_bytes, turned

LICENSE = "unknown"
CITATION = "% your own data"
SPLITS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
JPEG = (".jpg", ".jpeg")
BLACK = 0


def given_path(path: str, option: str, folder: bool = False) -> Path:
    """Return the file or folder that an option names.

    Raises:
        UserError: It is not there.
    """
    place = Path(path).expanduser().resolve()
    if not (place.is_dir() if folder else place.is_file()):
        raise UserError(f"--{option} {path} is not a {'folder' if folder else 'file'}; check the path")
    return place


def check_split(owner: str, split: str) -> None:
    """Raise UserError for what is no split."""
    if split not in ("", "hash", *SPLITS.values()):
        raise UserError(f"{owner}: split={split} is unknown; use hash, train, validation or test")


def pictures_in(folder: Path, log: BuildLog, without: Path | None = None) -> list[str]:
    """Return the pictures at any depth, by their path in the folder; none in the folder `without`."""
    paths = []
    for here, folders, names in walked(folder):
        folders[:] = [name for name in folders if (here / name).resolve() != without and not name.startswith(".")]
        paths += [_path(here / name, folder) for name in names if not name.startswith(".")]
    return sorted(name for name in paths if PurePosixPath(name).suffix.lower() in PICTURES and _writable(name, log))


def _path(path: Path, folder: Path) -> str:
    """Return a path in a folder, with "/"."""
    return path.relative_to(folder).as_posix()


def _writable(name: str, log: BuildLog) -> bool:
    """Return whether a name can be written; one that cannot is left out."""
    if any(unicodedata.category(sign) in UNWRITABLE for sign in name):
        log.leave_out(ascii(name)[1:-1], "image", "its name holds a control character; rename it")
        return False
    return True


def stem(name: str) -> str:
    """Return a path without its ending."""
    return str(PurePosixPath(name).with_suffix(""))


def ids_of(names: Iterable[str]) -> dict[str, str]:
    """Return {path: image id}: without its ending, where no other has the same."""
    names = list(names)
    times = Counter(map(stem, names))
    return {name: stem(name) if times[stem(name)] == 1 else name for name in names}


def ends_of(name: str) -> list[str]:
    """Return a path, and what is left of it without its first folders, longest first."""
    parts = name.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


class Names:
    """The pictures that a list may mean: by their path or its end, with or without ending, or with another (.JPG)."""

    def __init__(self, names: Iterable[str]):
        self.known: dict[str, list[str]] = {}
        for name in names:
            for end in {end for form in (name, stem(name)) for end in ends_of(form)}:
                self.known.setdefault(end, []).append(name)

    def called(self, given: str) -> list[str]:
        """Return all that have this name."""
        has_ending = PurePosixPath(given).suffix.lower() in PICTURES
        exact = self.known.get(given, [])
        return [given] if given in exact else exact or (self.known.get(stem(given), []) if has_ending else [])


def masks_for(
    pictures: list[str], masks: list[str], noun: str = "mask"
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return ({picture: its mask}, {picture: why it has none}, masks without a picture), by their names without ending.

    A mask belongs to the picture whose path ends as its own: `masks/cat/1.png` to `images/cat/1.jpg`, and so does
    `masks/1.png`, if no other picture is called 1.
    """
    named: dict[str, list[str]] = {}
    for mask in masks:
        named.setdefault(stem(mask), []).append(mask)
    by_last: dict[str, list[str]] = {}
    for mask in masks:
        by_last.setdefault(PurePosixPath(mask).stem, []).append(mask)
    last = Counter(PurePosixPath(picture).stem for picture in pictures)
    masks_of_picture: dict[str, list[str]] = {}
    for picture in pictures:
        candidates = next((named[end] for end in ends_of(stem(picture)) if end in named), [])
        alone = PurePosixPath(picture).stem
        masks_of_picture[picture] = candidates or (by_last.get(alone, []) if last[alone] == 1 else [])
    users = Counter(mask for several in masks_of_picture.values() for mask in several)
    chosen, lacking = {}, {}
    for picture, several in masks_of_picture.items():
        if len(several) == 1 and users[several[0]] == 1:
            chosen[picture] = several[0]
        else:
            lacking[picture] = (
                f"no {noun} file of its name"
                if not several
                else f"several {noun} files of its name"
                if len(several) > 1
                else f"its {noun} file has the name of several pictures"
            )
    return chosen, lacking, [mask for mask in masks if mask not in users]


def foreground_of(text: str) -> str | int | tuple[int, int, int]:
    """Return what of a mask is the object: "" (the mask itself tells), "nonzero", a value, or a colour.

    Taken are `255`, `#ff0000`, `255,0,0` and `red`.

    Raises:
        UserError: It is none of them.
    """
    try:
        if text in ("", "nonzero"):
            return text
        if text.isdecimal() and int(text) <= 255:
            return int(text)
        colour = tuple(map(int, text.split(","))) if "," in text else ImageColor.getrgb(text)[:3]
        if len(colour) == 3 and all(0 <= value <= 255 for value in colour):
            return colour
    except ValueError:
        pass
    raise UserError(
        f"foreground={text} is neither a value from 0 to 255, nor a colour such as '#ff0000' or 255,0,0, nor nonzero"
    )


def mask_of(path: Path, foreground: str, picture: Picture) -> np.ndarray:
    """Return bool (H, W): the object in a mask file, turned with its picture.

    Raises:
        UnreadableError: It cannot be read.
    """
    if path.suffix.lower() in JPEG:
        raise UnreadableError("a mask in JPEG, which blurs its values; save masks as PNG")
    try:
        image = decode(file_bytes(path))
    except UnreadableError as error:
        raise UnreadableError(f"mask: {error}") from None
    turn = turn_of(picture, (image.height, image.width))  # before its values: resizing makes many of two
    return turned(object_in(image, foreground_of(foreground)), turn)


def object_in(image: Image.Image, foreground: str | int | tuple[int, int, int]) -> np.ndarray:
    """Return bool (H, W): the pixels of a mask as stored that are the object.

    Raises:
        UnreadableError: It cannot be read.
    """
    if isinstance(foreground, tuple):
        return (np.asarray(image.convert("RGB")) == foreground).all(-1)
    codes, is_colour, background = _coded(image)
    if isinstance(foreground, int):
        if is_colour:
            raise UnreadableError("a mask in colour, which has no value; give --foreground a colour")
        return codes == foreground
    values = np.unique(codes)
    if foreground == "" and len(values) > 2:
        raise UnreadableError("a mask of more than two values; say with --foreground which one is the object")
    if foreground == "" and len(values) == 2 and background not in values:
        raise UnreadableError("a mask of two values, none of them 0; say with --foreground which one is the object")
    return codes != background


def _coded(image: Image.Image) -> tuple[np.ndarray, bool, int]:
    """Return (a whole number for each pixel, whether it is a colour, that of the background).

    The background is black. In a palette it is the index that looks black, since programs that save small files put
    the colours in any order; without a black, index 0.
    """
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image if image.mode == "1" else image.convert("L")).astype(np.uint32), False, BLACK
    colours = np.asarray(image.convert("RGB")).astype(np.uint32)
    packed = colours @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    if image.mode == "P":
        codes = np.asarray(image).astype(np.uint32)
        black = np.unique(codes[packed == BLACK])
        return codes, False, int(black[0]) if len(black) == 1 else 0
    is_grey = (colours == colours[..., :1]).all()
    return (colours[..., 0], False, BLACK) if is_grey else (packed, True, BLACK)


def boxed(box: Any, height: int, width: int) -> np.ndarray:
    """Return bool (H, W): the pixels of a box [x, y, width, height], whose centres lie inside.

    Raises:
        UnreadableError: It cannot be read.
    """
    numbers = isinstance(box, list) and len(box) == 4 and all(type(value) in (int, float) for value in box)
    if not numbers or not np.isfinite(box).all():
        raise UnreadableError("a box that is not four numbers")
    left, top, across, down = box
    columns, rows = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    return (columns > left) & (columns < left + across) & (rows > top) & (rows < top + down)
