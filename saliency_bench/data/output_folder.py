"""Manage the output folder of a build: lock it, write to a temporary folder, and rename this folder at the end."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from saliency_bench.data.build_report import REPORT
from saliency_bench.errors import UserError
from saliency_bench.utils.files import write_text
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.storage import cache_folder, storage_error, sync, sync_all

IDENTITY = "made_by.json"  # file with the settings of a workspace
PUBLISHED = "published.json"  # {repository: split with hidden masks, or null}, for the user's own data


def source_folder(source: str | Path, out: Path) -> Path:
    """Check a source folder, and return its path.

    Raises:
        UserError: The folder does not exist, or is inside `out`.
    """
    source = Path(source).expanduser().resolve()
    if not source.is_dir():
        raise UserError(f"source folder {source} does not exist; pass the folder that contains the raw data")
    if source.is_relative_to(out):
        raise UserError(f"the source {source} is inside the output folder {out}; write to another folder")
    return source


def check_replaceable(out: Path, overwrite: bool) -> None:
    """Raise UserError unless `out` is new or empty, or `overwrite` is set and `out` is a dataset built earlier."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / REPORT).is_file():
        raise UserError(f"{out} already exists and is not a dataset built by this command; choose a new folder")
    if not overwrite:
        raise UserError(f"{out} already exists; add --overwrite (overwrite=True) to replace it, or choose a new folder")


@contextmanager
def build_lock(out: Path) -> Iterator[None]:
    """Lock an output folder, so that only one build writes to it at a time.

    A second build waits for the lock. The lock is also released if the process that holds it is killed.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # if the lock cannot be written or belongs to another user, build without it
            locks = cache_folder() / "locks"
            locks.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(locks / f"{seed_of(out):016x}.lock"))
        yield


@contextmanager
def build_workspace(out: Path, made_by: str) -> Iterator[Path]:
    """Create a temporary folder next to `out`.

    The batches of an interrupted build with the same settings are reused.
    """
    folder = _workspace(out)
    identity = folder / IDENTITY
    new = [parent for parent in out.parents if not parent.exists()]
    try:
        if not identity.is_file() or identity.read_bytes() != made_by.encode():
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder / "dataset", ignore_errors=True)
        (folder / "batches").mkdir(parents=True, exist_ok=True)
        write_text(identity, made_by)
    except OSError as error:
        raise storage_error(error, out) or error from error
    try:
        yield folder
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # a parent folder may contain new files of another process
            for parent in new:
                parent.rmdir()
        if not isinstance(error, UserError) and (named := storage_error(error)):
            raise named from error
        raise
    shutil.rmtree(folder, ignore_errors=True)  # not reached on KeyboardInterrupt, so that the next build resumes


def clean_up(out: Path) -> None:
    """Remove temporary folders that remain if a build is killed after it has completed `out`."""
    shutil.rmtree(_replaced(out), ignore_errors=True)
    shutil.rmtree(_workspace(out), ignore_errors=True)


def move_into_place(folder: Path, out: Path) -> None:
    """Rename `folder` to `out`. The list of repositories that `out` was published to is kept.

    Two folders cannot be swapped in one step. If the second step fails, the old folder is restored.
    """
    if (out / PUBLISHED).is_file():
        shutil.copyfile(out / PUBLISHED, folder / PUBLISHED)
    old = _replaced(out)
    shutil.rmtree(old, ignore_errors=True)
    sync_all(folder)
    if out.exists():
        out.rename(old)
    try:
        folder.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    sync(out.parent)
    shutil.rmtree(old, ignore_errors=True)


def _workspace(out: Path) -> Path:
    """Return the folder next to `out` to which a build writes."""
    return out.parent / f".{out.name}.building"


def _replaced(out: Path) -> Path:
    """Return the folder next to `out` to which the old content of `out` is moved."""
    return out.parent / f".{out.name}.replaced"
