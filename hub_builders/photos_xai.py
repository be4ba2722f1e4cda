"""Four freely licensed photographs of a cat, a cup of coffee, a rocket and a tripod, with outlines drawn by hand.

The photographs are part of scikit-image (`pip install "saliency-bench[demo]"`), so no source is needed. Build the
dataset with `saliency-bench build photos-xai --out DIR`, or load it by its name.

Four images are enough to try explainers on a real network, but too few for any conclusion: neither intervals nor ranks
are computed for fewer than ten samples. `--label-map photos_to_imagenet` maps the classes to classes of ImageNet.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.utils.pictures import Picture, read

VERSION = "1"
ALSO_CALLED = ("photos", "photographs")
TITLE = "Photos-XAI"
ANNOTATORS = ("expert-generated",)
SOURCES = ("extended|other-scikit-image",)
LICENSE = "cc0-1.0"
REDISTRIBUTE = True
EMBEDDED = True
SPLIT = "test"
PAPER_COUNTS: dict = {}
EXAMPLE: dict = {}
CITATION = """@article{vanderwalt2014scikit,
  title = {scikit-image: image processing in Python},
  author = {van der Walt, St\\'efan and Sch\\"onberger, Johannes L. and Nunez-Iglesias, Juan and Boulogne,
            François and Warner, Joshua D. and Yager, Neil and Gouillart, Emmanuelle and Yu, Tony},
  journal = {PeerJ},
  year = {2014}
}"""
RULE = """The photographs are `chelsea.png` (by Stefan van der Walt), `coffee.png` (Rachel Michetti), `rocket.jpg`
(SpaceX) and `camera.png` (Lav Varshney) from scikit-image. According to scikit-image, the licence is CC0, and the
rocket is in the public domain. The masks are hand-drawn polygons around the cat, the cup with its handle, the rocket
without its tower, and the tripod without the camera."""
BIASES = """The four photographs were chosen because their licences allow publication and because their objects are
classes of ImageNet. The cat fills most of its image; the rocket and the tripod are thin."""

Outline = list[tuple[int, int]]  # (x, y) in pixels of the photograph
# {class: (file of scikit-image, outlines)}
PHOTOGRAPHS: dict[str, tuple[str, list[Outline]]] = {
    "cat": ("chelsea.png", [
        [(38, 0), (32, 55), (33, 112), (0, 128), (0, 299), (270, 299), (300, 275), (312, 250), (315, 222), (335, 195),
         (356, 165), (361, 120), (352, 75), (385, 30), (398, 0)],
    ]),
    "coffee": ("coffee.png", [
        [(173, 105), (180, 75), (200, 45), (235, 25), (280, 18), (330, 24), (370, 42), (398, 72), (408, 110),
         (402, 140), (390, 170), (372, 205), (345, 235), (330, 265), (300, 283), (270, 285), (258, 278), (230, 303),
         (210, 305), (196, 292), (200, 265), (215, 232), (190, 205), (180, 180), (175, 140)],
    ]),
    "rocket": ("rocket.jpg", [
        [(322, 126), (330, 138), (333, 160), (333, 178), (331, 182), (331, 407), (312, 407), (312, 182), (311, 178),
         (311, 150), (315, 136)],
    ]),
    "tripod": ("camera.png", [
        [(276, 187), (300, 187), (299, 312), (312, 316), (336, 300), (339, 306), (312, 322), (305, 345), (299, 347),
         (299, 486), (288, 486), (288, 346), (278, 330), (278, 313), (289, 312), (288, 205)],
        [(279, 328), (288, 332), (262, 440), (250, 486), (246, 511), (229, 511), (232, 486), (250, 440)],
        [(303, 330), (311, 326), (400, 482), (408, 511), (396, 511), (384, 488)],
    ]),
}  # fmt: skip


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=list(PHOTOGRAPHS))}


def samples(source: Path | None, log: BuildLog) -> Iterator[Job]:
    """Yield one job per photograph, ordered by class.

    Args:
        source: must be None, because the photographs are part of scikit-image.
        log: build log, which records what is left out and why.
    """
    if source is not None:
        raise UserError("photos-xai needs no source, because its photographs are part of scikit-image; remove --source")
    log.expected = len(PHOTOGRAPHS)
    folder = pictures_folder()
    for label, (name, outlines) in PHOTOGRAPHS.items():
        yield Job(sample_of, label, folder / name, outlines)


def pictures_folder() -> Path:
    """Return the folder of the photographs that are installed with scikit-image.

    Raises:
        UserError: scikit-image is not installed.
    """
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise UserError(
            'photos-xai needs scikit-image, which is not installed; run `pip install "saliency-bench[demo]"`'
        )
    return Path(package.origin).parent / "data"


def sample_of(log: BuildLog, label: str, path: Path, outlines: list[Outline]) -> dict:
    """Return the sample of a photograph."""
    picture = read(path)
    return {
        "image_id": path.stem,
        "image": picture,
        "label": label,
        "mask": mask_of(picture, outlines),
        "split": "test",
    }


def mask_of(picture: Picture, outlines: list[Outline]) -> np.ndarray:
    """Return which pixels are inside at least one outline, bool (H, W)."""
    canvas = Image.new("1", (picture.width, picture.height))
    for outline in outlines:
        ImageDraw.Draw(canvas).polygon(outline, fill=1)
    return np.asarray(canvas)
