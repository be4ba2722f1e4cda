"""Progress: a live bar on a terminal or in a notebook, a line every 30 seconds in a log; or silence."""

import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

from tqdm import tqdm

EVERY = 30  # seconds between two lines of a log
# `datasets`, `transformers` and `huggingface_hub` read these when they are imported.
NO_BARS = {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_silent = False


def bar(iterable: Iterable | None = None, *, shown: bool = True, **options: Any) -> tqdm:
    """Return a tqdm bar on standard error, or a widget in a notebook; TQDM_DISABLE=1 turns all of them off.

    Args:
        iterable: the iterable; None for a bar that is advanced manually.
        shown: whether to show it.
        **options: tqdm's (desc, unit, total ...).
    """
    if _silent or not shown:
        return tqdm(iterable, disable=True, **options)
    kind = _notebook_bar() if _in_notebook() else tqdm if sys.stderr.isatty() else _Lines
    return kind(iterable, **options)


def step(line: str) -> None:
    """Print a line on standard error about long work, unless `silent`."""
    if not _silent:
        tqdm.write(line, file=sys.stderr)


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())


def _notebook_bar() -> type[tqdm]:
    """Return a widget; without ipywidgets, about which `tqdm` would warn, a bar of text."""
    with warnings.catch_warnings(action="ignore"):
        from tqdm.auto import tqdm as kind
    return kind


@contextmanager
def without_bars(enabled: bool = True) -> Iterator[None]:
    """Hide bars and progress lines of all calls inside, if `enabled`."""
    global _silent
    before, _silent = _silent, _silent or enabled
    try:
        yield
    finally:
        _silent = before


@contextmanager
def silent(enabled: bool = True) -> Iterator[None]:
    """Print nothing on standard output and show no bars, if `enabled`; warnings and errors appear as usual."""
    if not enabled:
        yield
        return
    os.environ.update(NO_BARS)
    with without_bars(), open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


class _Lines(tqdm):
    """Lines instead of a redrawn bar: at the start, every `EVERY` seconds, and at the end."""

    disable: bool

    def __init__(self, *args: Any, **options: Any):
        self._written, self._last = float("-inf"), ""
        super().__init__(*args, **options | {"mininterval": EVERY, "leave": True, "ascii": True})

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Print a line if the last one is `EVERY` seconds old; the arguments are tqdm's and unused."""
        now = time.monotonic()
        if now - self._written >= EVERY:
            self._write(now)
        return True

    def close(self) -> None:
        """Print the last line."""
        if not self.disable:
            self._write(time.monotonic())
            self.disable = True  # nothing is left to draw
            self._decr_instances(self)

    def _write(self, now: float) -> None:
        """Print a line, unless it would be the same again."""
        if (line := str(self)) != self._last:
            # Ignore a closed reader: an error here would leave tqdm's lock held by this thread, and all others waiting
            # for it.
            with suppress(OSError):
                print(line, file=sys.stderr, flush=True)
        self._written, self._last = now, line
