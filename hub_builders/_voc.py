"""PASCAL VOC 2012 as unpacked: classes, lists, and masks of both kinds."""

from pathlib import Path

import numpy as np
from PIL import Image

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._source import entries, first_folder, indices, library, lines, needed, part
from saliency_bench.utils.pictures import Picture, UnreadableError

CLASSES = [  # index 1 to 20 of the palette
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
HOME = "PASCAL VOC 2012, VOCtrainval_11-May-2012.tar of host.robots.ox.ac.uk/pascal/VOC (Flickr images, for research)"
TERMS = ("pascal-voc-flickr-terms", "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/")
CITATION = """@article{everingham2010pascal,
  title = {The {PASCAL} Visual Object Classes ({VOC}) Challenge},
  author = {Everingham, Mark and Van Gool, Luc and Williams, Christopher K. I. and Winn, John and Zisserman, Andrew},
  journal = {International Journal of Computer Vision},
  year = {2010}
}"""


def root_of(source: Path | None, name: str) -> Path:
    """The folder VOC2012 in the source, or the source itself."""
    source = needed(source, name, HOME)
    root = first_folder(source, "VOCdevkit/VOC2012", "VOC2012") or source
    for wanted in ("JPEGImages/", "SegmentationClass/", "ImageSets/Segmentation/"):
        part(root, wanted, HOME)
    return root


def listed(root: Path, log: BuildLog) -> dict[str, str]:
    """{image name: "train" or "val"} of the segmentation lists."""
    splits: dict[str, str] = {}
    for split in ("train", "val"):
        path = root / "ImageSets" / "Segmentation" / f"{split}.txt"
        for number, words in lines(path) if path.is_file() else []:
            if words[0] in splits:
                log.remark(words[0], f"{path.name} line {number}: listed twice; the first counts")
            splits.setdefault(words[0], split)
    if not splits:
        raise UserError(f"{root / 'ImageSets/Segmentation'} names no image in train.txt and val.txt; {HOME}")
    return splits


def augmented(source: Path, root: Path) -> dict[str, Path]:
    """{image name: mask file} of the augmented labels. Raises: UserError where there are none."""
    packed = first_folder(root, "SegmentationClassAug", "../../SegmentationClassAug")
    raw = first_folder(source, "benchmark_RELEASE/dataset/cls", "dataset/cls", "../benchmark_RELEASE/dataset/cls")
    folder, suffix = (packed, ".png") if packed else (raw, ".mat")
    if folder is None:
        raise UserError(
            f"{root} has no SegmentationClassAug/ and {source} no benchmark_RELEASE/dataset/cls/; the augmented labels "
            "are the Semantic Boundaries Dataset (benchmark.tgz of Hariharan et al. 2011) or a re-pack of it as PNG"
        )
    return {path.stem: path for path in entries(folder) if path.suffix == suffix and not path.name.startswith(".")}


def labels(path: Path, picture: Picture) -> np.ndarray:
    """Class indices, uint8 (H, W), of a palette PNG or of a MATLAB file of the Semantic Boundaries Dataset."""
    return _matlab(path, picture) if path.suffix == ".mat" else indices(path, picture)


def _matlab(path: Path, picture: Picture) -> np.ndarray:
    loadmat = library("scipy.io").loadmat
    try:
        found = np.asarray(loadmat(path)["GTcls"]["Segmentation"][0, 0])
        found = found.astype(np.uint8)
    except Exception as error:  # the reader raises all kinds of errors on damaged files
        raise UnreadableError(f"mask: no usable MATLAB file ({type(error).__name__})") from None
    if found.shape != (picture.height, picture.width):
        raise UnreadableError("mask of another size than its image")
    return found


def classes_in(found: np.ndarray) -> list[int]:
    """The class indices that occur, 1 to 20. Raises: UnreadableError for an index that is no class."""
    there = sorted(set(np.unique(found).tolist()) - {0, VOID})
    if wrong := [index for index in there if index > len(CLASSES)]:
        raise UnreadableError(f"mask: index {wrong[0]} is none of the {len(CLASSES)} classes")
    return there


def example(folder: Path, count: int, side: int) -> None:
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
