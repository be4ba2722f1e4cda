"""Read hand-drawn masks from `masks/` (one PNG per image, or one folder per annotator) or from the store of a study.

Files are named after image ids, with "/" replaced by "_". A pixel is marked if its value is not zero. If an image has
several annotators, its mask contains the pixels that at least half of them marked. Masks of a study (`saliency-bench
annotate`) store the checksum of their image and are left out if the image has changed.
"""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saliency_bench.data.annotations import checksum
from saliency_bench.hub_builders._source import entries, indices
from saliency_bench.utils.files import write_with
from saliency_bench.utils.pictures import Picture, UnreadableError
from saliency_bench.utils.storage import cache_folder


class MaskFiles(NamedTuple):
    """The mask files of an image.

    Attributes:
        paths: Paths of the masks, one per annotator.
        image_sha256: Checksum of the image that the masks were drawn on, or "" if unknown.
        empty: Whether all annotators answered that no region of the image shows the class. If so, there is no file.
    """

    paths: tuple[Path, ...] = ()
    image_sha256: str = ""
    empty: bool = False


NOTHING = MaskFiles()


def drawn_masks(root: Path, annotations: str = "") -> dict[str, MaskFiles]:
    """Return {image id with "_" instead of "/": mask files} from `masks/` or from the store of a study.

    Raises:
        UserError: The store cannot be read, or does not contain exactly one annotation study.
    """
    if annotations:
        return _of_store(annotations)
    files: dict[str, tuple[Path, ...]] = {}
    for path in entries(root / "masks"):
        for file in entries(path) if path.is_dir() else [path]:
            if file.suffix.lower() == ".png" and not file.name.startswith("."):
                files[file.stem] = (*files.get(file.stem, ()), file)
    return {name: MaskFiles(paths) for name, paths in files.items()}


def _of_store(place: str) -> dict[str, MaskFiles]:
    """Write the masks from a study's store to the cache, and return their paths.

    File names are hashes of the content, so a resumed build detects changes.
    """
    from saliency_bench.studies.annotating import KIND, counted_answers, pixels_of
    from saliency_bench.studies.answer_store import Store
    from saliency_bench.utils.pictures import png

    store = Store(place, create=False)
    drawn_of: dict[str, MaskFiles] = {}
    for unit, answers in counted_answers(store.find(kind=KIND)).items():
        sums = {answer.image_sha256 or "" for answer in answers}
        size = next((answer.pixels.shape for answer in answers if answer.pixels is not None), None)
        paths = () if size is None else tuple(_kept(png(pixels_of(answer, size))) for answer in answers)
        # If an image was replaced during the study, its masks have different checksums. Such masks match no image.
        drawn_of[unit.replace("/", "_")] = MaskFiles(
            paths, sums.pop() if len(sums) == 1 else "several images", size is None
        )
    store.close()
    return drawn_of


def _kept(content: bytes) -> Path:
    """Write a file to the cache under the hash of its content, and return its path."""
    name = sha256(content).hexdigest()
    path = cache_folder() / "annotations" / name[:2] / f"{name}.png"
    if not path.is_file():
        write_with(path, lambda temporary: temporary.write_bytes(content))
    return path


def consensus(drawn: MaskFiles, picture: Picture) -> np.ndarray:
    """Return the pixels that at least half of the annotators marked, bool (H, W).

    Raises:
        UnreadableError: A mask cannot be read, or was drawn on a different image.
    """
    if drawn.image_sha256 and drawn.image_sha256 != checksum({"bytes": picture.data}):
        raise UnreadableError("the mask was drawn on a different image")
    if drawn.empty:
        return np.zeros((picture.height, picture.width), bool)
    paths = drawn.paths
    votes = sum((indices(path, picture) > 0).astype(np.int32) for path in paths)
    return 2 * np.asarray(votes) >= len(paths)
