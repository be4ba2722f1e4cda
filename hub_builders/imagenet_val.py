"""ImageNet validation: 1,000 classes, with the boxes of the class as mask where the source has them.

Source: the folder of ILSVRC 2012 (image-net.org; non-commercial research and education only) as downloaded and
unpacked, in one of two layouts, each with the list `LOC_synset_mapping.txt` (or `imagenet_class_index.json`):

- that of Kaggle (imagenet-object-localization-challenge): `ILSVRC/Data/CLS-LOC/val/*.JPEG`, `LOC_val_solution.csv`;
- one folder for each class: `val/n01440764/*.JPEG`. Files whose names begin with the class, `n01440764_*.JPEG`, may
  lie in `val/` or in the source folder itself.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from saliency_bench.building import Job, Report
from saliency_bench.errors import UserError
from saliency_bench.hub_builders._source import (
    entries,
    first_folder,
    inside,
    json_of,
    mask_or_none,
    needed,
    picture_of,
    rasterised,
    table,
    text_of,
)
from saliency_bench.pictures import Picture, UnreadableError

VERSION = "1"
TITLE = "ImageNet validation"
LICENSE = "other"
TERMS = ("imagenet-terms-of-access", "https://www.image-net.org/download.php")
REDISTRIBUTE = False
SPLIT = "test"
PAPER_COUNTS: dict = {}
CITATION = """@article{russakovsky2015imagenet,
  title = {{ImageNet} Large Scale Visual Recognition Challenge},
  author = {Russakovsky, Olga and Deng, Jia and Su, Hao and others},
  journal = {International Journal of Computer Vision},
  year = {2015}
}"""
RULE = """The classes are the source's, in its order, by their names (with the WordNet id where two have the same). The
mask is the union of the boxes of the class (`LOC_val_solution.csv`); the layout with folders has none. `wnid` is the
WordNet id. Everything is in the split `test`."""

HOME = "ILSVRC 2012, image-net.org or kaggle.com/c/imagenet-object-localization-challenge (non-commercial research)"
WNID = re.compile(r"n\d{8}")
Found = dict[str, tuple[Path, str, list[list[float]] | None]]  # {image id: (file, WordNet id, boxes)}


def features(source: Path | None) -> dict:
    from datasets import ClassLabel, Value

    names = classes(needed(source, "imagenet-val", HOME))
    return {"label": ClassLabel(names=list(names.values())), "wnid": Value("string")}


def samples(source: Path | None, report: Report) -> Iterator[Job]:
    """The images in the order of their names."""
    root = needed(source, "imagenet-val", HOME)
    names = classes(root)
    kaggle = root / "ILSVRC/Data/CLS-LOC/val"
    found = _listed(root, kaggle, report) if kaggle.is_dir() else _in_folders(root, report)
    if not found:
        raise UserError(f"{root} has neither ILSVRC/Data/CLS-LOC/val/ nor val/WNID/*.JPEG; {HOME}")
    report.expected = len(found)
    for name in sorted(found):
        path, wnid, boxes = found[name]
        if wnid in names:
            yield Job(sample_of, name, path, wnid, names[wnid], boxes)
        else:
            report.leave_out(name, "image", f"{wnid} is none of the {len(names)} classes")


def classes(root: Path) -> dict[str, str]:
    """{WordNet id: name} in the order of the classes. Errors: UserError where the source has no list of them."""
    mapping, index = root / "LOC_synset_mapping.txt", root / "imagenet_class_index.json"
    if mapping.is_file():
        split = [line.partition(" ") for line in text_of(mapping).splitlines() if line.strip()]
        pairs = [(wnid, name.strip()) for wnid, _, name in split]
    elif index.is_file():
        listed = sorted((int(key), value) for key, value in json_of(index, dict).items() if key.isdecimal())
        pairs = [(str(value[0]), str(value[1])) for _, value in listed if isinstance(value, list) and len(value) == 2]
    else:
        raise UserError(f"{root} has no LOC_synset_mapping.txt and no imagenet_class_index.json; {HOME}")
    if not pairs or not all(WNID.fullmatch(wnid) and name for wnid, name in pairs):
        raise UserError(f"{mapping if mapping.is_file() else index} is no list of WordNet ids and names; {HOME}")
    names = [name for _, name in pairs]
    return {wnid: name if names.count(name) == 1 else f"{name} ({wnid})" for wnid, name in pairs}


def _listed(root: Path, folder: Path, report: Report) -> Found:
    path = root / "LOC_val_solution.csv"
    if not path.is_file():
        raise UserError(f"{root} has no LOC_val_solution.csv; give the folder as downloaded and unpacked: {HOME}")
    found: Found = {}
    for number, row in table(path, ["ImageId", "PredictionString"]):
        name, words = row["ImageId"].strip(), row["PredictionString"].split()
        try:
            boxes = [[float(word) for word in words[place + 1 : place + 5]] for place in range(0, len(words), 5)]
            file = inside(folder, f"{name}.JPEG")
        except (ValueError, UnreadableError) as error:  # an UnreadableError is a ValueError too
            told = str(error) if isinstance(error, UnreadableError) else "boxes that are no numbers"
            report.leave_out(name or f"line {number}", "image", told)
            continue
        if not words or not all(len(box) == 4 for box in boxes):
            report.leave_out(name, "image", f"line {number} of {path.name} is not a class and four numbers each")
        elif name in found:
            report.remark(name, f"{path.name} line {number}: listed twice; the first counts")
        else:
            found[name] = (
                file,
                words[0],
                [box for box, wnid in zip(boxes, words[::5], strict=True) if wnid == words[0]],
            )
    return found


def _in_folders(root: Path, report: Report) -> Found:
    found: Found = {}
    base = first_folder(root, "val", "ILSVRC2012_img_val") or root
    for path in entries(base):
        for file in entries(path) if path.is_dir() else [path]:
            wnid = WNID.match(path.name)
            if file.suffix.lower() not in (".jpeg", ".jpg") or file.name.startswith("."):
                continue
            if wnid is None or file.stem in found:
                report.leave_out(file.stem, "image", "no class in its name or folder, or a name that comes twice")
            else:
                found[file.stem] = (file, wnid[0], None)
    return found


def sample_of(
    report: Report, name: str, path: Path, wnid: str, label: str, boxes: list[list[float]] | None
) -> dict | None:
    picture = picture_of(report, name, path)
    if picture is None:
        return None
    mask = mask_or_none(report, name, lambda: union(boxes, picture))
    return {"image_id": name, "image": picture, "label": label, "mask": mask, "wnid": wnid, "source_split": "val"}


def union(boxes: list[list[float]] | None, picture: Picture) -> np.ndarray:
    if not boxes:
        raise UnreadableError("no box")
    return np.any([rasterised(box, picture.height, picture.width) for box in boxes], axis=0)
