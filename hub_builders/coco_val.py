"""COCO 2017 validation: one sample for each object class of an image, with that class's pixels as mask.

Source: MS COCO (cocodataset.org, "2017 Val images" and "2017 Train/Val annotations"; annotations CC BY 4.0, each image
under its own Flickr licence) as downloaded and unpacked: `annotations/instances_val2017.json` and the images in
`val2017/`; `coco/` above them may stay.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.hub_builders import _coco
from saliency_bench.hub_builders._source import listed_file, mask_or_none, picture_of
from saliency_bench.utils.pictures import Picture

VERSION = "1"
TITLE = "COCO 2017 validation"
LICENSE = "other"
TERMS = _coco.TERMS
REDISTRIBUTE = False
SPLIT = "test"
PAPER_COUNTS: dict = {}
CITATION = _coco.CITATION
RULE = """An image with objects of several classes gives one sample for each of them, `IMAGE:CLASS`; the mask is the
union of the class's objects, crowds included. `classes` are all classes of the image. With the option `imagenet` the
classes without a counterpart in ImageNet (horse, cow, potted plant, person) give no sample. Everything is in the split
`test`."""

NOT_IN_IMAGENET = ("horse", "cow", "potted plant", "person")


def features(classes: dict[str, list[str]]) -> dict:
    """The classes are those of the annotation file, in the order of their ids."""
    from datasets import ClassLabel, List, Value

    return {"label": ClassLabel(names=classes["label"]), "classes": List(Value("string"))}


def samples(source: Path | None, log: BuildLog, *, imagenet: bool = False) -> Iterator[Job]:
    """The images in the order of their ids, their classes in the order of theirs.

    imagenet: leave out the four classes that ImageNet does not have
    """
    root = _coco.root_of(source, "coco-val")
    _coco.splits_of(root, ("instances",), "val2017")
    found, names = _coco.entries_of(root, "val2017", False, log)
    log.expected = len(found)
    log.classes = {"label": [names[key] for key in sorted(names)]}
    for key in sorted(found):
        entry = found[key]
        there = sorted({one["category_id"] for one in entry.objects} & set(names))
        if lost := {one["category_id"] for one in entry.objects} - set(names):
            log.remark(f"{key:012d}", f"category {min(lost)} is not in the list of categories and is passed over")
        kept = [one for one in there if not (imagenet and names[one] in NOT_IN_IMAGENET)]
        if not kept:
            log.leave_out(f"{key:012d}", "image", "no object of a class that is used")
            continue
        outlines = {names[kind]: [one.get("segmentation") for one in entry.of(kind)] for kind in kept}
        if path := listed_file(log, f"{key:012d}", root / "val2017", entry.file_name):
            yield Job(samples_of, f"{key:012d}", path, outlines, [names[one] for one in there])


def samples_of(log: BuildLog, name: str, path: Path, outlines: dict[str, list], classes: list[str]) -> Iterator[dict]:
    picture = picture_of(log, name, path)
    if picture is None:
        return
    for label in outlines:
        mask = mask_or_none(log, f"{name}:{label}", lambda label=label: union(outlines[label], picture))
        yield {
            "image_id": f"{name}:{label}",
            "image": picture,
            "label": label,
            "mask": mask,
            "classes": classes,
            "source_split": "val2017",
            "group": name,
        }


def union(segmentations: list, picture: Picture) -> np.ndarray:
    masks = [_coco.mask_of(one, picture.height, picture.width) for one in segmentations]
    return np.any(masks, axis=0)


def example(folder: Path, count: int, side: int) -> None:
    _coco.example(folder, count, side, "val2017")
