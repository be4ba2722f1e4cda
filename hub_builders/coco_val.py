"""COCO 2017 or 2014 validation: one sample per object class of an image, with that class's pixels as the mask.

Source: MS COCO (cocodataset.org, "2017 Val images" and "2017 Train/Val annotations"; annotations CC BY 4.0, each image
under its own Flickr licence) as downloaded and unpacked: `annotations/instances_val2017.json` and the images in
`val2017/`, or with `--year 2014` the corresponding files of 2014. They may be inside a folder `coco/`. If `train2017/`
and `annotations/instances_train2017.json` exist, training images are drawn from them.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _coco, _multilabel
from saliency_bench.hub_builders._papers import QUANTITATIVE
from saliency_bench.hub_builders._parts import training_split, with_training
from saliency_bench.hub_builders._source import drawn, listed_file, picture_of

VERSION = "2"
ALSO_CALLED = ("coco", "mscoco")
TITLE = "COCO validation"
ANNOTATORS = ("crowdsourced",)
SOURCES = ("extended|other-coco",)
PAPER = QUANTITATIVE
LICENSE = "other"
TERMS = _coco.TERMS
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
GROUP = _multilabel.GROUP
CITATION = _coco.CITATION
RULE = f"""{_multilabel.RULE} The mask is the union of the class's objects, including crowds. Outlines refer to the
image as stored in the file, before any EXIF rotation, at the size stated in the annotations. `test` contains the
validation images of COCO. `train` and `validation` (split by a hash, 85 to 15) contain `train_images` training
images of COCO, if the source has training images."""


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns. The classes come from the annotation file, ordered by id."""
    return _multilabel.features(classes["label"])


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    year: int = 2017,
    classes: str = "all",
    drop: tuple[str, ...] = (),
    parts: str = "all",
    train_images: int = 10000,
    seed: int = 0,
) -> Iterator[Job]:
    """Yield one job per image, first the evaluation images, then the training images, ordered by id.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        year: 2017 or 2014.
        classes: all for one sample per class of an image, or image for one sample per image.
        drop: leave out images that show one of these classes (example: horse cow "potted plant" person).
        parts: all, or test to leave out the training images.
        train_images: number of training images to draw; 0 for all.
        seed: seed for drawing images and for the split into train and validation.
    """
    if year not in (2017, 2014) or train_images < 0:
        raise UserError(
            f"coco-val: year must be 2017 or 2014, and train_images must be 0 or more; got {year} and {train_images}"
        )
    training = with_training("coco-val", parts)
    root = _coco.root_of(source, "coco-val")
    _coco.splits_of(root, ("instances",), f"val{year}")
    evaluated, names = _coco.entries_of(root, f"val{year}", False, log)
    log.classes = {"label": [names[key] for key in sorted(names)]}
    without = _multilabel.dropped("coco-val", classes, drop, log.classes["label"])
    chosen = _training_images(root, year, train_images, seed, log) if training else {}
    chosen = {key: entry for key, entry in chosen.items() if key not in evaluated}
    log.expected = len(evaluated) + len(chosen)
    for key, entry in [*sorted(evaluated.items()), *sorted(chosen.items())]:
        name = f"{key:012d}"
        if (objects := _objects(log, name, entry, names, without)) is None:
            continue
        split = "test" if key in evaluated else training_split(seed, name)
        if path := listed_file(log, name, root / entry.split, entry.file_name):
            yield Job(samples_of, name, path, entry.split, split, entry.frame, objects, classes)


def _training_images(root: Path, year: int, count: int, seed: int, log: BuildLog) -> dict[int, _coco.CocoEntry]:
    split = f"train{year}"
    if not (root / split).is_dir() or not (root / f"annotations/instances_{split}.json").is_file():
        log.remark(split, "the source has no training images, so there is no train or validation split")
        return {}
    images, _ = _coco.entries_of(root, split, False, log)
    keep = drawn(seed, map(str, images), count)
    if surplus := len(images) - len(keep):
        log.remark(split, f"{surplus} other training images were not selected")
    return {key: entry for key, entry in images.items() if str(key) in keep}


def _objects(
    log: BuildLog, name: str, entry: _coco.CocoEntry, names: dict[int, str], without: list[str]
) -> dict[str, list[Any]] | None:
    """Return {class: outlines of the objects}, or log the reason and return None if the image is left out."""
    kinds = {thing["category_id"] for thing in entry.objects}
    if lost := kinds - set(names):
        log.remark(name, f"category {min(lost)} is not in the list of categories and is skipped")
    objects = {
        names[kind]: [thing.get("segmentation") for thing in entry.of_category(kind)]
        for kind in sorted(kinds & set(names))
    }
    there = [label for label in without if label in objects]
    if there or not objects:
        log.leave_out(name, "image", f"it shows a class listed in `drop` ({there[0]})" if there else "no object")
        return None
    return objects


def samples_of(
    log: BuildLog,
    name: str,
    path: Path,
    listed: str,
    split: str,
    frame: tuple[int, int],
    objects: dict[str, list[Any]],
    classes: str,
) -> list[dict]:
    """Return the samples of an image, or log the reason and return [] if the image is left out."""
    picture = picture_of(log, name, path)
    if picture is None:
        return []
    masks = {label: partial(_coco.shown_mask, outlines, frame, picture) for label, outlines in objects.items()}
    further = {"source_split": listed, "split": split}
    return [sample | further for sample in _multilabel.samples_of(log, name, picture, masks, classes)]


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    _coco.example(folder, count, side, "val2017")
    _coco.example(folder, count, side, "train2017", 101)
