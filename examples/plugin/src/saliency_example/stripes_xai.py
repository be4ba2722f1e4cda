"""Stripes: a square of horizontal or vertical stripes on plain grey, drawn by the package without a source.

The two classes differ only inside the mask.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job

VERSION = "1"
TITLE = "Stripes-XAI"
ANNOTATORS = ("machine-generated",)
SOURCES = ("original",)
LICENSE = "cc0-1.0"
REDISTRIBUTE = True
EMBEDDED = True
PAPER_COUNTS: dict = {}
CITATION = """@misc{stripes, title = {Stripes-XAI: an example}}"""
RULE = """A square at a random position, a third of the image's side wide, contains horizontal ("lying") or
vertical ("standing") stripes. This square is the mask."""
CLASSES = ["lying", "standing"]


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=CLASSES)}


def samples(source: Path | None, log: BuildLog, *, size: int = 48, count: int = 240) -> Iterator[Job]:
    """Yield one job per image, in order.

    Args:
        source: not used.
        log: build log, which records what is left out and why.
        size: width and height in pixels.
        count: number of images.
    """
    log.expected = count
    for index in range(count):
        yield Job(sample_of, index, size)


def sample_of(log: BuildLog, index: int, size: int) -> dict:
    """Return the sample of drawing number `index`."""
    random, side = np.random.default_rng(index), size // 3
    top, left = random.integers(0, size - side + 1, 2)
    label = CLASSES[index % 2]
    stripes = np.broadcast_to((np.arange(side) // 2 % 2 * 255)[:, None], (side, side))
    image, mask = np.full((size, size, 3), 128, np.uint8), np.zeros((size, size), bool)
    square = slice(top, top + side), slice(left, left + side)
    image[square] = (stripes if label == "lying" else stripes.T)[..., None]
    mask[square] = True
    return {"image_id": f"stripes-{index:05d}", "image": image, "label": label, "mask": mask}
