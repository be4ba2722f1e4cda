"""What is killed by SIGKILL at any moment and started again ends with the bytes of what was left alone.

A few of each, with the seeds of benchmarks/kills.py; that script does hundreds.
"""

import sys
from pathlib import Path

import pytest

import saliency_bench as sb

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # child processes import from there as well

from children import Children
from kill_loops.builds import builds
from kill_loops.choices import choices
from kill_loops.launches import launches
from kill_loops.pushes import pushes
from kill_loops.runs import runs
from kill_loops.trainings import trainings


@pytest.fixture
def children(tmp_path):
    return Children(tmp_path / "caches")


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "places"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.thorough)])
def test_runs_killed_at_any_moment_end_with_the_bytes_of_an_undisturbed_one(
    rounds, places, children, shapes, resnet, tmp_path
):
    """At the start, while merging, while compacting, between chunks; widened between two kills."""
    done = runs(rounds, shapes, resnet, tmp_path, children)
    assert done.differing == []
    assert done.kills.total() >= rounds - 1
    assert len(done.kills) >= places


@pytest.mark.slow
def test_trainings_killed_at_any_moment_end_with_the_same_weights(children, shapes, tmp_path):
    done = trainings(2, shapes, tmp_path, children)
    assert done.differing == []
    assert done.kills.total() >= 1


@pytest.mark.slow
def test_builds_killed_at_any_moment_end_with_the_same_folder(children, tmp_path):
    """Of a source, drawn, and in the place of an older dataset."""
    done = builds(4, tmp_path, children)
    assert done.differing == []
    assert done.kills.total() >= 1


@pytest.mark.slow
def test_uploads_killed_at_any_moment_are_seen_whole_or_not_at_all(children, shapes, tmp_path):
    done = pushes(3, shapes, tmp_path, children)
    assert done.differing == []
    assert done.kills.total() >= 1


@pytest.mark.slow
def test_choices_killed_at_any_moment_end_with_the_same_answer(children, shapes, resnet, tmp_path):
    done = choices(1, shapes, resnet, tmp_path, children)
    assert done.differing == []
    assert done.kills.total() >= 1


@pytest.mark.thorough
def test_two_processes_of_which_one_is_killed_end_with_the_bytes_of_one(children, shapes, resnet, tmp_path):
    done = launches(2, shapes, resnet, tmp_path, children)
    assert done.differing == []
    assert done.kills.total() >= 1


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
