"""Datasets whose images may not be passed on: annotations without the images, and both joined again.

The config `annotations` has all columns but the pictures that are no masks; in the place of each, `NAME_sha256` holds a
checksum. A user who has the source gets the same rows as the builder made, or a line that says what is missing.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset, Features, Image, Value

from saliency_bench import building, rooms
from saliency_bench import options as bound
from saliency_bench.caching import cache_folder
from saliency_bench.dataset_card import ANNOTATIONS, FOLDERS
from saliency_bench.errors import UserError
from saliency_bench.fingerprints import picture_content
from saliency_bench.seeds import seed_of
from saliency_bench.shards import ROW_GROUP, Shards

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
        for file in part["files"]:
            for batch in pq.ParquetFile(folder / file["path"]).iter_batches(ROW_GROUP):
                for row in batch.to_pylist():
                    sums = {f"{name}_sha256": checksum(row[name]) for name in held_back}
                    shards.add({name: row.get(name) for name in kept} | sums)
        files = building.files_account(shards.close(), FOLDERS[ANNOTATIONS])
        splits[split] = part | {"num_bytes": shards.num_bytes, "files": files}
    return account | {"splits": splits}


def joined(rows: Dataset, account: dict, split: str, source: Path) -> Path:
    """A folder of Parquet files, in the cache folder: annotations with the pictures that the builder finds in `source`.

    Errors: UserError that names pictures which are missing in `source` or differ from what was annotated, for another
    version of the builder, for a source that is no source.
    """
    name, builder = account["dataset"], rooms.load("hub_builders", account["dataset"])
    if account["version"] != builder.VERSION:
        raise UserError(
            f"the annotations of {name} were made by version {account['version']} of its builder, this is version "
            f"{builder.VERSION}; install the saliency-bench that made them, or build the dataset from its source"
        )
    source = source.expanduser().resolve()
    if not source.is_dir():
        raise UserError(f"source folder {source} does not exist; give the folder that holds the raw data of {name}")
    sums = [rows[column] for column in rows.column_names if column.endswith("_sha256")]
    identity = f"{seed_of(str(source), split, account['version'], rows['image_id'][:], *(s[:] for s in sums)):016x}"
    out = cache_folder() / "datasets" / f"{name}-joined-{identity}"
    if not out.is_dir():
        samples = builder.samples(source, building.Report(), **_options(builder, account))
        with building.beside(out) as folder:
            _join(folder, rows, account, split, samples)
            folder.rename(out)
    return out


def _options(builder: Any, account: dict) -> dict[str, Any]:
    return {key: account["options"][key] for key in bound.defaults(builder.samples)}


def _join(folder: Path, rows: Dataset, account: dict, split: str, samples) -> None:
    builder = rooms.load("hub_builders", account["dataset"])
    features = building.columns(builder)
    place = {image_id: index for index, image_id in enumerate(rows["image_id"])}
    plain, shards = rows.with_format("arrow"), Shards(folder, split, features)
    found: list[str] = []
    differing: list[str] = []
    for sample in samples:
        image_id = sample["image_id"]
        if image_id not in place:
            continue
        found.append(image_id)
        row = plain[place[image_id]].to_pylist()[0]
        pictures = {name: building.stored_in(sample, name) for name in pictures_of(features)}
        if any(checksum(stored) != row[f"{name}_sha256"] for name, stored in pictures.items()):
            differing.append(image_id)
        shards.add({name: (row | pictures)[name] for name in features})
    shards.close()
    missing = sorted(set(place) - set(found))
    _complain(account["dataset"], split, missing, differing, len(place))
    if found != list(place):
        raise UserError(
            f"the builder of {account['dataset']} gives its samples in another order than when it was built"
        )


def _complain(name: str, split: str, missing: list[str], differing: list[str], wanted: int) -> None:
    parts = [
        f"{len(ids)} of {wanted} images {what} ({', '.join(ids[:SHOWN])}{', ...' if len(ids) > SHOWN else ''})"
        for ids, what in ((missing, "are missing in the source"), (differing, "differ from those that were annotated"))
        if ids
    ]
    if parts:
        raise UserError(f"{name}, split {split}: {' and '.join(parts)}; get the source again, whole and unchanged")
