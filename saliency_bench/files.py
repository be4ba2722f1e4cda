"""Writing files whole or not at all: a temporary name beside the file, then a rename."""

import json
import os
from collections.abc import Callable
from pathlib import Path


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """`write(temporary path)`, then rename to `path`; on any error nothing is left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: object) -> None:
    """Readable JSON with a fixed layout, so that equal content is equal bytes; NaN becomes null."""
    write_text(path, json.dumps(_without_nan(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _without_nan(content):
    if isinstance(content, dict):
        return {key: _without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(value) for value in content]
    return None if isinstance(content, float) and content != content else content
