"""Publish the annotations of datasets whose images may not be redistributed, and join them with a user's own images.

The config `annotations` has all columns of the dataset, except that each column NAME with images (not masks) is
replaced by a column of checksums called `NAME_sha256`. A user who has the raw data can rebuild the dataset. The result
has the same rows as the original dataset; otherwise an error names the missing or changed images.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
from datasets import Dataset, Features, Image, Value

from saliency_bench import registry
from saliency_bench.data.build_report import REPORT, read_report
from saliency_bench.data.building import build
from saliency_bench.data.card import ANNOTATIONS, FOLDERS
from saliency_bench.data.fingerprints import picture_content
from saliency_bench.data.shards import ROW_GROUP, Shards
from saliency_bench.data.untrusted_reports import options_of
from saliency_bench.errors import UserError
from saliency_bench.utils.hashing import sha256_of
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.storage import cache_folder

SHOWN = 3  # maximum number of names in a message


def checksum(stored: dict | None) -> str | None:
    """Return the SHA-256 of an encoded image.

    For a PNG, the mode, size and pixels are hashed. For any other format, the bytes of the file are hashed.
    """
    content = picture_content(stored["bytes"]) if stored else None
    return None if content is None else sha256(content).hexdigest()


def pictures_of(features: Features) -> list[str]:
    """Return the columns that may not be redistributed. These are the columns with images other than masks."""
    return [name for name, kind in features.items() if isinstance(kind, Image) and "mask" not in name]


def features_of(folder: Path, build_report: dict) -> Features:
    """Return the columns of a built dataset."""
    file = next(iter(build_report["splits"].values()))["files"][0]["path"]
    return Features.from_arrow_schema(pq.read_schema(folder / file))


def without_images(features: Features) -> Features:
    """Replace the columns with images by columns with checksums, as in published annotations."""
    held_back = pictures_of(features)
    checksums = {f"{name}_sha256": Value("string") for name in held_back}
    return Features({name: kind for name, kind in features.items() if name not in held_back} | checksums)


def split_off(folder: Path, build_report: dict, out: Path) -> dict:
    """Write the annotations of a built dataset to `out`, and return a build report that lists the written files."""
    features = features_of(folder, build_report)
    held_back, kept = pictures_of(features), without_images(features)
    target = out / FOLDERS[ANNOTATIONS]
    target.mkdir(parents=True)
    splits = {}
    for split, part in build_report["splits"].items():
        shards = Shards(target, split, kept)
        for row in rows_of(folder, part):
            shards.add({name: row.get(name) for name in kept} | _sums(row, held_back))
        files = [
            {"path": f"{FOLDERS[ANNOTATIONS]}/{file.name}", "bytes": file.stat().st_size, "sha256": sha256_of(file)}
            for file in shards.close()
        ]
        splits[split] = part | {"num_bytes": shards.num_bytes, "files": files}
    return build_report | {"splits": splits}


def rows_of(folder: Path, part: dict, columns: Iterable[str] | None = None) -> Iterator[dict]:
    """Yield the rows of one split of a built dataset, with encoded images.

    Args:
        folder: Folder of the dataset.
        part: Entry of the split in the build report.
        columns: Columns to read, or None for all.
    """
    for file in part["files"]:
        wanted = None if columns is None else list(columns)
        for batch in pq.ParquetFile(folder / file["path"]).iter_batches(ROW_GROUP, columns=wanted):
            yield from batch.to_pylist()


def joined(notes: Dataset, build_report: dict, split: str, source: Path) -> Path:
    """Rebuild a dataset from `source` in the cache, check all its images, and return its folder.

    Args:
        notes: Published annotations of a split.
        build_report: Build report that was published with the annotations.
        split: Name of the split.
        source: The user's copy of the raw data.

    Raises:
        UserError: Images are missing in `source` or differ from the annotated images, the builder has a different
            version, or the source cannot be read. The message names the images.
    """
    name, builder = build_report["dataset"], registry.load("hub_builders", build_report["dataset"])
    options = options_of(build_report, name)
    if build_report["version"] != builder.VERSION:
        raise UserError(
            f"the annotations of {name} were made with version {build_report['version']} of its builder, but the "
            f"installed version is {builder.VERSION}; install the matching version of saliency-bench, or build the "
            "dataset from its source"
        )
    source = source.expanduser().resolve()
    prints = [part["fingerprint"] for part in build_report["splits"].values()]
    identity = f"{seed_of(str(source), build_report['version'], sorted(build_report['options'].items()), prints):016x}"
    out = cache_folder() / "datasets" / f"{name}-joined-{identity}"
    if not (out / REPORT).is_file():
        build(name, out, source, progress=sys.stderr.isatty(), **options)
    try:
        _check_joined(notes, out, build_report, split)
    except UserError:
        shutil.rmtree(out, ignore_errors=True)  # so that the dataset is rebuilt from a corrected source
        raise
    return out


def _check_joined(notes: Dataset, built: Path, build_report: dict, split: str) -> None:
    """Raise UserError if a rebuilt split differs from the annotated split."""
    columns = [column for column in notes.column_names if column.endswith("_sha256")]
    pictures = [column.removesuffix("_sha256") for column in columns]
    part = read_report(built)["splits"].get(split, {"files": []})
    present = {row["image_id"]: _sums(row, pictures) for row in rows_of(built, part, ["image_id", *pictures])}
    wanted = {
        row["image_id"]: {column: row[column] for column in columns}
        for row in notes.select_columns(["image_id", *columns])
    }
    missing = [image_id for image_id in wanted if image_id not in present]
    differing = [image_id for image_id, sums in wanted.items() if present.get(image_id, sums) != sums]
    _check_images(build_report["dataset"], split, missing, differing, len(wanted))
    if part["fingerprint"] != build_report["splits"][split]["fingerprint"]:
        raise UserError(
            f"{build_report['dataset']}, split {split}: masks or labels in the source differ from the published masks "
            "or labels; download the complete, unchanged source again"
        )


def _sums(row: dict, pictures: Iterable[str]) -> dict[str, str | None]:
    """Return {column: checksum} for the images in a row."""
    return {f"{name}_sha256": checksum(row[name]) for name in pictures}


def _check_images(name: str, split: str, missing: list[str], differing: list[str], wanted: int) -> None:
    """Raise UserError if images are missing or differ. The message gives their number and the first ids."""
    parts = [
        f"{len(ids)} of {wanted} images {fault} ({', '.join(ids[:SHOWN])}{', ...' if len(ids) > SHOWN else ''})"
        for ids, fault in ((missing, "are missing in the source"), (differing, "differ from the annotated images"))
        if ids
    ]
    if parts:
        raise UserError(f"{name}, split {split}: {' and '.join(parts)}; download the complete, unchanged source again")
