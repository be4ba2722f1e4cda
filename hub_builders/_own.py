"""Anyone's own pictures and masks: which mask belongs to which picture, and which of its pixels are the object."""

import unicodedata
import warnings
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image, ImageColor

from saliency_bench.data.build_report import REPORT
from saliency_bench.data.jobs import BuildLog
from saliency_bench.data.untrusted import PICTURES, UNWRITABLE
from saliency_bench.errors import UserError
from saliency_bench.hub_builders._source import entries, turn_of, walked
from saliency_bench.utils.picture_names import ends_of, stem, without_upload
from saliency_bench.utils.pictures import FORMATS, Picture, UnreadableError, decode, file_bytes, turned

LICENSE = "unknown"
CITATION = "% your own data"
SPLITS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
HIDDEN = ("thumbs.db", "desktop.ini", "__macosx", "$recycle.bin")  # beside those that begin with a dot
# What else lies among pictures, and what to do with it.
HEIC = "a HEIC picture, which Pillow reads with the plugin pillow-heif only; convert it to JPEG or PNG"
RAW = "a camera's raw file, which rawpy reads and Pillow does not; convert it to JPEG or TIFF"
VIDEO = "a video; extract its frames as pictures"
ARCHIVE = "an archive; unpack it"
DRAWING = "a drawing and not a picture of pixels; convert it to PNG"
OTHERS = {
    **dict.fromkeys((".heic", ".heif", ".hif"), HEIC),
    **dict.fromkeys((".avif", ".avifs"), "an AVIF picture, which this Pillow reads with the plugin pillow-avif-plugin "
                    "only; convert it to JPEG or PNG, or update Pillow"),
    ".jxl": "a JPEG XL picture, which Pillow reads with the plugin pillow-jxl-plugin only; convert it to JPEG or PNG",
    ".dcm": "a DICOM file, which pydicom reads; convert it to PNG",
    **dict.fromkeys((".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2", ".pef", ".srw", ".raw"), RAW),
    **dict.fromkeys((".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv", ".3gp"), VIDEO),
    **dict.fromkeys((".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst"), ARCHIVE),
    **dict.fromkeys((".svg", ".pdf", ".eps", ".ps", ".ai", ".wmf", ".emf"), DRAWING),
}  # fmt: skip
TEXTS = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".md", ".html", ".py", ".npy", ".npz",
         ".mat", ".db", ".log", ".cache", ".parquet")  # fmt: skip
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


def pictures_in(
    folder: Path, log: BuildLog, without: Path | None = None, kind: str = "image", used: Container[Path] = ()
) -> list[str]:
    """Return the pictures at any depth, by their path in the folder; every other file is left out with a reason.

    Args:
        folder: to look in.
        log: gets what is left out.
        without: a folder that is not entered.
        kind: what the files are ("image" or "mask").
        used: files that something else reads.
    """
    pictures, hidden = [], []
    for here, folders, names in walked(folder):
        hidden += [f"{_path(here / name, folder)}/" for name in folders if _is_hidden(name)]
        folders[:] = [name for name in folders if (here / name).resolve() != without and not _is_hidden(name)]
        for path in (here / name for name in names):
            name = _path(path, folder)
            if _is_hidden(path.name):
                hidden.append(name)
            elif path not in used and _writable(name, log):
                if why := _no_picture(path):
                    log.leave_out(name, kind, why)
                else:
                    pictures.append(name)
    if hidden:
        log.remark(ascii(hidden[0])[1:-1], f"{len(hidden)} hidden files or folders are passed over")
    return sorted(pictures)


def no_pictures(folder: Path, log: BuildLog) -> UserError:
    """Return the error for a folder without a picture; says what it holds instead."""
    reasons = Counter(entry["reason"] for entry in log.left_out if entry["what"] == "image").most_common(1)
    holds = "".join(f" ({count} left out: {reason})" for reason, count in reasons)
    return UserError(f"{folder} has no pictures that are read{holds}; give the folder that holds them")


def _is_hidden(name: str) -> bool:
    """Return whether a file or folder is one that systems put beside pictures."""
    return name.startswith(".") or name.lower() in HIDDEN


def _no_picture(path: Path) -> str:
    """Return why a file is no picture that is read; "" for one that is, by its ending or else by its first bytes."""
    ending = path.suffix.lower()
    if ending in PICTURES:
        return ""
    if ending in OTHERS:
        return OTHERS[ending]
    if ending not in TEXTS and _opens(path):
        return ""
    if ending in Image.registered_extensions():
        return f"a kind of picture that is not read ({ending}); convert it to PNG"
    return f"not a picture ({ending or 'without an ending'})"


def _opens(path: Path) -> bool:
    """Return whether the first bytes of a file are those of a picture."""
    if not path.is_file():
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.open(path, formats=FORMATS).close()
        return True
    except Exception:  # decoders raise many kinds of errors
        return False


def leave_out_beside(folder: Path, read: Container[Path], log: BuildLog) -> None:
    """Leave out what lies in a folder beside the files and folders that are read; of a folder its name only."""
    for path in entries(folder):
        is_built = (path / REPORT).is_file()  # by an earlier build
        if not (path in read or is_built or _is_hidden(path.name)) and _writable(path.name, log):
            name = f"{path.name}/" if path.is_dir() else path.name
            log.leave_out(name, "image", "it lies beside the pictures' folder, which alone is read")


def _path(path: Path, folder: Path) -> str:
    """Return a path in a folder, with "/"."""
    return path.relative_to(folder).as_posix()


def _writable(name: str, log: BuildLog) -> bool:
    """Return whether a name can be written; one that cannot is left out."""
    if any(unicodedata.category(sign) in UNWRITABLE for sign in name):
        log.leave_out(ascii(name)[1:-1], "image", "its name holds a control character; rename it")
        return False
    return True


def ids_of(names: Iterable[str]) -> dict[str, str]:
    """Return {path: image id}: without its ending, where no other has the same."""
    names = list(names)
    times = Counter(map(stem, names))
    return {name: stem(name) if times[stem(name)] == 1 else name for name in names}


def masks_for(
    pictures: list[str], masks: list[str], noun: str = "mask"
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return ({picture: its mask}, {picture: why it has none}, masks without a picture), by their names without ending.

    A mask belongs to the picture whose path ends as its own: `masks/cat/1.png` to `images/cat/1.jpg`, and so does
    `masks/1.png`, if no other picture is called 1. Where nothing else fits, so does `masks/ab12cd34-1.png`, as Label
    Studio calls uploads.
    """
    named: dict[str, list[str]] = {}
    for mask in masks:
        named.setdefault(stem(mask), []).append(mask)
    by_last: dict[str, list[str]] = {}
    uploads: dict[str, list[str]] = {}
    for mask in masks:
        last = PurePosixPath(mask).stem
        by_last.setdefault(last, []).append(mask)
        if (upload := without_upload(last)) != last:
            uploads.setdefault(upload, []).append(mask)
    times = Counter(PurePosixPath(picture).stem for picture in pictures)
    masks_of_picture: dict[str, list[str]] = {}
    for picture in pictures:
        candidates = next((named[end] for end in ends_of(stem(picture)) if end in named), [])
        alone = PurePosixPath(picture).stem
        others = (by_last.get(alone) or uploads.get(alone, [])) if times[alone] == 1 else []
        masks_of_picture[picture] = candidates or others
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
