"""Your own images and masks, with labels from class folders or from a table.

    saliency-bench build folder --images PICTURES --masks MASKS --out my-data
    saliency-bench build folder --images PICTURES --labels TABLE --out my-data

Source: a folder of images. The names of its subfolders are the classes (`cat/1.jpg`; also `train/cat/1.jpg` and
`test/cat/2.jpg`), unless a table (CSV) with the columns `image` and `label` lists the labels. The table may also have
the columns `split` and `group`.

Masks are matched to images by name: `cat/1.png`, or `1.png` if no other image is named 1. A mask contains 0 and one
other value (0/1, 0/255, or black and one colour), with any number of channels or a palette. For masks with several
values, `--foreground` selects the object. If a folder contains `images/`, `masks/` and `labels.csv`, `--images` (or
`--source`) is enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples, _own
from saliency_bench.hub_builders._source import base_of, mask_or_none, needed, picture_of, table
from saliency_bench.utils.mask_values import choices
from saliency_bench.utils.picture_names import PictureNames

VERSION = "1"
OWN_DATA = "images"
USAGE = "--images pictures --masks masks"
TITLE = "Images in a folder"
ANNOTATORS = ("found",)
SOURCES = ("original",)
LICENSE = _own.LICENSE
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
PRIVATE = ("masks", "labels")
GROUP = "the column `group` of the table of labels, if any"
CITATION = _own.CITATION
RULE = """Each image is one sample. The mask is the object in the image's mask file: every pixel that is neither black
nor 0, or, with `foreground`, the pixels of that value or colour."""

HOME = "images in one folder per class, or with a table of labels (`--images DIR`, `--labels CSV`)"
PICTURE = ("image", "file", "filename", "imageid", "id", "path", "name")
LABEL = ("label", "class", "category", "target", "labelname", "classname")
# Names of folders in datasets such as PASCAL VOC, Cityscapes and exports from CVAT.
NO_CLASSES = ("annotations", "annotation", "jpegimages", "segmentationclass", "segmentationobject", "imagesets",
              "leftimg8bit", "gtfine", "images", "imgs", "masks", "labels", "trimaps", "segmentations")  # fmt: skip


@dataclass(frozen=True)
class FolderRow:
    """The label, split and group of an image."""

    label: str
    split: str | None = None
    group: str | None = None


def check(*, masks: str, labels: str, foreground: str, split: str, seed: int = 0) -> None:
    """Raise UserError if an option is invalid or names a missing file."""
    choices(foreground)
    _own.check_split("folder", split)
    if masks:
        _own.given_path(masks, "masks", folder=True)
    if labels:
        _own.given_path(labels, "labels")


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns of the dataset. Classes are sorted by name, or by value if they are numbers."""
    from datasets import ClassLabel

    return {"label": ClassLabel(names=classes["label"])}


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    masks: str = "",
    labels: str = "",
    foreground: str = "",
    split: str = "",
) -> Iterator[Job]:
    """Yield one job per image, ordered by name.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        masks: folder of the masks (default: masks/ next to images/ in the source).
        labels: table (CSV) with the columns image and label (default: labels.csv next to images/, else class folders).
        foreground: pixels of a mask that belong to the object: a value, a value and all greater values (128+), a colour
            ('#ff0000' or 255,0,0), nonzero, or alpha; separate several choices by spaces.
        split: train, validation or test for all images, or hash to split them in the ratio 70:15:15 (default: the split
            in the table or the split that the folder is named after, else test).
    """
    given = needed(source, "folder", HOME)
    images, masks_folder, listing = _places(given, masks, labels)
    names = _own.pictures_in(images, log, masks_folder, used=[listing] if listing else [])
    if not names:
        raise _own.no_pictures(images, log)
    _own.leave_out_beside(given, images, [masks_folder, listing], log)
    ids = _own.ids_of(names)
    rows = _list(listing, names, ids, log) if listing else _in_folders(images, names, ids, log)
    log.classes = {"label": sorted({row.label for row in rows.values()}, key=_by_number)}
    chosen, lacking = _masks(masks_folder, names, log)
    log.expected = len(rows)
    for name, row in sorted(rows.items()):
        mask = masks_folder / chosen[name] if masks_folder and name in chosen else None
        part = None if split == "hash" else split or row.split or "test"
        yield Job(sample_of, ids[name], images / name, mask, lacking.get(name, ""), row, foreground, part)


def sample_of(
    log: BuildLog,
    name: str,
    path: Path,
    mask: Path | None,
    lacking: str,
    row: FolderRow,
    foreground: str,
    split: str | None,
) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, name, path, "", deep=True)  # because the mask may already be upright
    if picture is None:
        return None
    if lacking:
        log.leave_out(name, "mask", lacking)
    shown = mask and mask_or_none(log, name, partial(_own.mask_of, mask, foreground, picture))
    known = {"image_id": name, "image": picture, "label": row.label, "mask": shown, "group": row.group}
    return known | ({"split": split} if split else {})


def _places(source: Path, masks: str, labels: str) -> tuple[Path, Path | None, Path | None]:
    base = base_of(source, "images", "masks")
    base = base if base.is_relative_to(source) else source
    images = base / "images" if (base / "images").is_dir() else base
    in_subfolder = images != base
    beside = base / "masks" if in_subfolder and (base / "masks").is_dir() else None
    table_beside = base / "labels.csv" if in_subfolder and (base / "labels.csv").exists() else None
    masks_folder = _own.given_path(masks, "masks", folder=True) if masks else beside
    if masks_folder == images.resolve():
        raise UserError(f"{images} is the folder of both images and masks; put the masks in a separate folder")
    return images, masks_folder, _own.given_path(labels, "labels") if labels else table_beside


def _masks(folder: Path | None, names: list[str], log: BuildLog) -> tuple[dict[str, str], dict[str, str]]:
    """Return ({image: mask file}, {image: why it has no mask}) and log masks without an image."""
    if folder is None:
        return {}, {}
    chosen, lacking, spare = _own.masks_for(names, _own.pictures_in(folder, log, kind="mask"))
    if spare and names and not chosen:
        wanted = PurePosixPath(names[0]).with_suffix(".png")
        raise UserError(
            f"no mask in {folder} has the name of an image: the folder contains {spare[0]}, but the mask of "
            f"{names[0]} must be named {wanted} or {wanted.name}; rename the masks"
        )
    for mask in spare:
        log.leave_out(mask, "mask", "no image has the same name as this mask file")
    return chosen, lacking


def _in_folders(images: Path, names: list[str], ids: dict[str, str], log: BuildLog) -> dict[str, FolderRow]:
    """Return {image: row}. The class and the split in a row come from the names of folders."""
    parts = {name: PurePosixPath(name).parts for name in names}
    if not any(len(folders) > 1 for folders in parts.values()):
        raise UserError(
            f"{images} has no class folders, and there is no table of labels; sort the images into one folder per "
            "class, or pass --labels CSV with the columns image and label"
        )
    above = sorted({folders[0] for folders in parts.values() if len(folders) > 1})
    in_splits = all(_own.split_of(f"{folder}/") for folder in above)
    rows = {}
    for name, folders in parts.items():
        if len(folders) <= 1 + in_splits:
            log.leave_out(ids[name], "image", "it is not in a class folder")
        else:
            rows[name] = FolderRow(folders[1], _own.split_of(f"{folders[0]}/")) if in_splits else FolderRow(folders[0])
    if no_classes := sorted({row.label for row in rows.values() if row.label.lower() in NO_CLASSES}):
        raise UserError(
            f"{images} has a folder named {no_classes[0]}, which is usually not a class; pass the folder that contains "
            "the class folders as --images and the folder of the masks as --masks, or pass --labels CSV with the "
            "columns image and label"
        )
    if not rows:
        raise UserError(
            f"{images} has no class folders in its splits {', '.join(above)}; sort the images of each split into "
            "one folder per class, or pass --labels CSV with the columns image and label"
        )
    return rows


def _list(listing: Path, names: list[str], ids: dict[str, str], log: BuildLog) -> dict[str, FolderRow]:
    known, unread = PictureNames(names), _own.unread(log)
    rows: dict[str, FolderRow] = {}
    lacking = dict.fromkeys(names, f"no valid row in {listing.name}")
    columns: dict[str, str] | None = None
    for number, row in table(listing, (), "fix the table"):
        columns = _columns(listing, list(row)) if columns is None else columns
        given, label, split, group = (row.get(columns.get(field, ""), "").strip() for field in FIELDS)
        called = known.called(given.removeprefix("./"))
        if split and split.lower() not in _own.SPLITS:
            raise UserError(f"{listing} line {number}: split '{split}' is unknown; use 'train', 'validation' or 'test'")
        if len(called) == 1 and not label:
            lacking[called[0]] = "its row in the table has no label"
        elif len(called) != 1:
            if called or not unread.called(given.removeprefix("./")):
                reason = f"{'several images match' if called else 'no image matches'} this row of the table"
                log.leave_out(given or f"{listing.name} line {number}", "image", reason)
        elif called[0] in rows:
            log.remark(
                ids[called[0]], f"{listing.name} line {number}: the image is listed twice; the first row is used"
            )
        else:
            rows[called[0]] = FolderRow(label, _own.SPLITS.get(split.lower()), group or None)
    if not rows:
        raise UserError(
            f"{listing} has no row with a label for an image in the folder; check the file names in its image column"
        )
    for name in names:
        if name not in rows:
            log.leave_out(ids[name], "image", lacking[name])
    return rows


FIELDS = ("image", "label", "split", "group")


def _columns(listing: Path, names: list[str]) -> dict[str, str]:
    """Return {field of a row: name of the table's column}.

    Raises:
        UserError: A required column is missing. The message lists the existing columns.
    """
    spelled = {"".join(sign for sign in name.casefold() if sign.isalnum()): name for name in reversed(names)}
    wanted = {"image": PICTURE, "label": LABEL, "split": ("split",), "group": ("group",)}
    columns = {field: next((spelled[name] for name in forms if name in spelled), "") for field, forms in wanted.items()}
    for field in ("image", "label"):
        if not columns[field]:
            raise UserError(
                f"{listing} has no column '{field}', only {', '.join(names)}; separate the columns with commas, or "
                f"rename one of them to '{field}'"
            )
    return {field: name for field, name in columns.items() if name}


def _by_number(label: str) -> tuple[int, int, str]:
    """Return a sort key. Numbers are sorted by value and come before names."""
    return (0, int(label), label) if label.isdecimal() else (1, 0, label)


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    rows = ["image,label,group"]
    for index in range(count):
        name = f"{index:03d}"
        mask = _examples.picture(folder / f"images/{name}.jpg", index, side)
        _examples.save(folder / f"masks/{name}.png", mask)
        label = _examples.drawn(index, side)["label"]
        rows.append(f"{name}.jpg,{label},series {index // 2}")
    _examples.text(folder / "labels.csv", "\n".join(rows) + "\n")
