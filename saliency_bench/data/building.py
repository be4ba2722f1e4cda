"""Build a dataset folder with a builder (see `builders.py`): Parquet files, a card and `build_report.json`."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Features, Image

import saliency_bench
from saliency_bench import registry
from saliency_bench.data import builders, near_duplicates
from saliency_bench.data.build_report import (
    REPORT,
    SPLITS,
    NearDuplicates,
    SplitWriter,
    build_report_of,
    changed_files,
    read_report,
    report_bytes,
)
from saliency_bench.data.card import card
from saliency_bench.data.jobs import JOBS, BuildLog, Job, JobBatches
from saliency_bench.data.output_folder import (
    build_lock,
    build_workspace,
    check_replaceable,
    clean_up,
    move_into_place,
    source_folder,
)
from saliency_bench.errors import UserError
from saliency_bench.utils import pictures
from saliency_bench.utils.messages import complain
from saliency_bench.utils.processors import cores
from saliency_bench.utils.progress import bar, without_bars
from saliency_bench.utils.seeds import seed_of

LONGEST_TITLE = 100
MANY = 256  # minimum number of jobs for which starting processes saves time
HASH, SPLIT = "_hash", "_split"  # columns that exist only in the batches


def build(
    name: str,
    out: str | Path,
    source: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    seed: int = 0,
    workers: int | None = None,
    license: str | None = None,
    title: str | None = None,
    **options: Any,
) -> Path:
    """Build the dataset `name` in the folder `out`, and return the path of this folder.

    The dataset is written to a temporary folder next to `out` and renamed at the end, so `out` never contains an
    incomplete dataset. If a build is killed, the next call resumes it. The same input produces identical files for
    any number of workers.

    Args:
        name: Name of the dataset, or of a layout of your own data ("folder", "coco-json", "yolo").
        out: Output folder.
        source: Folder with the raw data as downloaded, or None for datasets that need none. For your own data, this
            parameter can also be passed as `images`.
        overwrite: Whether to replace `out` if it is a dataset that was built earlier. If False, a non-empty folder is
            rejected.
        progress: Whether to show a progress bar.
        seed: Seed for the split into train, validation and test, and for all random choices of the builder.
        workers: Number of threads (processes for some large sources) that read and write images. By default, there is
            one per core.
        license: Licence of your own data in the Hub's spelling ("cc-by-4.0"), or None if you do not state one.
        title: Name of your own data in the card and in reports.
        **options: Options of the builder; see `saliency-bench build NAME --help`.

    Raises:
        UserError: A name or option is unknown, a source is missing, or `out` exists.
    """
    builder = registry.load("hub_builders", name)
    name = builder.__name__.rpartition(".")[2].replace("_", "-")
    source = options.pop(getattr(builder, "OWN_DATA", ""), source)
    about = _own_words(name, builder, license, title)
    settings = builders.settings_of(name, builder, {"seed": seed, **options})
    out = Path(out).expanduser().resolve()
    if out.is_symlink():  # Python 3.13 accepts circular links; other versions raise an error
        raise UserError(f"{out} is a link to itself; choose a different path")
    root = None if source is None else source_folder(source, out)
    if workers is not None and workers < 1:
        raise UserError(f"workers={workers} is too small; use 1 or more")
    made_by = json.dumps([saliency_bench.__version__, name, builder.VERSION, settings, about, str(root)])
    with build_lock(out):
        if not overwrite and _is_built(out, name, builder, settings, about):
            complain(f"{out} is already built with these settings; add --overwrite (overwrite=True) to rebuild it")
            clean_up(out)
            return out
        check_replaceable(out, overwrite)
        with build_workspace(out, made_by) as workspace, without_bars(not progress):
            _write_dataset(workspace, name, builder, root, settings, about, progress, workers or cores())
            move_into_place(workspace / "dataset", out)
    return out


def _own_words(name: str, builder: ModuleType, license: str | None, title: str | None) -> dict[str, str]:
    """Return the licence and title that the user set for their own data, for the build report.

    Raises:
        UserError: The dataset is not the user's own data, or a value is invalid.
    """
    words = {key: value for key, value in (("license", license), ("title", title)) if value is not None}
    if words and not hasattr(builder, "OWN_DATA"):
        raise UserError(f"{name} has a fixed {' and '.join(words)}; leave {'them' if len(words) > 1 else 'it'} out")
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", license):
        raise UserError(
            f"license={license!r} is not a licence identifier; use one such as 'cc-by-4.0', 'mit' or 'other'"
        )
    if title is not None and not (title.strip() and title.isprintable() and len(title) <= LONGEST_TITLE):
        raise UserError(f"the name of a dataset must be one line of at most {LONGEST_TITLE} characters; got {title!r}")
    return words


def _is_built(out: Path, name: str, builder: ModuleType, settings: dict[str, Any], about: dict[str, str]) -> bool:
    """Return whether a folder contains this dataset, was built with these settings and has not changed since then."""
    if not (out / REPORT).is_file():
        return False
    known = read_report(out)
    made = known.get("dataset"), known.get("version"), known.get("options"), known.get("license"), known.get("title")
    options = json.loads(json.dumps(_public(builder, settings)))  # tuples become lists
    license = about.get("license", builder.LICENSE)
    same = made == (name, builder.VERSION, options, license, about.get("title"))
    return same and not changed_files(out, known)


def _public(builder: ModuleType, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without options that concern only this machine, such as a token."""
    return {key: value for key, value in settings.items() if key not in builders.private(builder)}


def split_of(seed: int, group: str) -> str:
    """Return the split of a group, chosen by a hash of (seed, group): 70 % train, 15 % validation, 15 % test.

    The split of a group therefore does not change when other groups are added.
    """
    percent = seed_of(seed, group) % 100
    return "train" if percent < 70 else "validation" if percent < 85 else "test"


def _write_dataset(
    workspace: Path,
    name: str,
    builder: ModuleType,
    source: Path | None,
    settings: dict[str, Any],
    about: dict[str, str],
    progress: bool,
    workers: int,
) -> None:
    """Write the dataset to `workspace / "dataset"` from the batches in `workspace / "batches"`.

    Args:
        workspace: Temporary folder next to the dataset's folder.
        name: Name of the dataset.
        builder: Module of the builder.
        source: Folder with the raw data.
        settings: Options of the build.
        about: Entries of the build report that replace the entries of the builder.
        progress: Whether to show a progress bar.
        workers: Number of threads or processes.
    """
    log, duplicates = BuildLog(), NearDuplicates()
    features, jobs = builders.start(builder, source, log, builders.own_options(builder, settings))
    folder, data = workspace / "dataset", workspace / "dataset" / "data"
    data.mkdir(parents=True)
    splits = {split: SplitWriter(data, split, features) for split in SPLITS}
    with ExitStack() as open_files:
        for writer in splits.values():
            open_files.callback(writer.shards.abandon)
        for row in _rows(name, builder, jobs, log, features, workspace / "batches", progress, workers):
            split = row.pop(SPLIT) or getattr(builder, "SPLIT", None)
            split = split or split_of(settings["seed"], row["group"] or row["image_id"])
            duplicates.add(row["image_id"], split, row.pop(HASH))
            splits[split].add(row)
        files = {split: writer.shards.close() for split, writer in splits.items()}
    splits = {split: writer for split, writer in splits.items() if files[split]}  # `datasets` cannot load empty splits
    if not splits:
        raise UserError(_nothing_usable(name, source, log))
    build_report = build_report_of(name, builder, _public(builder, settings), log, splits, files, duplicates) | about
    (folder / REPORT).write_bytes(report_bytes(build_report))
    (folder / "README.md").write_bytes(card(builder, build_report, features).encode())
    for file, content in log.files.items():
        (folder / file).write_bytes(content)


def _nothing_usable(name: str, source: Path | None, log: BuildLog) -> str:
    """Return the error message for a build without samples. It names the most frequent reason for left-out images."""
    reasons = Counter(entry["reason"] for entry in log.left_out if entry["what"] == "image").most_common(1)
    why = "".join(f" ({count} left out: {reason})" for reason, count in reasons)
    return (
        f"{name}: no valid image in {source}{why}; to see which files the folder must contain, run `saliency-bench "
        f"build {name} --help`"
    )


def _rows(
    name: str,
    builder: ModuleType,
    jobs: Iterable[dict | Job],
    log: BuildLog,
    features: Features,
    folder: Path,
    progress: bool,
    workers: int,
) -> Iterator[dict]:
    """Yield encoded rows, and show a progress bar on standard error.

    Raises:
        ValueError: The builder repeats an id.
    """
    seen, of_jobs = set(), BuildLog()
    schema = features.arrow_schema.append(pa.field(HASH, pa.uint64())).append(pa.field(SPLIT, pa.string()))
    with bar(desc=f"building {name}", unit=" images", shown=progress, leave=False) as shown:

        def count_done(count: int) -> None:
            shown.total = log.expected
            shown.update(count)

        in_processes = getattr(builder, "PROCESSES", False) and workers > 1 and (log.expected or 0) >= MANY
        size = getattr(builder, "JOBS", JOBS)
        batches = JobBatches(
            folder, partial(encoded_row, features=features), schema, workers, count_done, in_processes, size
        )
        for table, batch_log in batches.tables(jobs):
            of_jobs.add(batch_log)
            for row in table.to_pylist():
                if row["image_id"] in seen:
                    raise ValueError(f"the builder of {name} yields the image id {row['image_id']!r} twice")
                seen.add(row["image_id"])
                yield row
    log.add(of_jobs)  # added last, so that the order of entries does not depend on which thread finishes first


def encoded_row(sample: dict, features: Features) -> dict:
    """Encode a sample as a row. Add the hash of its image and the split that the builder chose, if any."""
    if unknown := set(sample) - set(features) - {"split"}:
        raise ValueError(f"the builder yields columns that its features() does not list: {', '.join(sorted(unknown))}")
    row: dict[str, Any] = {column: sample.get(column) for column in features}
    row["group"] = None if row["group"] is None else str(row["group"])
    file = sample["image_id"].replace("/", "_")
    for column, kind in features.items():
        if isinstance(kind, Image) and sample.get(column) is not None:
            row[column] = _stored(sample[column], file if column == "image" else f"{file}-{column}")
    encoded = features.encode_example(row)
    picture_hash = near_duplicates.difference_hash(encoded["image"]["bytes"])
    return encoded | {HASH: picture_hash, SPLIT: sample.get("split")}


def _stored(picture: pictures.Picture | np.ndarray, name: str) -> dict[str, Any]:
    if isinstance(picture, pictures.Picture):
        return {"bytes": picture.data, "path": name + picture.suffix}
    return {"bytes": pictures.png(picture), "path": f"{name}.png"}
