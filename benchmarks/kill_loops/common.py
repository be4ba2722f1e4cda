"""Helpers for all kill loops: the outcome, a working folder, and moments to kill."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

Moment = Callable[[], bool]
NETWORK = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}


@dataclass
class Outcome:
    """Outcome of a loop.

    Attributes:
        what: Plural noun for the items of the loop.
        done: Number of completed items.
        kills: {phase: number of kills}.
        differing: Descriptions of the differences from undisturbed items.
    """

    what: str
    done: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        fell = ", ".join(f"{count} {where}" for where, count in self.kills.most_common())
        different = "; ".join([f"{len(self.differing)} differ", *self.differing])
        return f"{self.done} {self.what}, {self.kills.total()} kills ({fell}); {different}"


def bad_luck(number: int) -> int:
    """Return how often item `number` is killed: two to seven times."""
    return 2 + number % 6


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Change to a separate working directory, in which --out and therefore the summary are the same for all runs."""
    folder.mkdir()
    with chdir(folder):
        yield


def contents(folder: Path) -> dict[str, bytes]:
    """Return {path in the folder: content} of all files."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def at_once() -> bool:
    return True


def times(count: int, state: Callable[[], object]) -> Moment:
    """Return a function that tells whether `state()` has changed this many times since this call."""
    seen = [state()]

    def moment() -> bool:
        if (now := state()) != seen[-1]:
            seen.append(now)
        return len(seen) > count

    return moment


def written_at(path: Path) -> int | None:
    """Return the time when the file was last written, or None if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
