"""Runs and trainings killed by SIGKILL at any moment and started again: do they end with the bytes of undisturbed ones?

example:
  python benchmarks/kills.py --runs 50 --trainings 10

The number of a run or training seeds when it is killed: while it starts, between two chunks, or while the results are
merged; some are killed two or three times. Prints how many were killed in the middle of their work; exit code 1 if one
ends with other bytes. tests/test_kill_and_continue.py does the first few of each.
"""

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

import saliency_bench as sb

# Children are forked from a server process that has imported these already, so that each starts at once.
IMPORTED = [
    "saliency_bench.engine.run",
    "saliency_bench.engine.training",
    "matplotlib.pyplot",
    "torchvision",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.modeling_auto",
    "transformers.models.resnet.modeling_resnet",
    "transformers.models.vit.image_processing_vit",
]
RUN = {
    "explainers": ["gradcam", "rise:masks=100", "integrated_gradients:steps=4", "random"],
    "metrics": ["saliency_miou", "saliency_pointing_game", "saliency_insertion:steps=4"],
    "out": "run", "batch_size": 2, "limit": 30, "device": "cpu", "progress": False,
}  # fmt: skip
FILES = 15 * len(RUN["explainers"])  # of 15 chunks
EPOCHS = 6
TRAINING = {
    "out": "tiny", "epochs": EPOCHS, "size": 32, "limit": 128, "batch_size": 8, "device": "cpu", "progress": False,
}  # fmt: skip
NETWORK = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}
RESULTS = ("records.parquet", "predictions.parquet", "summary.json")
MERGED = (*RESULTS, "timings.json", "examples.npz")


class Outcome(NamedTuple):
    done: int
    differing: list[str]  # what differs from the undisturbed one, by number
    inside: int  # killed first after something was written and before the end
    kills: int


class Children:
    """Child processes, of which `killed_at` kills one at a given moment."""

    def __init__(self, cache: Path):
        own = {"HF_DATASETS_CACHE": str(cache / "datasets"), "SALIENCY_BENCH_CACHE": str(cache / "saliency-bench")}
        self.environment = own | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(IMPORTED)

    def start(self, function: Callable, settings: dict):
        before = dict(os.environ)
        os.environ.update(self.environment)  # the server keeps the environment of the moment it is started in
        try:
            child = self.context.Process(target=function, kwargs=settings)
            child.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        return child

    def to_the_end(self, function: Callable, settings: dict) -> None:
        child = self.start(function, settings)
        child.join(120)
        child.kill()
        if child.exitcode != 0:
            raise RuntimeError(f"{function.__name__} in {Path.cwd()} ended with exit code {child.exitcode}")

    def killed_at(self, moment: Callable[[], bool], delay: float, function: Callable, settings: dict) -> bool:
        """Kill a child `delay` seconds after `moment()` first holds; False if it had ended by then."""
        child = self.start(function, settings)
        while child.is_alive() and not moment():
            time.sleep(0.001)
        time.sleep(delay)
        child.kill()
        child.join()
        return child.exitcode == -9


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Each run has a working directory of its own, so that all have the same --out, and thereby the same summary."""
    folder.mkdir()
    with chdir(folder):
        yield


def written() -> int:
    """Files of chunks: one per chunk and explainer."""
    return len(list(Path("run").glob("chunks/*/*.parquet")))


def first_moment(number: int, dice: random.Random) -> tuple[Callable[[], bool], float]:
    """(moment, delay) of a run's first kill: 1 in 10 while it starts, 1 in 10 while it merges, else between chunks."""
    if number % 10 == 0:
        return (lambda: True), dice.uniform(0, 0.2)
    if number % 10 == 1:
        return Path("run", dice.choice(MERGED)).exists, dice.uniform(0, 0.005)
    return between_chunks(dice)


def between_chunks(dice: random.Random) -> tuple[Callable[[], bool], float]:
    enough = dice.randrange(min(written() + 1, FILES - 1), FILES)
    return (lambda: written() >= enough), dice.uniform(0, 0.03)


def results() -> dict[str, bytes]:
    return {name: Path("run", name).read_bytes() for name in RESULTS}


def runs(count: int, dataset: Path, model: Path, folder: Path, children: Children) -> Outcome:
    settings = {"dataset": str(dataset), "model": str(model)} | RUN
    differing, inside, kills = [], 0, 0
    with working_in(folder / "undisturbed"):
        children.to_the_end(sb.run, settings)
        expected = results()
        if written() != FILES:
            raise RuntimeError(f"an undisturbed run wrote {written()} files of chunks, not {FILES}")
    for number in range(count):
        dice = random.Random(number)
        with working_in(folder / f"run {number}"):
            killed = children.killed_at(*first_moment(number, dice), sb.run, settings)
            inside += killed and written() >= 1 and not Path("run", "report.html").exists()
            kills += killed
            for _ in range((number % 4 == 0) + (number % 8 == 0)):  # some runs have bad luck twice or three times
                kills += children.killed_at(*between_chunks(dice), sb.run, settings)
            children.to_the_end(sb.run, settings)
            if results() != expected:
                differing.append(f"run {number}: results")
            if written() != FILES or list(Path("run").rglob(".*.tmp")):
                differing.append(f"run {number}: files of the folder")
    return Outcome(count, differing, inside, kills)


def saved(path: Path, times: int) -> Callable[[], bool]:
    """A moment: the file was written anew `times` times since this was made."""
    seen = set()

    def moment():
        if path.exists():
            seen.add(path.stat().st_mtime_ns)
        return len(seen) >= times

    return moment


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def trainings(count: int, dataset: Path, folder: Path, children: Children) -> Outcome:
    settings = {"dataset": str(dataset), "model": ResNetConfig(**NETWORK)} | TRAINING
    model, state = Path("tiny"), Path("tiny.training.pt")
    differing, inside, kills = [], 0, 0
    with working_in(folder / "undisturbed training"):
        children.to_the_end(sb.train, settings)
        expected = files(model)
        if os.listdir() != ["tiny"]:
            raise RuntimeError(f"an undisturbed training left {os.listdir()}")
    for number in range(count):
        dice = random.Random(number)
        with working_in(folder / f"training {number}"):
            moment = saved(state, dice.randrange(1, EPOCHS))
            killed = children.killed_at(moment, dice.uniform(0, 0.1), sb.train, settings)
            inside += killed and state.exists() and not model.exists()
            kills += killed
            if number % 3 == 0 and not model.exists():  # the second time while it starts, or in a later epoch
                moment = saved(state, dice.randrange(1, 3))
                kills += children.killed_at(moment, dice.uniform(0, 0.1), sb.train, settings)
            if not model.exists():
                children.to_the_end(sb.train, settings)
            if files(model) != expected:
                differing.append(f"training {number}: weights")
    return Outcome(count, differing, inside, kills)


def checkpoint(dataset: Path, folder: Path) -> Path:
    """A small ResNet with random weights and the classes of the dataset."""
    names = dict(enumerate(sb.load_dataset(str(dataset)).features["label"].names))
    config = ResNetConfig(**NETWORK, id2label=names, label2id={name: index for index, name in names.items()})
    ResNetForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, metavar="N", help="default: 50")
    parser.add_argument("--trainings", type=int, default=10, metavar="N", help="default: 10")
    args = parser.parse_args()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        dataset = sb.build("shapes-xai", folder / "shapes", size=32, count=240, progress=False)
        children, model = Children(folder / "caches"), checkpoint(dataset, folder / "model")
        outcomes = {
            "runs": runs(args.runs, dataset, model, folder, children),
            "trainings": trainings(args.trainings, dataset, folder, children),
        }
    for what, (done, differing, inside, kills) in outcomes.items():
        print(f"{done} {what}, {kills} kills, {inside} in the middle of the work; {len(differing)} differ", *differing)
    return int(any(outcome.differing for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
