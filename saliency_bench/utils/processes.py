"""Several processes as one: torchrun or accelerate start them, each takes its share, the main one decides for all."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import broadcast_object_list

from saliency_bench.errors import UserError
from saliency_bench.utils.devices import device_of

# A process that is done waits for the others, however long their share takes; one that died is noticed by the launcher.
PATIENCE = timedelta(days=30)

T = TypeVar("T")


def accelerator_on(device: str | None) -> Accelerator:
    """The processes this one belongs to, on CPUs or GPUs. Raises: UserError for a device that is not there."""
    waiting = InitProcessGroupKwargs(timeout=PATIENCE)
    return Accelerator(cpu=device_of(device).type == "cpu", kwargs_handlers=[waiting])


def agreed(accelerator: Accelerator, decide: Callable[[], T]) -> T:
    """What `decide` gives in the main process, in all of them.

    Raises: the main process's UserError, which ends the others too, without a word of their own.
    """
    said: list = [None, False]
    if accelerator.is_main_process:
        try:
            said = [decide(), True]
        except UserError:
            broadcast_object_list(said)
            raise
    broadcast_object_list(said)
    decision, is_whole = said
    if not is_whole:
        raise SystemExit(2)
    return decision
