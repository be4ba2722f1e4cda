"""Run hundreds of hostile command lines for all commands.

example:
  python benchmarks/hostile.py --lines 500

The lines contain wrong types, huge numbers, NaN, empty, very long and unprintable arguments, files instead of folders,
pipes and devices, and damaged runs, models, datasets and templates (`hostile_lines.py`, `hostile_places.py`). Each line
runs in a forked process with limited memory and time, and one in ten as a separate program. Commands that serve a page
are ended by Ctrl-C. The exit code must be 0 or 2. With exit code 2, there must be exactly one line, which contains an
argument. There must be no traceback, no unprintable character, no changed input, no partially written file, and no
network access. tests/push_scripts/test_wrong_command_lines.py runs the first few lines.
"""

import argparse
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from children import Children
from hostile_lines import lines
from hostile_places import places
from kills import checkpoint

import saliency_bench as sb

SECONDS = 60
MEMORY = 8 * 2**30  # limit of the address space; torch needs 3 GB
SERVES = b"http://127.0.0.1:"  # printed to standard output when the page of a study is served
MOST_LINES = 6  # printed to standard error
BAR = re.compile(r"\d+%\||\d+(it|B|images|examples|batch)/s|\?it/s")


class Ending(NamedTuple):
    code: int | None  # None if the process had to be killed
    out: str
    err: str
    seconds: float


def command(argv: list[str], shown: str) -> None:
    """Run a command line in a child process and write its output to files."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.setsid()
    os.environ.pop("HF_TOKEN", None)
    for number, name in ((0, os.devnull), (1, f"{shown}.out"), (2, f"{shown}.err")):
        os.dup2(os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    socket.socket.connect = refuse  # type: ignore[method-assign]
    from saliency_bench.cli import main

    sys.exit(main(argv))


def refuse(self: socket.socket, address: object) -> None:
    if self.family != socket.AF_UNIX:
        raise RuntimeError(f"network access to {address}")


def ending(argv: list[str], children: Children, shown: Path, alone: bool) -> Ending:
    """Return the outcome of a command line, in a forked child or as a separate program."""
    start = time.monotonic()
    for kind in ("out", "err"):  # so that a page served for the previous line does not count as a page for this line
        Path(f"{shown}.{kind}").unlink(missing_ok=True)
    if alone:
        program = [sys.executable, "-m", "saliency_bench", *(word.replace("\0", "0") for word in argv)]
        with open(f"{shown}.out", "wb") as out, open(f"{shown}.err", "wb") as err:
            child = subprocess.Popen(
                [os.fsencode(word) if word.isascii() else word.encode("utf-8", "replace") for word in program],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env=os.environ | children.environment,
            )  # fmt: skip
            code = waited(child.poll, child.pid, shown)
    else:
        child = children.start(command, {"argv": argv, "shown": str(shown)})
        code = waited(lambda: child.exitcode, child.pid, shown)
    if code is None:
        child.kill()
    seconds = time.monotonic() - start
    out, err = (Path(f"{shown}.{kind}").read_text(encoding="utf-8", errors="surrogateescape")
                if Path(f"{shown}.{kind}").exists() else "" for kind in ("out", "err"))  # fmt: skip
    return Ending(code, out, err, seconds)


def waited(exit_code: Callable[[], int | None], process: int, shown: Path) -> int | None:
    """Return the exit code of a command, or None if it does not end.

    The exit code is 0 for a server that starts and ends at Ctrl-C.
    """
    deadline, serves = time.monotonic() + SECONDS, False
    while (code := exit_code()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
        if not serves and SERVES in (out.read_bytes() if (out := Path(f"{shown}.out")).exists() else b""):
            serves = True
            os.kill(process, signal.SIGINT)
    return 0 if serves and code in (-signal.SIGINT, 128 + signal.SIGINT) else code


def state(folder: Path) -> dict[str, tuple]:
    """Return the content of a folder, without following links."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def said(err: str) -> list[str]:
    """Return the lines on standard error, leaving out progress bars."""
    return [line for line in re.split(r"[\r\n]+", err) if line.strip() and not BAR.search(line)]


def named(message: str, argv: list[str]) -> bool:
    """Return whether a message contains a word of the command line, a part of a word, or the name of an argument."""
    plain = message.casefold().replace("_", "-")
    for word in argv:
        for part in {word, word.lstrip("-"), *re.split(r"[\s=:,/]+", word)}:
            spelled = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in part)
            spelled = spelled.casefold().replace("_", "-")[:40]
            if spelled in plain and (len(spelled) > 1 or not spelled.isascii() or f"'{spelled}'" in plain):
                return True
    return bool(re.search(r"--[a-z]|/\w|[A-Z]{4}", message))  # an option, a path or a placeholder


def faults(argv: list[str], done: Ending, before: dict, after: dict) -> list[str]:
    """Return the faults in the outcome of a command line."""
    found = []
    if done.code is None:
        return [f"did not end within {SECONDS} s"]
    if done.code not in (0, 2):
        found.append(f"exit code {done.code}")
    told = said(done.err)
    text = "\n".join(told)
    if "Traceback" in text or "unexpected error" in text:
        found.append("an internal error")
    if any(not (sign.isprintable() or sign in "\n\t") for sign in text):
        found.append("characters that are not printable")
    if len(told) > MOST_LINES:
        found.append(f"{len(told)} lines on standard error")
    changed = sorted(name for name in before if after.get(name) != before[name])
    new = sorted(set(after) - set(before))
    if any(name.endswith((".tmp", ".part")) or "owned" in name for name in new):
        found.append(f"left {new[:3]}")
    if done.code == 2:
        errors = [line for line in told if "error:" in line]
        if len(errors) != 1:
            found.append(f"{len(errors)} lines of errors")
        elif not named(errors[0], argv):
            found.append("contains no argument of the line")
        if changed or new:
            found.append(f"rejected, but wrote {(changed + new)[:3]}")
    return found


@contextmanager
def sandbox(folder: Path, argv: list[str], makers: dict[str, Callable[[Path], object]]) -> Iterator[None]:
    """Create a working folder for a command line, with the files that the line refers to."""
    folder.mkdir()
    try:
        for name, make in makers.items():
            if any(name in word for word in argv):
                make(folder / name)
        with chdir(folder):
            yield
    finally:
        shutil.rmtree(folder)


def prepare(folder: Path) -> dict[str, Callable[[Path], object]]:
    """Create a small dataset, network, run and template, and damaged copies of them."""
    dataset = sb.build("shapes-xai", folder / "shapes", size=32, count=60, progress=False)
    model = checkpoint(dataset, folder / "model")
    run = {"explainers": ["gradcam", "random"], "metrics": ["saliency_miou"], "out": folder / "run", "progress": False}
    settings = {"dataset": str(dataset), "model": str(model), "batch_size": 4, "limit": 8, "device": "cpu"}
    sb.run(**settings, **run)
    from saliency_bench.board.template import template

    template(**settings, out=folder / "template", progress=False)
    made = places(folder / "run", model, dataset, folder / "template")

    def played(path: Path) -> None:
        path.mkdir()
        made["shapes"](path / "shapes-xai")
        made["net"](path / "resnet")
        (path / "resnet" / "training_log.json").write_text('{"test_accuracy": 0.5}')

    return made | {"played": played}


def typed(count: int, folder: Path, first: int = 0, shown: Callable[[str], object] = print) -> Counter:
    """Run `count` hostile lines and return how often each exit code and each fault occurred."""
    (folder / "made").mkdir()
    makers, children = prepare(folder / "made"), Children(folder / "caches", HOME=str(folder / "home"))
    found: Counter = Counter()
    for number, argv in islice(enumerate(lines(sorted(makers))), first, first + count):
        with sandbox(place := folder / "place", argv, makers):
            before = state(place)
            done = ending(argv, children, folder / "shown", number % 10 == 9)
            wrong = faults(argv, done, before, state(place))
        found[f"exit code {done.code}"] += 1
        found["faults"] += bool(wrong)
        if number % 20 == 19 and os.environ.get("TALK"):
            shown(f"{number + 1} lines")
        if wrong:
            words = " ".join(ascii(word)[:80] for word in argv)
            shown(f"line {number}, {done.seconds:.0f} s: {words}\n    {'; '.join(wrong)}\n    {done.err[-600:]!r}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=500, metavar="N", help="number of lines (default: 500)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="first line to run (default: 0)")
    args = parser.parse_args()
    with TemporaryDirectory() as scratch:
        found = typed(args.lines, Path(scratch), args.first, partial(print, flush=True))
    print(f"{args.lines} hostile command lines: {dict(sorted(found.items()))}")
    return int(found["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
