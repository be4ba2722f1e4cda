"""Food-101: images of 30 dishes, ten of each for evaluation, and the training images of the source.

Source: the folder of Food-101 (Bossard et al. 2014, data.vision.ee.ethz.ch/cvl/food-101.tar.gz; the images come from
foodspotting.com and are for scientific fair use) as downloaded and unpacked: `food-101/`, or the folder that contains
it, with `images/CLASS/*.jpg` and `meta/{train,test}.txt`.

The paper does not name its 30 classes ("the 30 most common"). The classes here were chosen by this project, so scores
cannot be compared exactly with the paper's scores.
"""

from collections.abc import Iterator
from pathlib import Path

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._papers import CROWDSOURCING
from saliency_bench.hub_builders._parts import training_split, with_training
from saliency_bench.hub_builders._source import base_of, drawn, lines, listed_file, needed, part, picture_of

VERSION = "2"
TITLE = "Food-101, 30 classes"
ANNOTATORS = ("found",)
SOURCES = ("extended|other-food-101",)
PAPER = CROWDSOURCING
LICENSE = "other"
TERMS = ("food-101-scientific-fair-use", "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/")
REDISTRIBUTE = False
PAPER_COUNTS = {"test": 300}
CITATION = """@inproceedings{bossard2014food,
  title = {{Food-101}: Mining Discriminative Components with Random Forests},
  author = {Bossard, Lukas and Guillaumin, Matthieu and Van Gool, Luc},
  booktitle = {European Conference on Computer Vision},
  year = {2014}
}"""
RULE = """`test` contains `per_class` images of each of 30 dishes, drawn from the source's test list. `train` and
`validation` (split by a hash, 85 to 15) contain `train_per_class` images of each dish from the source's training list.
The paper uses the 30 most common dishes without naming them, so this project defines its own list. There are no
masks."""

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
    """Return the columns of the dataset."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=CLASSES)}


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    per_class: int = 10,
    parts: str = "all",
    train_per_class: int = 0,
    seed: int = 0,
) -> Iterator[Job]:
    """Yield one job per drawn image, evaluation images first, ordered by class and name.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        per_class: number of evaluation images per class; 0 for all.
        parts: all, or test to leave out the training images.
        train_per_class: number of training images per class; 0 for all 750.
        seed: seed for drawing images and for the split into train and validation.
    """
    if per_class < 0 or train_per_class < 0:
        raise UserError(
            f"food-101: per_class and train_per_class must be 0 or more; got {per_class} and {train_per_class}"
        )
    splits = {"test": per_class} | ({"train": train_per_class} if with_training("food-101", parts) else {})
    root = base_of(needed(source, "food-101", HOME), "images", "meta")
    part(root, "images/", HOME)
    known: dict[str, str] = {}
    for split in splits:
        for number, words in lines(part(root, f"meta/{split}.txt", HOME)):
            if words[0] in known:
                log.remark(words[0], f"{split}.txt line {number}: the image is listed twice; the first entry is used")
            known.setdefault(words[0], split)
    names: dict[tuple[str, str], list[str]] = {(split, label): [] for split in splits for label in CLASSES}
    for name, split in known.items():
        if (key := (split, name.partition("/")[0])) in names:
            names[key].append(name)
    if missing := [f"{label} ({split}.txt)" for split, label in names if not names[split, label]]:
        raise UserError(
            f"{root}/meta lists no image for {', '.join(missing[:3])}; download the source again and unpack it: {HOME}"
        )
    chosen = [(key, name) for key, listed in names.items() for name in sorted(drawn(seed, listed, splits[key[0]]))]
    log.expected = len(chosen)
    for (listed, label), name in chosen:
        split = "test" if listed == "test" else training_split(seed, name)
        if path := listed_file(log, name, root / "images", f"{name}.jpg"):
            yield Job(sample_of, name, path, label, listed, split)


def sample_of(log: BuildLog, name: str, path: Path, label: str, listed: str, split: str) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, name, path)
    further = {"label": label, "source_split": listed, "split": split}
    return picture and {"image_id": name, "image": picture} | further


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    for split, first in (("test", 1000), ("train", 2000)):
        names = [f"{label}/{first + place}" for place, label in enumerate(CLASSES)]
        for index, name in enumerate(names):
            _examples.picture(folder / f"food-101/images/{name}.jpg", index + first // 100, side)
        _examples.text(folder / f"food-101/meta/{split}.txt", "\n".join(names) + "\n")
