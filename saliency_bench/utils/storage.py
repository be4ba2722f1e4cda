"""Where files end up: the caches, the disk written through, and what is said where a folder takes nothing more."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from saliency_bench.errors import UserError, one_line

CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # what a file system without fsync answers
FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)  # the last two: a file in the place of a folder
# Of libraries whose errors have no number (safetensors, `datasets`).
WORDS = (*map(os.strerror, (*FULL, errno.EROFS)), "Not enough disk space")
ROOM = 2**20  # bytes; a folder with less is taken to be the full one


def cache_folder() -> Path:
    """$SALIENCY_BENCH_CACHE, or `~/.cache/saliency-bench`."""
    return Path(os.environ.get("SALIENCY_BENCH_CACHE") or "~/.cache/saliency-bench").expanduser()


def cache_folders() -> dict[str, Path]:
    """{the environment variable that moves it: the folder} of each cache that is written to unasked."""
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
    """Wait until a file, or the names in a folder, are on the disk. Raises: OSError, but for file systems that cannot.

    Without it, a power failure may leave a file of the right name and size that is empty or full of zeros.
    """
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
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
    """`sync` of a file, or of a folder with everything in it. Raises: OSError."""
    if not path.is_dir():
        return sync(path)
    for folder, _, files in os.walk(path):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


def rename(temporary: Path, path: Path) -> None:
    """Give a complete file or folder its name; whole on the disk before, named on it after. Raises: OSError."""
    sync_all(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def make_folder(folder: Path) -> None:
    """With those above it. Raises: OSError."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync(place.parent)


def check_output_file(path: Path) -> None:
    """Raises: UserError for the name of something that is not a regular file, which writing would replace."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if not S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "no regular file (but a device, a pipe or the like)"
            raise UserError(f"{path} is {kind} and is not replaced; give the name of a file")


def storage_error(error: BaseException, path: Path | None = None) -> UserError | None:
    """One line for an error that comes of a full disk, or of a folder that takes nothing; None for any other error.

    path: what was being written. Where that is not known, an error without permission counts only in a cache folder:
    anywhere else it may be about reading.
    """
    for cause in _chain(error):
        number = cause.errno if isinstance(cause, OSError) else None
        full = number in FULL or any(word in str(cause) for word in WORDS)
        where = path or _named_in(cause) or (_full_folder() if full else None)
        cache = None if where is None else _cache_of(where)
        writing = number == errno.EROFS or (number in CLOSED and cache is not None) or (number and path is not None)
        if full or writing:
            why = os.strerror(number) if number else one_line(cause)
            return UserError(_line(where, cache, why, "free some space" if full else "make it writable"))
    return None


def _line(where: Path | None, cache: tuple[str, Path] | None, why: str, fix: str) -> str:
    if cache is None:
        return f"cannot write {where or 'to the disk'}: {why}; {fix} or choose another --out, and start again"
    return f"cannot write to the cache folder {cache[1]}: {why}; {fix}, or set {cache[0]} to another folder"


def _named_in(cause: BaseException) -> Path | None:
    name = getattr(cause, "filename", None)
    return Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None


def _cache_of(path: Path) -> tuple[str, Path] | None:
    """(the variable that moves it, the cache folder) that a path lies in, or on the way to which it is."""
    for variable, folder in cache_folders().items():
        if path.is_relative_to(folder) or (folder.is_relative_to(path) and path.exists() and not path.is_dir()):
            return variable, folder
    return None


def _full_folder() -> Path | None:
    """The first folder without room, of those that libraries write to unasked."""
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
