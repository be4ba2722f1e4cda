"""eBAM: objects cut out of COCO and pasted on scenes of Miniplaces or Places365, and each scene without the object.

Source: a folder with both datasets, as downloaded and unpacked.

- MS COCO (cocodataset.org; annotations CC BY 4.0, each image under its own Flickr licence):
  `annotations/instances_SPLIT.json` and the images in `SPLIT/`, for one or more of train2017, val2017, train2014,
  val2014. They may be inside a folder `coco/`.
- Miniplaces (github.com/CSAILVision/miniplaces): `images/train/LETTER/CATEGORY/*.jpg`, or Places365
  (places2.csail.mit.edu): `places365_standard/train/CATEGORY/*.jpg`, `data_256/` or `data_large/`. All images are for
  non-commercial research and education.

A detector selects objects and scenes, and its detections are stored in `detections.jsonl` in the source folder. The
detector needs torchvision's Faster R-CNN weights (160 MB, downloaded once) and, for all of COCO, a GPU or several days.
`--no-detector` keeps every object and scene.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saliency_bench.data.building import split_of
from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _coco, _detector, _examples, _places
from saliency_bench.hub_builders._papers import QUANTITATIVE
from saliency_bench.hub_builders._source import as_spelled, base_with, entries, first_folder, inside, needed, walked
from saliency_bench.utils.pictures import UnreadableError, decode, file_bytes, read, upright
from saliency_bench.utils.seeds import random_bits, seed_of

VERSION = "2"
ALSO_CALLED = ("ebam",)
TITLE = "eBAM-XAI"
ANNOTATORS = ("crowdsourced", "machine-generated")
SOURCES = ("extended|other-coco", "extended|other-places")
PAPER = QUANTITATIVE
LICENSE = "other"
TERMS = ("coco-and-places-terms-of-use", _places.TERMS[1])
REDISTRIBUTE = False
TAGS = ["paired"]
EXAMPLE = {"detector": False, "least": 1, "least_pixels": 1, "per_pair": 2}
PAPER_COUNTS: dict = {"samples": 2646328 + 378830}
GROUP = """the photograph that the object is cut out of (not the scene, although several samples may share a scene)"""
CITATION = f"""@article{{yang2019benchmarking,
  title = {{Benchmarking Attribution Methods with Relative Feature Importance}},
  author = {{Yang, Mengjiao and Kim, Been}},
  journal = {{arXiv:1907.09701}},
  year = {{2019}}
}}
{_coco.CITATION}
{_places.CITATION}"""
RULE = """An object of COCO (not a crowd, with at least `least_pixels` pixels) is scaled so that its longer side is a
third to a half of the scene's side, and pasted at a random position on a scene of 128 x 128 pixels. A cut-out object is
kept if Faster R-CNN classifies it correctly on a black background with a confidence over 0.5. A scene is kept if Faster
R-CNN detects nothing with a confidence over 0.5. An object class is kept if at least `least` cut-outs are left. Each
object class is combined with each scene class `per_pair` times. Each photograph of COCO and each scene belongs to one
split, and only objects and scenes of the same split are combined. `label` is the class of the object, `scene` the class
of the scene, `mask` the pixels of the object, and `image_without_object` the scene without the object."""

HOME = f"{_coco.HOME}, and Miniplaces, github.com/CSAILVision/miniplaces, or {_places.HOME}"
SIDE = 128
SCENES = ("images/train", "places365_standard/train", *_places.TRAIN)


@dataclass(frozen=True)
class Cutout:
    """An object in a COCO image that can be cut out."""

    key: str
    path: Path
    photograph: str
    category: int
    segmentation: Any
    frame: tuple[int, int]


@dataclass(frozen=True)
class Stock:
    """The cut-outs and scenes to combine. Both are grouped by (class, split) and have a fixed order."""

    objects: dict[tuple[str, str], list[Cutout]]
    scenes: dict[tuple[str, str], list[Path]]
    base: Path  # of the scenes

    def classes(self, kind: str) -> list[str]:
        """Return the classes of the objects or of the scenes."""
        return sorted({name for name, _ in (self.objects if kind == "object" else self.scenes)})


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns of the dataset. The classes are the object and scene classes that were not left out."""
    from datasets import ClassLabel, Image, Value

    return {
        "label": ClassLabel(names=classes["label"]),
        "scene": ClassLabel(names=classes["scene"]),
        "image_without_object": Image(),
        "object_id": Value("string"),
        "scene_id": Value("string"),
    }


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    detector: bool = True,
    least: int = 500,
    least_pixels: int = 1024,
    per_pair: int = 20,
    seed: int = 0,
) -> Iterator[Job]:
    """Yield one job per image, ordered by object class, scene class and number.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        detector: keep only objects that Faster R-CNN classifies correctly and scenes in which it detects nothing; needs
            the weights (160 MB) and preferably a GPU.
        least: minimum number of cut-outs per object class; classes with fewer are left out.
        least_pixels: minimum size of an object in pixels; smaller objects are left out.
        per_pair: number of images for each pair of an object class and a scene class.
        seed: seed for drawing pairs, sizes and positions.
    """
    if min(least, least_pixels, per_pair) < 1:
        raise UserError(
            f"ebam-xai: least, least_pixels and per_pair must be at least 1; got {least}, {least_pixels} and {per_pair}"
        )
    stock = stock_of(source, log, detector, least, least_pixels, seed)
    objects, scenes = stock.classes("object"), stock.classes("scene")
    log.expected = len(objects) * len(scenes) * per_pair
    log.classes = {"label": objects, "scene": scenes}
    for label in objects:
        for scene in scenes:
            for number in range(per_pair):
                image_id = f"{label.replace(' ', '-')}+{scene.replace('/', '-')}+{number:04d}"
                split = split_of(seed, image_id)
                cutouts, places = stock.objects.get((label, split)), stock.scenes.get((scene, split))
                if cutouts and places:
                    draw = seed_of(seed, image_id, "pair")
                    cutout = cutouts[draw % len(cutouts)]
                    place = places[draw // len(cutouts) % len(places)]
                    yield Job(sample_of, image_id, label, scene, cutout, place, _name(place, stock.base), seed)
                else:
                    lacking = scene if cutouts else label
                    log.leave_out(image_id, "image", f"the split {split} has no {lacking}")


def stock_of(source: Path | None, log: BuildLog, detector: bool, least: int, least_pixels: int, seed: int) -> Stock:
    """Return the cut-outs and scenes that meet the conditions of the dataset (see `RULE`)."""
    source = base_with(needed(source, "ebam-xai", HOME), *SCENES)
    base = first_folder(source, *SCENES)
    if base is None:
        raise UserError(
            f"{source} has none of the folders {', '.join(f'{name}/' for name in SCENES)}; download the source "
            "again and unpack "
            f"it: {HOME}"
        )
    cutouts = cutouts_of(_coco.root_of(source, "ebam-xai"), least_pixels, log)
    scenes = scenes_of(base)
    if detector:
        cutouts, scenes = detected(source / "detections.jsonl", cutouts, scenes, base, log)
    counts: dict[str, int] = defaultdict(int)
    for _, name in cutouts:
        counts[name] += 1
    for name in sorted(counts):
        if counts[name] < least:
            log.leave_out(f"object class {name}", "image", f"fewer than {least} cut-outs")
    objects: dict[tuple[str, str], list[Cutout]] = defaultdict(list)
    grounds: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for cut, name in cutouts:
        if counts[name] >= least:
            objects[name, split_of(seed, cut.photograph)].append(cut)
    for path, name in scenes:
        grounds[name, split_of(seed, f"scene {_name(path, base)}")].append(path)
    if not objects or not grounds:
        raise UserError(
            f"ebam-xai: no {'scene' if objects else 'object class'} is left after filtering; lower `least` or "
            "`least_pixels`"
        )
    return Stock(dict(objects), dict(grounds), base)


def detected(
    file: Path, cutouts: list[tuple[Cutout, str]], scenes: list[tuple[Path, str]], base: Path, log: BuildLog
) -> tuple[list[tuple[Cutout, str]], list[tuple[Path, str]]]:
    """Return the cut-outs that the detector classifies correctly, and the scenes in which it detects no object."""
    shown = ((cutout.key, partial(on_black, cutout)) for cutout, _ in cutouts)
    named = _detector.seen(file, shown, len(cutouts))
    categories = _detector.seen(file, ((_name(path, base), partial(scene_of, path)) for path, _ in scenes), len(scenes))
    right = [(cutout, name) for cutout, name in cutouts if cutout.category in named.get(cutout.key, ())]
    clean = [(path, name) for path, name in scenes if categories.get(_name(path, base)) == []]
    for key in sorted({cutout.key for cutout, _ in cutouts} - {cutout.key for cutout, _ in right}):
        log.leave_out(key, "image", "the detector does not classify this cut-out correctly")
    for key in sorted({_name(path, base) for path, _ in scenes} - {_name(path, base) for path, _ in clean}):
        log.leave_out(key, "image", "the detector detects an object in this scene, or the scene cannot be read")
    return right, clean


def cutouts_of(root: Path, least_pixels: int, log: BuildLog) -> list[tuple[Cutout, str]]:
    """Return (cut-out, class) for every object that is large enough, ordered by id."""
    by_key: dict[str, tuple[Cutout, str]] = {}
    for split in _coco.splits_of(root, ("instances",)):
        known, names = _coco.entries_of(root, split, False, log)
        for image, entry in known.items():
            for entry_object in entry.objects:
                name, key = names.get(entry_object.get("category_id", -1)), f"coco-{entry_object.get('id')}"
                if entry_object.get("iscrowd") or _coco.area_of(entry_object) < least_pixels or key in by_key:
                    continue
                try:
                    if name is None:
                        raise UnreadableError("its category is not in the list of categories")
                    path, outline = as_spelled(inside(root / split, entry.file_name)), entry_object.get("segmentation")
                    cutout = Cutout(key, path, f"coco {image}", entry_object["category_id"], outline, entry.frame)
                    by_key[key] = (cutout, name)
                except UnreadableError as error:
                    log.leave_out(key, "image", str(error))
    return [by_key[key] for key in sorted(by_key)]


def scenes_of(base: Path) -> list[tuple[Path, str]]:
    """Return (file, category) for every scene.

    The category does not include the parent folder that is named after a letter.
    """
    scenes = []
    for folder in sorted(place for place, _, _ in walked(base) if place != base):
        parts = folder.relative_to(base).parts
        name = "/".join(parts[1:] if len(parts[0]) == 1 else parts)
        scenes += [(path, name) for path in entries(folder) if path.suffix.lower() in (".jpg", ".jpeg") and name]
    return [(path, name) for path, name in scenes if not path.name.startswith(".")]


def _name(path: Path, base: Path) -> str:
    return path.relative_to(base).as_posix()


def cut(cutout: Cutout) -> tuple[np.ndarray, np.ndarray]:
    """Return the image inside the box of an object, uint8 (h, w, 3), and the mask of the object, bool (h, w).

    Raises:
        UnreadableError: The image cannot be read.
    """
    if not cutout.path.is_file():
        raise UnreadableError("no such image file")
    picture = read(cutout.path)
    photograph = np.asarray(decode(picture.data).convert("RGB"))
    mask = _coco.shown_mask([cutout.segmentation], cutout.frame, picture)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        raise UnreadableError("empty mask")
    box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return photograph[box], mask[box]


def on_black(cutout: Cutout) -> np.ndarray | None:
    """Return a cut-out on a black background for the detector, or None if the image cannot be read."""
    try:
        picture, mask = cut(cutout)
    except UnreadableError:
        return None
    return np.pad(picture * mask[..., None], ((16, 16), (16, 16), (0, 0)))


def scene_of(path: Path) -> np.ndarray | None:
    """Return a scene, or None if it cannot be read."""
    try:
        return read_scene(path)
    except UnreadableError:
        return None


def read_scene(path: Path) -> np.ndarray:
    """Return the pixels of a scene.

    Raises:
        UnreadableError: The image cannot be read.
    """
    image = upright(decode(file_bytes(path))).convert("RGB")
    return np.asarray(image if image.size == (SIDE, SIDE) else image.resize((SIDE, SIDE), Image.Resampling.BOX))


def sample_of(
    log: BuildLog, image_id: str, label: str, scene: str, cutout: Cutout, path: Path, scene_id: str, seed: int
) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    try:
        picture, mask = cut(cutout)
        ground = read_scene(path)
    except UnreadableError as error:
        log.leave_out(image_id, "image", f"{cutout.key} on {scene_id}: {error}")
        return None
    image, pasted = paste(picture, mask, ground, seed_of(seed, image_id, "place"))
    if not pasted.any():
        log.leave_out(image_id, "image", f"{cutout.key} covers no pixel of the sample, because it is too thin")
        return None
    return {
        "image_id": image_id,
        "image": image,
        "image_without_object": ground,
        "label": label,
        "scene": scene,
        "mask": pasted,
        "object_id": cutout.key,
        "scene_id": scene_id,
        "group": cutout.photograph,
    }


def paste(picture: np.ndarray, mask: np.ndarray, ground: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Paste an object on a scene, and return the combined image and the mask of the object.

    The object's longer side is a third to a half of the scene's side. Its position in the scene is random.
    """
    shares = [int(bits) / 2**64 for bits in random_bits(seed, 3)]
    side = SIDE / 3 + shares[0] * (SIDE / 2 - SIDE / 3)
    height, width = (max(round(length * side / max(mask.shape)), 1) for length in mask.shape)
    small = np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BOX))
    grey = Image.fromarray(mask.astype(np.uint8) * 255).resize((width, height), Image.Resampling.BOX)
    shape = np.asarray(grey) >= 128
    top, left = int(shares[1] * (SIDE - height + 1)), int(shares[2] * (SIDE - width + 1))
    box = np.s_[top : top + height, left : left + width]
    image, pasted = ground.copy(), np.zeros((SIDE, SIDE), bool)
    image[box][shape], pasted[box] = small[shape], shape
    return image, pasted


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    _coco.example(folder, max(count, 12), side)
    for category in ("a/abbey", "b/beach"):
        for index in range(12):
            scene = Image.fromarray(_examples.drawn(8 * index + (category == "b/beach"), 128)["image_without_object"])
            (folder / "images/train" / category).mkdir(parents=True, exist_ok=True)
            scene.save(folder / f"images/train/{category}/{index:08d}.jpg")
