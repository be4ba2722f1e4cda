"""One process or two, in any order, begun by one and finished by the other: the records are the same, bit for bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import saliency_bench as sb
from saliency_bench.compute import run as running
from saliency_bench.utils.files import read_json

EXPLAINERS = ["gradcam", "rise:masks=20", "random"]
METRICS = ["saliency_miou", "saliency_insertion:steps=4"]
RECORDS = ("records.parquet", "predictions.parquet")
RESULTS = (*RECORDS, "summary.json")
SLOW = [*EXPLAINERS, "rise:masks=1500"]  # long enough to be killed before the end


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As the processes have that are launched."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def undisturbed(one_thread, shapes, resnet, tmp_path_factory):
    return in_this_process(tmp_path_factory.mktemp("runs") / "run", shapes, resnet)


AT_ONCE = Path(__file__).parents[1] / "support" / "writing_at_once.py"


def in_this_process(out, shapes, resnet, **changes):
    settings = {"explainers": EXPLAINERS, "metrics": METRICS, "batch_size": 4, "limit": 30}
    sb.run(dataset=str(shapes), model=str(resnet), out=out, device="cpu", progress=False, **settings | changes)
    return out


def command(processes, out, shapes, resnet, *words, explainers=EXPLAINERS, batch_size=4):
    """Relative --out, so that the summaries of runs in different folders hold the same command."""
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)] if processes > 1 else []
    )
    return [
        sys.executable, *launch, str(AT_ONCE), "run", "--dataset", str(shapes), "--model", str(resnet),
        "--explainers", *explainers, "--metrics", *METRICS, "--batch-size", str(batch_size), "--device", "cpu",
        "--json", "--out", out.name, *words,
    ]  # fmt: skip


def environment(tmp_path):
    """Caches of the test's own, as the fixtures of conftest.py give this process."""
    own = {"HF_DATASETS_CACHE": tmp_path / "caches", "SALIENCY_BENCH_CACHE": tmp_path / "caches"}
    return (
        os.environ | {name: str(path) for name, path in own.items()} | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    )


def launched(processes, out, shapes, resnet, *words, **changes):
    out.parent.mkdir(exist_ok=True)
    done = subprocess.run(
        command(processes, out, shapes, resnet, *words, **changes),
        cwd=out.parent, env=environment(out.parent), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def started(processes, out, shapes, resnet, *words, **changes):
    out.parent.mkdir(exist_ok=True)
    return subprocess.Popen(
        command(processes, out, shapes, resnet, *words, **changes),
        cwd=out.parent, env=environment(out.parent), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def bytes_of(folder, names=RECORDS):
    return {name: (folder / name).read_bytes() for name in names}


def chunks(folder):
    """Part files of scores: here one per chunk and explainer."""
    return list(folder.glob("scores/*.parquet"))


def wait_for_chunks(folder, enough, process):
    until = time.monotonic() + 120
    while len(chunks(folder)) < enough:
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.slow
def test_two_processes_give_the_records_of_one(undisturbed, shapes, resnet, tmp_path):
    found = launched(2, tmp_path / "two" / "run", shapes, resnet, "--limit", "30")
    assert bytes_of(found) == bytes_of(undisturbed)
    one, two = (read_json(folder / "summary.json") for folder in (undisturbed, found))
    told = "command"  # holds --out
    assert {key: one[key] for key in one if key != told} == {key: two[key] for key in two if key != told}


@pytest.mark.thorough
def test_what_the_main_process_refuses_ends_all_with_one_line(shapes, resnet, tmp_path):
    out = tmp_path / "run"
    in_this_process(out, shapes, resnet, limit=4)
    with FileLock(out / ".lock"):
        process = started(2, out, shapes, resnet, "--limit", "30")
        _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said.count("another run is writing to run") == 1


@pytest.mark.slow
def test_only_what_is_missing_is_dealt_out(shapes, resnet, tmp_path, monkeypatch):
    out = tmp_path / "run"
    in_this_process(out, shapes, resnet, limit=8)
    in_this_process(out, shapes, resnet, limit=16, explainers=["gradcam"])
    seen = []

    def stop(work, mine, *_):
        seen.append(list(mine))
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_compute_chunks", stop)
    with pytest.raises(KeyboardInterrupt):
        in_this_process(out, shapes, resnet)
    assert seen == [[2, 3, 4, 5, 6, 7]]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reversed", "odd ones first"])
def test_the_order_of_chunks_changes_nothing(order, undisturbed, shapes, resnet, tmp_path, monkeypatch):
    ahead, seen = running.ahead, []

    def other(work, numbers, waited):
        numbers = numbers[::-1] if order == "reversed" else numbers[1::2] + numbers[::2]
        seen.append(numbers)
        return ahead(work, numbers, waited)

    monkeypatch.setattr(running, "ahead", other)
    found = in_this_process(tmp_path / "run", shapes, resnet)
    assert len(seen) == 1
    assert all(numbers != sorted(numbers) for numbers in seen)
    assert bytes_of(found) == bytes_of(undisturbed)


@pytest.mark.slow
def test_a_limit_first_and_more_later_changes_nothing(undisturbed, shapes, resnet, tmp_path):
    for limit in (3, 17, 30):
        found = in_this_process(tmp_path / "run", shapes, resnet, limit=limit)
    assert bytes_of(found) == bytes_of(undisturbed)


@pytest.mark.thorough
@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)])
def test_what_some_processes_began_others_finish(first, then, undisturbed, shapes, resnet, tmp_path):
    out = tmp_path / "here" / "run"
    launched(first, out, shapes, resnet, "--limit", "13")
    before = {path: path.stat().st_mtime_ns for path in chunks(out)}
    assert before
    launched(then, out, shapes, resnet, "--limit", "30")
    assert bytes_of(out) == bytes_of(undisturbed)
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


@pytest.fixture(scope="module")
def expected(shapes, resnet, tmp_path_factory):
    """An undisturbed run of the slow explainers, by one process."""
    return launched(1, tmp_path_factory.mktemp("undisturbed") / "run", shapes, resnet, explainers=SLOW)


@pytest.mark.thorough
@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)])
def test_what_killed_processes_began_others_finish(first, then, expected, shapes, resnet, tmp_path):
    out = tmp_path / "here" / "run"
    process = started(first, out, shapes, resnet, explainers=SLOW)
    wait_for_chunks(out, 11, process)
    os.killpg(process.pid, signal.SIGKILL)
    for child in children_of(process.pid):
        os.kill(child, signal.SIGKILL)
    process.wait()
    assert 11 <= len(chunks(out)) < len(chunks(expected))
    launched(then, out, shapes, resnet, explainers=SLOW)
    assert bytes_of(out, RESULTS) == bytes_of(expected, RESULTS)


@pytest.mark.thorough
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_ends_the_run_which_goes_on_later(rank, expected, shapes, resnet, tmp_path):
    out = tmp_path / "here" / "run"
    process = started(2, out, shapes, resnet, explainers=SLOW)
    wait_for_chunks(out, 8, process)
    (victim,) = (child for child in children_of(process.pid) if f"\0RANK={rank}\0" in environment_of(child))
    os.kill(victim, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Signal 9 (SIGKILL)" in said
    assert not (out / "summary.json").exists()
    assert len(chunks(out)) < len(chunks(expected))
    launched(2, out, shapes, resnet, explainers=SLOW)
    assert bytes_of(out, RESULTS) == bytes_of(expected, RESULTS)


def children_of(pid):
    """Linux: the processes whose parent is this one."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def environment_of(pid):
    return "\0" + Path(f"/proc/{pid}/environ").read_text()


IMPATIENT = """
import sys
from saliency_bench.utils import heartbeat
heartbeat.BEAT, heartbeat.SILENCE = 0.3, 6
from saliency_bench.compute import writing
writing.SECONDS = 0
from saliency_bench.cli import main
sys.exit(main())
"""


def process_of(rank, launcher):
    """Process of one rank, as a launcher starts it."""
    return next(pid for pid in children_of(launcher.pid) if f"\0RANK={rank}\0" in environment_of(pid))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_process_ends_the_run_in_a_line_that_names_it(rank, shapes, resnet, tmp_path):
    out, script = tmp_path / "run", tmp_path / "impatient.py"
    script.write_text(IMPATIENT)
    line = [str(script) if word == str(AT_ONCE) else word for word in command(2, out, shapes, resnet, explainers=SLOW)]
    with subprocess.Popen(line, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not list(out.glob("scores/*.parquet")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(process_of(rank, process), signal.SIGSTOP)
        _, shown = process.communicate(timeout=150)
    lines = [text for text in shown.splitlines() if "did not respond" in text]
    assert process.returncode != 0
    assert len(lines) == 1, shown
    assert f"error: process {rank} of 2 did not respond for 6 s" in lines[0]
    done = launched(2, out, shapes, resnet, explainers=SLOW)
    assert read_json(done / "summary.json")["cells"]
