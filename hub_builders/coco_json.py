"""Your own pictures with annotations in COCO's JSON, as CVAT, Label Studio, Roboflow and LabelMe export them.

    saliency-bench build coco-json --json annotations.json --images PICTURES --out my-data

Source: the folder of the pictures that `file_name` in the annotations means (paths below it, or names alone), and the
annotations: `images`, `categories`, and `annotations` with polygons or run lengths. A source that holds
`annotations.json` and `images/` needs `--images` (or `--source`) only. Here `--json` is the file of annotations; the
build report is printed as text, and as JSON it is `build_report.json`.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.hub_builders import _coco, _multilabel, _own
from saliency_bench.hub_builders._source import base_of, needed, part, picture_of, turn_of
from saliency_bench.utils.pictures import Picture, UnreadableError, turned

VERSION = "1"
OWN_DATA = "images"
USAGE = "--json my.json --images raw"
TITLE = "Pictures with COCO annotations"
ANNOTATORS = ("found",)
SOURCES = ("original",)
LICENSE = _own.LICENSE
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
PRIVATE = ("json",)
GROUP = _multilabel.GROUP
CITATION = _own.CITATION
RULE = f"""{_multilabel.RULE} The mask is the union of the class's objects; outlines are for the picture as stored, of
the size that the annotations give. With `boxes` an object without an outline counts with its box."""

HOME = "the pictures (`--images DIR`), and `--json FILE` with the annotations"
FIX = "export the annotations again as COCO JSON"


def check(*, json: str, classes: str, drop: tuple[str, ...], boxes: bool, split: str, seed: int = 0) -> None:
    """Raise UserError for options that do not fit together."""
    _own.check_split("coco-json", split)
    if json:
        _own.given_path(json, "json")


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns; the classes are those of the annotation file, in the order of their ids."""
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
) -> Iterator[Job]:
    """Yield the images in the order of their ids; classes in the order of theirs.

    Args:
        source: the folder of the raw source.
        log: gets what is left out, and why.
        json: the file of annotations (default: annotations.json beside images/ in the source).
        classes: all gives a sample for each class of an image, image gives one for each image.
        drop: leave out images that show one of these classes.
        boxes: an object without an outline counts with its box.
        split: train, validation or test for all; hash for 70, 15 and 15 percent (default: test).
    """
    given = needed(source, "coco-json", HOME)
    base = given if json else base_of(given, "annotations.json")
    images = base / "images" if (base / "images").is_dir() else base
    path = _own.given_path(json, "json") if json else part(base, "annotations.json", HOME)
    entries, names = _coco.entries_in(path, "", log, FIX)
    log.classes = {"label": list(dict.fromkeys(names[key] for key in sorted(names)))}
    without = _multilabel.dropped("coco-json", classes, drop, log.classes["label"])
    pictures = _own.pictures_in(images, log)
    files, ids = _own.Names(pictures), _own.ids_of(pictures)
    log.expected = len(entries)
    seen: set[str] = set()
    for _, entry in sorted(entries.items()):
        name = entry.file_name.replace("\\", "/").removeprefix("./")
        named = files.called(name)
        objects = _objects(log, name, entry, names)
        reason = _lacks(named, objects, [label for label in without if label in objects])
        if reason or named[0] in seen:
            log.leave_out(name, "image", reason or "its picture is in the annotations twice; the first counts")
            continue
        seen.add(named[0])
        part_of = None if split == "hash" else split or "test"
        yield Job(samples_of, ids[named[0]], images / named[0], part_of, entry.frame, objects, classes, boxes)


def _objects(log: BuildLog, name: str, entry: _coco.Entry, names: dict[int, str]) -> dict[str, list[Any]]:
    """Return {class: [outline and box of each object]}, in the order of the categories."""
    kinds = {thing["category_id"] for thing in entry.objects}
    if lost := kinds - set(names):
        log.remark(name, f"category {min(lost)} is not in the list of categories and is skipped")
    objects: dict[str, list[Any]] = {}
    for kind in sorted(kinds & set(names)):
        shapes = [[thing.get("segmentation"), thing.get("bbox")] for thing in entry.of_category(kind)]
        objects.setdefault(names[kind], []).extend(shapes)
    return objects


def _lacks(named: list[str], objects: dict[str, list[Any]], dropped: list[str]) -> str:
    """Return why an image is left out; "" if it is not."""
    if len(named) != 1:
        return f"{'several pictures' if named else 'no picture'} of this file_name"
    if dropped:
        return f"it shows a class that is dropped ({dropped[0]})"
    return "" if objects else "no object"


def samples_of(
    log: BuildLog,
    name: str,
    path: Path,
    split: str | None,
    frame: tuple[int, int],
    objects: dict[str, list[Any]],
    classes: str,
    boxes: bool,
) -> list[dict]:
    """Return the samples of an image."""
    picture = picture_of(log, name, path, deep=True)
    if picture is None:
        return []
    frame = frame if all(frame) else picture.stored  # some programs do not write the size
    masks = {label: partial(_mask, shapes, frame, picture, boxes) for label, shapes in objects.items()}
    further = {"split": split} if split else {}
    return [sample | further for sample in _multilabel.samples_of(log, name, picture, masks, classes)]


def _mask(shapes: list[Any], frame: tuple[int, int], picture: Picture, boxes: bool) -> np.ndarray:
    """Return bool (H, W): the union of the objects, turned with the picture.

    Raises:
        UnreadableError: It cannot be read.
    """
    turn = turn_of(picture, frame, "annotations")
    return turned(np.any([_shape(outline, box, frame, boxes) for outline, box in shapes], axis=0), turn)


def _shape(outline: Any, box: Any, frame: tuple[int, int], boxes: bool) -> np.ndarray:
    """Return bool (H, W): the pixels of an object."""
    if outline:
        return _coco.mask_of(outline, *frame)
    if not boxes:
        raise UnreadableError("an object without an outline; --boxes takes its box" if box else "an empty outline")
    return _own.boxed(box, *frame)


def example(folder: Path, count: int, side: int) -> None:
    """Write a small source in the raw layout, with `count` samples of about `side` pixels."""
    _coco.example(folder, count, side, "images")
    (folder / "annotations/instances_images.json").rename(folder / "annotations.json")
    (folder / "annotations/captions_images.json").unlink()
    (folder / "annotations").rmdir()
