"""PASCAL VOC 2012: images with objects of exactly one of 20 classes, with their outlines as masks.

Source: the folder of PASCAL VOC 2012 (host.robots.ox.ac.uk/pascal/VOC, VOCtrainval_11-May-2012.tar; the images come
from Flickr and are for research only) as downloaded and unpacked: `VOCdevkit/VOC2012/`, or the folder that contains it,
with `JPEGImages/`, `SegmentationClass/` and `ImageSets/Segmentation/{train,val}.txt`.

`--segmentation augmented` adds the labels of the Semantic Boundaries Dataset (Hariharan et al. 2011). These are either
its original files `benchmark_RELEASE/dataset/cls/*.mat` in the source folder, or a copy as PNG files
`SegmentationClassAug/*.png` in VOC2012.
"""

from collections.abc import Iterator
from pathlib import Path

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _voc
from saliency_bench.hub_builders._papers import SALIENCY_BENCH
from saliency_bench.hub_builders._source import entries, listed_file, picture_of
from saliency_bench.utils.pictures import UnreadableError

VERSION = "2"
TITLE = "Object-XAI"
ANNOTATORS = ("expert-generated",)
SOURCES = ("extended|other-pascal-voc-2012",)
PAPER = SALIENCY_BENCH
LICENSE = "other"
TERMS = _voc.TERMS
REDISTRIBUTE = False
PAPER_COUNTS = {"samples": 4318, "masks": 4318}
CITATION = _voc.CITATION
RULE = """An image is kept if its segmentation shows objects of exactly one class. This class is the label, and its
pixels are the mask. Index 0 is background and 255 is the void border, which belongs to no mask. With
`segmentation=augmented`, images outside VOC's own segmentation lists get their labels from the Semantic Boundaries
Dataset, as is usual. `source_split` is VOC's own split. The paper has 4,318 images and does not state which
segmentation it used. Neither matches: 1,860 images of the original segmentation and 7,673 images of the augmented
segmentation show only one class."""


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=_voc.CLASSES)}


def samples(source: Path | None, log: BuildLog, *, segmentation: str = "original") -> Iterator[Job]:
    """Yield one job per segmented image, ordered by name.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        segmentation: original, or augmented to add labels from the Semantic Boundaries Dataset.
    """
    if segmentation not in ("original", "augmented"):
        raise UserError(f"object-xai: segmentation={segmentation} is unknown; use 'original' or 'augmented'")
    root = _voc.root_of(source, "object-xai")
    splits = _voc.listed(root, log)
    files = [path for path in entries(root / "SegmentationClass") if not path.name.startswith(".")]
    masks = {path.stem: path for path in files if path.suffix == ".png"}
    for path in files:
        if path.suffix != ".png":
            log.leave_out(path.name, "image", "not named like a segmentation PNG")
    if segmentation == "augmented":
        masks = _voc.augmented(source or root, root) | {name: masks[name] for name in masks if name in splits}
    names = sorted(set(masks) | set(splits))
    log.expected = len(names)
    for name in names:
        if path := listed_file(log, name, root / "JPEGImages", f"{name}.jpg"):
            yield Job(sample_of, name, path, masks.get(name), splits.get(name))


def sample_of(log: BuildLog, name: str, path: Path, mask: Path | None, split: str | None) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, name, path)
    if picture is None:
        return None
    try:
        if mask is None:
            raise UnreadableError("a segmentation list contains the image, but SegmentationClass/ does not")
        labels = _voc.labels(mask, picture)
        classes = _voc.classes_in(labels)
        if len(classes) != 1:
            raise UnreadableError(
                "objects of several classes"
                if classes
                else "the segmentation contains no object, only background and void"
            )
    except UnreadableError as error:
        log.leave_out(name, "image", str(error))
        return None
    return {
        "image_id": name,
        "image": picture,
        "label": _voc.CLASSES[classes[0] - 1],
        "mask": labels == classes[0],
        "source_split": split,
    }


example = _voc.example
