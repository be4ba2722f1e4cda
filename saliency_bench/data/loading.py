"""Loads datasets: built here, from a folder, or from the Hub."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel, Dataset, Image
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from saliency_bench import registry
from saliency_bench.data.annotations import joined
from saliency_bench.data.building import REPORT, build, settings_of
from saliency_bench.data.card import ANNOTATIONS
from saliency_bench.data.fingerprints import Fingerprint
from saliency_bench.errors import UserError, unknown
from saliency_bench.hub.client import no_bars, refuse, unreached
from saliency_bench.utils.caching import cache_folder
from saliency_bench.utils.files import write_text
from saliency_bench.utils.seeds import seed_of

NAMESPACE = "saliency-bench"
READ = 100  # rows at once


def list_datasets() -> list[str]:
    """The names of the datasets that can be built and loaded."""
    return registry.names("hub_builders")


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
    "saliency-bench/pet-xai"), or any "namespace/name" of the Hub. A dataset that is drawn by the package (shapes-xai)
    is built when it is first asked for and kept in the cache folder; `builder_options` are for these only.
    source: of a dataset that is published without its images, the folder with your copy of the raw data. The dataset is
    built from it, once, in the cache folder, and every image compared with the checksum that was published.
    revision: of a repository of the Hub, a branch, tag or commit (default "main"). What is loaded from the Hub is
    compared with the fingerprint in its `build_report.json`, once.
    Raises: UserError for an unknown name, split or option, a folder without dataset, a Hub that cannot be reached.
    """
    text = _short(name)
    folder = _folder(text)
    if source is None and folder is None and "/" not in text and "\\" not in text:
        if text not in list_datasets():
            raise unknown("dataset", text, list_datasets())
        if _is_embedded(text) and revision is None:
            return _local(embedded(text, builder_options), text, split)
    if source is not None and _is_embedded(text):
        raise UserError(f"{text} is drawn by the package and has no source; leave out `source`")
    if builder_options:
        raise UserError(
            f"{text} is loaded as it was built; {_listed(builder_options)} can only be set when building it"
        )
    if folder and revision:
        raise UserError(f"{text} is a folder and has no revisions; leave out `revision`")
    repo = _repo(text)
    if source is not None:
        return _joined(folder or repo, text, split, Path(source), revision)
    return _local(folder, text, split) if folder else _remote(repo, split, revision)


def origin(name: str | Path) -> tuple[str, str | None]:
    """(what the dataset is called that `load_dataset` loads, the repository of the Hub that it is loaded from).

    Of what `saliency-bench build` wrote it is the name of the builder, wherever it lies; otherwise the last part of the
    folder, or the id of the repository. The repository is None for a folder, and for what is drawn by the package.
    """
    text = _short(name)
    if (folder := _folder(text)) is not None:
        built = _report_of(folder).get("dataset")
        return (built if built in list_datasets() else folder.resolve().name), None
    if text in list_datasets():
        return text, None if _is_embedded(text) else _repo(text)
    built = published_report(text).get("dataset")
    return (built if built in list_datasets() else text), text


def _short(name: str | Path) -> str:
    """A known dataset without our namespace, anything else as it is."""
    text = str(name).removeprefix(f"{NAMESPACE}/")
    return text if text in list_datasets() else str(name)


def _repo(text: str) -> str:
    return text if "/" in text or "\\" in text else f"{NAMESPACE}/{text}"


def _is_embedded(name: str) -> bool:
    return name in list_datasets() and getattr(registry.load("hub_builders", name), "EMBEDDED", False)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _joined(place: Path | str, name: str, split: str, source: Path, revision: str | None) -> Dataset:
    """The annotations of a folder or repository with the images of the user's own copy of the source."""
    if isinstance(place, Path):
        notes, account = _loaded_from(place, split, ANNOTATIONS), _report_of(place)
    else:
        notes, account = _load_from(place, split, revision, ANNOTATIONS), published_report(place, revision)
    if split not in account.get("splits", {}):
        raise UserError(f"{name} has no {REPORT} that speaks of the split {split}; its annotations cannot be joined")
    return _local(joined(notes, account, split, source), name, split)


def embedded(name: str, options: dict[str, Any]) -> Path:
    """The cached folder of a dataset that needs no source, built if it is not there; two processes may ask at once."""
    builder = registry.load("hub_builders", name)
    settings = settings_of(name, builder, options)
    identity = f"{seed_of(sorted(settings.items())):016x}"
    folder = cache_folder() / "datasets" / f"{name}-{builder.VERSION}-{identity}"
    if not (folder / REPORT).is_file():
        try:
            build(name, folder, progress=sys.stderr.isatty(), **settings)
        except UserError:
            if not (folder / REPORT).is_file():  # else another process was faster
                raise
    return folder


def class_names(dataset: Dataset) -> list[str]:
    """The names of the classes, in the order of the labels. Raises: UserError if `label` is no ClassLabel."""
    kind = dataset.features.get("label")
    if not isinstance(kind, ClassLabel):
        raise UserError('the dataset has no column "label" with class names; cast it to datasets.ClassLabel')
    return list(kind.names)


def fingerprint(dataset: Dataset) -> str:
    """A hash of the content of all rows in their order: image_id, name of the label, encoded bytes of image and mask.

    It depends on nothing else: no path, cache, machine or other column; a column that is missing counts as null.
    `build_report.json` holds the same hash of each split. Raises: UserError without a column "image".
    """
    if not isinstance(dataset.features.get("image"), Image):
        raise UserError('the dataset has no column "image" of images')
    kind = dataset.features.get("label")
    wanted = [column for column in ("image_id", "label", "image", "mask") if column in dataset.features]
    plain = dataset.with_format(None).select_columns(wanted)
    for column in {"image", "mask"} & set(wanted):
        plain = plain.cast_column(column, Image(decode=False))
    content = Fingerprint()
    for batch in plain.iter(READ):
        for place in range(len(batch["image"])):
            row = {column: batch[column][place] for column in wanted}
            label = row.get("label")
            named = kind.int2str(label) if isinstance(kind, ClassLabel) and label is not None else label
            content.add(row.get("image_id"), named, _bytes(row["image"]), _bytes(row.get("mask")))
    return content.text()


def _bytes(stored: dict | None) -> bytes | None:
    if stored is None:
        return None
    return Path(stored["path"]).read_bytes() if stored["bytes"] is None else stored["bytes"]


def _folder(name: str) -> Path | None:
    """The folder that is meant, if one is; a bare name means one only if a built dataset lies there."""
    path = Path(name).expanduser()
    if not path.is_dir():
        if path.is_absolute() or name.startswith((".", "~")):
            raise UserError(f"{name} is no folder; build a dataset there with `saliency-bench build NAME --out {name}`")
        return None
    return path if name not in list_datasets() or (path / REPORT).is_file() else None


def _local(folder: Path, name: str, split: str) -> Dataset:
    return _with_images(_loaded_from(folder, split), name)


def _loaded_from(folder: Path, split: str, config: str | None = None) -> Dataset:
    try:
        with _quiet():
            return datasets.load_dataset(str(folder.resolve()), config, split=split)
    except (FileNotFoundError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise _mended(
            error, f"{folder} holds no dataset that can be read; build one with `saliency-bench build`", config
        ) from error


def _remote(repo: str, split: str, revision: str | None) -> Dataset:
    rows = _with_images(_load_from(repo, split, revision), repo)
    _check(rows, published_report(repo, revision), repo, split)
    return rows


def _load_from(repo: str, split: str, revision: str | None, config: str | None = None) -> Dataset:
    """From the Hub, or from what was loaded from it before if it cannot be reached."""
    reached = _is_reachable(repo)
    try:
        with _offline(not reached):
            return datasets.load_dataset(repo, config, split=split, revision=revision)
    except (ConnectionError, FileNotFoundError) as error:
        trouble = f"the Hub has no usable dataset {repo}" if reached else f"the Hub cannot be reached for {repo}"
        raise UserError(f"{trouble}; {_alternative(repo)}") from error
    except (ValueError, OSError, datasets.exceptions.DatasetGenerationError) as error:
        raise _mended(error, f"{repo} cannot be loaded; {_alternative(repo)}", config) from error
    except Exception as error:
        if not unreached(error):
            raise
        raise UserError(f"the connection to the Hub broke while loading {repo} ({_line(error)}); load again") from error


def _check(rows: Dataset, account: dict, name: str, split: str) -> None:
    """Once for each content: whether the rows are those that the report speaks of, if there is one."""
    part = account.get("splits", {}).get(split)
    if part is None:
        return
    mark = cache_folder() / "checked" / f"{rows._fingerprint}-{part['fingerprint']}"
    if mark.exists():
        return
    if fingerprint(rows) != part["fingerprint"]:
        raise UserError(
            f"the split {split} of {name} is not the one its {REPORT} speaks of: a download that went wrong, or a file "
            f"that was changed; delete what is cached in {datasets.config.HF_CACHE_HOME} and load again"
        )
    with suppress(UserError):  # nowhere to note it: check again next time
        write_text(mark, "")


def published_report(repo: str, revision: str | None = None, api: HfApi | None = None) -> dict:
    """What `build_report.json` of a repository says; {} if there is none that can be had."""
    try:
        with no_bars():
            path = (api or HfApi()).hf_hub_download(repo, REPORT, repo_type="dataset", revision=revision)
        return _report_of(Path(path).parent)
    except (HfHubHTTPError, OSError):  # there is none, or it is not in the cache and there is no network
        return {}


def _report_of(folder: Path) -> dict:
    path = folder / REPORT
    if not path.is_file():
        return {}
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}; build or download the dataset again") from error
    if not isinstance(told, dict):
        raise UserError(f"{path} is not the report of a build; build or download the dataset again")
    return told


def _is_reachable(repo: str) -> bool:
    """Ask once and briefly: `datasets` would try for half a minute. Raises: UserError if there is no such dataset."""
    if datasets.config.HF_HUB_OFFLINE:
        return False
    try:
        HfApi().dataset_info(repo, timeout=10)
    except HfHubHTTPError as error:
        if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
            raise UserError(f"the Hub has no dataset {repo} (or it is private); {_alternative(repo)}") from error
        refuse(error, repo, get_token())
    except ValueError as error:
        raise UserError(f"'{repo}' is neither a folder nor a dataset of the Hub: {_line(error)}") from error
    except Exception:  # no network: the class of the error belongs to the HTTP library in use
        return False
    return True


def _alternative(repo: str) -> str:
    """How to have the dataset without the Hub."""
    namespace, _, name = repo.partition("/")
    if namespace == NAMESPACE and name in list_datasets():
        return f"build it with `saliency-bench build {name} --source DIR --out DIR` and give the folder"
    return f"check the name, or give a folder; known by name: {', '.join(list_datasets())}"


def _with_images(dataset: Dataset, name: str) -> Dataset:
    if not isinstance(dataset, Dataset):
        raise UserError(f"{name}: name one split, such as split='test'")
    if "image" not in dataset.features and "image_sha256" in dataset.features:
        raise UserError(
            f"{name} is published without its images, which may not be passed on; get the source (its card says where) "
            f"and give its folder: load_dataset('{name}', source=DIR)"
        )
    if not isinstance(dataset.features.get("image"), Image):
        raise UserError(f'{name} has no column "image" of images; it has: {", ".join(dataset.features)}')
    return dataset


def _mended(error: Exception, otherwise: str, config: str | None = None) -> UserError:
    """`datasets` names the splits itself when one is unknown."""
    if isinstance(error, UserError):
        return error
    if config and f"BuilderConfig '{config}' not found" in str(error):
        return UserError("this dataset comes with its images; leave out `source`")
    return UserError(_line(error) if "split" in str(error).lower() else f"{otherwise} ({_line(error)})")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no log lines for what takes a moment and comes from this machine."""
    level, shown = datasets.logging.get_verbosity(), not datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()


@contextmanager
def _offline(yes: bool) -> Iterator[None]:
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or yes
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
