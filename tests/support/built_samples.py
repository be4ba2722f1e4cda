"""Build samples from a source without writing files, and read built folders."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageOps

from saliency_bench import load_dataset
from saliency_bench.data.build_report import read_report
from saliency_bench.data.jobs import BuildLog, samples_of


def built_by(builder, source, **options):
    """Return ({image id: sample}, log)."""
    log = BuildLog()
    return {sample["image_id"]: sample for sample in samples_of(builder.samples(source, log, **options), log)}, log


def reasons(log, what=None):
    """Return {(id, left-out item): reason}, or {id: reason} for one type of item."""
    if what:
        return {entry["id"]: entry["reason"] for entry in log.left_out if entry["what"] == what}
    return {(entry["id"], entry["what"]): entry["reason"] for entry in log.left_out}


def columns(samples, *names):
    """Return {image id: values of these columns}."""
    return {key: tuple(sample[name] for name in names) for key, sample in samples.items()}


def read_back(folder):
    """Return (rows by id with their split, reasons of what was left out, report) of a built folder."""
    report = read_report(folder)
    splits = {split: load_dataset(folder, split) for split in report["splits"]}
    rows = {row["image_id"]: row | {"split": split} for split, part in splits.items() for row in part}
    return rows, {(one["id"], one["what"]): one["reason"] for one in report["left_out"]}, report


def mask_in(row):
    """Return the mask of a row as bool (H, W), or None."""
    return None if row["mask"] is None else np.asarray(row["mask"]) > 0


def content(folder):
    """Return {path: bytes} of the files in a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def as_shown(array, orientation):
    """Return an array of a stored file as Pillow shows an image with this EXIF orientation."""
    file, exif = BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.asarray(array, np.uint8)).save(file, "PNG", exif=exif)
    return np.asarray(ImageOps.exif_transpose(Image.open(file)))
