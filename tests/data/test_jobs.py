"""Tests of builds: memory is constant, and the bytes do not depend on the number of threads or on kills."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from built_samples import content
from loky import process_executor
from refusals import refused

import saliency_bench as sb
from saliency_bench.data import building
from saliency_bench.data.jobs import Job, JobBatches
from saliency_bench.hub_builders import _examples, shapes_xai

BUILD = """
import sys
import saliency_bench as sb
from saliency_bench.data import building
building.MANY = 1  # builds of a source use processes
name, out, source = sys.argv[1:]
options = {"source": source} if source else {"size": 32, "count": 640}
sb.build(name, out, progress=False, workers=2, **options)
"""


def killed_after(count, tmp_path, name, source=""):
    """Kill a build after this number of batches, and return its finished batches."""
    batches, line = (
        tmp_path / ".out.building" / "batches",
        [sys.executable, "-c", BUILD, name, tmp_path / "out", source],
    )
    process = subprocess.Popen(line, env=os.environ | {"OMP_NUM_THREADS": "1"})
    while len(list(batches.glob("*.parquet"))) < count and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(bool(source))  # processes may still write the files they are working on
    return list(batches.glob("[!.]*.parquet"))


def test_job_messages_keep_their_order(monkeypatch, tmp_path):
    def one(log, n):
        time.sleep(0.002 * (n % 3))
        if n % 5 == 0:
            return log.leave_out(f"i{n}", "image", "for the test")
        log.remark(f"i{n}", "kept")
        image = np.full((8, 8, 3), n, np.uint8)
        return [{"image_id": f"i{n}-{m}", "label": "disc", "image": image} for m in range(n % 4)]

    def samples(source, log):
        for n in range(100):
            log.remark(f"i{n}", "listed")
            yield Job(one, n)

    monkeypatch.setattr(shapes_xai, "samples", samples)
    folders = [sb.build("shapes-xai", tmp_path / str(n), progress=False, workers=n) for n in (1, 3)]
    reports = [json.loads((folder / "build_report.json").read_text()) for folder in folders]
    assert reports[0] == reports[1]
    assert [entry["id"] for entry in reports[0]["left_out"]] == [f"i{n}" for n in range(0, 100, 5)]
    assert [entry["text"] for entry in reports[0]["remarks"]] == ["listed"] * 100 + ["kept"] * 80


@pytest.mark.slow
def test_killed_build_resumes_to_identical_bytes(tmp_path):
    kept, out = killed_after(4, tmp_path, "shapes-xai"), tmp_path / "out"
    assert 4 <= len(kept) < 20
    drawn, real = [], shapes_xai.drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes_xai, "drawn", lambda index, *rest: drawn.append(index) or real(index, *rest))
        sb.build("shapes-xai", out, progress=False, size=32, count=640)
    assert len(drawn) == 640 - 32 * len(kept)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert content(sb.build("shapes-xai", tmp_path / "again", progress=False, size=32, count=640)) == content(out)


def test_changed_file_changes_the_job_key(tmp_path):
    def make(log, path):
        pass

    (tmp_path / "a.jpg").write_text("a")
    before = Job(make, tmp_path / "a.jpg").key()
    assert before == Job(make, tmp_path / "a.jpg").key()
    (tmp_path / "a.jpg").write_text("ab")
    assert before != Job(make, tmp_path / "a.jpg").key()
    before = Job(make, tmp_path).key()
    (tmp_path / "a.jpg").write_text("abc")
    assert before != Job(make, tmp_path).key()


def test_batches_are_rebuilt_for_other_classes(tmp_path):
    def folder(*names):
        schema = datasets.Features({"label": datasets.ClassLabel(names=names)}).arrow_schema
        rows = JobBatches(tmp_path, lambda sample: {"label": sample["label"]}, schema, 1)
        assert [table.num_rows for table, _ in rows.tables([{"image_id": "a", "label": 0}])] == [1]
        return len(list(tmp_path.iterdir()))

    assert [folder("cat", "dog"), folder("cat", "dog"), folder("cat", "cow")] == [1, 1, 2]


def test_failed_build_stops_and_leaves_no_files(monkeypatch, tmp_path):
    done = []

    def one(log, n):
        done.append(n)
        if n == 40:
            raise RuntimeError("in job 40")
        return {"image_id": str(n), "label": "disc", "image": np.zeros((4, 4, 3), np.uint8)}

    def breaks(source, log):
        yield from (one(log, n) for n in range(250) if n != 40)
        raise RuntimeError("midway")

    for samples, words in ((breaks, "midway"), (lambda source, log: (Job(one, n) for n in range(5000)), "in job 40")):
        done.clear()
        monkeypatch.setattr(shapes_xai, "samples", samples)
        with pytest.raises(RuntimeError, match=words):
            sb.build("shapes-xai", tmp_path / "new" / "out", progress=False, workers=2)
        assert list(tmp_path.iterdir()) == []
        assert len(done) < 500


@pytest.fixture
def process_pools(monkeypatch):
    """Use processes for sources of any size, and return the list of the created pools."""
    pools, real = [], process_executor.ProcessPoolExecutor
    monkeypatch.setattr(building, "MANY", 1)
    counted = lambda *a, **k: pools.append(real(*a, **k)) or pools[-1]  # noqa: E731
    monkeypatch.setattr(process_executor, "ProcessPoolExecutor", counted)
    return pools


@pytest.mark.slow
def test_processes_and_single_thread_give_identical_bytes(process_pools, tmp_path, capfd):
    source = _examples.write("disease-xai", tmp_path / "source", 32)
    options = {"source": source, "progress": False, "crop_mm": 25.0}
    alone = sb.build("disease-xai", tmp_path / "1", workers=1, **options)
    assert process_pools == []
    assert content(sb.build("disease-xai", tmp_path / "2", workers=2, **options)) == content(alone)
    assert len(process_pools) == 1
    assert capfd.readouterr().err == ""


AWAY = """
import os

def sample(log, what):
    if what == "kill":
        os.kill(os.getpid(), 9)
    if what == "odd":
        raise ValueError("in this job")
    return {"image_id": what}

def row(sample):
    return sample
"""


@pytest.mark.thorough
def test_killed_build_with_processes_resumes(process_pools, tmp_path):
    source = _examples.write("disease-xai", tmp_path / "source", 96)
    assert 2 <= len(killed_after(2, tmp_path, "disease-xai", source)) < 6
    options = {"source": source, "progress": False, "workers": 2}
    out = sb.build("disease-xai", tmp_path / "out", **options)
    assert len(process_pools) == 1
    assert content(sb.build("disease-xai", tmp_path / "again", **options)) == content(out)


@pytest.mark.slow
def test_worker_process_errors_and_kills_are_reported(tmp_path, monkeypatch):
    (tmp_path / "away_from_here.py").write_text(AWAY)
    monkeypatch.syspath_prepend(tmp_path)
    away = importlib.import_module("away_from_here")
    schema, finished = pa.schema({"image_id": pa.string()}), []

    def ids(*words):
        batches = JobBatches(tmp_path, away.row, schema, 2, finished.append, in_processes=True, size=2)
        return [row["image_id"] for table, _ in batches.tables(Job(away.sample, word) for word in words)
                for row in table.to_pylist()]  # fmt: skip

    assert ids("one", "two", "three") == ["one", "two", "three"]
    assert sum(finished) == 3
    with pytest.raises(ValueError, match="in this job"):
        ids("four", "odd")
    refused(r"terminated from outside.*--workers 1", ids, "five", "kill")


@pytest.mark.slow
def test_worker_process_ends_with_its_parent(tmp_path):
    (tmp_path / "away_from_here.py").write_text("def row(sample):\n    import os\n    return {'image_id': os.getpid()}")
    script = f"""
import sys, time
from pathlib import Path
import pyarrow as pa
sys.path.insert(0, {str(tmp_path)!r})
from away_from_here import row
from saliency_bench.data.jobs import JobBatches
batches = JobBatches(Path({str(tmp_path)!r}), row, pa.schema({{"image_id": pa.int64()}}), 1, in_processes=True)
table, _ = next(batches.tables([{{"image_id": 0}}] * 100))
print(table["image_id"][0], flush=True)
time.sleep(60)"""
    line = [sys.executable, "-c", script]
    parent = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    child = int(parent.stdout.readline())
    assert child != parent.pid
    parent.kill()
    parent.communicate()
    for _ in range(600):
        if not alive(child):
            break
        time.sleep(0.05)
    assert not alive(child)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_build_keeps_warning_filters_of_the_caller(tmp_path, monkeypatch):
    def one(log):
        warnings.simplefilter("ignore", ResourceWarning)  # as image decoders do
        return {"image_id": "a", "label": "disc", "image": np.zeros((4, 4, 3), np.uint8)}

    monkeypatch.setattr(shapes_xai, "samples", lambda source, log: iter([Job(one)]))
    before = list(warnings.filters)
    sb.build("shapes-xai", tmp_path / "out", progress=False, workers=4)
    assert list(warnings.filters) == before
    refused("workers=0", sb.build, "shapes-xai", tmp_path / "none", progress=False, workers=0)


MANY = """
import pathlib, re, sys
import numpy as np
import saliency_bench as sb
from saliency_bench.hub_builders import shapes_xai
from saliency_bench.data.jobs import Job

def one(log, n):
    mask = np.zeros((64, 64), bool)
    mask[n % 50 : n % 50 + 10, 5:20] = True
    image = np.random.default_rng(n).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    return {"image_id": f"image-{n:06d}", "label": "disc", "image": image, "mask": mask}

shapes_xai.samples = lambda source, log: (Job(one, n) for n in range(int(sys.argv[2])))
sb.build("shapes-xai", sys.argv[1], progress=False, workers=2)
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) / 1024)
"""


@pytest.mark.thorough
def test_peak_memory_does_not_grow_with_image_count(tmp_path):
    """Test that 10,000 images of 12 kB, which are 120 MB, need no more memory than 1,000."""

    def peak(count, turn=0):
        command = [sys.executable, "-c", MANY, tmp_path / f"{count} {turn}", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    small, large = max(peak(1_000, turn) for turn in range(3)), peak(10_000)  # the same build varies by 10 MiB
    print(f"peak memory: {small:.0f} MiB for 1,000 images, {large:.0f} MiB for 10,000: {large / small - 1:+.1%}")
    assert large <= 1.1 * small
