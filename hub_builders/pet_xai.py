"""Oxford-IIIT Pet: 37 breeds of cats and dogs, with the pet's outline as the mask.

Source: the folder of Oxford-IIIT Pet (Visual Geometry Group, University of Oxford, robots.ox.ac.uk/~vgg/data/pets;
CC BY-SA 4.0) as downloaded, with images.tar.gz and annotations.tar.gz unpacked into the same folder. The folder must
contain `images/`, `annotations/trimaps/` and `annotations/list.txt`. `annotations/trainval.txt`, `annotations/test.txt`
and `annotations/xmls/` are optional.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._papers import SALIENCY_BENCH
from saliency_bench.hub_builders._source import (
    base_of,
    indices,
    is_picture,
    needed,
    picture_of,
    shown_boxes,
    text_of,
    xml_of,
)
from saliency_bench.utils.pictures import Picture, UnreadableError

VERSION = "2"
ALSO_CALLED = ("pets", "oxford pets", "oxford-iiit pet")
TITLE = "Pet-XAI"
ANNOTATORS = ("expert-generated",)
SOURCES = ("extended|other-oxford-iiit-pet",)
PAPER = SALIENCY_BENCH
LICENSE = "cc-by-sa-4.0"
REDISTRIBUTE = True
PAPER_COUNTS = {"samples": 7390, "masks": 7349, "species": {"cat": 2400, "dog": 4990}}
CITATION = """@inproceedings{parkhi2012cats,
  title = {Cats and Dogs},
  author = {Parkhi, Omkar M. and Vedaldi, Andrea and Zisserman, Andrew and Jawahar, C. V.},
  booktitle = {IEEE Conference on Computer Vision and Pattern Recognition},
  year = {2012}
}"""
RULE = """The label is the breed listed in `annotations/list.txt`, or the breed in the file name if the image is not
listed. The mask contains the pixels with value 1 (pet) in the trimap, and, with the option `border`, also the pixels
with value 3 (border band). Images that are not listed in `annotations/list.txt` are kept without a mask. The paper
keeps images of one cat or one dog. All 7,390 images of the source meet this condition and are samples of the paper.
`source_split` is the source's own split, and `head_box` is the box of the head [xmin, ymin, xmax, ymax] if the source
has one."""
BIASES = """The images are photographs published by owners and fans. Each shows one animal, usually large and near the
centre. 25 of the 37 breeds are dogs, so about two in three images show a dog."""

BREEDS = [  # CLASS-ID 1 to 37 of list.txt, in this order
    "Abyssinian",
    "american_bulldog",
    "american_pit_bull_terrier",
    "basset_hound",
    "beagle",
    "Bengal",
    "Birman",
    "Bombay",
    "boxer",
    "British_Shorthair",
    "chihuahua",
    "Egyptian_Mau",
    "english_cocker_spaniel",
    "english_setter",
    "german_shorthaired",
    "great_pyrenees",
    "havanese",
    "japanese_chin",
    "keeshond",
    "leonberger",
    "Maine_Coon",
    "miniature_pinscher",
    "newfoundland",
    "Persian",
    "pomeranian",
    "pug",
    "Ragdoll",
    "Russian_Blue",
    "saint_bernard",
    "samoyed",
    "scottish_terrier",
    "shiba_inu",
    "Siamese",
    "Sphynx",
    "staffordshire_bull_terrier",
    "wheaten_terrier",
    "yorkshire_terrier",
]
HOME = "Oxford-IIIT Pet, Visual Geometry Group, University of Oxford; CC BY-SA 4.0"
FOREGROUND, BORDER = 1, 3


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel, List, Value

    return {
        "label": ClassLabel(names=BREEDS),
        "species": ClassLabel(names=["cat", "dog"]),
        "head_box": List(Value("int32")),
    }


def samples(source: Path | None, log: BuildLog, *, border: bool = False) -> Iterator[Job]:
    """Yield one job per image, ordered by name.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        border: include the trimap's border band (value 3) in the mask.
    """
    root = checked(source)
    listed = class_ids(root / "annotations" / "list.txt")
    split = {name: part for part in ("trainval", "test") for name in names_in(root / "annotations" / f"{part}.txt")}
    files = sorted((root / "images").iterdir())
    log.expected = len(files)
    for path in files:
        trimap = root / "annotations" / "trimaps" / f"{path.stem}.png"
        xml = root / "annotations" / "xmls" / f"{path.stem}.xml"
        yield Job(sample_of, path, trimap, xml, listed.get(path.stem), split.get(path.stem), border)
    for name in sorted(set(listed) - {path.stem for path in files if is_picture(path)}):
        log.leave_out(name, "image", "the image is listed in annotations/list.txt, but missing from images/")


def checked(source: Path | None) -> Path:
    """Return the folder that contains images/ and annotations/.

    Raises:
        UserError: A required file or folder is missing. The message names it.
    """
    source = base_of(needed(source, "pet-xai", HOME), "images", "annotations")
    for part in ("images", "annotations", "annotations/list.txt", "annotations/trimaps"):
        there = (source / part).is_file() if part.endswith(".txt") else (source / part).is_dir()
        if not there:
            raise UserError(f"{source} has no {part}; pass the folder of the complete, unpacked source: {HOME}")
    return source


def class_ids(path: Path) -> dict[str, int]:
    """Read list.txt and return {image name: CLASS-ID, from 1 to 37}.

    Raises:
        UserError: A line has a different format. The message names the line.
    """
    ids = {}
    for number, line in enumerate(text_of(path, "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()
        if (
            len(fields) < 2
            or not fields[1].isascii()
            or not fields[1].isdigit()
            or not 1 <= int(fields[1]) <= len(BREEDS)
        ):
            raise UserError(
                f"{path} line {number}: expected 'NAME CLASS-ID SPECIES BREED-ID' with a class id of 1 to 37"
            )
        ids[fields[0]] = int(fields[1])
    return ids


def names_in(path: Path) -> list[str]:
    """Return the image names in a list file."""
    if not path.is_file():
        return []
    lines = text_of(path, "replace").splitlines()
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def sample_of(
    log: BuildLog, path: Path, trimap: Path, xml: Path, class_id: int | None, split: str | None, border: bool
) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out.

    `class_id` is the CLASS-ID in list.txt, or None if the image is not listed.
    """
    name = path.stem
    if not is_picture(path) or not path.is_file():
        log.leave_out(path.name, "image", "the file name has no image extension")
        return None
    breed = breed_of(name, class_id, log)
    if breed is None:
        log.leave_out(
            name,
            "image",
            "unknown breed: the image is not in annotations/list.txt, and its name does not begin with a breed",
        )
        return None
    picture = picture_of(log, name, path)
    if picture is None:
        return None
    return {
        "image_id": name,
        "image": picture,
        "label": breed,
        "species": "cat" if breed[0].isupper() else "dog",
        "mask": mask_of(name, picture, trimap, class_id is not None, border, log),
        "source_split": split,
        "head_box": head_box(xml, name, picture, log),
    }


def breed_of(name: str, class_id: int | None, log: BuildLog) -> str | None:
    """Return the breed from list.txt, or else from the file name. If the two differ, log a remark."""
    listed = None if class_id is None else BREEDS[class_id - 1]
    spelled = re.sub(r"_\d+$", "", name)
    by_name = spelled if spelled in BREEDS else None
    if listed and listed != by_name:
        log.remark(
            name, f"annotations/list.txt lists {listed}, but the file name contains {by_name or 'no known breed'}"
        )
    return listed or by_name


def mask_of(name: str, picture: Picture, path: Path, listed: bool, border: bool, log: BuildLog) -> np.ndarray | None:
    """Return the mask of the pet, bool (H, W), or log the reason and return None if there is no valid trimap."""
    try:
        if not listed:
            raise UnreadableError("the image is not in annotations/list.txt")
        return pet_of(path, picture, border)
    except UnreadableError as error:
        log.leave_out(name, "mask", str(error))
        return None


def pet_of(path: Path, picture: Picture, border: bool) -> np.ndarray:
    """Return the pixels of the pet in a trimap, bool (H, W)."""
    trimap = indices(path, picture, "trimap")
    if not (trimap == FOREGROUND).any():
        raise UnreadableError("the trimap has no foreground")
    return (trimap == FOREGROUND) | (border & (trimap == BORDER))


def head_box(path: Path, name: str, picture: Picture, log: BuildLog) -> list[int] | None:
    """Return [xmin, ymin, xmax, ymax] of the first object in the XML, or None if there is no file or no valid box."""
    if not path.is_file():
        return None
    try:
        boxes = shown_boxes(xml_of(path), picture)
        if not boxes:
            raise UnreadableError(f"{path.name} has no object/bndbox")
        if len(boxes) > 1:
            log.remark(name, f"{path.name} contains {len(boxes)} heads; head_box is the first one")
        return [int(corner) for corner in boxes[0][1]]
    except (UnreadableError, ValueError, OverflowError) as error:  # a corner is NaN or infinite
        log.remark(name, f"the head box is left out: {error}")
        return None


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    rows = ["#Image CLASS-ID SPECIES BREED ID"]
    for index in range(count):
        name, number = (("Abyssinian", 1), ("beagle", 5), ("pug", 26))[index % 3]
        mask = _examples.picture(folder / f"images/{name}_{index}.jpg", index, side)
        _examples.save(folder / f"annotations/trimaps/{name}_{index}.png", np.where(mask, 1, 2).astype(np.uint8))
        box = _examples.boxed((1, 1, 9, 9))
        _examples.text(
            folder / f"annotations/xmls/{name}_{index}.xml", f"<a><object><bndbox>{box}</bndbox></object></a>"
        )
        rows.append(f"{name}_{index} {number} 1 1")
    _examples.text(folder / "annotations/list.txt", "\n".join(rows) + "\n")
