"""Read source folders for the builders: required files, and untrusted lists, tables, JSON and XML.

If a file or folder that every sample needs is missing, a UserError names it. A problem with a single sample raises an
UnreadableError; the message is written to the build log.
"""

import csv
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, TextIO

import numpy as np
from PIL import Image

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError, one_line
from saliency_bench.registry import install_hint
from saliency_bench.utils.files import check_readable, parse_json, read_bytes
from saliency_bench.utils.pictures import WINDOW, Picture, UnreadableError, read, turned, turned_box, values
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.xml_text import ERRORS, parse_xml, xml_events

MANY = 1000  # entries
PICTURES = (".jpg", ".jpeg")  # in upper or lower case
FIELD = 2**26  # maximum bytes in one field of a table (a map of 224 x 224 numbers has about a million)
LIST, JSON, XML = 2**28, 2**31, 2**24  # maximum bytes of a file of this type (one of COCO's has 5 * 10^8)
BOX = ("xmin", "ymin", "xmax", "ymax")


def library(name: str) -> ModuleType:
    """Import an optional library.

    Raises:
        UserError: The library is not installed. The message contains the command that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = name.partition(".")[0]
        raise UserError(f"reading this source needs {missing}: {install_hint('builders')}") from error


def needed(source: Path | None, name: str, home: str) -> Path:
    """Return the source folder, or raise UserError if no folder was passed."""
    if source is None:
        raise UserError(f"{name} is built from a source folder; pass --source DIR (source=DIR) with {home}")
    return source


def part(root: Path, relative: str, home: str) -> Path:
    """Return the path of a required file or folder. The name of a folder ends with "/".

    Raises:
        UserError: The file or folder is missing. The message says where to get it.
    """
    path = root / relative
    if not (path.is_dir() if relative.endswith("/") else path.is_file()):
        raise UserError(f"{root} has no {relative}; pass the folder of the complete, unpacked source: {home}")
    return path


def base_of(source: Path, *wanted: str) -> Path:
    """Return the folder that contains all `wanted` files and folders.

    The search covers `source` and the folders up to two levels below it. If `source` is inside a wanted folder, the
    search also covers the two folders above `source`. If no folder contains all wanted names, `source` is returned.

    Raises:
        UserError: Several folders contain all wanted names.
    """

    def holds(folder: Path) -> bool:
        return all((folder / name).exists() for name in wanted)

    level = [source]
    for _ in range(3):
        if len(holding := [folder for folder in level if holds(folder)]) > 1:
            raise UserError(
                f"{source} contains several copies of the data: {', '.join(map(str, holding))}; pass one of them"
            )
        if holding:
            return holding[0]
        level = [path for folder in level for path in _folders(folder)]
    tops = {PurePosixPath(name).parts[0] for name in wanted}
    above = [folder for folder in source.parents[:2] if source.relative_to(folder).parts[0] in tops and holds(folder)]
    return above[0] if above else source


def base_with(source: Path, *marks: str) -> Path:
    """Return the folder that contains the first of `marks` that exists.

    The same folders are searched as in `base_of`.
    """
    bases = ((base_of(source, mark), mark) for mark in marks)
    return next((base for base, mark in bases if (base / mark).exists()), source)


def _folders(folder: Path) -> list[Path]:
    """Return the subfolders of a folder, or [] if it has so many entries that it must be a folder of data."""
    try:
        with os.scandir(folder) as scan:
            first_entries = list(islice(scan, MANY))
    except OSError:
        return []
    return sorted(Path(entry.path) for entry in first_entries if entry.is_dir()) if len(first_entries) < MANY else []


def first_folder(root: Path, *names: str) -> Path | None:
    """Return the first existing folder among `names`, or None."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def entries(folder: Path) -> list[Path]:
    """Return the files and folders in a folder, sorted by name."""
    return sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() else []


def walked(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield (folder, subfolders, files) at any depth, sorted. Links are followed, but no folder is entered twice.

    As with `os.walk`, folders that the caller removes from the list of subfolders are not entered.
    """
    entered: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in entered:  # a link leads to a folder that was already entered
            folders.clear()
            continue
        entered.add(real)
        folders.sort()
        yield Path(place), folders, sorted(names)


def files_below(folder: Path, suffix: str) -> list[Path]:
    """Return the files with this extension (in any case) at any depth, sorted by path."""
    files = (place / name for place, _, names in walked(folder) for name in names if name.lower().endswith(suffix))
    return sorted(path for path in files if not path.name.startswith("."))


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder. The name of the file comes from a list in the source.

    Raises:
        UnreadableError: The name points outside the folder.
    """
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\0" in name or "\\" in name or not pure.name:
        raise UnreadableError("its name points outside the source folder")
    return folder / pure


def text_of(path: Path, errors: str = "strict") -> str:
    """Return the text of a file.

    Args:
        path: Path of the file.
        errors: How to handle invalid bytes, as in `bytes.decode`.

    Raises:
        UserError: The file is not text.
    """
    try:
        return read_bytes(path, LIST).decode("utf-8-sig", errors)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as text: {one_line(error)}; download it again") from error


def lines(path: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, words) for each line of a list. Empty lines and comments (#) are skipped."""
    split = ((number, line.split()) for number, line in enumerate(text_of(path).splitlines(), 1))
    return [(number, words) for number, words in split if words and not words[0].startswith("#")]


def table(path: Path, columns: Iterable[str], fix: str = "download it again") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, row) for each row of a CSV file.

    Raises:
        UserError: A column is missing, or the file is not a table.
    """
    csv.field_size_limit(max(csv.field_size_limit(), FIELD))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(_bounded(file))
            if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
                raise UserError(f"{path} has no column {', '.join(missing)}; {fix}")
            for row in reader:
                yield reader.line_num, {key: value or "" for key, value in row.items() if key}
    except UserError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a table: {one_line(error)}; {fix}") from error


def _bounded(file: TextIO) -> Iterator[str]:
    """Yield the lines of a text file.

    Raises:
        ValueError: A line is longer than `FIELD`.
    """
    while line := file.readline(FIELD + 1):
        if len(line) > FIELD:
            raise ValueError(f"a line has more than {FIELD:,} characters")
        yield line


def json_of(path: Path, kind: type, fix: str = "download it again") -> Any:
    """Return the content of a JSON file.

    Raises:
        UserError: The file is not JSON, or its top level is not of the type `kind` (dict or list).
    """
    try:
        content = parse_json(read_bytes(path, JSON))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {one_line(error)}; {fix}") from error
    if not isinstance(content, kind):
        raise UserError(f"{path} is not a JSON {'object' if kind is dict else 'list'}; {fix}")
    return content


def xml_of(path: Path) -> Any:
    """Return the root element of an XML file.

    Raises:
        UnreadableError: The file cannot be read, or it declares entities, which can expand to gigabytes.
    """
    with _xml_errors(path):
        return parse_xml(read_bytes(path, XML))


def events_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield ("start" or "end", element) while reading an XML file. The caller may stop early.

    Raises:
        UnreadableError: The file cannot be read, or it declares entities, which can expand to gigabytes.
    """
    with _xml_errors(path):
        check_readable(path, XML)
        with path.open("rb") as file:
            yield from xml_events(file)


@contextmanager
def _xml_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read ({error.strerror})") from None
    except ERRORS as error:
        raise UnreadableError(f"{path.name} is not usable XML ({one_line(error)})") from None


def boxes_of(root: Any, first: int = 1) -> list[tuple[str, list[float]]]:
    """Return (class, [xmin, ymin, xmax, ymax]) for each `object` of VOC-style XML. Objects without corners are skipped.

    Args:
        root: Root element of the XML.
        first: Number of the first pixel in the XML, 0 or 1. The returned boxes count pixels from 1.

    Raises:
        UnreadableError: A box does not have four numbers.
    """
    boxes = []
    for element in root.iter("object"):
        name = (element.findtext("name") or "").strip()
        corners = [(element.findtext(f"bndbox/{corner}") or "").strip() for corner in BOX]
        if not any(corners):
            continue
        try:
            boxes.append((name, [float(corner) + 1 - first for corner in corners]))
        except ValueError:
            raise UnreadableError(f"the box of the object {name!r} does not have four numbers") from None
    return boxes


def declared_size(root: Any) -> tuple[int, int] | None:
    """Return (height, width) of the image that VOC-style XML describes, or None if the XML contains no size."""
    try:
        height, width = (round(float(root.findtext(f"size/{side}") or "")) for side in ("height", "width"))
    except (ValueError, OverflowError):
        return None
    return (height, width) if height > 0 and width > 0 else None


def shown_boxes(root: Any, picture: Picture, first: int = 1) -> list[tuple[str, list[float]]]:
    """Do the same as `boxes_of`, but rotate or mirror the boxes if EXIF rotates or mirrors the image.

    Raises:
        UnreadableError: A box does not have four numbers, or the size of the image differs from the size in the XML.
    """
    turn = turn_of(picture, declared_size(root) or picture.stored, "boxes")
    return [(name, turned_box(box, turn, *picture.stored)) for name, box in boxes_of(root, first)]


def turn_of(picture: Picture, size: tuple[int, int], noun: str = "mask") -> int:
    """Return the EXIF orientation to apply to annotations that were drawn at `size` (height, width).

    After this orientation is applied, the annotations fit the upright image. If the size matches the file as stored,
    return the orientation of the file, even if the upright image has the same size (as with square images). If only the
    upright image has this size, return 1.

    Raises:
        UnreadableError: The size matches neither the file as stored nor the upright image.
    """
    if size == picture.stored:
        return picture.orientation
    if size == (picture.height, picture.width):
        return 1
    raise UnreadableError(f"the {noun} and the image differ in size")


def shown(mask: np.ndarray, picture: Picture, noun: str = "mask") -> np.ndarray:
    """Rotate or mirror a mask (H, W) so that it fits the upright image.

    The mask may have been drawn on the upright image or on the image as stored.

    Raises:
        UnreadableError: The mask and the image differ in size.
    """
    height, width = mask.shape
    return turned(mask, turn_of(picture, (height, width), noun))


def spread(mask: np.ndarray, picture: Picture) -> np.ndarray:
    """Scale a coarse bool mask to the size of the image as stored, and apply the image's EXIF orientation to it.

    The mask is scaled with nearest-neighbour interpolation.
    """
    return turned(nearest(mask, *picture.stored), picture.orientation)


def rasterised(box: list[float], height: int, width: int) -> np.ndarray:
    """Draw a box as a mask, bool (H, W).

    The pixels at the corners belong to the box. Pixels are counted from 1.

    Raises:
        UnreadableError: The box does not have four numbers, or contains no pixel of the image.
    """
    if not np.isfinite(box).all():
        raise UnreadableError("a box does not have four numbers")
    left, top, right, bottom = (round(value) for value in box)
    mask = np.zeros((height, width), bool)
    if left <= right and top <= bottom:
        mask[max(top - 1, 0) : max(bottom, 0), max(left - 1, 0) : max(right, 0)] = True
    if not mask.any():
        raise UnreadableError("a box contains no pixel of the image")
    return mask


def is_picture(path: Path) -> bool:
    """Return whether a file name has a JPEG extension, in upper or lower case."""
    return path.suffix.lower() in PICTURES and not path.name.startswith(".")


def listed_file(log: BuildLog, image_id: str, folder: Path, name: str) -> Path | None:
    """Return the path of a file whose name comes from a list in the source, or None if the name is invalid.

    An invalid name is logged. The extension may be spelled differently (.JPG, .jpeg). Pass the returned path to a job,
    rather than the folder and the name, so that the job is recomputed when the file changes.
    """
    try:
        return as_spelled(inside(folder, name))
    except UnreadableError as error:
        log.leave_out(image_id, "image", str(error))
        return None


def as_spelled(path: Path) -> Path:
    """Return the path if it exists, or else an existing path with a different spelling of the extension."""
    if path.is_file() or path.suffix.lower() not in PICTURES:
        return path
    spelled = (path.with_suffix(ending) for suffix in PICTURES for ending in (suffix, suffix.upper()))
    return next((other for other in spelled if other.is_file()), path)


def picture_of(
    log: BuildLog, image_id: str, path: Path, drawn: str = ", together with its annotations", *, deep: bool = False
) -> Picture | None:
    """Read an image, or log the reason and return None if it cannot be read.

    Args:
        log: Build log, which records the reason.
        image_id: Id of the image.
        path: Path of the file.
        drawn: Note about the annotations, written to the log if EXIF data rotates or mirrors the image.
        deep: Whether to accept images with more than 8 bits. They are converted in the same way as in studies.
    """
    try:
        if not path.is_file():
            raise UnreadableError("no such image file")
        picture = read(path, deep=deep)
    except UnreadableError as error:
        log.leave_out(image_id, "image", str(error))
        return None
    if picture.is_windowed:
        low, high = WINDOW
        log.remark(
            image_id, f"the image has more than 8 bits; its values from percentile {low} to {high} are scaled to 8 bits"
        )
    if picture.orientation != 1:
        log.remark(image_id, f"turned upright (EXIF orientation {picture.orientation}){drawn}")
    return picture


def mask_or_none(log: BuildLog, image_id: str, make: Callable[[], np.ndarray]) -> np.ndarray | None:
    """Return the mask (H, W) that `make` returns, or log the reason and return None if it is empty or unreadable."""
    try:
        mask = make()
        if not mask.any():
            raise UnreadableError("empty mask")
        return mask
    except UnreadableError as error:
        log.leave_out(image_id, "mask", str(error))
        return None


def indices(path: Path, picture: Picture, noun: str = "mask") -> np.ndarray:
    """Return the values in a mask file, uint8, with the size and orientation of the upright image.

    Raises:
        UnreadableError: The file cannot be read, or its size differs from the image's size.
    """
    if not path.is_file():
        raise UnreadableError(f"no {noun}")
    try:
        stored = values(path)
    except UnreadableError as error:
        raise UnreadableError(f"{noun}: {error}") from None
    return shown(stored, picture, noun)


def nearest(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize a bool mask to (height, width) with nearest-neighbour interpolation."""
    return np.asarray(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))


def drawn(seed: int, names: Iterable[str], count: int) -> set[str]:
    """Draw `count` names (0 for all) according to a hash of (seed, name).

    If a name is added to `names`, at most one of the drawn names changes.
    """
    ordered = sorted(names, key=lambda name: (seed_of(seed, "drawn", name), name))
    return set(ordered[:count] if count else ordered)
