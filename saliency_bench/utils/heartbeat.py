"""Send heartbeats between the processes of a group, so that no process waits forever for a stopped process.

The launcher detects a process that has died. The launcher does not detect a process that was stopped or swapped out, or
whose machine is unreachable. The other processes then wait in a collective operation. The timeout of this operation
would have to be longer than the longest batch. Therefore, a thread of each process regularly increments a counter in a
shared store and checks the counters of the other processes.
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

BEAT, SILENCE = 5.0, 300.0  # seconds between heartbeats; seconds without a heartbeat before a process counts as lost
KEY = "saliency-bench/beat/"
DONE = "done"


def watch_others(rank: int, count: int) -> None:
    """Start a thread that sends heartbeats and watches for the heartbeats of the other processes.

    torch.distributed must have set up the group.
    """
    from torch.distributed import TCPStore

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # A separate connection, because the group's own connection may be busy with a collective operation.
    store = TCPStore(*place, is_master=False, timeout=timedelta(seconds=SILENCE))
    Thread(target=_watch, args=(store, rank, count), daemon=True).start()
    atexit.register(_finish, store, rank)


def _finish(store: "Store", rank: int) -> None:
    """Mark a process as finished, so that the other processes expect no more heartbeats from it."""
    with suppress(Exception):
        store.set(f"{KEY}{rank}", DONE)


def _watch(store: "Store", rank: int, count: int) -> None:
    """Send heartbeats, and end this process if a different process stops sending them."""
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
            if "timeout" in str(error).lower():  # process 0 hosts the store, so it is the silent process
                _give_up([0], rank, count)
            return  # the store has closed: the run has ended, or the launcher is ending it
        if monotonic() - last > SILENCE / 2:  # this process itself was stopped and saw no heartbeats
            seen = dict.fromkeys(seen, monotonic())
        last = monotonic()
        if silent := [other for other, time in seen.items() if last - time > SILENCE]:
            _give_up(silent, rank, count)
        sleep(BEAT)


def _give_up(silent: list[int], rank: int, count: int) -> None:
    """Print which processes are silent, once per group, and end this process.

    Ending at once is safe, because files are written under a temporary name and then renamed.
    """
    if rank == min(set(range(count)) - set(silent)):
        names = " and ".join(f"process {other}" for other in silent)
        why = f"did not respond for {SILENCE:g} s (stopped, or its machine is unreachable)"
        show(f"error: {names} of {count} {why}; run the same command again to resume; complete batches are kept")
    os._exit(2)
