"""Runs, builds, trainings and uploads killed by SIGKILL at any moment and started again: the same bytes as undisturbed?

example:
  python benchmarks/kills.py
  python benchmarks/kills.py --runs 10 --only runs

The number of a run, build, training or upload seeds when it is killed: at the start, between two chunks (batches,
epochs, requests), while parts become spans, while results are merged or moved into place; many are killed several
times. Runs are also widened between two kills (--limit, --only, explainers, metrics) and done by two processes, of
which one is killed, or both. Compared are records, predictions, summary and examples; the folder of a dataset; weights
and log of a training; and a repository, of which a reader must never see half. Prints where the kills fell; exit code
1 if anything differs. tests/engine/test_kill_and_continue.py does the first few of each.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from children import Children
from kill_loops.builds import builds
from kill_loops.choices import choices
from kill_loops.common import NETWORK, Outcome
from kill_loops.launches import launches
from kill_loops.pushes import pushes
from kill_loops.runs import runs
from kill_loops.trainings import trainings
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

import saliency_bench as sb

COUNTS = {"runs": 24, "builds": 24, "trainings": 10, "pushes": 18, "launches": 15, "choices": 10}


def checkpoint(dataset: Path, folder: Path) -> Path:
    """A small ResNet with random weights and the classes of the dataset."""
    names = dict(enumerate(sb.load_dataset(str(dataset)).features["label"].names))
    config = ResNetConfig(**NETWORK, id2label=names, label2id={name: index for index, name in names.items()})
    ResNetForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def loops(folder: Path) -> dict[str, Callable[[int], Outcome]]:
    """{what: does so many of it}"""
    dataset = sb.build("shapes-xai", folder / "shapes", size=32, count=240, progress=False)
    children, model = Children(folder / "caches"), checkpoint(dataset, folder / "model")
    return {
        "runs": lambda count: runs(count, dataset, model, folder, children),
        "builds": lambda count: builds(count, folder, children),
        "trainings": lambda count: trainings(count, dataset, folder, children),
        "pushes": lambda count: pushes(count, dataset, folder, children),
        "launches": lambda count: launches(count, dataset, model, folder, children),
        "choices": lambda count: choices(count, dataset, model, folder, children),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for what, count in COUNTS.items():
        parser.add_argument(f"--{what}", type=int, default=count, metavar="N", help=f"default: {count}")
    parser.add_argument("--only", choices=list(COUNTS), help="this alone")
    args = parser.parse_args()
    kills = differing = 0
    with TemporaryDirectory() as scratch:
        for what, loop in loops(Path(scratch)).items():
            if args.only in (None, what):
                start = time.monotonic()
                outcome = loop(getattr(args, what))
                kills, differing = kills + outcome.kills.total(), differing + len(outcome.differing)
                print(f"{outcome}; {time.monotonic() - start:.0f} s", flush=True)
    print(f"{kills} kills, {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
