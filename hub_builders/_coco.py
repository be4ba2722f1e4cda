"""Read a downloaded copy of MS COCO: captions, instances, and masks as polygons or run lengths."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._source import base_of, json_of, library, needed, part, turn_of
from saliency_bench.utils.pictures import Picture, UnreadableError, turned

HOME = "MS COCO, cocodataset.org (annotations CC BY 4.0; each image under its own Flickr licence)"
FIX = f"download it again: {HOME}"
TERMS = ("coco-terms-of-use", "https://cocodataset.org/#termsofuse")
CITATION = """@inproceedings{lin2014microsoft,
  title = {Microsoft {COCO}: Common Objects in Context},
  author = {Lin, Tsung-Yi and Maire, Michael and Belongie, Serge and Hays, James and Perona, Pietro and Ramanan, Deva
            and Doll{\\'a}r, Piotr and Zitnick, C. Lawrence},
  booktitle = {European Conference on Computer Vision},
  year = {2014}
}"""
SPLITS = ("train2017", "val2017", "train2014", "val2014")  # an image in several splits is used in the first one


@dataclass
class CocoEntry:
    """The annotations of one image."""

    file_name: str
    split: str
    frame: tuple[int, int]  # (height, width) of the image that was annotated
    program: str = ""  # program that wrote the annotations, if known
    objects: list[dict[str, Any]] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of pixels in the image."""
        return self.frame[0] * self.frame[1]

    def of_category(self, category: int) -> list[dict[str, Any]]:
        """Return the annotated objects of one category."""
        return [entry for entry in self.objects if entry.get("category_id") == category]


def root_of(source: Path | None, name: str) -> Path:
    """Return the folder that contains the annotations and images of COCO."""
    root = base_of(needed(source, name, HOME), "annotations")
    part(root, "annotations/", HOME)
    return root


def splits_of(root: Path, kinds: tuple[str, ...], only: str = "") -> list[str]:
    """Return the splits for which there is a folder of images, and check their annotation files.

    Raises:
        UserError: No split has images, or an annotation file is missing. The message names the missing files.
    """
    wanted = [split for split in SPLITS if split.startswith(only)]
    there = [split for split in wanted if (root / split).is_dir()]
    if not there:
        raise UserError(
            f"{root} has none of the folders {', '.join(f'{split}/' for split in wanted)}; download the source "
            "again and unpack "
            f"it: {HOME}"
        )
    for split in there:
        for kind in kinds:
            part(root, f"annotations/{kind}_{split}.json", HOME)
    return there


def entries_of(root: Path, split: str, captions: bool, log: BuildLog) -> tuple[dict[int, CocoEntry], dict[int, str]]:
    """Return ({image id: entry}, {category id: name}) of one split, and log malformed entries."""
    images, names = entries_in(root / "annotations" / f"instances_{split}.json", split, log)
    if captions:
        file = f"captions_{split}.json"
        for caption in _dicts(json_of(root / "annotations" / file, dict), "annotations", log, file, FIX):
            if type(caption.get("image_id")) is not int or not isinstance(caption.get("caption"), str):
                log.remark(str(caption.get("id")), f"{file}: a caption without a text or an image id is skipped")
            elif caption["image_id"] in images:
                images[caption["image_id"]].captions.append(caption["caption"])
    return images, names


def whole(value: Any) -> int | None:
    """Return the value if it is an integer, like the ids in COCO, else None."""
    return value if type(value) is int else None


def entries_in(
    path: Path, split: str, log: BuildLog, fix: str = FIX, id_of: Callable[[Any], Any] = whole
) -> tuple[dict[Any, CocoEntry], dict[Any, str]]:
    """Return ({image id: entry}, {category id: name}) of an instances file, and log malformed entries.

    Args:
        path: Instances file.
        split: Split of the images in the file.
        log: Build log, which records malformed entries.
        fix: Last part of error messages, which tells the user what to do.
        id_of: Function that converts a value to an id, or returns None if the value is not an id.

    Raises:
        UserError: The file is not an instances file.
    """
    content = json_of(path, dict, fix)
    listed = partial(_dicts, log=log, file=path.name, fix=fix)
    kinds = listed(content, "categories")
    names = {id_of(kind.get("id")): str(kind.get("name")) for kind in kinds if id_of(kind.get("id")) is not None}
    about = content.get("info")
    program = str(about.get("contributor") or "") if isinstance(about, dict) else ""
    images: dict[Any, CocoEntry] = {}
    for image in listed(content, "images"):
        key, file_name = id_of(image.get("id")), image.get("file_name")
        if key is None or not isinstance(file_name, str):
            log.remark(str(image.get("id")), f"{path.name}: an image without an id or a file_name is skipped")
        elif key in images:
            log.remark(file_name, f"{path.name}: image id {key} occurs twice; the first entry is used")
        else:
            frame = (int(_number(image.get("height"))), int(_number(image.get("width"))))
            images[key] = CocoEntry(file_name, split, frame, program)
    for entry in listed(content, "annotations"):
        kind, key = id_of(entry.get("category_id")), id_of(entry.get("image_id"))
        if kind is None or key is None:
            log.remark(str(entry.get("id")), f"{path.name}: an object without a category or an image is skipped")
        elif key in images:
            keep = ("segmentation", "area", "iscrowd", "bbox", "id", "keypoints", "ignore")
            images[key].objects.append({name: entry[name] for name in keep if name in entry} | {"category_id": kind})
        elif id_of is not whole:  # a source may contain only some of the images in COCO's own files
            log.remark(
                str(entry.get("id")),
                f"{path.name}: an object refers to image {key}, which is not in the list of images",
            )
    return images, names


def _dicts(content: dict, key: str, log: BuildLog, file: str, fix: str) -> list[dict]:
    """Return the objects in the list under `key` of a JSON file, and log how many items are not objects."""
    listed = content.get(key)
    if not isinstance(listed, list):
        raise UserError(f'the COCO annotation file {file} has no list "{key}"; {fix}')
    if odd := sum(not isinstance(entry, dict) for entry in listed):
        log.remark(file, f"{odd} entries of the list {key} are not JSON objects and are skipped")
    return [entry for entry in listed if isinstance(entry, dict)]


def category(names: dict[int, str], name: str) -> int:
    """Return the id of the category with this name, or raise UserError if there is none."""
    for key, known in names.items():
        if known == name:
            return key
    raise UserError(f'the COCO annotations have no category "{name}"; download them again: {HOME}')


def area_of(entry: dict[str, Any]) -> float:
    """Return the area of an object in pixels, or 0 if the annotation contains no valid area."""
    return _number(entry.get("area"))


def _number(value: Any) -> float:
    """Convert a value to a finite float, or return 0 if this is impossible."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def shown_mask(segmentations: list[Any], frame: tuple[int, int], picture: Picture) -> np.ndarray:
    """Return the union of segmentations on the upright image, bool (H, W).

    COCO annotates images as stored, so the mask is drawn at the size `frame` and then rotated in the same way as the
    image.

    Raises:
        UnreadableError: The size of the image is not `frame`, so a different file was annotated. Outlines are not
            scaled.
    """
    turn = turn_of(picture, frame, "annotations")
    return turned(np.any([mask_of(segmentation, *frame) for segmentation in segmentations], axis=0), turn)


def mask_of(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Return the mask of a segmentation, bool (H, W).

    A segmentation is a list of polygons, or plain or compressed run lengths.

    Raises:
        UnreadableError: The segmentation or one of its polygons cannot be read.
    """
    mask = library("pycocotools.mask")
    if isinstance(segmentation, list):
        polygons = [_polygon(polygon, height, width) for polygon in segmentation]
        if not polygons:
            raise UnreadableError("empty mask")
        return mask.decode(mask.merge(mask.frPyObjects(polygons, height, width))).astype(bool)
    if not isinstance(segmentation, dict) or segmentation.get("size") != [height, width]:
        raise UnreadableError("the mask and its image differ in size" if isinstance(segmentation, dict) else "no mask")
    counts = segmentation.get("counts")
    runs: Any = decompressed(counts) if isinstance(counts, str) else counts
    plain = isinstance(runs, list) and all(type(run) is int and run >= 0 for run in runs)
    if not plain or sum(runs) != height * width:  # for any other sum, the library would write out of bounds
        raise UnreadableError("the run lengths do not add up to the number of pixels")
    encoded = {"size": [height, width], "counts": counts.encode() if isinstance(counts, str) else counts}
    return mask.decode(encoded if isinstance(counts, str) else mask.frPyObjects(encoded, height, width)).astype(bool)


def _polygon(points: Any, height: int, width: int) -> list[float]:
    """Check the coordinates of a polygon, and return them.

    Raises:
        UnreadableError: The value is not a polygon.
    """
    if not isinstance(points, list) or len(points) < 6 or len(points) % 2:
        raise UnreadableError("a polygon that is not a list of three or more points")
    if not all(isinstance(value, int | float) and abs(value) <= 2 * max(height, width) for value in points):
        raise UnreadableError("a polygon with points that are not numbers or are far outside the image")
    return points


def decompressed(text: str) -> list[int] | None:
    """Decode run lengths in COCO's text format, or return None for an invalid string.

    Each character encodes 5 bits, lowest first. From the fourth number on, each number is stored as its difference from
    the number two positions before.
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        code = ord(character) - 48
        if not 0 <= code < 64 or shift > 30:
            return None
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            value -= (code & 16) and 1 << shift
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    return None if shift else runs


def example(folder: Path, count: int, side: int, split: str = "train2017", first: int = 1) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    images: list[dict] = []
    objects: list[dict] = []
    captions: list[dict] = []
    encode = library("pycocotools.mask").encode
    for index in range(count):
        key, name = first + index, f"{first + index:012d}.jpg"
        mask = _examples.picture(folder / split / name, index + 15 + first, side)
        packed = encode(np.asfortranarray(mask.astype(np.uint8)))
        segmentation = {"size": packed["size"], "counts": packed["counts"].decode()}
        images.append({"id": key, "file_name": name, "height": side, "width": side})
        for category in (1, 18):
            objects.append({"id": 10 * key + category, "image_id": key, "category_id": category, "iscrowd": 0,
                            "area": float(mask.sum()), "segmentation": segmentation})  # fmt: skip
        captions.append({"image_id": key, "caption": ("A man stands there.", "a woman with a dog")[index % 2]})
    known = {"images": images, "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]}
    _examples.text(folder / f"annotations/instances_{split}.json", known | {"annotations": objects})
    _examples.text(folder / f"annotations/captions_{split}.json", known | {"annotations": captions})
