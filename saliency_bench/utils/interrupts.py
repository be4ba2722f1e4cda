"""Signals: how a command ends on Ctrl-C, SIGTERM and SIGHUP, and what a caller's own signal handlers raise."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from time import monotonic, sleep
from types import FrameType
from typing import cast

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
REPEATED = 1.0  # seconds; a terminal and a launcher may send the same signal twice, later ones are meant
Handler = Callable[[int, FrameType | None], object]


class Stopped(KeyboardInterrupt):
    """A signal, raised as an exception inside the work.

    Attributes:
        number: number of the signal.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextmanager
def stopped_by_signals(last_words: Callable[[int], object]) -> Iterator[None]:
    """Raise `Stopped` inside on Ctrl-C, SIGTERM and SIGHUP; a later signal ends the process at once.

    Ending at once is safe: files are written under a temporary name and renamed, so none is half-written. A signal that
    is ignored (nohup) or handled by the caller is left alone, and so is everything outside the main thread.

    Args:
        last_words: called with the number of the signal before the process ends at once.
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
    """Carrier of an error from a caller's signal handler past every `except Exception`.

    Attributes:
        error: what the handler raised.
    """

    def __init__(self, error: BaseException):
        super().__init__(error)
        self.error = error


@contextmanager
def handlers_end_work() -> Iterator[None]:
    """Let an error raised by one of the caller's signal handlers end the work inside and reach the caller unchanged.

    Launchers (torchrun) and timeouts install handlers that raise an Exception or SystemExit. Code that guards against
    faulty explainers and networks would mistake it for such a fault, leave a sample out and carry on.
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
    """Return whether a signal handler is a function of the caller that `handlers_end_work` has not wrapped yet."""
    return callable(handler) and handler is not signal.default_int_handler and not hasattr(handler, "carries_errors")


def _carrying(handler: Handler) -> Handler:
    """Return a signal handler that raises the errors of `handler` as `_HandlerError`."""

    def carry(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raise _HandlerError(error) from None

    carry.carries_errors = True  # type: ignore[attr-defined]
    return carry


def exit_with_parent(parent: int) -> None:
    """End this process when its parent process `parent` ends, even if the parent was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()
