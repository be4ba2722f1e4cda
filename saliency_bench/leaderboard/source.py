"""Where results lie: a folder, or a repository of the Hub, of which only what is needed is downloaded."""

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

from saliency_bench import registry
from saliency_bench.errors import UserError, described
from saliency_bench.hub import client, errors
from saliency_bench.leaderboard.checks import Checked, read_checked
from saliency_bench.leaderboard.known import FOLDERS, Known, content_of
from saliency_bench.leaderboard.recorded import Recorded
from saliency_bench.leaderboard.schema import RECORDS, RESULT, Result, read_result
from saliency_bench.results.cell import as_json, read_cells
from saliency_bench.results.summary import Outcome
from saliency_bench.utils.files import load_arrays, save_arrays
from saliency_bench.utils.storage import cache_folder

LARGEST = 2**28  # bytes of scores that are kept


def read_cached(content: str, folder: Path) -> Checked:
    """A submission in a folder whose files have this hash. Raises: UserError, as `read_checked`."""
    path = cache_folder() / "board" / f"{content}-{_code()[:16]}.npz"
    try:
        return _read(path)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error, BadZipFile, UserError):
        found = read_checked(folder)
    scores = np.stack([outcome.scores for outcome in found.recorded.outcomes.values()])
    if scores.nbytes <= LARGEST:
        _write(path, found, scores)
    return found


def _read(path: Path) -> Checked:
    arrays = load_arrays(path)
    about = json.loads(arrays["about"].tobytes())
    result, cells = Result.model_validate_json(json.dumps(about["result"])), read_cells(about["cells"])
    outcomes = {
        cell.cell_id: Outcome(scores, {}, Counter(cell.left_out), Counter(cell.marked))
        for cell, scores in zip(cells, arrays["scores"], strict=True)
    }
    return Checked(result, cells, Recorded(about["ids"], about["groups"], outcomes))


def _write(path: Path, found: Checked, scores: np.ndarray) -> None:
    about = {
        "result": found.result.model_dump(mode="json"),
        "cells": as_json(found.cells),
        "ids": found.recorded.ids,
        "groups": found.recorded.groups,
    }
    try:
        save_arrays(path, about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), scores=scores)
    except UserError:  # a full or read-only disk: it is checked again next time
        return


@cache
def _code() -> str:
    """A hash of the package's Python files, on which every check depends."""
    digest = sha256()
    roots = {registry.HERE, *(folder for kind in ("explainers", "metrics") for folder in registry.folders(kind))}
    for path in sorted(path for root in roots for path in root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


REFUSALS = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled)
PULL_REQUEST = "refs/pr/"


@contextmanager
def asking(repo: str) -> Iterator[None]:
    """Inside, what the Hub refuses or the network loses becomes one line that says how to fix it; no progress bars."""
    try:
        with client.no_bars():
            yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, LocalEntryNotFoundError) and errors.status_of(error) is None:
            raise UserError(f"{repo} is not in the cache, and the Hub cannot be reached; try again later") from error
        if isinstance(error, REFUSALS) or errors.is_network_error(error):
            errors.refuse(error, repo, get_token())
        raise


class Source:
    """location: a folder of results (a path), or a repository of the Hub (text)."""

    def __init__(self, location: str | Path, revision: str | None = None, api: HfApi | None = None):
        self.location, self.revision, self.api = location, revision, api or client.default_api()
        if isinstance(self.location, Path) and not self.location.is_dir():
            raise UserError(f"{location} is not a folder; give a folder of results, or NAMESPACE/results of the Hub")
        if isinstance(self.location, str) and self.location.count("/") != 1:
            raise UserError(f"'{location}' is neither a folder of results nor NAMESPACE/results of the Hub")

    def root(self, patterns: Sequence[str], revision: str | None = None) -> Path:
        """The folder that holds the files that fit; README.md too, because a pattern without files causes a warning."""
        if isinstance(self.location, Path):
            return self.location
        with asking(self.location):
            return Path(snapshot_download(
                self.location, repo_type="dataset", revision=revision or self.revision,
                allow_patterns=[*patterns, "README.md"], endpoint=self.api.endpoint, token=self.api.token,
            ))  # fmt: skip

    def known(self) -> tuple[Known, list[str]]:
        """What the owner vouches for. Of a pull request, what the main branch says: it is not the owner's."""
        own = "main" if (self.revision or "").startswith(PULL_REQUEST) else self.revision
        return Known.read(self.root([f"{folder}/*.json" for folder in FOLDERS], own))

    def folders(self, group: str = "*/*") -> tuple[Path, list[str]]:
        """(the root, the folders of submissions whose first two levels fit), with their files."""
        root = self.root([f"{group}/*/{name}" for name in (RESULT, RECORDS)])
        return root, sorted(path.parent.relative_to(root).as_posix() for path in root.glob(f"{group}/*/{RESULT}"))

    def beside(self, result: Result) -> Iterator[Checked]:
        """The submissions that check out of the dataset and the model of this one, whatever these are called."""
        root, folders = self.folders(f"*-{result.dataset.fingerprint[:8]}/*-{result.model.digest[:8]}")
        for folder in folders:
            with suppress(UserError):  # what is not as it should be is on no board
                yield read_folder(root, folder, Known())[1]


def read_folder(root: Path, folder: str, known: Known) -> tuple[str, Checked]:
    """(the hash of its files, a submission), checked.

    Raises: UserError, in one line, for whatever is wrong with it or happens while it is read.
    """
    try:
        if not (root / folder / RECORDS).exists():
            read_result(root / folder / RESULT)  # which may say more
        content = content_of(root / folder)
        found = read_cached(content, root / folder)
        _check_place(found, folder)
        _check_samples(found, known)
        status = known.statuses.get(content)
        if status is not None and status.refused:
            raise UserError(f"{folder}: refused by the owner of the board: {status.refused}")
        return content, found
    except UserError as error:
        raise UserError(str(error).replace(f"{root}/", "")) from error  # without the folder of the cache
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: {str(error).replace(f'{root}/', '')}") from error
    except Exception as error:  # one submission is refused, and nothing else
        raise UserError(f"{folder} cannot be read: {described(error)}") from error


def _check_place(found: Checked, folder: str) -> None:
    if found.result.folder != folder:
        raise UserError(f"{folder}/{RESULT}: its content belongs in the folder {found.result.folder}")


def _check_samples(found: Checked, known: Known) -> None:
    """Whether the samples are those of the dataset, where the owner of the board says which these are."""
    setting = found.result.setting
    dataset = known.datasets.get((setting.fingerprint, setting.split))
    if dataset is None:
        return
    published = dict(dataset.samples)
    where = f"{found.result.folder}/{RECORDS}"
    for image_id, group in zip(found.recorded.ids, found.recorded.groups, strict=True):
        if image_id not in published:
            raise UserError(f"{where}: image_id {image_id} is not in {dataset.id}")
        if published[image_id] != group:
            raise UserError(f"{where}: group of image {image_id} is {published[image_id]} in {dataset.id}, not {group}")
    if found.result.dataset.samples != len(published):
        raise UserError(f"{found.result.folder}/{RESULT}: dataset.samples must be {len(published)}")
