"""Write and read `build_report.json`, which lists counts, checksums and left-out samples of a built dataset.

The report contains neither times nor paths, so equal builds produce identical files.
"""

import json
from array import array
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from datasets import ClassLabel, Features
from pydantic import ValidationError

from saliency_bench.data import near_duplicates
from saliency_bench.data.dataset_names import SPLITS
from saliency_bench.data.fingerprints import Fingerprint
from saliency_bench.data.jobs import BuildLog
from saliency_bench.data.shards import Shards
from saliency_bench.data.untrusted_reports import Report
from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.hashing import known_sha256, sha256_of

REPORT = "build_report.json"
HIDDEN = "hidden_masks"  # key of the report that names the split with hidden masks, if any
LARGEST = 200_000_000  # maximum number of bytes of a report; the report of ImageNet lists 50,000 images


def read_report(folder: Path) -> dict[str, Any]:
    """Return the build report of a folder, or {} if the folder has none.

    Types and paths are checked, because the report may come from an untrusted source.

    Raises:
        UserError: The file cannot be read.
    """
    path = folder / REPORT
    if not path.is_file():
        return {}
    fix = "build or download the dataset again"
    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes, but the limit is {LARGEST:,}; {fix}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise UserError(f"{path} is not a build report; {fix}")
        Report.model_validate(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path} cannot be read: {one_line(where)}: {one_line(first['msg'])}; {fix}") from error
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}; {fix}") from error
    return content


def changed_files(folder: Path, build_report: dict[str, Any]) -> list[str]:
    """Return the files in a folder whose size or content has changed since the build, or that were added or removed.

    A split is ignored if all of its files are missing, because it was left out on purpose.
    """
    files = [split.get("files", []) for split in build_report.get("splits", {}).values()]
    kept = [split for split in files if any((folder / file["path"]).exists() for file in split)]
    built = {file["path"]: file for split in kept for file in split}
    there = {path.relative_to(folder).as_posix() for name in built for path in (folder / name).parent.glob("*.parquet")}
    return sorted(there - set(built)) + [name for name, file in built.items() if not _as_built(folder / name, file)]


def _as_built(path: Path, file: dict[str, Any]) -> bool:
    """Return whether a file exists and has the size and checksum that the report states."""
    return path.is_file() and path.stat().st_size == file["bytes"] and known_sha256(path) == file["sha256"]


def report_bytes(build_report: dict[str, Any]) -> bytes:
    """Return a report as JSON bytes. Equal reports produce the same bytes."""
    return (json.dumps(build_report, indent=2, ensure_ascii=False) + "\n").encode()


class SplitWriter:
    """Writes and counts the rows of a split."""

    def __init__(self, folder: Path, name: str, features: Features):
        self.shards, self.fingerprint = Shards(folder, name, features), Fingerprint()
        self.masks = 0
        self.classes = {
            column: dict.fromkeys(kind.names, 0) for column, kind in features.items() if isinstance(kind, ClassLabel)
        }

    def add(self, row: dict) -> None:
        """Write and count a row that was encoded by `features.encode_example`."""
        mask, label = row["mask"], self._class_name("label", row["label"])
        self.fingerprint.add(row["image_id"], label, row["image"]["bytes"], mask and mask["bytes"])
        self.masks += mask is not None
        for column, counts in self.classes.items():
            name = self._class_name(column, row[column])
            if name is not None:
                counts[name] += 1
        self.shards.add(row)

    def _class_name(self, column: str, value: int | None) -> str | None:
        """Return the name of a label, or None for a row without a label."""
        return None if value is None else self.shards.features[column].names[value]

    def report(self, files: list[Path]) -> dict[str, Any]:
        """Return the entry of this split in the build report. `files` are the split's shards."""
        total = max(self.shards.num_examples, 1)
        return {
            "num_examples": self.shards.num_examples,
            "num_bytes": self.shards.num_bytes,
            "masks": self.masks,
            "fingerprint": self.fingerprint.text(),
            "files": [{"path": f"data/{f.name}", "bytes": f.stat().st_size, "sha256": sha256_of(f)} for f in files],
            "class_shares": {
                column: {name: round(count / total, 4) for name, count in counts.items()}
                for column, counts in self.classes.items()
            },
        }


class NearDuplicates:
    """Collects image hashes to find near-duplicates across splits."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.splits, self.hashes = array("B"), array("Q")

    def add(self, image_id: str, split: str, picture_hash: int) -> None:
        """Add the hash of an image."""
        self.ids.append(image_id)
        self.splits.append(SPLITS.index(split))
        self.hashes.append(picture_hash)

    def report(self) -> list[dict[str, Any]]:
        """Return the pairs of near-duplicates that are in different splits."""
        pairs = near_duplicates.across(np.array(self.hashes, np.uint64), np.array(self.splits, np.int64))
        return [
            {
                "id": self.ids[i],
                "split": SPLITS[self.splits[i]],
                "like": self.ids[j],
                "in": SPLITS[self.splits[j]],
                "bits": bits,
            }
            for i, j, bits in pairs
        ]


def build_report_of(
    name: str,
    builder: ModuleType,
    settings: dict[str, Any],
    log: BuildLog,
    splits: dict[str, SplitWriter],
    files: dict[str, list[Path]],
    duplicates: NearDuplicates,
) -> dict[str, Any]:
    """Return the content of `build_report.json`. `files` are the shards of each split."""
    kept = sum(split.shards.num_examples for split in splits.values())
    return {
        "dataset": name,
        "version": builder.VERSION,
        "options": settings,
        "license": builder.LICENSE,
        "redistribute_images": builder.REDISTRIBUTE,
        "counts": {
            "found": kept + log.count("image"),
            "samples": kept,
            "masks": sum(split.masks for split in splits.values()),
            "images_left_out": log.count("image"),
            "masks_left_out": log.count("mask"),
            **_summed([split.classes for split in splits.values()]),
        },
        "paper_counts": builder.PAPER_COUNTS,
        "splits": {split: writer.report(files[split]) for split, writer in splits.items()},
        "left_out": log.left_out,
        "remarks": log.remarks,
        "near_duplicates": duplicates.report(),
    }


def _summed(counts_of: list[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    return {
        column: {name: sum(counts[column][name] for counts in counts_of) for name in names}
        for column, names in counts_of[0].items()
    }
