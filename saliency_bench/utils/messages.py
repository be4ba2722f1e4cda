"""Warnings on standard error."""

import sys


def complain(text: str) -> None:
    """One line about a problem that does not stop the run."""
    print(f"saliency-bench: {text}", file=sys.stderr, flush=True)
