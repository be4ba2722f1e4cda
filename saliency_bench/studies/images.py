"""The images of a dataset as a study shows them: upright and in their original size."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import PurePath

import numpy as np
from datasets import ClassLabel, Dataset, Image

from saliency_bench.data.fingerprints import class_name, stored_bytes
from saliency_bench.errors import UserError
from saliency_bench.studies.shown_pictures import Shown, shown, size_of, threads
from saliency_bench.utils.masks import read_mask
from saliency_bench.utils.pictures import UnreadableError, opened, orientation_of
from saliency_bench.utils.progress import bar


class StudyImages:
    """The rows of a dataset, which are accessed by unit.

    The unit is the image id, or "ID, CLASS" if ids are not unique. If there is no `image_id` column, the id is the name
    of the image file. If these names are not unique, the id includes the folders.

    Raises:
        UserError: Rows have the same id and class, or the dataset has no rows.
    """

    def __init__(self, rows: Dataset):
        plain = rows.with_format(None)
        kind = plain.features.get("label")
        labels = list(plain["label"]) if "label" in plain.features else [None] * len(plain)
        for column in {"image", "mask"} & set(plain.features):
            plain = plain.cast_column(column, Image(decode=False))
        self.ids = _ids(plain)
        self.labels = [class_name(kind, value, "") if isinstance(kind, ClassLabel) else value for value in labels]
        units = self.ids
        if len(set(units)) < len(units):
            units = [f"{value}, {label}" for value, label in zip(self.ids, self.labels, strict=True)]
        if not units or (twice := [unit for unit, count in Counter(units).items() if count > 1]):
            problem = "no image" if not units else f"several rows of the image {twice[0]}"
            raise UserError(f"the dataset has {problem}; a study needs each image (and class) exactly once")
        self.positions = {unit: index for index, unit in enumerate(units)}
        self.rows = plain
        self.unshown: dict[str, str] = {}  # {unit: why it cannot be displayed}, filled by `prepare`
        self.shown = lru_cache(None)(self._show)  # entries are small, because the images are in files
        self.size = lru_cache(None)(self._size)

    @property
    def units(self) -> list[str]:
        """All units, in the order of the rows."""
        return list(self.positions)

    def image_id(self, unit: str) -> str:
        """Return the id of a unit's image."""
        return self.ids[self.positions[unit]]

    def label(self, unit: str) -> str:
        """Return the class label of the unit's image, or "" if it has none."""
        label = self.labels[self.positions[unit]]
        return "" if label is None else str(label)

    def with_masks(self) -> list[str]:
        """Return the units for which the dataset has a mask."""
        if "mask" not in self.rows.features:
            return []
        masks = self.rows.data.column("mask").combine_chunks() if self.rows._indices is None else self.rows["mask"]
        known = [mask is not None and (not hasattr(mask, "is_valid") or mask.is_valid) for mask in masks]
        return [unit for unit, has in zip(self.units, known, strict=True) if has]

    def _bytes(self, unit: str) -> bytes:
        try:
            data = stored_bytes(self.rows[self.positions[unit]]["image"])
        except OSError as error:
            raise UnreadableError(f"cannot be read ({error.strerror})") from None
        if data is None:
            raise UnreadableError("no image")
        return data

    def _show(self, unit: str) -> Shown:
        return shown(self._bytes(unit))

    def _size(self, unit: str) -> tuple[int, int]:
        """Return (height, width) of the upright image, which are read from the header of the file.

        Raises:
            UnreadableError: The image cannot be read.
        """
        return size_of(self._bytes(unit))

    def prepare(self, progress: bool = True) -> dict[str, str]:
        """Create all image files that are not in the cache yet, and return `unshown`."""

        def problem(unit: str) -> str:
            try:
                self.shown(unit)
            except UnreadableError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(threads()) as pool:  # Pillow releases the interpreter lock while it decodes and encodes
            problems = bar(pool.map(problem, self.units), shown=progress, total=len(self.units), desc="pictures")
            self.unshown = {unit: text for unit, text in zip(self.units, problems, strict=True) if text}
        return self.unshown

    def known_mask(self, unit: str, foreground: str = "") -> np.ndarray | None:
        """Return the dataset's mask, bool (H, W), in the size of the image, or None if there is no mask.

        Args:
            unit: Unit of the study.
            foreground: Which pixels of a mask belong to the object, as for `read_mask`.

        Raises:
            UnreadableError: The mask cannot be read, or does not define the object.
        """
        stored = self.rows[self.positions[unit]].get("mask")
        if stored is None:
            return None
        turn = orientation_of(opened(self._bytes(unit))) or 1
        return read_mask(stored, self.size(unit), turn, foreground)


def _ids(rows: Dataset) -> list[str]:
    """Return an image id for each row: `image_id`, otherwise the file name, otherwise the row number."""
    if "image_id" in rows.features:
        return list(map(str, rows["image_id"]))
    paths = [str((cell or {}).get("path") or "") for cell in rows["image"]]
    if "" in paths:
        return list(map(str, range(len(rows))))
    names = [PurePath(path).name for path in paths]
    if len(set(names)) < len(set(paths)):
        top = os.path.commonpath([PurePath(path).parent for path in paths])
        names = [PurePath(os.path.relpath(path, top)).as_posix() for path in paths]
    return names
