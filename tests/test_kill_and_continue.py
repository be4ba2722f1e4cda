"""Runs and trainings killed by SIGKILL at any moment and started again end with the bytes of undisturbed ones.

Children come from a server process that has imported everything already, so that each starts at once.
"""

import multiprocessing
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from transformers import ResNetConfig

from saliency_bench.engine.run import run
from saliency_bench.engine.training import train

pytestmark = pytest.mark.slow

RUNS, TRAININGS = 50, 10
EPOCHS = 6
IMPORTED = [
    "saliency_bench.engine.run",
    "saliency_bench.engine.training",
    "matplotlib.pyplot",
    "pytest",
    "torchvision",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.modeling_auto",
    "transformers.models.resnet.modeling_resnet",
    "transformers.models.vit.image_processing_vit",
]
EXPLAINERS = ["gradcam", "rise:masks=100", "integrated_gradients:steps=4", "random"]
METRICS = ["saliency_miou", "saliency_pointing_game", "saliency_insertion:steps=4"]
RESULTS = ("records.parquet", "predictions.parquet", "summary.json")
MERGED = ("predictions.parquet", "records.parquet", "summary.json", "timings.json", "examples.npz")


@dataclass
class Children:
    """Starts functions in children of their own; `killed_at` kills one at a moment."""

    context: multiprocessing.context.ForkServerContext
    started: list = field(default_factory=list)

    def start(self, function, settings):
        child = self.context.Process(target=function, kwargs=settings)
        child.start()
        self.started.append(child)
        return child

    def to_the_end(self, function, settings):
        child = self.start(function, settings)
        child.join(120)
        assert child.exitcode == 0

    def killed_at(self, moment, delay, function, settings) -> bool:
        """Kill a child `delay` seconds after `moment()` first holds; False if it had ended by then."""
        child = self.start(function, settings)
        while child.is_alive() and not moment():
            time.sleep(0.001)
        time.sleep(delay)
        child.kill()
        child.join()
        return child.exitcode == -9


@pytest.fixture(scope="module")
def children(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(cache / "datasets"),
            "SALIENCY_BENCH_CACHE": str(cache / "saliency-bench"),
        }.items():
            patch.setenv(name, value)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        found = Children(context)
        yield found
    for child in found.started:
        if child.is_alive():
            child.kill()


def go_to(folder, patch):
    """Each run has a working directory of its own, so that all have the same --out, and thereby the same summary."""
    folder.mkdir()
    patch.chdir(folder)


def parts():
    return len(list(Path("run").glob("parts/*/*.parquet")))


def first_moment(number, dice, total):
    """(moment, delay) of a run's first kill: 1 in 10 while it starts, 1 in 10 while it merges, else between parts."""
    if number % 10 == 0:
        return (lambda: True), dice.uniform(0, 0.2)
    if number % 10 == 1:
        last = Path("run") / dice.choice(MERGED)
        return last.exists, dice.uniform(0, 0.005)
    return between_parts(dice, total)


def between_parts(dice, total):
    enough = dice.randrange(min(parts() + 1, total - 1), total)
    return (lambda: parts() >= enough), dice.uniform(0, 0.03)


def test_runs_killed_at_any_moment_end_with_the_bytes_of_an_undisturbed_one(
    children, shapes, resnet, tmp_path, monkeypatch
):
    settings = {
        "dataset": str(shapes), "model": str(resnet), "explainers": EXPLAINERS, "metrics": METRICS, "out": "run",
        "batch_size": 2, "limit": 30, "device": "cpu", "progress": False,
    }  # fmt: skip
    go_to(tmp_path / "undisturbed", monkeypatch)
    children.to_the_end(run, settings)
    expected = {name: Path("run", name).read_bytes() for name in RESULTS}
    total = parts()
    assert total == 15 * len(EXPLAINERS)

    inside, kills = 0, 0
    for number in range(RUNS):
        dice = random.Random(number)
        go_to(tmp_path / str(number), monkeypatch)
        moment, delay = first_moment(number, dice, total)
        killed = children.killed_at(moment, delay, run, settings)
        inside += killed and parts() >= 1 and not Path("run", "report.html").exists()
        kills += killed
        for _ in range((number % 4 == 0) + (number % 8 == 0)):  # some runs have bad luck twice or three times
            kills += children.killed_at(*between_parts(dice, total), run, settings)
        children.to_the_end(run, settings)
        assert {name: Path("run", name).read_bytes() for name in RESULTS} == expected, f"run {number}"
        assert parts() == total, f"run {number}"
        assert not list(Path("run").rglob(".*.tmp")), f"run {number}"
    print(f"{kills} kills; the first of {inside} of {RUNS} runs came after the first part and before the end")
    assert inside >= 35


def test_a_run_killed_before_it_wrote_what_it_is_can_be_started_again(children, shapes, resnet, tmp_path, monkeypatch):
    """The folder and its lock are all that is there then."""
    settings = {
        "dataset": str(shapes), "model": str(resnet), "explainers": ["random"], "metrics": ["saliency_miou"],
        "out": "run", "batch_size": 8, "limit": 8, "device": "cpu", "progress": False,
    }  # fmt: skip
    go_to(tmp_path / "here", monkeypatch)
    Path("run").mkdir()
    Path("run", ".lock").touch()
    Path("run", ".run.json.4711.tmp").write_text("{")
    children.to_the_end(run, settings)
    assert Path("run", "summary.json").exists()


def saves(path):
    """A moment: the file was written anew `times` times since this was made."""

    def after(times):
        seen = set()

        def moment():
            if path.exists():
                seen.add(path.stat().st_mtime_ns)
            return len(seen) >= times

        return moment

    return after


def everything_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_trainings_killed_at_any_moment_end_with_the_same_weights(children, shapes, tmp_path, monkeypatch):
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    settings = {
        "dataset": str(shapes), "model": config, "out": "tiny", "epochs": EPOCHS, "size": 32, "limit": 128,
        "batch_size": 8, "device": "cpu", "progress": False,
    }  # fmt: skip
    state = Path("tiny.training.pt")
    go_to(tmp_path / "undisturbed", monkeypatch)
    children.to_the_end(train, settings)
    expected = everything_in(Path("tiny"))

    inside = 0
    for number in range(TRAININGS):
        dice = random.Random(number)
        go_to(tmp_path / str(number), monkeypatch)
        times = dice.randrange(1, EPOCHS)
        killed = children.killed_at(saves(state)(times), dice.uniform(0, 0.1), train, settings)
        inside += killed and state.exists() and not Path("tiny").exists()
        if number % 3 == 0 and not Path("tiny").exists():  # the second time while it starts, or in a later epoch
            children.killed_at(saves(state)(dice.randrange(1, 3)), dice.uniform(0, 0.1), train, settings)
        if not Path("tiny").exists():
            children.to_the_end(train, settings)
        assert everything_in(Path("tiny")) == expected, f"training {number}"
    print(f"{inside} of {TRAININGS} trainings were killed after the first epoch and before the end")
    assert inside >= 7
    assert os.listdir(tmp_path / "undisturbed") == ["tiny"]
