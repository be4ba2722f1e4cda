"""Runs of two processes, started by torchrun, of which one is killed, or all: the launcher ends, the run resumes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from children import Children

from kill_loops.common import Outcome, bad_luck, working_in
from kill_loops.runs import RUN, compare, moment, results, run, where

PATIENCE = 60  # seconds in which the launcher must notice


def launched(settings: dict, processes: int = 2) -> None:
    """In a child: what torchrun does, with forked processes, which start at once."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.setsid()
    for number in (1, 2):
        os.dup2(os.open(f"said.{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, start_method="fork", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.1,
    )  # fmt: skip
    elastic_launch(config, _work)(settings)


def _work(settings: dict) -> None:
    run(**settings)


def torchrun(settings: dict, children: Children) -> subprocess.Popen:
    """The program itself."""
    options = [
        word
        for name in ("dataset", "model", "out", "device", "limit", "batch_size")
        for word in ("--" + name.replace("_", "-"), str(settings[name]))
    ]
    line = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "saliency_bench",
        "run", *options, "--explainers", *settings["explainers"], "--metrics", *settings["metrics"], "--json",
    ]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(line, start_new_session=True, env=os.environ | children.environment, **quiet)


def workers(launcher: int) -> list[int]:
    try:
        listed = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in listed.split()]


def killed(child, dice: random.Random, when, delay: float) -> str:
    """Kill one process of the launcher `child`, or the whole session; what was killed, "" if it had ended."""
    alive = child.is_alive if hasattr(child, "is_alive") else lambda: child.poll() is None
    while alive() and not when():
        time.sleep(0.001)
    time.sleep(delay)
    own = workers(child.pid)
    if not alive():
        return ""
    if len(own) >= 2 and dice.random() < 0.6:
        rank = dice.randrange(2)
        os.kill(own[rank], signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while alive() and time.monotonic() < until:
            time.sleep(0.01)
        if alive():
            raise RuntimeError(f"the launcher did not notice in {PATIENCE} s that a process was killed")
        return f"process {rank}"
    for pid in [child.pid, *own]:  # of forked processes that have not called setsid yet, one after the other
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return "all"


def launches(count: int, dataset: Path, model: Path, folder: Path, children: Children) -> Outcome:
    """Every fifth with the program torchrun, the others with what it is made of."""
    settings = {"dataset": str(dataset), "model": str(model)} | RUN
    outcome = Outcome("runs of two processes", count)
    with working_in(folder / "one process"):
        children.to_the_end(run, settings)
        expected = results()
    for number in range(count):
        dice = random.Random(number)
        with working_in(folder / f"launched {number}"):
            for start in range(bad_luck(number) // 2 + 1):
                program = number % 5 == 4 and start == 0
                child = torchrun(settings, children) if program else children.start(launched, {"settings": settings})
                what = killed(child, dice, *moment(number + 5 * start, dice))
                child.wait() if program else child.join()
                if what:
                    outcome.kills[f"{what} {where()}"] += 1
            if number % 3:
                children.to_the_end(run, settings)
            else:
                children.to_the_end(launched, {"settings": settings})
            compare(outcome, f"launched {number}", expected)
    return outcome
