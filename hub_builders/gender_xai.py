"""COCO images of one person whom the captions call a man or a woman, with hand-drawn masks.

Source: one of the following.

- MS COCO (cocodataset.org, for example "2017 Train images" and "2017 Train/Val annotations"; annotations CC BY 4.0,
  each image under its own Flickr licence) as downloaded and unpacked: `annotations/captions_SPLIT.json`,
  `annotations/instances_SPLIT.json` and the images in `SPLIT/`, for one or more of the splits train2017, val2017,
  train2014, val2014. They may be inside a folder `coco/`. Few images meet the conditions, so 5,000 images require
  train2017. The optional folder `masks/` contains hand-drawn masks, `ID.png` or `ANNOTATOR/ID.png` (ID: 12 digits), of
  the same size as the image, with 0 outside the person.
- The published Saliency-Bench release (Google Drive): `image/{man,woman}/*.jpg` (or `men`, `women`) and
  `attention_label/*.csv` with the columns `img_idx` and `attention` (a JSON array of 224 x 224 numbers).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _annotators, _coco, _examples, _release
from saliency_bench.hub_builders._papers import SALIENCY_BENCH
from saliency_bench.hub_builders._source import drawn, listed_file, mask_or_none, needed, picture_of
from saliency_bench.utils.pictures import UnreadableError

VERSION = "2"
TITLE = "Gender-XAI"
ANNOTATORS = ("crowdsourced",)
SOURCES = ("extended|other-coco",)
PAPER = SALIENCY_BENCH
LICENSE = "other"
TERMS = _coco.TERMS
REDISTRIBUTE = False
PRIVATE = ("annotations",)
EXAMPLE = {"min_area": 0.0, "outline": True}
PAPER_COUNTS = {"samples": 5000, "masks": 3454, "label": {"man": 2500, "woman": 2500}}
CITATION = _coco.CITATION
RULE = """The label is "man" or "woman", whichever the captions of an image contain as a whole word, in upper or lower
case. No caption may contain the other word or a plural. The annotations must contain exactly one person and no crowd,
and this person must cover at least `min_area` of the image. From the images that meet these conditions, `per_class`
images are drawn per class. The mask was drawn by annotators and comes from `masks/` or from the study passed as
`annotations`. Without a drawn mask, the sample has no mask. With the option `outline`, the outline of the person in
COCO replaces a missing mask, although it was not drawn as an explanation. `mask_source` names the source of the mask,
so that scores of the two types are not mixed. Images, labels and masks of the published release are used unchanged."""

CLASSES = ["man", "woman"]
ALIASES = {"man": "man", "men": "man", "male": "man", "woman": "woman", "women": "woman", "female": "woman"}
WORD = re.compile(
    r"(?<![\w-])(man|men|woman|women)(?![\w-])", re.IGNORECASE
)  # matches man's, but neither fireman nor man-made
LABEL_OF = {"man": "man", "men": "man", "woman": "woman", "women": "woman"}
ORIGINS = ["annotators", "outline"]


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=CLASSES), "mask_source": ClassLabel(names=ORIGINS)}


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    min_area: float = 0.02,
    per_class: int = 2500,
    outline: bool = False,
    annotations: str = "",
    seed: int = 0,
) -> Iterator[Job]:
    """Yield one job per drawn image, ordered by image id.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        min_area: minimum fraction of the image that the person must cover.
        per_class: number of images per class; 0 for all.
        outline: if no annotator drew a mask, use COCO's outline of the person; `mask_source` is then "outline".
        annotations: store of an annotation study (study.db or a PostgreSQL URL) to use instead of `masks/`.
        seed: seed for drawing images.
    """
    if not 0 <= min_area < 1 or per_class < 0:
        raise UserError(
            "gender-xai: min_area must be at least 0 and less than 1, and per_class must be 0 or more; "
            f"got {min_area} and {per_class}"
        )
    root = needed(source, "gender-xai", f"{_coco.HOME}, or {_release.HOME}")
    if release := _release.root_in(root):
        for job in _release.jobs(release, log, ALIASES):
            yield Job(of_release, *job.args)
        return
    root = _coco.root_of(root, "gender-xai")
    chosen = candidates(root, min_area, log)
    keep = {
        label: drawn(seed, [name_of for name_of in chosen if chosen[name_of][1] == label], per_class)
        for label in CLASSES
    }
    masks = _annotators.drawn_masks(root, annotations)
    names = sorted(keep["man"] | keep["woman"])
    for label in CLASSES:
        if surplus := sum(kind == label for _, kind, _ in chosen.values()) - len(keep[label]):
            log.remark(label, f"{surplus} other images of this class meet the conditions but were not selected")
    log.expected = len(names)
    for name in names:
        entry, label, person = chosen[name]
        if path := listed_file(log, name, root / entry.split, entry.file_name):
            stand_in = person.get("segmentation") if outline else None
            masks_of_image = masks.get(name, _annotators.NOTHING)
            yield Job(sample_of, name, path, entry.split, label, masks_of_image, entry.frame, stand_in)


def candidates(root: Path, min_area: float, log: BuildLog) -> dict[str, tuple[_coco.CocoEntry, str, dict]]:
    """Return {image id: (entry, label, annotation of the person)} for images that meet the dataset's conditions."""
    chosen_images: dict[str, tuple[_coco.CocoEntry, str, dict]] = {}
    seen: set[str] = set()
    for split in _coco.splits_of(root, ("captions", "instances")):
        entries, names = _coco.entries_of(root, split, True, log)
        person = _coco.category(names, "person")
        for key, entry in entries.items():
            name, words = f"{key:012d}", words_of(entry.captions)
            if not words or name in seen:
                continue
            seen.add(name)
            people = entry.of_category(person)
            if reason := unfit(words, people, min_area * entry.size):
                log.leave_out(name, "image", reason)
            else:
                chosen_images[name] = (entry, LABEL_OF[words.pop()], people[0])
    return chosen_images


def words_of(captions: list[str]) -> set[str]:
    """Return the words in the captions that determine the label: man, men, woman or women, in lower case."""
    return {word.lower() for caption in captions for word in WORD.findall(caption)}


def unfit(words: set[str], people: list[dict], least: float) -> str | None:
    """Return the reason for leaving an image out, or None if it is kept."""
    if len({LABEL_OF[word] for word in words}) > 1:
        return "the captions mention a man and a woman"
    if words & {"men", "women"} or len(people) > 1 or any(person.get("iscrowd") for person in people):
        return "several people"
    if not people:
        return "no person is annotated"
    return "the person is too small" if _coco.area_of(people[0]) < least else None


def sample_of(
    log: BuildLog,
    name: str,
    path: Path,
    split: str,
    label: str,
    masks: _annotators.MaskFiles,
    frame: tuple[int, int],
    outline: Any,
) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out.

    Args:
        log: Build log, which records the reason.
        name: Name of the image.
        path: Path of the image.
        split: Split of the source.
        label: Label of the sample.
        masks: Hand-drawn masks.
        frame: Size of the image that the outline refers to.
        outline: COCO's segmentation of the person, or None.
    """
    picture = picture_of(log, name, path)
    if picture is None:
        return None

    def mask() -> np.ndarray:
        if masks.paths or masks.empty:
            return _annotators.consensus(masks, picture)
        if outline is None:
            raise UnreadableError("no mask was drawn")
        return _coco.shown_mask([outline], frame, picture)

    person_mask = mask_or_none(log, name, mask)
    origin = None if person_mask is None else ORIGINS[not (masks.paths or masks.empty)]
    return {
        "image_id": name,
        "image": picture,
        "label": label,
        "mask": person_mask,
        "mask_source": origin,
        "source_split": split,
    }


def of_release(log: BuildLog, path: Path, label: str, place: _release.Location | None) -> dict | None:
    """Return the sample of an image in the published release, or log the reason and return None if it is left out."""
    sample = _release.sample_of(log, path, label, place)
    return sample and sample | {"mask_source": None if sample["mask"] is None else ORIGINS[0]}


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    _coco.example(folder, count, side)
    _examples.save(folder / "masks/000000000001.png", _examples.drawn(16, side)["mask"].astype(np.uint8) * 255)


def example_release(folder: Path, count: int, side: int) -> None:
    """Write an example source in the layout of the Saliency-Bench release."""
    _release.example(folder, count, side, ("men", "women"))
