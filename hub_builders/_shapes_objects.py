"""The objects of shapes-xai: silhouettes and textures in object coordinates with centre (0, 0) and radius UNIT.

All arithmetic uses integers, so an object has the same pixels on every machine.
"""

from functools import cache
from math import isqrt

import numpy as np

from saliency_bench.hub_builders._shapes_colours import Colour, Dice

UNIT = 1024
SUB = 4  # each pixel is sampled SUB x SUB times, for smooth edges
FULL = 8  # number of opacity steps
TURNS = (
    (1024, 0),
    (1020, 89),
    (1020, -89),
    (1008, 178),
    (1008, -178),
    (989, 265),
    (989, -265),
)  # cos, sin: 0 to 15 deg


def painted_object(name: str, size: int, ink: tuple[Colour, Colour], dice: Dice) -> tuple[np.ndarray, np.ndarray]:
    """Return the opacity (h, w) in 0..FULL and the colours (h, w, 3) of an object, cropped to its bounding box."""
    silhouette, texture = OBJECTS[name]
    share = dice(50, 140)  # per mille of the image
    radius = isqrt(share * size * size * SUB * SUB * UNIT * UNIT // (1000 * area_of(name)))
    cosine, sine = TURNS[dice(0, len(TURNS))]
    half = radius * 5 // (4 * SUB) + 2  # the corners of a rotated square exceed the radius
    axis = (
        2 * np.arange(-half * SUB, half * SUB) + 1
    )  # unit: half a sub-pixel, because the centre is between two sub-pixels
    x, y = axis[None, :], axis[:, None]
    u, v = (cosine * x + sine * y) // (2 * radius), (cosine * y - sine * x) // (2 * radius)
    inside = silhouette(u, v)
    cover, second = blocks(inside), blocks(inside & texture(u, v))
    alpha = ((cover - SUB * SUB // 4) * FULL // (SUB * SUB // 2)).clip(0, FULL)
    parts = np.maximum(cover, 1)[..., None]
    paint = (np.array(ink[0]) * (parts - second[..., None]) + np.array(ink[1]) * second[..., None]) // parts
    rows, columns = np.flatnonzero(alpha.any(1)), np.flatnonzero(alpha.any(0))
    box = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    return alpha[box], paint[box]


def blocks(flags: np.ndarray) -> np.ndarray:
    """Return, for each pixel, how many of its SUB x SUB samples are set."""
    height, width = flags.shape
    return flags.reshape(height // SUB, SUB, width // SUB, SUB).sum(axis=(1, 3), dtype=np.int64)


@cache
def area_of(name: str) -> int:
    """Return the area of a silhouette in squared units of the object coordinates.

    Objects are scaled according to this area, so all classes have the same distribution of sizes.
    """
    axis = np.arange(-1536, 1536, 8) + 4
    return int(OBJECTS[name][0](axis[None, :], axis[:, None]).sum()) * 64


def disc(u, v, radius=UNIT):
    """Return which points are inside a disc."""
    return u * u + v * v <= radius * radius


def square(u, v):
    """Return which points are inside a square."""
    return np.maximum(abs(u), abs(v)) <= 900


def triangle(u, v):
    """Return which points are inside a triangle."""
    return (v <= 768) & (16 * abs(u) <= 9 * (v + 1024))


def cross(u, v):
    """Return which points are inside a cross."""
    return (np.minimum(abs(u), abs(v)) <= 340) & (np.maximum(abs(u), abs(v)) <= UNIT)


def ring(u, v):
    """Return which points are inside a ring."""
    return disc(u, v) & ~disc(u, v, 500)


def star(u, v):
    """Return which points are on the inner side of at least four of the five lines of a widened pentagram."""
    lines = ((0, 1024), (974, 316), (602, -828), (-602, -828), (-974, 316))  # outward directions
    return sum((a * u + b * v <= 410 * UNIT).astype(np.int64) for a, b in lines) >= 4


def heart(u, v):
    """Return which points are inside a heart."""
    side = abs(u)
    lobes = (side - 480) * (side - 480) + (v + 350) * (v + 350) <= 530 * 530
    return lobes | ((v >= -350) & (100 * side + 86 * v <= 82000))


def crescent(u, v):
    """Return which points are inside a crescent."""
    return disc(u, v) & ~disc(u - 400, v + 120, 760)


def bands(u, v):
    """Return concentric bands, like a target."""
    square_of = u * u + v * v
    return sum((square_of > (UNIT * n // 10) ** 2).astype(np.int64) for n in (3, 5, 8)) % 2 == 1


def checks(u, v):
    """Return a chessboard pattern."""
    return (u // 450 + v // 450) % 2 == 1


def stripes(u, v):
    """Return vertical stripes."""
    return (v + UNIT) // 300 % 2 == 1


def slants(u, v):
    """Return slanted stripes."""
    return (u + v) // 360 % 2 == 1


def sectors(u, v):
    """Return eight sectors of alternating colour, as on a lifebuoy."""
    return (u > 0) ^ (v > 0) ^ (abs(u) > abs(v))


def facets(u, v):
    """Return a texture that makes each tip of the star half light and half dark, split along the star's five axes."""
    axes = ((0, -1024), (974, -316), (602, 828), (-602, 828), (-974, -316))
    return sum((a * v - b * u > 0).astype(np.int64) for a, b in axes) % 2 == 1


def dots(u, v):
    """Return dots in rows."""
    row = (v + 1536) // 420
    x, y = (u + 1536 + row % 2 * 210) % 420 - 210, (v + 1536) % 420 - 210
    return x * x + y * y <= 130 * 130


def rim(u, v):
    """Return a texture with a broad, light outer edge."""
    return ~disc(u + 60, v - 20, 800)


OBJECTS = {
    "disc": (disc, bands),
    "square": (square, checks),
    "triangle": (triangle, stripes),
    "cross": (cross, slants),
    "ring": (ring, sectors),
    "star": (star, facets),
    "heart": (heart, dots),
    "crescent": (crescent, rim),
}
