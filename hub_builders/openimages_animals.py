"""OpenImages animals: 95 kinds of animals, ten pictures of each, with the animals' boxes as mask.

Source: a folder with parts of Open Images V6 or V7 (storage.googleapis.com/openimages; annotations CC BY 4.0, images CC
BY 2.0) as downloaded: `bbox_labels_600_hierarchy.json`, `class-descriptions-boxable.csv`, the boxes
`SPLIT-annotations-bbox.csv` (also `oidv6-train-annotations-bbox.csv`), and the images `SPLIT/IMAGE_ID.jpg`, for one or
more of the splits train, validation and test.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._source import (
    drawn,
    entries,
    json_of,
    mask_or_none,
    needed,
    part,
    picture_of,
    table,
    text_of,
)
from saliency_bench.utils.pictures import Picture, UnreadableError

VERSION = "1"
TITLE = "OpenImages, 95 animals"
LICENSE = "cc-by-2.0"
REDISTRIBUTE = True
SPLIT = "test"
PAPER_COUNTS = {"samples": 950}
CITATION = """@article{kuznetsova2020open,
  title = {The {Open Images} Dataset V4},
  author = {Kuznetsova, Alina and Rom, Hassan and Alldrin, Neil and others},
  journal = {International Journal of Computer Vision},
  year = {2020}
}"""
RULE = """Images whose boxes show animals of exactly one kind (below `Animal` in the source's hierarchy; of a kind and
a more general one that contains it, the more special counts), as many as there are and whatever else they show. Of the
`kinds` most frequent kinds, `per_class` images each are drawn. The mask is the union of the animals' boxes. Everything
is in the split `test`; `source_split` is the source's."""

HOME = "Open Images, storage.googleapis.com/openimages (annotations CC BY 4.0, images CC BY 2.0)"
SPLITS = ("train", "validation", "test")
CORNERS = ("XMin", "YMin", "XMax", "YMax")
Boxes = list[tuple[float, float, float, float]]  # shares of width and height
Found = dict[str, tuple[Path, str, str, Boxes]]  # {image id: (file, split, kind, boxes)}


def features(classes: dict[str, list[str]]) -> dict:
    """The classes are the most frequent kinds."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=classes["label"])}


def samples(
    source: Path | None, log: BuildLog, *, kinds: int = 95, per_class: int = 10, seed: int = 0
) -> Iterator[Job]:
    """The images that were drawn, in the order of their ids.

    kinds: how many of the most frequent kinds
    per_class: how many images of each kind are drawn; 0 for all
    seed: of the drawing
    """
    if kinds < 1 or per_class < 0:
        raise UserError("openimages-animals: kinds is a number from 1, per_class from 0")
    found = images(source, log)
    log.classes = {"label": sorted(frequent(found, kinds))}
    keep: set[str] = set()
    for kind in log.classes["label"]:
        keep |= drawn(seed, [name for name, entry in found.items() if entry[2] == kind], per_class)
    log.expected = len(keep)
    for name in sorted(keep):
        yield Job(sample_of, name, *found[name])


def frequent(found: Found, kinds: int) -> list[str]:
    counts = Counter(kind for _, _, kind, _ in found.values())
    return sorted(counts, key=lambda kind: (-counts[kind], kind))[:kinds]


def images(source: Path | None, log: BuildLog) -> Found:
    """The images that are there and show one kind of animal. Raises: UserError with the part that is missing."""
    root = needed(source, "openimages-animals", HOME)
    above = animals(json_of(part(root, "bbox_labels_600_hierarchy.json", HOME), dict))
    names = descriptions(part(root, "class-descriptions-boxable.csv", HOME))
    found: Found = {}
    there = [split for split in SPLITS if (root / split).is_dir()]
    if not there:
        raise UserError(f"{root} has none of train/, validation/ and test/ with images; {HOME}")
    for split in there:
        files = {path.stem: path for path in entries(root / split) if path.suffix.lower() == ".jpg"}
        listing = f"{split}-annotations-bbox.csv"
        path = root / f"oidv6-{listing}"
        boxes = boxes_of(path if path.is_file() else part(root, listing, HOME), files, above, log)
        for name, listed in boxes.items():
            kinds = {kind for kind, _ in listed}
            special = {kind for kind in kinds if not any(kind in above[other] for other in kinds)}
            if len(special) > 1:
                log.leave_out(name, "image", "animals of several kinds")
            elif (kind := special.pop()) not in names:
                log.leave_out(name, "image", f"{kind} is not in class-descriptions-boxable.csv")
            else:
                found[name] = (files[name], split, names[kind], [box for _, box in listed])
        for name in sorted(set(files) - set(boxes)):
            log.leave_out(name, "image", "no box of an animal")
    if not found:
        raise UserError(f"{root} has no image with animals of one kind; {HOME}")
    return found


def animals(root: Any) -> dict[str, set[str]]:
    """{label of a kind of animal: those of the more general kinds that contain it}. `/m/0jbk` is Animal."""
    found: dict[str, set[str]] = {}

    def walk(node: Any, above: tuple[str, ...], inside: bool) -> None:
        label = node.get("LabelName") if isinstance(node, dict) else None
        if not isinstance(label, str) or len(above) > 50:
            raise UserError(f"bbox_labels_600_hierarchy.json is no tree of labels; {HOME}")
        if inside:
            found.setdefault(label, set()).update(above)
        own = (*above, label) if inside else above
        for child in node.get("Subcategory", []) or []:
            walk(child, own, inside or label == "/m/0jbk")

    walk(root, (), False)
    if not found:
        raise UserError(f"bbox_labels_600_hierarchy.json has nothing below /m/0jbk (Animal); {HOME}")
    return found


def descriptions(path: Path) -> dict[str, str]:
    """{label: name}; the file has a header in some versions."""
    split = [line.partition(",") for line in text_of(path).splitlines()]
    return {label.strip(): name.strip() for label, _, name in split if name.strip() and label != "LabelName"}


def boxes_of(path: Path, files: dict[str, Path], above: dict, log: BuildLog) -> dict[str, list[tuple[str, Any]]]:
    """{image id: [(kind, box)]} of the images that are there."""
    found: dict[str, list[tuple[str, Any]]] = {}
    absent: set[str] = set()
    for number, row in table(path, ["ImageID", "LabelName", *CORNERS]):
        name, kind = row["ImageID"], row["LabelName"]
        if kind not in above:
            continue
        if name not in files:
            absent.add(name)
            continue
        try:
            box = tuple(float(row[corner]) for corner in CORNERS)
            if not all(0 <= value <= 1 for value in box):
                raise ValueError
            found.setdefault(name, []).append((kind, box))
        except ValueError:
            log.remark(name, f"{path.name} line {number}: no box of four shares of the image; passed over")
    if absent:
        log.remark(path.name, f"{len(absent)} images with boxes of animals are not in the folder of images")
    return found


def sample_of(log: BuildLog, name: str, path: Path, split: str, label: str, boxes: Boxes) -> dict | None:
    picture = picture_of(log, name, path)
    if picture is None:
        return None
    mask = mask_or_none(log, name, lambda: union(boxes, picture))
    return {"image_id": name, "image": picture, "label": label, "mask": mask, "source_split": split}


def union(boxes: Boxes, picture: Picture) -> np.ndarray:
    """The pixels whose centre lies in a box."""
    rows = (np.arange(picture.height)[:, None] + 0.5) / picture.height
    columns = (np.arange(picture.width) + 0.5) / picture.width
    mask = np.zeros((picture.height, picture.width), bool)
    for left, top, right, bottom in boxes:
        mask |= (rows >= top) & (rows <= bottom) & (columns >= left) & (columns <= right)
    if not mask.any():
        raise UnreadableError("boxes without a pixel")
    return mask


def example(folder: Path, count: int, side: int) -> None:
    def node(label: str, *below: dict) -> dict:
        return {"LabelName": label} | ({"Subcategory": list(below)} if below else {})

    tree = node("/m/0bl9f", node("/m/0jbk", node("/m/bird", node("/m/owl")), node("/m/cat")), node("/m/car"))
    _examples.text(folder / "bbox_labels_600_hierarchy.json", tree)
    _examples.text(
        folder / "class-descriptions-boxable.csv", "/m/0jbk,Animal\n/m/bird,Bird\n/m/owl,Owl\n/m/cat,Cat\n/m/car,Car\n"
    )
    rows = ["ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax"]
    for index in range(count):
        name = f"{index:016x}"
        mask = _examples.picture(folder / f"validation/{name}.jpg", index + 96, side)
        down, across = np.flatnonzero(mask.any(1)) / side, np.flatnonzero(mask.any(0)) / side
        box = f"{across[0]},{across[-1]},{down[0]},{down[-1]}"
        kinds = (("/m/owl", "/m/bird"), ("/m/cat", "/m/car"))[index % 2]
        rows += [f"{name},xclick,{kind},1,{box}" for kind in kinds]
    _examples.text(folder / "validation-annotations-bbox.csv", "\n".join(rows) + "\n")
