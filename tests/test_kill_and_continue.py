"""Runs and trainings killed by SIGKILL at any moment and started again end with the bytes of undisturbed ones.

A few, with the seeds of benchmarks/kills.py; that script does hundreds.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import saliency_bench as sb

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "kills.py"


@pytest.fixture(scope="module")
def kills():
    spec = spec_from_file_location("kills", SCRIPT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_runs_killed_at_any_moment_end_with_the_bytes_of_an_undisturbed_one(kills, shapes, resnet, tmp_path):
    """The first is killed while it starts and twice later, the second while it merges, the others between chunks."""
    done = kills.runs(5, shapes, resnet, tmp_path, kills.Children(tmp_path / "caches"))
    assert done.differing == []
    assert done.inside >= 3
    assert done.kills >= 6


@pytest.mark.slow
def test_trainings_killed_at_any_moment_end_with_the_same_weights(kills, shapes, tmp_path):
    done = kills.trainings(2, shapes, tmp_path, kills.Children(tmp_path / "caches"))
    assert done.differing == []
    assert done.inside >= 1


def test_a_run_killed_before_it_wrote_what_it_is_can_be_started_again(shapes, resnet, tmp_path):
    """The folder and its lock are all that is there then."""
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").touch()
    (out / ".run.json.4711.tmp").write_text("{")
    sb.run(
        dataset=str(shapes), model=str(resnet), explainers=["random"], metrics=["saliency_miou"], out=out,
        batch_size=8, limit=8, device="cpu", progress=False,
    )  # fmt: skip
    assert (out / "summary.json").exists()
