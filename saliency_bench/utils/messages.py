"""Lines about what is wrong: to the logger `saliency_bench` of Python's `logging`, or on standard error."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from saliency_bench.errors import LONGEST, one_line

LOGGER = logging.getLogger("saliency_bench")


def complain(text: str) -> None:
    """Say in a line that something is wrong that does not stop the run.

    It is a warning of the logger where the calling program has set up logging; else a line on standard error, unless
    the logger's level is higher.
    """
    if LOGGER.hasHandlers():
        LOGGER.warning(one_line(text, LONGEST), stacklevel=2)
    elif LOGGER.isEnabledFor(logging.WARNING):
        show(text)


@contextmanager
def lines_shown() -> Iterator[None]:
    """Show lines as a command does, whatever logging some library has set up."""
    before, LOGGER.propagate = LOGGER.propagate, False
    try:
        yield
    finally:
        LOGGER.propagate = before


def show(text: str) -> None:
    """Print a line on standard error."""
    line = f"saliency-bench: {one_line(text, LONGEST)}"
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(line)
    styled.highlight_regex(r"^saliency-bench: (unexpected )?error:", "bold red")
    Console(file=sys.stderr).print(styled, soft_wrap=True)
