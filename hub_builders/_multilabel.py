"""Make samples from images that show objects of several classes: one sample per class, or one per image.

Each sample lists all classes of its image in `labels`. The samples of an image have the same `group`.
"""

from collections.abc import Callable, Iterable

import numpy as np

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError, unknown
from saliency_bench.hub_builders._source import mask_or_none
from saliency_bench.utils.pictures import Picture

GROUP = "the image, which may have several samples"
RULE = """An image with objects of several classes becomes one sample per class, `IMAGE:CLASS`, with the pixels of that
class as the mask. With `classes=image`, an image becomes one sample, `IMAGE`, labelled with the class of the largest
mask. `labels` lists all classes of the image. Images that show a class listed in `drop` are left out."""


def features(names: list[str]) -> dict:
    """Return the columns of a dataset with these classes."""
    from datasets import ClassLabel, List

    return {"label": ClassLabel(names=names), "labels": List(ClassLabel(names=names))}


def dropped(owner: str, classes: str, drop: Iterable[str], known: list[str]) -> list[str]:
    """Return the classes whose images are left out, spelled as in the dataset.

    Raises:
        UserError: `classes` is unknown, or the dataset lacks a class in `drop`.
    """
    if classes not in ("all", "image"):
        raise UserError(
            f"{owner}: classes={classes} is unknown; use 'all' (one sample per class) or 'image' (one sample per image)"
        )
    spelled = {_plain(name): name for name in known}
    for name in drop:
        if _plain(name) not in spelled:
            raise unknown(f"class of {owner}", name, known)
    return [spelled[_plain(name)] for name in drop]


def _plain(name: str) -> str:
    """Return a name in lower case, without spaces and punctuation."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def samples_of(
    log: BuildLog, name: str, picture: Picture, masks: dict[str, Callable[[], np.ndarray]], classes: str
) -> list[dict]:
    """Return the samples of one image.

    Args:
        log: Build log, which records left-out images and masks.
        name: Name of the image.
        picture: Image.
        masks: {class: function that returns its mask}.
        classes: "all" for one sample per class, or "image" for a single sample.
    """
    made = {label: mask_or_none(log, f"{name}:{label}", make) for label, make in masks.items()}
    labels = list(masks)
    if classes == "image":
        sizes = {label: 0 if mask is None else int(mask.sum()) for label, mask in made.items()}
        made = {
            label: made[label] for label in [max(labels, key=sizes.__getitem__)]
        }  # the first one if several masks are equally large
    return [
        {
            "image_id": name if classes == "image" else f"{name}:{label}",
            "image": picture,
            "label": label,
            "labels": labels,
            "mask": mask,
            "group": name,
        }
        for label, mask in made.items()
    ]
