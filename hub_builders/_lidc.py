"""Read the marks in LIDC-IDRI: parse the XML of up to four readers, fill contours, and match marks of the same nodule.

A contour is a list of pixels (column, row; counted from 0) just outside the nodule. In this database, a contour
encloses a region but is not part of it. A contour with `inclusion` FALSE encloses a hole. A nodule smaller than 3 mm is
recorded as a single point, and a mark that is not a nodule (`nonNodule`) as a locus. Each reader numbers nodules
independently (`noduleID`).
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from saliency_bench.hub_builders._source import events_of, xml_of
from saliency_bench.utils.pictures import UnreadableError

WIDE = 4096  # larger than any slice; the number of a voxel is slice * WIDE^2 + row * WIDE + column
CT, XRAY = "LidcReadMessage", "IdriReadMessage"


@dataclass(frozen=True)
class Contour:
    """A contour of a mark in one slice."""

    uid: str  # of the slice
    z: float
    inclusion: bool
    points: tuple[tuple[int, int], ...]  # column, row

    @property
    def is_point(self) -> bool:
        """Return whether the contour is a single point."""
        return len(set(self.points)) < 3


@dataclass
class Mark:
    """A mark of one reader: a nodule with contours, or a point."""

    reader: int
    name: str
    contours: list[Contour] = field(default_factory=list)

    @property
    def is_point(self) -> bool:
        """Return whether all contours are single points."""
        return all(contour.is_point for contour in self.contours)


@dataclass
class Reading:
    """All marks of one series."""

    series: str
    marks: list[Mark]
    faults: list[str]


def series_of(path: Path) -> str | None:
    """Return the series UID of an XML file, or None for a chest X-ray. Only the start of the file is read.

    Raises:
        UnreadableError: The file contains no reading.
    """
    kind = ""
    for event, element in events_of(path):
        tag = _local(element.tag)
        kind = kind or tag
        if kind == XRAY:
            return None
        if kind != CT:
            raise UnreadableError(f"{path.name} is not an LIDC-IDRI reading; its root element is {kind}")
        if event == "end" and tag == "SeriesInstanceUid" and _text(element):
            return _text(element)
    raise UnreadableError(f"{path.name} has no SeriesInstanceUid")


def reading_of(path: Path) -> Reading:
    """Return the marks in an XML file of a series.

    Raises:
        UnreadableError: The file cannot be read.
    """
    root = xml_of(path)
    for element in root.iter():
        element.tag = _local(element.tag)
    series = _text(next(root.iter("SeriesInstanceUid"), None))
    marks, faults = [], []
    for reader, session in enumerate(root.iter("readingSession")):
        for element in session:
            kind = element.tag
            if kind not in ("unblindedReadNodule", "nonNodule"):
                if kind not in ("annotationVersion", "servicingRadiologistID"):
                    faults.append(f"reader {reader + 1}: an element {kind} is skipped")
                continue
            name = _text(next(iter(_all(element, "noduleID", "nonNoduleID")), None))
            try:
                marks.append(Mark(reader, name, _contours(element)))
            except UnreadableError as error:
                faults.append(f"reader {reader + 1}, mark {name!r}: {error}")
    return Reading(series, marks, faults)


def _contours(element: Any) -> list[Contour]:
    rois = _all(element, "roi") or ([element] if element.tag == "nonNodule" else [])
    contours = []
    for roi in rois:
        parts = {child.tag: _text(child) for child in roi}
        points = tuple(_point(edge) for edge in _all(roi, "edgeMap", "locus"))
        try:
            z = float(parts.get("imageZposition", ""))
        except ValueError:
            z = math.nan
        if not points or not math.isfinite(z):
            raise UnreadableError("a contour has no points or no position")
        inclusion = parts.get("inclusion", "TRUE").upper() != "FALSE"
        contours.append(Contour(parts.get("imageSOP_UID", ""), z, inclusion, points))
    if not contours:
        raise UnreadableError("no contour")
    return contours


def _point(edge: Any) -> tuple[int, int]:
    """Return (column, row) of a point."""
    parts = {child.tag: _text(child) for child in edge}
    try:
        column, row = int(parts["xCoord"]), int(parts["yCoord"])
    except (KeyError, ValueError):
        raise UnreadableError("a point does not consist of two integers") from None
    if not (0 <= column < WIDE and 0 <= row < WIDE):
        raise UnreadableError("a point is outside the slice")
    return column, row


def enclosed(points: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Return the rows and columns of the n pixels strictly inside a contour, int64 (n, 2)."""
    columns, rows = np.array(points).T
    left, top = columns.min(), rows.min()
    moved = [(int(column - left), int(row - top)) for column, row in points]
    canvas = Image.new("1", (int(columns.max() - left) + 1, int(rows.max() - top) + 1))
    if len(set(points)) >= 3:
        pen = ImageDraw.Draw(canvas)
        pen.polygon(moved, fill=1)
        pen.line([*moved, moved[0]], fill=0)
    return np.argwhere(np.asarray(canvas)) + np.array([top, left])


def voxels_of(mark: Mark, number_of: dict[str, int]) -> np.ndarray:
    """Return the sorted voxel numbers of a mark. `number_of` maps the UID of each slice to the slice's number."""
    kept: list[np.ndarray] = []
    holes: list[np.ndarray] = []
    for contour in mark.contours:
        if contour.uid in number_of:
            inside = enclosed(contour.points)
            numbers = number_of[contour.uid] * WIDE**2 + inside[:, 0] * WIDE + inside[:, 1]
            (kept if contour.inclusion else holes).append(numbers)
    voxels = np.unique(np.concatenate(kept)) if kept else np.zeros(0, np.int64)
    return np.setdiff1d(voxels, np.concatenate(holes)) if holes else voxels


def nodules_of(volumes: list[tuple[int, np.ndarray]]) -> list[dict[int, np.ndarray]]:
    """Group marks (reader, voxels) into nodules, and return each nodule as {reader: voxels}.

    Marks of different readers belong to the same nodule if they share a voxel, directly or through a chain of marks. If
    a reader marked the nodule in several parts, the parts are joined.
    """
    group = list(range(len(volumes)))
    for i, (reader, voxels) in enumerate(volumes):
        for j in range(i):
            if reader != volumes[j][0] and group[i] != group[j] and _meet(voxels, volumes[j][1]):
                old, new = max(group[i], group[j]), min(group[i], group[j])
                group = [new if number == old else number for number in group]
    nodules = []
    for number in sorted(set(group)):
        readers: dict[int, np.ndarray] = {}
        for (reader, voxels), group_number in zip(volumes, group, strict=True):
            if group_number == number:
                readers[reader] = np.union1d(readers.get(reader, np.zeros(0, np.int64)), voxels)
        nodules.append(readers)
    return nodules


def _meet(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two sorted arrays share a value."""
    if not len(a) or not len(b) or a[0] > b[-1] or b[0] > a[-1]:
        return False
    return bool(np.isin(a, b, assume_unique=True).any())


def agreed(readers: list[np.ndarray]) -> np.ndarray:
    """Return the voxels that at least half of the nodule's readers marked. `readers` contains one array per reader."""
    voxels, counts = np.unique(np.concatenate(readers), return_counts=True)
    return voxels[2 * counts >= len(readers)]


def _all(root: Any, *names: str) -> list[Any]:
    return [element for element in root.iter() if element.tag in names]


def _local(tag: Any) -> str:
    """Return the name of a tag without its namespace."""
    return str(tag).rpartition("}")[2]


def _text(element: Any) -> str:
    return "" if element is None else (element.text or "").strip()
