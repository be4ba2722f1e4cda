"""SIXray: X-ray images of luggage with and without prohibited items, with the items' boxes as masks.

Source: the folder of SIXray (Miao et al. 2019, github.com/MeioJane/SIXray; academic use only, no commercial use) as
downloaded and unpacked: `JPEGImage/*.jpg`, `Annotation/*.xml` (or `Annotations/`) and the lists
`ImageSet/{10,100,1000}/{train,test}.csv` (1 present, -1 absent). Lists directly in `ImageSet/` are also read. If there
are no lists, an image counts as containing a prohibited item if its XML has an `<object>`, and as clean if its XML has
no `<object>` or the name of the image begins with N.
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
RULE = """An image counts as prohibited (containing a prohibited item) if the list has the value 1 for one of the items
(-1 and 0 mean absent). An image that is not in any list counts as prohibited if its XML contains an object with a
box. As many clean images are drawn as there are prohibited images. The boxes are stored as `objects` ([xmin, ymin,
xmax, ymax], counted from 1, corners included), and the mask contains every pixel in a box. Published code disagrees on
whether the XML counts pixels from 0 or from 1, so the build examines all boxes of the source and logs the result.
Objects without a box are skipped and counted. An image is left out if its list and XML contradict each other."""

ITEMS = ["Gun", "Knife", "Wrench", "Pliers", "Scissors", "Hammer"]
HOME = "SIXray, github.com/MeioJane/SIXray (academic use only)"
Listing = tuple[bool, str | None]  # (whether the image is prohibited, the source's split)


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel, List, Value

    objects = List({"name": Value("string"), "box": List(Value("float32"))})
    return {"label": ClassLabel(names=["prohibited", "clean"]), "objects": objects}


def samples(
    source: Path | None, log: BuildLog, *, imageset: str = "10", balanced: bool = True, seed: int = 0
) -> Iterator[Job]:
    """Yield one job per image, ordered by name.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        imageset: lists to read, with 10, 100 or 1000 clean images per image with a prohibited item.
        balanced: draw as many clean images as there are images with prohibited items.
        seed: seed for drawing images.
    """
    root = base_of(needed(source, "security-xai", HOME), "JPEGImage")
    part(root, "JPEGImage/", HOME)
    folder = first_folder(root, "Annotation", "Annotations")
    there = {path.stem for path in entries(root / "JPEGImage") if is_picture(path)}
    known = listed(root, imageset, log) or unlisted(there, folder, log)
    prohibited = {name for name in known if known[name][0]}
    clean = (set(known) - prohibited) & there
    if absent := len(known) - len(prohibited) - len(clean):
        log.remark("ImageSet", f"{absent} clean images in the lists are missing from JPEGImage/")
    if balanced:
        keep = drawn(seed, clean, max(len(prohibited & there), 1))
        log.remark("ImageSet", f"{len(clean) - len(keep)} other clean images were not selected")
        clean = keep
    names = sorted(prohibited | clean)
    log.expected = len(names)
    first = first_pixel([folder / f"{name}.xml" for name in names] if folder else [], log)
    for name in names:
        if path := listed_file(log, name, root / "JPEGImage", f"{name}.jpg"):
            yield Job(sample_of, name, path, folder and folder / f"{name}.xml", first, *known[name])


def first_pixel(files: Iterable[Path], log: BuildLog) -> int:
    """Determine whether the boxes in the source count pixels from 0 or from 1, and log the evidence.

    A coordinate of 0 rules out counting from 1. A box that ends at the width or height of its image rules out counting
    from 0. If both occur, the majority of boxes decides. If neither occurs, the result is 1, as in PASCAL VOC.
    """
    zeros = ends = 0
    for path in files:
        with suppress(UnreadableError):  # the problem is logged when the image is read
            root = xml_of(path) if path.is_file() else None
            height, width = (root is not None and declared_size(root)) or (None, None)
            for _, box in boxes_of(root) if root is not None else []:
                zeros += 0 in box[:2]
                ends += box[2] == width or box[3] == height
    first = 0 if zeros > ends else 1
    log.remark("Annotation", f"box coordinates are counted from {first}: {zeros} boxes have the coordinate 0, "
                             f"and {ends} boxes end at the width or height of their image")  # fmt: skip
    return first


def listed(root: Path, imageset: str, log: BuildLog) -> dict[str, Listing]:
    """Return {image: entry} from the lists.

    Raises:
        UserError: The lists have a different format.
    """
    folder = first_folder(root, f"ImageSet/{imageset}") or root / "ImageSet"
    known: dict[str, Listing] = {}
    for path in entries(folder):
        if path.suffix.lower() != ".csv" or path.name.startswith("."):
            continue
        for number, row in table(path, ["name"]):
            items = {key: value.strip() for key, value in row.items() if key != "name"}
            if not set(items) & set(ITEMS):
                raise UserError(
                    f"{path} has none of the columns {', '.join(ITEMS)}; download the source again and unpack it: "
                    f"{HOME}"
                )
            name, where = row["name"].strip().removesuffix(".jpg"), f"{path.name} line {number}"
            if wrong := [value for value in items.values() if value not in ("1", "-1", "0")]:
                log.leave_out(name, "image", f"{where}: {wrong[0]!r} is neither 1 nor -1")
            elif new := [key for key, value in items.items() if value == "1" and key not in ITEMS]:
                log.leave_out(name, "image", f"{where}: {new[0]!r} is not one of the {len(ITEMS)} items")
            elif name in known:
                log.remark(name, f"{where}: the image is listed twice; the first entry is used")
            else:
                known[name] = ("1" in items.values(), "train" if "train" in path.stem else "test")
    return known


def unlisted(there: set[str], folder: Path | None, log: BuildLog) -> dict[str, Listing]:
    """Return {image: entry} for a source without lists, from XML files and file names."""
    if folder is None:
        raise UserError(
            "the source has neither lists in ImageSet/ nor a folder Annotation/; download the source again and "
            "unpack it: "
            f"{HOME}"
        )
    known: dict[str, Listing] = {}
    for name in sorted(there):
        path = folder / f"{name}.xml"
        try:
            if path.is_file():
                known[name] = (bool(boxes_of(xml_of(path))), None)
            elif name.startswith("N"):
                known[name] = (False, None)
            else:
                raise UnreadableError("neither a list nor an XML file contains the image")
        except UnreadableError as error:
            log.leave_out(name, "image", str(error))
    return known


def sample_of(
    log: BuildLog, name: str, path: Path, xml: Path | None, first: int, prohibited: bool, split: str | None
) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, name, path)
    if picture is None:
        return None
    objects, fault = objects_of(log, name, xml, first, picture)
    if objects and not prohibited:
        log.leave_out(name, "image", f"the list marks the image as clean, but the XML contains {objects[0]['name']}")
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
    """Return the objects in an XML file, and an error message if the file is missing or invalid (otherwise None)."""
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
        log.remark(name, f"skipped {empty} object{'s' * (empty > 1)} without a box")
    for item, _ in boxes:
        if item not in ITEMS:
            log.remark(name, f"object {item!r} is not one of the {len(ITEMS)} items and is left out")
    return [{"name": item, "box": box} for item, box in boxes if item in ITEMS], None


def union(log: BuildLog, name: str, objects: list[dict], picture: Picture) -> np.ndarray:
    """Return the union of the objects' boxes as a mask, bool (H, W)."""
    mask = np.zeros((picture.height, picture.width), bool)
    for item in objects:
        try:
            mask |= rasterised(item["box"], picture.height, picture.width)
        except UnreadableError as error:
            log.remark(name, f"{item['name']}: {error}")
    return mask


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
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
