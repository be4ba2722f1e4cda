"""COCO: `annotations.json` and `consensus.json`, with uncompressed run lengths, so that every pixel is kept.

An annotation is a person's whole mask of an image, `iscrowd` 1 (the mark of run lengths), its `person` beside it. COCO
has no empty masks; `no_region` of an image lists the people who say that it has no region. Needs pycocotools to read
compressed run lengths and polygons.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.registry import install_hint
from saliency_bench.studies.formats.regions import Drawn, Region, box_of, check_size, file_in, masks_of
from saliency_bench.studies.runs import mask_of, runs_of
from saliency_bench.utils.files import parse_json, read_bytes

LARGEST = 2**30  # bytes


def check(drawn: Sequence[Drawn]) -> None:
    """Accept everything: every name can be written."""


def write(out: Path, drawn: Sequence[Drawn]) -> None:
    """Write annotations.json of all, and consensus.json of the consensus alone, which other programs take as masks."""
    consensus = [entry for entry in drawn if entry.votes is not None]
    for name, entries in (("annotations", drawn), ("consensus", consensus)):
        (out / f"{name}.json").write_text(json.dumps(_content(entries)), encoding="utf-8")


def _content(drawn: Sequence[Drawn]) -> dict[str, Any]:
    """Return masks as the content of a file."""
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


def _annotation(number: int, image: int, category: int, entry: Drawn) -> dict[str, Any]:
    """Return a mask as an annotation."""
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


def read(path: Path, person: str) -> dict[str, np.ndarray]:
    """Return {file name without ending: mask}; of several annotations of an image, all together."""
    path = file_in(path, "annotations.json")
    try:
        content = parse_json(read_bytes(path, LARGEST))
        images = {annotation["id"]: annotation for annotation in content["images"]}
        regions = [_region(images[annotation["image_id"]], annotation) for annotation in content["annotations"]]
        return masks_of(
            regions + [annotation for image in content["images"] for annotation in _empty(image)], person, path
        )
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read as COCO annotations ({one_line(error)}); export them again") from None


def _region(image: dict[str, Any], annotation: dict[str, Any]) -> Region:
    """Return an annotation as a region."""
    size = check_size(image["height"], image["width"])
    return Region(
        str(annotation.get("person") or ""), str(image["file_name"]), partial(_mask, annotation["segmentation"], *size)
    )


def _empty(image: dict[str, Any]) -> Iterator[Region]:
    """Yield an empty region of everybody who found no region on an image."""
    for person in image.get("no_region") or []:
        size = check_size(image["height"], image["width"])
        yield Region(str(person), str(image["file_name"]), partial(np.zeros, size, bool))


def _mask(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Return the mask of a segmentation."""
    if isinstance(segmentation, dict) and isinstance(segmentation.get("counts"), list):
        return np.ascontiguousarray(mask_of(segmentation["counts"], width, height).T)
    try:
        from pycocotools import mask as coco
    except ModuleNotFoundError as error:
        raise UserError(f"compressed run lengths and polygons need pycocotools: {install_hint('builders')}") from error
    if isinstance(segmentation, dict):
        if segmentation.get("size") != [height, width]:
            raise UserError("a region has another size than its image; export the annotations again")
        return coco.decode(segmentation).astype(bool)
    return coco.decode(coco.merge(coco.frPyObjects(segmentation, height, width))).astype(bool)
