"""Several processes started by torchrun or accelerate: each computes a share, the main one decides for all."""

from collections.abc import Callable
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

    Raises: UserError in the main process; the others exit without a message.
    """
    message: list = [None, False]
    if accelerator.is_main_process:
        try:
            message = [decide(), True]
        except UserError:
            broadcast_object_list(message)
            raise
    broadcast_object_list(message)
    decision, has_decided = message
    if not has_decided:
        raise SystemExit(2)
    return decision
