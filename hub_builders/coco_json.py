"""Your own images with annotations in COCO's JSON format, as exported by CVAT, Label Studio, Roboflow and LabelMe.

    saliency-bench build coco-json --json annotations.json --images PICTURES --out my-data

Source: an annotation file (with `images`, `categories`, and `annotations` as polygons or run lengths), and the folder
of the images that `file_name` refers to. If `file_name` is a path on a different machine, the image is identified by
the end of the path, provided exactly one image matches.

`--images` (or `--source`) is enough if the folder contains `annotations.json` (`result.json` in Label Studio,
`labels.json` in FiftyOne) and `images/` or `data/`. It is also enough if the folder contains folders named train, valid
or val, and test, each with images and their annotations, as exported by Roboflow. These folders become splits.

For this dataset, `--json` is the annotation file, not an output format. The build report is printed as text and written
as JSON to `build_report.json`.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError, one_line
from saliency_bench.hub_builders import _coco, _multilabel, _own
from saliency_bench.hub_builders._frames import LABEL_STUDIO, Frame, Shape, frame_of, union
from saliency_bench.hub_builders._source import base_of, needed, part, picture_of
from saliency_bench.hub_builders._source import entries as entries_of
from saliency_bench.utils.picture_names import Meant, PictureNames, plain
from saliency_bench.utils.pictures import Picture, UnreadableError

VERSION = "1"
OWN_DATA = "images"
USAGE = "--json my.json --images raw"
TITLE = "Images with COCO annotations"
ANNOTATORS = ("found",)
SOURCES = ("original",)
LICENSE = _own.LICENSE
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
PRIVATE = ("json",)
GROUP = _multilabel.GROUP
CITATION = _own.CITATION
EXAMPLE = {"stored": True}
RULE = f"""{_multilabel.RULE} The mask is the union of the class's objects. If EXIF rotates an image, its size and the
points of the outlines decide whether the outlines refer to the upright image or to the image as stored. If both fit,
the option `upright` or `stored` decides; without either option, the mask is left out. With `boxes`, an object without
an outline is represented by its box."""

HOME = "the images (`--images DIR`), and `--json FILE` with the annotations"
FIX = "export the annotations again as COCO JSON"
# Usual names of the annotation file: the name in this package, then in Label Studio, CVAT, Roboflow and FiftyOne.
LISTINGS = (
    "annotations.json", "result.json", "annotations/instances_default.json", "_annotations.coco.json", "labels.json",
)  # fmt: skip
PICTURES = ("images", "data")  # usual folders of the images, next to the annotation file

UPRIGHT = "its outlines are assumed to be drawn on the upright image (if both fit, --stored selects the stored image)"
STORED = "its outlines are assumed to be drawn on the stored image (if both fit, --upright selects the upright image)"


def check(*, json: str, split: str, upright: bool, stored: bool, **others: object) -> None:
    """Raise UserError if options are invalid or contradict each other."""
    _own.check_split("coco-json", split)
    if upright and stored:
        raise UserError("coco-json: --upright and --stored cannot be combined; use only one of them")
    if json:
        _own.given_path(json, "json")


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns. The classes come from the annotation file, ordered by id."""
    return _multilabel.features(classes["label"])


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    json: str = "",
    classes: str = "all",
    drop: tuple[str, ...] = (),
    boxes: bool = False,
    split: str = "",
    upright: bool = False,
    stored: bool = False,
) -> Iterator[Job]:
    """Yield one job per image, ordered by image id, with classes ordered by class id.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        json: annotation file (default: annotations.json or result.json next to images/ in the source).
        classes: all for one sample per class of an image, or image for one sample per image.
        drop: leave out images that show one of these classes.
        boxes: if an object has no outline, use its box.
        split: train, validation or test for all images, or hash to split them in the ratio 70:15:15 (default: the split
            that the folder is named after, else test).
        upright: if EXIF rotates an image and the outlines fit both versions, assume that they refer to the upright
            image.
        stored: if EXIF rotates an image and the outlines fit both versions, assume that they refer to the file as
            stored.
    """
    given = needed(source, "coco-json", HOME)
    sources = [_annotated(given, _own.given_path(json, "json"))] if json else _sources(given)
    read = [_coco.entries_in(path, "", log, FIX, id_of) for _, path in sources]
    log.classes = {"label": list(dict.fromkeys(names[key] for _, names in read for key in sorted(names, key=_order)))}
    log.expected = sum(len(entries) for entries, _ in read)
    without = _multilabel.dropped("coco-json", classes, drop, log.classes["label"])
    choice = "upright" if upright else "stored" if stored else ""
    beside = [place for images, path in sources for place in (images, path, path.parent)]
    for (images, path), (entries, names) in zip(sources, read, strict=True):
        _own.leave_out_beside(given, images, beside, log)
        folder = f"{images.relative_to(given).as_posix()}/" if len(sources) > 1 else ""
        for image_id, name, entry, objects in _pictures(images, path, entries, names, folder, without, log):
            part_of = None if split == "hash" else split or _own.split_of(folder + name) or "test"
            yield Job(samples_of, image_id, images / name, part_of, entry.frame, objects, classes, boxes, choice,
                      _of_label_studio(entry))  # fmt: skip


def _pictures(
    images: Path,
    path: Path,
    entries: dict[Any, _coco.CocoEntry],
    names: dict[Any, str],
    folder: str,
    without: list[str],
    log: BuildLog,
) -> Iterator[tuple[str, str, _coco.CocoEntry, dict[str, list[Any]]]]:
    """Yield (image id, file name, entry, {class: objects}) for each image in an annotation file.

    Args:
        images: Folder of the images.
        path: Annotation file.
        entries: Images in the annotation file.
        names: Categories in the annotation file.
        folder: Prefix of each image id.
        without: Classes whose images are left out.
        log: Build log, which records what is left out.
    """
    pictures = _own.pictures_in(images, log, used=[path])
    unread = _own.unread(log)
    ids = {name: folder + image_id for name, image_id in _own.ids_of(pictures).items()}
    meant = PictureNames(pictures).resolved(entry.file_name for entry in entries.values())
    _check_found(path, images, ids, meant, log)
    seen: set[str] = set()
    for key in sorted(entries, key=_order):
        entry = entries[key]
        name, picture = plain(entry.file_name), meant[entry.file_name]
        if not picture.picture and unread.meant(entry.file_name):
            continue
        objects = _objects(log, name, entry, names)
        reason = _lacks(picture, entry, objects, [label for label in without if label in objects])
        if reason or picture.picture in seen:
            log.leave_out(name, "image", reason or "its image occurs twice in the annotations; the first entry is used")
            continue
        seen.add(picture.picture)
        yield ids[picture.picture], picture.picture, entry, objects


def id_of(value: Any) -> int | str | None:
    """Convert a value to an id, or return None if the value is not an id.

    An integer becomes int, even if it is written as a float or a string. Other numbers and strings become str.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and value == str(int(value)):
        value = int(value)
    is_id = isinstance(value, int | float | str) and not isinstance(value, bool) and value == value and value != ""
    return (value if isinstance(value, int) else str(value)) if is_id else None


def _order(key: int | str) -> tuple[bool, int, str]:
    """Return a sort key that puts numbers before strings."""
    return (True, 0, key) if isinstance(key, str) else (False, key, "")


def _sources(given: Path) -> list[tuple[Path, Path]]:
    """Return the pairs (folder of images, annotation file) of a source: a single pair, or one pair per split."""
    if not any((given / name).is_file() for name in LISTINGS):
        splits = [folder for folder in entries_of(given) if _own.split_of(f"{folder.name}/") and folder.is_dir()]
        if len(listings := [listing for folder in splits if (listing := _listing(folder))]) > 1:
            return [_annotated(listing.parent, listing) for listing in listings]
    base = next((base for base in _bases(given) if base), given)
    return [_annotated(base, _listing(base) or part(base, LISTINGS[0], HOME))]


def _annotated(base: Path, path: Path) -> tuple[Path, Path]:
    return next((base / name for name in PICTURES if (base / name).is_dir()), base), path


def _bases(source: Path) -> Iterator[Path | None]:
    """Yield candidates for a source's base folder.

    Each candidate is a folder that contains an annotation file with a usual name, or None. Folders that also contain
    the images come first.
    """
    for name in LISTINGS:
        for wanted in (*((name, folder) for folder in PICTURES), (name,)):
            base = base_of(source, *wanted)
            yield base if (base / name).is_file() else None


def _listing(base: Path) -> Path | None:
    """Return the first annotation file with a usual name in a folder, or None."""
    return next((base / name for name in LISTINGS if (base / name).is_file()), None)


def _of_label_studio(entry: _coco.CocoEntry) -> bool:
    return entry.program == LABEL_STUDIO and all("ignore" in thing for thing in entry.objects)


def _check_found(path: Path, images: Path, ids: dict[str, str], meant: dict[str, Meant], log: BuildLog) -> None:
    """Log file names for which there is no image, with an example, and images that no file name refers to.

    Raises:
        UserError: No file name refers to an existing image.
    """
    lost = [name for name, match in meant.items() if not match.picture]
    named = {name for match in meant.values() for name in (match.picture, *match.perhaps)}
    spare = {name: image_id for name, image_id in ids.items() if name not in named}
    if not ids:
        raise _own.no_pictures(images, log)
    if meant and len(lost) == len(meant):
        raise UserError(
            f"{images} contains none of the images listed in {path.name}: the file lists {one_line(lost[0], 100)} "
            f"({meant[lost[0]].lacks}), but the folder contains {next(iter(spare or ids))}; pass the folder of the "
            "annotated images as --images"
        )
    if lost:
        holds = f"; the folder also contains {next(iter(spare))}" if spare else ""
        names = "1 name has" if len(lost) == 1 else f"{len(lost)} names have"
        log.remark(path.name, f"{names} no image, such as {one_line(lost[0], 100)}{holds}")
    for image_id in spare.values():
        log.leave_out(image_id, "image", f"it is not in {path.name}")


def _objects(log: BuildLog, name: str, entry: _coco.CocoEntry, names: dict[Any, str]) -> dict[str, list[Any]]:
    """Return {class: [(outline, box, whether the object has keypoints)]}, ordered by category."""
    kinds = {thing["category_id"] for thing in entry.objects}
    if lost := sorted(kinds - set(names), key=_order):
        log.remark(name, f"category {lost[0]} is not in the list of categories and is skipped")
    objects: dict[str, list[Any]] = {}
    for kind in sorted(kinds & set(names), key=_order):
        shapes = [[item.get("segmentation"), item.get("bbox"), "keypoints" in item] for item in entry.of_category(kind)]
        objects.setdefault(names[kind], []).extend(shapes)
    return objects


def _lacks(meant: Meant, entry: _coco.CocoEntry, objects: dict[str, list[Any]], dropped: list[str]) -> str:
    """Return why an image is left out, or "" if it is kept."""
    if not meant.picture:
        return f"{meant.lacks} with this file_name"
    if dropped:
        return f"it shows a class listed in `drop` ({dropped[0]})"
    if objects:
        return ""
    return "no object of a listed category" if entry.objects else "no object"


def samples_of(
    log: BuildLog,
    name: str,
    path: Path,
    split: str | None,
    stated: tuple[int, int],
    objects: dict[str, list[Any]],
    classes: str,
    boxes: bool,
    choice: str,
    studio: bool,
) -> list[dict]:
    """Return the samples of an image, or log the reason and return [] if the image is left out."""
    picture = picture_of(log, name, path, "", deep=True)
    if picture is None:
        return []
    of_class = {label: [Shape.of_object(*thing) for thing in listed] for label, listed in objects.items()}
    shapes = [shape for listed in of_class.values() for shape in listed]
    frame: Frame | UnreadableError
    try:
        frame = frame_of(picture, stated, shapes, choice, studio)
        if picture.orientation != 1:
            log.remark(name, UPRIGHT if frame.turn == 1 else STORED)
    except UnreadableError as error:
        frame = error
    masks = {
        label: partial(_mask, log, f"{name}:{label}", listed, frame, picture, boxes)
        for label, listed in of_class.items()
    }
    further = {"split": split} if split else {}
    return [sample | further for sample in _multilabel.samples_of(log, name, picture, masks, classes)]


def _mask(
    log: BuildLog, name: str, shapes: list[Shape], frame: Frame | UnreadableError, picture: Picture, boxes: bool
) -> np.ndarray:
    """Draw the union of a class's objects on the upright image, bool (H, W).

    Raises:
        UnreadableError: The objects cannot be drawn.
    """
    if isinstance(frame, UnreadableError):
        raise frame
    mask, problems = union(shapes, frame, picture, boxes)
    if problems:
        parts = "1 part of its outlines cannot be drawn and is"
        parts = parts if len(problems) == 1 else f"{len(problems)} parts of its outlines cannot be drawn and are"
        log.remark(name, f"{parts} left out: {problems[0]}")
    return mask


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    _coco.example(folder, count, side, "images")
    (folder / "annotations/instances_images.json").rename(folder / "annotations.json")
    (folder / "annotations/captions_images.json").unlink()
    (folder / "annotations").rmdir()
