"""Locate cache folders, sync files to disk, and convert errors due to a full or read-only disk to short messages."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from saliency_bench.errors import UserError, one_line

CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # the file system has no fsync
FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)  # the last two: there is a file instead of a folder
# Messages from libraries whose errors have no errno (safetensors, `datasets`, SQLite).
WORDS = (*map(os.strerror, (*FULL, errno.EROFS)), "Not enough disk space", "database or disk is full")
ROOM = 2**20  # bytes; a disk with less free space is treated as full


def cache_folder() -> Path:
    """Return $SALIENCY_BENCH_CACHE, or `~/.cache/saliency-bench`."""
    return Path(os.environ.get("SALIENCY_BENCH_CACHE") or "~/.cache/saliency-bench").expanduser()


def cache_folders() -> dict[str, Path]:
    """Return {environment variable: cache folder that it sets} for this package and for libraries."""
    general = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{general}/huggingface"
    usual = {
        "HF_DATASETS_CACHE": f"{home}/datasets",
        "HF_HUB_CACHE": f"{home}/hub",
        "HF_MODULES_CACHE": f"{home}/modules",
        "TORCH_HOME": f"{general}/torch",
    }
    others = {name: Path(os.environ.get(name) or folder).expanduser() for name, folder in usual.items()}
    return {"SALIENCY_BENCH_CACHE": cache_folder()} | others


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk if the file system supports it.

    Without syncing, a power failure may leave a file that has the correct name but is empty or contains only zeros.

    Raises:
        OSError: Syncing failed.
    """
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def sync_all(path: Path) -> None:
    """Sync a file, or a folder and all files and folders in it, to disk."""
    if not path.is_dir():
        return sync(path)
    for folder, _, files in os.walk(path):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


def rename(temporary: Path, path: Path) -> None:
    """Rename a complete file or folder. Sync its content before renaming, and its new name afterwards."""
    sync_all(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and sync each parent."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync(place.parent)


def check_output_file(path: Path) -> None:
    """Raise UserError if a path exists and is not a regular file, because writing would replace it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if not S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "not a regular file (for example a device or a pipe)"
            raise UserError(f"{path} is {kind}, which is never replaced; choose the path of a file")


def storage_error(error: BaseException, path: Path | None = None) -> UserError | None:
    """Return a UserError if an error was caused by a full disk or a read-only folder, or None for any other error.

    Args:
        error: Error, which may have causes.
        path: Path that was being written. If `path` is None, a permission error is converted only if the error names a
            path in a cache folder, because elsewhere it may have occurred while reading.
    """
    for cause in _chain(error):
        number = cause.errno if isinstance(cause, OSError) else None
        full = number in FULL or any(word in str(cause) for word in WORDS)
        where = path or _named_in(cause) or (_full_folder() if full else None)
        cache = None if where is None else _cache_of(where)
        closed = number in CLOSED or (number == errno.ENOENT and cache is not None and not cache[1].exists())
        writing = number == errno.EROFS or (closed and cache is not None) or (number and path is not None)
        if full or writing:
            # SQLAlchemy's own message contains the whole statement with its values.
            why = os.strerror(number) if number else one_line(getattr(cause, "orig", None) or cause)
            return UserError(_line(where, cache, why, "free some space" if full else "make it writable"))
    return None


def _line(where: Path | None, cache: tuple[str, Path] | None, why: str, fix: str) -> str:
    """Return the message about a path, or about the cache folder (variable, folder) that contains the path."""
    if cache is None:
        return f"cannot write {where or 'to the disk'}: {why}; {fix} or choose a different --out, and try again"
    return f"cannot write to the cache folder {cache[1]}: {why}; {fix}, or set {cache[0]} to a different folder"


def _named_in(cause: BaseException) -> Path | None:
    name = getattr(cause, "filename", None)
    return Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None


def _cache_of(path: Path) -> tuple[str, Path] | None:
    """Return (variable, folder) of the cache that contains a path, or that cannot be created because of the path."""
    for variable, folder in cache_folders().items():
        if path.is_relative_to(folder) or (folder.is_relative_to(path) and path.exists() and not path.is_dir()):
            return variable, folder
    return None


def _full_folder() -> Path | None:
    """Return the first cache folder of a library (or the temporary folder) whose disk is full, or None."""
    for folder in (*cache_folders().values(), Path(tempfile.gettempdir())):
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with suppress(OSError):
            if shutil.disk_usage(existing).free < ROOM:
                return folder
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
