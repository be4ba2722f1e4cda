"""Datasets whose images may not be passed on: annotations without the images, and both joined again.

The config `annotations` has all columns but the pictures that are no masks; in the place of each, `NAME_sha256` holds a
checksum. For a user who has the source the dataset is built again: the same rows, or a line that says what is missing.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
from datasets import Dataset, Features, Image, Value

from saliency_bench import registry
from saliency_bench.data.building import REPORT, build
from saliency_bench.data.card import ANNOTATIONS, FOLDERS
from saliency_bench.data.fingerprints import picture_content
from saliency_bench.data.shards import ROW_GROUP, Shards
from saliency_bench.errors import UserError
from saliency_bench.utils.caching import cache_folder
from saliency_bench.utils.hashing import sha256_of
from saliency_bench.utils.seeds import seed_of

SHOWN = 3  # names in a message


def checksum(stored: dict | None) -> str | None:
    """SHA-256 of an encoded picture: of a PNG the mode, size and pixels count, of anything else the file's bytes."""
    content = picture_content(stored["bytes"]) if stored else None
    return None if content is None else sha256(content).hexdigest()


def pictures_of(features: Features) -> list[str]:
    """The columns that are not passed on: pictures that are no masks."""
    return [name for name, kind in features.items() if isinstance(kind, Image) and "mask" not in name]


def features_of(folder: Path, account: dict) -> Features:
    """The columns of a built dataset."""
    file = next(iter(account["splits"].values()))["files"][0]["path"]
    return Features.from_arrow_schema(pq.read_schema(folder / file))


def without_images(features: Features) -> Features:
    held_back = pictures_of(features)
    checksums = {f"{name}_sha256": Value("string") for name in held_back}
    return Features({name: kind for name, kind in features.items() if name not in held_back} | checksums)


def split_off(folder: Path, account: dict, out: Path) -> dict:
    """Write the annotations of a built dataset under `out`; its account (`build_report.json`) with these files."""
    features = features_of(folder, account)
    held_back, kept = pictures_of(features), without_images(features)
    place = out / FOLDERS[ANNOTATIONS]
    place.mkdir(parents=True)
    splits = {}
    for split, part in account["splits"].items():
        shards = Shards(place, split, kept)
        for row in rows_of(folder, part):
            shards.add({name: row.get(name) for name in kept} | _sums(row, held_back))
        files = [
            {"path": f"{FOLDERS[ANNOTATIONS]}/{file.name}", "bytes": file.stat().st_size, "sha256": sha256_of(file)}
            for file in shards.close()
        ]
        splits[split] = part | {"num_bytes": shards.num_bytes, "files": files}
    return account | {"splits": splits}


def rows_of(folder: Path, part: dict, columns: Iterable[str] | None = None) -> Iterator[dict]:
    """The rows of one split of a built dataset, pictures as they are stored; `part` is what the account says of it."""
    for file in part["files"]:
        wanted = None if columns is None else list(columns)
        for batch in pq.ParquetFile(folder / file["path"]).iter_batches(ROW_GROUP, columns=wanted):
            yield from batch.to_pylist()


def joined(notes: Dataset, account: dict, split: str, source: Path) -> Path:
    """The folder, in the cache, of the dataset built again from `source`, once every image is the one annotated.

    notes, account: the published annotations of a split, and the report published with them.
    Raises: UserError that names images which are missing in `source` or differ from what was annotated, for another
    version of the builder, for a source that is no source.
    """
    name, builder = account["dataset"], registry.load("hub_builders", account["dataset"])
    if account["version"] != builder.VERSION:
        raise UserError(
            f"the annotations of {name} were made by version {account['version']} of its builder, this is version "
            f"{builder.VERSION}; install the saliency-bench that made them, or build the dataset from its source"
        )
    source = source.expanduser().resolve()
    prints = [part["fingerprint"] for part in account["splits"].values()]
    identity = f"{seed_of(str(source), account['version'], sorted(account['options'].items()), prints):016x}"
    out = cache_folder() / "datasets" / f"{name}-joined-{identity}"
    if not (out / REPORT).is_file():
        build(name, out, source, progress=sys.stderr.isatty(), **account["options"])
    try:
        _compare(notes, out, account, split)
    except UserError:
        shutil.rmtree(out, ignore_errors=True)  # the source will be mended and then built again
        raise
    return out


def _compare(notes: Dataset, built: Path, account: dict, split: str) -> None:
    columns = [column for column in notes.column_names if column.endswith("_sha256")]
    pictures = [column.removesuffix("_sha256") for column in columns]
    part = json.loads((built / REPORT).read_text(encoding="utf-8"))["splits"].get(split, {"files": []})
    found = {row["image_id"]: _sums(row, pictures) for row in rows_of(built, part, ["image_id", *pictures])}
    wanted = {
        row["image_id"]: {column: row[column] for column in columns}
        for row in notes.select_columns(["image_id", *columns])
    }
    missing = [image_id for image_id in wanted if image_id not in found]
    differing = [image_id for image_id, sums in wanted.items() if found.get(image_id, sums) != sums]
    _complain(account["dataset"], split, missing, differing, len(wanted))
    if part["fingerprint"] != account["splits"][split]["fingerprint"]:
        raise UserError(
            f"{account['dataset']}, split {split}: masks or labels in the source differ from those that were "
            "published; get the source again, whole and unchanged"
        )


def _sums(row: dict, pictures: Iterable[str]) -> dict[str, str | None]:
    return {f"{name}_sha256": checksum(row[name]) for name in pictures}


def _complain(name: str, split: str, missing: list[str], differing: list[str], wanted: int) -> None:
    parts = [
        f"{len(ids)} of {wanted} images {what} ({', '.join(ids[:SHOWN])}{', ...' if len(ids) > SHOWN else ''})"
        for ids, what in ((missing, "are missing in the source"), (differing, "differ from those that were annotated"))
        if ids
    ]
    if parts:
        raise UserError(f"{name}, split {split}: {' and '.join(parts)}; get the source again, whole and unchanged")
