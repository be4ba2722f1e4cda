"""Read results from a folder or from a repository on the Hub. Only the necessary files are downloaded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from huggingface_hub import HfApi, RepoFile, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

from saliency_bench.board.checks import CheckedSubmission, known_metric, needs_masks
from saliency_bench.board.known import FOLDERS, Known, content_of
from saliency_bench.board.published_maps import SHARD
from saliency_bench.board.submission_cache import read_cached
from saliency_bench.board.submission_schema import RECORDS, RESULT, SCHEMA, Result, read_result
from saliency_bench.errors import UserError, described
from saliency_bench.hub import client, failures
from saliency_bench.hub.repo_names import could_be_on_the_hub
from saliency_bench.utils.bounded import ReaderDiedError

REFUSALS = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled)
PULL_REQUEST = "refs/pr/"
MOST_FETCHED = 200_000_000  # maximum size in bytes of a submission's maps that are downloaded for display


@contextmanager
def asking(repo: str) -> Iterator[None]:
    """Hide progress bars, and convert Hub and connection errors into a UserError that names the fix."""
    try:
        with client.no_bars():
            yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, LocalEntryNotFoundError) and failures.status_of(error) is None:
            raise UserError(f"{repo} is not in the cache, and the Hub cannot be reached; try again later") from error
        if isinstance(error, REFUSALS) or failures.is_network_error(error):
            failures.refuse(error, repo, get_token())
        raise


class BoardSource:
    """A folder of results (a path) or a repository on the Hub (a string).

    Args:
        location: Path of the folder, or "NAMESPACE/results".
        revision: Revision of the repository.
        api: `HfApi` client for the account that reads. Defaults to the logged-in account.
    """

    def __init__(self, location: str | Path, revision: str | None = None, api: HfApi | None = None):
        self.location, self.revision, self.api = location, revision, api or client.default_api()
        if not (location.is_dir() if isinstance(location, Path) else could_be_on_the_hub(location) and "/" in location):
            problem = "is not a folder" if Path(location).exists() else "does not exist"
            raise UserError(f"{location} {problem}; specify a folder of results, or NAMESPACE/results on the Hub")

    def root(self, patterns: Sequence[str], revision: str | None = None) -> Path:
        """Return a local folder that contains the files matching these patterns. If necessary, they are downloaded.

        README.md is always included, because patterns without a match cause a warning.
        """
        if isinstance(self.location, Path):
            return self.location
        with asking(self.location):
            return Path(snapshot_download(
                self.location, repo_type="dataset", revision=revision or self.revision,
                allow_patterns=[*patterns, "README.md"], endpoint=self.api.endpoint, token=self.api.token,
            ))  # fmt: skip

    def known(self) -> tuple[Known, list[str]]:
        """Return the facts that the owner of the board vouches for, and a message for each invalid file.

        These files are always read from the main branch, because only the owner can write to it.
        """
        revision = "main" if (self.revision or "").startswith(PULL_REQUEST) else self.revision
        return Known.read(self.root([f"{folder}/*.json" for folder in FOLDERS], revision))

    def folders(self, group: str = "*/*") -> tuple[Path, list[str]]:
        """Return (root, folders of the submissions that match `group`/*). The files are downloaded if necessary."""
        root = self.root([*(f"{group}/*/{name}" for name in (RESULT, RECORDS)), SCHEMA])
        return root, sorted(path.parent.relative_to(root).as_posix() for path in root.glob(f"{group}/*/{RESULT}"))

    def may_be_board(self) -> bool:
        """Return whether a location without results could be a new board.

        This is true for a repository that contains the schema of results or no files of its own. It is never true for a
        folder.
        """
        if isinstance(self.location, Path):
            return False
        with asking(self.location):
            files = self.api.list_repo_files(self.location, repo_type="dataset", revision=self.revision)
        return SCHEMA in files or set(files) <= {"README.md", ".gitattributes"}

    def maps(self, folder: str) -> Path | None:
        """Return a local folder that contains a submission's maps, or None if the maps are too large to download."""
        if isinstance(self.location, Path):
            return self.location / folder
        with asking(self.location):
            tree = self.api.list_repo_tree(self.location, folder, repo_type="dataset", revision=self.revision)
            sizes = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
        shards = [path for path in sizes if SHARD.fullmatch(path.rpartition("/")[2])]
        if sum(sizes[path] for path in shards) > MOST_FETCHED:
            return None
        return self.root(shards) / folder

    def beside(self, result: Result) -> Iterator[CheckedSubmission]:
        """Yield the valid submissions that have the same dataset hash and the same model hash as `result`."""
        owners, _ = self.known()
        root, folders = self.folders(f"*-{result.dataset.fingerprint[:8]}/*-{result.model.digest[:8]}")
        for folder in folders:
            with suppress(UserError):  # an invalid submission is not on the board
                yield read_folder(root, folder, owners)[1]


def source_at(location: str | Path, revision: str | None = None, api: HfApi | None = None) -> BoardSource:
    """Return the source for a location: a folder if the path exists, otherwise a repository."""
    folder = Path(location).expanduser()
    return BoardSource(folder if isinstance(location, Path) or folder.is_dir() else str(location), revision, api)


def read_folder(root: Path, folder: str, owners: Known) -> tuple[str, CheckedSubmission]:
    """Read and check a submission.

    Args:
        root: Root folder of the results.
        folder: Folder of the submission, relative to `root`.
        owners: Facts that the owner of the board vouches for.

    Returns:
        The hash of the submission's files, and the submission.

    Raises:
        UserError: The submission is invalid or cannot be read. The message is a single line.
    """
    try:
        if not (root / folder / RECORDS).exists():
            read_result(root / folder / RESULT)  # may raise a clearer error than the missing file
        content = content_of(root / folder)
        submission = read_cached(content, root / folder)
        _check_place(submission, folder)
        _check_samples(submission, owners)
        status = owners.statuses.get(content)
        if status is not None and status.refused:
            raise UserError(f"{folder}: rejected by the owner of the board: {status.refused}")
        return content, submission
    except ReaderDiedError as error:
        raise UserError(f"{folder} cannot be read: {error}") from error
    except UserError as error:
        raise UserError(str(error).replace(f"{root}/", "")) from error  # remove the path of the cache folder
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: {str(error).replace(f'{root}/', '')}") from error
    except Exception as error:  # reject only this submission
        raise UserError(f"{folder} cannot be read: {described(error)}") from error


def _check_place(submission: CheckedSubmission, folder: str) -> None:
    """Raise UserError if the folder of a submission does not match its content."""
    if submission.result.folder != folder:
        raise UserError(f"{folder}/{RESULT}: its content belongs in the folder {submission.result.folder}")


def _check_no_scores(submission: CheckedSubmission) -> None:
    """Raise UserError if a submission contains scores that need hidden masks, which only the owner can compute."""
    for cell in submission.cells:
        metric = known_metric(cell)
        outcome = submission.recorded.outcomes[cell.cell_id]
        has_scores = any(np.isfinite(values).any() for values in (outcome.scores, *outcome.parts.values()))
        if has_scores and (metric is None or needs_masks(metric)):
            raise UserError(
                f"{submission.result.folder}/{RECORDS} contains scores of {cell.metric_text}, but the masks of this "
                f"dataset are hidden; submit maps without scores"
            )


def _check_samples(submission: CheckedSubmission, owners: Known) -> None:
    """Raise UserError if samples are not in the dataset. Only datasets that the owner has listed can be checked."""
    setting = submission.result.setting
    dataset = owners.datasets.get((setting.fingerprint, setting.split))
    if dataset is None:
        return
    if dataset.hidden:
        _check_no_scores(submission)
    published = dict(dataset.samples)
    where = f"{submission.result.folder}/{RECORDS}"
    for image_id, group in zip(submission.recorded.ids, submission.recorded.groups, strict=True):
        if image_id not in published:
            raise UserError(f"{where}: image_id {image_id} is not in {dataset.id}")
        if published[image_id] != group:
            raise UserError(
                f"{where}: the group of image {image_id} is {published[image_id]} in {dataset.id}, not {group}"
            )
    if submission.result.dataset.samples != len(published):
        raise UserError(f"{submission.result.folder}/{RESULT}: dataset.samples must be {len(published)}")
