"""Builds a dataset folder from a builder: one file `hub_builders/NAME.py` per dataset.

A builder is a module with a docstring (first line: what it is; then: how to get the source and what the folder must
hold), these constants

    VERSION       text; raise it when the same source would give other rows
    TITLE         name for people
    LICENSE       identifier as the Hub spells it, such as "cc-by-sa-4.0"
    REDISTRIBUTE  may the images be published?
    CITATION      BibTeX
    RULE          how a sample is made, for the card
    PAPER_COUNTS  what the paper counts: {"samples": n, "masks": n, COLUMN: {class name: n}}, as far as it says so
    TAGS          optional: further tags for the card
    BIASES        optional: known biases, for the card
    EMBEDDED      optional: True if it needs no source and is built when first asked for

and two functions

    features() -> {column: feature}                    `label` (a ClassLabel) and what the source adds
    samples(source, report, *, option=default, ...)    yields one dict per sample, in an order that never changes

A sample has `image_id` (text, unique), `image`, `label` (a class name), and where they exist `mask`, `source_split`,
the added columns, and `group` (samples of one group share a split; default: the image id). Pictures are a
`pictures.Picture` (what `pictures.read` gives), uint8 (H, W, 3), or for masks bool (H, W). What is left out is said by
`report.leave_out(image_id, "image" or "mask", reason)`; `report.remark(image_id, text)` notes what is odd but kept;
`report.expected = n` feeds the progress bar. Lines "option: text" in the docstring of `samples` are the help texts on
the command line. An option `seed` gets the seed of the build.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from datasets import ClassLabel, Features, Image, Value
from filelock import FileLock

from saliency_bench import options as bound
from saliency_bench import pictures, rooms
from saliency_bench.caching import cache_folder
from saliency_bench.dataset_card import card
from saliency_bench.errors import UserError
from saliency_bench.fingerprints import Fingerprint
from saliency_bench.progress import bar
from saliency_bench.seeds import seed_of
from saliency_bench.shards import Shards, sha256_of

SPLITS = ("train", "validation", "test")
REPORT = "build_report.json"


def build(
    name: str,
    out: str | Path,
    source: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    seed: int = 0,
    **options: Any,
) -> Path:
    """Build the dataset `name` into the folder `out` and return it.

    source: folder with the raw data as downloaded; None for datasets that need none
    overwrite: replace `out` if it is a dataset built before; by default an existing folder that is not empty is refused
    seed: of the split into train, validation and test, and of what the builder draws
    options: of the builder, see `saliency-bench build NAME --help`

    `out` appears complete or not at all: everything is written beside it and renamed at the end. Equal input gives
    equal bytes. Errors: UserError for an unknown name or option, a missing source, an `out` that exists.
    """
    builder = rooms.load("hub_builders", name)
    name = builder.__name__.rpartition(".")[2].replace("_", "-")
    settings = settings_of(name, builder, {"seed": seed, **options})
    out = Path(out).expanduser().resolve()
    origin = None if source is None else _source(Path(source).expanduser().resolve(), out)
    with _alone(out):
        _check_free(out, overwrite)
        with _beside(out) as folder:
            _fill(folder, name, builder, origin, settings, progress)
            _publish(folder, out)
    return out


def settings_of(name: str, builder: ModuleType, options: dict[str, Any]) -> dict[str, Any]:
    """All options of a build with their values; `seed` is one of every builder. Errors: UserError."""
    seed = options.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"option seed of {name} takes int; got {seed!r}")
    own = {key: value for key, value in options.items() if key != "seed"}
    known = bound.defaults(builder.samples)
    resolved = dict(bound.resolved(name, builder.samples, own | ({"seed": seed} if "seed" in known else {})))
    return dict(sorted((resolved | {"seed": seed}).items()))


def split_of(seed: int, group: str) -> str:
    """70/15/15 percent by a hash of (seed, group), so that other images cannot move this one."""
    place = seed_of(seed, group) % 100
    return "train" if place < 70 else "validation" if place < 85 else "test"


@dataclass
class Report:
    """What a builder says beside its samples."""

    expected: int | None = None
    left_out: list[dict[str, str]] = field(default_factory=list)
    remarks: list[dict[str, str]] = field(default_factory=list)

    def leave_out(self, image_id: str, what: str, reason: str) -> None:
        """`what` is "image" (there will be no such sample) or "mask" (the sample has none)."""
        if what not in ("image", "mask"):
            raise ValueError(f"only an image or a mask is left out, not {what!r}")
        self.left_out.append({"id": image_id, "what": what, "reason": reason})

    def remark(self, image_id: str, text: str) -> None:
        self.remarks.append({"id": image_id, "text": text})

    def count(self, what: str) -> int:
        return sum(entry["what"] == what for entry in self.left_out)


class _Split:
    """Rows of one split on their way to disk, and what is counted of them."""

    def __init__(self, folder: Path, name: str, features: Features):
        self.shards, self.print = Shards(folder, name, features), Fingerprint()
        self.masks = 0
        self.classes = {
            column: dict.fromkeys(kind.names, 0) for column, kind in features.items() if isinstance(kind, ClassLabel)
        }

    def add(self, row: dict) -> None:
        mask = row["mask"]
        self.print.add(row["image_id"], row["label"], row["image"]["bytes"], mask and mask["bytes"])
        self.masks += mask is not None
        for column, counts in self.classes.items():
            if row[column] is not None:
                counts[row[column]] += 1
        self.shards.add(self.shards.features.encode_example(row))


def _fill(folder: Path, name: str, builder: ModuleType, source: Path | None, settings: dict, progress: bool) -> None:
    features, report = columns(builder), Report()
    data = folder / "data"
    data.mkdir()
    splits = {split: _Split(data, split, features) for split in SPLITS}
    own = {key: settings[key] for key in bound.defaults(builder.samples)}
    with ExitStack() as open_files:
        for part in splits.values():
            open_files.callback(part.shards.abandon)
        for sample in _counted(name, builder.samples(source, report, **own), report, progress):
            group = sample.pop("group", sample["image_id"])
            splits[split_of(settings["seed"], group)].add(_row(sample, features))
        files = {split: part.shards.close() for split, part in splits.items()}
    splits = {split: part for split, part in splits.items() if files[split]}  # `datasets` cannot load an empty split
    if not splits:
        raise UserError(
            f"{name}: no usable image in {source}; compare the folder with `saliency-bench build {name} --help`"
        )
    account = _account(name, builder, settings, report, splits, files)
    (folder / REPORT).write_bytes((json.dumps(account, indent=2, ensure_ascii=False) + "\n").encode())
    (folder / "README.md").write_bytes(card(builder, account, features).encode())


def columns(builder: ModuleType) -> Features:
    """The unified columns, then what the source adds."""
    own = dict(builder.features())
    first = {"image": Image(), "label": own.pop("label"), "mask": Image()}
    return Features({**first, "image_id": Value("string"), "source_split": Value("string"), **own})


def _counted(name: str, samples: Iterator[dict], report: Report, progress: bool) -> Iterator[dict]:
    """With a progress bar on standard error; an id that comes twice is a fault of the builder."""
    seen = set()
    with bar(desc=f"building {name}", unit=" images", shown=progress, leave=False) as shown:
        for sample in samples:
            if sample["image_id"] in seen:
                raise ValueError(f"the builder of {name} gives the image id {sample['image_id']!r} twice")
            seen.add(sample["image_id"])
            shown.total = report.expected
            shown.update()
            yield sample


def _row(sample: dict, features: Features) -> dict:
    if unknown := set(sample) - set(features):
        raise ValueError(f"the builder yields columns that its features() does not have: {', '.join(sorted(unknown))}")
    row = {column: sample.get(column) for column in features}
    file = sample["image_id"].replace("/", "_")
    for column, kind in features.items():
        if isinstance(kind, Image) and sample.get(column) is not None:
            row[column] = _stored(sample[column], file if column == "image" else f"{file}-{column}")
    return row


def _stored(picture: pictures.Picture | np.ndarray, name: str) -> dict:
    if isinstance(picture, pictures.Picture):
        return {"bytes": picture.data, "path": name + picture.suffix}
    return {"bytes": pictures.png(picture), "path": f"{name}.png"}


def _account(
    name: str,
    builder: ModuleType,
    settings: dict,
    report: Report,
    splits: dict[str, _Split],
    files: dict[str, list[Path]],
) -> dict:
    """What `build_report.json` says; no time and no path, so that equal builds give equal bytes."""
    kept = sum(part.shards.num_examples for part in splits.values())
    return {
        "dataset": name,
        "version": builder.VERSION,
        "options": settings,
        "license": builder.LICENSE,
        "redistribute_images": builder.REDISTRIBUTE,
        "counts": {
            "found": kept + report.count("image"),
            "samples": kept,
            "masks": sum(part.masks for part in splits.values()),
            "images_left_out": report.count("image"),
            "masks_left_out": report.count("mask"),
            **_added([part.classes for part in splits.values()]),
        },
        "paper_counts": builder.PAPER_COUNTS,
        "splits": {split: _split_account(part, files[split]) for split, part in splits.items()},
        "left_out": report.left_out,
        "remarks": report.remarks,
    }


def _split_account(part: _Split, files: list[Path]) -> dict:
    total = max(part.shards.num_examples, 1)
    return {
        "num_examples": part.shards.num_examples,
        "num_bytes": part.shards.num_bytes,
        "masks": part.masks,
        "fingerprint": part.print.text(),
        "files": [{"path": f"data/{f.name}", "bytes": f.stat().st_size, "sha256": sha256_of(f)} for f in files],
        "class_shares": {c: {k: round(n / total, 4) for k, n in counts.items()} for c, counts in part.classes.items()},
    }


def _added(parts: list[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    return {column: {k: sum(part[column][k] for part in parts) for k in counts} for column, counts in parts[0].items()}


def _source(source: Path, out: Path) -> Path:
    if not source.is_dir():
        raise UserError(f"source folder {source} does not exist; give the folder that holds the raw data")
    if source.is_relative_to(out):
        raise UserError(f"the source lies in the output folder {out}; write to another folder")
    return source


def _check_free(out: Path, overwrite: bool) -> None:
    """Only a dataset built before is ever replaced, whatever the flags say."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / REPORT).is_file():
        raise UserError(f"{out} exists and is no dataset built by this command; choose a new folder")
    if not overwrite:
        raise UserError(f"{out} exists; add --overwrite (overwrite=True) to replace it, or choose a new folder")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """One build of a folder at a time; a second one waits. The lock falls with its process."""
    try:
        locks = cache_folder() / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        lock: Any = FileLock(locks / f"{seed_of(out):016x}.lock")
    except OSError:  # nowhere to put a lock: build without
        lock = nullcontext()
    with lock:
        yield


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A fresh folder next to `out`, gone afterwards; what a killed build left there is removed first."""
    folder = out.parent / f".{out.name}.building"
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write beside {out}: {error.strerror}; choose another folder") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, out: Path) -> None:
    """Rename into place. Folders cannot be exchanged in one step: the old one moves aside, and back if that fails."""
    old = out.parent / f".{out.name}.replaced"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    try:
        folder.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
