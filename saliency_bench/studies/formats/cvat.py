"""The format "CVAT for images 1.1": PERSON/annotations.xml, with one mask element per image.

A mask is stored as a box [left, left + width) x [top, top + height) and the run lengths of its pixels, row by row,
starting with zeros. Polygons, boxes and ellipses, rotated or not, can be read too. CVAT also lists images without
annotations, so the answer "no region" is marked with `no_region="1"`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.studies.formats.regions import (
    PersonMask,
    PersonRegions,
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
from saliency_bench.utils.outlines import box, ellipse, polygon
from saliency_bench.utils.xml_text import ERRORS, parse_xml

FILE = "annotations.xml"
LARGEST = 2**28  # maximum size of a file in bytes
WITHOUT_AREA = ("points", "polyline", "skeleton")
ABOUT = ("tag", "attribute")  # elements of an image that are not shapes


def check(drawn: Sequence[PersonMask]) -> None:
    """Raise UserError if a person's name is not valid as a folder name."""
    for person in {entry.person for entry in drawn}:
        folder_name(person)


def write(out: Path, drawn: Sequence[PersonMask]) -> None:
    """Write one file per person."""
    for person in dict.fromkeys(entry.person for entry in drawn):
        root = ElementTree.Element("annotations")
        ElementTree.SubElement(root, "version").text = "1.1"
        for number, entry in enumerate(drawn):
            if entry.person == person:
                _add(root, number, entry)
        folder = out / folder_name(person)
        folder.mkdir()
        ElementTree.ElementTree(root).write(folder / FILE, encoding="utf-8", xml_declaration=True)


def _add(root: ElementTree.Element, number: int, entry: PersonMask) -> None:
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


def read(path: Path, person: str, selection: PersonRegions | None = None) -> dict[str, np.ndarray]:
    """Read {unit: mask} from a file in the format "CVAT for images"."""
    try:
        folders = [region.parent for region in path.glob(f"*/{FILE}")]
        if folders and not (path / FILE).is_file():
            path = folder_of(path, folders, person)
        path = file_in(path, FILE)
        root = parse_xml(read_bytes(path, LARGEST))
        regions = [region for number, image in enumerate(root.iter("image")) for region in _regions(image, number)]
    except UserError:
        raise
    except (OSError, KeyError, *ERRORS) as error:
        raise UserError(
            f"{path} cannot be read in the format CVAT for images 1.1 ({one_line(error)}); export the annotations again"
        ) from None
    if root.find("track") is not None:
        raise UserError(f"{path} contains the tracks of a video; export the annotations as CVAT for images 1.1")
    return masks_of(regions, person, path, selection)


def _regions(image: Any, number: int) -> Iterator[Region]:
    name = image.attrib["name"]
    for element in image:
        kind, label = element.tag, element.attrib.get("label")
        if kind in ABOUT:
            yield Region("", name, why=kind, is_region=False)
        elif kind in WITHOUT_AREA:
            yield Region("", name, why=f"of type {kind}, which has no area")
        else:
            labels = (label,) if label else ()
            yield Region("", name, partial(_mask, element, image.attrib), labels=labels, annotation=(number,))
    if image.attrib.get("no_region") == "1":
        yield Region("", name, partial(np.zeros, _size(image.attrib), bool), annotation=(number,), is_region=False)


def _size(image: Any) -> tuple[int, int]:
    return check_size(int(image["height"]), int(image["width"]))


def _mask(element: Any, image: Any) -> np.ndarray:
    kind, about = element.tag, element.attrib
    try:
        height, width = _size(image)
        if kind == "mask":
            return _runs(about, height, width)
        angle = float(about.get("rotation") or 0)
        if kind == "polygon":
            pairs = [pair.split(",") for pair in about["points"].split(";")]
            return polygon([(float(x), float(y)) for x, y in pairs], height, width)
        if kind == "box":
            left, top, right, bottom = (float(about[name]) for name in ("xtl", "ytl", "xbr", "ybr"))
            return polygon(box(left, top, right - left, bottom - top, angle), height, width)
        if kind == "ellipse":
            x, y, *radii = (float(about[name]) for name in ("cx", "cy", "rx", "ry"))
            return ellipse((x, y), (radii[0], radii[1]), angle, height, width)
    except UserError:
        raise
    except (ValueError, KeyError) as error:
        raise UserError(f"a {kind} is damaged ({one_line(error)}); export the annotations again") from None
    raise UserError(f"a region of type {kind} cannot be drawn; use mask, polygon, box or ellipse")


def _runs(about: Any, height: int, width: int) -> np.ndarray:
    left, top, wide, high = (int(about[name]) for name in ("left", "top", "width", "height"))
    if left < 0 or top < 0 or wide < 1 or high < 1 or left + wide > width or top + high > height:
        raise UserError("a mask is outside the image; export the annotations again")
    mask = np.zeros((height, width), bool)
    mask[top : top + high, left : left + wide] = mask_of([int(run) for run in about["rle"].split(",")], high, wide)
    return mask
