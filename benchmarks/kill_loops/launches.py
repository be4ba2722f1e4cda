"""Kill one or both of two processes started by torchrun: the launcher must end, and the run must be resumable.

The processes run on one node, or on two nodes connected by the loopback device. In a run on two nodes, a node may also
be killed together with its launcher.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from children import Children

from kill_loops.common import Outcome, bad_luck, working_in
from kill_loops.runs import RUN, compare, moment, results, run, where

PATIENCE = 600  # the launcher must end within this many seconds, even on a busy machine; a node waits 300 s for others


def launched(settings: dict, processes: int = 2, node: int | None = None, port: int = 0) -> None:
    """Imitate torchrun in a child. Its processes are forked, so they start immediately.

    If `node` is set, this is one of two nodes, and their store listens on `port`. None means a single node.
    """
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.setsid()
    for number in (1, 2):
        os.dup2(os.open(f"said.{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    nodes = 1 if node is None else 2
    config = LaunchConfig(
        min_nodes=nodes, max_nodes=nodes, nproc_per_node=processes, start_method="fork", max_restarts=0, run_id="run",
        rdzv_backend="c10d" if node is None else "static", rdzv_endpoint=f"127.0.0.1:{port}", monitor_interval=0.1,
        rdzv_configs={} if node is None else {"rank": node},
    )  # fmt: skip
    elastic_launch(config, _work)(settings)


def _work(settings: dict) -> None:
    run(**settings)


def torchrun(settings: dict, children: Children) -> subprocess.Popen:
    """Run the real program torchrun."""
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
    """Kill one process of the launcher `child`, or its whole session. Return what was killed, or "" if it had ended."""
    alive = child.is_alive if hasattr(child, "is_alive") else lambda: child.poll() is None
    while alive() and not when():
        time.sleep(0.001)
    time.sleep(delay)
    own = workers(child.pid)
    if not alive():
        return ""
    if own and dice.random() < 0.6:
        rank = dice.randrange(len(own))
        os.kill(own[rank], signal.SIGKILL)
        wait_for_end(alive)
        return f"process {rank}"
    for pid in [child.pid, *own]:  # forked processes that have not called setsid yet are killed one after the other
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return "all"


def wait_for_end(alive) -> None:
    """Wait until a launcher ends because a process was killed."""
    until = time.monotonic() + PATIENCE
    while alive() and time.monotonic() < until:
        time.sleep(0.01)
    if alive():
        raise RuntimeError(f"the launcher did not notice in {PATIENCE} s that a process was killed")


def launches(
    count: int, dataset: Path, model: Path, folder: Path, children: Children, what: str = "two processes",
    changes: dict | None = None,
) -> Outcome:  # fmt: skip
    """Kill runs. Every fifth run uses the program torchrun, the others use its components. `changes` modify `RUN`."""
    settings = {"dataset": str(dataset), "model": str(model)} | RUN | (changes or {})
    outcome = Outcome(f"runs of {what}", count)
    with working_in(folder / f"one process for {what}"):
        children.to_the_end(run, settings)
        expected = results()
    for number in range(count):
        dice = random.Random(number)
        with working_in(folder / f"{what} {number}"):
            for start in range(bad_luck(number) // 2 + 1):
                program = number % 5 == 4 and start == 0 and not changes
                child = torchrun(settings, children) if program else children.start(launched, {"settings": settings})
                what = killed(child, dice, *moment(number + 5 * start, dice))
                child.wait() if program else child.join()
                if what:
                    outcome.kills[f"{what} {where()}"] += 1
            if number % 3:
                children.to_the_end(run, settings)
            else:
                children.to_the_end(launched, {"settings": settings})
            compare(outcome, f"{what} {number}", expected)
    return outcome


def nodes(count: int, dataset: Path, model: Path, folder: Path, children: Children) -> Outcome:
    """Run two nodes with one process each. Kill a node or its process; the other node must then end."""
    settings = {"dataset": str(dataset), "model": str(model)} | RUN
    outcome = Outcome("runs of two nodes", count)

    def start() -> list:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        given = {"settings": settings, "processes": 1, "port": port}
        return [children.start(launched, given | {"node": node}) for node in range(2)]

    with working_in(folder / "one node"):
        children.to_the_end(run, settings)
        expected = results()
    for number in range(count):
        dice = random.Random(number)
        with working_in(folder / f"nodes {number}"):
            for _ in range(bad_luck(number) // 2 + 1):
                both, node = start(), dice.randrange(2)
                # Before the nodes are connected, torchrun waits for 15 minutes.
                when, delay = moment(1 + dice.randrange(3), dice)
                what = killed(both[node], dice, lambda when=when: Path("run/run.json").exists() and when(), delay)
                wait_for_end(both[1 - node].is_alive)
                for child in both:
                    child.join()
                if what:
                    outcome.kills[f"{what} of node {node} {where()}"] += 1
            if number % 3:
                children.to_the_end(run, settings)
            else:
                both = start()
                for child in both:
                    child.join()
                if codes := [child.exitcode for child in both if child.exitcode]:
                    raise RuntimeError(f"two nodes ended with exit codes {codes}")
            compare(outcome, f"nodes {number}", expected)
    return outcome
