"""PASCAL VOC 2012 or 2007: one sample per object class of an image, with that class's pixels as the mask.

Source: the folder of PASCAL VOC (host.robots.ox.ac.uk/pascal/VOC; the images come from Flickr and are for research
only) as downloaded and unpacked. The archive is VOCtrainval_11-May-2012.tar; `--year 2007` needs
VOCtest_06-Nov-2007.tar and VOCtrainval_06-Nov-2007.tar. The folder is `VOCdevkit/VOC2012/`, or the folder that contains
it, with `JPEGImages/` and these files:

- by default `SegmentationClass/` and `ImageSets/Segmentation/*.txt`;
- with `--lists detection`, `Annotations/*.xml` and `ImageSets/Main/*.txt`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _multilabel, _voc
from saliency_bench.hub_builders._papers import QUANTITATIVE
from saliency_bench.hub_builders._parts import training_split, with_training
from saliency_bench.hub_builders._source import (
    boxes_of,
    entries,
    listed_file,
    picture_of,
    rasterised,
    shown_boxes,
    xml_of,
)
from saliency_bench.utils.pictures import Picture, UnreadableError

VERSION = "2"
ALSO_CALLED = ("voc", "pascal voc")
TITLE = "PASCAL VOC"
ANNOTATORS = ("expert-generated",)
SOURCES = ("extended|other-pascal-voc",)
PAPER = QUANTITATIVE
LICENSE = "other"
TERMS = _voc.TERMS
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
GROUP = _multilabel.GROUP
CITATION = _voc.CITATION
RULE = f"""{_multilabel.RULE} Masks come from the segmentation, whose void pixels (255) are in no mask. With
`lists=detection`, masks come from the boxes of all objects, including objects marked as difficult. `test` contains the
images of VOC's own list `val` (for VOC 2007, `test`). VOC 2012 has 1,449 of these images with segmentation and 5,823
with boxes; VOC 2007 has 4,952 with boxes. VOC's training images form `train` and `validation` (split by a hash, 85 to
15)."""

EXAMPLE_DETECTION = {"year": 2007, "lists": "detection"}
EVALUATED = {2012: ("val",), 2007: ("test",)}
TRAINED_ON = {2012: ("train",), 2007: ("train", "val")}


def features() -> dict:
    """Return the columns of the dataset."""
    return _multilabel.features(_voc.CLASSES)


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    year: int = 2012,
    lists: str = "segmentation",
    classes: str = "all",
    drop: tuple[str, ...] = (),
    parts: str = "all",
    seed: int = 0,
) -> Iterator[Job]:
    """Yield one job per image, ordered by name, with classes in the order of the palette.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        year: 2012 or 2007.
        lists: segmentation, or detection for more images, with boxes as masks.
        classes: all for one sample per class of an image, or image for one sample per image.
        drop: leave out images that show one of these classes (example: horse cow pottedplant person).
        parts: all, or test to leave out the training images.
        seed: seed for the split into train and validation.
    """
    if year not in EVALUATED or lists not in _voc.LISTS:
        raise UserError(
            "voc-val: year must be 2012 or 2007, and lists must be 'segmentation' or 'detection'; "
            f"got {year} and {lists!r}"
        )
    without = _multilabel.dropped("voc-val", classes, drop, _voc.CLASSES)
    training = with_training("voc-val", parts)
    root = _voc.root_of(source, "voc-val", lists, year)
    splits = _voc.listed(root, log, lists, EVALUATED[year] + TRAINED_ON[year])
    if not set(splits.values()) & set(EVALUATED[year]):
        raise UserError(
            f"{root} has no images for the list {EVALUATED[year][0]}.txt of {lists}; download the source again and "
            f"unpack it: {_voc.HOME}"
        )
    names = sorted(name for name in splits if training or splits[name] in EVALUATED[year])
    annotated = entries(root / ("SegmentationClass" if lists == "segmentation" else "Annotations"))
    if unlisted := [path for path in annotated if path.suffix in (".png", ".xml") and path.stem not in splits]:
        log.remark(f"ImageSets, {lists}", f"{len(unlisted)} annotated images are not in any of the lists")
    if training and not set(splits.values()) & set(TRAINED_ON[year]):
        log.remark("train.txt", "the list contains no training images, so there is no train or validation split")
    log.expected = len(names)
    for name in names:
        split = "test" if splits[name] in EVALUATED[year] else training_split(seed, name)
        notes = root / (f"SegmentationClass/{name}.png" if lists == "segmentation" else f"Annotations/{name}.xml")
        if path := listed_file(log, name, root / "JPEGImages", f"{name}.jpg"):
            yield Job(samples_of, name, path, notes, splits[name], split, classes, without)


def samples_of(
    log: BuildLog, name: str, path: Path, notes: Path, listed: str, split: str, classes: str, without: list[str]
) -> list[dict]:
    """Return the samples of an image, or log the reason and return [] if the image is left out."""
    picture = picture_of(log, name, path)
    if picture is None:
        return []
    try:
        masks = (boxed if notes.suffix == ".xml" else segmented)(log, name, notes, picture)
        if not masks:
            raise UnreadableError("no object of any class")
        if there := [label for label in without if label in masks]:
            raise UnreadableError(f"it shows a class listed in `drop` ({there[0]})")
    except UnreadableError as error:
        log.leave_out(name, "image", str(error))
        return []
    further = {"source_split": listed, "split": split}
    return [sample | further for sample in _multilabel.samples_of(log, name, picture, masks, classes)]


Masks = dict[str, Callable[[], np.ndarray]]  # {class in the image: function that returns its mask}


def segmented(log: BuildLog, name: str, path: Path, picture: Picture) -> Masks:
    """Return {class: function that returns the mask of the class} for an image with a segmentation."""
    labels = _voc.labels(path, picture)
    return {_voc.CLASSES[index - 1]: partial(np.equal, labels, index) for index in _voc.classes_in(labels)}


def boxed(log: BuildLog, name: str, path: Path, picture: Picture) -> Masks:
    """Return {class: function that returns the mask of the class} for an image with boxes."""
    root = xml_of(path)
    there = {kind for kind, _ in boxes_of(root)}
    for kind in sorted(there - set(_voc.CLASSES)):
        log.remark(name, f"object {kind!r} is not one of the {len(_voc.CLASSES)} classes and is left out")

    def mask(label: str) -> np.ndarray:
        boxes = [box for kind, box in shown_boxes(root, picture) if kind == label]
        return np.any([rasterised(box, picture.height, picture.width) for box in boxes], axis=0)

    return {label: partial(mask, label) for label in _voc.CLASSES if label in there}


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    _voc.example(folder, 2 * count, side)  # half of the images are in VOC's training split


def example_detection(folder: Path, count: int, side: int) -> None:
    """Write an example source in the layout of VOC 2007 with boxes."""
    _voc.example_detection(folder, 2 * count, side)
