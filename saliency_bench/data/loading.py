"""Loads one split of a dataset: drawn by the package, from a folder, from the Hub, or rebuilt from a source."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel, Dataset, Image

from saliency_bench import registry
from saliency_bench.data.annotations import joined
from saliency_bench.data.build_report import REPORT, read_report
from saliency_bench.data.builders import settings_of
from saliency_bench.data.building import build
from saliency_bench.data.card import ANNOTATIONS
from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.data.hub_datasets import load_from_hub, loading_error, published_report
from saliency_bench.data.names import is_embedded, list_datasets, repo_of, short_name
from saliency_bench.errors import UserError, unknown
from saliency_bench.utils.caching import cache_folder
from saliency_bench.utils.files import write_text
from saliency_bench.utils.seeds import seed_of


def load_dataset(
    name: str | Path,
    split: str = "test",
    *,
    source: str | Path | None = None,
    revision: str | None = None,
    **builder_options: Any,
) -> Dataset:
    """One split of a dataset.

    `name` is a folder (as `saliency-bench build` writes it), a name such as "pet-xai" (the same as
    "saliency-bench/pet-xai"), or any "namespace/name" on the Hub. A dataset that the package draws itself (shapes-xai)
    is built on first use and kept in the cache folder; `builder_options` are for these only.
    source: for a dataset published without its images, the folder with your copy of the raw data. The dataset is built
    from it, once, in the cache folder, and every image is compared with the published checksum.
    revision: branch, tag or commit of a repository on the Hub (default "main"). A dataset loaded from the Hub is
    compared with the fingerprint in its `build_report.json`, once.
    Raises: UserError for an unknown name, split or option, a folder without a dataset, or a Hub that cannot be reached.
    """
    text = short_name(name)
    folder = _folder(text)
    if source is None and folder is None and "/" not in text and "\\" not in text:
        if text not in list_datasets():
            raise unknown("dataset", text, list_datasets())
        if is_embedded(text) and revision is None:
            return _local(embedded(text, builder_options), text, split)
    if source is not None and is_embedded(text):
        raise UserError(f"{text} is drawn by the package and has no source; leave out `source`")
    if builder_options:
        raise UserError(
            f"{text} is loaded as it was built; {_listed(builder_options)} can only be set when building it"
        )
    if folder and revision:
        raise UserError(f"{text} is a folder and has no revisions; leave out `revision`")
    repo = repo_of(text)
    if source is not None:
        return _joined(folder or repo, text, split, Path(source), revision)
    return _local(folder, text, split) if folder else _remote(repo, split, revision)


def origin(name: str | Path) -> tuple[str, str | None]:
    """(display name of the dataset that `load_dataset` loads, the repository on the Hub that it is loaded from).

    A dataset built by `saliency-bench build` has the name of its builder, whatever its folder is called; any other has
    the last part of its folder, or the id of its repository. The repository is None for a folder, and for a dataset
    that the package draws itself.
    """
    text = short_name(name)
    if (folder := _folder(text)) is not None:
        built = read_report(folder).get("dataset")
        return (built if built in list_datasets() else folder.resolve().name), None
    if text in list_datasets():
        return text, None if is_embedded(text) else repo_of(text)
    built = published_report(text).get("dataset")
    return (built if built in list_datasets() else text), text


def embedded(name: str, options: dict[str, Any]) -> Path:
    """The cached folder of a dataset that needs no source, built if missing; safe when two processes ask at once."""
    builder = registry.load("hub_builders", name)
    settings = settings_of(name, builder, options)
    identity = f"{seed_of(sorted(settings.items())):016x}"
    folder = cache_folder() / "datasets" / f"{name}-{builder.VERSION}-{identity}"
    if not (folder / REPORT).is_file():
        try:
            build(name, folder, progress=sys.stderr.isatty(), **settings)
        except UserError:
            if not (folder / REPORT).is_file():  # otherwise another process was faster
                raise
    return folder


def class_names(dataset: Dataset) -> list[str]:
    """The names of the classes, in the order of the labels. Raises: UserError if `label` is not a ClassLabel."""
    kind = dataset.features.get("label")
    if not isinstance(kind, ClassLabel):
        raise UserError('the dataset has no column "label" with class names; cast it to datasets.ClassLabel')
    return list(kind.names)


def _folder(name: str) -> Path | None:
    """The folder that a name refers to, if any; a known name refers to a folder only if that is a built dataset."""
    path = Path(name).expanduser()
    if not path.is_dir():
        if path.is_absolute() or name.startswith((".", "~")):
            raise UserError(
                f"{name} is not a folder; build a dataset there with `saliency-bench build NAME --out {name}`"
            )
        return None
    return path if name not in list_datasets() or (path / REPORT).is_file() else None


def _local(folder: Path, name: str, split: str) -> Dataset:
    return _with_images(_load_folder(folder, split), name)


def _load_folder(folder: Path, split: str, config: str | None = None) -> Dataset:
    try:
        with _quiet():
            return datasets.load_dataset(str(folder.resolve()), config, split=split)
    except (FileNotFoundError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise loading_error(
            error, f"{folder} holds no dataset that can be read; build one with `saliency-bench build`", config
        ) from error


def _remote(repo: str, split: str, revision: str | None) -> Dataset:
    rows = _with_images(load_from_hub(repo, split, revision), repo)
    _check_fingerprint(rows, published_report(repo, revision), repo, split)
    return rows


def _joined(origin: Path | str, name: str, split: str, source: Path, revision: str | None) -> Dataset:
    """The annotations in a folder or repository, joined with the images of the user's own copy of the source."""
    if isinstance(origin, Path):
        notes, build_report = _load_folder(origin, split, ANNOTATIONS), read_report(origin)
    else:
        notes = load_from_hub(origin, split, revision, ANNOTATIONS)
        build_report = published_report(origin, revision)
    if split not in build_report.get("splits", {}):
        raise UserError(f"{name} has no {REPORT} with the split {split}; its annotations cannot be joined")
    return _local(joined(notes, build_report, split, source), name, split)


def _check_fingerprint(rows: Dataset, build_report: dict[str, Any], name: str, split: str) -> None:
    """Once per content: compare the rows with the build report, if there is one. Raises: UserError if they differ."""
    part = build_report.get("splits", {}).get(split)
    if part is None:
        return
    mark = cache_folder() / "checked" / f"{rows._fingerprint}-{part['fingerprint']}"
    if mark.exists():
        return
    if fingerprint(rows) != part["fingerprint"]:
        raise UserError(
            f"the split {split} of {name} differs from the one described in its {REPORT}: a broken download, or a "
            f"file that was changed; delete the cached copy in {datasets.config.HF_CACHE_HOME} and load it again"
        )
    with suppress(UserError):  # no writable cache: check again next time
        write_text(mark, "")


def _with_images(dataset: Dataset, name: str) -> Dataset:
    if not isinstance(dataset, Dataset):
        raise UserError(f"{name}: name one split, such as split='test'")
    if "image" not in dataset.features and "image_sha256" in dataset.features:
        raise UserError(
            f"{name} is published without its images, which may not be redistributed; get the source (its card says "
            f"where) and give its folder: load_dataset('{name}', source=DIR)"
        )
    if not isinstance(dataset.features.get("image"), Image):
        raise UserError(f'{name} has no column "image" of images; it has: {", ".join(dataset.features)}')
    return dataset


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no log lines for a local folder, which loads in a moment."""
    level, shown = datasets.logging.get_verbosity(), not datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()
