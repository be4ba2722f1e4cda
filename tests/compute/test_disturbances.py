"""Test that a disturbed run writes the same bytes as an undisturbed run.

`DISTURBANCES` lists the disturbances. Each file in `FILES` is damaged in each way in `DAMAGE`. Each disturbance acts on
an empty folder or on a finished run; then the same command is started again. A few disturbances are fast tests, and the
others are slow or thorough tests. benchmarks/kills.py kills runs at every moment.
A power failure or a full disk may leave a file torn, empty or missing. It is recreated with a message.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.compute import finish, writing
from saliency_bench.compute import run as running
from saliency_bench.errors import UserError
from saliency_bench.push_scripts.demo import small_resnet
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.parts import Part, PartFolder
from saliency_bench.utils.files import read_json, write_json

EXPLAINERS, METRICS = ["gradcam", "rise:masks=20", "random"], ["saliency_miou", "saliency_insertion:steps=4"]
SETTINGS: dict[str, Any] = {"explainers": EXPLAINERS, "metrics": METRICS, "batch_size": 4, "limit": 18,
                            "keep_maps": True}  # fmt: skip
RESULTS = ("records.parquet", "predictions.parquet", "reliability.parquet")
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
        return sb.run(device="cpu", progress=False, **where | settings)

    def command(self, processes, explainers=EXPLAINERS, limit=SETTINGS["limit"]):
        """Return the command line of this run with this number of processes."""
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        return [
            sys.executable, *launch * (processes > 1), str(AT_ONCE), "run", "--dataset", str(self.shapes),
            "--model", str(self.resnet), "--explainers", *explainers, "--metrics", *METRICS, "--batch-size", "4",
            "--device", "cpu", "--json", "--out", str(self.out), "--limit", str(limit), "--keep-maps",
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
        assert rank != 1 or re.search("saliency-bench: .*(torchrun|run the same command again)", shown), shown
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
        """Raise an error in the third call of this stage, and check that earlier results are stored."""
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
        assert self.parts({"work": "scores", "predict": "predictions"}[name])


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
    assert len(world.parts("scores")) == 5 * len(EXPLAINERS)


def lost_parts(world):
    files_of_their_own(world)
    for kind in ("scores", "predictions", "thumbnails"):
        world.parts(kind)[1].unlink()
    next(world.out.glob("maps/*/*.parquet")).unlink()


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
    assert len(calls) == 6  # nothing is written after the failure


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


FAST = [limit_first_and_more_later, lost_parts, interrupted_at_work]
LATER = [
    other_batch_size, disk_full, only_widened, nothing, cells_added, batches_in_reverse, files_of_their_own,
    interrupted_predicting, interrupted_merging, killed_before_it_wrote_anything, damaged_while_it_ran,
    two_processes, one_killed,
]  # fmt: skip
NIGHTLY = [one_process_then_two, two_processes_then_one, two_killed, main_process_killed, other_process_killed]
DISTURBANCES = [
    *FAST,
    *(pytest.param(disturb, marks=pytest.mark.slow) for disturb in LATER),
    *(pytest.param(disturb, marks=pytest.mark.thorough) for disturb in NIGHTLY),
]
FILES = [
    "run.json", "summary.json", "timings.json", "written.json", "examples.npz", "report.html", *RESULTS,
    "scores/*.parquet", "maps/*/*.parquet", "predictions/*.parquet", "thumbnails/*.parquet",
]  # fmt: skip
DAMAGE = {"missing": None, "empty": b"", "zeros": b"\0" * 4096, "half": b'{"format": 5, "spec": {"data', "list": b"[]"}
NO_MANIFEST = {"number": b"4", "null": b"null", "only a format": b'{"format": 5}'}
DAMAGED = [("run.json", content) for content in NO_MANIFEST.values()]
DAMAGED = [(name, content) for name in FILES for content in DAMAGE.values()] + DAMAGED


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


@pytest.fixture
def finished(world, undisturbed):
    """Return a world with a copy of the undisturbed run."""
    shutil.copytree(undisturbed, world.out)
    return world


def maps_of(folder):
    """Return {explainer: {image id: bytes of the map}}."""
    maps = sb.load_maps(folder)
    return {name: {one: values.tobytes() for one, values in of_images.items()} for name, of_images in maps.items()}


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
    assert maps_of(folder).items() >= maps_of(undisturbed).items()


@pytest.mark.parametrize("disturb", DISTURBANCES)
def test_disturbed_run_matches_undisturbed_run(disturb, world, undisturbed):
    disturb(world)
    world.go()
    check_equal(world.out, undisturbed)


@pytest.mark.sample(6, 12)
@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_damaged_files_are_rebuilt(name, content, finished, undisturbed, capsys):
    """Check also that nothing is explained again unless scores or maps were damaged."""
    damage(path := next(finished.out.glob(name)), content)
    if not name.startswith(("scores", "maps")):
        finished.patch.setattr(running, "work", pytest.fail)
    finished.go()
    if name == "run.json":
        line = (
            f"{path} {'is missing' if content is None else 'cannot be read'} and is rebuilt from the current settings"
        )
        assert line in capsys.readouterr().err
    check_equal(finished.out, undisturbed)
    sb.report(finished.out)


def damage(path, content):
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.slow
def test_rebuilt_run_json_ignores_parts_of_other_settings(finished, tmp_path):
    damage(finished.out / "run.json", b"")
    changes = {"batch_size": 3, "seed": 5}
    other, fresh = finished.go(**changes), replace(finished, out=tmp_path / "fresh").go(**changes)
    for name in RESULTS:
        assert (other.folder / name).read_bytes() == (fresh.folder / name).read_bytes()
    assert [cell.cell_id for cell in other.cells] == [cell.cell_id for cell in fresh.cells]


def test_rebuilt_run_hides_cells_until_requested_again(finished, undisturbed):
    damage(finished.out / "run.json", b"")
    assert {cell.explainer for cell in finished.go(explainers=["random"]).cells} == {"random"}
    finished.patch.setattr(running, "work", pytest.fail)
    finished.go()
    check_equal(finished.out, undisturbed)


@pytest.mark.slow
def test_cells_missing_from_table_are_named_in_one_line(world, capsys):
    def unnamed():
        return [line for line in capsys.readouterr().err.splitlines() if "not shown in this table" in line]

    both = {"explainers": ["gradcam", "random"], "metrics": ["saliency_miou", "saliency_iosr"]}
    alone = {"explainers": ["random"], "metrics": ["saliency_miou"]}
    world.go(**both)
    assert not unnamed()
    damage(world.out / "run.json", b"")
    world.go(**alone)
    (line,) = unnamed()
    assert "gradcam by saliency_iosr, gradcam by saliency_miou, random by saliency_iosr; add their explainers" in line
    (world.out / "summary.json").unlink()
    world.go(**alone)
    (line,) = unnamed()
    assert line.count("cell ") == 3  # whose names are no longer stored in any file
    world.go(**both)
    assert not unnamed()


@pytest.mark.parametrize("kind", ["empty", "half"])
def test_torn_run_json_without_parts_is_rejected(kind, finished):
    damage(finished.out / "run.json", DAMAGE[kind])
    for name in ("scores", "predictions"):
        shutil.rmtree(finished.out / name)
    refused(r"run\.json cannot be read", finished.go)


def test_run_json_of_other_format_is_rejected(finished):
    content = read_json(finished.out / "run.json")
    before = {path: path.read_bytes() for path in finished.out.rglob("*.parquet")}
    assert content.pop("format") == 5
    for words, other in {
        r"run\.json has no format.*5.*--out": content,
        r"run\.json has format 3.*5.*--out": content | {"format": 3},  # with another order of samples
        "format 1": {"format": 1},
        "cells": content | {"format": 5, "cells": 3},
    }.items():  # fmt: skip
        write_json(finished.out / "run.json", other)
        refused(words, finished.go)
    assert {path: path.read_bytes() for path in finished.out.rglob("*.parquet")} == before


def state(out):
    files = [*out.rglob("*.parquet"), *out.glob("[!rw]*.json"), out / "examples.npz", out / "report.html"]
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_restart_writes_nothing_unless_code_changed(finished, tmp_path):
    first, before = finished.go().summary, state(finished.out)
    with finished.patch.context() as patch:
        for owner, name in ((running, "work"), (Part, "read"), (finish, "summarise")):
            patch.setattr(owner, name, lambda *_: pytest.fail("a part was read, or results were made again"))
        assert finished.go().summary == first
    assert state(finished.out) == before
    (tmp_path / "saliency_bench" / "read").mkdir(parents=True)
    finished.patch.setattr(finish, "PACKAGE", tmp_path / "saliency_bench")
    finished.patch.setattr(finish, "_core_code", finish._core_code.__wrapped__)  # as in a new process
    for name in ("a.py", "read/b.py", "read/page.css"):
        (tmp_path / "saliency_bench" / name).write_text("changed")
        finished.go()
        after = state(finished.out)
        assert after["report.html"][0] > before["report.html"][0]
        before = after


def test_records_do_not_depend_on_explainer_or_metric_order(world, undisturbed):
    world.go(explainers=EXPLAINERS[::-1], metrics=METRICS[::-1])
    check_equal(world.out, undisturbed)


@pytest.mark.slow
def test_only_incomplete_batches_are_distributed(world):
    world.go(limit=8)
    world.go(limit=16, explainers=["gradcam"])
    shares = []

    def stop(store, data, model, cells, todo, accelerator):
        shares.append([batch.start for batch, _ in todo])
        raise KeyboardInterrupt

    world.patch.setattr(running, "_compute_batches", stop)
    with pytest.raises(KeyboardInterrupt):
        world.go()
    assert shares == [[8, 12, 16]]


@pytest.mark.thorough
def test_error_of_main_process_is_printed_once(world):
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


@pytest.mark.thorough
@pytest.mark.parametrize("rank", [0, 1])
def test_unresponsive_process_ends_run_and_is_named(rank, world, tmp_path):
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


# Trainings and builds after a power failure


@pytest.mark.parametrize("kind", ["empty", "zeros", "half"])
def test_damaged_training_state_restarts_training(kind, shapes, tmp_path, capsys):
    state = tmp_path / "tiny.training.pt"
    damage(state, DAMAGE[kind])
    out = sb.train(dataset=str(shapes), model=small_resnet(), out=tmp_path / "tiny", epochs=1, size=32, limit=8,
                   device="cpu", progress=False)  # fmt: skip
    assert f"{state} cannot be read; training starts from the beginning" in capsys.readouterr().err
    assert (out / "model.safetensors").exists()
    assert not state.exists()


@pytest.mark.slow
def test_torn_batch_of_a_build_is_recreated(tmp_path, monkeypatch, capsys):
    settings = {"size": 32, "count": 80, "progress": False}
    whole = sb.build("shapes-xai", tmp_path / "whole", **settings)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("saliency_bench.data.building.move_into_place", stop)
        with pytest.raises(KeyboardInterrupt):
            sb.build("shapes-xai", tmp_path / "torn", **settings)
    first, second, *_ = sorted((tmp_path / ".torn.building" / "batches").iterdir())
    damage(first, b"")
    damage(second, second.read_bytes()[:-30])
    torn = sb.build("shapes-xai", tmp_path / "torn", **settings)
    assert capsys.readouterr().err.count("cannot be read, so it is recreated") == 2
    files = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
    assert [(torn / file).read_bytes() for file in files] == [(whole / file).read_bytes() for file in files]


# Signals, and a terminal that supports only ASCII

LONG = ["gradcam", "rise:masks=500"]


def started(world, words):
    return subprocess.Popen([sys.executable, *words], env=world.environment, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heeding)  # fmt: skip


def heeding():
    """Enable signals that tests in the background or under nohup would ignore."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def heeded():
    """Make Ctrl-C raise KeyboardInterrupt, even in tests that run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.sample(0, 2)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_signal_stops_run_and_prints_resume_command(name, world):
    number = getattr(signal, name)
    line = world.command(1, LONG)
    process, command = started(world, line[1:]), line[2:]
    world.wait_for_scores(process, 2)
    os.kill(process.pid, number)
    start = time.monotonic()
    _, shown = process.communicate(timeout=60)
    assert time.monotonic() - start < 10
    assert process.returncode == 128 + number
    by = "" if name == "SIGINT" else f" by {name}"
    line = f"saliency-bench: stopped{by}; complete batches are kept; resume with: saliency-bench {shlex.join(command)}"
    assert shown.strip().splitlines()[-1] == line
    assert shown.count("saliency-bench:") == 1
    assert "Traceback" not in shown
    half = [path for path in world.out.rglob("*") if path.suffix == ".tmp" or path.name.endswith(".part")]
    assert half == []
    kept = {path: path.stat().st_mtime_ns for path in world.parts("scores")}
    if name == "SIGTERM":
        assert main(command) == 0
        assert all(path.stat().st_mtime_ns == before for path, before in kept.items() if path.exists())


@pytest.mark.thorough
def test_ignored_signal_does_not_stop_run(world):
    code = (
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); from saliency_bench.compute import writing; "
        "from saliency_bench.cli import main; writing.SECONDS = 0; "
    )
    process = started(world, ["-c", f"{code}sys.exit(main())", *world.command(1, LONG)[2:]])
    world.wait_for_scores(process, 1)
    os.kill(process.pid, signal.SIGHUP)
    world.wait_for_scores(process, len(world.parts("scores")) + 1)
    assert process.poll() is None
    process.kill()
    assert "stopped" not in process.communicate()[1]


@pytest.mark.slow
def test_third_signal_kills_unresponsive_command(world):
    code = (
        "import sys, time; from saliency_bench import cli, registry\n"
        "def wait(args):\n"
        "    try:\n        print('ready', file=sys.stderr, flush=True)\n        time.sleep(1000)\n"
        "    finally:\n        time.sleep(1000)\n"
        "registry.load('push_scripts', 'list').main = wait\nsys.exit(cli.main())"
    )
    process = started(world, ["-c", code, "list"])
    assert process.stderr.readline().strip() == "ready"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)  # send the signal again, as a launcher does
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 143
    line = "stopped by SIGTERM; no incomplete file remains; start again with: saliency-bench list"
    assert shown == f"saliency-bench: {line}\n"


def test_library_call_keeps_signal_handlers(world, heeded):
    def handlers():
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    before, seen = handlers(), []

    def stops(classifier, images, target):
        seen.append(handlers())
        signal.raise_signal(signal.SIGINT)
        return images.mean(dim=1)

    with pytest.raises(KeyboardInterrupt):
        world.go(explainers=[stops], limit=4)
    assert seen == [before]


@pytest.fixture
def interrupted(kind, where, resnet):
    """Return a model and an explainer. A signal arrives while one of them runs; its handler raises an error."""

    def tell(number, frame):
        raise kind("the launcher ends")

    def stop(here):
        if here == where:
            signal.raise_signal(signal.SIGTERM)

    def explainer(classifier, images, target):
        stop("explainer")
        return images.mean(dim=1)

    model = sb.load_classifier(str(resnet), device="cpu")
    model.model.register_forward_pre_hook(lambda *given: stop("model"))
    before = signal.signal(signal.SIGTERM, tell)
    try:
        yield model, explainer
        assert signal.getsignal(signal.SIGTERM) is tell
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("where", ["explainer", "model"])
@pytest.mark.parametrize("kind", [TimeoutError, SystemExit])
def test_signal_handler_error_stops_run_without_any_scores(kind, interrupted, world):
    """Handlers in launched processes raise an Exception. A run must not record it as an error of a sample."""
    model, explainer = interrupted
    with pytest.raises(kind, match="the launcher ends"):
        world.go(model=model, explainers=[explainer], limit=4)
    assert world.parts("scores") == []


@pytest.mark.parametrize("where", ["explainer", "model"])
@pytest.mark.parametrize("kind", [TimeoutError, ValueError, KeyError, SystemExit])
def test_explain_propagates_errors_of_signal_handlers(kind, interrupted):
    model, explainer = interrupted
    with pytest.raises(kind, match="the launcher ends"):
        sb.explain(Image.new("RGB", (32, 32)), model, explainer)


# Text with a locale that supports only ASCII.


@pytest.mark.thorough
@pytest.mark.parametrize("output", [{}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}])
def test_texts_are_printed_in_any_locale(output, world, tmp_path):
    plain = {key: value for key, value in world.environment.items() if key not in ("LANG", "PYTHONIOENCODING")}
    plain |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} | output
    first = [word for word in world.command(1, ["random", "centre"], limit=4)[2:] if word != "--json"]
    last = ["run", "--dataset", "nö", "--model", "m", "--out", "x"]
    lines = [first, ["list"], ["list", "--json"], ["build", "--help"], last]
    for number, line in enumerate(lines):
        done = subprocess.run([sys.executable, "-m", "saliency_bench", *line], cwd=tmp_path, env=plain,
                              capture_output=True)  # fmt: skip
        assert b"Unicode" not in done.stderr, (line, done.stderr)
        assert done.returncode == (2 if number == 4 else 0), (line, done.stderr)
        if number == 0:
            arrow = "\N{UPWARDS ARROW}"
            assert (arrow if not output else ascii(arrow)[1:-1]).encode() in done.stdout
    page = (world.out / "report.html").read_bytes().decode("utf-8")
    assert "\N{UPWARDS ARROW}" in page


@pytest.mark.thorough
def test_files_are_opened_with_explicit_encoding(world, tmp_path):
    """Python warns about a missing encoding. A library may cause this warning, but files of the package may not."""
    line = world.command(1, ["random"], limit=4)[2:]
    start = [sys.executable, "-X", "warn_default_encoding", "-W", "default::EncodingWarning", "-m", "saliency_bench"]
    done = subprocess.run([*start, *line], cwd=tmp_path, env=world.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    root = str(Path(sb.__file__).parents[1])
    ours = [line for line in done.stderr.splitlines() if "EncodingWarning" in line and root in line]
    assert [line for line in ours if "site-packages" not in line] == []  # a virtual environment may be here
