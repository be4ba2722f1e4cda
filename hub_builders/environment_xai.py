"""Places365: scenes of nature (mountain, pond, waterfall ...) and of towns (house, bridge, street ...).

Source: one of the following.

- Places365-Standard (places2.csail.mit.edu; images for non-commercial research and education) as downloaded and
  unpacked, in any of the three layouts in which it is distributed:
  `places365_standard/{train,val}/CATEGORY/*.jpg` (places365standard_easyformat.tar; "/" in a category is "-"),
  `data_256/` or `data_large/` with `LETTER/CATEGORY/*.jpg` (train_256_ and train_large_places365standard.tar),
  `val_256/` or `val_large/` with `Places365_val_*.jpg`, and the lists `places365_val.txt` and
  `categories_places365.txt` (filelist_places365-standard.tar).
  The optional folder `masks/` contains hand-drawn masks, `ID.png` or `ANNOTATOR/ID.png`, of the same size as the image,
  with 0 outside the object. ID is the `image_id` with "_" instead of "/", such as `train_pond_00000001` or
  `Places365_val_00000001`.
- The published Saliency-Bench release (Google Drive): `image/{nature,urban}/*.jpg` and `attention_label/*.csv` with the
  columns `img_idx` and `attention` (a JSON array of 224 x 224 numbers).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _annotators, _examples, _places, _release
from saliency_bench.hub_builders._papers import SALIENCY_BENCH
from saliency_bench.hub_builders._source import base_with, drawn, mask_or_none, needed, picture_of
from saliency_bench.utils.pictures import UnreadableError

VERSION = "2"
ALSO_CALLED = ("places", "places365")
TITLE = "Environment-XAI"
ANNOTATORS = ("crowdsourced",)
SOURCES = ("extended|other-places365",)
PAPER = SALIENCY_BENCH
LICENSE = "other"
TERMS = _places.TERMS
REDISTRIBUTE = False
PRIVATE = ("annotations",)
PAPER_COUNTS = {"samples": 5000, "masks": 3052}
CITATION = _places.CITATION
RULE = """The images come from twelve categories of Places365, selected by their exact names and assigned to two
classes. `per_class` images of each class are drawn. Annotators drew the masks, which come from `masks/`, from the study
passed as `annotations`, or from the published release. Images without a drawn mask are kept without a mask. `category`
is the category of Places365 (null for the published release), and `source_split` is train or val."""

NATURE = ["mountain", "pond", "waterfall", "field/wild", "forest/broadleaf", "rainforest"]
URBAN = ["house", "bridge", "campus", "tower", "street", "driveway"]
LABEL_OF = dict.fromkeys(NATURE, "nature") | dict.fromkeys(URBAN, "urban")
ALIASES = {"nature": "nature", "natural": "nature", "urban": "urban"}


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=["nature", "urban"]), "category": ClassLabel(names=NATURE + URBAN)}


def samples(
    source: Path | None, log: BuildLog, *, per_class: int = 2500, annotations: str = "", seed: int = 0
) -> Iterator[Job]:
    """Yield one job per drawn image, ordered by image id.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        per_class: number of images per class; 0 for all.
        annotations: store of an annotation study (study.db or a PostgreSQL URL) to use instead of `masks/`.
        seed: seed for drawing images.
    """
    if per_class < 0:
        raise UserError(f"environment-xai: per_class must be 0 or more; got {per_class}")
    root = needed(source, "environment-xai", f"{_places.HOME}, or {_release.HOME}")
    if release := _release.root_in(root):
        yield from _release.jobs(release, log, ALIASES)
        return
    root = base_with(root, *_places.MARKS)
    images = _places.images(root, list(LABEL_OF), log)
    keep: set[str] = set()
    for label in ("nature", "urban"):
        names = [name for name, (_, category, _) in images.items() if LABEL_OF[category] == label]
        keep |= drawn(seed, names, per_class)
        if surplus := len(names) - len(keep & set(names)):
            log.remark(label, f"{surplus} other images of this class were not selected")
    masks = _annotators.drawn_masks(root, annotations)
    log.expected = len(keep)
    for name in sorted(keep):
        yield Job(sample_of, name, *images[name], masks.get(name.replace("/", "_"), _annotators.NOTHING))


def sample_of(
    log: BuildLog, name: str, path: Path, category: str, split: str, masks: _annotators.MaskFiles
) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, name, path)
    if picture is None:
        return None

    def mask():
        if not (masks.paths or masks.empty):
            raise UnreadableError("no mask was drawn")
        return _annotators.consensus(masks, picture)

    return {
        "image_id": name,
        "image": picture,
        "label": LABEL_OF[category],
        "category": category,
        "mask": mask_or_none(log, name, mask),
        "source_split": split,
    }


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    nature = ["m/mountain", "p/pond", "w/waterfall", "f/field/wild", "f/forest/broadleaf", "r/rainforest"]
    twelve = [*nature, "h/house", "b/bridge", "c/campus", "t/tower", "s/street", "d/driveway"]
    for index in range(max(count, 12)):
        mask = _examples.picture(folder / f"data_256/{twelve[index % 12]}/{index:08d}.jpg", index + 32, side)
        name = twelve[index % 12][2:].replace("/", "_")
        _examples.save(folder / f"masks/train_{name}_{index:08d}.png", mask.astype(np.uint8) * 255)


def example_release(folder: Path, count: int, side: int) -> None:
    """Write an example source in the layout of the Saliency-Bench release."""
    _release.example(folder, count, side, ("nature", "urban"))
