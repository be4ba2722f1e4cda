"""Read slices of CT volumes (DICOM series and NIfTI files) in Hounsfield units and radiological orientation.

Row 0 is at the front (anterior), column 0 at the patient's right, and slice 0 at the feet. The axes of a file and their
directions come from its affine or its direction cosines, never from the order of the array.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saliency_bench.errors import one_line
from saliency_bench.hub_builders._source import library, nearest, walked
from saliency_bench.utils.files import check_readable
from saliency_bench.utils.pictures import LARGEST, MAX_PIXELS, UnreadableError

AIR = -1000.0  # Hounsfield units of air, the fill value outside the scanned region
SIDE = 224
TAGS = ["SOPInstanceUID", "SeriesInstanceUID", "PatientID", "ImagePositionPatient", "ImageOrientationPatient"]


@dataclass(frozen=True)
class Slice:
    """A slice of a DICOM series.

    Attributes:
        path: File of the slice.
        uid: DICOM UID of the slice.
        place: Position of the slice in millimetres along the normal of its plane, increasing towards the head.
    """

    path: Path
    uid: str
    place: float


def windowed(units: np.ndarray, centre: float, width: float) -> np.ndarray:
    """Map Hounsfield units to uint8. The bounds of the window become 0 and 255, and values outside it are clipped."""
    low = centre - width / 2
    return np.clip(np.rint((units - low) * (255 / width)), 0, 255).astype(np.uint8)


def squared(grey: np.ndarray, side: int = SIDE) -> np.ndarray:
    """Resize a grey image bilinearly to uint8 (side, side, 3). If the image shrinks, pixels are averaged."""
    small = Image.fromarray(grey).resize((side, side), Image.Resampling.BILINEAR)
    return np.repeat(np.asarray(small)[..., None], 3, axis=2)


def squared_mask(mask: np.ndarray, side: int = SIDE) -> np.ndarray:
    """Resize a mask to (side, side)."""
    return nearest(mask, side, side)


# DICOM


def header(path: Path) -> Any:
    """Return the header of a DICOM file.

    Raises:
        UnreadableError: The file does not belong to a series.
    """
    pydicom = library("pydicom")
    try:
        check_readable(path, LARGEST)
        stored = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
        return stored if stored.get("SeriesInstanceUID") else _no("the DICOM file has no SeriesInstanceUID")
    except UnreadableError:
        raise
    except Exception as error:  # the reader raises errors of many types on damaged files
        raise UnreadableError(f"not a readable DICOM file ({one_line(error)})") from None


def series_in(root: Path) -> Iterator[tuple[Path, Any]]:
    """Yield (folder, DICOM header) for each folder below `root` that contains a DICOM series, sorted by path.

    The header is None if no file in the folder can be read.
    """
    for folder, _, files in walked(root):
        dicoms = [name for name in files if name.lower().endswith(".dcm") and not name.startswith(".")]
        if dicoms:
            yield folder, next(filter(None, (_header_or_none(folder / name) for name in dicoms)), None)


def _header_or_none(path: Path) -> Any:
    """Return the header of the first readable file in a folder, or None."""
    try:
        return header(path)
    except UnreadableError:
        return None


def slices_of(folder: Path, series: str) -> tuple[list[Slice], list[str]]:
    """Return the slices of a series, ordered from the feet to the head, and the problems with files in the folder."""
    by_place: dict[float, Slice] = {}
    faults = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.suffix.lower() != ".dcm" or path.name.startswith("."):
            continue
        try:
            head = header(path)
            if str(head.SeriesInstanceUID) != series:
                continue
            slice_ = Slice(path, str(head.get("SOPInstanceUID")), _place(head))
            if slice_.place in by_place:
                raise UnreadableError(f"at the same position as {by_place[slice_.place].path.name}")
            by_place[slice_.place] = slice_
        except UnreadableError as error:
            faults.append(f"{path.name}: {error}")
    return [by_place[place] for place in sorted(by_place)], faults


def gaps(slices: list[Slice]) -> int:
    """Return the number of missing slices, estimated from the usual distance between slices."""
    steps = np.diff([slice_.place for slice_ in slices])
    return 0 if len(steps) == 0 else int(np.maximum(np.rint(steps / np.median(steps)) - 1, 0).sum())


def _cosines(head: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the directions in which columns, rows and slices increase, in DICOM's axes (left, back, head)."""
    try:
        across, down = np.array(head.ImageOrientationPatient, np.float64).reshape(2, 3)
        place = np.array(head.ImagePositionPatient, np.float64).reshape(3)
    except Exception:
        raise UnreadableError("the DICOM file has no position and orientation") from None
    normal = np.cross(across, down)
    if not np.isfinite([*across, *down, *place]).all() or abs(normal[2]) < 0.5 or abs(across[0]) < 0.5:
        raise UnreadableError("not an axial slice")
    return across, down, normal


def _place(head: Any) -> float:
    """Return the position of a slice in millimetres, increasing towards the head."""
    normal = _cosines(head)[2]
    return float(np.array(head.ImagePositionPatient, np.float64) @ (normal * np.sign(normal[2])))


def units_of(path: Path) -> tuple[np.ndarray, tuple[float, float], tuple[bool, bool]]:
    """Read the Hounsfield units of a slice.

    Returns:
        Hounsfield units (H, W), in the order of the file.
        Distances between rows and between columns, in millimetres.
        Flips: whether row 0 is at the patient's back, and whether column 0 is at the patient's left.

    Raises:
        UnreadableError: The file cannot be read.
    """
    pydicom = library("pydicom")
    try:
        check_readable(path, LARGEST)
        data = pydicom.dcmread(path)
        if (
            int(data.get("Rows", 0)) * int(data.get("Columns", 0)) * int(data.get("NumberOfFrames", 1) or 1)
            > MAX_PIXELS
        ):
            raise UnreadableError(f"more than {MAX_PIXELS // 10**6} million pixels")
        if "PixelData" not in data:
            raise UnreadableError("the DICOM file has no pixel data")
        values = np.asarray(data.pixel_array, np.float64)
        spacing = [float(value) for value in data.PixelSpacing]
        slope, intercept = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
        padding = data.get("PixelPaddingValue")
        limit = data.get("PixelPaddingRangeLimit", padding)
        across, down, _ = _cosines(data)
    except UnreadableError:
        raise
    except Exception as error:
        raise UnreadableError(f"not a readable DICOM file ({one_line(error)})") from None
    if values.ndim != 2 or len(spacing) != 2 or not min(spacing) > 0 or not np.isfinite([slope, intercept]).all():
        raise UnreadableError("the DICOM file does not contain a single plane of pixels with a valid spacing")
    units = values * slope + intercept
    if padding is not None:
        units[(values >= min(float(padding), float(limit))) & (values <= max(float(padding), float(limit)))] = AIR
    return units, (spacing[0], spacing[1]), (bool(down[1] < 0), bool(across[0] < 0))


def upright(plane: np.ndarray, flips: tuple[bool, bool]) -> np.ndarray:
    """Flip a plane to radiological orientation."""
    return plane[:: -1 if flips[0] else 1, :: -1 if flips[1] else 1]


# NIfTI


class Nifti:
    """A NIfTI volume whose slices are read on demand.

    Raises:
        UnreadableError: The file is not a valid NIfTI volume with three axes.
    """

    def __init__(self, path: Path):
        nibabel = library("nibabel")
        try:
            self.file = nibabel.load(path)
            shape = tuple(int(n) for n in self.file.shape)
            while len(shape) > 3 and shape[-1] == 1:
                shape = shape[:-1]
            axes = nibabel.io_orientation(self.file.affine)
        except Exception as error:
            raise UnreadableError(f"not a readable NIfTI file ({one_line(error)})") from None
        if len(shape) != 3 or min(shape) < 1:
            raise UnreadableError(f"the volume has {len(shape)} axes; it must have 3")
        if not np.isfinite(axes).all() or sorted(axes[:, 0]) != [0, 1, 2]:
            raise UnreadableError("the volume has no valid affine")
        if np.prod(np.delete(shape, int(np.argmax(axes[:, 0] == 2)))) > MAX_PIXELS:
            raise UnreadableError(f"more than {MAX_PIXELS // 10**6} million pixels in a slice")
        self.axis = [
            int(np.flatnonzero(axes[:, 0] == world)[0]) for world in range(3)
        ]  # axes of the file that point to the right, the front and the head
        self.grows = [axes[axis, 1] > 0 for axis in self.axis]
        self.shape, self.affine = shape, np.asarray(self.file.affine, np.float64)

    def __len__(self) -> int:
        return self.shape[self.axis[2]]

    def slice(self, number: int) -> np.ndarray:
        """Return slice `number`, counted from the feet, in radiological orientation.

        Values are float64 in the file's scale, with NaN replaced by air.
        """
        place: list[Any] = [slice(None)] * len(self.file.shape)
        place[self.axis[2]] = number if self.grows[2] else len(self) - 1 - number
        place[3:] = [0] * (len(place) - 3)
        try:
            plane = np.asarray(self.file.dataobj[tuple(place)], np.float64)
        except Exception as error:
            raise UnreadableError(f"not a readable NIfTI file ({one_line(error)})") from None
        plane = (
            plane if self.axis[1] < self.axis[0] else plane.T
        )  # rows run from front to back, columns from right to left
        return np.where(np.isfinite(plane), plane, AIR)[:: -1 if self.grows[1] else 1, :: -1 if self.grows[0] else 1]


def _no(text: str) -> None:
    """Raise UnreadableError. Unlike a raise statement, a call can be part of an expression."""
    raise UnreadableError(text)
