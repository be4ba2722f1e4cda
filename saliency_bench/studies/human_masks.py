"""Masks that people drew on the images of a run.

The masks are resized and cropped in the same way as the run's images, so that they can be rated like maps.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from datasets import Dataset, Image
from PIL.Image import fromarray

from saliency_bench.data.geometry import Geometry
from saliency_bench.errors import UserError
from saliency_bench.utils.masks import read_mask
from saliency_bench.utils.messages import complain, counted
from saliency_bench.utils.pictures import UnreadableError, opened, orientation_of, upright

AT_ONCE = 64  # number of masks cached in memory


class RunMasks(Mapping[str, np.ndarray]):
    """Masks {image id: bool (H, W)} that can be displayed: readable, not empty, and not covering the entire image.

    Each mask is read once for this check, and again when it is displayed.

    Args:
        rows: Rows of the dataset.
        positions: {image id: row} of the images to check.
        geometry: Describes how the run resized and cropped its images.
        foreground: Which pixels of a mask belong to the object, as for `read_mask`.

    Raises:
        UserError: The dataset has no `mask` column.
    """

    def __init__(self, rows: Dataset, positions: Mapping[str, int], geometry: Geometry, foreground: str = ""):
        if not isinstance(rows.features.get("mask"), Image):
            raise UserError("the dataset of the run has no masks; remove --with-masks")
        self._rows = rows.select_columns(["image", "mask"])
        for column in ("image", "mask"):
            self._rows = self._rows.cast_column(column, Image(decode=False))
        self._positions, self._geometry, self._foreground = positions, geometry, foreground
        self._read = lru_cache(AT_ONCE)(self._mask)
        self._unreadable: dict[str, str] = {}
        self._ids = {image: None for image in positions if _is_shown(self._mask(image))}
        for image, reason in list(self._unreadable.items())[:1]:
            lost = counted(len(self._unreadable), "mask")
            complain(f"{lost} cannot be shown, such as the mask of image {image}: {reason}")

    def _mask(self, image_id: str) -> np.ndarray | None:
        """Return the resized and cropped mask of an image, or None if it is missing or unreadable."""
        row = self._rows[self._positions[image_id]]
        try:
            return _framed(row["image"], row["mask"], self._geometry, self._foreground)
        except UnreadableError as error:
            self._unreadable[image_id] = str(error)
            return None

    def __getitem__(self, image_id: str) -> np.ndarray:
        mask = self._read(image_id) if image_id in self._ids else None
        if mask is None:
            raise KeyError(image_id)
        return mask

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def _is_shown(mask: np.ndarray | None) -> bool:
    """Return whether there is a mask that is neither empty nor full."""
    return mask is not None and bool(mask.any()) and not bool(mask.all())


def _framed(image: Any, stored: Any, geometry: Geometry, foreground: str) -> np.ndarray | None:
    """Resize and crop a mask, or return None if `stored` is None. Raise UnreadableError if the mask cannot be read."""
    if stored is None:
        return None
    picture = opened(image)
    width, height = upright(picture).size
    mask = read_mask(stored, (height, width), orientation_of(picture) or 1, foreground)
    return geometry.mask(fromarray(mask))
