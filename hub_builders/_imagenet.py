"""Shared code of the builders that read ImageNet's validation images: layouts, classes, and groups of classes."""

import re
import shutil
from functools import cache
from pathlib import Path

import numpy as np

from saliency_bench.compute.targets.class_groups import load_groups
from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError, one_line
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._source import (
    base_with,
    entries,
    first_folder,
    inside,
    is_picture,
    json_of,
    library,
    needed,
    part,
    table,
    text_of,
)
from saliency_bench.hub_builders._wordnet import TABLE
from saliency_bench.utils.pictures import UnreadableError

HOME = "ILSVRC 2012, image-net.org or kaggle.com/c/imagenet-object-localization-challenge (non-commercial research)"
WNID = re.compile(r"n\d{8}")
NAMED = re.compile(r"(?:^|_)(n\d{8})(?:_|$)")  # matches the WordNet id in the name of a file or folder
LISTS = ("LOC_synset_mapping.txt", "synset_words.txt")
MARKS = (
    "ILSVRC/Data/CLS-LOC/val",
    "ILSVRC2012_img_val",
    "ILSVRC2012_devkit_t12",
    *LISTS,
)  # files and folders that identify the source folder
DEVKIT = ("ILSVRC2012_devkit_t12/data", "ILSVRC2012_devkit_t12", "devkit/data", "data")
BOXES = ("ILSVRC2012_bbox_val_v3/val", "ILSVRC2012_bbox_val_v3", "ILSVRC/Annotations/CLS-LOC/val", "bbox/val", "val")
Boxes = list[list[float]]
CITATION = """@article{russakovsky2015imagenet,
  title = {{ImageNet} Large Scale Visual Recognition Challenge},
  author = {Russakovsky, Olga and Deng, Jia and Su, Hao and others},
  journal = {International Journal of Computer Vision},
  year = {2015}
}"""
Found = dict[str, tuple[Path, str, Boxes | Path | None]]  # {image id: (file, WordNet id, boxes or their XML)}


def root_of(source: Path | None, name: str) -> Path:
    """Return the folder with ImageNet's raw data, or raise UserError if there is none."""
    return base_with(needed(source, name, HOME), *MARKS)


def images_of(root: Path, names: dict[str, str], log: BuildLog) -> Found:
    """Find the evaluation images of these classes in any supported layout.

    Raises:
        UserError: There are no images.
    """
    kaggle = root / "ILSVRC/Data/CLS-LOC/val"
    images = _list(root, kaggle, log) if kaggle.is_dir() else _in_folders(root, log)
    if not images:
        raise UserError(
            f"{root} has neither ILSVRC/Data/CLS-LOC/val/ nor val/ with *.JPEG files of a known class; download the "
            "source "
            f"again and unpack it: {HOME}"
        )
    for name in sorted(images):
        if images[name][1] not in names:
            log.leave_out(name, "image", f"{images[name][1]} is not one of the {len(names)} classes")
    return {name: entry for name, entry in images.items() if entry[1] in names}


@cache
def groups() -> dict[str, tuple[str, list[str]]]:
    """Return {WordNet id of a class: (name of its group, WordNet ids of the group's classes)}."""
    table = json_of(TABLE, dict)
    known, wnids = load_groups(None, table["classes"], len(table["classes"])), table["wnids"]
    assert known is not None
    indices = [known.index_of_group(label) for label in range(len(wnids))]
    named = (
        (known.called[index], [wnids[member] for member in known.members[index]])
        for index in indices
        if index is not None
    )
    return dict(zip(wnids, named, strict=True))  # strict, because every class has a group


def group_of(wnid: str) -> tuple[str | None, list[str]]:
    """Return the name of a class's group and the WordNet ids of all classes in the group.

    For a class that is not in ILSVRC 2012, return (None, []).
    """
    return groups().get(wnid, (None, []))


def classes_of(root: Path) -> dict[str, str]:
    """Return {WordNet id: class name}, sorted by id.

    Raises:
        UserError: The raw data does not list the classes.
    """
    index = root / "imagenet_class_index.json"
    devkit = first_folder(root, *DEVKIT)
    mapping = next((root / name for name in LISTS if (root / name).is_file()), None)
    if mapping is not None:
        split = [line.partition(" ") for line in text_of(mapping).splitlines() if line.strip()]
        pairs, origin = [(wnid, name.strip()) for wnid, _, name in split], mapping
    elif index.is_file():
        listed = sorted((int(key), value) for key, value in json_of(index, dict).items() if key.isdecimal())
        pairs = [(str(value[0]), str(value[1])) for _, value in listed if isinstance(value, list) and len(value) == 2]
        origin = index
    elif devkit and (devkit / "meta.mat").is_file():
        origin = devkit / "meta.mat"
        pairs = [(wnid, name) for _, wnid, name in synsets(origin)]
    else:
        origin = first_folder(root, "val", "ILSVRC2012_img_val") or root
        wnids = [path.name for path in entries(origin) if WNID.fullmatch(path.name) and path.is_dir()]
        table = json_of(TABLE, dict)["classes"]
        if len(wnids) != len(table):
            names_of = ", ".join((*LISTS, index.name))
            raise UserError(
                f"{root} has none of {names_of} and ILSVRC2012_devkit_t12/data/meta.mat; download the source "
                "again and "
                f"unpack it: {HOME}"
            )
        pairs = list(zip(wnids, table, strict=True))
    if not pairs or not all(WNID.fullmatch(wnid) and name for wnid, name in pairs):
        raise UserError(
            f"{origin} is not a list of WordNet ids and names; download the source again and unpack it: {HOME}"
        )
    names = [name for _, name in pairs]
    return {wnid: name if names.count(name) == 1 else f"{name} ({wnid})" for wnid, name in sorted(pairs)}


def synsets(path: Path) -> list[tuple[int, str, str]]:
    """Return (number, WordNet id, name) of each class in the devkit's meta.mat. Groups in the file are skipped."""
    loadmat = library("scipy.io").loadmat
    try:
        rows = loadmat(path, squeeze_me=True, struct_as_record=True)["synsets"]
        columns = (rows["ILSVRC2012_ID"], rows["WNID"], rows["words"], rows["num_children"])
        classes = [(int(n), str(wnid), str(name)) for n, wnid, name, below in zip(*columns, strict=True) if not below]
    except Exception as error:  # the reader raises errors of many types on damaged files
        raise UserError(f"{path} is not the devkit's meta.mat: {one_line(error)}; download it again: {HOME}") from error
    return sorted(classes)


def truth(root: Path) -> dict[str, str]:
    """Return {image name: WordNet id} from the devkit, or {} if there is no devkit.

    Line n of the devkit's list is the class of image n.
    """
    devkit = first_folder(root, *DEVKIT)
    path = devkit and devkit / "ILSVRC2012_validation_ground_truth.txt"
    if not devkit or not path or not path.is_file():
        return {}
    wnids = {str(number): wnid for number, wnid, _ in synsets(part(devkit, "meta.mat", HOME))}
    classes = {}
    for number, line in enumerate(text_of(path).split(), 1):
        if line not in wnids:
            raise UserError(f"{path} line {number}: {line[:20]!r} is not in meta.mat; download it again: {HOME}")
        classes[f"ILSVRC2012_val_{number:08d}"] = wnids[line]
    return classes


def _list(root: Path, folder: Path, log: BuildLog) -> Found:
    """List the images of a source folder that uses Kaggle's layout."""
    path = root / "LOC_val_solution.csv"
    if not path.is_file():
        raise UserError(f"{root} has no LOC_val_solution.csv; pass the folder of the complete, unpacked source: {HOME}")
    images: Found = {}
    for number, row in table(path, ["ImageId", "PredictionString"]):
        name, words = row["ImageId"].strip(), row["PredictionString"].split()
        try:
            boxes = [[float(word) for word in words[place + 1 : place + 5]] for place in range(0, len(words), 5)]
            file = inside(folder, f"{name}.JPEG")  # the file names of ImageNet have this extension
        except (ValueError, UnreadableError) as error:  # UnreadableError is a subclass of ValueError
            reason = str(error) if isinstance(error, UnreadableError) else "boxes that are not numbers"
            log.leave_out(name or f"line {number}", "image", reason)
            continue
        if not words or not all(len(box) == 4 for box in boxes):
            log.leave_out(
                name, "image", f"line {number} of {path.name} is not a list of classes, each with four numbers"
            )
        elif name in images:
            log.remark(name, f"{path.name} line {number}: the image is listed twice; the first entry is used")
        else:
            images[name] = (
                file,
                words[0],
                [box for box, wnid in zip(boxes, words[::5], strict=True) if wnid == words[0]],
            )
    return images


def _in_folders(root: Path, log: BuildLog) -> Found:
    """List the images of a source folder that uses image-net.org's layout or class folders."""
    images: Found = {}
    truths = truth(root)
    boxes = {path.stem: path for name in BOXES for path in entries(root / name) if path.suffix == ".xml"}
    bases = (root / "val", root / "ILSVRC2012_img_val", root)
    for folder, file in next(filter(None, map(_pictures, bases)), []):
        wnid = NAMED.search(folder) or NAMED.search(file.stem)
        kind = wnid[1] if wnid else truths.get(file.stem)
        if kind is None:
            log.leave_out(file.stem, "image", "neither its name, nor its folder, nor the devkit states its class")
        elif file.stem in images:
            log.leave_out(f"{folder}/{file.name}", "image", "another image has this name; the first one is used")
        else:
            images[file.stem] = (file, kind, boxes.get(file.stem.removesuffix(f"_{kind}")))
    for name in sorted(set(truths) - {name[:23] for name in images}):
        log.leave_out(name, "image", "the devkit lists this image, but the file is missing")
    return images


def _pictures(base: Path) -> list[tuple[str, Path]]:
    """Return (name of the subfolder or "", file) for each image in a folder and its subfolders."""
    files = [
        (path.name if path.is_dir() else "", file)
        for path in entries(base)
        for file in (entries(path) if path.is_dir() else [path])
    ]
    return [(folder, file) for folder, file in files if is_picture(file)]


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    wnids = ("n01440764", "n01443537", "n02012849", "n03126707")
    rows = ["ImageId,PredictionString"]
    for index in range(count):
        wnid = wnids[index % 4]
        _examples.picture(folder / f"ILSVRC/Data/CLS-LOC/train/{wnid}/{wnid}_{index}.JPEG", index + 40, side)
        name = f"ILSVRC2012_val_{index + 1:08d}"
        mask = _examples.picture(folder / f"ILSVRC/Data/CLS-LOC/val/{name}.JPEG", index + 80, side)
        down, across = np.flatnonzero(mask.any(1)) + 1, np.flatnonzero(mask.any(0)) + 1
        rows.append(f"{name},{wnids[index % 4]} {across[0]} {down[0]} {across[-1]} {down[-1]} ")
    _examples.text(folder / "LOC_val_solution.csv", "\n".join(rows) + "\n")
    names = ("tench, Tinca tinca", "goldfish, Carassius auratus", "crane", "crane")
    _examples.text(folder / "LOC_synset_mapping.txt", "\n".join(map(" ".join, zip(wnids, names, strict=True))) + "\n")


def example_devkit(folder: Path, count: int, side: int) -> None:
    """Write an example source in the layout of image-net.org."""
    example(folder, count, side)
    names = [line.split(" ", 1) for line in text_of(folder / "LOC_synset_mapping.txt").splitlines()]
    numbers = (3, 1, 2, 4)  # class numbers of the devkit
    kinds = [(name, "O") for name in ("ILSVRC2012_ID", "WNID", "words", "num_children")]
    rows = [(number, *name, 0) for number, name in zip(numbers, names, strict=True)]
    devkit = folder / "ILSVRC2012_devkit_t12/data"
    devkit.mkdir(parents=True)
    synsets = np.array([*rows, (5, "n00015388", "animal", 2)], kinds)[:, None]
    library("scipy.io").savemat(devkit / "meta.mat", {"synsets": synsets})
    classes = [numbers[index % 4] for index in range(count)]
    _examples.text(devkit / "ILSVRC2012_validation_ground_truth.txt", "".join(f"{number}\n" for number in classes))
    (folder / "ILSVRC/Data/CLS-LOC/train").rename(folder / "train")
    for name, (path, wnid, boxes) in _list(folder, folder / "ILSVRC/Data/CLS-LOC/val", BuildLog()).items():
        path.rename(folder / path.name)
        listed = boxes if isinstance(boxes, list) else []
        boxed = [f"<name>{wnid}</name><bndbox>{_examples.boxed(box)}</bndbox>" for box in listed]
        objects = "".join(f"<object>{entry_object}</object>" for entry_object in boxed)
        _examples.text(folder / f"val/{name}.xml", f"<annotation>{objects}</annotation>")
    shutil.rmtree(folder / "ILSVRC")
    for path in folder.glob("LOC_*"):
        path.unlink()
