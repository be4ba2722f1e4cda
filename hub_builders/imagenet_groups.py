"""ImageNet validation images with their class and a group of similar classes, for explanations such as "why a car?".

Source: the validation images of ILSVRC 2012 (image-net.org or kaggle.com/c/imagenet-object-localization-challenge; for
non-commercial research and education only), in any layout that imagenet-val reads. Boxes are not needed.

Only the annotations are published, with one row per image and the name of its file. To add the images, pass the folder
of the raw data: load_dataset("imagenet-groups", source=DIR).
"""

from collections.abc import Iterator
from pathlib import Path

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.hub_builders import _imagenet
from saliency_bench.hub_builders._imagenet import classes_of, group_of, images_of, root_of
from saliency_bench.hub_builders._papers import RFXG
from saliency_bench.hub_builders._source import picture_of

VERSION = "1"
ALSO_CALLED = ("imagenet-triplets", "rfxg")
TITLE = "ImageNet groups"
ANNOTATORS = ("crowdsourced", "machine-generated")
SOURCES = ("extended|other-imagenet-1k",)
PAPER = RFXG
LICENSE = "other"
TERMS = ("imagenet-terms-of-access", "https://www.image-net.org/download.php")
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
CITATION = f"""{_imagenet.CITATION}

@article{{elisha2025rethinking,
  title = {{Rethinking Saliency Maps: A Cognitive Human Aligned Taxonomy and Evaluation Framework for Explanations}},
  author = {{Elisha, Yehonatan and Cohen, Seffi and Barkan, Oren and Koenigstein, Noam}},
  year = {{2025}}
}}"""
RULE = """The class comes from the source. The group of a class is the smallest category in WordNet 3.0 that contains
the class and has 5 to 50 classes. If there is no such category, the class is merged with the nearest categories inside
the smallest category of more than 50 classes that contains it, until the group has five classes. A group is named after
its category, or after all its categories if it is merged. `class_group` is the name of the group, `group_wnids` lists
its classes, and `wnid` is the WordNet id of the class. There are no masks."""


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns of the dataset. The classes come from the source."""
    from datasets import ClassLabel, List, Value

    text = Value("string")
    return {"label": ClassLabel(names=classes["label"]), "wnid": text, "class_group": text, "group_wnids": List(text)}


def samples(source: Path | None, log: BuildLog) -> Iterator[Job]:
    """Yield one job per image, ordered by name.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
    """
    root = root_of(source, "imagenet-groups")
    names = classes_of(root)
    log.classes = {"label": list(names.values())}
    images = images_of(root, names, log)
    log.expected = len(images)
    for name in sorted(images):
        path, wnid, _ = images[name]
        yield Job(sample_of, name, path, wnid, names[wnid])


def sample_of(log: BuildLog, name: str, path: Path, wnid: str, label: str) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, name, path)
    group, members = group_of(wnid)
    about = {"label": label, "wnid": wnid, "class_group": group, "group_wnids": members}
    return (
        picture and {"image_id": name, "image": picture, "mask": None, "source_split": "val", "split": "test"} | about
    )


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in Kaggle's layout: `count` samples with images of about `side` x `side` pixels."""
    _imagenet.example(folder, count, side)
