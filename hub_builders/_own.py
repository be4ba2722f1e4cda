"""Read a user's own images and masks: match masks to images, and select the object's pixels in a mask."""

import unicodedata
import warnings
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from saliency_bench.data.build_report import REPORT
from saliency_bench.data.dataset_names import SPLIT_OF as SPLITS
from saliency_bench.data.jobs import BuildLog
from saliency_bench.data.untrusted_reports import PICTURES, UNWRITABLE
from saliency_bench.errors import UserError
from saliency_bench.hub_builders._source import entries, walked
from saliency_bench.utils.masks import read_mask
from saliency_bench.utils.picture_names import PictureNames, Sides, composed, ends_of, stem, without_upload
from saliency_bench.utils.pictures import FORMATS, Picture, UnreadableError

LICENSE = "unknown"
CITATION = "% your own data"
HIDDEN = ("thumbs.db", "desktop.ini", "__macosx", "$recycle.bin")  # names that begin with a dot are also hidden

# Why files of these types are left out, and the fix.
HEIC = "a HEIC image, which Pillow reads only with the plugin pillow-heif; convert it to JPEG or PNG"
RAW = "a camera's raw file, which rawpy can read but Pillow cannot; convert it to JPEG or TIFF"
VIDEO = "a video; extract its frames as images"
ARCHIVE = "an archive; unpack it"
DRAWING = "a vector drawing; convert it to PNG"
OTHERS = {
    **dict.fromkeys((".heic", ".heif", ".hif"), HEIC),
    **dict.fromkeys((".avif", ".avifs"), "an AVIF image, which this version of Pillow reads only with the plugin "
                    "pillow-avif-plugin; convert it to JPEG or PNG, or update Pillow"),
    ".jxl": "a JPEG XL image, which Pillow reads only with the plugin pillow-jxl-plugin; convert it to JPEG or PNG",
    ".dcm": "a DICOM file, which pydicom can read but Pillow cannot; convert it to PNG",
    **dict.fromkeys((".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2", ".pef", ".srw", ".raw"), RAW),
    **dict.fromkeys((".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv", ".3gp"), VIDEO),
    **dict.fromkeys((".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst"), ARCHIVE),
    **dict.fromkeys((".svg", ".pdf", ".eps", ".ps", ".ai", ".wmf", ".emf"), DRAWING),
}  # fmt: skip
TEXTS = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".md", ".html", ".py", ".npy", ".npz",
         ".mat", ".db", ".log", ".cache", ".parquet")  # fmt: skip


def given_path(path: str, option: str, folder: bool = False) -> Path:
    """Return the file or folder that the user passed as an option.

    Raises:
        UserError: The file or folder does not exist.
    """
    place = Path(path).expanduser().resolve()
    if not (place.is_dir() if folder else place.is_file()):
        raise UserError(f"--{option} {path} is not a {'folder' if folder else 'file'}; check the path")
    return place


def check_split(owner: str, split: str) -> None:
    """Raise UserError if the value of the option `split` is unknown."""
    if split not in ("", "hash", *SPLITS.values()):
        raise UserError(f"{owner}: split={split} is unknown; use 'hash', 'train', 'validation' or 'test'")


def split_of(name: str) -> str | None:
    """Return the split that is named by a folder in a path, such as Train or val2017, or None."""
    folders = (part.lower().rstrip("0123456789") for part in name.split("/")[:-1])
    return next((SPLITS[folder] for folder in folders if folder in SPLITS), None)


def pictures_in(
    folder: Path, log: BuildLog, without: Path | None = None, kind: str = "image", used: Container[Path] = ()
) -> list[str]:
    """Return the relative paths of the images in a folder and its subfolders, sorted.

    All other files are logged as left out, with a reason.

    Args:
        folder: Folder to search.
        log: Build log, which records what is left out.
        without: Folder to skip.
        kind: Expected type of the files ("image" or "mask").
        used: Files to skip, because they are read elsewhere.
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
        log.remark(ascii(hidden[0])[1:-1], f"{len(hidden)} hidden files or folders are ignored")
    return sorted(pictures)


def unread(log: BuildLog) -> PictureNames:
    """Return the names of the images that have been left out so far.

    If a row in a table of labels names one of these images, the image must not be reported a second time.
    """
    return PictureNames(entry["id"] for entry in log.left_out if entry["what"] == "image")


def no_pictures(folder: Path, log: BuildLog) -> UserError:
    """Return the error for a folder without readable images. The message names the most frequent reason."""
    reasons = Counter(entry["reason"] for entry in log.left_out if entry["what"] == "image").most_common(1)
    holds = "".join(f" ({count} left out: {reason})" for reason, count in reasons)
    return UserError(f"{folder} has no readable images{holds}; pass the folder that contains them")


def _is_hidden(name: str) -> bool:
    """Return whether a file or folder is hidden or was created by the operating system."""
    return name.startswith(".") or name.lower() in HIDDEN


def _no_picture(path: Path) -> str:
    """Return why a file is not a readable image, or "" if its extension or first bytes identify an image."""
    ending = path.suffix.lower()
    if ending in PICTURES:
        return ""
    if ending in OTHERS:
        return OTHERS[ending]
    if ending not in TEXTS and _opens(path):
        return ""
    if ending in Image.registered_extensions():
        return f"an unsupported image format ({ending}); convert the file to PNG"
    return f"not an image ({ending or 'no file extension'})"


def _opens(path: Path) -> bool:
    """Return whether a file begins with the bytes of a supported image format."""
    if not path.is_file():
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.open(path, formats=FORMATS).close()
        return True
    except Exception:  # decoders raise errors of many types
        return False


def leave_out_beside(source: Path, images: Path, read: Container[Path | None], log: BuildLog) -> None:
    """Log the unread files in a source that are outside the folder of images. For a folder, only its name is logged."""
    logged = {entry["id"] for entry in log.left_out}
    for place in (images, *images.parents):
        if source not in place.parents:
            return
        for path in entries(place.parent):
            is_built = (path / REPORT).is_file()  # written by an earlier build
            if path == place or path in read or is_built or _is_hidden(path.name) or not _writable(path.name, log):
                continue
            if (name := _path(path, source) + "/" * path.is_dir()) not in logged:
                log.leave_out(name, "image", "it is outside the folder of images")


def _path(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _writable(name: str, log: BuildLog) -> bool:
    """Return whether a file name has no control characters. If it has, log the file as left out."""
    if any(unicodedata.category(sign) in UNWRITABLE for sign in name):
        log.leave_out(ascii(name)[1:-1], "image", "its name contains a control character; rename it")
        return False
    return True


def ids_of(names: Iterable[str]) -> dict[str, str]:
    """Return {path: image id}. The id is the path without its extension if this is unique, else the full path."""
    names = list(names)
    times = Counter(map(stem, names))
    return {name: stem(name) if times[stem(name)] == 1 else name for name in names}


def masks_for(
    pictures: list[str], masks: list[str], noun: str = "mask"
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Match masks to images by name.

    A mask belongs to an image if the paths of both end in the same names. For example, `masks/cat/1.png` belongs to
    `images/cat/1.jpg`. `masks/1.png` also belongs to this image if no other image is named 1. If nothing else matches,
    the image also gets `masks/ab12cd34-1.png`, because Label Studio gives uploaded files such names. A mask in the
    folder of other images, such as `masks/dog/1.png`, does not belong to this image.

    Returns:
        ({image: mask}, {image: why it has no mask}, masks without an image).
    """
    sides = Sides(masks, pictures)
    named: dict[str, list[str]] = {}
    for mask in masks:
        named.setdefault(composed(stem(mask)), []).append(mask)
    by_last: dict[str, list[str]] = {}
    uploads: dict[str, list[str]] = {}
    for mask in masks:
        last = composed(PurePosixPath(mask).stem)
        by_last.setdefault(last, []).append(mask)
        if (upload := without_upload(last)) != last:
            uploads.setdefault(upload, []).append(mask)
    times = Counter(composed(PurePosixPath(picture).stem) for picture in pictures)
    masks_of_picture: dict[str, list[str]] = {}
    for picture in pictures:
        candidates = next((named[end] for end in ends_of(composed(stem(picture))) if end in named), [])
        alone = composed(PurePosixPath(picture).stem)
        others = (by_last.get(alone) or uploads.get(alone, [])) if times[alone] == 1 else []
        masks_of_picture[picture] = candidates or [mask for mask in others if not sides.contradict(mask, picture)]
    users = Counter(mask for several in masks_of_picture.values() for mask in several)
    chosen, lacking = {}, {}
    for picture, several in masks_of_picture.items():
        if len(several) == 1 and users[several[0]] == 1:
            chosen[picture] = several[0]
        else:
            lacking[picture] = (
                f"no {noun} file has its name"
                if not several
                else f"several {noun} files have its name"
                if len(several) > 1
                else f"its {noun} file matches several images"
            )
    return chosen, lacking, [mask for mask in masks if mask not in users]


def mask_of(path: Path, foreground: str, picture: Picture) -> np.ndarray:
    """Return the object's pixels in a mask file, bool (H, W). The mask is rotated like its image, according to EXIF.

    Raises:
        UnreadableError: The mask cannot be read, or does not define the object.
    """
    return read_mask(path, (picture.height, picture.width), picture.orientation, foreground)


def boxed(box: Any, height: int, width: int) -> np.ndarray:
    """Return which pixels have their centres inside a box [x, y, width, height], bool (H, W).

    Raises:
        UnreadableError: The box cannot be read.
    """
    numbers = isinstance(box, list) and len(box) == 4 and all(type(value) in (int, float) for value in box)
    if not numbers or not np.isfinite(box).all():
        raise UnreadableError("a box does not have four numbers")
    left, top, across, down = box
    columns, rows = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    return (columns > left) & (columns < left + across) & (rows > top) & (rows < top + down)
