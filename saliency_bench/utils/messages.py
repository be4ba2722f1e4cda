"""Log one-line warnings with Python's `logging`, using the logger `saliency_bench`. Commands print these warnings."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from saliency_bench.errors import LONGEST, one_line

LOGGER = logging.getLogger("saliency_bench")


def complain(text: str) -> None:
    """Log a one-line warning about a problem that does not prevent results."""
    LOGGER.warning(one_line(text, LONGEST), stacklevel=2)


@cache
def complain_once(text: str) -> None:
    """Log a one-line warning as `complain` does, but only once per process."""
    complain(text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row", "1,234 rows" or "0 repositories"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


class ShownLines(logging.Handler):
    """Logging handler that prints log lines as a command does."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line to standard error."""
        show(record.getMessage())


@contextmanager
def lines_shown() -> Iterator[None]:
    """Print log lines as a command does, even if a library has configured logging."""
    before = LOGGER.propagate, LOGGER.handlers
    LOGGER.propagate, LOGGER.handlers = False, [ShownLines()]
    try:
        yield
    finally:
        LOGGER.propagate, LOGGER.handlers = before


def show(text: str) -> None:
    """Print a line to standard error."""
    line = f"saliency-bench: {one_line(text, LONGEST)}"
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(line)
    styled.highlight_regex(r"^saliency-bench: (unexpected )?error:", "bold red")
    Console(file=sys.stderr).print(styled, soft_wrap=True)
