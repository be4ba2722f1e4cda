"""What ends work from outside: signals to a command, and a limit of time for what may hang."""

import ctypes
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Event, Lock, Thread, Timer, current_thread, get_ident, main_thread
from time import monotonic, sleep
from types import FrameType

from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.messages import complain

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
ALARM = getattr(signal, "SIGALRM", None)  # not on Windows
GRACE = 5.0  # seconds that the work has to end by itself
TWICE = 1.0  # seconds after which a second signal is meant as one; a terminal may send the same twice
_busy: ContextVar[bool] = ContextVar("busy", default=False)
_supervisor: int | None = None  # the pipe to the process that watches this one


class Stopped(KeyboardInterrupt):
    """A signal, raised where the work was."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextmanager
def stopped_by_signals(last_words: Callable[[int], object]) -> Iterator[None]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP raise `Stopped`; a signal that is ignored or handled already stays so.

    Python handles signals between two of its own steps. Where none comes within `GRACE`, as in C code that waits for
    another process, or a second signal comes, this process says its last words and ends: files are written whole by
    rename, so nothing is half-written. In a thread that is not the main one, nothing changes.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    caught = [number for number in SIGNALS if signal.getsignal(number) in usual]
    if current_thread() is not main_thread() or not caught:
        yield
        return
    ending, telling = socket.socketpair()
    telling.setblocking(False)
    before = {number: signal.signal(number, _raise_stopped) for number in caught}
    told_before = signal.set_wakeup_fd(telling.fileno(), warn_on_full_buffer=False)
    Thread(target=_end_in_time, args=(ending, caught, last_words), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(told_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        telling.close()  # which ends the thread


@contextmanager
def slow_to_end() -> Iterator[None]:
    """Inside `stopped_by_signals`, work that may take longer than `GRACE` to end, such as sending what is left."""
    if current_thread() is not main_thread():
        yield
        return
    told_before = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(told_before)


class _Raised(KeyboardInterrupt):
    """Carries what a handler of the caller's raised past every `except Exception`."""

    def __init__(self, error: BaseException):
        super().__init__(error)
        self.error = error


@dataclass(frozen=True)
class _Ending:
    """A handler of the caller's, inside `handlers_end_work`."""

    own: Callable[[int, FrameType | None], object]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.own(number, frame)
        except BaseException as error:
            raise _Raised(error) from None


@contextmanager
def handlers_end_work() -> Iterator[None]:
    """Inside, an error raised by one of the caller's signal handlers ends the work and reaches the caller unchanged.

    Launchers and timeouts install handlers that raise an Exception or SystemExit. Code that guards against faulty
    explainers and networks would mistake it for such a fault and carry on.
    """
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    held = {
        number: own
        for number, own in handlers.items()
        if callable(own) and own is not signal.default_int_handler and not isinstance(own, _Ending)
    }
    if current_thread() is not main_thread() or not held:
        yield
        return
    try:
        try:
            for number, own in held.items():
                signal.signal(number, _Ending(own))
            yield
        finally:
            for number, own in held.items():
                signal.signal(number, own)
    except _Raised as caught:
        raise caught.error from None


def _raise_stopped(number: int, frame: object) -> None:
    raise Stopped(number)


def _end_in_time(ending: socket.socket, caught: list[int], last_words: Callable[[int], object]) -> None:
    """Read the numbers of signals as they arrive; end the process if the work does not."""
    first, came = 0, 0.0
    with ending:
        while True:
            with suppress(TimeoutError):
                number = ending.recv(1)
                if not number:
                    return  # the work has ended
                if number[0] not in caught:
                    continue
                if not first:
                    first, came = number[0], monotonic()
                    ending.settimeout(GRACE)
                if monotonic() - came < TWICE:
                    continue
            last_words(first)
            os._exit(128 + first)


@contextmanager
def time_limit(seconds: float | None, what: str) -> Iterator[None]:
    """Inside, the work may take this long; one limit inside of another does not count.

    Under `supervised` the process is ended from outside, whatever it does. Else the caller's thread is interrupted,
    which ends Python code at once, and system calls in the main thread; what goes on all the same is said on standard
    error. what: that takes too long, for the message.
    Raises: UserError.
    """
    if seconds is None or _busy.get():
        yield
        return
    token = _busy.set(True)
    try:
        with _reported(seconds, what) if _supervisor is not None else _interrupted(seconds, what):
            yield
    finally:
        _busy.reset(token)


def _too_long(seconds: float, what: str) -> str:
    return (
        f"{what} takes longer than {seconds:g} s (--chunk-timeout); give it more time or leave it out, and start "
        "again: chunks that are complete are kept"
    )


@contextmanager
def _interrupted(seconds: float, what: str) -> Iterator[None]:
    caller, lock, expired, finished = get_ident(), Lock(), Event(), Event()

    def expire() -> None:
        with lock:
            if finished.is_set():
                return
            expired.set()
            _interrupt(caller)
        if not finished.wait(GRACE):
            complain(f"{_too_long(seconds, what)}; it cannot be interrupted here: end this process")

    timer = Timer(seconds, expire)
    timer.daemon = True
    arrived = False
    with _alarm_interrupts():
        timer.start()
        try:
            try:
                yield
            except KeyboardInterrupt:
                arrived = expired.is_set()
                raise
            finally:
                with lock:
                    finished.set()
                timer.cancel()
                if expired.is_set() and not arrived:
                    sleep(TWICE)  # the interrupt is on its way, and belongs here
        except KeyboardInterrupt:
            if not expired.is_set():
                raise
    if expired.is_set():
        raise UserError(_too_long(seconds, what))


@contextmanager
def _alarm_interrupts() -> Iterator[None]:
    """Inside, in the main thread, SIGALRM does what Ctrl-C does: SIGINT itself is ignored in work in the background."""
    if current_thread() is not main_thread() or ALARM is None or signal.getsignal(ALARM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(ALARM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(ALARM, signal.SIG_DFL)


def _interrupt(thread: int) -> None:
    """Raise KeyboardInterrupt in a thread: by a signal, which also ends system calls, where that is possible."""
    if ALARM is not None and thread == main_thread().ident and signal.getsignal(ALARM) is signal.default_int_handler:
        signal.pthread_kill(thread, ALARM)
    else:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))


@contextmanager
def _reported(seconds: float, what: str) -> Iterator[None]:
    _report({"seconds": seconds, "what": one_line(what)})
    try:
        yield
    finally:
        _report({})


def _report(content: dict) -> None:
    assert _supervisor is not None
    with suppress(BrokenPipeError):
        os.write(_supervisor, json.dumps(content).encode() + b"\n")


def supervised() -> int | None:
    """Continue in a child process, whose limits of time hold for C code as well: this one ends it.

    Returns: None in the child; here its exit code, 2 where a limit was passed. Also None, and no new process, where
    this one cannot be doubled: without `fork`, and after torch has started threads.
    """
    global _supervisor
    if not hasattr(os, "fork") or "torch" in sys.modules or current_thread() is not main_thread():
        return None
    reader, writer = os.pipe()
    parent = os.getpid()
    if not (child := os.fork()):
        os.close(reader)
        _supervisor = writer
        exit_with_parent(parent)
        return None
    os.close(writer)
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: _send(child, number))
    return _watch(child, reader)


def _send(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _watch(child: int, reader: int) -> int:
    """The exit code of a child process that tells what it is doing."""
    doing: dict = {}
    deadline, unread = 0.0, b""
    while True:
        if select.select([reader], [], [], 0.1)[0]:
            unread += (more := os.read(reader, 65536))
            *lines, unread = unread.split(b"\n")
            if lines:
                doing = json.loads(lines[-1])
                deadline = monotonic() + doing.get("seconds", 0)
            if not more:
                sleep(0.05)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if doing and monotonic() > deadline:
            _send(child, signal.SIGKILL)
            os.waitpid(child, 0)
            complain(f"error: {_too_long(doing['seconds'], doing['what'])}")
            return 2


def exit_with_parent(parent: int) -> None:
    """End this process when the one that started it ends, even if that one was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()
