"""Hide the masks of one split of a dataset: separate the published data from the hidden data, and join them again.

In the published split, only the columns in `SHOWN` have values. All other columns are null, because boxes, sources and
numbers of regions reveal masks. Files, counts and the card are created anew from the published rows. The hidden data
are the annotations of the split (`annotations.split_off`): all columns except the images, with checksums of the images.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, Image

from saliency_bench.data.annotations import checksum, features_of, rows_of, split_off
from saliency_bench.data.build_report import HIDDEN, SplitWriter, read_report
from saliency_bench.data.fingerprints import stored_bytes
from saliency_bench.errors import UserError, one_line, unknown

MASKS_OF = "masks_of"  # key in the report of the hidden masks: the repository that is published without these masks
SHOWN = ("image", "image_id", "label", "labels", "group", "source_split")


def hide_masks(folder: Path, build_report: dict[str, Any], split: str, out: Path) -> dict[str, Any]:
    """Write a copy of a built dataset without the masks of a split, and return the copy's build report.

    Args:
        folder: Folder of the dataset.
        build_report: Build report of the dataset.
        split: Split whose masks are hidden.
        out: Empty folder for the copy.

    Raises:
        UserError: The split does not exist, or has no masks.
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
    """Write the data that `hide_masks` leaves out to the folder `out`, and return the build report of `out`.

    Arguments and errors are the same as for `hide_masks`.
    """
    part = _split_with_masks(folder, build_report, split)
    return split_off(folder, build_report | {"splits": {split: part}}, out)


def _split_with_masks(folder: Path, build_report: dict[str, Any], split: str) -> dict[str, Any]:
    """Return the entry of a split in the build report, or raise UserError if the split has no masks."""
    if split not in build_report["splits"]:
        raise unknown(f"split of {folder}", split, build_report["splits"])
    if not build_report["splits"][split]["masks"]:
        raise UserError(f"the split {split} of {folder} has no masks to hide; remove the option --hide-masks")
    return build_report["splits"][split]


def join_masks(rows: Dataset, kept: Path, split: str, repo: str | None = None) -> Dataset:
    """Add the hidden columns to published rows.

    Args:
        rows: Published rows of the split.
        kept: Folder that `keep_masks` wrote.
        split: Name of the split.
        repo: Repository of the rows, if they come from the Hub.

    Raises:
        UserError: The folder belongs to a different split or repository, or an image differs from the image that the
            hidden masks were drawn on.
    """
    build_report = read_report(kept)
    # A copy with other labels, published by someone else, is a different dataset. Its attempts are counted separately.
    if repo is not None and (owner := str(build_report.get(MASKS_OF, repo))).casefold() != repo.casefold():
        raise UserError(
            f"the hidden masks belong to {owner}, so they cannot be used to score maps for {repo}; pass the hidden "
            f"masks of {repo}"
        )
    if split not in build_report.get("splits", {}):
        raise UserError(
            f"{kept} contains no masks of the split {split}; pass the private repository that `saliency-bench push "
            "dataset` created"
        )
    features = features_of(kept, build_report)
    notes = {note["image_id"]: note for note in rows_of(kept, build_report["splits"][split])}
    stored = rows.with_format(None).select_columns(["image_id", "image"]).cast_column("image", Image(decode=False))
    ids = []
    for row in stored:
        ids.append(image_id := row["image_id"])
        picture = {"bytes": stored_bytes(row["image"])}
        if image_id not in notes or checksum(picture) != notes[image_id]["image_sha256"]:
            raise UserError(
                f"image {one_line(image_id, 100)} differs from the image that the hidden masks were drawn on; use the "
                "published images"
            )
    if len(notes) != len(ids):
        raise UserError(f"the hidden masks are for {len(notes)} images, but the published split has {len(ids)} images")
    for column, kind in features.items():
        if column in SHOWN or column.endswith("_sha256"):
            continue
        schema = Features({column: kind}).arrow_schema
        values = pa.array([notes[image_id][column] for image_id in ids], schema.field(column).type)
        rows = rows.remove_columns([column] if column in rows.column_names else [])
        rows = rows.add_column(column, values, feature=kind)
    return rows
