"""Builds a dataset folder from a builder: one file `hub_builders/NAME.py` per dataset.

A builder is a module with a docstring (first line: what it is; then: how to get the source and what the folder must
hold), these constants

    VERSION       text; raise it when the same source would give other rows
    TITLE         name for people
    LICENSE       identifier as the Hub spells it, such as "cc-by-sa-4.0"
    TERMS         where LICENSE is "other": (what to call it, the address where it is written)
    REDISTRIBUTE  may the images be published?
    CITATION      BibTeX
    RULE          how a sample is made, for the card
    PAPER_COUNTS  what the paper counts: {"samples": n, "masks": n, COLUMN: {class name: n}}, as far as it says so
    TAGS          optional: further tags for the card
    BIASES        optional: known biases, for the card
    EMBEDDED      optional: True if it needs no source and is built when first asked for
    EXAMPLE       optional: options that suit its example
    JOBS          optional: how many jobs are kept together, where one takes seconds (default: 32)
    PROCESSES     optional: True if its jobs are Python code (headers, XML) rather than decoding of pictures, so that
                  threads would wait for each other; of a large source they are then done by processes
    SPLIT        optional: the one split that holds everything, for data that is for evaluation only

and two functions

    features() -> {column: feature}                    `label` (a ClassLabel) and what the source adds; where the
                                                       source tells the classes, `features(classes)`
    samples(source, report, *, option=default, ...)    yields a Job for each image, in an order that never changes

and, unless it is embedded,

    example(folder, count, side)                       writes a small drawn source in the raw layout, for the tests and
                                                       the page of samples (`example_LAYOUT`: of a further layout)

A `Job(make, *args)` is a call `make(report, *args)` that gives the sample, a dict (or several, or None); jobs run on
several threads, so what is slow belongs there, and its arguments are small. Every file that it reads is one of them
(or lies in a folder that is one): a build that goes on makes again what has changed. Yielding the dict works too.
A sample has `image_id` (text, unique), `image`, `label` (a class name), and where they exist `mask`, `source_split`,
the added columns, and `group` (samples of one group share a split; default: the image id). Pictures are a
`pictures.Picture` (what `pictures.read` gives), uint8 (H, W, 3), or for masks bool (H, W). What is left out is said by
`report.leave_out(image_id, "image" or "mask", reason)`; `report.remark(image_id, text)` notes what is odd but kept;
`report.expected = n` (jobs) feeds the progress bar; `report.classes = {column: [names]}`, said before the first job, is
what `features` gets. Lines "option: text" in the docstring of `samples` are the help
texts on the command line. An option `seed` gets the seed of the build.
"""

import inspect
import json
import os
import shutil
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Features, Image, Value
from filelock import FileLock

import saliency_bench
from saliency_bench import options as bound
from saliency_bench import registry
from saliency_bench.data import near_duplicates
from saliency_bench.data.card import card
from saliency_bench.data.fingerprints import Fingerprint
from saliency_bench.data.jobs import JOBS, Chunks, Job, Report
from saliency_bench.data.shards import Shards
from saliency_bench.errors import UserError
from saliency_bench.utils import pictures
from saliency_bench.utils.caching import cache_folder
from saliency_bench.utils.files import write_text
from saliency_bench.utils.hashing import sha256_of
from saliency_bench.utils.progress import bar
from saliency_bench.utils.seeds import seed_of

SPLITS = ("train", "validation", "test")
REPORT = "build_report.json"
MANY = 256  # jobs for which it pays to start processes
GROUP, HASH = "_group", "_hash"  # of a sample, in the chunks only


def build(
    name: str,
    out: str | Path,
    source: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    seed: int = 0,
    workers: int | None = None,
    **options: Any,
) -> Path:
    """Build the dataset `name` into the folder `out` and return it.

    source: folder with the raw data as downloaded; None for datasets that need none
    overwrite: replace `out` if it is a dataset built before; by default an existing folder that is not empty is refused
    seed: of the split into train, validation and test, and of what the builder draws
    workers: threads (of some large sources: processes) that read and write pictures; by default one for each core
    options: of the builder, see `saliency-bench build NAME --help`

    `out` appears complete or not at all: everything is written beside it and renamed at the end; a build that was
    killed goes on where it was when it is started again. Equal input gives equal bytes, with any number of workers.
    Raises: UserError for an unknown name or option, a missing source, an `out` that exists.
    """
    builder = registry.load("hub_builders", name)
    name = builder.__name__.rpartition(".")[2].replace("_", "-")
    settings = settings_of(name, builder, {"seed": seed, **options})
    out = Path(out).expanduser().resolve()
    origin = None if source is None else _source(Path(source).expanduser().resolve(), out)
    if workers is not None and workers < 1:
        raise UserError(f"workers={workers} cannot work; use 1 or more")
    made_by = [saliency_bench.__version__, name, builder.VERSION, settings, str(origin)]
    with _alone(out):
        _check_free(out, overwrite)
        with _beside(out, json.dumps(made_by)) as place:
            _fill(place, name, builder, origin, settings, progress, workers or cores())
            _publish(place / "dataset", out)
    return out


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settings_of(name: str, builder: ModuleType, options: dict[str, Any]) -> dict[str, Any]:
    """All options of a build with their values; `seed` is one of every builder. Raises: UserError."""
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


class _Split:
    """Rows of one split on their way to disk, and what is counted of them."""

    def __init__(self, folder: Path, name: str, features: Features):
        self.shards, self.print = Shards(folder, name, features), Fingerprint()
        self.masks = 0
        self.classes = {
            column: dict.fromkeys(kind.names, 0) for column, kind in features.items() if isinstance(kind, ClassLabel)
        }

    def add(self, row: dict) -> None:
        """`row` as `features.encode_example` gives it."""
        mask, label = row["mask"], self.name("label", row["label"])
        self.print.add(row["image_id"], label, row["image"]["bytes"], mask and mask["bytes"])
        self.masks += mask is not None
        for column, counts in self.classes.items():
            if row[column] is not None:
                counts[self.name(column, row[column])] += 1
        self.shards.add(row)

    def name(self, column: str, value: int | None) -> str | None:
        return None if value is None else self.shards.features[column].names[value]


def _fill(
    place: Path, name: str, builder: ModuleType, source: Path | None, settings: dict, progress: bool, workers: int
) -> None:
    """Write the dataset to `place / "dataset"`, by way of the chunks in `place / "chunks"`."""
    own = {key: settings[key] for key in bound.defaults(builder.samples)}
    report, twins = Report(), _Twins()
    features, jobs = begun(builder, source, report, own)
    folder, data = place / "dataset", place / "dataset" / "data"
    data.mkdir(parents=True)
    splits = {split: _Split(data, split, features) for split in SPLITS}
    with ExitStack() as open_files:
        for part in splits.values():
            open_files.callback(part.shards.abandon)
        for row in _rows(name, jobs, report, features, place / "chunks", progress, workers, builder):
            group = row.pop(GROUP)
            split = getattr(builder, "SPLIT", None) or split_of(settings["seed"], group)
            twins.add(row["image_id"], SPLITS.index(split), row.pop(HASH))
            splits[split].add(row)
        files = {split: part.shards.close() for split, part in splits.items()}
    splits = {split: part for split, part in splits.items() if files[split]}  # `datasets` cannot load an empty split
    if not splits:
        raise UserError(
            f"{name}: no usable image in {source}; compare the folder with `saliency-bench build {name} --help`"
        )
    account = _account(name, builder, settings, report, splits, files) | {"near_duplicates": twins.account()}
    (folder / REPORT).write_bytes((json.dumps(account, indent=2, ensure_ascii=False) + "\n").encode())
    (folder / "README.md").write_bytes(card(builder, account, features).encode())


def begun(
    builder: ModuleType, source: Path | None, report: Report, options: dict[str, Any]
) -> tuple[Features, Iterator[dict | Job]]:
    """The columns and the samples of a source; what tells its classes is read, once."""
    samples = iter(builder.samples(source, report, **options))
    first = list(islice(samples, 1))
    return columns(builder, report.classes), chain(first, samples)


def columns(builder: ModuleType, classes: dict[str, list[str]] | None = None) -> Features:
    """The unified columns, then what the source adds."""
    asks = "classes" in inspect.signature(builder.features).parameters
    own = dict(builder.features(classes) if asks else builder.features())
    first = {"image": Image(), "label": own.pop("label"), "mask": Image()}
    return Features({**first, "image_id": Value("string"), "source_split": Value("string"), **own})


class _Twins:
    """What is needed to find near-duplicates across splits: a few numbers of each picture."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.splits, self.hashes = array("B"), array("Q")

    def add(self, image_id: str, split: int, picture: int) -> None:
        self.ids.append(image_id)
        self.splits.append(split)
        self.hashes.append(picture)

    def account(self) -> list[dict]:
        found = near_duplicates.across(np.array(self.hashes, np.uint64), np.array(self.splits, np.int64))
        return [
            {
                "id": self.ids[i],
                "split": SPLITS[self.splits[i]],
                "like": self.ids[j],
                "in": SPLITS[self.splits[j]],
                "bits": bits,
            }
            for i, j, bits in found
        ]


def _rows(
    name: str,
    jobs: Iterable[dict | Job],
    report: Report,
    features: Features,
    chunks: Path,
    progress: bool,
    workers: int,
    builder: ModuleType,
) -> Iterator[dict]:
    """Encoded rows, with a progress bar on standard error; an id that comes twice is a fault of the builder."""
    seen, said = set(), Report()
    schema = features.arrow_schema.append(pa.field(GROUP, pa.string())).append(pa.field(HASH, pa.uint64()))
    with bar(desc=f"building {name}", unit=" images", shown=progress, leave=False) as shown:

        def done(count: int) -> None:
            shown.total = report.expected
            shown.update(count)

        apart = getattr(builder, "PROCESSES", False) and workers > 1 and (report.expected or 0) >= MANY
        size = getattr(builder, "JOBS", JOBS)
        work = Chunks(chunks, partial(_row, features=features), schema, workers, done, apart, size)
        for table, part in work.tables(jobs):
            said.add(part)
            for row in table.to_pylist():
                if row["image_id"] in seen:
                    raise ValueError(f"the builder of {name} gives the image id {row['image_id']!r} twice")
                seen.add(row["image_id"])
                yield row
    report.add(said)  # after what the builder said itself, however far it was ahead of the threads


def _row(sample: dict, features: Features) -> dict:
    if unknown := set(sample) - set(features) - {"group"}:
        raise ValueError(f"the builder yields columns that its features() does not have: {', '.join(sorted(unknown))}")
    row: dict[str, Any] = {column: sample.get(column) for column in features}
    file = sample["image_id"].replace("/", "_")
    for column, kind in features.items():
        if isinstance(kind, Image) and sample.get(column) is not None:
            row[column] = _stored(sample[column], file if column == "image" else f"{file}-{column}")
    encoded = features.encode_example(row)
    picture = near_duplicates.difference_hash(encoded["image"]["bytes"])
    return encoded | {GROUP: str(sample.get("group", sample["image_id"])), HASH: picture}


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
def _beside(out: Path, made_by: str) -> Iterator[Path]:
    """A folder next to `out`, gone afterwards. What a killed build of the same things left there is used again."""
    folder = out.parent / f".{out.name}.building"
    said = folder / "made_by.json"
    try:
        if not said.is_file() or said.read_bytes() != made_by.encode():
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder / "dataset", ignore_errors=True)
        (folder / "chunks").mkdir(parents=True, exist_ok=True)
        write_text(said, made_by)
    except OSError as error:
        raise UserError(f"cannot write beside {out}: {error.strerror}; choose another folder") from error
    try:
        yield folder
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)  # not when stopped from the keyboard: the next start goes on


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
