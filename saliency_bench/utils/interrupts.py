"""Handle signals: end a command on Ctrl-C, SIGTERM or SIGHUP, and pass on errors from the caller's handlers."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from time import monotonic, sleep
from types import FrameType
from typing import cast

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
REPEATED = 1.0  # seconds during which a second signal is ignored, as terminal and launcher may both send it
Handler = Callable[[int, FrameType | None], object]


class Stopped(KeyboardInterrupt):
    """Exception raised when the process receives a signal.

    Attributes:
        number: Number of the signal.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextmanager
def stopped_by_signals(last_words: Callable[[int], object]) -> Iterator[None]:
    """Raise `Stopped` inside the context on Ctrl-C, SIGTERM and SIGHUP. A later signal ends the process at once.

    Ending at once is safe: files are written under a temporary name and renamed, so no file is half-written. Signals
    that are ignored (as with nohup) or that the caller handles keep their behaviour. Outside the main thread, the
    context has no effect.

    Args:
        last_words: Function that is called with the number of the signal before the process ends at once.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    numbers = [number for number in SIGNALS if signal.getsignal(number) in usual]
    if current_thread() is not main_thread() or not numbers:
        yield
        return
    first: float | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = monotonic()
            raise Stopped(number)
        if monotonic() - first > REPEATED:
            last_words(number)
            os._exit(128 + number)

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _HandlerError(KeyboardInterrupt):
    """Wrapper for an error raised by a caller's signal handler. `except Exception` does not catch the wrapper.

    Attributes:
        error: Error that the handler raised.
    """

    def __init__(self, error: BaseException):
        super().__init__(error)
        self.error = error


@contextmanager
def handlers_end_work() -> Iterator[None]:
    """If a signal handler of the caller raises an error, end the work inside the context and raise this error.

    Launchers (torchrun) and timeouts install handlers that raise an Exception or SystemExit. Without this context, code
    that catches errors raised by explainers and networks would also catch these errors, leave out a sample and
    continue.
    """
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    raising = {number: cast(Handler, handler) for number, handler in handlers.items() if _may_raise(handler)}
    if current_thread() is not main_thread() or not raising:
        yield
        return
    try:
        for number, handler in raising.items():
            signal.signal(number, _carrying(handler))
        yield
    except _HandlerError as caught:
        raise caught.error from None
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)


def _may_raise(handler: object) -> bool:
    """Return whether a signal handler is the caller's function and is not yet wrapped by `handlers_end_work`."""
    return callable(handler) and handler is not signal.default_int_handler and not hasattr(handler, "carries_errors")


def _carrying(handler: Handler) -> Handler:
    def carry(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raise _HandlerError(error) from None

    carry.carries_errors = True  # type: ignore[attr-defined]
    return carry


def exit_with_parent(parent: int) -> None:
    """Make this process end when its parent process (id `parent`) ends, even if the parent is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()
