"""Fill the disk: each attempt must end with a one-line error and exit code 2.

As soon as there is enough space, the bytes must be the same as after an undisturbed run.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from functools import partial
from pathlib import Path

from children import Children

from kill_loops import runs, suites
from kill_loops.common import Outcome, working_in
from kill_loops.studies import answer_all, stored

GROWTH = 1.25
FIRST, LARGEST = 24, 2**19  # kilobytes


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Callable[[int], None]]:
    """Mount a small file system at a folder, and yield a function that enlarges it."""
    folder.mkdir()

    def mount(size: int, *options: str) -> None:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join([*options, f"size={size}k"]), "none", folder], check=True
        )

    mount(kilobytes)
    try:
        yield lambda size: mount(size, "remount")
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def as_a_command(function: Callable, settings: dict, lines: str) -> None:
    """Run a function in a child like a command: write an error as one line to a file, and exit with the exit code."""
    from saliency_bench.errors import UserError
    from saliency_bench.utils.storage import storage_error

    try:
        function(**settings)
    except Exception as error:
        known = error if isinstance(error, UserError) else storage_error(error)
        with open(lines, "a") as file:
            file.write(f"{known or repr(error)}\n")
        sys.exit(2 if known else 1)


def filled(
    outcome: Outcome, name: str, folder: Path, children: Children, function: Callable, settings: dict,
    differing: Callable[[], list[str]],
) -> None:  # fmt: skip
    """Start a function on a disk with slightly more space each time until it succeeds.

    `differing()` returns the differences from an undisturbed run.
    """
    lines = folder / f"lines of {name}.txt"
    with small_disk(folder / f"disk of {name}", FIRST) as mount, chdir(folder / f"disk of {name}"):
        size = FIRST
        while True:
            child = children.start(as_a_command, {"function": function, "settings": settings, "lines": str(lines)})
            child.join()
            if child.exitcode == 0:
                break
            *_, line = lines.read_text().splitlines() if lines.exists() else [""]
            # SQLite raises the last two errors if there is no space for its shared memory.
            is_named = any(words in line for words in ("No space left", "is full", "disk I/O error"))
            if child.exitcode != 2 or not is_named:
                outcome.differing.append(f"{name} with {size} kB: exit code {child.exitcode}, {line}")
            else:
                outcome.kills[f"full under {name}"] += 1
            size = int(size * GROWTH) + 1
            if size > LARGEST:
                raise RuntimeError(f"{name}: {line}")
            mount(size)
        outcome.differing += [f"{name} after {size} kB: {what}" for what in differing()]
        outcome.done += 1


def disks(count: int, dataset: Path, model: Path, folder: Path, children: Children) -> Outcome:
    """Fill the disk once for each of the first `count` types of commands."""
    outcome, given = Outcome("disks"), {"dataset": str(dataset), "model": str(model)} | runs.RUN
    for name, changes in [("runs", {}), ("partners", runs.PARTNERS), ("retraining", runs.RETRAINING)][:count]:
        with working_in(folder / f"room for {name}"):
            children.to_the_end(runs.run, given | changes)
            expected = runs.results()
        settings = given | changes
        filled(outcome, name, folder, children, runs.run, settings, partial(_differing, runs.results, expected))
    if count > 3:
        with working_in(folder / "room for a suite"):
            suites.write_suite()
            settings = {"file": str(folder / "room for a suite" / "own.yaml")}  # fixed, because the page's title has it
            children.to_the_end(suites.run_suite, settings)
            expected = suites.results()
        filled(
            outcome, "a suite", folder, children, suites.run_suite, settings,
            partial(_differing, suites.results, expected),
        )  # fmt: skip
    if count > 4:
        with working_in(folder / "room for a study"):
            children.to_the_end(answer_all, {"address": "study.db"})
            answers = stored("study.db")
        settings = {"address": "study.db"}
        filled(
            outcome, "a study", folder, children, answer_all, settings,
            lambda: ["answers"] if stored("study.db") != answers else [],
        )  # fmt: skip
    return outcome


def _differing(results: Callable[[], dict[str, bytes]], expected: dict[str, bytes]) -> list[str]:
    written = results()
    return [name for name in sorted(written.keys() | expected) if written.get(name) != expected.get(name)]
