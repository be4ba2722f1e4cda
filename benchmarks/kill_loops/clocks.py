"""Child processes with a different clock at each start, which is up to ten years behind or ahead."""

import datetime as dates
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from children import Children

YEARS = 10 * 365 * 24 * 3600  # seconds


def at_another_time(function: Callable, settings: dict, seconds: float) -> None:
    """Call a function in a child process whose clock is some seconds ahead or behind."""
    real = time.time
    time.time = lambda: real() + seconds
    time.time_ns = lambda: int(1e9 * time.time())

    class Dates(dates.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(time.time(), tz)

    from saliency_bench.board import recompute
    from saliency_bench.studies import database

    for module in (recompute, database):
        module.datetime = Dates
    function(**settings)


class OtherTimes(Children):
    """Starts each child with a changed clock, and dates all files in the working directory according to this clock."""

    def start(self, function: Callable, settings: dict):
        seconds = random.Random(f"{Path.cwd()} {time.monotonic_ns()}").uniform(-YEARS, YEARS)
        for path in Path().rglob("*"):
            with suppress(FileNotFoundError):
                os.utime(path, (then := time.time() + seconds, then), follow_symlinks=False)
        return super().start(at_another_time, {"function": function, "settings": settings, "seconds": seconds})
