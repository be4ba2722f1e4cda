"""Masks that people drew: one PNG an image in `masks/`, or one folder an annotator in it.

Names are those of the image ids, "/" replaced by "_"; what is not 0 is marked. Of several annotators a pixel counts if
at least half of those who marked the image marked it.
"""

from pathlib import Path

import numpy as np

from saliency_bench.hub_builders._source import entries, indices
from saliency_bench.utils.pictures import Picture


def drawn_masks(root: Path) -> dict[str, list[Path]]:
    """{image id, "/" replaced by "_": its mask files}."""
    found: dict[str, list[Path]] = {}
    for path in entries(root / "masks"):
        for file in entries(path) if path.is_dir() else [path]:
            if file.suffix.lower() == ".png" and not file.name.startswith("."):
                found.setdefault(file.stem, []).append(file)
    return found


def consensus(paths: list[Path], picture: Picture) -> np.ndarray:
    """bool (H, W). Raises: UnreadableError."""
    votes = sum((indices(path, picture) > 0).astype(np.int32) for path in paths)
    return 2 * np.asarray(votes) >= len(paths)
