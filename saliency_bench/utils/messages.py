"""Warnings on standard error."""

import sys

from saliency_bench.errors import LONGEST, one_line


def complain(text: str) -> None:
    """One line about a problem that does not stop the run."""
    print(f"saliency-bench: {one_line(text, LONGEST)}", file=sys.stderr, flush=True)
