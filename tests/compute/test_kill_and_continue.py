"""Test that commands killed at any moment and restarted write the same bytes as undisturbed commands.

This file tests a few kills of each type with the seeds of benchmarks/kills.py, which runs hundreds.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # child processes also import from this folder

from children import Children
from kill_loops.builds import builds
from kill_loops.choices import choices
from kill_loops.clocks import OtherTimes
from kill_loops.full_disks import disks
from kill_loops.launches import launches, nodes
from kill_loops.pushes import pushes
from kill_loops.runs import OTHER, PARTNERS, RETRAINING, runs
from kill_loops.studies import in_postgres, in_sqlite
from kill_loops.suites import suites
from kill_loops.trainings import trainings
from postgres import programs


@pytest.fixture
def children(tmp_path):
    return Children(tmp_path / "caches")


def whole(done, kills=1):
    """Check that nothing differs after at least this many kills."""
    assert done.differing == []
    assert done.kills.total() >= kills


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "places"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.thorough)])
def test_killed_runs_match_an_undisturbed_run(rounds, places, children, shapes, resnet, tmp_path):
    """Kill at the start, while merging, while compacting and between batches; widen the run between two kills."""
    done = runs(rounds, shapes, resnet, tmp_path, children)
    whole(done, rounds - 1)
    assert len(done.kills) >= places


def case(name, mark, make):
    return pytest.param(make, marks=mark, id=name)


SLOW, THOROUGH = pytest.mark.slow, pytest.mark.thorough


@pytest.mark.parametrize("make", [
    case("trainings end with the same weights", SLOW, lambda shapes, resnet, *places: trainings(2, shapes, *places)),
    # built from a source, drawn, and replacing an older dataset
    case("builds end with the same folder", SLOW, lambda shapes, resnet, *places: builds(4, *places)),
    case("uploads are seen whole or not at all", SLOW, lambda shapes, resnet, *places: pushes(3, shapes, *places)),
    case("choices end with the same answer", THOROUGH, lambda *places: choices(1, *places)),
    case("runs of other samples", THOROUGH, lambda *places: runs(2, *places, "partners", PARTNERS)),
    case("runs that train", THOROUGH, lambda *places: runs(2, *places, "retraining", RETRAINING)),
    case("two processes with other samples", THOROUGH,
         lambda *places: launches(1, *places, "two processes with partners", PARTNERS)),
    case("two processes that train", THOROUGH,
         lambda *places: launches(1, *places, "two processes that train", RETRAINING)),
    case("two processes with two classifiers", THOROUGH,
         lambda shapes, resnet, *places: launches(1, shapes, resnet, *places, "two processes with two classifiers",
                                                  OTHER | {"other_model": str(resnet)})),
    case("one of two nodes", THOROUGH, lambda *places: nodes(1, *places)),
    case("suites end with the same tables", THOROUGH, lambda shapes, resnet, *places: suites(1, *places)),
])  # fmt: skip
def test_killed_commands_match_undisturbed_commands(make, children, shapes, resnet, tmp_path):
    whole(make(shapes, resnet, tmp_path, children))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Children, OtherTimes])
def test_confirmed_answers_survive_kills_and_clock_changes(kind, tmp_path):
    whole(in_sqlite(2, tmp_path, kind(tmp_path / "caches")), 3)


@pytest.mark.thorough
def test_answers_survive_a_database_crash(children, tmp_path):
    if programs() is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    done = in_postgres(2, tmp_path, children)
    assert done.differing == []
    assert done.kills["of the database"] >= 1


@pytest.mark.thorough
def test_run_bytes_do_not_depend_on_the_clock(shapes, resnet, tmp_path):
    whole(runs(1, shapes, resnet, tmp_path, OtherTimes(tmp_path / "caches")), 0)


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts small file systems")
def test_full_disks_are_reported_and_lose_nothing(children, shapes, resnet, tmp_path):
    whole(disks(1, shapes, resnet, tmp_path, children), 3)
