"""LIDC-IDRI: CT slices with lung nodules that readers agree on, and nearby lung regions without any mark.

Source: LIDC-IDRI (The Cancer Imaging Archive, cancerimagingarchive.net/collection/lidc-idri; CC BY 3.0; 125 GB) as
downloaded and unpacked.

- The DICOM series, in subfolders at any depth, as created by the NBIA Data Retriever.
- The readers' XML, either next to the series or as `tcia-lidc-xml/*/*.xml` (LIDC-XML-only.zip).
- Optional: `LIDC-IDRI_MetaData.csv` or `metadata.csv`, a table with columns for the series UID and the patient. If
  there is no such table, the patient is read from the DICOM files.

Chest X-rays and their XML files are skipped.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples, _lidc
from saliency_bench.hub_builders._papers import SALIENCY_BENCH
from saliency_bench.hub_builders._source import files_below, needed, table
from saliency_bench.hub_builders._volumes import (
    AIR,
    SIDE,
    Slice,
    gaps,
    series_in,
    slices_of,
    squared,
    squared_mask,
    units_of,
    upright,
    windowed,
)
from saliency_bench.utils.pictures import UnreadableError
from saliency_bench.utils.seeds import random_bits, seed_of

VERSION = "1"
ALSO_CALLED = ("lidc", "lidc-idri")
TITLE = "Disease-XAI"
ANNOTATORS = ("expert-generated",)
SOURCES = ("extended|other-lidc-idri",)
PAPER = SALIENCY_BENCH
LICENSE = "cc-by-3.0"
REDISTRIBUTE = True
TAGS = ["medical"]
JOBS = 8
PROCESSES = True
EXAMPLE = {"crop_mm": 25.0}
PAPER_COUNTS = {"samples": 5250, "masks": 2625, "label": {"nodule": 2625, "no nodule": 2625}}
GROUP = "the patient"
CITATION = """@article{armato2011lung,
  title = {The Lung Image Database Consortium ({LIDC}) and Image Database Resource Initiative ({IDRI}): A Completed
           Reference Database of Lung Nodules on {CT} Scans},
  author = {Armato III, Samuel G. and McLennan, Geoffrey and Bidaut, Luc and others},
  journal = {Medical Physics},
  year = {2011}
}"""
RULE = """Marks with contours (nodules of 3 mm or more) that share a voxel belong to the same nodule. The volume of a
nodule contains every voxel that at least half of the readers who marked the nodule enclosed. The pixels of a contour
are outside the nodule, and contours with `inclusion` FALSE are holes. A sample is a square from the middle slice of
this volume. The side of the square is `crop_mm` millimetres, or 1.5 times the size of the nodule if that is more. The
nodule is at a random position in the square unless the option `centred` is set. The image is 224 x 224 in the lung
window (centre -600, width 1500). For each nodule there is also a sample without a nodule: a square of the same size in
the same slice. It is at least 10 mm away (in z too) from every mark of every reader, and at least a quarter of it is
lung. All samples of a patient are in one split. `readers` is the number of readers who marked the nodule."""

HOME = "LIDC-IDRI, The Cancer Imaging Archive (CC BY 3.0)"
CENTRE, WIDTH = -600, 1500  # lung window
AWAY = 10.0  # minimum distance to any mark in millimetres
LUNG, LUNG_SHARE = (-950.0, -400.0), 0.25
TRIES = 400
Box = tuple[float, float, float]  # top, left, side, in pixels


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel, Value

    return {
        "label": ClassLabel(names=["nodule", "no nodule"]),
        "patient": Value("string"),
        "readers": Value("int32"),
        "slice_uid": Value("string"),
    }


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    min_readers: int = 1,
    crop_mm: float = 50.0,
    centred: bool = False,
    seed: int = 0,
) -> Iterator[Job]:
    """Yield one job per series; the samples of a job show nodules of the series, and regions without a nodule.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        min_readers: leave out nodules that were marked by fewer readers than this.
        crop_mm: side of the square, in millimetres.
        centred: put the nodule in the middle of the square.
        seed: seed for the positions of the squares.
    """
    if not 1 <= min_readers <= 4 or not 5 <= crop_mm <= 500:
        raise UserError(
            "disease-xai: min_readers must be 1 to 4, and crop_mm must be 5 to 500 millimetres; "
            f"got {min_readers} and {crop_mm}"
        )
    root = needed(source, "disease-xai", HOME)
    series, patients = series_of(root, log), patients_of(root)
    readings = files_below(root, ".xml")
    if not readings:
        raise UserError(
            f"{root} does not contain the readers' XML files (LIDC-XML-only.zip); download the source again and "
            f"unpack it: {HOME}"
        )
    if not series:
        raise UserError(
            f"{root} has no DICOM series (*.dcm), only XML files; download the source again and unpack it: {HOME}"
        )
    log.expected = len(readings)
    seen: set[str] = set()
    for path in readings:
        name = path.relative_to(root).as_posix()
        uid = series_uid(path, name, log)
        if uid is None:
            continue
        if uid in seen:
            log.remark(
                name, "this file is skipped, because a different XML file for the same series was read before it"
            )
        elif uid not in series:
            log.leave_out(uid, "image", f"no DICOM series has the UID in {path.name}")
        else:
            folder, dicom_patient = series[uid]
            patient = patients.get(uid) or dicom_patient
            if dicom_patient and patient != dicom_patient:
                log.remark(uid, f"the metadata table lists patient {patient}, but the DICOM files list {dicom_patient}")
            if patient:
                yield Job(nodules, path, folder, name, patient, min_readers, crop_mm, centred, seed)
            else:
                log.leave_out(uid, "image", "neither a metadata table nor the DICOM files name the patient")
        seen.add(uid)
    for uid in sorted(set(series) - seen):
        log.remark(uid, f"the series in {series[uid][0].relative_to(root).as_posix()} has no XML file from the readers")


def series_uid(path: Path, name: str, log: BuildLog) -> str | None:
    """Return the series UID of an XML file, or log the reason and return None if it cannot be read."""
    try:
        uid = _lidc.series_of(path)
        if uid is None:
            log.leave_out(name, "image", "the marks belong to a chest X-ray, not to a CT scan")
        return uid
    except UnreadableError as error:
        log.leave_out(name, "image", str(error))
        return None


def series_of(root: Path, log: BuildLog) -> dict[str, tuple[Path, str]]:
    """Return {series UID: (folder, patient)} of the DICOM files."""
    folders: dict[str, tuple[Path, str]] = {}
    for folder, head in series_in(root):
        if head is None:
            log.leave_out(folder.relative_to(root).as_posix(), "image", "the folder contains no readable DICOM file")
        else:
            folders.setdefault(str(head.SeriesInstanceUID), (folder, str(head.get("PatientID") or "")))
    return folders


def patients_of(root: Path) -> dict[str, str]:
    """Return {series UID: patient} from the metadata tables. Case and spaces in column names are ignored."""
    patients: dict[str, str] = {}
    for path in files_below(root, ".csv"):
        if path.name.lower() not in ("lidc-idri_metadata.csv", "metadata.csv"):
            continue
        for _, row in table(path, []):
            plain = {key.strip().lower().replace(" ", ""): value.strip() for key, value in row.items()}
            patient = plain.get("patientid") or plain.get("subjectid")
            uid = plain.get("seriesuid") or plain.get("seriesinstanceuid")
            if patient and uid:
                patients.setdefault(uid, patient)
    return patients


def nodules(
    log: BuildLog,
    path: Path,
    folder: Path,
    file: str,
    patient: str,
    min_readers: int,
    crop_mm: float,
    centred: bool,
    seed: int,
) -> Iterator[dict]:
    """Yield the samples of one series: images with a nodule, and images without one."""
    try:
        reading = _lidc.reading_of(path)
    except UnreadableError as error:
        log.leave_out(file, "image", str(error))
        return
    name = f"{patient}-{reading.series.rpartition('.')[2][-6:]}"
    slices, faults = slices_of(folder, reading.series)
    for fault in reading.faults + faults:
        log.remark(name, fault)
    if missing := gaps(slices):
        log.remark(name, f"{missing} slices of the series are probably missing")
    number_of = {slice_.uid: number for number, slice_ in enumerate(slices)}
    marks = [mark for mark in reading.marks if not mark.is_point]
    for mark in marks:
        if lost := [contour for contour in mark.contours if contour.uid not in number_of]:
            log.remark(
                name,
                f"reader {mark.reader + 1}, mark {mark.name!r}: contours skipped because their slices are missing: "
                f"{len(lost)}",
            )
    nodules_found = _lidc.nodules_of([(mark.reader, _lidc.voxels_of(mark, number_of)) for mark in marks])
    for number, readers in enumerate(nodules_found, 1):
        image_id = f"{name}-nodule-{number}"
        try:
            voxels = _lidc.agreed(list(readers.values()))
            if len(readers) < min_readers:
                raise UnreadableError(f"marked by fewer than {min_readers} readers")
            if not len(voxels):
                raise UnreadableError("no voxel is inside its contours, or its slices are missing")
            yield from both(log, image_id, patient, voxels, len(readers), slices, reading, crop_mm, centred, seed)
        except UnreadableError as error:
            log.leave_out(image_id, "image", str(error))


def both(
    log: BuildLog,
    image_id: str,
    patient: str,
    voxels: np.ndarray,
    readers: int,
    slices: list[Slice],
    reading: _lidc.Reading,
    crop_mm: float,
    centred: bool,
    seed: int,
) -> Iterator[dict]:
    """Yield one sample with the nodule and one without. If a sample cannot be made, the reason is logged."""
    numbers = np.unique(voxels // _lidc.WIDE**2)
    middle = int(numbers[(len(numbers) - 1) // 2])
    units, spacing, flips = units_of(slices[middle].path)
    mask = np.zeros(units.shape, bool)
    rows, columns = np.divmod(voxels[voxels // _lidc.WIDE**2 == middle] % _lidc.WIDE**2, _lidc.WIDE)
    if rows.max() >= units.shape[0] or columns.max() >= units.shape[1]:
        raise UnreadableError("a contour exceeds its slice")
    mask[rows, columns] = True
    extent = max(np.ptp(rows) + 1, np.ptp(columns) + 1)
    side = max(crop_mm / spacing[0], 1.5 * extent)
    common = {"patient": patient, "group": patient, "slice_uid": slices[middle].uid}
    top, left = around(rows, columns, side, None if centred else seed_of(seed, image_id, "place"))
    positive = cropped(units, mask, (top, left, side), flips)
    if positive["mask"].any():
        yield common | positive | {"image_id": image_id, "label": "nodule", "readers": readers}
    else:
        log.leave_out(image_id, "image", "the nodule covers no pixel of the sample, because it is too small")
    beside = image_id.replace("-nodule-", "-beside-")
    forbidden = marked(reading, slices[middle].place, slices, spacing)
    box = surrounding(units, forbidden, (top, left, side), seed_of(seed, image_id, "beside"))
    if box is None:
        log.leave_out(beside, "image", f"no square of lung in this slice is {AWAY:.0f} mm away from every mark")
    else:
        yield common | cropped(units, None, box, flips) | {"image_id": beside, "label": "no nodule", "readers": 0}


def around(rows: np.ndarray, columns: np.ndarray, side: float, seed: int | None) -> tuple[float, float]:
    """Return the top and left of a square that contains the given pixels.

    If there is no seed, the pixels are centred. If there is a seed, their position is random and, if possible, at least
    an eighth of the side away from each edge of the square.
    """
    corner = []
    for axis, pixels in enumerate((rows, columns)):
        low, high = pixels.min() - 0.5, pixels.max() + 0.5
        room = max(side - (high - low) - side / 4, 0)
        share = 0.5 if seed is None else int(random_bits(seed, 2)[axis]) / 2**64
        corner.append((low + high) / 2 - side / 2 + room * (share - 0.5))
    return corner[0], corner[1]


def cropped(units: np.ndarray, mask: np.ndarray | None, box: Box, flips: tuple[bool, bool]) -> dict:
    """Cut out a square, and return its image and mask in radiological orientation. Pixels outside the slice are air."""
    top, left, side = (round(value) for value in box)
    rows, columns = np.arange(top, top + side), np.arange(left, left + side)
    inside = np.ix_((rows >= 0) & (rows < units.shape[0]), (columns >= 0) & (columns < units.shape[1]))
    there = np.ix_(rows[inside[0].ravel()], columns[inside[1].ravel()])
    window = np.full((side, side), AIR)
    window[inside] = units[there]
    sample = {"image": squared(windowed(upright(window, flips), CENTRE, WIDTH), SIDE)}
    if mask is None:
        return sample
    shape = np.zeros((side, side), bool)
    shape[inside] = mask[there]
    return sample | {"mask": squared_mask(upright(shape, flips))}


def marked(
    reading: _lidc.Reading, z: float, slices: list[Slice], spacing: tuple[float, float]
) -> list[tuple[float, float, float, float]]:
    """Return the bounding boxes of all marks within `AWAY` of the slice, extended by `AWAY` on each side.

    A box is (top, left, bottom, right) in pixels.
    """
    places = {slice_.uid: slice_.place for slice_ in slices}
    boxes = []
    for mark in reading.marks:
        for contour in mark.contours:
            if abs(places.get(contour.uid, contour.z) - z) <= AWAY:
                columns, rows = np.array(contour.points).T
                down, across = AWAY / spacing[0], AWAY / spacing[1]
                boxes.append((rows.min() - down, columns.min() - across, rows.max() + down, columns.max() + across))
    return boxes


def surrounding(units: np.ndarray, forbidden: list[tuple], box: Box, seed: int) -> Box | None:
    """Return a square of the size of `box` that contains enough lung and no mark, or None if none is found.

    The function tries `TRIES` random positions, first within two side lengths of `box` and then anywhere in the slice,
    and returns the first position that meets both conditions.
    """
    top, left, side = box
    height, width = units.shape
    draws = random_bits(seed, 2 * TRIES).reshape(-1, 2) / 2.0**64
    for attempt, (down, across) in enumerate(draws):
        if attempt < TRIES // 2:
            row, column = top + (down - 0.5) * 4 * side, left + (across - 0.5) * 4 * side
        else:
            row, column = down * (height - side), across * (width - side)
        if row < 0 or column < 0 or row + side > height or column + side > width:
            continue
        if any(row < b and t < row + side and column < r and f < column + side for t, f, b, r in forbidden):
            continue
        inside = units[round(row) : round(row + side), round(column) : round(column + side)]
        if np.mean((inside > LUNG[0]) & (inside < LUNG[1])) >= LUNG_SHARE:
            return row, column, side
    return None


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    size = max(2 * side, 128)
    for patient in range(-(-count // 2)):
        series = _examples.SERIES.format(7000 + patient)
        uids = [f"{series}.{number}" for number in range(7)]
        top = round(0.35 * size) + 4 * (patient % 8)
        where = ((top, top + size // 12), (round(0.22 * size), round(0.22 * size) + size // 12))
        for number, uid in enumerate(uids):
            units = _examples.chest(size, size, patient)
            if 2 <= number <= 4:
                rows, columns = (np.arange(first, last + 1) for first, last in where)
                units[np.ix_(rows, columns)] = 60
            path = folder / f"LIDC-IDRI/LIDC-IDRI-{patient + 1:04d}/study/series/1-{number:03d}.dcm"
            spacing = [110 / size] * 2
            _examples.dicom(
                path, units, (0, 0, 2.5 * number), uid, series, f"LIDC-IDRI-{patient + 1:04d}", PixelSpacing=spacing
            )
        marks = [(2.5 * n, uids[n], True, _examples.outline(*where)) for n in (2, 3, 4)]
        sessions = [[("unblindedReadNodule", "1", marks)], [("unblindedReadNodule", "a", marks[:2])], [], []]
        _examples.text(folder / f"tcia-lidc-xml/157/{patient:03d}.xml", _examples.lidc_xml(series, sessions))
    table = "".join(f"{_examples.SERIES.format(7000 + n)},LIDC-IDRI-{n + 1:04d}\n" for n in range(-(-count // 2)))
    _examples.text(folder / "LIDC-IDRI_MetaData.csv", "Series UID,Patient Id\n" + table)
