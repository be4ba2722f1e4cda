"""OpenImages animals: 95 kinds of animals, with ten evaluation pictures of each and the animals' boxes as mask.

Source: a folder with parts of Open Images V6 or V7 (storage.googleapis.com/openimages; annotations CC BY 4.0, images CC
BY 2.0) as downloaded: `bbox_labels_600_hierarchy.json`, `class-descriptions-boxable.csv`, the boxes
`SPLIT-annotations-bbox.csv` (also `oidv6-train-annotations-bbox.csv`), the lists of who took the images
`SPLIT-images-with-rotation.csv` (also `train-images-boxable-with-rotation.csv`; without one, each image is its own
group), and the images `SPLIT/IMAGE_ID.jpg`, for one or more of the splits train, validation and test.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._papers import CROWDSOURCING
from saliency_bench.hub_builders._parts import training_split, with_training
from saliency_bench.hub_builders._source import (
    base_of,
    drawn,
    entries,
    is_picture,
    json_of,
    mask_or_none,
    needed,
    part,
    picture_of,
    table,
    text_of,
)
from saliency_bench.utils.pictures import Picture, UnreadableError, turned

VERSION = "3"
ALSO_CALLED = ("openimages",)
TITLE = "OpenImages, 95 animals"
ANNOTATORS = ("crowdsourced", "machine-generated")
SOURCES = ("extended|other-open-images",)
PAPER = CROWDSOURCING
LICENSE = "cc-by-2.0"
REDISTRIBUTE = True
EXAMPLE = {"per_class": 2}
PAPER_COUNTS = {"test": 950}
CITATION = """@article{kuznetsova2020open,
  title = {The {Open Images} Dataset V4},
  author = {Kuznetsova, Alina and Rom, Hassan and Alldrin, Neil and others},
  journal = {International Journal of Computer Vision},
  year = {2020}
}"""
RULE = """Images with boxes of animals of exactly one kind (below `Animal` in the source's hierarchy;
if a kind and a more general kind that contains it are present, the more specific one counts), whatever else they show.
For each of the `kinds` most frequent kinds, `per_class` images are drawn for `test`, and from the others
`train_per_class` for `train` and `validation` (split by a hash, 85 to 15), none by a photographer of `test`. The mask
is the union of the animals' boxes, which are relative to the file as stored. `source_split` is the source's split."""
GROUP = "the photographer, if the source's list of images names them"

HOME = "Open Images, storage.googleapis.com/openimages (annotations CC BY 4.0, images CC BY 2.0)"
HIERARCHY = "bbox_labels_600_hierarchy.json"
SPLITS = ("train", "validation", "test")
CORNERS = ("XMin", "YMin", "XMax", "YMax")
Boxes = list[tuple[float, float, float, float]]  # shares of width and height
Found = dict[str, tuple[Path, str, str, Boxes]]  # {image id: (file, split, kind, boxes)}


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns, with the most frequent kinds as classes."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=classes["label"])}


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    kinds: int = 95,
    per_class: int = 10,
    parts: str = "all",
    train_per_class: int = 100,
    seed: int = 0,
) -> Iterator[Job]:
    """Yield the chosen images in the order of their ids.

    Args:
        source: the folder of the raw source.
        log: receives what is left out, and why.
        kinds: number of most frequent kinds.
        per_class: number of evaluation images per kind; 0 for all, and none for training.
        parts: all, or test to leave out the training images.
        train_per_class: number of training images per kind; 0 for all that are left.
        seed: seed of the random choice and of the parts train and validation.
    """
    if kinds < 1 or min(per_class, train_per_class) < 0:
        raise UserError("openimages-animals: kinds must be at least 1, and per_class and train_per_class at least 0")
    training = with_training("openimages-animals", parts)
    root = base_of(needed(source, "openimages-animals", HOME), HIERARCHY)
    shown = images(root, log)
    log.classes = {"label": sorted(frequent(shown, kinds))}
    by = photographers(root, shown, log)
    of_kind = {kind: {name for name, entry in shown.items() if entry[2] == kind} for kind in log.classes["label"]}
    tested = {name for names in of_kind.values() for name in drawn(seed, names, per_class)}
    split_of = dict.fromkeys(tested, "test")
    in_test = {by[name] for name in tested if name in by}
    for names in of_kind.values() if training else ():
        others = {name for name in names - tested if by.get(name) not in in_test}
        split_of |= {name: training_split(seed, by.get(name, name)) for name in drawn(seed, others, train_per_class)}
    log.expected = len(split_of)
    for name in sorted(split_of):
        yield Job(sample_of, name, *shown[name], split_of[name], by.get(name))


def frequent(shown: Found, kinds: int) -> list[str]:
    """Return the most frequent kinds."""
    counts = Counter(kind for _, _, kind, _ in shown.values())
    return sorted(counts, key=lambda kind: (-counts[kind], kind))[:kinds]


def images(root: Path, log: BuildLog) -> Found:
    """Return the existing images that show one kind of animal.

    Raises:
        UserError: A part is missing; the message names it.
    """
    above = animals(json_of(part(root, HIERARCHY, HOME), dict))
    names = descriptions(part(root, "class-descriptions-boxable.csv", HOME))
    shown: Found = {}
    there = [split for split in SPLITS if (root / split).is_dir()]
    if not there:
        raise UserError(f"{root} has none of train/, validation/ and test/ with images; {HOME}")
    for split in there:
        files = {path.stem: path for path in entries(root / split) if is_picture(path)}
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
                shown[name] = (files[name], split, names[kind], [box for _, box in listed])
        for name in sorted(set(files) - set(boxes)):
            log.leave_out(name, "image", "no box of an animal")
    if not shown:
        raise UserError(f"{root} has no image with animals of one kind; {HOME}")
    return shown


def photographers(root: Path, shown: Found, log: BuildLog) -> dict[str, str]:
    """Return {image id: address of the photographer} for the images in the lists."""
    by: dict[str, str] = {}
    for split in sorted({split for _, split, _, _ in shown.values()}):
        lists = [root / f"{split}-{kind}-with-rotation.csv" for kind in ("images", "images-boxable")]
        path = next((path for path in lists if path.is_file()), None)
        if path is None:
            log.remark(lists[0].name, "not in the source: images of one photographer count as independent")
            continue
        for _, row in table(path, ["ImageID", "AuthorProfileURL"]):
            if row["ImageID"] in shown and row["AuthorProfileURL"].strip():
                by[row["ImageID"]] = row["AuthorProfileURL"].strip()
    return by


def animals(root: Any) -> dict[str, set[str]]:
    """Return {label of a kind of animal: labels of the more general kinds that contain it}. `/m/0jbk` is Animal."""
    kinds: dict[str, set[str]] = {}

    def walk(node: Any, above: tuple[str, ...], inside: bool) -> None:
        label = node.get("LabelName") if isinstance(node, dict) else None
        if not isinstance(label, str) or len(above) > 50:
            raise UserError(f"{HIERARCHY} is not a tree of labels; {HOME}")
        if inside:
            kinds.setdefault(label, set()).update(above)
        general = (*above, label) if inside else above
        for child in node.get("Subcategory", []) or []:
            walk(child, general, inside or label == "/m/0jbk")

    walk(root, (), False)
    if not kinds:
        raise UserError(f"{HIERARCHY} has nothing below /m/0jbk (Animal); {HOME}")
    return kinds


def descriptions(path: Path) -> dict[str, str]:
    """Return {label: name}; the file has a header in some versions."""
    split = [line.partition(",") for line in text_of(path).splitlines()]
    return {label.strip(): name.strip() for label, _, name in split if name.strip() and label != "LabelName"}


def boxes_of(path: Path, files: dict[str, Path], above: dict, log: BuildLog) -> dict[str, list[tuple[str, Any]]]:
    """Return {image id: [(kind, box)]} of the existing images."""
    boxes: dict[str, list[tuple[str, Any]]] = {}
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
            boxes.setdefault(name, []).append((kind, box))
        except ValueError:
            log.remark(name, f"{path.name} line {number}: not a box of four shares of the image; skipped")
    if absent:
        log.remark(path.name, f"{len(absent)} images with boxes of animals are not in the folder of images")
    return boxes


def sample_of(
    log: BuildLog, name: str, path: Path, listed: str, label: str, boxes: Boxes, split: str, group: str | None
) -> dict | None:
    """Return the sample of an image; if it is left out, log the reason and return None."""
    picture = picture_of(log, name, path)
    if picture is None:
        return None
    mask = mask_or_none(log, name, lambda: union(boxes, picture))
    further = {"label": label, "mask": mask, "source_split": listed, "split": split, "group": group}
    return {"image_id": name, "image": picture} | further


def union(boxes: Boxes, picture: Picture) -> np.ndarray:
    """Return the pixels whose centre lies in a box; boxes are drawn on the file as stored."""
    height, width = picture.stored
    rows = (np.arange(height)[:, None] + 0.5) / height
    columns = (np.arange(width) + 0.5) / width
    mask = np.zeros((height, width), bool)
    for left, top, right, bottom in boxes:
        mask |= (rows >= top) & (rows <= bottom) & (columns >= left) & (columns <= right)
    if not mask.any():
        raise UnreadableError("boxes without a pixel")
    return turned(mask, picture.orientation)


def example(folder: Path, count: int, side: int) -> None:
    """Write a small source in the raw layout, with `count` samples of about `side` pixels."""

    def node(label: str, *below: dict) -> dict:
        return {"LabelName": label} | ({"Subcategory": list(below)} if below else {})

    tree = node("/m/0bl9f", node("/m/0jbk", node("/m/bird", node("/m/owl")), node("/m/cat")), node("/m/car"))
    _examples.text(folder / "bbox_labels_600_hierarchy.json", tree)
    _examples.text(
        folder / "class-descriptions-boxable.csv", "/m/0jbk,Animal\n/m/bird,Bird\n/m/owl,Owl\n/m/cat,Cat\n/m/car,Car\n"
    )
    rows = ["ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax"]
    authors = ["ImageID,Subset,AuthorProfileURL,Author"]
    for index in range(count):
        name = f"{index:016x}"
        mask = _examples.picture(folder / f"validation/{name}.jpg", index + 96, side)
        down, across = np.flatnonzero(mask.any(1)) / side, np.flatnonzero(mask.any(0)) / side
        box = f"{across[0]},{across[-1]},{down[0]},{down[-1]}"
        kinds = (("/m/owl", "/m/bird"), ("/m/cat", "/m/car"))[index % 2]
        rows += [f"{name},xclick,{kind},1,{box}" for kind in kinds]
        authors.append(f"{name},validation,https://www.flickr.com/people/{index}/,N.N.")
    _examples.text(folder / "validation-annotations-bbox.csv", "\n".join(rows) + "\n")
    _examples.text(folder / "validation-images-with-rotation.csv", "\n".join(authors) + "\n")
