"""CT slices of the pancreas: tumours from the Medical Segmentation Decathlon, normal cases from NIH Pancreas-CT.

Source: a folder with both datasets, as downloaded and unpacked.

- `Task07_Pancreas/` (medicaldecathlon.com, Task07_Pancreas.tar; CC BY-SA 4.0) with `imagesTr/*.nii.gz` and
  `labelsTr/*.nii.gz` (1 pancreas, 2 tumour).
- `Pancreas-CT/` (The Cancer Imaging Archive, NIH Pancreas-CT; CC BY 3.0) with one DICOM series per case in subfolders
at any depth, as created by the NBIA Data Retriever (also inside `manifest-*/`).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._papers import SALIENCY_BENCH
from saliency_bench.hub_builders._source import base_of, entries, first_folder, needed, part
from saliency_bench.hub_builders._volumes import (
    Nifti,
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
from saliency_bench.utils.seeds import seed_of

VERSION = "1"
TITLE = "Cancer-XAI"
ANNOTATORS = ("expert-generated",)
SOURCES = ("extended|other-msd-pancreas", "extended|other-nih-pancreas-ct")
PAPER = SALIENCY_BENCH
LICENSE = "cc-by-sa-4.0"
REDISTRIBUTE = True
TAGS = ["medical"]
JOBS = 8
PAPER_COUNTS = {"samples": 361, "masks": 281, "label": {"tumour": 281, "normal": 80}}
CITATION = """@article{antonelli2022medical,
  title = {The Medical Segmentation Decathlon},
  author = {Antonelli, Michela and Reinke, Annika and Bakas, Spyridon and others},
  journal = {Nature Communications},
  year = {2022}
}
@misc{roth2016data,
  title = {Data From {Pancreas-CT}},
  author = {Roth, Holger R. and Farag, Amal and Turkbey, Evrim B. and Lu, Le and Liu, Jiamin and Summers, Ronald M.},
  publisher = {The Cancer Imaging Archive},
  year = {2016}
}"""
RULE = """Each case contributes one axial slice, drawn with the seed. For a case with a tumour, the slice is drawn from
the slices that contain the tumour (label 2, which is the mask); for a normal case, it is drawn from all slices. Axes
and their directions come from the affine of the NIfTI file or from the direction cosines of the DICOM series. In the
image, the patient's front is at the top and the patient's right is on the left. The image is 224 x 224 in a soft-tissue
window (centre 40, width 400). The two classes come from two sources, so they differ in more than the tumour. `case` is
the name of the case in its source. `slice_index` counts from the feet."""

MSD = "Task07_Pancreas of the Medical Segmentation Decathlon, medicaldecathlon.com (CC BY-SA 4.0)"
NIH = "NIH Pancreas-CT, The Cancer Imaging Archive (CC BY 3.0)"
CENTRE, WIDTH = 40, 400  # soft-tissue window
TUMOUR, LABELS = 2, 2


def features() -> dict:
    """Return the columns of the dataset."""
    from datasets import ClassLabel, Value

    return {
        "label": ClassLabel(names=["tumour", "normal"]),
        "case": Value("string"),
        "slice_index": Value("int32"),
    }


def samples(source: Path | None, log: BuildLog, *, seed: int = 0) -> Iterator[Job]:
    """Yield one job per case, first the cases with a tumour, then the normal cases.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        seed: seed for drawing slices.
    """
    root = base_of(needed(source, "cancer-xai", f"{MSD}, and {NIH}"), "Task07_Pancreas")
    decathlon = first_folder(root, "Task07_Pancreas") or root
    part(decathlon, "imagesTr/", MSD)
    part(decathlon, "labelsTr/", MSD)
    normal = first_folder(root, "Pancreas-CT", "NIH Pancreas-CT") or _manifest(root)
    if normal is None:
        raise UserError(f"{root} has no Pancreas-CT/; pass the folder of the complete, unpacked source: {NIH}")
    images, labels = _cases(decathlon / "imagesTr", log), _cases(decathlon / "labelsTr", log)
    for case in sorted(set(labels) - set(images)):
        log.leave_out(case, "image", "imagesTr/ contains no image for this label")
    series = [(folder, head) for folder, head in series_in(normal)]
    log.expected = len(images) + len(series)
    for case in sorted(images):
        yield Job(tumour, case, images[case], labels.get(case), seed)
    seen: set[str] = set()
    for folder, head in series:
        case = str(head.get("PatientID") or folder.name) if head else folder.relative_to(normal).as_posix()
        if head is None:
            log.leave_out(case, "image", "the folder contains no readable DICOM file")
        elif case in seen:
            log.leave_out(
                f"{case}/{folder.name}", "image", "there is a second series for this case; the first one is used"
            )
        else:
            seen.add(case)
            yield Job(healthy, case, folder, str(head.SeriesInstanceUID), seed)


def _manifest(root: Path) -> Path | None:
    """Return the folder of the normal cases inside a `manifest-*` folder, or None."""
    return next((path for path in sorted(root.glob("manifest-*/Pancreas-CT")) if path.is_dir()), None)


def _cases(folder: Path, log: BuildLog) -> dict[str, Path]:
    """Return {case: file}. The `._` files that macOS adds to archives are ignored."""
    cases = {}
    for path in entries(folder):
        if path.name.startswith("."):
            continue
        case = path.name.removesuffix(".gz").removesuffix(".nii")
        if case == path.name or case in cases:
            log.leave_out(
                f"{folder.name}/{path.name}",
                "image",
                "the file name has no NIfTI extension, or a different file belongs to the same case",
            )
        else:
            cases[case] = path
    return cases


def tumour(log: BuildLog, case: str, image: Path, label: Path | None, seed: int) -> dict | None:
    """Return the sample of a case with a tumour, or log the reason and return None if the case is left out."""
    try:
        if label is None:
            raise UnreadableError("no label in labelsTr/")
        units, labels = Nifti(image), _labels(label)
        if units.shape != labels.shape:
            raise UnreadableError("the mask and the image differ in size")
        if not np.allclose(units.affine, labels.affine, atol=1e-2):
            log.remark(case, "the image and the label have different affines, so each is oriented by its own affine")
        there = [set(np.unique(labels.slice(number)).tolist()) for number in range(len(labels))]
        if wrong := set().union(*there) - set(range(LABELS + 1)):
            raise UnreadableError(f"label {min(wrong):g} in the mask is outside the range 0 to {LABELS}")
        number = drawn_slice(
            [number for number, labels_of_slice in enumerate(there) if TUMOUR in labels_of_slice], seed, case
        )
        mask = squared_mask(labels.slice(number) == TUMOUR)
        if not mask.any():
            raise UnreadableError("the tumour covers no pixel of the sample, because it is too small")
        image_of = squared(windowed(units.slice(number), CENTRE, WIDTH))
    except UnreadableError as error:
        log.leave_out(case, "image", str(error))
        return None
    return {"image_id": case, "image": image_of, "label": "tumour", "mask": mask, "case": case, "slice_index": number}


def _labels(path: Path) -> Nifti:
    try:
        return Nifti(path)
    except UnreadableError as error:
        raise UnreadableError(f"mask: {error}") from None


def healthy(log: BuildLog, case: str, folder: Path, series: str, seed: int) -> dict | None:
    """Return the sample of a normal case, or log the reason and return None if the case is left out."""
    try:
        slices, faults = slices_of(folder, series)
        for fault in faults:
            log.remark(case, fault)
        if missing := gaps(slices):
            log.remark(case, f"{missing} slices of the series are probably missing")
        number = drawn_slice(list(range(len(slices))), seed, case)
        units, _, flips = units_of(slices[number].path)
        image = squared(windowed(upright(units, flips), CENTRE, WIDTH))
    except UnreadableError as error:
        log.leave_out(case, "image", str(error))
        return None
    return {"image_id": case, "image": image, "label": "normal", "case": case, "slice_index": number}


def drawn_slice(numbers: list[int], seed: int, case: str) -> int:
    """Draw one of a case's slice numbers.

    Raises:
        UnreadableError: There is no slice to draw from.
    """
    if not numbers:
        raise UnreadableError("no slice can be drawn (no tumour, or no readable file)")
    return numbers[seed_of(seed, case, "slice") % len(numbers)]


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    for case in range(count):
        plane = _examples.chest(side, side, case)
        plane[plane < -500] = -80
        world = np.repeat(plane[::-1, ::-1].T[..., None], 5, axis=2)
        if case % 2:
            for number in range(5):
                path = folder / f"Pancreas-CT/PANCREAS_{case:04d}/study/series/1-{number:03d}.dcm"
                _examples.dicom(
                    path, plane, (0, 0, 1.0 * number), f"1.2.{case}.{number}", f"1.2.{case}", f"PANCREAS_{case:04d}"
                )
            continue
        label = np.zeros(world.shape, np.uint8)
        label[side // 3 : side // 2, side // 3 : side // 2, 1:4] = 1
        label[side // 3 : side // 3 + side // 8, side // 3 : side // 3 + side // 10, 1:4] = 2
        world[label == 2] -= 60
        axes = ("RAS", "LPS", "SRA")[case // 2 % 3]
        _examples.nifti(folder / f"Task07_Pancreas/imagesTr/pancreas_{case:03d}.nii.gz", world.astype(np.int16), axes)
        _examples.nifti(folder / f"Task07_Pancreas/labelsTr/pancreas_{case:03d}.nii.gz", label, axes)
