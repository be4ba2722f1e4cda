"""CVAT for images 1.1: PERSON/annotations.xml, with a mask element for each image.

A mask is the box [left, left + width) x [top, top + height) with its run lengths, row by row, zeros first. CVAT
lists images that nobody has annotated, too; one without a region has `no_region="1"`. Needs defusedxml to read.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.registry import install_hint
from saliency_bench.studies.formats.regions import (
    Drawn,
    Region,
    box_of,
    check_size,
    file_in,
    folder_name,
    folder_of,
    masks_of,
)
from saliency_bench.studies.runs import mask_of, runs_of
from saliency_bench.utils.files import read_bytes

FILE = "annotations.xml"
LARGEST = 2**28  # bytes


def check(drawn: Sequence[Drawn]) -> None:
    """Raise UserError for a person whose name is no folder."""
    for person in {entry.person for entry in drawn}:
        folder_name(person)


def write(out: Path, drawn: Sequence[Drawn]) -> None:
    """Write a file of each person."""
    for person in dict.fromkeys(entry.person for entry in drawn):
        root = ElementTree.Element("annotations")
        ElementTree.SubElement(root, "version").text = "1.1"
        for number, entry in enumerate(drawn):
            if entry.person == person:
                _add(root, number, entry)
        folder = out / folder_name(person)
        folder.mkdir()
        ElementTree.ElementTree(root).write(folder / FILE, encoding="utf-8", xml_declaration=True)


def _add(root: ElementTree.Element, number: int, entry: Drawn) -> None:
    """Add an image with its mask."""
    rows, columns = entry.mask.shape
    about = {"id": str(number), "name": entry.image_id, "width": str(columns), "height": str(rows)}
    image = ElementTree.SubElement(root, "image", about)
    if not entry.mask.any():
        image.set("no_region", "1")
        return
    left, top, width, height = box_of(entry.mask)
    box = {"left": left, "top": top, "width": width, "height": height}
    about = {"label": entry.label, "source": "manual", "occluded": "0", "z_order": "0"}
    runs = ", ".join(map(str, runs_of(entry.mask[top : top + height, left : left + width])))
    ElementTree.SubElement(image, "mask", about | {"rle": runs} | {name: str(value) for name, value in box.items()})


def read(path: Path, person: str) -> dict[str, np.ndarray]:
    """Return {name of the image: mask}; of several masks of an image, all together."""
    try:
        from defusedxml.ElementTree import fromstring
    except ModuleNotFoundError as error:
        raise UserError(f"XML is read with defusedxml: {install_hint('builders')}") from error
    try:
        folders = [region.parent for region in path.glob(f"*/{FILE}")]
        if folders and not (path / FILE).is_file():
            path = folder_of(path, folders, person)
        path = file_in(path, FILE)
        root = fromstring(read_bytes(path, LARGEST))
        return masks_of((region for image in root.iter("image") for region in _regions(image)), person, path)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, SyntaxError) as error:
        raise UserError(f"{path} cannot be read as CVAT for images 1.1 ({one_line(error)}); export it again") from None


def _regions(image: Any) -> Iterator[Region]:
    """Yield the masks of an image."""
    name, size = image.attrib["name"], check_size(int(image.attrib["height"]), int(image.attrib["width"]))
    for element in image.iter("mask"):
        yield Region("", name, partial(_mask, element.attrib, *size))
    if image.attrib.get("no_region") == "1":
        yield Region("", name, partial(np.zeros, size, bool))


def _mask(attributes: Any, height: int, width: int) -> np.ndarray:
    """Return the mask of an element."""
    left, top, wide, high = (int(attributes[name]) for name in ("left", "top", "width", "height"))
    if left < 0 or top < 0 or wide < 1 or high < 1 or left + wide > width or top + high > height:
        raise UserError("a mask lies outside of its image; export the annotations again")
    mask = np.zeros((height, width), bool)
    mask[top : top + high, left : left + wide] = mask_of([int(run) for run in attributes["rle"].split(",")], high, wide)
    return mask
