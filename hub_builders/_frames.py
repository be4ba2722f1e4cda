"""Decide whether outlines refer to a picture's file as stored, or to the picture turned upright by EXIF.

Annotation programs state a size, but not which of the two they refer to. For a photograph in portrait, CVAT states the
upright size, and its outlines refer to the upright picture. Others (labelme2coco, supervision, boxes in Label Studio)
state the size of the file, but outlines refer to the upright picture. Tools without EXIF support use the file for both.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from saliency_bench.hub_builders import _coco, _own
from saliency_bench.utils.outlines import parts_of
from saliency_bench.utils.pictures import Picture, UnreadableError, turned

LABEL_STUDIO = "Label Studio"  # `contributor` in its exports; their objects also have `ignore`
SLACK = 0.01  # share of a side, plus one pixel, by which points may lie outside their picture
UNCLEAR = ("EXIF turns the picture, and its outlines fit both the file as stored and the upright picture; give "
           "--upright or --stored")  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """An object in a file: the parts of its outline, its box, and whether it has keypoints."""

    parts: list[Any]
    box: Any = None
    keypoints: bool = False

    @classmethod
    def of_object(cls, outline: Any, box: Any, keypoints: bool) -> "Shape":
        """Return the shape for an object's `segmentation` and `bbox`."""
        return cls(parts_of(outline), box, keypoints)


@dataclass(frozen=True)
class Frame:
    """The version of a picture that outlines refer to.

    Attributes:
        size: its (height, width).
        turn: the EXIF orientation by which masks drawn on it are turned upright.
        scale: factors (x, y) for the points of outlines.
    """

    size: tuple[int, int]
    turn: int
    scale: tuple[float, float] = (1.0, 1.0)


def frame_of(picture: Picture, stated: tuple[int, int], shapes: list[Shape], choice: str, studio: bool) -> Frame:
    """Return the frame of all outlines on a picture.

    Points outside one frame that fit the other decide it, and so does the size of run lengths. If neither does, the
    user has to choose. Label Studio uses the upright picture.

    Args:
        picture: the picture.
        stated: (height, width) in the file of annotations; (0, 0) if it does not state a size.
        shapes: all shapes on the picture.
        choice: the user's choice: "upright", "stored" or "".
        studio: whether Label Studio wrote the file. If it states the size of the file as stored, it stretches outlines,
            but not boxes, from the upright picture to that size.

    Raises:
        UnreadableError: The size fits neither frame, or both frames fit and the user has not chosen.
    """
    stored, upright = Frame(picture.stored, picture.orientation), Frame((picture.height, picture.width), 1)
    if all(stated) and stated not in (stored.size, upright.size):
        raise UnreadableError("annotations of another size than its image")
    parts = [part for shape in shapes for part in shape.parts]
    runs = {tuple(part["size"]) for part in parts if isinstance(part, dict) and isinstance(part.get("size"), list)}
    most = 2 * max(picture.stored)  # an outline with points beyond this cannot be drawn, so it decides nothing
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
    """Return whether a part is a non-empty list of numbers."""
    return isinstance(part, list) and bool(part) and all(type(value) in (int, float) for value in part)


def _corners(box: list[float]) -> list[float]:
    return [box[0] + box[2], box[1] + box[3]] if len(box) == 4 else []


def _fits(outlines: list[list[float]], frame: Frame) -> bool:
    """Return whether no point lies to the right of or below a frame."""
    height, width = frame.size
    right = max((value for part in outlines for value in part[::2]), default=0)
    low = max((value for part in outlines for value in part[1::2]), default=0)
    return right <= width * (1 + SLACK) + 1 and low <= height * (1 + SLACK) + 1


def union(shapes: list[Shape], frame: Frame, picture: Picture, boxes: bool) -> tuple[np.ndarray, list[str]]:
    """Return the union of objects on the upright picture, bool (H, W), and the reasons why parts are missing.

    Raises:
        UnreadableError: Nothing can be drawn, or an object has no outline.
    """
    mask = np.zeros((picture.height, picture.width), bool)
    drawn, problems = 0, []
    for shape in shapes:
        if not shape.parts:
            mask |= _boxed(shape, frame, boxes)
            drawn += 1
            continue
        try:  # drawing all parts at once is faster
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
    """Return bool (H, W): the box of an object without an outline."""
    if not boxes:
        lacks = "with keypoints and without an outline" if shape.keypoints else "without an outline"
        raise UnreadableError(f"an object {lacks}; --boxes uses its box" if shape.box else "an empty outline")
    return turned(_own.boxed(shape.box, *frame.size), frame.turn)


def _draw(parts: list[Any], frame: Frame, picture: Picture) -> np.ndarray:
    """Return bool (H, W): parts of an outline on the upright picture. The size of run lengths selects the frame."""
    if len(parts) == 1 and isinstance(parts[0], dict):
        size = parts[0].get("size")
        frames = (frame, Frame(picture.stored, picture.orientation), Frame((picture.height, picture.width), 1))
        frame = next((other for other in frames if size == list(other.size)), frame)
        return turned(_coco.mask_of(parts[0], *frame.size), frame.turn)
    scaled = [[value * frame.scale[place % 2] for place, value in enumerate(part)] if _is_flat(part) else part
              for part in parts]  # fmt: skip
    return turned(_coco.mask_of(scaled, *frame.size), frame.turn)
