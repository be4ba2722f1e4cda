"""Warnings on standard error."""

import sys

from saliency_bench.errors import LONGEST, one_line


def complain(text: str) -> None:
    """Print a line about a problem that does not stop the run."""
    line = f"saliency-bench: {one_line(text, LONGEST)}"
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(line)
    styled.highlight_regex(r"^saliency-bench: (unexpected )?error:", "bold red")
    Console(file=sys.stderr).print(styled, soft_wrap=True)
