"""COCO format: `annotations.json` and `consensus.json`, with uncompressed run lengths, which are lossless.

An annotation is a person's entire mask of an image. It has `iscrowd` 1, which indicates run lengths, and an additional
`person` field. COCO has no empty masks, so each image has a `no_region` field, which lists the people who answered that
the image has no region. Reading polygons requires pycocotools.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.registry import install_hint
from saliency_bench.studies.formats.regions import (
    PersonMask,
    PersonRegions,
    Region,
    box_of,
    check_size,
    file_in,
    masks_of,
)
from saliency_bench.studies.runs import mask_of, runs_of
from saliency_bench.utils.files import parse_json, read_bytes
from saliency_bench.utils.outlines import parts_of

LARGEST = 2**30  # maximum size of a file in bytes


def check(drawn: Sequence[PersonMask]) -> None:
    """Accept all names, because COCO can store any name."""


def write(out: Path, drawn: Sequence[PersonMask]) -> None:
    """Write annotations.json with all masks, and consensus.json with only the consensus masks."""
    consensus = [entry for entry in drawn if entry.votes is not None]
    for name, entries in (("annotations", drawn), ("consensus", consensus)):
        (out / f"{name}.json").write_text(json.dumps(_content(entries)), encoding="utf-8")


def _content(drawn: Sequence[PersonMask]) -> dict[str, Any]:
    labels = sorted({entry.label for entry in drawn})
    images = {entry.image_id: entry.mask.shape for entry in drawn}
    numbers = {image_id: number for number, image_id in enumerate(images, 1)}
    empty: dict[str, list[str]] = {}
    for entry in drawn:
        if not entry.mask.any():
            empty.setdefault(entry.image_id, []).append(entry.person)
    marked = [entry for entry in drawn if entry.mask.any()]
    return {
        "images": [
            {"id": numbers[key], "file_name": key, "height": height, "width": width}
            | ({"no_region": empty[key]} if key in empty else {})
            for key, (height, width) in images.items()
        ],
        "categories": [{"id": number, "name": label} for number, label in enumerate(labels, 1)],
        "annotations": [
            _annotation(number, numbers[entry.image_id], labels.index(entry.label) + 1, entry)
            for number, entry in enumerate(marked, 1)
        ],
    }


def _annotation(number: int, image: int, category: int, entry: PersonMask) -> dict[str, Any]:
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "iscrowd": 1,
        "area": int(entry.mask.sum()),
        "bbox": list(box_of(entry.mask)),
        "segmentation": {"size": list(entry.mask.shape), "counts": runs_of(entry.mask.T)},  # column by column
        "person": entry.person,
    }


def read(path: Path, person: str, selection: PersonRegions | None = None) -> dict[str, np.ndarray]:
    """Read {unit: mask} from a file. Ids in the file can be numbers or strings."""
    path = file_in(path, "annotations.json")
    try:
        content = parse_json(read_bytes(path, LARGEST))
        listed = {str(image["id"]): (number, image) for number, image in enumerate(content["images"])}
        names = {str(kind["id"]): str(kind["name"]) for kind in content.get("categories") or []}
        regions = [_region(*listed[str(item["image_id"])], item, names) for item in content["annotations"]]
        regions += [empty for number, image in listed.values() for empty in _empty(number, image)]
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read as COCO annotations ({one_line(error)}); export the annotations again"
        ) from None
    return masks_of(regions, person, path, selection)


def _region(number: int, image: dict[str, Any], annotation: dict[str, Any], names: dict[str, str]) -> Region:
    person, name = str(annotation.get("person") or ""), str(image["file_name"])
    outline, label = annotation.get("segmentation"), names.get(str(annotation.get("category_id")))
    if not outline and "keypoints" in annotation:
        return Region(person, name, why="of type keypoints, which has no area")
    labels = (label,) if label else ()
    return Region(person, name, partial(_mask, outline, image), labels=labels, annotation=(number,))


def _empty(number: int, image: dict[str, Any]) -> Iterator[Region]:
    for person in image.get("no_region") or []:
        size = check_size(image["height"], image["width"])
        empty = partial(np.zeros, size, bool)
        yield Region(str(person), str(image["file_name"]), empty, annotation=(number,), is_region=False)


def _mask(outline: Any, image: dict[str, Any]) -> np.ndarray:
    height, width = check_size(image.get("height"), image.get("width"))
    parts = parts_of(outline)
    if not parts:
        raise UserError("a region has no outline; export outlines or masks, not boxes")
    masks = [_runs(part, height, width) for part in parts if isinstance(part, dict)]
    flat = [part for part in parts if not isinstance(part, dict)]
    try:
        return np.any([*masks, *([_pycocotools().decode(_outlines(flat, height, width))] if flat else [])], axis=0)
    except UserError:
        raise
    except Exception as error:  # the library raises many types of errors
        raise UserError(f"an outline is damaged ({one_line(error)}); export the annotations again") from None


def _outlines(parts: list[Any], height: int, width: int) -> Any:
    for part in parts:
        if not isinstance(part, list) or len(part) < 6 or len(part) % 2:
            raise UserError("an outline is not a list of at least three points; export the annotations again")
        if not (np.abs(part) <= 2 * max(height, width)).all():  # also true for NaN
            raise UserError("an outline has points far outside the image; export the annotations again")
    coco = _pycocotools()
    return coco.merge(coco.frPyObjects(parts, height, width))


def _runs(segmentation: dict[str, Any], height: int, width: int) -> np.ndarray:
    counts: Any = segmentation.get("counts")
    if not isinstance(counts, list) and segmentation.get("size") != [height, width]:
        raise UserError("a region does not have the same size as the image; export the annotations again")
    counts = _counts(counts) if isinstance(counts, str) else counts
    return np.ascontiguousarray(mask_of(counts, width, height).T)


def _counts(text: str) -> list[int]:
    """Decode compressed run lengths. pycocotools is not used, because it accepts damaged run lengths.

    Each digit contains 5 bits of a number, lowest bits first. A sixth bit is set if more digits follow. From the fourth
    number on, each number is stored as its difference from the number two positions before.
    """
    counts: list[int] = []
    number = shift = 0
    for digit in (ord(sign) - 48 for sign in text):
        if not 0 <= digit < 64 or shift > 60:
            raise UserError("the run lengths of a region are damaged; export the annotations again")
        number, shift = number | (digit & 31) << shift, shift + 5
        if not digit & 32:
            number -= (digit & 16) << (shift - 4)
            counts.append(number + (counts[-2] if len(counts) > 2 else 0))
            number = shift = 0
    return counts


def _pycocotools() -> Any:
    try:
        from pycocotools import mask as coco
    except ModuleNotFoundError as error:
        raise UserError(f"polygons need pycocotools: {install_hint('builders')}") from error
    return coco
