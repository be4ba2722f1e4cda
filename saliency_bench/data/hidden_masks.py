"""Datasets with hidden masks of one split: the published part, the kept part, and joining both again.

The published split has the columns `SHOWN`; all others are null, because boxes, sources and counts of regions reveal
masks. Files, counts and the card are recreated from these rows. The kept part are the annotations of the split
(`annotations.split_off`): everything except the pictures, with their checksums.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, Image

from saliency_bench.data.annotations import checksum, features_of, rows_of, split_off
from saliency_bench.data.build_report import HIDDEN, SplitWriter, read_report
from saliency_bench.data.fingerprints import stored_bytes
from saliency_bench.errors import UserError, one_line, unknown

MASKS_OF = "masks_of"  # key of the report of hidden masks: the repository that lacks them
SHOWN = ("image", "image_id", "label", "labels", "group", "source_split")


def hide_masks(folder: Path, build_report: dict[str, Any], split: str, out: Path) -> dict[str, Any]:
    """Write a built dataset without the masks of a split into a folder, and return its build report.

    Args:
        folder: folder of the dataset.
        build_report: build report of the dataset.
        split: split whose masks are hidden.
        out: an empty folder.

    Raises:
        UserError: There is no such split, or it has no masks.
    """
    part = _split_with_masks(folder, build_report, split)
    (out / "data").mkdir()
    for file in (file for name, other in build_report["splits"].items() if name != split for file in other["files"]):
        (out / file["path"]).symlink_to((folder / file["path"]).resolve())
    writer = SplitWriter(out / "data", split, features_of(folder, build_report))
    counts = {name: dict(count) if isinstance(count, dict) else count for name, count in build_report["counts"].items()}
    telling = [column for column in writer.classes if column not in SHOWN]  # classes that reveal masks
    ids = set()
    for row in rows_of(folder, part):
        ids.add(row["image_id"])
        for column in telling:
            if row[column] is not None:
                counts[column][writer.shards.features[column].names[row[column]]] -= 1
        writer.add({name: value if name in SHOWN else None for name, value in row.items()})
    left_out = [entry for entry in build_report["left_out"] if entry["what"] != "mask" or entry["id"] not in ids]
    counts["masks"] -= part["masks"]
    counts["masks_left_out"] = sum(entry["what"] == "mask" for entry in left_out)
    return build_report | {
        HIDDEN: split,
        "counts": counts,
        "splits": build_report["splits"] | {split: writer.report(writer.shards.close())},
        "left_out": left_out,
        "remarks": [remark for remark in build_report["remarks"] if remark["id"] not in ids],
    }


def keep_masks(folder: Path, build_report: dict[str, Any], split: str, out: Path) -> dict[str, Any]:
    """Write the data that `hide_masks` leaves out into a folder, and return the build report.

    Arguments and errors are those of `hide_masks`.
    """
    part = _split_with_masks(folder, build_report, split)
    return split_off(folder, build_report | {"splits": {split: part}}, out)


def _split_with_masks(folder: Path, build_report: dict[str, Any], split: str) -> dict[str, Any]:
    """Return the entry of a split. Raise UserError if there is nothing to hide."""
    if split not in build_report["splits"]:
        raise unknown(f"split of {folder}", split, build_report["splits"])
    if not build_report["splits"][split]["masks"]:
        raise UserError(f"the split {split} of {folder} has no masks; leave out --hide-masks")
    return build_report["splits"][split]


def join_masks(rows: Dataset, kept: Path, split: str, repo: str | None = None) -> Dataset:
    """Return published rows with all hidden columns.

    Args:
        rows: published rows of the split.
        kept: the folder that `keep_masks` wrote.
        split: its name.
        repo: their repository, if they are from the Hub.

    Raises:
        UserError: The folder belongs to another split or repository, or an image differs from the image of the kept
            masks.
    """
    build_report = read_report(kept)
    # A stranger's copy with other labels is a different dataset with separate attempts.
    if repo is not None and (owner := str(build_report.get(MASKS_OF, repo))).casefold() != repo.casefold():
        raise UserError(f"the hidden masks belong to {owner}; maps of {repo} are not scored with them")
    if split not in build_report.get("splits", {}):
        raise UserError(f"{kept} holds no masks of the split {split}; give the repository that push dataset made")
    features = features_of(kept, build_report)
    notes = {note["image_id"]: note for note in rows_of(kept, build_report["splits"][split])}
    stored = rows.with_format(None).select_columns(["image_id", "image"]).cast_column("image", Image(decode=False))
    ids = []
    for row in stored:
        ids.append(image_id := row["image_id"])
        picture = {"bytes": stored_bytes(row["image"])}
        if image_id not in notes or checksum(picture) != notes[image_id]["image_sha256"]:
            raise UserError(f"image {one_line(image_id, 100)} is not the image of the hidden masks")
    if len(notes) != len(ids):
        raise UserError(f"the hidden masks are for {len(notes)} images, but the published split has {len(ids)}")
    for column, kind in features.items():
        if column in SHOWN or column.endswith("_sha256"):
            continue
        schema = Features({column: kind}).arrow_schema
        values = pa.array([notes[image_id][column] for image_id in ids], schema.field(column).type)
        rows = rows.remove_columns([column] if column in rows.column_names else [])
        rows = rows.add_column(column, values, feature=kind)
    return rows
