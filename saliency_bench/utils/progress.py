"""Show progress: a live bar on a terminal or in a notebook, or a line every 30 seconds in a log."""

import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

from tqdm import tqdm

EVERY = 30  # seconds between two lines of a log
# `datasets`, `transformers` and `huggingface_hub` read these variables when they are imported.
NO_BARS = {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_silent = False


def bar(iterable: Iterable | None = None, *, shown: bool = True, **options: Any) -> tqdm:
    """Return a tqdm progress bar, which prints to standard error or is a notebook widget. TQDM_DISABLE=1 disables bars.

    Args:
        iterable: Iterable to follow, or None for a bar that is advanced manually.
        shown: Whether to show the bar.
        **options: Options of tqdm (desc, unit, total ...).
    """
    if _silent or not shown:
        return tqdm(iterable, disable=True, **options)
    kind = _notebook_bar() if _in_notebook() else tqdm if sys.stderr.isatty() else _Lines
    return kind(iterable, **options)


def step(line: str) -> None:
    """Print a progress line to standard error, except inside `silent`."""
    if not _silent:
        tqdm.write(line, file=sys.stderr)


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())


def _notebook_bar() -> type[tqdm]:
    """Return the class of a notebook widget, or of a text bar if ipywidgets is missing (tqdm would print a warning)."""
    with warnings.catch_warnings(action="ignore"):
        from tqdm.auto import tqdm as kind
    return kind


@contextmanager
def without_bars(enabled: bool = True) -> Iterator[None]:
    """If `enabled`, hide all progress bars and progress lines inside the context."""
    global _silent
    before, _silent = _silent, _silent or enabled
    try:
        yield
    finally:
        _silent = before


@contextmanager
def silent(enabled: bool = True) -> Iterator[None]:
    """If `enabled`, print nothing to standard output and show no bars. Warnings and errors are printed as usual."""
    if not enabled:
        yield
        return
    os.environ.update(NO_BARS)
    with without_bars(), open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


class _Lines(tqdm):
    """Progress bar for logs. It prints a line at the start, every `EVERY` seconds, and at the end."""

    disable: bool

    def __init__(self, *args: Any, **options: Any):
        self._written, self._last = float("-inf"), ""
        super().__init__(*args, **options | {"mininterval": EVERY, "leave": True, "ascii": True})

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Print a line if the last line is at least `EVERY` seconds old.

        The arguments, which tqdm passes, are not used.
        """
        now = time.monotonic()
        if now - self._written >= EVERY:
            self._write(now)
        return True

    def close(self) -> None:
        """Print the last line."""
        if not self.disable:
            self._write(time.monotonic())
            self.disable = True  # the last line was printed
            self._decr_instances(self)

    def _write(self, now: float) -> None:
        """Print a line unless it equals the previous line."""
        if (line := str(self)) != self._last:
            # Ignore a closed reader. After an error here, this thread would still hold tqdm's lock, and all other
            # threads would wait forever.
            with suppress(OSError):
                print(line, file=sys.stderr, flush=True)
        self._written, self._last = now, line
