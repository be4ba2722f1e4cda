"""Tests of the example job of the docs: it copies its results even if it is stopped without warning."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "suites.md"
STUB = """#!/bin/bash
name=$(basename $0)
mkdir -p suites/runs/one
echo $name >> suites/runs/one/part
[ $name = {longest} ] && exec sleep 60
"""


@pytest.fixture
def job(tmp_path):
    """Return a function that starts the job's script with stub commands; the command `longest` takes a minute."""
    script = re.search(r"hf jobs run .*?bash -c '(.*?)'\n```", PAGE.read_text(), re.DOTALL)[1]
    for place in ("source", "kept", "tmp", "bin"):
        (tmp_path / place).mkdir()
    script = re.sub(r"(?<![\w.])/(?=(source|kept|tmp)\b)", f"{tmp_path}/", script)
    assert "sleep 600" in script
    started = []

    def start(longest):
        for name in ("pip", "saliency-bench", "torchrun"):
            stub = tmp_path / "bin" / name
            stub.write_text("#!/bin/bash\n" if name == "pip" else STUB.format(longest=longest))
            stub.chmod(0o755)
        path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        words = ["bash", "-c", script.replace("sleep 600", "sleep 0.05")]
        started.append(subprocess.Popen(words, env=os.environ | path, start_new_session=True, cwd=tmp_path))
        return started[-1], tmp_path / "kept" / "suites" / "runs" / "one" / "part"

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("longest", ["saliency-bench", "torchrun"])
def test_results_are_copied_while_the_job_runs(job, longest):
    process, kept = job(longest)
    wanted = ["saliency-bench", "torchrun"][: 1 + (longest == "torchrun")]
    end = time.monotonic() + 60
    while not kept.exists() or kept.read_text().split() != wanted:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert process.poll() is None  # the copy was made before the end of the job


@pytest.mark.slow
def test_results_are_copied_at_the_end(job):
    process, kept = job("nothing")
    assert process.wait(20) is not None
    assert kept.read_text().split() == ["saliency-bench", "torchrun"]
