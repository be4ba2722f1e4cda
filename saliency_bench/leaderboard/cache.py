"""A cache of what reading a board computes: checked submissions, and the ranks within a question.

Files are named after a hash of everything that they follow from, the package's code included, so none is ever out of
date. A file that cannot be read is recomputed.
"""

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from pydantic import TypeAdapter

from saliency_bench import registry
from saliency_bench.errors import UserError
from saliency_bench.leaderboard.checks import Checked, read_checked
from saliency_bench.leaderboard.recorded import Recorded
from saliency_bench.leaderboard.schema import Result
from saliency_bench.leaderboard.standing import Entry, Place, places
from saliency_bench.results.cell import as_json, read_cells
from saliency_bench.results.summary import Outcome
from saliency_bench.utils.files import load_arrays, read_bytes, save_arrays, write_text
from saliency_bench.utils.storage import cache_folder

PLACES = TypeAdapter(dict[str, Place])
LARGEST = 2**28  # bytes of scores that are kept


def read_cached(content: str, folder: Path) -> Checked:
    """Return the submission in a folder whose files have the hash `content`. Raise UserError as `read_checked`."""
    path = _folder() / f"{content}-{_code()[:16]}.npz"
    try:
        return _read(path)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error, BadZipFile, UserError):
        submission = read_checked(folder)
    scores = np.stack([outcome.scores for outcome in submission.recorded.outcomes.values()])
    if scores.nbytes <= LARGEST:
        _write(path, submission, scores)
    return submission


def _folder() -> Path:
    return cache_folder() / "board"


def _read(path: Path) -> Checked:
    """Return a stored submission; its outcomes have no parts, which no reader of a board needs."""
    arrays = load_arrays(path)
    about = json.loads(arrays["about"].tobytes())
    result, cells = Result.model_validate_json(json.dumps(about["result"])), read_cells(about["cells"])
    outcomes = {
        cell.cell_id: Outcome(scores, {}, Counter(cell.left_out), Counter(cell.marked))
        for cell, scores in zip(cells, arrays["scores"], strict=True)
    }
    return Checked(result, cells, Recorded(about["ids"], about["groups"], outcomes))


def _write(path: Path, submission: Checked, scores: np.ndarray) -> None:
    """Store a submission, unless the disk is full or read-only: then it is checked again next time."""
    about = {
        "result": submission.result.model_dump(mode="json"),
        "cells": as_json(submission.cells),
        "ids": submission.recorded.ids,
        "groups": submission.recorded.groups,
    }
    with suppress(UserError):
        # JSON as an array of bytes: an array of Python objects would be a pickle, which is never loaded.
        save_arrays(path, about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), scores=scores)


@cache
def _code() -> str:
    """Return a hash of the package's Python files, on which every check depends."""
    digest = sha256()
    roots = {registry.HERE, *(folder for kind in ("explainers", "metrics") for folder in registry.folders(kind))}
    for path in sorted(path for root in roots for path in root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cached_places(entries: Sequence[Entry], contents: Sequence[str], seed: int) -> dict[str, Place]:
    """Return `standing.places` of rows whose submissions have the hashes `contents` (`known.content_of`)."""
    about = sorted((entry.key, content, entry.official) for entry, content in zip(entries, contents, strict=True))
    name = sha256(json.dumps([about, seed]).encode()).hexdigest()
    path = _folder() / f"{name}-{_code()[:16]}.json"
    try:
        stored = PLACES.validate_json(read_bytes(path))
        if stored.keys() == {entry.key for entry in entries}:
            return stored
    except (OSError, ValueError):
        pass
    placed = places(entries, seed)
    with suppress(UserError):
        write_text(path, PLACES.dump_json(placed).decode())
    return placed
