"""Test that a disturbed run writes the same bytes as an undisturbed run.

`DISTURBANCES` lists the disturbances. Each file in `FILES` is damaged in each way in `DAMAGE`. Each disturbance acts on
an empty folder or on a finished run; then the same command is started again. A few disturbances are fast tests, and the
others are slow or thorough tests. benchmarks/kills.py kills runs at every moment.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

import saliency_bench as sb
from saliency_bench.compute import finish, writing
from saliency_bench.compute import run as running
from saliency_bench.errors import UserError
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.parts import PartFolder
from saliency_bench.utils.files import read_json

EXPLAINERS, METRICS = ["gradcam", "rise:masks=20", "random"], ["saliency_miou", "saliency_insertion:steps=4"]
SETTINGS: dict[str, Any] = {"explainers": EXPLAINERS, "metrics": METRICS, "batch_size": 4, "limit": 30}
RESULTS = ("records.parquet", "predictions.parquet")
SLOW = "rise:masks=3000"  # a run that is long enough to be killed
AT_ONCE = Path(__file__).parents[1] / "support" / "writing_at_once.py"


@dataclass(frozen=True)
class World:
    """A folder for a run, with methods that start the run."""

    out: Path
    shapes: Path
    resnet: Path
    patch: pytest.MonkeyPatch

    def go(self, **changes):
        """Start the run in this process."""
        settings = SETTINGS | changes
        where = {"dataset": str(self.shapes), "model": str(self.resnet), "out": self.out}
        return sb.run(device="cpu", progress=False, **where, **settings)

    def command(self, processes, explainers=EXPLAINERS, limit=SETTINGS["limit"]):
        """Return the command line of this run with this number of processes."""
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        return [
            sys.executable, *launch * (processes > 1), str(AT_ONCE), "run", "--dataset", str(self.shapes),
            "--model", str(self.resnet), "--explainers", *explainers, "--metrics", *METRICS, "--batch-size", "4",
            "--device", "cpu", "--json", "--out", str(self.out), "--limit", str(limit),
        ]  # fmt: skip

    @property
    def environment(self):
        """Return environment variables with private caches, as conftest.py sets them for this process."""
        names = ("HF_DATASETS_CACHE", "SALIENCY_BENCH_CACHE")
        caches = dict.fromkeys(names, str(self.out.parent / "caches"))
        return os.environ | caches | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def launch(self, processes, **changes):
        """Run with this number of processes until the end."""
        line = self.command(processes, **changes)
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr

    def kill(self, processes, rank=None):
        """Start the run with this number of processes, and kill one or all of them after some results are written."""
        line = self.command(processes, explainers=[*EXPLAINERS, SLOW])
        process = subprocess.Popen(
            line, env=self.environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.wait_for_scores(process, 9)
        children = children_of(process.pid)
        if rank is None:
            os.killpg(process.pid, signal.SIGKILL)
        for child in children:
            if rank is None or f"\0RANK={rank}\0" in environment_of(child):
                os.kill(child, signal.SIGKILL)
        _, shown = process.communicate(timeout=60)
        assert process.returncode != 0
        assert rank is None or "Signal 9 (SIGKILL)" in shown
        assert not (self.out / "summary.json").exists()

    def wait_for_scores(self, process, files):
        """Wait until a process has written this number of score files."""
        until = time.monotonic() + 120
        while len(self.parts("scores")) < files:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.005)

    def parts(self, kind):
        """Return the part files of a type."""
        return sorted((self.out / kind).glob("*.parquet"))

    def interrupted(self, name, error):
        """Start the run, and raise an error in the third call of the stage with this name."""
        stage, calls = getattr(running, name), []

        def raising(*args, **options):
            calls.append(name)
            if len(calls) == 3:
                raise error
            return stage(*args, **options)

        with self.patch.context() as patch:
            patch.setattr(running, name, raising)
            with pytest.raises(type(error)):
                self.go()


def children_of(pid):
    """Return the child processes of a process (Linux only)."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # the process has just ended
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def environment_of(pid):
    return "\0" + Path(f"/proc/{pid}/environ").read_text()


# In this process


def nothing(world):
    """Do nothing to the run."""


def started_twice(world):
    world.go()


def limit_first_and_more_later(world):
    for limit in (3, 17):
        world.go(limit=limit)


def only_widened(world):
    """Widen a run of random maps and RISE, which do not depend on the other samples of a batch."""
    world.go(limit=9, only=["correct"], explainers=["random"])
    world.go(only=["masked"], explainers=["random", "rise:masks=20"])


def cells_added(world):
    world.go(explainers=["random"], metrics=METRICS[:1])
    world.go(explainers=["gradcam"], metrics=METRICS[1:])


def other_order_of_cells(world):
    world.go(explainers=EXPLAINERS[::-1], metrics=METRICS[::-1])


def other_batch_size(world):
    world.go(batch_size=7, limit=13, explainers=["random"])
    assert world.go().summary["batch_sizes"] == [4, 7]


def batches_in_reverse(world):
    ahead = running.ahead
    with world.patch.context() as patch:
        patch.setattr(running, "ahead", lambda read, batches, waited: ahead(read, batches[::-1], waited))
        world.go()


def files_of_their_own(world):
    with world.patch.context() as patch:
        patch.setattr(writing, "SECONDS", 0)
        world.go()
    assert len(world.parts("scores")) == 8 * len(EXPLAINERS)


def lost_parts(world):
    files_of_their_own(world)
    for kind in ("scores", "predictions", "thumbnails"):
        world.parts(kind)[1].unlink()


def interrupted_at_work(world):
    world.interrupted("work", KeyboardInterrupt())


def interrupted_predicting(world):
    world.interrupted("predict", KeyboardInterrupt())


def interrupted_merging(world):
    with world.patch.context() as patch:
        patch.setattr(running, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            world.go()


def disk_full(world):
    write, calls = PartFolder.write, []

    def fails(folder, results):
        calls.append(folder.path.name)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        return write(folder, results)

    with world.patch.context() as patch:
        patch.setattr(writing, "SECONDS", 0)
        patch.setattr(PartFolder, "write", fails)
        with pytest.raises(OSError, match="No space left"):
            world.go()


def killed_before_it_wrote_anything(world):
    world.out.mkdir()
    (world.out / ".lock").touch()
    (world.out / ".run.json.4711.tmp").write_text("{")


def damaged_while_it_ran(world):
    compute = running._compute_batches

    def damaging(*args):
        done = compute(*args)
        (path,) = world.parts("scores")
        path.write_bytes(path.read_bytes()[:-1])
        return done

    with world.patch.context() as patch:
        patch.setattr(running, "_compute_batches", damaging)
        with pytest.raises(UserError, match="was damaged or lost during the run; start the run again"):
            world.go()


def strays(world):
    """Add copies, notes and folders that do not belong to the run."""
    world.go()
    (part,) = world.parts("scores")
    for name in (f"{part.stem} (1).parquet", f"._{part.name}", "copy.parquet"):
        shutil.copy(part, part.with_name(name))
    shutil.copy(part, world.out / "predictions" / part.name)
    (world.out / "scores" / ("f" * 16)).mkdir()


# In separate processes


def two_processes(world):
    world.launch(2)


def one_process_then_two(world):
    world.launch(1, limit=13)
    world.launch(2)


def two_processes_then_one(world):
    world.launch(2, limit=13)


def one_killed(world):
    world.kill(1)


def two_killed(world):
    world.kill(2)


def main_process_killed(world):
    world.kill(2, rank=0)


def other_process_killed(world):
    world.kill(2, rank=1)
    world.launch(2)


FAST = [limit_first_and_more_later, other_batch_size, lost_parts, interrupted_at_work, disk_full, only_widened]
LATER = [
    nothing, started_twice, cells_added, other_order_of_cells, batches_in_reverse, files_of_their_own,
    interrupted_predicting, interrupted_merging, killed_before_it_wrote_anything, damaged_while_it_ran, strays,
    two_processes, one_killed, other_process_killed,
]  # fmt: skip
NIGHTLY = [one_process_then_two, two_processes_then_one, two_killed, main_process_killed]
DISTURBANCES = [
    *FAST,
    *(pytest.param(disturb, marks=pytest.mark.slow) for disturb in LATER),
    *(pytest.param(disturb, marks=pytest.mark.thorough) for disturb in NIGHTLY),
]
FILES = [
    "run.json", "summary.json", "timings.json", "written.json", "examples.npz", "report.html", *RESULTS,
    "reliability.parquet", "scores/*.parquet", "predictions/*.parquet", "thumbnails/*.parquet",
]  # fmt: skip
DAMAGE = {"missing": None, "empty": b"", "zeros": b"\0" * 4096, "half": b'{"format": 5, "spec": {"data', "list": b"[]"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Use one thread, as launched processes do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def undisturbed(one_thread, shapes, resnet, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    World(out, shapes, resnet, pytest.MonkeyPatch()).go()
    return out


@pytest.fixture
def world(one_thread, shapes, resnet, tmp_path, monkeypatch):
    return World(tmp_path / "run", shapes, resnet, monkeypatch)


def check_equal(folder, undisturbed):
    """Check that a run has the bytes of the undisturbed run. Only the order of cells in its summary may differ."""
    for name in RESULTS:
        assert (folder / name).read_bytes() == (undisturbed / name).read_bytes(), name
    ours, theirs = (read_json(one / "summary.json") for one in (folder, undisturbed))
    other = {"command", "batch_sizes", "cells", "comparisons", "maps"}  # a killed start had one more explainer
    assert {key: ours[key] for key in ours.keys() - other} == {key: theirs[key] for key in theirs.keys() - other}
    ours, theirs = ({cell["cell_id"]: cell for cell in one["cells"]} for one in (ours, theirs))
    assert ours == theirs
    assert read_json(folder / "summary.json")["maps"].items() >= read_json(undisturbed / "summary.json")["maps"].items()
    assert read_manifest(folder).cells.items() >= read_manifest(undisturbed).cells.items()


@pytest.mark.parametrize("disturb", DISTURBANCES)
def test_disturbed_runs_end_as_undisturbed_ones(disturb, world, undisturbed):
    disturb(world)
    world.go()
    check_equal(world.out, undisturbed)


@pytest.mark.sample(6, 12)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_made_again(name, damage, world, undisturbed):
    """Also check that nothing is explained again unless scores were damaged."""
    shutil.copytree(undisturbed, world.out)
    (path,) = world.out.glob(name)
    path.unlink() if DAMAGE[damage] is None else path.write_bytes(DAMAGE[damage])
    if name != "scores/*.parquet":
        world.patch.setattr(running, "work", pytest.fail)
    world.go()
    check_equal(world.out, undisturbed)
    sb.report(world.out)


def state(out):
    names = (*RESULTS, "summary.json", "timings.json", "examples.npz", "report.html")
    return {name: ((out / name).stat().st_mtime_ns, (out / name).read_bytes()) for name in names}


def test_a_start_with_nothing_to_do_writes_nothing(world):
    first, before = world.go().summary, state(world.out)
    world.patch.setattr(finish, "summarise", lambda _: pytest.fail("the summary was made again"))
    assert world.go().summary == first
    assert state(world.out) == before


@pytest.mark.slow
def test_other_code_writes_the_page_again(world, tmp_path):
    world.go()
    before = state(world.out)["report.html"]
    (tmp_path / "saliency_bench").mkdir()
    (tmp_path / "saliency_bench" / "words.py").write_text("changed = True")
    world.patch.setattr(finish, "PACKAGE", tmp_path / "saliency_bench")
    world.go()
    assert state(world.out)["report.html"][0] > before[0]


@pytest.mark.slow
def test_only_batches_that_lack_something_are_shared_out(world):
    world.go(limit=8)
    world.go(limit=16, explainers=["gradcam"])
    shares = []

    def stop(store, data, model, cells, todo, accelerator):
        shares.append([batch.start for batch, _ in todo])
        raise KeyboardInterrupt

    world.patch.setattr(running, "_compute_batches", stop)
    with pytest.raises(KeyboardInterrupt):
        world.go()
    assert shares == [[8, 12, 16, 20, 24, 28]]


@pytest.mark.thorough
def test_a_refusal_of_the_main_process_ends_all_in_one_line(world):
    world.go(limit=4)
    with FileLock(world.out / ".lock"):
        done = subprocess.run(world.command(2), env=world.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert done.stderr.count(f"another run is writing to {world.out}") == 1


IMPATIENT = """
import sys
from saliency_bench.utils import heartbeat
heartbeat.BEAT, heartbeat.SILENCE = 0.3, 6
from saliency_bench.compute import writing
writing.SECONDS = 0
from saliency_bench.cli import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_stopped_process_is_named_and_ends_the_run(rank, world, tmp_path):
    script = tmp_path / "impatient.py"
    script.write_text(IMPATIENT)
    line = [str(script) if word == str(AT_ONCE) else word for word in world.command(2, [*EXPLAINERS, SLOW])]
    with subprocess.Popen(line, env=world.environment, stderr=subprocess.PIPE, text=True) as process:
        world.wait_for_scores(process, 1)
        (child,) = (child for child in children_of(process.pid) if f"\0RANK={rank}\0" in environment_of(child))
        os.kill(child, signal.SIGSTOP)
        _, shown = process.communicate(timeout=150)
    lines = [text for text in shown.splitlines() if "did not respond" in text]
    assert process.returncode != 0
    assert len(lines) == 1, shown
    assert f"error: process {rank} of 2 did not respond for 6 s" in lines[0]
