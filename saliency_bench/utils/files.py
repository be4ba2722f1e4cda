"""Atomic file writes: to a temporary file in the same folder, then a rename."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np

from saliency_bench.errors import UserError


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary path)`, then rename to `path`; on an error nothing is left behind.

    Raises: UserError for a full disk, a folder that cannot be written to and the like.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another --out, and start again"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: object) -> None:
    """Indented JSON with a fixed layout, so that equal content gives equal bytes; NaN becomes null."""
    write_text(path, json.dumps(_without_nan(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _without_nan(content: object) -> object:
    if isinstance(content, dict):
        return {key: _without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(value) for value in content]
    return None if isinstance(content, float) and content != content else content


def read_json(path: Path) -> dict:
    """Raises: UserError for a file that cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore the file, or choose another --out") from error


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    """A compressed .npz file, written atomically."""
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_with(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))
