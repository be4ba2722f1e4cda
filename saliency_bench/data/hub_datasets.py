"""Load datasets from the Hub. A commit is downloaded once. If the Hub is unreachable, the cached copy is used."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel, Dataset, DatasetBuilder
from datasets.exceptions import DatasetGenerationError, NonMatchingSplitsSizesError
from datasets.naming import camelcase_to_snakecase
from datasets.packaged_modules.cache.cache import Cache
from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from saliency_bench.data.build_report import REPORT, read_report
from saliency_bench.data.dataset_names import SPLIT_OF, alternative_to
from saliency_bench.data.untrusted_reports import CARDS, check_cards, check_files, check_names, check_rows
from saliency_bench.data.untrusted_tables import check_downloads
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.hub.cache import folder_of, remember, remembered, snapshot_of
from saliency_bench.hub.client import no_bars
from saliency_bench.hub.failures import is_network_error, refuse
from saliency_bench.utils.messages import complain_once
from saliency_bench.utils.storage import storage_error

SECONDS = 10  # timeout for the Hub's first response


class UnknownSplitError(UserError):
    """Error raised if a dataset has no split with the requested name. `known` lists its splits."""

    def __init__(self, name: str, split: str, known: Iterable[str], text: str = ""):
        self.known = sorted(known)
        super().__init__(text or f"{unknown(f'split of {name}', split, self.known)} (--split)")


def split_of(builder: DatasetBuilder, split: str, name: str) -> Dataset:
    """Return a split, or a slice of a split, from a prepared builder.

    Raises:
        UnknownSplitError: There is no such split.
    """
    whole = split.partition("[")[0]
    if whole.isidentifier() and builder.info.splits and whole not in builder.info.splits:
        raise UnknownSplitError(name, split, builder.info.splits)
    rows = builder.as_dataset(split)
    kind = rows.features.get("label")
    folders = kind.names if isinstance(kind, ClassLabel) and isinstance(builder, ImageFolder) else ()
    if folders and all(folder.lower() in SPLIT_OF for folder in folders):
        complain_once(
            f"{name} has no class folders: {', '.join(folders)} are splits, so its images have no labels; add "
            "labels in a metadata.csv, or sort the images of each split into one folder per class"
        )
        rows = rows.remove_columns("label")
    return rows


@dataclass(frozen=True)
class Commit:
    """A commit of a dataset repository.

    Attributes:
        repo: Id of the repository.
        sha: Hash of the commit.
        reached: Whether the Hub was reached. If not, the commit comes from the cache.
        files: Names of the files in the commit, if the Hub was reached.
    """

    repo: str
    sha: str
    reached: bool
    files: tuple[str, ...] = ()

    @property
    def cache(self) -> Path:
        """Local folder of the repository's files."""
        return folder_of("dataset", self.repo)

    @property
    def snapshot(self) -> Path:
        """Local folder of this commit's files."""
        return snapshot_of("dataset", self.repo, self.sha)


def commit_of(repo: str, revision: str | None = None) -> Commit:
    """Resolve a revision (None for "main") to a commit, with one short request or, if offline, from the cache.

    Raises:
        UserError: The dataset or revision does not exist, or it is not cached and the Hub cannot be reached.
    """
    offline = constants.HF_HUB_OFFLINE or datasets.config.HF_HUB_OFFLINE
    if not offline:
        try:
            info = HfApi().dataset_info(repo, revision=revision, timeout=SECONDS)
        except RevisionNotFoundError as error:
            raise UserError(
                f"the dataset {repo} has no revision {revision}; check the name of the branch, tag or commit"
            ) from error
        except HfHubHTTPError as error:
            if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
                raise UserError(f"the Hub has no dataset {repo} (or it is private); {alternative_to(repo)}") from error
            refuse(error, repo, get_token())
        except ValueError as error:
            raise UserError(f"'{repo}' is neither a folder nor a dataset on the Hub: {one_line(error)}") from error
        except Exception:  # the Hub cannot be reached; the type of the error depends on the HTTP library
            pass
        else:
            sha, files = info.sha or "", tuple(file.rfilename for file in info.siblings or ())
            remember("dataset", repo, revision, sha)
            return Commit(repo, sha, True, files)
    if (last := remembered("dataset", repo, revision)) is None:
        why = "the Hub cannot be reached" + (" (HF_HUB_OFFLINE is set)" if offline else "")
        at = f" at {revision}" if revision else ""
        raise UserError(f"{why}, and {repo}{at} is not in the cache; {alternative_to(repo)}")
    return Commit(repo, last, False)


def load_from_hub(commit: Commit, split: str, config: str | None = None) -> Dataset:
    """Load one split of a commit. Only tables and images in the repository itself are opened.

    Raises:
        UserError: A split does not exist, the connection breaks, or the data fail the checks for untrusted files.
    """
    repo = commit.repo
    try:
        builder = _downloaded(commit, config) if commit.reached else _cached(commit, config)
        rows = split_of(builder, split, repo)
    except UserError:
        raise
    except (ConnectionError, FileNotFoundError) as error:
        raise UserError(
            f"{repo} on the Hub is not a valid dataset ({one_line(error)}); {alternative_to(repo)}"
        ) from error
    except Exception as error:  # any error that a damaged or hostile file causes in `datasets`
        if not is_network_error(error):
            raise loading_error(error, f"{repo} cannot be loaded; {alternative_to(repo)}", config) from error
        raise UserError(
            f"the connection to the Hub was lost while loading {repo} ({one_line(error)}); try again"
        ) from error
    check_rows(rows, repo, commit.cache)
    return rows


def published_report(
    repo: str, revision: str | None = None, api: HfApi | None = None, *, cached: bool = False
) -> dict[str, Any]:
    """Return the `build_report.json` of a repository, or {} if it does not exist or is neither cached nor reachable.

    Args:
        repo: Id of the repository.
        revision: Branch, tag or commit.
        api: Client of the Hub.
        cached: Whether to read only the cache.
    """
    try:
        with no_bars():
            path = (api or HfApi()).hf_hub_download(
                repo, REPORT, repo_type="dataset", revision=revision, local_files_only=cached
            )
        return read_report(Path(path).parent)
    except UserError:
        raise
    except (HfHubHTTPError, OSError) as error:  # no such file, or no connection and no cached copy
        if named := storage_error(error):
            raise named from error
        return {}


def loading_error(error: Exception, otherwise: str, config: str | None = None) -> UserError:
    """Convert an error raised by `datasets` to a readable UserError.

    `otherwise` is the message if the type of the error is unknown.
    """
    if isinstance(error, UserError):
        return error
    if named := storage_error(error):
        return named
    if isinstance(error, DatasetGenerationError):  # "An error occurred"
        error = error.__cause__ or error
    if config and f"BuilderConfig '{config}' not found" in str(error):
        return UserError("this dataset comes with its images, so it needs no `source`; remove `source`")
    if isinstance(error, NonMatchingSplitsSizesError):
        # The text of the error is a list of {"expected": SplitInfo(...), "recorded": SplitInfo(...)}.
        name = re.findall(r"name='([^']*)'", str(error))[0]
        expected, recorded = re.findall(r"num_examples=(\d+)", str(error))[:2]
        return UserError(
            f"the split {name} has {recorded} samples, but its card (README.md) states {expected}, so the data were "
            "changed; build or download them again, or correct num_examples in the card"
        )
    if "scripts are no longer supported" in str(error):
        return UserError(f"{otherwise} (a script generates the dataset, and downloaded code is never executed)")
    return UserError(one_line(error) if "split" in str(error).lower() else f"{otherwise} ({one_line(error)})")


def _downloaded(commit: Commit, config: str | None) -> DatasetBuilder:
    """Download a dataset like `datasets.load_dataset`, but check all files before reading any of them."""
    check_names(commit.files, commit.repo)
    for card in set(CARDS) & set(commit.files):
        with no_bars():
            HfApi().hf_hub_download(commit.repo, card, repo_type="dataset", revision=commit.sha)
    check_cards(commit.snapshot, commit.repo)
    builder = datasets.load_dataset_builder(commit.repo, config, revision=commit.sha)
    if isinstance(builder, Cache):  # after any error, `datasets` silently loads its latest cached version
        if builder.hash != commit.sha:
            raise UserError(f"the connection to the Hub was lost while loading {commit.repo}; try again")
        return builder
    check_files(builder, commit.repo, f"hf://datasets/{commit.repo}@{commit.sha}")
    check_downloads(builder, commit.snapshot, config, commit.repo)
    builder.download_and_prepare()
    return builder


def _cached(commit: Commit, config: str | None) -> DatasetBuilder:
    """Load the dataset of exactly this commit from the cache. `datasets` itself might load a different commit."""
    owner, _, name = commit.repo.rpartition("/")
    place = Path(datasets.config.HF_DATASETS_CACHE) / "___".join(filter(None, [owner, camelcase_to_snakecase(name)]))
    configs = sorted(path.parts[-3] for path in place.glob(f"*/*/{commit.sha}") if path.is_dir())
    wanted = config or ("default" if "default" in configs or len(configs) != 1 else configs[0])
    if wanted not in configs:
        raise UserError(
            f"the Hub cannot be reached to download {commit.repo}, and the cache does not contain all files of the "
            f"commit {commit.sha}; try again when the Hub is reachable"
        )
    return Cache(repo_id=commit.repo, dataset_name=camelcase_to_snakecase(name), config_name=wanted, hash=commit.sha)
