"""Cache that speeds up reading a board. It stores checked submissions and the ranks of comparable rows.

The name of a file is a hash of everything that determines its content, including the package's code, so files are never
out of date. If a file is unreadable, its content is recomputed.
"""

import json
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Lock, get_ident
from typing import Any
from zipfile import BadZipFile

import numpy as np
from pydantic import TypeAdapter

from saliency_bench import registry
from saliency_bench.board.checks import CheckedSubmission, read_checked
from saliency_bench.board.recorded import Recorded
from saliency_bench.board.standing import BoardEntry, BoardRank, places
from saliency_bench.board.submission_schema import Result
from saliency_bench.read.cell import CELLS
from saliency_bench.read.summary import Outcome
from saliency_bench.utils.bounded import bounded
from saliency_bench.utils.files import read_bytes
from saliency_bench.utils.storage import cache_folder

PLACES = TypeAdapter(dict[str, BoardRank])
LARGEST = 2**28  # maximum size of a cached submission in bytes
PARSING = Lock()
MOST_KEPT = 2**31  # maximum total size of the cache in bytes


def read_cached(content: str, folder: Path) -> CheckedSubmission:
    """Read and check a submission, or load it from the cache. `content` is the hash of the submission's files.

    Raises:
        UserError: The submission is invalid.
    """
    path = _folder() / f"{content}-{code_hash()[:16]}.npz"
    try:
        return unpack(path.read_bytes())
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error, BadZipFile):
        packed = bounded(checked_and_packed, str(folder))
    if len(packed) <= LARGEST:
        _keep(path, packed)
    return unpack(packed)


def _keep(path: Path, content: bytes) -> None:
    """Write a file without fsync, because its content can be recomputed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.tmp")
    with suppress(OSError):  # the disk is full or read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    with suppress(OSError):
        temporary.unlink(missing_ok=True)


def forget_oldest() -> None:
    """Delete the oldest files until the cache has at most `MOST_KEPT` bytes."""
    with suppress(OSError):  # the folder does not exist yet, or another process deletes files too
        files = sorted(((status := path.stat()).st_mtime, status.st_size, path) for path in _folder().iterdir())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= MOST_KEPT:
                break
            path.unlink(missing_ok=True)
            total -= size


def checked_and_packed(folder: str) -> bytes:
    """Read, check and serialise a submission.

    `bounded` calls this in a child process, because submissions are untrusted.
    """
    return pack(read_checked(Path(folder)))


def pack(submission: CheckedSubmission, **arrays: Any) -> bytes:
    """Serialise a submission and additional arrays.

    Parts of scores are left out, because a board does not need them.
    """
    # Store JSON as an array of bytes. An array of Python objects would be a pickle, and pickles are never loaded.
    texts: dict[str, bytes] = {
        "result": submission.result.model_dump_json().encode(),
        "cells": CELLS.dump_json(submission.cells),
        "images": json.dumps([submission.recorded.ids, submission.recorded.groups]).encode(),
    }
    arrays |= {name: np.frombuffer(text, dtype=np.uint8) for name, text in texts.items()}
    buffer = BytesIO()
    np.savez(buffer, scores=np.stack([outcome.scores for outcome in submission.recorded.outcomes.values()]), **arrays)
    return buffer.getvalue()


def unpack(packed: bytes) -> CheckedSubmission:
    """Deserialise a submission that `pack` has serialised. If the bytes are damaged, the decoder's error is raised."""
    # numpy parses array headers with `ast`, which occasionally fails with several threads in Python 3.11.
    with PARSING, np.load(BytesIO(packed), allow_pickle=False) as arrays:
        result, cells, images = (arrays[name].tobytes() for name in ("result", "cells", "images"))
        scores = arrays["scores"]
    (ids, groups), checked_cells = json.loads(images), CELLS.validate_json(cells)
    outcomes = {
        cell.cell_id: Outcome(cell_scores, {}, Counter(cell.left_out), Counter(cell.marked))
        for cell, cell_scores in zip(checked_cells, scores, strict=True)
    }
    return CheckedSubmission(Result.model_validate_json(result), checked_cells, Recorded(ids, groups, outcomes))


def _folder() -> Path:
    return cache_folder() / "board"


@cache
def code_hash() -> str:
    """Return a hash of the package's Python files, because the result of a check depends on the code."""
    digest = sha256()
    roots = {registry.HERE, *(folder for kind in ("explainers", "metrics") for folder in registry.folders(kind))}
    for path in sorted(path for root in roots for path in root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cached_places(entries: Sequence[BoardEntry], seed: int) -> dict[str, BoardRank]:
    """Return the ranks from `standing.places`.

    The ranks are cached until the rows, submitters, files or code change.
    """
    about = sorted((entry.key, entry.content, entry.official, entry.submitter) for entry in entries)
    name = sha256(json.dumps([about, seed]).encode()).hexdigest()
    path = _folder() / f"{name}-{code_hash()[:16]}.json"
    try:
        stored = PLACES.validate_json(read_bytes(path))
        if stored.keys() == {entry.key for entry in entries}:
            return stored
    except (OSError, ValueError):
        pass
    placed = places(entries, seed)
    _keep(path, PLACES.dump_json(placed))
    return placed
