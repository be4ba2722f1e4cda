"""A sign of life of each of several processes: one that is stopped would make all others wait for ever.

The launcher notices a process that died. One that was stopped, swapped out, or whose machine is gone does not die; the
others stand in a collective operation, whose own timeout would have to be longer than the longest chunk. So a thread of
each process counts up in the store that all of them reach, whatever is computed, and looks at the others.
"""

import atexit
import os
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING

from saliency_bench.utils.messages import show

if TYPE_CHECKING:
    from torch.distributed import Store

BEAT, SILENCE = 5.0, 300.0  # seconds between two signs of life, and without one after which a process is given up
KEY = "saliency-bench/beat/"
DONE = "done"


def watch_others(rank: int, count: int) -> None:
    """Start to give signs of life, and to look for those of the others of a group that torch.distributed has set up."""
    from torch.distributed import TCPStore

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # A connection of its own: that of the group may be busy with a collective operation.
    store = TCPStore(*place, is_master=False, timeout=timedelta(seconds=SILENCE))
    Thread(target=_watch, args=(store, rank, count), daemon=True).start()
    atexit.register(_finish, store, rank)


def _finish(store: "Store", rank: int) -> None:
    """Say that a process has ended in peace."""
    with suppress(Exception):
        store.set(f"{KEY}{rank}", DONE)


def _watch(store: "Store", rank: int, count: int) -> None:
    """Give signs of life until another process gives none; then end this one."""
    known: dict[int, bytes] = {}
    seen, last = dict.fromkeys(set(range(count)) - {rank}, monotonic()), monotonic()
    for number in range(2**62):
        try:
            store.set(f"{KEY}{rank}", str(number))
            for other in seen:
                value = store.get(f"{KEY}{other}") if store.check([f"{KEY}{other}"]) else b""
                if value == DONE.encode() or value != known.get(other):
                    known[other], seen[other] = value, monotonic()
        except Exception as error:
            if "timeout" in str(error).lower():  # whoever keeps the store is the one that does not answer
                _give_up([0], rank, count)
            return  # the store is gone: the launcher ends this run, or it has ended
        if monotonic() - last > SILENCE / 2:  # this process itself was stopped, and has seen nobody
            seen = dict.fromkeys(seen, monotonic())
        last = monotonic()
        if silent := [other for other, time in seen.items() if last - time > SILENCE]:
            _give_up(silent, rank, count)
        sleep(BEAT)


def _give_up(silent: list[int], rank: int, count: int) -> None:
    """End this process at once, which is safe: files are written under a temporary name and renamed."""
    if rank == min(set(range(count)) - set(silent)):
        names = " and ".join(f"process {other}" for other in silent)
        why = f"gave no sign of life for {SILENCE:g} s (stopped, or its machine is gone)"
        show(f"error: {names} of {count} {why}; start the same command again: complete chunks are kept")
    os._exit(2)
