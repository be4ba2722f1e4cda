"""The images of a dataset as a study shows them: by unit, upright, at their own size."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from datasets import ClassLabel, Dataset, Image

from saliency_bench.data.annotations import checksum
from saliency_bench.data.fingerprints import class_name, stored_bytes
from saliency_bench.errors import UserError
from saliency_bench.utils.pictures import UnreadableError, open_picture, picture_of

MEDIA = {".jpg": "image/jpeg", ".png": "image/png"}
AT_ONCE = 64  # pictures kept in memory


@dataclass(frozen=True)
class Shown:
    """A picture as it is sent: its bytes, upright, their type, its size in pixels, and the checksum of the stored one.

    sha256: as in the column `image_sha256` of published annotations (`saliency_bench.data.annotations.checksum`).
    """

    content: bytes
    media: str
    height: int
    width: int
    sha256: str


class StudyImages:
    """The rows of a dataset by unit: the image id, with the class behind it ("ID, CLASS") where ids are not unique.

    Raises: UserError for rows with the same id and class, or a dataset without a row.
    """

    def __init__(self, rows: Dataset):
        plain = rows.with_format(None)
        kind = plain.features.get("label")
        ids = (
            [str(value) for value in plain["image_id"]] if "image_id" in plain.features else map(str, range(len(plain)))
        )
        labels = list(plain["label"]) if "label" in plain.features else [None] * len(plain)
        self.ids = list(ids)
        self.labels = [class_name(kind, value, "") if isinstance(kind, ClassLabel) else value for value in labels]
        units = self.ids
        if len(set(units)) < len(units):
            units = [f"{value}, {label}" for value, label in zip(self.ids, self.labels, strict=True)]
        if not units or (twice := [unit for unit, count in Counter(units).items() if count > 1]):
            problem = "no image" if not units else f"several rows of the image {twice[0]}"
            raise UserError(f"the dataset has {problem}; a study asks about each image (and class) once")
        self.positions = {unit: index for index, unit in enumerate(units)}
        for column in {"image", "mask"} & set(plain.features):
            plain = plain.cast_column(column, Image(decode=False))
        self.rows = plain
        self.shown = lru_cache(AT_ONCE)(self._shown)
        self.known_mask = lru_cache(AT_ONCE)(self._known_mask)

    @property
    def units(self) -> list[str]:
        """All units, in the order of the rows."""
        return list(self.positions)

    def image_id(self, unit: str) -> str:
        """Return the id of a unit's image."""
        return self.ids[self.positions[unit]]

    def label(self, unit: str) -> str:
        """Return the name of the class; "" without one."""
        label = self.labels[self.positions[unit]]
        return "" if label is None else str(label)

    def with_masks(self) -> list[str]:
        """Return the units whose mask the dataset holds."""
        if "mask" not in self.rows.features:
            return []
        masks = self.rows.data.column("mask").combine_chunks() if self.rows._indices is None else self.rows["mask"]
        known = [mask is not None and (not hasattr(mask, "is_valid") or mask.is_valid) for mask in masks]
        return [unit for unit, has in zip(self.units, known, strict=True) if has]

    def _shown(self, unit: str) -> Shown:
        """Return an image as people see it.

        Raises:
            UnreadableError: It cannot be read.
        """
        stored = self.rows[self.positions[unit]]["image"]
        data = stored_bytes(stored)
        if data is None:
            raise UnreadableError("no image")
        picture = picture_of(data)
        sha256 = checksum({"bytes": data}) or ""
        return Shown(picture.data, MEDIA[picture.suffix], picture.height, picture.width, sha256)

    def _known_mask(self, unit: str) -> np.ndarray | None:
        """Return bool (H, W), the dataset's mask in the size of the image; None without one.

        Raises:
            UnreadableError: It cannot be read.
        """
        stored = self.rows[self.positions[unit]].get("mask")
        if stored is None:
            return None
        mask = np.asarray(open_picture(stored).convert("L")) > 0
        shown = self.shown(unit)
        if mask.shape != (shown.height, shown.width):
            raise UnreadableError(f"a mask of {mask.shape} pixels for an image of {(shown.height, shown.width)}")
        return mask
