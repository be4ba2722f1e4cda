"""Validate strokes that mark a region, and find the region with OpenCV's GrabCut (Rother et al., 2004).

A stroke is {"points": [[x, y], ...], "add": bool}. The points are positions in pixels that belong to the region or to
the background. GrabCut models the colours under both types of strokes, and places the border of the region where
neighbouring pixels differ. At first, pixels without a stroke count as background. scikit-image does not include
GrabCut. Its random walker took 5 to 10 times as long on the same strokes, which is too long to wait after each stroke.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saliency_bench.errors import UserError
from saliency_bench.registry import install_hint

MOST_STROKES = 60
MOST_POINTS = 400  # maximum number of points of all strokes together; the page thins out longer strokes
LONGEST = 320  # longest side in pixels of the reduced image for GrabCut
WIDTH = 3  # width in pixels of a stroke on that image
ROUNDS = 3  # number of GrabCut iterations (colour models, then a cut)


@dataclass(frozen=True)
class Stroke:
    """A stroke: points (x, y) in pixels of an image, and whether they belong to the region."""

    points: list[tuple[float, float]]
    add: bool


def strokes_of(sent: object, height: int, width: int) -> list[Stroke]:
    """Validate the strokes that a page sent.

    Raises:
        UserError: A stroke is invalid or outside an image of this size, or there are too many strokes.
    """
    if not isinstance(sent, list) or not 0 < len(sent) <= MOST_STROKES:
        raise UserError(f"strokes must be a list of 1 to {MOST_STROKES} strokes; start again from the marked region")
    strokes = [_stroke(entry, height, width) for entry in sent]
    if sum(len(stroke.points) for stroke in strokes) > MOST_POINTS:
        raise UserError(
            f"all strokes together may have at most {MOST_POINTS} points; start again from the marked region"
        )
    if not any(stroke.add for stroke in strokes):
        raise UserError("no stroke marks the region")
    return strokes


def _stroke(sent: object, height: int, width: int) -> Stroke:
    if not isinstance(sent, dict) or type(sent.get("add")) is not bool:
        raise UserError('a stroke must contain "add" (true or false)')
    points = sent.get("points")
    if not isinstance(points, list) or not 0 < len(points) <= MOST_POINTS:
        raise UserError(f"a stroke must have 1 to {MOST_POINTS} points [x, y]")
    for point in points:
        numbers = point if isinstance(point, list) and len(point) == 2 else [None]
        if not all(type(number) in (int, float) for number in numbers):
            raise UserError("a point of a stroke must be [x, y]")
        if not (0 <= point[0] <= width and 0 <= point[1] <= height):  # also false for NaN
            raise UserError("a stroke is outside the image")
    return Stroke([(float(x), float(y)) for x, y in points], bool(sent["add"]))


class GrabCut:
    """Finds a region with GrabCut, on an image reduced to sides of at most `LONGEST` pixels.

    Raises:
        UserError: OpenCV is not installed.
    """

    def __init__(self) -> None:
        try:
            import cv2
        except ModuleNotFoundError as error:
            raise UserError(f"--segment needs OpenCV: {install_hint('segment')}") from error
        self._cv2 = cv2

    def __call__(self, file: Path, strokes: Sequence[Stroke]) -> np.ndarray:
        """Return the region, bool (H, W), that the strokes mark. It has the same size as the image.

        The result is deterministic.
        """
        cv2 = self._cv2
        with Image.open(file) as opened:
            picture = opened.convert("RGB")
        size = picture.size
        picture.thumbnail((LONGEST, LONGEST), Image.Resampling.BOX)
        scale = picture.width / size[0], picture.height / size[1]
        labels = np.full((picture.height, picture.width), cv2.GC_PR_BGD, np.uint8)
        for stroke in strokes:
            _draw(cv2, labels, stroke, scale, cv2.GC_FGD if stroke.add else cv2.GC_BGD)
        if labels.min() == labels.max():  # a stroke covers the whole (tiny) image, so there is nothing to cut
            return np.ones(size[::-1], bool)
        cv2.setRNGSeed(0)  # initial clusters of colours are random
        models = np.zeros((1, 65)), np.zeros((1, 65))
        cv2.grabCut(np.asarray(picture), labels, None, *models, ROUNDS, cv2.GC_INIT_WITH_MASK)
        region = Image.fromarray(np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)).astype(np.uint8) * 255)
        return np.asarray(region.resize(size, Image.Resampling.BILINEAR)) >= 128  # smooth edges


def _draw(cv2: Any, labels: np.ndarray, stroke: Stroke, scale: tuple[float, float], value: int) -> None:
    height, width = labels.shape
    places = np.array(stroke.points) * scale
    places = np.clip(places.astype(np.int32), 0, (width - 1, height - 1))
    if len(places) == 1:
        cv2.circle(labels, tuple(map(int, places[0])), WIDTH // 2, value, -1)
    else:
        cv2.polylines(labels, [places], isClosed=False, color=value, thickness=WIDTH)
