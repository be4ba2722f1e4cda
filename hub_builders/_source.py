"""Shared by builders: the parts of a source folder, and untrusted lists, tables, JSON and XML.

A missing part that every sample needs is a UserError that names it; a problem with one sample is an UnreadableError
whose text goes into the build log.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.utils.pictures import Picture, UnreadableError, read, values
from saliency_bench.utils.seeds import seed_of

FIELD = 2**26  # bytes of one field of a table: a map of 224 x 224 numbers has about a million
BOX = ("xmin", "ymin", "xmax", "ymax")


def library(name: str) -> ModuleType:
    """An optional library. Raises: UserError with the line that installs it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = name.partition(".")[0]
        raise UserError(f'reading this source needs {missing}: pip install "saliency-bench[builders]"') from error


def needed(source: Path | None, name: str, home: str) -> Path:
    if source is None:
        raise UserError(f"{name} is built from a source folder: give --source DIR (source=DIR) with {home}")
    return source


def part(root: Path, relative: str, home: str) -> Path:
    """A required file, or with "/" at the end a folder. Raises: UserError with the place to get it."""
    path = root / relative
    if not (path.is_dir() if relative.endswith("/") else path.is_file()):
        raise UserError(f"{root} has no {relative}; give the folder as downloaded and unpacked: {home}")
    return path


def first_folder(root: Path, *names: str) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def entries(folder: Path) -> list[Path]:
    """The content of a folder, sorted by name."""
    return sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() else []


def inside(folder: Path, name: str) -> Path:
    """The file that a list of the source names. Raises: UnreadableError for a name that leads out of the folder."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\0" in name or "\\" in name or not pure.name:
        raise UnreadableError("its name leads out of the source folder")
    return folder / pure


def text_of(path: Path) -> str:
    """Raises: UserError for a file that is not UTF-8 text."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as text: {error}; download it again") from error


def lines(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, its words) of a list; empty lines and comments (#) are skipped."""
    split = ((number, line.split()) for number, line in enumerate(text_of(path).splitlines(), 1))
    return [(number, words) for number, words in split if words and not words[0].startswith("#")]


def table(path: Path, columns: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, row) of a CSV file. Raises: UserError for a column that is missing or a file that is no table."""
    csv.field_size_limit(max(csv.field_size_limit(), FIELD))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
                raise UserError(f"{path} has no column {', '.join(missing)}; download it again")
            for row in reader:
                yield reader.line_num, {key: value or "" for key, value in row.items() if key}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a table: {error}; download it again") from error


def json_of(path: Path, kind: type) -> Any:
    """Raises: UserError for a file that is not JSON of this kind (dict, list)."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}; download it again") from error
    if not isinstance(content, kind):
        raise UserError(f"{path} holds no JSON {'object' if kind is dict else 'list'}; download it again")
    return content


def xml_of(path: Path) -> Any:
    """The root element. Entities are refused: they can unpack to gigabytes. Raises: UnreadableError."""
    defused = library("defusedxml.ElementTree")
    with _xml_errors(path):
        return defused.fromstring(path.read_bytes())


def xml_events(path: Path) -> Iterator[tuple[str, Any]]:
    """("start" or "end", element) while reading, for files of which only the start is needed. Errors as `xml_of`."""
    defused = library("defusedxml.ElementTree")
    with _xml_errors(path), path.open("rb") as file:
        yield from defused.iterparse(file, events=("start", "end"))


@contextmanager
def _xml_errors(path: Path) -> Iterator[None]:
    parse_error = library("defusedxml.ElementTree").ParseError
    try:
        yield
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read ({error.strerror})") from None
    except (ValueError, parse_error, LookupError) as error:  # also entities, and encodings without a decoder
        raise UnreadableError(f"{path.name} is no usable XML ({_line(error)})") from None


def boxes_of(root: Any) -> list[tuple[str, list[float]]]:
    """(class, [xmin, ymin, xmax, ymax]) of each `object` of VOC-style XML. Raises: UnreadableError."""
    found = []
    for element in root.iter("object"):
        name = (element.findtext("name") or "").strip()
        try:
            box = [float(element.findtext(f"bndbox/{corner}") or "") for corner in BOX]
        except ValueError:
            raise UnreadableError(f"the box of an object {name!r} is not four numbers") from None
        found.append((name, box))
    return found


def rasterised(box: list[float], height: int, width: int) -> np.ndarray:
    """bool (H, W): the pixels of a box whose corners count from 1 and belong to it. Raises: UnreadableError."""
    if not np.isfinite(box).all():
        raise UnreadableError("a box that is not four numbers")
    left, top, right, bottom = (round(value) for value in box)
    mask = np.zeros((height, width), bool)
    if left <= right and top <= bottom:
        mask[max(top - 1, 0) : max(bottom, 0), max(left - 1, 0) : max(right, 0)] = True
    if not mask.any():
        raise UnreadableError("a box without a pixel in the image")
    return mask


def listed_file(log: BuildLog, image_id: str, folder: Path, name: str) -> Path | None:
    """The file that a list of the source names, or None with the reason in the log. A job that gets the file itself,
    rather than folder and name, is recomputed when the file has changed."""
    try:
        return inside(folder, name)
    except UnreadableError as error:
        log.leave_out(image_id, "image", str(error))
        return None


def picture_of(log: BuildLog, image_id: str, path: Path) -> Picture | None:
    """The picture, or None with the reason in the log."""
    try:
        if not path.is_file():
            raise UnreadableError("no such image file")
        return read(path)
    except UnreadableError as error:
        log.leave_out(image_id, "image", str(error))
        return None


def mask_or_none(log: BuildLog, image_id: str, make: Callable[[], np.ndarray]) -> np.ndarray | None:
    """The mask that `make` returns, bool (H, W); None, with the reason in the log, if it is empty or unreadable."""
    try:
        mask = make()
        if not mask.any():
            raise UnreadableError("empty mask")
        return mask
    except UnreadableError as error:
        log.leave_out(image_id, "mask", str(error))
        return None


def indices(path: Path, picture: Picture) -> np.ndarray:
    """The values of a mask file, uint8, in the size of the picture. Raises: UnreadableError."""
    if not path.is_file():
        raise UnreadableError("no mask")
    try:
        found = values(path)
    except UnreadableError as error:
        raise UnreadableError(f"mask: {error}") from None
    if found.shape != (picture.height, picture.width):
        raise UnreadableError("mask of another size than its image")
    return found


def nearest(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """bool (height, width) of a bool mask, by nearest neighbour."""
    return np.asarray(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))


def drawn(seed: int, names: Iterable[str], count: int) -> set[str]:
    """`count` of the names (0: all), by a hash of (seed, name): adding or removing a name changes at most one other."""
    ordered = sorted(names, key=lambda name: (seed_of(seed, "drawn", name), name))
    return set(ordered[:count] if count else ordered)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
