"""PASCAL VOC 2012 validation: one sample for each object class of an image, with that class's pixels as mask.

Source: as for object-xai, the folder of PASCAL VOC 2012 (host.robots.ox.ac.uk/pascal/VOC,
VOCtrainval_11-May-2012.tar; the images come from Flickr and are for research only) as downloaded and unpacked:
`VOCdevkit/VOC2012/`, or the folder that holds it, with `JPEGImages/`, `SegmentationClass/` and
`ImageSets/Segmentation/{train,val}.txt`.
"""

from collections.abc import Iterator
from pathlib import Path

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.hub_builders import _voc
from saliency_bench.hub_builders._source import entries, listed_file, picture_of
from saliency_bench.utils.pictures import UnreadableError

VERSION = "1"
TITLE = "PASCAL VOC 2012 validation"
LICENSE = "other"
TERMS = _voc.TERMS
REDISTRIBUTE = False
SPLIT = "test"
PAPER_COUNTS: dict = {}
CITATION = _voc.CITATION
RULE = """The images of VOC's segmentation list `val`. An image with objects of several classes gives one sample for
each of them, `IMAGE:CLASS`; void (255) is in no mask. `classes` are all classes of the image. With the option
`imagenet` the classes without a counterpart in ImageNet (horse, cow, potted plant, person) give no sample. Everything
is in the split `test`."""

NOT_IN_IMAGENET = ("horse", "cow", "pottedplant", "person")


def features() -> dict:
    from datasets import ClassLabel, List, Value

    return {"label": ClassLabel(names=_voc.CLASSES), "classes": List(Value("string"))}


def samples(source: Path | None, log: BuildLog, *, imagenet: bool = False) -> Iterator[Job]:
    """The images in the order of their names, their classes in the order of the palette.

    imagenet: leave out the four classes that ImageNet does not have
    """
    root = _voc.root_of(source, "voc-val")
    splits = _voc.listed(root, log)
    names = sorted(name for name in splits if splits[name] == "val")
    for path in entries(root / "SegmentationClass"):
        if path.suffix == ".png" and path.stem not in splits:
            log.leave_out(path.stem, "image", "segmented, but in neither list")
    log.expected = len(names)
    for name in names:
        if path := listed_file(log, name, root / "JPEGImages", f"{name}.jpg"):
            yield Job(samples_of, name, path, root / "SegmentationClass" / f"{name}.png", imagenet)


def samples_of(log: BuildLog, name: str, path: Path, mask: Path, imagenet: bool) -> Iterator[dict]:
    picture = picture_of(log, name, path)
    if picture is None:
        return
    try:
        labels = _voc.labels(mask, picture)
        there = {_voc.CLASSES[index - 1]: index for index in _voc.classes_in(labels)}
    except UnreadableError as error:
        log.leave_out(name, "image", str(error))
        return
    kept = [label for label in there if not (imagenet and label in NOT_IN_IMAGENET)]
    if not kept:
        log.leave_out(name, "image", "no object of a class that is used")
    for label in kept:
        yield {
            "image_id": f"{name}:{label}",
            "image": picture,
            "label": label,
            "mask": labels == there[label],
            "classes": list(there),
            "source_split": "val",
            "group": name,
        }


def example(folder: Path, count: int, side: int) -> None:
    _voc.example(folder, 2 * count, side)  # half of them are its training split
