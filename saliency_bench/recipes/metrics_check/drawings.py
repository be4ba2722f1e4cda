"""Pictures for networks with known evidence: an object, a coloured patch, a striped patch, and weaker rivals.

    object layout   both patches are on the object
    scene layout    the coloured patch is on the object, the striped patch is next to the object
    grid layout     four cells with one object each; one object has the coloured patch, and its cell is the mask

Colour, stripes and position are independent of each other. Colour does not change a pixel's mean over the channels, and
stripes and noise are grey. A network that detects one property therefore does not respond to the other properties.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from saliency_bench.utils.seeds import seed_of, uniform

SIDE, CELL, CLASSES = 32, 16, 4
GROUND, OBJECT, NOISE = 0.25, 0.6, 0.04  # grey of the scene, grey of the object, largest deviation of a pixel
STRIPES = 0.2  # amplitude
CHROMA = 0.25, 0.35  # range of the amplitude of the colour, which varies from pixel to pixel
HUES = np.array([[1 / 2, -1 / 2, 0], [-1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, -2 / 3], [-1 / 3, -1 / 3, 2 / 3]])
COLOURS = ("red", "green", "yellow", "blue")
TEXTURES = ("columns", "rows", "checks", "wide columns")
QUADRANTS = ("upper left", "upper right", "lower left", "lower right")
LAYOUTS = ("object", "scene", "grid")

Box = tuple[int, int, int]  # top, left, side


@dataclass(frozen=True)
class Scene:
    """Description of an image to draw.

    Attributes:
        layout: One of `LAYOUTS`.
        objects: Boxes of the objects. The first object has the coloured patch.
        colour: Classes of the coloured patch and of its rival.
        coloured: Boxes of the coloured patch and of its rival.
        stripes: Classes of the striped patch and of its rival, or () if there are no stripes.
        striped: Boxes of the striped patch and of its rival, or () if there are no stripes.
        noise: Seed of the noise.
    """

    layout: str
    objects: tuple[Box, ...]
    colour: tuple[int, ...]
    coloured: tuple[Box, ...]
    stripes: tuple[int, ...]
    striped: tuple[Box, ...]
    noise: int

    @property
    def quadrant(self) -> int:
        """Return the quadrant of the coloured patch."""
        return quadrant_of(self.coloured[0])

    @property
    def mask(self) -> np.ndarray:
        """Return the mask, bool (H, W): the object or, in the grid layout, the object's cell."""
        top, left, _ = self.coloured[0]
        cell = (top // CELL * CELL, left // CELL * CELL, CELL)
        return inside([cell] if self.layout == "grid" else self.objects[:1])

    def without_object(self) -> "Scene":
        """Return the scene without its objects and the patches on them."""
        beside = slice(1, None) if self.layout != "scene" else slice(None)
        return replace(self, objects=(), colour=self.colour[1:], coloured=self.coloured[1:],
                       stripes=self.stripes[beside], striped=self.striped[beside])  # fmt: skip

    def picture(self) -> np.ndarray:
        """Draw the image, uint8 (H, W, 3)."""
        grey, chroma = (uniform(seed_of(name, self.noise), SIDE**2).reshape(SIDE, SIDE) for name in ("grey", "chroma"))
        values = np.where(inside(self.objects), OBJECT, GROUND) + NOISE * (2 * grey - 1)
        for kind, box in zip(self.stripes, self.striped, strict=True):
            values += STRIPES * inside([box]) * texture(kind)
        colours = np.repeat(values[..., None], 3, axis=2)
        amplitude = CHROMA[0] + (CHROMA[1] - CHROMA[0]) * chroma
        for kind, box in zip(self.colour, self.coloured, strict=True):
            colours += HUES[kind] * (amplitude * inside([box]))[..., None]
        return (255 * colours.clip(0, 1)).round().astype(np.uint8)


def texture(kind: int) -> np.ndarray:
    """Return the stripes of a class, of shape (H, W) with the values +1 and -1."""
    row, column = np.indices((SIDE, SIDE))
    return 1 - 2 * (column % 2, row % 2, (row + column) % 2, column // 2 % 2)[kind]


def inside(boxes: tuple[Box, ...] | list[Box]) -> np.ndarray:
    """Return a mask, bool (H, W), of the pixels in the boxes."""
    pixels = np.zeros((SIDE, SIDE), bool)
    for top, left, side in boxes:
        pixels[top : top + side, left : left + side] = True
    return pixels


def quadrant_of(box: Box) -> int:
    """Return the quadrant that contains a box's top left corner: 0 to 3, row by row."""
    return box[0] // CELL * 2 + box[1] // CELL


def draw(index: int, layout: str, seed: int = 0) -> Scene:
    """Return the drawing with this index.

    The properties are colour, stripes and quadrant. In 16 consecutive drawings, each combination of the values of two
    properties occurs once.
    """
    for attempt in count():  # draw positions until nothing overlaps
        values = iter(uniform(seed_of("known evidence", layout, seed, index, attempt), 32).tolist())
        drawing = (_grid if layout == "grid" else _single)(index, layout, values, seed_of("noise", layout, seed, index))
        if drawing is not None:
            return drawing
    raise AssertionError


def _below(values: Iterator[float], limit: int) -> int:
    return int(next(values) * limit)


def _within(values: Iterator[float], area: Box, side: int) -> Box:
    """Return a random square box with this side length that lies within an area."""
    room = area[2] - side + 1
    return area[0] + _below(values, room), area[1] + _below(values, room), side


def _rival(values: Iterator[float], kind: int) -> int:
    return (kind + 1 + _below(values, CLASSES - 1)) % CLASSES


def _quadrant(number: int) -> Box:
    return number // 2 * CELL, number % 2 * CELL, CELL


def _single(index: int, layout: str, values: Iterator[float], noise: int) -> Scene | None:
    colour, stripes, quadrant = index % 4, index // 4 % 4, (index // 16 + index // 4 + index) % 4
    colours, textures = (colour, _rival(values, colour)), (stripes, _rival(values, stripes))
    thing = _within(values, (0, 0, SIDE), 16)
    coloured = _within(values, _quadrant(quadrant), 7)
    striped = _within(values, thing if layout == "object" else (0, 0, SIDE), 7)
    rivals = _within(values, _quadrant(_rival(values, quadrant)), 5), _within(values, (0, 0, SIDE), 5)
    beside = [thing, *rivals] if layout == "object" else [thing, *rivals, striped]
    on_it = [coloured, striped] if layout == "object" else [coloured]
    if not inside([thing])[inside(on_it)].all() or not (_apart(beside) and _apart(on_it)):
        return None
    return Scene(layout, (thing,), colours, (coloured, rivals[0]), textures, (striped, rivals[1]), noise)


def _grid(index: int, layout: str, values: Iterator[float], noise: int) -> Scene:
    colour, quadrant = index % 4, (index // 16 + index // 4 + index) % 4
    order = [quadrant, *(number for number in range(4) if number != quadrant)]
    objects = tuple(_within(values, _quadrant(number), 10) for number in order)
    rival = objects[1 + _below(values, 3)]
    coloured = _within(values, objects[0], 5), _within(values, rival, 3)
    return Scene(layout, objects, (colour, _rival(values, colour)), coloured, (), (), noise)


def _apart(boxes: list[Box]) -> bool:
    """Return whether all boxes are at least one pixel apart from each other."""
    grown = [inside([(max(top - 1, 0), max(left - 1, 0), side + 1)]) for top, left, side in boxes]
    return int(np.sum(grown, axis=0).max()) == 1
