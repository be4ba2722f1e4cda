"""Food-101: 30 dishes, ten pictures of each.

Source: the folder of Food-101 (Bossard et al. 2014, data.vision.ee.ethz.ch/cvl/food-101.tar.gz; the pictures come from
foodspotting.com and are for scientific fair use) as downloaded and unpacked: `food-101/`, or the folder that holds it,
with `images/CLASS/*.jpg` and `meta/{train,test}.txt`.

The paper does not name its 30 classes ("the 30 most common"); those here are this project's choice, so scores are not
to be compared with the paper's to the digit.
"""

from collections.abc import Iterator
from pathlib import Path

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._source import drawn, first_folder, lines, listed_file, needed, part, picture_of

VERSION = "1"
TITLE = "Food-101, 30 classes"
LICENSE = "other"
TERMS = ("food-101-scientific-fair-use", "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/")
REDISTRIBUTE = False
SPLIT = "test"
PAPER_COUNTS = {"samples": 300}
CITATION = """@inproceedings{bossard2014food,
  title = {{Food-101}: Mining Discriminative Components with Random Forests},
  author = {Bossard, Lukas and Guillaumin, Matthieu and Van Gool, Luc},
  booktitle = {European Conference on Computer Vision},
  year = {2014}
}"""
RULE = """`per_class` pictures of each of 30 dishes are drawn from the source's own test split (`subset=all`: of both).
The paper takes the 30 most common dishes and does not name them; the list here is fixed by this project. There are no
masks. Everything is in the split `test`."""

HOME = "Food-101, data.vision.ee.ethz.ch/cvl/food-101.tar.gz (scientific fair use)"
CLASSES = [
    "apple_pie",
    "baby_back_ribs",
    "caesar_salad",
    "cheesecake",
    "chicken_curry",
    "chicken_wings",
    "chocolate_cake",
    "cup_cakes",
    "donuts",
    "dumplings",
    "french_fries",
    "french_toast",
    "fried_rice",
    "grilled_salmon",
    "guacamole",
    "hamburger",
    "hot_dog",
    "ice_cream",
    "lasagna",
    "macaroni_and_cheese",
    "nachos",
    "omelette",
    "pancakes",
    "pizza",
    "ramen",
    "spaghetti_bolognese",
    "steak",
    "sushi",
    "tacos",
    "waffles",
]


def features() -> dict:
    from datasets import ClassLabel

    return {"label": ClassLabel(names=CLASSES)}


def samples(
    source: Path | None, log: BuildLog, *, per_class: int = 10, subset: str = "test", seed: int = 0
) -> Iterator[Job]:
    """The pictures that were drawn, by class and name.

    per_class: how many pictures of each class are drawn; 0 for all
    subset: test, train or all
    seed: of the drawing
    """
    if per_class < 0 or subset not in ("test", "train", "all"):
        raise UserError("food-101: per_class is a number from 0, subset is test, train or all")
    source = needed(source, "food-101", HOME)
    root = first_folder(source, "food-101") or source
    part(root, "images/", HOME)
    known: dict[str, str] = {}
    for split in ("test", "train") if subset == "all" else (subset,):
        for number, words in lines(part(root, f"meta/{split}.txt", HOME)):
            if words[0] in known:
                log.remark(words[0], f"{split}.txt line {number}: listed twice; the first counts")
            known.setdefault(words[0], split)
    names = {label: [name for name in known if name.partition("/")[0] == label] for label in CLASSES}
    if missing := [label for label in CLASSES if not names[label]]:
        raise UserError(f"{root}/meta lists no picture of {', '.join(missing[:3])}; {HOME}")
    chosen = [(label, name) for label in CLASSES for name in sorted(drawn(seed, names[label], per_class))]
    log.expected = len(chosen)
    for label, name in chosen:
        if path := listed_file(log, name, root / "images", f"{name}.jpg"):
            yield Job(sample_of, name, path, label, known[name])


def sample_of(log: BuildLog, name: str, path: Path, label: str, split: str) -> dict | None:
    picture = picture_of(log, name, path)
    return picture and {"image_id": name, "image": picture, "label": label, "source_split": split}


def example(folder: Path, count: int, side: int) -> None:
    names = [f"{label}/{1000 + place}" for place, label in enumerate(CLASSES)]
    for index, name in enumerate(names):
        _examples.picture(folder / f"food-101/images/{name}.jpg", index, side)
    _examples.text(folder / "food-101/meta/test.txt", "\n".join(names) + "\n")
