"""Small example sources in the raw layout of each dataset, for the tests and for the samples page.

A builder writes its example with `example(folder, count, side)`, and an example in a different layout with
`example_<LAYOUT>`. The constants `EXAMPLE` and `EXAMPLE_<LAYOUT>` contain the matching build options. The images are
drawn by shapes-xai or are phantoms, so they contain no real data.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saliency_bench import registry
from saliency_bench.hub_builders._source import BOX, library
from saliency_bench.hub_builders.shapes_xai import drawn

SIDE = 64
SERIES = "1.3.6.1.4.1.14519.5.2.1.6279.6001.{}"


def names() -> list[str]:
    """Return the names of all examples, such as "gender-xai" and "gender-xai release"."""
    written = []
    for name in registry.names("hub_builders"):
        layouts = [
            key.removeprefix("example") for key in dir(registry.load("hub_builders", name)) if key.startswith("example")
        ]
        written += [f"{name} {layout.removeprefix('_')}".strip() for layout in sorted(layouts)]
    return written


def write(name: str, folder: Path, count: int = 6, side: int = SIDE) -> Path:
    """Write the example source `name` with at least `count` samples and return its folder."""
    dataset, _, layout = name.partition(" ")
    getattr(registry.load("hub_builders", dataset), f"example_{layout}".rstrip("_"))(folder, count, side)
    return folder


def options(name: str) -> dict[str, Any]:
    """Return the build options of an example."""
    dataset, _, layout = name.partition(" ")
    builder = registry.load("hub_builders", dataset)
    return getattr(builder, f"EXAMPLE_{layout.upper()}".rstrip("_"), getattr(builder, "EXAMPLE", {}))


def picture(path: Path, index: int, side: int) -> np.ndarray:
    """Save image number `index` of shapes-xai, and return its mask, bool (side, side)."""
    sample = drawn(index, side)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sample["image"]).save(path, quality=95)
    return sample["mask"]


def text(path: Path, content: object) -> None:
    """Write a text file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def save(path: Path, values: np.ndarray) -> None:
    """Write an image file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def boxed(box: Sequence[object]) -> str:
    """Return the XML of a box [xmin, ymin, xmax, ymax]."""
    return "".join(f"<{corner}>{value}</{corner}>" for corner, value in zip(BOX, box, strict=True))


def dicom(
    path: Path, units: np.ndarray, position: tuple[float, float, float], uid: str, series: str, patient: str, **tags
):
    """Write one CT slice as scanners do, with unsigned pixels and intercept -1024.

    `tags` override the default DICOM tags. A tag with the value None is removed.
    """
    pydicom = library("pydicom")
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    meta.MediaStorageSOPInstanceUID = uid
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    values = np.clip(units + 1024, 0, 65535).astype(np.uint16)
    known = {
        "SOPClassUID": meta.MediaStorageSOPClassUID,
        "SOPInstanceUID": uid,
        "SeriesInstanceUID": series,
        "PatientID": patient,
        "Modality": "CT",
        "ImagePositionPatient": list(position),
        "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
        "PixelSpacing": [0.7, 0.7],
        "Rows": values.shape[0],
        "Columns": values.shape[1],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "BitsAllocated": 16,
        "BitsStored": 16,
        "HighBit": 15,
        "PixelRepresentation": 0,
        "RescaleSlope": 1,
        "RescaleIntercept": -1024,
        "PixelData": values.tobytes(),
    }
    for key, value in (known | tags).items():
        if value is not None:
            setattr(data, key, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path)


def chest(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return the Hounsfield units of a chest phantom with air, soft tissue, and two lungs with vessels."""
    rows, columns = np.mgrid[:height, :width]
    y, x = (rows + 0.5) / height - 0.5, (columns + 0.5) / width - 0.5
    units = np.full((height, width), -1000.0)
    units[(x / 0.46) ** 2 + (y / 0.4) ** 2 < 1] = 40
    for side in (-0.22, 0.22):
        units[((x - side) / 0.17) ** 2 + (y / 0.3) ** 2 < 1] = -820
    noise = np.random.default_rng(seed)
    for _ in range(40):
        top, left = noise.random(2) - 0.5
        vessel = (x - left) ** 2 + (y - top) ** 2 < 0.006**2
        units[vessel & (units == -820)] = 20
    return units + noise.normal(0, 15, units.shape)


def outline(rows: Sequence[int], columns: Sequence[int]) -> list[tuple[int, int]]:
    """Return the contour [(column, row)] just outside a rectangle of pixels. Radiologists draw contours in this way."""
    top, bottom, left, right = rows[0] - 1, rows[1] + 1, columns[0] - 1, columns[1] + 1
    upper = [(c, top) for c in range(left, right)] + [(right, r) for r in range(top, bottom)]
    return upper + [(c, bottom) for c in range(right, left, -1)] + [(left, r) for r in range(bottom, top, -1)]


def lidc_xml(
    series: str, sessions: Sequence[Sequence[tuple]], root: str = "LidcReadMessage", space: str = "http://www.nih.gov"
) -> str:
    """Return the LIDC XML for a series that several radiologists have read.

    Each session is a list of (kind, name, [(z, uid, inclusion, points)]), where `kind` is the tag of the XML element.
    """

    def roi(edge, z, uid, inclusion, points):
        edges = "".join(f"<{edge}><xCoord>{x}</xCoord><yCoord>{y}</yCoord></{edge}>" for x, y in points)
        if edge == "locus":
            return f"<imageZposition>{z}</imageZposition><imageSOP_UID>{uid}</imageSOP_UID>{edges}"
        return (
            f"<roi><imageZposition>{z}</imageZposition><imageSOP_UID>{uid}</imageSOP_UID>"
            f"<inclusion>{str(inclusion).upper()}</inclusion>{edges}</roi>"
        )

    def mark(kind, name, contours):
        edge = "locus" if kind == "nonNodule" else "edgeMap"
        key = "nonNoduleID" if kind == "nonNodule" else "noduleID"
        return f"<{kind}><{key}>{name}</{key}>{''.join(roi(edge, *mark_parts) for mark_parts in contours)}</{kind}>"

    read = ("".join(mark(*mark_parts) for mark_parts in marks) for marks in sessions)
    readings = "".join(f"<readingSession><annotationVersion>3</annotationVersion>{m}</readingSession>" for m in read)
    head = f"<ResponseHeader><SeriesInstanceUid>{series}</SeriesInstanceUid></ResponseHeader>"
    return f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{space}">{head}{readings}</{root}>'


def nifti(path: Path, world: np.ndarray, axes: str = "RAS", spacing: float = 1.0, tilt: float = 0.0, **header) -> None:
    """Write a volume as NIfTI.

    Args:
        path: Path of the file.
        world: Voxels, indexed as world[right, front, head].
        axes: Axis order of the file, such as "LPS" or "SRA", which is written into the affine.
        spacing: Spacing of the voxels in millimetres.
        tilt: Angle in radians by which the affine is rotated about the first axis.
        **header: Header fields `slope` and `inter`.
    """
    nibabel = library("nibabel")
    plain = nibabel.orientations.axcodes2ornt("RAS")
    turn = nibabel.orientations.ornt_transform(plain, nibabel.orientations.axcodes2ornt(tuple(axes)))
    data = nibabel.orientations.apply_orientation(world, turn)
    affine = np.diag([spacing, spacing, spacing, 1.0]) @ nibabel.orientations.inv_ornt_aff(turn, world.shape)
    rotation = np.eye(4)
    rotation[1:3, 1:3] = [[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]]
    file = nibabel.Nifti1Image(data, rotation @ affine)
    if "slope" in header:
        file.header.set_slope_inter(header["slope"], header["inter"])
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(file, path)


def nifti_plain(path: Path, data: np.ndarray) -> None:
    """Write an array as a NIfTI file without scaling or orientation."""
    nibabel = library("nibabel")
    nibabel.save(nibabel.Nifti1Image(data, np.eye(4)), path)
