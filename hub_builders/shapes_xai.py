"""Shapes: textured objects at random positions on textured scenes, drawn by this package.

The dataset needs no source. Build it with `saliency-bench build shapes-xai --out DIR`, or load it by its name.

The ground truth is known: each image comes with the mask of its object and with the same scene without the object. The
images are drawn with integer arithmetic from hashed seeds, so all machines produce the same pixels. Image i shows
object class i mod 8 on scene (i div 8) mod 8. Its appearance depends only on (seed, i) and the size, not on the number
of images.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders._shapes_colours import Dice, palette
from saliency_bench.hub_builders._shapes_objects import FULL, OBJECTS, painted_object
from saliency_bench.hub_builders._shapes_scenes import SCENES, painted_scene
from saliency_bench.utils.seeds import seed_of

VERSION = "1"
ALSO_CALLED = ("shapes",)
TITLE = "Shapes-XAI"
ANNOTATORS = ("machine-generated",)
SOURCES = ("original",)
LICENSE = "cc0-1.0"
REDISTRIBUTE = True
EMBEDDED = True
TAGS = ["synthetic"]
EXAMPLE = {"size": 96, "count": 6}
PAPER_COUNTS: dict = {}
CITATION = """@software{saliency_bench_shapes,
  title = {Shapes-XAI: drawn images with known evidence},
  author = {{saliency-bench contributors}},
  url = {https://huggingface.co/saliency-bench}
}"""
RULE = """Each image shows one of eight objects on one of eight scenes. Each object has its own silhouette and texture,
and each scene its own texture; colours, position and size are random. An object covers about 3 to 15 percent of the
image, and the border may cut off up to half of the object. All regions of the image are covered about equally often,
except that the central pixel is covered half as often as a random pixel. A map that decreases from the centre is
therefore no better than chance. `mask` contains every pixel that the object changes, and `image_without_object` is the
same scene without the object."""


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel, Image

    return {
        "label": ClassLabel(names=list(OBJECTS)),
        "scene": ClassLabel(names=list(SCENES)),
        "image_without_object": Image(),
    }


def samples(source: Path | None, log: BuildLog, *, size: int = 64, count: int = 1536, seed: int = 0) -> Iterator[Job]:
    """Yield the drawings in order.

    Args:
        source: must be None, because the package draws the images.
        log: build log, which records what is left out and why.
        size: width and height in pixels, 32 to 2048.
        count: number of images.
        seed: seed for drawing the images.
    """
    if source is not None:
        raise UserError("shapes-xai needs no source, because the package draws its images; remove --source")
    if not 32 <= size <= 2048:
        raise UserError(f"shapes-xai: size={size} is out of range; use 32 to 2048")
    if count < 1:
        raise UserError(f"shapes-xai: count={count} is too small; use 1 or more")
    log.expected = count
    for index in range(count):
        yield Job(sample_of, index, size, seed)


def sample_of(log: BuildLog, index: int, size: int, seed: int) -> dict:
    """Return the sample of drawing number `index`."""
    return {"image_id": f"shapes-{index:06d}", **drawn(index, size, seed)}


def drawn(index: int, size: int = 64, seed: int = 0) -> dict:
    """Draw image number `index`.

    Returns:
        A dictionary with the image, uint8 (size, size, 3), the mask, bool (size, size), the image without the
        object, and the names of the classes.
    """
    dice = Dice(seed_of("shapes-xai", seed, index))
    label, scene = list(OBJECTS)[index % len(OBJECTS)], list(SCENES)[index // len(OBJECTS) % len(SCENES)]
    ground, ink = palette(dice)
    picture = painted_scene(scene, size, ground, dice)
    alpha, paint = painted_object(label, size, ink, dice)
    top, left = place(alpha > 0, size, dice)
    rows, columns = slice(max(top, 0), top + len(alpha)), slice(max(left, 0), left + alpha.shape[1])
    alpha, paint = (array[max(-top, 0) : size - top, max(-left, 0) : size - left] for array in (alpha, paint))
    box = (rows, columns)
    with_object, mask = picture.copy(), np.zeros((size, size), bool)
    with_object[box] = (paint * alpha[..., None] + picture[box] * (FULL - alpha[..., None])) // FULL
    mask[box] = alpha > 0
    return {"image": with_object, "mask": mask, "image_without_object": picture, "label": label, "scene": scene}


def place(shape: np.ndarray, size: int, dice: Dice) -> tuple[int, int]:
    """Draw a random position (top, left) for the object's box.

    At least half of the object's pixels are inside the image.

    A first random draw decides whether the object covers the central pixel. The probability is half the fraction of the
    image that the object covers, so pointing at the centre succeeds half as often as pointing at random. Then a
    matching position is drawn, with a probability that increases with the distance from the centre. Because of these
    weights, and because objects may be cut off at the border, all regions of the image are covered about equally often,
    so a map that decreases from the centre has no advantage.
    """
    height, width = shape.shape
    tops, lefts = np.arange(1 - height, size), np.arange(1 - width, size)
    wanted = dice(0, 2 * size * size) < int(shape.sum())
    allowed = (covering(shape, size, tops, lefts) == wanted) & (2 * visible(shape, size, tops, lefts) >= shape.sum())
    away = abs(2 * tops + height - size)[:, None] + abs(2 * lefts + width - size) + size // 8
    sums = np.where(allowed, away, 0).ravel().cumsum()
    row, column = divmod(int(np.searchsorted(sums, dice(0, int(sums[-1])), side="right")), len(lefts))
    return int(tops[row]), int(lefts[column])


def covering(shape: np.ndarray, size: int, tops: np.ndarray, lefts: np.ndarray) -> np.ndarray:
    """Return whether the object covers the central pixel (size // 2, size // 2) at each position (top, left)."""
    height, width = shape.shape
    down, right = size // 2 - tops[:, None], size // 2 - lefts
    inside = (down >= 0) & (down < height) & (right >= 0) & (right < width)
    return inside & shape[down.clip(0, height - 1), right.clip(0, width - 1)]


def visible(shape: np.ndarray, size: int, tops: np.ndarray, lefts: np.ndarray) -> np.ndarray:
    """Return how many of the object's pixels are inside the image at each position (top, left)."""
    height, width = shape.shape
    sums = np.pad(shape.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    above, below = (-tops).clip(0, height)[:, None], (size - tops).clip(0, height)[:, None]
    before, after = (-lefts).clip(0, width), (size - lefts).clip(0, width)
    return sums[below, after] - sums[above, after] - sums[below, before] + sums[above, before]
