"""Stripes: a square of stripes on plain grey, which lie or stand. Drawn, so that it needs no source.

The only thing by which the two classes differ lies inside the mask.
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
RULE = """A square of a third of each side, at a random place, holds stripes that lie or stand; it is the mask."""
CLASSES = ["lying", "standing"]


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=CLASSES)}


def samples(source: Path | None, log: BuildLog, *, size: int = 48, count: int = 240) -> Iterator[Job]:
    """Yield the drawings in order.

    Args:
        source: not used.
        log: gets what is left out, and why.
        size: pixels on each side.
        count: how many images.
    """
    log.expected = count
    for index in range(count):
        yield Job(sample_of, index, size)


def sample_of(log: BuildLog, index: int, size: int) -> dict:
    """Return a drawing as a sample."""
    random, side = np.random.default_rng(index), size // 3
    top, left = random.integers(0, size - side + 1, 2)
    label = CLASSES[index % 2]
    stripes = np.broadcast_to((np.arange(side) // 2 % 2 * 255)[:, None], (side, side))
    image, mask = np.full((size, size, 3), 128, np.uint8), np.zeros((size, size), bool)
    square = slice(top, top + side), slice(left, left + side)
    image[square] = (stripes if label == "lying" else stripes.T)[..., None]
    mask[square] = True
    return {"image_id": f"stripes-{index:05d}", "image": image, "label": label, "mask": mask}
