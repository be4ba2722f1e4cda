"""Compute hashes of files and of plain data."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EINVAL
from hashlib import blake2b, sha256
from pathlib import Path

from saliency_bench.errors import UserError
from saliency_bench.utils.files import write_text
from saliency_bench.utils.storage import cache_folder

SETTLED = 2.0  # seconds after a change to a file; every later change gets a different time stamp


def hash_of(*parts: object) -> str:
    """Return a hash of the canonical JSON of `parts`, as 16 hexadecimal digits."""
    return hash_of_text(canonical(parts))


def canonical(content: object) -> str:
    """Return JSON with sorted keys, so that equal content gives identical strings."""
    return json.dumps(content, sort_keys=True, default=str)


def hash_of_text(text: str) -> str:
    """Return a hash of a string, as 16 hexadecimal digits."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, or raise OSError if it is unreadable or not a regular file.

    Pipes and devices are rejected, because reading from one might block forever.
    """
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "is not a regular file", str(path))
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def known_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, cached by `remembered`."""
    return remembered(["sha256", str(path.resolve())], [path], lambda: sha256_of(path))


def remembered(key: object, files: Sequence[Path], compute: Callable[[], str]) -> str:
    """Return `compute()`, or its cached result if the files have not changed.

    A change may leave the size and the modification time unchanged, but it always updates the status change
    time (ctime), which programs cannot set. (Windows has no status change time.)
    """
    state = _state(files)
    note = cache_folder() / "hashes" / f"{hash_of(key)}.json"
    with suppress(OSError, ValueError):
        kept = json.loads(note.read_text(encoding="utf-8"))
        if isinstance(kept, list) and kept[:-1] == [hash_of(state)]:
            return str(kept[-1])
    start = time.time_ns()
    result = compute()
    # A second change within the same clock tick would not be detected, so the result is not cached yet.
    newest = max((max(times) for *_, times in state), default=0)
    if _state(files) == state and start - newest > SETTLED * 1e9:
        with suppress(UserError):  # no writable cache: read again next time
            write_text(note, json.dumps([hash_of(state), result]))
    return result


def _state(files: Sequence[Path]) -> list[tuple[int, int, int, tuple[int, int]]]:
    """Return (device, inode, size, modification and change times) of each file."""
    stats = [path.stat() for path in files]
    return [(stat.st_dev, stat.st_ino, stat.st_size, (stat.st_mtime_ns, stat.st_ctime_ns)) for stat in stats]
