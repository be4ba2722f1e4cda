"""Read an unpacked copy of PASCAL VOC: classes, image lists, and masks in PNG or MATLAB files."""

import re
from pathlib import Path

import numpy as np
from PIL import Image

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._source import (
    base_of,
    entries,
    first_folder,
    indices,
    library,
    lines,
    needed,
    part,
    shown,
)
from saliency_bench.utils.pictures import Picture, UnreadableError

CLASSES = [  # palette indices 1 to 20
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
]
VOID = 255
LISTS = {  # {type of list: folders that the source must contain}
    "segmentation": ("SegmentationClass/", "ImageSets/Segmentation/"),
    "detection": ("Annotations/", "ImageSets/Main/"),
}
HOME = "PASCAL VOC 2012, VOCtrainval_11-May-2012.tar from host.robots.ox.ac.uk/pascal/VOC (Flickr images, for research)"
TERMS = ("pascal-voc-flickr-terms", "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/")
CITATION = """@article{everingham2010pascal,
  title = {The {PASCAL} Visual Object Classes ({VOC}) Challenge},
  author = {Everingham, Mark and Van Gool, Luc and Williams, Christopher K. I. and Winn, John and Zisserman, Andrew},
  journal = {International Journal of Computer Vision},
  year = {2010}
}"""


def root_of(source: Path | None, name: str, lists: str = "segmentation", year: int = 2012) -> Path:
    """Find the VOC folder of a year. It may be the source itself, or inside or above the source.

    Raises:
        UserError: There is no such folder.
    """
    source, called = needed(source, name, HOME), f"VOC{year}"
    root = first_folder(base_of(source, called), called) or base_of(source, "JPEGImages", "ImageSets")
    if re.fullmatch(r"VOC\d{4}", root.name) and root.name != called:
        raise UserError(f"{root} is not {called}; pass the folder of VOC {year}, or set a different year")
    for wanted in ("JPEGImages/", *LISTS[lists]):
        part(root, wanted, HOME)
    return root


def listed(
    root: Path, log: BuildLog, lists: str = "segmentation", names: tuple[str, ...] = ("train", "val")
) -> dict[str, str]:
    """Return {image name: name of the first list that contains the image, such as "train"}."""
    splits: dict[str, str] = {}
    folder = root / LISTS[lists][1]
    for split in names:
        path = folder / f"{split}.txt"
        for number, words in lines(path) if path.is_file() else []:
            if words[0] in splits:
                log.remark(words[0], f"{path.name} line {number}: the image is listed twice; the first entry is used")
            splits.setdefault(words[0], split)
    if not splits:
        raise UserError(
            f"the lists {' and '.join(f'{name}.txt' for name in names)} in {folder} contain no image; download the "
            f"source again and unpack it: {HOME}"
        )
    return splits


def augmented(source: Path, root: Path) -> dict[str, Path]:
    """Return {image name: mask file} for the augmented labels.

    Raises:
        UserError: The source has no augmented labels.
    """
    packed = first_folder(root, "SegmentationClassAug", "../../SegmentationClassAug")
    raw = first_folder(source, "benchmark_RELEASE/dataset/cls", "dataset/cls", "../benchmark_RELEASE/dataset/cls")
    folder, suffix = (packed, ".png") if packed else (raw, ".mat")
    if folder is None:
        raise UserError(
            f"{root} has no SegmentationClassAug/ and {source} has no benchmark_RELEASE/dataset/cls/; download the "
            "Semantic Boundaries Dataset (benchmark.tgz of Hariharan et al. 2011) or a copy of its labels as PNG files"
        )
    return {path.stem: path for path in entries(folder) if path.suffix == suffix and not path.name.startswith(".")}


def labels(path: Path, picture: Picture) -> np.ndarray:
    """Return the class index of each pixel, uint8 (H, W).

    The file is a palette PNG, or a MATLAB file of the Semantic Boundaries Dataset.
    """
    return _matlab(path, picture) if path.suffix == ".mat" else indices(path, picture)


def _matlab(path: Path, picture: Picture) -> np.ndarray:
    loadmat = library("scipy.io").loadmat
    try:
        stored = np.asarray(loadmat(path)["GTcls"]["Segmentation"][0, 0])
        stored = stored.astype(np.uint8)
    except Exception as error:  # the reader raises errors of many types on damaged files
        raise UnreadableError(f"the mask is not a valid MATLAB file ({type(error).__name__})") from None
    return shown(stored, picture)


def classes_in(labels_of_pixels: np.ndarray) -> list[int]:
    """Return the class indices (1 to 20) that occur in a mask.

    Raises:
        UnreadableError: The mask contains an index that is not a class.
    """
    there = sorted(set(np.unique(labels_of_pixels).tolist()) - {0, VOID})
    if wrong := [index for index in there if index > len(CLASSES)]:
        raise UnreadableError(f"index {wrong[0]} in the mask is not one of the {len(CLASSES)} classes")
    return there


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    base = folder / "VOCdevkit/VOC2012"
    names = [f"2007_{index:06d}" for index in range(count)]
    for index, name in enumerate(names):
        mask = _examples.picture(base / f"JPEGImages/{name}.jpg", index + 8, side)
        values = Image.fromarray(np.where(mask, index % 20 + 1, 0).astype(np.uint8))
        values.putpalette([(89 * n) % 256 for n in range(768)])
        (base / "SegmentationClass").mkdir(exist_ok=True)
        values.save(base / f"SegmentationClass/{name}.png")
    _examples.text(base / "ImageSets/Segmentation/train.txt", "\n".join(names[::2]) + "\n")
    _examples.text(base / "ImageSets/Segmentation/val.txt", "\n".join(names[1::2]) + "\n")


def example_detection(folder: Path, count: int, side: int) -> None:
    """Write an example source with bounding boxes instead of segmentations."""
    base = folder / "VOCdevkit/VOC2007"
    names = [f"{index:06d}" for index in range(count)]
    for index, name in enumerate(names):
        mask = _examples.picture(base / f"JPEGImages/{name}.jpg", index + 8, side)
        down, across = np.flatnonzero(mask.any(1)) + 1, np.flatnonzero(mask.any(0)) + 1
        corners = _examples.boxed((across[0], down[0], across[-1], down[-1]))
        box = f"<object><name>{CLASSES[index % 20]}</name><bndbox>{corners}</bndbox></object>"
        size = f"<size><width>{side}</width><height>{side}</height><depth>3</depth></size>"
        _examples.text(base / f"Annotations/{name}.xml", f"<annotation>{size}{box}</annotation>")
    _examples.text(base / "ImageSets/Main/train.txt", "\n".join(names[::4]) + "\n")
    _examples.text(base / "ImageSets/Main/val.txt", "\n".join(names[2::4]) + "\n")
    _examples.text(base / "ImageSets/Main/test.txt", "\n".join(names[1::2]) + "\n")
