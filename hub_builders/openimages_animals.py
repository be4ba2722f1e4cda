"""OpenImages animals: 95 species or groups of animals, with ten evaluation images of each and boxes as masks.

Source: a folder with the following files of Open Images V6 or V7 (storage.googleapis.com/openimages; annotations CC BY
4.0, images CC BY 2.0) as downloaded, for one or more of the splits train, validation and test.

- The hierarchy `bbox_labels_600_hierarchy.json` and the names `class-descriptions-boxable.csv`.
- The boxes `SPLIT-annotations-bbox.csv` (also `oidv6-train-annotations-bbox.csv`).
- The images `SPLIT/IMAGE_ID.jpg`.
- Optional: the lists of photographers `SPLIT-images-with-rotation.csv` (also `train-images-boxable-with-rotation.csv`).
  If there is no such list, each image is a separate group.
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
RULE = """The classes are the `kinds` most frequent categories below `Animal` in the source's hierarchy. An image is
kept if its boxes show animals of exactly one category; other objects are allowed. If a category and a more general
category that contains it are both present, only the more specific category is considered. For each class, `per_class`
images are drawn for `test`. From the other images, `train_per_class` images are drawn for `train` and `validation`
(split by a hash, 85 to 15), excluding images by photographers whose images are in `test`. The mask is the union of the
animals' boxes, whose coordinates refer to the image as stored in the file, before any EXIF rotation. `source_split` is
the source's split."""
GROUP = "the photographer, if the source has a list of photographers"

HOME = "Open Images, storage.googleapis.com/openimages (annotations CC BY 4.0, images CC BY 2.0)"
HIERARCHY = "bbox_labels_600_hierarchy.json"
SPLITS = ("train", "validation", "test")
CORNERS = ("XMin", "YMin", "XMax", "YMax")
Boxes = list[tuple[float, float, float, float]]  # fractions of width and height
Found = dict[str, tuple[Path, str, str, Boxes]]  # {image id: (file, split, kind, boxes)}


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns of the dataset. The classes are the most frequent categories."""
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
    """Yield one job per drawn image, ordered by image id.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        kinds: number of classes; the most frequent categories of animals are used.
        per_class: number of evaluation images per class; 0 for all, which leaves none for training.
        parts: all, or test to leave out the training images.
        train_per_class: number of training images per class; 0 for all remaining images.
        seed: seed for drawing images and for the split into train and validation.
    """
    if kinds < 1 or min(per_class, train_per_class) < 0:
        raise UserError(
            "openimages-animals: kinds must be 1 or more, and per_class and train_per_class must be 0 or more; "
            f"got {kinds}, {per_class} and {train_per_class}"
        )
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
    """Return the most frequent categories of animals."""
    counts = Counter(kind for _, _, kind, _ in shown.values())
    return sorted(counts, key=lambda kind: (-counts[kind], kind))[:kinds]


def images(root: Path, log: BuildLog) -> Found:
    """Return the existing images that show animals of a single category.

    Raises:
        UserError: A required file or folder is missing. The message names it.
    """
    above = animals(json_of(part(root, HIERARCHY, HOME), dict))
    names = descriptions(part(root, "class-descriptions-boxable.csv", HOME))
    shown: Found = {}
    there = [split for split in SPLITS if (root / split).is_dir()]
    if not there:
        raise UserError(
            f"{root} has no folder train/, validation/ or test/; download the source again and unpack it: {HOME}"
        )
    for split in there:
        files = {path.stem: path for path in entries(root / split) if is_picture(path)}
        listing = f"{split}-annotations-bbox.csv"
        path = root / f"oidv6-{listing}"
        boxes = boxes_of(path if path.is_file() else part(root, listing, HOME), files, above, log)
        for name, listed in boxes.items():
            kinds = {kind for kind, _ in listed}
            special = {kind for kind in kinds if not any(kind in above[other] for other in kinds)}
            if len(special) > 1:
                log.leave_out(name, "image", "animals of several categories")
            elif (kind := special.pop()) not in names:
                log.leave_out(name, "image", f"{kind} is not in class-descriptions-boxable.csv")
            else:
                shown[name] = (files[name], split, names[kind], [box for _, box in listed])
        for name in sorted(set(files) - set(boxes)):
            log.leave_out(name, "image", "no box contains an animal")
    if not shown:
        raise UserError(
            f"{root} has no image with animals of a single category; download the source again and unpack it: {HOME}"
        )
    return shown


def photographers(root: Path, shown: Found, log: BuildLog) -> dict[str, str]:
    """Return {image id: URL of the photographer} from the lists of photographers."""
    by: dict[str, str] = {}
    for split in sorted({split for _, split, _, _ in shown.values()}):
        lists = [root / f"{split}-{kind}-with-rotation.csv" for kind in ("images", "images-boxable")]
        path = next((path for path in lists if path.is_file()), None)
        if path is None:
            log.remark(
                lists[0].name,
                "the file is not in the source, so images by the same photographer are treated as independent",
            )
            continue
        for _, row in table(path, ["ImageID", "AuthorProfileURL"]):
            if row["ImageID"] in shown and row["AuthorProfileURL"].strip():
                by[row["ImageID"]] = row["AuthorProfileURL"].strip()
    return by


def animals(root: Any) -> dict[str, set[str]]:
    """Return {label of an animal category: labels of the more general categories that contain it}.

    The category Animal has the label `/m/0jbk`.
    """
    kinds: dict[str, set[str]] = {}

    def walk(node: Any, above: tuple[str, ...], inside: bool) -> None:
        label = node.get("LabelName") if isinstance(node, dict) else None
        if not isinstance(label, str) or len(above) > 50:
            raise UserError(f"{HIERARCHY} is not a tree of labels; download the source again and unpack it: {HOME}")
        if inside:
            kinds.setdefault(label, set()).update(above)
        general = (*above, label) if inside else above
        for child in node.get("Subcategory", []) or []:
            walk(child, general, inside or label == "/m/0jbk")

    walk(root, (), False)
    if not kinds:
        raise UserError(
            f"{HIERARCHY} has no category below /m/0jbk (Animal); download the source again and unpack it: {HOME}"
        )
    return kinds


def descriptions(path: Path) -> dict[str, str]:
    """Return {label: name}. The header that some versions of the file have is skipped."""
    split = [line.partition(",") for line in text_of(path).splitlines()]
    return {label.strip(): name.strip() for label, _, name in split if name.strip() and label != "LabelName"}


def boxes_of(path: Path, files: dict[str, Path], above: dict, log: BuildLog) -> dict[str, list[tuple[str, Any]]]:
    """Return {image id: [(label of the category, box)]} for the existing images."""
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
            log.remark(
                name,
                f"{path.name} line {number} is skipped, because it does not define a box by four numbers from 0 to 1",
            )
    if absent:
        log.remark(path.name, f"{len(absent)} images with animal boxes are missing from the image folder")
    return boxes


def sample_of(
    log: BuildLog, name: str, path: Path, listed: str, label: str, boxes: Boxes, split: str, group: str | None
) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, name, path)
    if picture is None:
        return None
    mask = mask_or_none(log, name, lambda: union(boxes, picture))
    further = {"label": label, "mask": mask, "source_split": listed, "split": split, "group": group}
    return {"image_id": name, "image": picture} | further


def union(boxes: Boxes, picture: Picture) -> np.ndarray:
    """Return which pixels have their centre inside a box, bool (H, W). Boxes refer to the stored image."""
    height, width = picture.stored
    rows = (np.arange(height)[:, None] + 0.5) / height
    columns = (np.arange(width) + 0.5) / width
    mask = np.zeros((height, width), bool)
    for left, top, right, bottom in boxes:
        mask |= (rows >= top) & (rows <= bottom) & (columns >= left) & (columns <= right)
    if not mask.any():
        raise UnreadableError("the boxes contain no pixel")
    return turned(mask, picture.orientation)


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""

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
