"""SIXray: X-ray pictures of luggage with and without prohibited items, with the items' boxes as mask.

Source: the folder of SIXray (Miao et al. 2019, github.com/MeioJane/SIXray; academic use only, no commercial use) as
downloaded and unpacked: `JPEGImage/*.jpg`, `Annotation/*.xml` (or `Annotations/`) and the lists
`ImageSet/{10,100,1000}/{train,test}.csv` (1 present, -1 absent). Lists that lie in `ImageSet/` itself are read too.
Without lists, an image is prohibited if its XML has an `<object>`, and clean if it has none or its name begins with N.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._papers import SALIENCY_BENCH
from saliency_bench.hub_builders._source import (
    base_of,
    boxes_of,
    declared_size,
    drawn,
    entries,
    first_folder,
    is_picture,
    listed_file,
    mask_or_none,
    needed,
    part,
    picture_of,
    rasterised,
    shown_boxes,
    table,
    xml_of,
)
from saliency_bench.utils.pictures import Picture, UnreadableError

VERSION = "3"
ALSO_CALLED = ("sixray",)
TITLE = "Security-XAI"
ANNOTATORS = ("expert-generated",)
SOURCES = ("extended|other-sixray",)
PAPER = SALIENCY_BENCH
LICENSE = "other"
TERMS = ("sixray-academic-use", "https://github.com/MeioJane/SIXray")
REDISTRIBUTE = False
EXAMPLE = {"balanced": False}
PAPER_COUNTS = {"samples": 17654, "masks": 8827, "label": {"prohibited": 8827, "clean": 8827}}
CITATION = """@inproceedings{miao2019sixray,
  title = {{SIXray}: A Large-scale Security Inspection X-ray Benchmark for Prohibited Item Discovery in Overlapping
           Images},
  author = {Miao, Caijing and Xie, Lingxi and Wan, Fang and Su, Chi and Liu, Hongye and Jiao, Jianbin and Ye, Qixiang},
  booktitle = {IEEE Conference on Computer Vision and Pattern Recognition},
  year = {2019}
}"""
RULE = """An image is prohibited if the list has 1 for one of its items (-1 and 0 mean absent), or, if no list names it,
if its XML holds an object with a box. As many clean images are drawn as there are prohibited images. The boxes are kept
as `objects` ([xmin, ymin, xmax, ymax], counted from 1, corners included) and rasterised: the mask is every pixel in a
box. Published readers disagree whether the XML counts pixels from 0 or from 1: the build examines all boxes of the
source and logs the result. Objects without a box are skipped and counted. Images
whose list and XML contradict each other are left out."""

ITEMS = ["Gun", "Knife", "Wrench", "Pliers", "Scissors", "Hammer"]
HOME = "SIXray, github.com/MeioJane/SIXray (academic use only)"
Listing = tuple[bool, str | None]  # prohibited?, the source's split


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel, List, Value

    objects = List({"name": Value("string"), "box": List(Value("float32"))})
    return {"label": ClassLabel(names=["prohibited", "clean"]), "objects": objects}


def samples(
    source: Path | None, log: BuildLog, *, imageset: str = "10", balanced: bool = True, seed: int = 0
) -> Iterator[Job]:
    """Yield the images in the order of their names.

    Args:
        source: the folder of the raw source.
        log: receives what is left out, and why.
        imageset: which lists to read: 10, 100 or 1000 clean images per prohibited image.
        balanced: draw as many clean images as there are prohibited images.
        seed: seed of the random choice.
    """
    root = base_of(needed(source, "security-xai", HOME), "JPEGImage")
    part(root, "JPEGImage/", HOME)
    folder = first_folder(root, "Annotation", "Annotations")
    there = {path.stem for path in entries(root / "JPEGImage") if is_picture(path)}
    known = listed(root, imageset, log) or unlisted(there, folder, log)
    prohibited = {name for name in known if known[name][0]}
    clean = (set(known) - prohibited) & there
    if absent := len(known) - len(prohibited) - len(clean):
        log.remark("ImageSet", f"{absent} clean images of the lists are not in JPEGImage/")
    if balanced:
        keep = drawn(seed, clean, max(len(prohibited & there), 1))
        log.remark("ImageSet", f"{len(clean) - len(keep)} more clean images were not drawn")
        clean = keep
    names = sorted(prohibited | clean)
    log.expected = len(names)
    first = first_pixel([folder / f"{name}.xml" for name in names] if folder else [], log)
    for name in names:
        if path := listed_file(log, name, root / "JPEGImage", f"{name}.jpg"):
            yield Job(sample_of, name, path, folder and folder / f"{name}.xml", first, *known[name])


def first_pixel(files: Iterable[Path], log: BuildLog) -> int:
    """Return the number of the first pixel in the boxes of the source, 0 or 1, and log the evidence.

    A box with a 0 cannot count from 1; a box that ends at the width or height of its picture cannot count from 0. The
    more frequent kind decides; without evidence it is 1, like in PASCAL VOC.
    """
    zeros = ends = 0
    for path in files:
        with suppress(UnreadableError):  # whose image says so
            root = xml_of(path) if path.is_file() else None
            height, width = (root is not None and declared_size(root)) or (None, None)
            for _, box in boxes_of(root) if root is not None else []:
                zeros += 0 in box[:2]
                ends += box[2] == width or box[3] == height
    first = 0 if zeros > ends else 1
    log.remark("Annotation", f"pixels of the boxes are counted from {first}: {zeros} boxes have a 0, "
                             f"{ends} end at the width or height of their picture")  # fmt: skip
    return first


def listed(root: Path, imageset: str, log: BuildLog) -> dict[str, Listing]:
    """Return the entries of the lists by image.

    Raises:
        UserError: The lists have another form.
    """
    folder = first_folder(root, f"ImageSet/{imageset}") or root / "ImageSet"
    known: dict[str, Listing] = {}
    for path in entries(folder):
        if path.suffix.lower() != ".csv" or path.name.startswith("."):
            continue
        for number, row in table(path, ["name"]):
            items = {key: value.strip() for key, value in row.items() if key != "name"}
            if not set(items) & set(ITEMS):
                raise UserError(f"{path} has none of the columns {', '.join(ITEMS)}; {HOME}")
            name, where = row["name"].strip().removesuffix(".jpg"), f"{path.name} line {number}"
            if wrong := [value for value in items.values() if value not in ("1", "-1", "0")]:
                log.leave_out(name, "image", f"{where}: {wrong[0]!r} is neither 1 nor -1")
            elif new := [key for key, value in items.items() if value == "1" and key not in ITEMS]:
                log.leave_out(name, "image", f"{where}: {new[0]!r} is not one of the {len(ITEMS)} items")
            elif name in known:
                log.remark(name, f"{where}: listed twice; the first counts")
            else:
                known[name] = ("1" in items.values(), "train" if "train" in path.stem else "test")
    return known


def unlisted(there: set[str], folder: Path | None, log: BuildLog) -> dict[str, Listing]:
    """Return the entries by image from XML and names, if there are no lists."""
    if folder is None:
        raise UserError(f"the source has neither lists in ImageSet/ nor Annotation/; {HOME}")
    known: dict[str, Listing] = {}
    for name in sorted(there):
        path = folder / f"{name}.xml"
        try:
            if path.is_file():
                known[name] = (bool(boxes_of(xml_of(path))), None)
            elif name.startswith("N"):
                known[name] = (False, None)
            else:
                raise UnreadableError("neither in a list nor in an XML file")
        except UnreadableError as error:
            log.leave_out(name, "image", str(error))
    return known


def sample_of(
    log: BuildLog, name: str, path: Path, xml: Path | None, first: int, prohibited: bool, split: str | None
) -> dict | None:
    """Return the sample of an image; if it is left out, log the reason and return None."""
    picture = picture_of(log, name, path)
    if picture is None:
        return None
    objects, fault = objects_of(log, name, xml, first, picture)
    if objects and not prohibited:
        log.leave_out(name, "image", f"the list has it as clean, but the XML shows {objects[0]['name']}")
        return None

    def mask() -> np.ndarray:
        if not objects:
            raise UnreadableError(fault or "no box")
        return union(log, name, objects, picture)

    return {
        "image_id": name,
        "image": picture,
        "label": "prohibited" if prohibited else "clean",
        "mask": mask_or_none(log, name, mask) if prohibited else None,
        "objects": objects,
        "source_split": split,
    }


def objects_of(
    log: BuildLog, name: str, path: Path | None, first: int, picture: Picture
) -> tuple[list[dict], str | None]:
    """Return (objects of the XML, its problems)."""
    if path is None or not path.is_file():
        return [], "no XML"
    try:
        root = xml_of(path)
        boxes = shown_boxes(root, picture, first)
    except UnreadableError as error:
        log.remark(name, f"its objects are left out: {error}")
        return [], str(error)
    empty = sum(1 for _ in root.iter("object")) - len(boxes)
    if empty:
        log.remark(name, f"without a box and skipped: {empty} object{'s' * (empty > 1)}")
    for item, _ in boxes:
        if item not in ITEMS:
            log.remark(name, f"object {item!r} is not one of the {len(ITEMS)} items and is left out")
    return [{"name": item, "box": box} for item, box in boxes if item in ITEMS], None


def union(log: BuildLog, name: str, objects: list[dict], picture: Picture) -> np.ndarray:
    """Return the union of the boxes, bool (H, W)."""
    mask = np.zeros((picture.height, picture.width), bool)
    for item in objects:
        try:
            mask |= rasterised(item["box"], picture.height, picture.width)
        except UnreadableError as error:
            log.remark(name, f"{item['name']}: {error}")
    return mask


def example(folder: Path, count: int, side: int) -> None:
    """Write a small source in the raw layout, with `count` samples of about `side` pixels."""
    rows: list[tuple[str, ...]] = [("name", "Gun", "Knife", "Wrench", "Pliers", "Scissors")]
    for index in range(2 * count):
        name = f"{'PN'[index >= count]}{index:05d}"
        mask = _examples.picture(folder / f"JPEGImage/{name}.jpg", index + 48, side)
        rows.append((name, "1" if index < count else "-1", *["-1"] * 4))
        down, across = np.flatnonzero(mask.any(1)) + 1, np.flatnonzero(mask.any(0)) + 1
        corners = _examples.boxed((across[0], down[0], across[-1], down[-1]))
        objects = f"<object><name>Gun</name><bndbox>{corners}</bndbox></object>" if index < count else ""
        _examples.text(folder / f"Annotation/{name}.xml", f"<annotation>{objects}</annotation>")
    _examples.text(folder / "ImageSet/10/train.csv", "".join(",".join(row) + "\n" for row in rows))
