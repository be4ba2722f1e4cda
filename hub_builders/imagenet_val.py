"""ImageNet validation: 1,000 classes, with the boxes of the class as masks if the source has them.

Source: the validation images of ILSVRC 2012 (image-net.org, after registration; non-commercial research and education
only) as downloaded and unpacked, in one of three layouts:

- The layout of image-net.org: `ILSVRC2012_val_*.JPEG` from ILSVRC2012_img_val.tar (in `val/`, `ILSVRC2012_img_val/` or
  the source folder itself) and `ILSVRC2012_devkit_t12/` from ILSVRC2012_devkit_t12.tar.gz, which lists the classes. The
  masks also require the boxes from ILSVRC2012_bbox_val_v3.tgz: `ILSVRC2012_bbox_val_v3/val/*.xml` or `val/*.xml`.
- The layout of Kaggle (kaggle.com/c/imagenet-object-localization-challenge): `ILSVRC/Data/CLS-LOC/val/*.JPEG`,
  `LOC_val_solution.csv` and `LOC_synset_mapping.txt`.
- One folder per class, as created by training scripts: `val/n01440764/*.JPEG`. Files whose names begin or end with
  the class, `n01440764_*.JPEG` or `*_n01440764.JPEG` (val_images.tar.gz on the Hub), may be in `val/` or in the source
  folder itself. Boxes are optional and read as in the layout of image-net.org.

The names of the classes come from the first of these files that exists: `LOC_synset_mapping.txt`, `synset_words.txt`,
`imagenet_class_index.json` and the devkit's `meta.mat`. If none exists but there are 1,000 class folders, the names
come from a list in the package. The classes are sorted by WordNet id, as in pretrained classifiers. If the source
contains the training images (`ILSVRC/Data/CLS-LOC/train/` or `train/`, one folder per class), training images are drawn
from them.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _imagenet
from saliency_bench.hub_builders._imagenet import Boxes, classes_of, group_of, images_of, root_of
from saliency_bench.hub_builders._papers import QUANTITATIVE
from saliency_bench.hub_builders._parts import training_split, with_training
from saliency_bench.hub_builders._source import (
    drawn,
    entries,
    first_folder,
    is_picture,
    mask_or_none,
    picture_of,
    rasterised,
    shown_boxes,
    xml_of,
)
from saliency_bench.utils.pictures import Picture, UnreadableError, turned_box

VERSION = "3"
ALSO_CALLED = ("imagenet", "imagenet-1k", "ilsvrc")
TITLE = "ImageNet validation"
ANNOTATORS = ("crowdsourced",)
SOURCES = ("extended|other-imagenet-1k",)
PAPER = QUANTITATIVE
LICENSE = "other"
TERMS = ("imagenet-terms-of-access", "https://www.image-net.org/download.php")
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
CITATION = _imagenet.CITATION
RULE = """The classes are the classes of the source, sorted by WordNet id. If two classes have the same name, the
WordNet id is added to the name. The mask is the union of the boxes of the class, from `LOC_val_solution.csv` or from
the XML files in ILSVRC2012_bbox_val_v3.tgz. Images without boxes have no mask. Box coordinates refer to the image as
stored in the file, before any EXIF rotation. `wnid` is the WordNet id, and `class_group` is the name of the group of
similar classes (imagenet-groups lists its classes). `test` contains the validation images of the source. `train` and
`validation` (split by a hash, 85 to 15) contain `train_per_class` training images per class, without masks, if the
source has training images."""


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns of the dataset. The classes come from the source."""
    from datasets import ClassLabel, Value

    return {"label": ClassLabel(names=classes["label"]), "wnid": Value("string"), "class_group": Value("string")}


def samples(
    source: Path | None, log: BuildLog, *, parts: str = "all", train_per_class: int = 50, seed: int = 0
) -> Iterator[Job]:
    """Yield one job per image, first the evaluation images, then the training images, ordered by name.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        parts: all, or test to leave out the training images.
        train_per_class: number of training images per class; 0 for all.
        seed: seed for drawing images and for the split into train and validation.
    """
    training = with_training("imagenet-val", parts)
    if train_per_class < 0:
        raise UserError(f"imagenet-val: train_per_class must be 0 or more; got {train_per_class}")
    root = root_of(source, "imagenet-val")
    names = classes_of(root)
    log.classes = {"label": list(names.values())}
    images = images_of(root, names, log)
    chosen = training_images(root, names, train_per_class, seed, log) if training else {}
    log.expected = len(images) + len(chosen)
    for name in sorted(images):
        path, wnid, boxes = images[name]
        yield Job(sample_of, name, path, wnid, names[wnid], boxes)
    for name in sorted(chosen):
        path, wnid = chosen[name]
        yield Job(training_sample, name, path, wnid, names[wnid], training_split(seed, name))


def training_images(
    root: Path, names: dict[str, str], count: int, seed: int, log: BuildLog
) -> dict[str, tuple[Path, str]]:
    """Draw training images, and return {image name: (file, WordNet id)}."""
    base = first_folder(root, "ILSVRC/Data/CLS-LOC/train", "train", "ILSVRC2012_img_train")
    if base is None:
        log.remark("train", "the source has no training images, so there is no train or validation split")
        return {}
    images: dict[str, tuple[Path, str]] = {}
    for wnid in names:
        files = {path.stem: path for path in entries(base / wnid) if is_picture(path)}
        images |= {name: (files[name], wnid) for name in drawn(seed, files, count)}
    return images


def training_sample(log: BuildLog, name: str, path: Path, wnid: str, label: str, split: str) -> dict | None:
    """Return the sample of a training image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, name, path)
    about = {"label": label, "wnid": wnid, "class_group": group_of(wnid)[0], "source_split": "train", "split": split}
    return picture and {"image_id": name, "image": picture, "mask": None} | about


def sample_of(log: BuildLog, name: str, path: Path, wnid: str, label: str, boxes: Boxes | Path | None) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, name, path)
    if picture is None:
        return None
    mask = mask_or_none(log, name, lambda: union(boxes_in(boxes, wnid, picture), picture))
    about = {"label": label, "wnid": wnid, "class_group": group_of(wnid)[0], "source_split": "val", "split": "test"}
    return {"image_id": name, "image": picture, "mask": mask} | about


def boxes_in(boxes: Boxes | Path | None, wnid: str, picture: Picture) -> Boxes:
    """Return the boxes of a class, turned with the image. Boxes from a table refer to the stored image."""
    if isinstance(boxes, Path):
        return [box for kind, box in shown_boxes(xml_of(boxes), picture) if kind == wnid]
    return [turned_box(box, picture.orientation, *picture.stored) for box in boxes or []]


def union(boxes: Boxes, picture: Picture) -> np.ndarray:
    """Return the union of boxes as a mask, bool (H, W)."""
    if not boxes:
        raise UnreadableError("no box")
    return np.any([rasterised(box, picture.height, picture.width) for box in boxes], axis=0)


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in Kaggle's layout: `count` samples with images of about `side` x `side` pixels."""
    _imagenet.example(folder, count, side)


def example_devkit(folder: Path, count: int, side: int) -> None:
    """Write an example source in the layout of image-net.org."""
    _imagenet.example_devkit(folder, count, side)
