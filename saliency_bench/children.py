"""Python processes that work for this one, each for one thread, where threads would wait for each other.

`multiprocessing` would run a user's script again in each of them unless it is guarded by `if __name__ == "__main__"`;
these run nothing but what they are told through their pipe, and end when it closes, even if this process was killed.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from saliency_bench.errors import UserError

COMMAND = [sys.executable, "-c", "from saliency_bench.children import serve; serve()"]


class Child:
    """One such process."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
        )

    def call(self, function: Callable, *arguments: Any, told: Callable[[int], object]) -> Any:
        """`function(*arguments, tell)` there; what is told there is told here. Errors: those of the function."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            _send(self.process.stdin, (function, arguments))
            while True:
                what, answer = pickle.load(self.process.stdout)
                if what == "made":
                    return answer
                if what == "failed":
                    raise answer
                told(answer)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise UserError(
                f"a process of the build was ended from outside (exit code {self.process.wait()}); if memory ran out, "
                "start again with --workers 1"
            ) from error

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                pipe and pipe.close()


def serve() -> None:
    """What a child does: one call after the other, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started it hears it too, and ends it
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get into the answers
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            _send(out, ("made", function(*arguments, lambda count: _send(out, ("told", count)))))
        except BrokenPipeError:
            os._exit(1)
        except Exception as error:
            _send(out, ("failed", _plain(error)))


def _send(pipe: IO[bytes], what: object) -> None:
    pickle.dump(what, pipe)
    pipe.flush()


def _plain(error: Exception) -> Exception:
    """The error itself if it can travel."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
