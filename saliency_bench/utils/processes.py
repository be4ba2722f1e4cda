"""Coordinate processes started by torchrun or accelerate.

Each process computes a part of the results, and the main process makes decisions for all of them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Protocol, TypeVar

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import broadcast_object_list

from saliency_bench.errors import UserError
from saliency_bench.utils.devices import device_of
from saliency_bench.utils.heartbeat import watch_others

# A finished process waits for the other processes without a time limit. The launcher detects a process that has died,
# and `heartbeat` detects a process that was stopped.
PATIENCE = timedelta(days=30)

T = TypeVar("T")


class ProcessGroup(Protocol):
    """Interface of a group of processes that share the batches of a run, such as accelerate's Accelerator."""

    device: torch.device
    num_processes: int
    process_index: int
    is_main_process: bool
    is_local_main_process: bool

    def wait_for_everyone(self) -> None:
        """Wait until all processes have called this method."""


@dataclass
class Alone:
    """Group of a single process, which computes a whole run. Other processes may compute other runs."""

    device: torch.device
    num_processes: int = 1
    process_index: int = 0
    is_main_process: bool = True
    is_local_main_process: bool = True

    def wait_for_everyone(self) -> None:
        """Return immediately, because the group has no other process."""


def accelerator_on(device: str | None) -> Accelerator:
    """Return the process group of this process, or raise UserError if the device is unavailable."""
    waiting = InitProcessGroupKwargs(timeout=PATIENCE)
    accelerator = Accelerator(cpu=device_of(device).type == "cpu", kwargs_handlers=[waiting])
    _watch_once(accelerator.process_index, accelerator.num_processes)
    return accelerator


@cache
def _watch_once(rank: int, count: int) -> None:
    """Start watching the other processes, if there are any. Repeated calls have no effect."""
    if count > 1 and "MASTER_PORT" in os.environ:
        watch_others(rank, count)


def agreed(accelerator: ProcessGroup, decide: Callable[[], T]) -> T:
    """Call `decide` in the main process and return its result in every process.

    Raises:
        UserError: `decide` raised this error in the main process, or a process has ended. If `decide` raised an error,
            the other processes exit without a message.
    """
    if accelerator.num_processes == 1:
        return decide()
    message: list = [None, False]
    if accelerator.is_main_process:
        try:
            message = [decide(), True]
        except UserError:
            with _none_lost():
                broadcast_object_list(message)
            raise
    with _none_lost():
        broadcast_object_list(message)
    decision, has_decided = message
    if not has_decided:
        raise SystemExit(2)
    return decision


def wait_for_all(accelerator: ProcessGroup) -> None:
    """Wait until all processes have called this function, or raise UserError if a process has ended."""
    with _none_lost():
        accelerator.wait_for_everyone()


@contextmanager
def _none_lost() -> Iterator[None]:
    """Convert torch's error for a process that has ended to a one-line UserError."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            "a process of this run ended before the others; run the same command again to resume; complete batches "
            "are kept"
        ) from error
