"""Lines for a person, on standard error."""

import sys


def complain(text: str) -> None:
    """What a person should know about a run that goes on: one line on standard error."""
    print(f"saliency-bench: {text}", file=sys.stderr, flush=True)
