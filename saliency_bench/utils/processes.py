"""Several processes started by torchrun or accelerate: each computes a share, the main one decides for all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import broadcast_object_list

from saliency_bench.errors import UserError
from saliency_bench.utils.devices import device_of

# A finished process waits for the others, however long they take; the launcher notices one that died.
PATIENCE = timedelta(days=30)

T = TypeVar("T")


def accelerator_on(device: str | None) -> Accelerator:
    """The group of processes of this one, on CPUs or GPUs. Raises: UserError for an unavailable device."""
    waiting = InitProcessGroupKwargs(timeout=PATIENCE)
    return Accelerator(cpu=device_of(device).type == "cpu", kwargs_handlers=[waiting])


def agreed(accelerator: Accelerator, decide: Callable[[], T]) -> T:
    """The result of `decide` in the main process, in every process.

    Raises: UserError in the main process; the others exit without a message. And where one was lost, in all.
    """
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


def wait_for_all(accelerator: Accelerator) -> None:
    """Raises: UserError where a process was lost."""
    with _none_lost():
        accelerator.wait_for_everyone()


@contextmanager
def _none_lost() -> Iterator[None]:
    """Inside, what torch says of a process that is not there any more becomes one line."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            "a process of this run ended before the others; start the same command again: complete chunks are kept"
        ) from error
