"""Decide whether outlines refer to the image file as stored, or to the upright image that EXIF describes.

Annotation programs record a size, but not which of the two versions the size refers to. For a photograph in portrait
format, CVAT records the upright size, and its outlines refer to the upright image. Other programs (labelme2coco,
supervision, boxes in Label Studio) record the size of the file, although their outlines refer to the upright image. In
programs without EXIF support, both the size and the outlines refer to the file as stored.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from saliency_bench.hub_builders import _coco, _own
from saliency_bench.utils.outlines import parts_of
from saliency_bench.utils.pictures import Picture, UnreadableError, turned

LABEL_STUDIO = "Label Studio"  # `contributor` in exports from Label Studio; objects in them also have a key `ignore`
SLACK = 0.01  # points may be outside the image by this fraction of its side, plus one pixel
UNCLEAR = ("EXIF rotates the image, and its outlines fit both the image as stored and the upright image; choose one "
           "with --stored or --upright")  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """An annotated object: the parts of its outline, its box, and whether it has keypoints."""

    parts: list[Any]
    box: Any = None
    keypoints: bool = False

    @classmethod
    def of_object(cls, outline: Any, box: Any, keypoints: bool) -> "Shape":
        """Create the shape of an object from its `segmentation` and `bbox`."""
        return cls(parts_of(outline), box, keypoints)


@dataclass(frozen=True)
class Frame:
    """The version of an image that outlines refer to: the file as stored, or the upright image.

    Attributes:
        size: Height and width of this version.
        turn: EXIF orientation that turns masks drawn on this version upright.
        scale: Factors (x, y) that multiply the points of outlines.
    """

    size: tuple[int, int]
    turn: int
    scale: tuple[float, float] = (1.0, 1.0)


def frame_of(picture: Picture, stated: tuple[int, int], shapes: list[Shape], choice: str, studio: bool) -> Frame:
    """Return the `Frame` that all outlines of an image refer to.

    The frame is known if a point lies inside only one of the two frames, or if the outlines include run lengths, which
    state their size. If neither determines the frame, the user has to choose. Outlines from Label Studio refer to the
    upright image.

    Args:
        picture: Annotated image.
        stated: Height and width in the annotation file, or (0, 0) if the file contains no size.
        shapes: All shapes on the image.
        choice: The user's choice: "upright", "stored" or "".
        studio: Whether Label Studio wrote the file. If Label Studio records the size of the image as stored, it scales
            outlines (but not boxes) from the upright image to that size.

    Raises:
        UnreadableError: The size fits neither frame, or both frames fit and the user has not chosen.
    """
    stored, upright = Frame(picture.stored, picture.orientation), Frame((picture.height, picture.width), 1)
    if all(stated) and stated not in (stored.size, upright.size):
        raise UnreadableError("the annotations and the image differ in size")
    parts = [part for shape in shapes for part in shape.parts]
    runs = {tuple(part["size"]) for part in parts if isinstance(part, dict) and isinstance(part.get("size"), list)}
    most = 2 * max(picture.stored)  # outlines with points beyond this limit cannot be drawn and are ignored
    outlines = [part for part in parts if _is_flat(part) and all(abs(value) <= most for value in part)]
    boxes = [_corners(shape.box) for shape in shapes if not shape.parts and _is_flat(shape.box)]
    if picture.orientation == 1 or not (runs or outlines or boxes):
        return upright if picture.orientation == 1 else stored
    possible = [stored, upright] if stated == stored.size or not all(stated) else [upright]
    if stored.size != upright.size and runs:
        possible = [frame for frame in possible if frame.size in runs] or possible
    stretched = studio and stated == stored.size and _fits(outlines, stored)
    fitting = [frame for frame in possible if _fits(boxes if stretched else outlines + boxes, frame)] or possible
    choice = choice or ("upright" if studio else "")
    if len(fitting) > 1 and not choice:
        raise UnreadableError(UNCLEAR)
    frame = fitting[0] if len(fitting) == 1 else {"stored": stored, "upright": upright}[choice]
    if frame is stored or not stretched:
        return frame
    return replace(upright, scale=(upright.size[1] / stored.size[1], upright.size[0] / stored.size[0]))


def _is_flat(part: Any) -> bool:
    """Return whether a part of an outline is a non-empty list of numbers."""
    return isinstance(part, list) and bool(part) and all(type(value) in (int, float) for value in part)


def _corners(box: list[float]) -> list[float]:
    return [box[0] + box[2], box[1] + box[3]] if len(box) == 4 else []


def _fits(outlines: list[list[float]], frame: Frame) -> bool:
    """Return whether no point exceeds the right or lower edge of a frame."""
    height, width = frame.size
    right = max((value for part in outlines for value in part[::2]), default=0)
    low = max((value for part in outlines for value in part[1::2]), default=0)
    return right <= width * (1 + SLACK) + 1 and low <= height * (1 + SLACK) + 1


def union(shapes: list[Shape], frame: Frame, picture: Picture, boxes: bool) -> tuple[np.ndarray, list[str]]:
    """Return the union of objects on the upright image, bool (H, W), and the reasons why parts of outlines are missing.

    Raises:
        UnreadableError: No part can be drawn, or an object has no outline.
    """
    mask = np.zeros((picture.height, picture.width), bool)
    drawn, problems = 0, []
    for shape in shapes:
        if not shape.parts:
            mask |= _boxed(shape, frame, boxes)
            drawn += 1
            continue
        try:  # try all parts at once, because this is faster
            mask |= _draw(shape.parts, frame, picture)
            drawn += 1
        except UnreadableError:
            for part in shape.parts:
                try:
                    mask |= _draw([part], frame, picture)
                    drawn += 1
                except UnreadableError as error:
                    problems.append(str(error))
    if not drawn:
        raise UnreadableError(problems[0])
    return mask, problems


def _boxed(shape: Shape, frame: Frame, boxes: bool) -> np.ndarray:
    """Return the box of an object without an outline as a mask, bool (H, W)."""
    if not boxes:
        lacks = "has keypoints but no outline" if shape.keypoints else "has no outline"
        raise UnreadableError(f"an object {lacks}; pass --boxes to use its box" if shape.box else "an empty outline")
    return turned(_own.boxed(shape.box, *frame.size), frame.turn)


def _draw(parts: list[Any], frame: Frame, picture: Picture) -> np.ndarray:
    """Draw the parts of an outline as a mask on the upright image, bool (H, W).

    If an outline is run-length encoded, its "size" shows which version of the image it refers to.
    """
    if len(parts) == 1 and isinstance(parts[0], dict):
        size = parts[0].get("size")
        frames = (frame, Frame(picture.stored, picture.orientation), Frame((picture.height, picture.width), 1))
        frame = next((other for other in frames if size == list(other.size)), frame)
        return turned(_coco.mask_of(parts[0], *frame.size), frame.turn)
    scaled = [[value * frame.scale[place % 2] for place, value in enumerate(part)] if _is_flat(part) else part
              for part in parts]  # fmt: skip
    return turned(_coco.mask_of(scaled, *frame.size), frame.turn)
