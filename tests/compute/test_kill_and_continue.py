"""What is killed by SIGKILL at any moment and started again ends with the bytes of what was left alone.

A few of each, with the seeds of benchmarks/kills.py; that script does hundreds.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # child processes import from there as well

from children import Children
from kill_loops.builds import builds
from kill_loops.choices import choices
from kill_loops.clocks import OtherTimes
from kill_loops.full_disks import disks
from kill_loops.launches import nodes
from kill_loops.pushes import pushes
from kill_loops.runs import PARTNERS, RETRAINING, runs
from kill_loops.studies import in_postgres, in_sqlite
from kill_loops.suites import suites
from kill_loops.trainings import trainings
from postgres import programs


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
@pytest.mark.parametrize(("what", "changes"), [("partners", PARTNERS), ("retraining", RETRAINING)])
def test_runs_that_look_at_other_samples_or_train_are_killed(what, changes, children, shapes, resnet, tmp_path):
    done = runs(2, shapes, resnet, tmp_path, children, what, changes)
    assert done.differing == []
    assert done.kills.total() >= 1


@pytest.mark.thorough
def test_one_of_two_nodes_is_killed(children, shapes, resnet, tmp_path):
    done = nodes(1, shapes, resnet, tmp_path, children)
    assert done.differing == []
    assert done.kills.total() >= 1


@pytest.mark.thorough
def test_suites_killed_at_any_moment_end_with_the_same_tables(children, tmp_path):
    done = suites(1, tmp_path, children)
    assert done.differing == []
    assert done.kills.total() >= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Children, OtherTimes])
def test_answers_that_a_store_has_confirmed_outlive_any_kill_and_clock(kind, tmp_path):
    done = in_sqlite(2, tmp_path, kind(tmp_path / "caches"))
    assert done.differing == []
    assert done.kills.total() >= 3


@pytest.mark.thorough
def test_answers_outlive_a_crash_of_the_database(children, tmp_path):
    if programs() is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    done = in_postgres(2, tmp_path, children)
    assert done.differing == []
    assert done.kills["of the database"] >= 1


@pytest.mark.thorough
def test_a_run_at_other_times_has_the_same_bytes(shapes, resnet, tmp_path):
    done = runs(1, shapes, resnet, tmp_path, OtherTimes(tmp_path / "caches"))
    assert done.differing == []


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts small file systems")
def test_full_disks_are_said_and_lose_nothing(children, shapes, resnet, tmp_path):
    done = disks(1, shapes, resnet, tmp_path, children)
    assert done.differing == []
    assert done.kills.total() >= 3
