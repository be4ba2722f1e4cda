"""What is the user's to mend, said in one line."""

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 20  # names in a message


class UserError(ValueError):
    """Says in one line what is wrong and how to mend it; the command line prints it and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that is not there, with the nearest names that are."""
    known = sorted(known)
    near = get_close_matches(str(name), known, n=3, cutoff=0.5)
    some = ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
    mend = f"did you mean {' or '.join(near)}?" if near else f"there are: {some}"
    return UserError(f"unknown {kind} '{name}'; {mend}")
