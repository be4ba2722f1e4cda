"""Load one split of a dataset from the package itself, from a folder, from the Hub, or from the user's raw data."""

import atexit
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any

import datasets
import pyarrow as pa
from datasets import Array2D, ClassLabel, Dataset, DatasetDict, Image, List, Value

from saliency_bench import registry
from saliency_bench.data.annotations import joined
from saliency_bench.data.build_report import HIDDEN, REPORT, changed_files, read_report
from saliency_bench.data.builders import settings_of
from saliency_bench.data.building import build
from saliency_bench.data.card import ANNOTATIONS
from saliency_bench.data.dataset_names import (
    is_embedded,
    list_datasets,
    repo_of,
    same_split,
    short_name,
    unknown_dataset,
)
from saliency_bench.data.fingerprints import check_images, fingerprint
from saliency_bench.data.hub_datasets import (
    Commit,
    UnknownSplitError,
    commit_of,
    load_from_hub,
    loading_error,
    published_report,
    split_of,
)
from saliency_bench.data.untrusted_reports import TABLES, check_cards, check_files, check_rows, complete
from saliency_bench.data.untrusted_tables import PARQUET, check_tables, prepare_in_child
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.hub.repo_names import FORCED, could_be_on_the_hub, hub_name
from saliency_bench.utils.files import near_folders, write_text
from saliency_bench.utils.hashing import hash_of, known_sha256
from saliency_bench.utils.messages import complain_once as _complain_once
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.storage import cache_folder

SAVED = "state.json"  # file that `save_to_disk` writes for a Dataset


def load_dataset(
    name: str | Path | Dataset | DatasetDict,
    split: str = "test",
    *,
    source: str | Path | None = None,
    revision: str | None = None,
    **builder_options: Any,
) -> Dataset:
    """Load one split of a dataset.

    Text labels become classes, sorted by name. If a folder has exactly the given name, the folder is loaded and a
    message reports this; "hub:owner/name" always refers to the Hub. A dataset that the package generates itself
    (shapes-xai) is built on first use and stored in the cache folder. If `train` is the only split, as for a folder of
    images, it is used instead of `test`, and a message reports this. The first time a dataset is loaded from the Hub,
    its rows are compared with the fingerprint in its `build_report.json`. Downloaded code is never executed, and
    neither archives nor files outside the folder or repository are opened. For torch's `DataLoader`, use
    `torch_dataset`.

    Args:
        name: A folder (written by `saliency-bench build` or `save_to_disk`, or with Parquet files or images), a Parquet
            file, a name such as "pet-xai" (short for "saliency-bench/pet-xai"), any "owner/name" on the Hub, a
            `datasets.DatasetDict`, or a `datasets.Dataset`. A Parquet file or a `datasets.Dataset` is treated as a
            single split.
        split: Name of a split, or a slice of a split such as "test[:10%]".
        source: For a dataset that is published without its images, the folder with your copy of the raw data. The
            dataset is built once from this folder into the cache folder, and every image is compared with the published
            checksum.
        revision: Branch, tag or commit of a Hub repository (default "main"). It can also be given in the name, as
            "owner/name@revision".
        **builder_options: Options of a dataset that the package generates itself.

    Raises:
        UserError: A name, split or option is unknown, a folder contains no dataset, or the Hub cannot be reached.
    """
    return with_classes(find(name, source=source, revision=revision, **builder_options).load_usual(split)[0])


def sample_ids(rows: Dataset) -> list[str]:
    """Return the ids of the images, or the row numbers if the dataset has no ids."""
    return list(map(str, rows["image_id"] if "image_id" in rows.column_names else range(len(rows))))


def with_classes(rows: Dataset, names: list[str] | None = None) -> Dataset:
    """Convert a `label` column with text to classes.

    Args:
        rows: Rows of a split.
        names: Names of the classes, or None for the sorted strings of the column.

    Raises:
        UserError: A label is not the name of a class.
    """
    if not is_text(rows.features.get("label")):
        return rows
    texts = list(rows["label"])
    present = {text for text in texts if text is not None}
    kind = ClassLabel(names=sorted(present) if names is None else names)
    if strange := sorted(present - set(kind.names)):
        raise unknown("label in the dataset", strange[0], kind.names)
    numbers = pa.array([None if text is None else kind.str2int(text) for text in texts], pa.int64())
    return rows.remove_columns("label").add_column("label", numbers, feature=kind)


def is_text(kind: object) -> bool:
    """Return whether a column contains text."""
    return isinstance(kind, Value) and (pa.types.is_string(kind.pa_type) or pa.types.is_large_string(kind.pa_type))


@dataclass(frozen=True)
class FoundDataset:
    """A dataset that has been located but not read. It is in memory, in a folder or file, or in a commit on the Hub.

    Attributes:
        text: Name that the user passed, for messages.
        name: Name in results. For a folder with a build report or a repository of this project, this is the name of the
            builder. For any other repository, this is the id. For any other folder or file, this is "folder:" followed
            by the last part of its path.
    """

    text: str
    name: str
    rows: Dataset | DatasetDict | None = None
    folder: Path | None = None
    commit: Commit | None = None
    source: Path | None = None

    @property
    def repo(self) -> str | None:
        """Repository on the Hub that the dataset is loaded from, or None."""
        return self.commit.repo if self.commit else None

    @property
    def revision(self) -> str | None:
        """Commit of the repository on the Hub, or None."""
        return self.commit.sha if self.commit else None

    @property
    def title(self) -> str | None:
        """Title of the user's own data, from the build report in a local folder, or None."""
        return read_report(self.folder).get("title") if self.folder else None

    @property
    def hidden_masks(self) -> str | None:
        """Name of the split with hidden masks, from the build report, or None."""
        return self._report().get(HIDDEN)

    def load(self, split: str) -> Dataset:
        """Load a split, or the split with a synonymous name (such as "val" for "validation") if there is no such split.

        Raises:
            UserError: The split is unknown, or data cannot be read or trusted.
        """
        return self._load_named(split)[0]

    def _load_named(self, split: str) -> tuple[Dataset, str]:
        """Return the rows that `load` returns, and the split's name in the dataset."""
        try:
            return self._load(split), split
        except UnknownSplitError as error:
            if (other := same_split(split, error.known)) is None or other == split:
                raise
        rows = self._load(other)
        _complain_once(f"{self.text} has no split {split}, so its split {other} is used")
        return rows, other

    def _load(self, split: str) -> Dataset:
        if isinstance(self.rows, DatasetDict):
            return _with_images(_of_dict(self.rows, split, self.text), self.text)
        if self.rows is not None:
            return _with_images(_of_split(self.rows, split, self.text), self.text)
        if self.source is not None:
            return self._join(self.source, split)
        if self.commit is None:
            assert self.folder is not None
            return _local(self.folder, self.text, split)
        rows = _with_images(load_from_hub(self.commit, split), self.commit.repo)
        _check_fingerprint(rows, self._report(), self.commit.repo, split)
        return rows

    def load_all(self, splits: Sequence[str]) -> dict[str, Dataset]:
        """Load several splits for training and model selection.

        Raises:
            UserError: The dataset is a single split, so each name would load the same rows, or `load` raises an error.
        """
        folder = self.folder
        is_one = folder is not None and (folder.is_file() or (folder / SAVED).is_file())
        if is_one or isinstance(self.rows, Dataset):
            raise UserError(
                f"{self.text} is a single split, but training needs {', '.join(splits)}; pass a folder or a DatasetDict"
            )
        return {split: self.load(split) for split in splits}

    def load_usual(self, split: str) -> tuple[Dataset, str]:
        """Return a split and its name. If `train` is the only split, use it instead of `test` and print a message."""
        try:
            return self._load_named(split)
        except UnknownSplitError as error:
            if split != "test" or error.known != ["train"]:
                raise
        rows = self.load("train")
        _complain_once(f"{self.text} has no split test, so its only split, train, is used")
        return rows, "train"

    def _report(self) -> dict[str, Any]:
        """Build report that is stored with the data, or {}."""
        if self.commit is None:
            return {} if self.folder is None else read_report(self.folder)
        return published_report(self.commit.repo, self.commit.sha, cached=not self.commit.reached)

    def _join(self, source: Path, split: str) -> Dataset:
        """Join the annotations in a folder or repository with the images in the user's copy of the source."""
        if self.commit is None:
            assert self.folder is not None
            notes = _load_folder(self.folder, split, ANNOTATIONS)
        else:
            notes = load_from_hub(self.commit, split, ANNOTATIONS)
        build_report = self._report()
        if split not in build_report.get("splits", {}):
            raise UserError(
                f"{self.text} has no {REPORT} that lists the split {split}, so its annotations cannot be joined with "
                "the images; use a complete copy of the published dataset"
            )
        return _local(joined(notes, complete(build_report, self.text), split, source), self.text, split)


def find(
    name: str | Path | Dataset | DatasetDict,
    *,
    source: str | Path | None = None,
    revision: str | None = None,
    **builder_options: Any,
) -> FoundDataset:
    """Locate the dataset that `load_dataset` would load. At most one request is sent to the Hub, for the commit.

    Nothing else is downloaded. Arguments and errors are the same as for `load_dataset`.
    """
    if not isinstance(name, str | Path):
        settings = builder_options | {"source": source, "revision": revision}
        if useless := [option for option, value in settings.items() if value is not None]:
            raise UserError(f"a dataset in memory is used as it is; remove {_list(useless)}")
        return _in_memory(name)
    given = hub_name(str(name), revision)
    folder = None if given.forced else _folder(str(name))
    text = str(name) if folder else short_name(given.name)
    where = None if source is None else Path(source)
    if folder is None and source is None and not given.forced and "/" not in text and "\\" not in text:
        if text not in list_datasets():
            registry.check_readable("hub_builders", text)
            raise unknown_dataset(text)
        if is_embedded(text) and given.revision is None:
            if given.name != text:
                _complain_once(
                    f"{given.name} is generated by the package and not downloaded; to load the published dataset, "
                    f"write {FORCED}{given.name}"
                )
            return FoundDataset(text, text, folder=embedded(text, builder_options))
    if source is not None and is_embedded(text):
        raise UserError(f"{text} is generated by the package, so it needs no `source`; remove `source`")
    if builder_options:
        raise UserError(f"{text} is already built; {_list(builder_options)} can only be set when building it")
    if folder is None:
        return FoundDataset(text, text, commit=commit_of(repo_of(text), given.revision), source=where)
    if revision is not None:
        raise UserError(f"{text} is a folder, which has no revisions; remove `revision`")
    if folder.is_file():
        return FoundDataset(text, f"folder:{folder.resolve().name}", folder=folder, source=where)
    if could_be_on_the_hub(text):
        _complain_once(
            f"the dataset {text} is loaded from the folder {folder.resolve()}; to load it from the Hub, write "
            f"hub:{text}"
        )
    return FoundDataset(text, _name_of(folder), folder=folder, source=where)


def _name_of(folder: Path) -> str:
    """Return the name of the dataset that was built in a folder.

    If the folder has no build report, or if files have changed since the build, return "folder:" and the folder's name.
    """
    place = folder.resolve()
    build_report = read_report(folder)
    by_folder, built = f"folder:{place.name}", build_report.get("dataset")
    if built not in list_datasets():
        return by_folder
    if changed := changed_files(folder, build_report):
        differ = f" and {len(changed) - 1} more differ" if len(changed) > 1 else " differs"
        _complain_once(
            f"{folder} has been changed since it was built: {changed[0]}{differ} from {REPORT}, so the name of the "
            f"dataset in results is {by_folder}, not {built}; build it again, or delete {REPORT} if the change was "
            "intended"
        )
        return by_folder
    return built


def _in_memory(rows: object) -> FoundDataset:
    if not isinstance(rows, Dataset | DatasetDict):
        raise UserError(
            f"a dataset must be a name, a folder, a Parquet file or a datasets.Dataset; got {type(rows).__name__}; "
            "convert its rows to a datasets.Dataset, or save them in a folder"
        )
    return FoundDataset("the dataset", "in-memory", rows=rows)


def _of_dict(splits: DatasetDict, split: str, name: str) -> Dataset:
    """Return one split of a DatasetDict. If labels are text, the classes are the distinct labels in all splits.

    Raises:
        UnknownSplitError: There is no such split.
    """
    whole, bracket, _ = split.partition("[")
    if whole not in splits:
        raise UnknownSplitError(name, split, splits)
    if bracket:
        raise UserError(f"a slice such as {split} is supported for files only; pass dataset['{whole}'].select(...)")
    plain = {name: _unformatted(rows) for name, rows in splits.items()}
    labels = [rows["label"] for rows in plain.values() if is_text(rows.features.get("label"))]
    return with_classes(plain[whole], sorted({text for texts in labels for text in texts if text is not None}))


def embedded(name: str, options: dict[str, Any]) -> Path:
    """Return the cached folder of a dataset that needs no source. Build the dataset if the folder is missing.

    Several processes may call this function at the same time.
    """
    builder = registry.load("hub_builders", name)
    settings = settings_of(name, builder, options)
    identity = f"{seed_of(sorted(settings.items())):016x}"
    folder = cache_folder() / "datasets" / f"{name}-{builder.VERSION}-{identity}"
    if not (folder / REPORT).is_file():
        try:
            build(name, folder, progress=sys.stderr.isatty(), **settings)
        except UserError:
            if not (folder / REPORT).is_file():  # otherwise another process has built the dataset in the meantime
                raise
    return folder


def class_names(dataset: Dataset) -> list[str]:
    """Return the names of the classes, in the order of the labels.

    Raises:
        UserError: `label` is not a ClassLabel.
    """
    kind = dataset.features.get("label")
    if not isinstance(kind, ClassLabel):
        raise UserError('the dataset has no column "label" with class names; cast the labels to datasets.ClassLabel')
    return list(kind.names)


def _folder(name: str) -> Path | None:
    """Return the folder or Parquet file with exactly this name, or None.

    For the name of a known dataset, a folder is returned only if it contains a built dataset.
    """
    path = Path(os.path.expanduser(name))  # an unknown ~user stays unchanged
    if path.suffix.lower() == PARQUET and not path.is_dir():
        if path.is_file():
            return path
        raise UserError(f"there is no file {name}; check the path")
    if not path.is_dir():
        if path.is_absolute() or name.startswith((".", "~")):
            fix = f"build a dataset there with `saliency-bench build NAME --out {name}`"
            if near := near_folders(path):
                fix = f"did you mean {' or '.join(near)}?"
            raise UserError(f"{name} is not a folder; {fix}")
        return None
    return path if name not in list_datasets() or (path / REPORT).is_file() else None


def _local(folder: Path, name: str, split: str) -> Dataset:
    """Load a split from a folder that may have been written by any program."""
    return _with_images(_load_folder(folder, split), name)


def _load_folder(folder: Path, split: str, config: str | None = None) -> Dataset:
    place = folder.resolve()
    problem = f"{folder} contains no readable dataset; build one with `saliency-bench build`"
    try:
        check_cards(place, str(folder))
        with _quiet():
            rows = (
                _of_file(place, split)
                if place.is_file()
                else _saved(place, split) or _built(place, str(folder), split, config)
            )
    except Exception as error:  # any error that a damaged or hostile file causes in `datasets`
        raise loading_error(error, problem, config) from error
    check_rows(rows, str(folder), place)
    return rows


def _of_split(rows: Dataset, split: str, name: str) -> Dataset:
    """Check that rows do not belong to a different split, and return them.

    Raises:
        UserError: The rows state that they belong to a different split. The message names this split.
    """
    stated = str(rows.split).partition("[")[0] if rows.split is not None else split  # leaves out the slice
    if stated.isidentifier() and stated != split.partition("[")[0]:
        text = f"{name} is the split {stated}, not {split}; use split='{stated}' (--split {stated})"
        raise UnknownSplitError(name, split, [stated], text)
    return rows


def _built(place: Path, name: str, split: str, config: str | None) -> Dataset:
    """Load a split like `datasets.load_dataset`, but check all files before reading any of them.

    `datasets` caches rows under a key made from the names and dates of the files. Here, the key is a hash of the files'
    content. Images next to a table are not cached but opened on access.
    """
    cache = _cache()
    builder = datasets.load_dataset_builder(str(place), config, cache_dir=str(cache))
    check_files(builder, name, str(place))
    files = [file for files in (builder.config.data_files or {}).values() for file in files]
    check_tables(map(Path, files), name)
    hashes = [known_sha256(Path(file)) for file in files if Path(file).suffix.lower() in TABLES]
    copy = cache / hash_of(str(place), builder.config.name, builder.hash, files, hashes)
    prepare_in_child(place, config, map(Path, files), cache, copy)
    builder.download_and_prepare(str(copy))
    return split_of(builder, split, name)


def _of_file(place: Path, split: str) -> Dataset:
    """Load a Parquet file as the requested split. The key in the cache is a hash of the file's content."""
    whole = split.partition("[")[0]
    check_tables([place], str(place))
    cache = _cache()
    builder = datasets.load_dataset_builder("parquet", data_files={whole: str(place)}, cache_dir=str(cache))
    builder.download_and_prepare(str(cache / hash_of(str(place), whole, builder.hash, known_sha256(place))))
    return builder.as_dataset(split)


def _cache() -> Path:
    """Return the cache folder of `datasets`, or a temporary folder if the cache folder is not writable."""
    folder = Path(datasets.config.HF_DATASETS_CACHE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder / "by_content"
    except OSError as error:
        why = error.strerror or one_line(error)
        _complain_once(
            f"cannot write to the cache folder {folder}: {why}, so the data are read into a temporary "
            "folder again each time; make the cache folder writable, or set HF_DATASETS_CACHE to a different folder"
        )
    return _temporary_cache()


@cache
def _temporary_cache() -> Path:
    """Return a temporary folder that is deleted when the process ends."""
    folder = Path(mkdtemp(prefix="saliency-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _saved(place: Path, split: str) -> Dataset | None:
    """Load one split from a folder that `save_to_disk` wrote. Return None for any other folder."""
    if (place / SAVED).is_file():
        check_tables(place.glob("*.arrow"), str(place))
        return _of_split(datasets.load_from_disk(str(place)), split, str(place))
    if not (place / "dataset_dict.json").is_file():
        return None
    if not (place / split / SAVED).is_file():
        raise UnknownSplitError(str(place), split, [path.parent.name for path in place.glob(f"*/{SAVED}")])
    check_tables((place / split).glob("*.arrow"), str(place))
    return datasets.load_from_disk(str(place / split))


def _check_fingerprint(rows: Dataset, build_report: dict[str, Any], name: str, split: str) -> None:
    """Compare the fingerprint of rows with the build report, if there is one. Equal content is checked only once.

    Raises:
        UserError: The rows differ from the report.
    """
    part = build_report.get("splits", {}).get(split)
    if part is None:
        return
    mark = cache_folder() / "checked" / f"{rows._fingerprint}-{part['fingerprint']}"
    if mark.exists():
        return
    if fingerprint(rows) != part["fingerprint"]:
        raise UserError(
            f"the split {split} of {name} does not match its {REPORT}: the download is broken or a file was changed; "
            f"delete the cached copy in {datasets.config.HF_CACHE_HOME} and load the dataset again"
        )
    with suppress(UserError):  # if the cache is not writable, check again next time
        write_text(mark, "")


def _with_images(dataset: Dataset, name: str) -> Dataset:
    """Cast the columns `image` and `mask` to images, or raise UserError if there are no images."""
    if not isinstance(dataset, Dataset):
        raise UserError(f"{name}: several splits were requested; choose one, such as split='test'")
    if "image" not in dataset.features and "image_sha256" in dataset.features:
        raise UserError(
            f"{name} is published without its images, which may not be redistributed; download the source (see its "
            f"card) and pass its folder: load_dataset('{name}', source=DIR)"
        )
    dataset = with_pictures(_unformatted(dataset), ("image", "mask"))
    check_images(dataset, name)
    return dataset


def _unformatted(dataset: Dataset) -> Dataset:
    """Remove the output format (torch, numpy, selected columns) that may have been set for the rows."""
    if dataset.format["type"] == "custom":
        _complain_once("the transform of the dataset is not applied; images are read as stored")
    is_plain = dataset.format["type"] is None and dataset.format["columns"] == dataset.column_names
    return dataset if is_plain else dataset.with_format(None)


def with_pictures(dataset: Dataset, columns: Iterable[str]) -> Dataset:
    """Cast columns to images. The columns contain encoded files, or masks stored as numbers."""
    for column in columns:
        kind = dataset.features.get(column)
        if column == "mask" and (number := _number_of_grid(kind)) is not None:
            dataset = _with_drawn(dataset, column, number)
        elif _is_encoded(kind):
            dataset = dataset.cast_column(column, Image())
    return dataset


def _with_drawn(dataset: Dataset, column: str, number: Value) -> Dataset:
    """Encode the images in a column of numbers (H, W) as image files.

    Raises:
        UserError: An image has rows of different length, a pixel without a number, or numbers that are too large.
    """
    # `datasets` itself encodes only plain lists, and truncates integers to 32 bits.
    number = Value("int32") if pa.types.is_integer(number.pa_type) else number
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Downcasting array dtype")
            return dataset.cast_column(column, List(List(number))).cast_column(column, Image())
    except (ValueError, TypeError) as error:
        raise UserError(
            f'the column "{column}" contains arrays that are not images (H, W) ({one_line(error, 100)}); all rows of '
            "an array must have the same length, and every pixel must be a number of at most 32 bits"
        ) from error


def _is_encoded(kind: object) -> bool:
    """Return whether a column contains the bytes of image files, as in tables that other programs wrote."""
    if isinstance(kind, dict):
        return set(kind) == {"bytes", "path"}
    type_held = getattr(kind, "pa_type", None) if isinstance(kind, Value) else None
    return type_held is not None and (pa.types.is_binary(type_held) or pa.types.is_large_binary(type_held))


def _number_of_grid(kind: object) -> Value | None:
    """Return the type of the numbers in a column of grids (H, W), or None for any other column."""
    value = getattr(getattr(kind, "feature", None), "feature", None)  # lists of lists
    value = Value(kind.dtype) if isinstance(kind, Array2D) else value
    is_kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    is_number = isinstance(value, Value) and any(is_kind(value.pa_type) for is_kind in is_kinds)
    return value if is_number else None


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bars and log lines of `datasets` while a local folder is loaded."""
    level, shown = datasets.logging.get_verbosity(), not datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()
