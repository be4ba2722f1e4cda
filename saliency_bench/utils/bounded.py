"""Call a function on untrusted files in a child process with bounded memory, time and output.

A damaged Parquet file can make pyarrow end its process from C++, where no `except` catches the error. A few kilobytes
of JSON, zip or Parquet can expand to gigabytes. In both cases only the child ends, and the caller gets a `UserError`
with a one-line message.

    content = bounded(read_whole, str(path))  # read_whole: module-level function of JSON values that returns bytes

A child process is started once (about two seconds, for its imports) and serves all later calls of this process. The
child returns bytes, never pickled objects. It has no access to tokens, and writes no files unless a call sets a maximum
file size. Memory is bounded on Linux only. Time, output and files are bounded on every POSIX system.
"""

import atexit
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

from saliency_bench.errors import UserError, described
from saliency_bench.utils.interrupts import exit_with_parent

MEMORY = 2 * 2**30  # bytes in addition to the child's memory after its imports
SECONDS = 300.0
ANSWER = 2**29  # maximum bytes of a result
SECRETS = ("TOKEN", "SECRET", "PASSWORD", "KEY")  # the child gets no variable with these words
DONE, REFUSED, SPENT = b"d", b"r", b"s"  # status of a response; after SPENT, the child is not used again


class ReaderDiedError(UserError):
    """The child process ended, exceeded its time limit, or returned too many bytes."""


class _Child:
    """A child process that executes one call at a time."""

    def __init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not any(word in name for word in SECRETS)}
        path = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        self.process = subprocess.Popen(
            # -P: no module is imported from the current folder, which may contain untrusted files.
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({os.getpid()})"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=kept | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the child
        )  # fmt: skip

    def ask(self, request: dict[str, Any]) -> bytes:
        """Send a call to the child and return its result.

        Raises:
            ReaderDiedError: The child returned no result.
            UserError: The function in the child raised an error.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the child has ended, which the read below detects
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        # The wait includes the import of the function's module, so twice the time limit of a call is allowed.
        deadline, most = monotonic() + 2 * request["seconds"] + 60, request["most"]
        head = self._read(9, deadline, request["seconds"])
        kind, size = head[:1], int.from_bytes(head[1:], "little")
        if size > most:
            raise ReaderDiedError(f"it unpacks to more than {most:,} bytes")
        answer = self._read(size, deadline, request["seconds"])
        if kind == DONE:
            return answer
        raise (ReaderDiedError if kind == SPENT else UserError)(answer.decode(errors="replace"))

    def _read(self, size: int, deadline: float, seconds: float) -> bytes:
        pipe = self.process.stdout
        assert pipe is not None
        received = bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(pipe, selectors.EVENT_READ)
            while len(received) < size:
                if not ready.select(max(0.0, deadline - monotonic())):
                    raise ReaderDiedError(f"reading it takes more than {seconds:g} s")
                if not (block := os.read(pipe.fileno(), min(size - len(received), 2**20))):
                    raise ReaderDiedError(_cause_of_death(self.process.wait(), seconds))
                received += block
        return bytes(received)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _cause_of_death(code: int, seconds: float) -> str:
    if -code in (signal.SIGXCPU, signal.SIGALRM):
        return f"reading it takes more than {seconds:g} s"
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return f"it is so damaged that the process that read it crashed ({how})"


_idle: list[_Child] = []  # list.pop and list.append are atomic, so threads never share a child


def bounded(
    function: Callable[..., bytes], *args: Any, memory: int = MEMORY, seconds: float = SECONDS, most: int = ANSWER,
    files: int = 0,
) -> bytes:  # fmt: skip
    """Return `function(*args)`, called in a child process.

    Args:
        function: Module-level function, which the child imports by its name. Its errors become a UserError.
        args: Values that JSON can represent.
        memory: Maximum bytes of memory.
        seconds: Maximum seconds of computation.
        most: Maximum bytes of the result.
        files: Maximum size in bytes of a file that the function writes.

    Raises:
        UserError: The function raised an error, or the child ended (`ReaderDiedError`).
    """
    request = {"module": function.__module__, "name": function.__qualname__, "args": args, "memory": memory,
               "seconds": seconds, "most": most, "files": files, "folder": os.getcwd()}  # fmt: skip
    try:
        child = _idle.pop()
    except IndexError:
        child = _Child()
    try:
        answer = child.ask(request)
    except UserError as error:
        if isinstance(error, ReaderDiedError):
            child.end()
        else:
            _idle.append(child)
        raise
    except BaseException:  # Ctrl-C: the child may have sent only a part of its result
        child.end()
        raise
    _idle.append(child)
    return answer


def serve(parent: int) -> None:
    """Execute calls until standard input or the process `parent` ends. Each line of the input is a call as JSON."""
    # During a call, the end of the input goes unnoticed, so the parent process is watched. (prctl's PDEATHSIG would
    # react to the end of the thread that started this process, but other threads use this process too.)
    exit_with_parent(parent)
    pipe = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # output that libraries print must not mix with results
    for line in sys.stdin.buffer:
        request = json.loads(line)
        function = getattr(import_module(request["module"]), request["name"])
        if "saliency_bench.registry" in sys.modules:  # the call may load explainers, which import torch
            with suppress(ImportError):
                import_module("torch")
        os.chdir(request["folder"])  # paths may be relative
        _limit(request)
        kind, answer = _answer(function, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # The limits of this call must not apply to the imports for the next call, because libraries may write a test
        # file to the folder for temporary files.
        for limit in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (hard, hard))
        with os.fdopen(os.dup(pipe), "wb") as out:
            out.write(kind + len(answer).to_bytes(8, "little"))
            out.write(answer[: request["most"]])  # for a longer result, the caller reads only the length


def _answer(function: Callable[..., bytes], request: dict[str, Any]) -> tuple[bytes, bytes]:
    """Execute a call, and return (status, content) of the response."""
    try:
        return DONE, function(*request["args"])
    except UserError as error:
        return REFUSED, str(error).encode()
    except MemoryError:
        return SPENT, f"reading it takes more than {request['memory'] // 2**20:,} MB of memory".encode()
    except Exception as error:  # any error that a damaged file causes in a decoder
        return REFUSED, described(error).encode()


def _limit(request: dict[str, Any]) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    processor = int(used.ru_utime + used.ru_stime + request["seconds"]) + 1
    bounds = {resource.RLIMIT_CPU: processor, resource.RLIMIT_FSIZE: request["files"], resource.RLIMIT_CORE: 0}
    # CPU time does not advance during a sleep, but the alarm's clock does.
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[5])  # private memory: data and stack
        bounds[resource.RLIMIT_DATA] = pages * resource.getpagesize() + request["memory"]
    for kind, bound in bounds.items():
        resource.setrlimit(kind, (bound, resource.getrlimit(kind)[1]))


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


os.register_at_fork(after_in_child=_idle.clear)  # a forked process must not talk to its parent's children
