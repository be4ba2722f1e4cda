"""Errors the user can fix, each as one line."""

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 20  # names in a message


class UserError(ValueError):
    """One line: what is wrong, and the fix; the command line prints it and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for an unknown name, with the nearest known ones."""
    known = sorted(known)
    near = get_close_matches(str(name), known, n=3, cutoff=0.5)
    some = ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
    fix = f"did you mean {' or '.join(near)}?" if near else f"known: {some}"
    return UserError(f"unknown {kind} '{name}'; {fix}")
