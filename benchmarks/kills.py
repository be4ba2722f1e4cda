"""Kill commands with SIGKILL or fill the disk, then restart, and compare the bytes with an undisturbed run.

example:
  python benchmarks/kills.py
  python benchmarks/kills.py --runs 10 --only runs
  python benchmarks/kills.py --only studies --clock

The number of a run, build, training run or upload is the seed for the moments of its kills. A kill may occur at the
start, between two batches (epochs, requests), while part files are compacted, or while results are merged or moved into
place. Many items are killed several times. Runs are also extended between two kills (--limit, --only, explainers,
metrics), or are computed by two processes, one or both of which are killed.

The script compares the records, predictions, summary and examples of runs; the folder of a dataset; the weights and log
of a training run; the tables, networks and runs of a suite; the answers of a study in SQLite and in PostgreSQL, whose
server is also killed; and a repository, which readers must never see in a partial state. `disks` uses file systems that
are too small at first: each attempt must end with a one-line error and exit code 2. --clock moves the clock at each
start, and the times of all files, back or forward by up to ten years. If other programs use the disk, TMPDIR=/dev/shm
is many times faster. The script prints in which phase each kill occurred. The exit code is 1 if anything differs.
tests/compute/test_kill_and_continue.py runs the first few items of each kind.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from children import Children
from kill_loops.builds import builds
from kill_loops.choices import choices
from kill_loops.clocks import OtherTimes
from kill_loops.common import NETWORK, Outcome
from kill_loops.full_disks import disks
from kill_loops.launches import launches, nodes
from kill_loops.pushes import pushes
from kill_loops.runs import PARTNERS, RETRAINING, runs
from kill_loops.studies import in_postgres, in_sqlite
from kill_loops.suites import suites
from kill_loops.trainings import trainings
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

import saliency_bench as sb

COUNTS = {
    "runs": 24, "builds": 24, "trainings": 10, "pushes": 18, "launches": 15, "nodes": 8, "partners": 8,
    "partners-launched": 6, "retraining": 6, "suites": 6, "studies": 12, "postgres": 12, "disks": 5, "choices": 10,
}  # fmt: skip


def checkpoint(dataset: Path, folder: Path) -> Path:
    """Save a small ResNet with random weights and the classes of the dataset."""
    names = dict(enumerate(sb.load_dataset(str(dataset)).features["label"].names))
    config = ResNetConfig(**NETWORK, id2label=names, label2id={name: index for index, name in names.items()})
    ResNetForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def loops(folder: Path, children: Children) -> dict[str, Callable[[int], Outcome]]:
    """Return {name: function that runs this kill loop with a number of items}."""
    dataset = sb.build("shapes-xai", folder / "shapes", size=32, count=240, progress=False)
    model = checkpoint(dataset, folder / "model")
    given = {"dataset": dataset, "model": model, "folder": folder, "children": children}
    partners = {"what": "partners", "changes": PARTNERS}
    return {
        "runs": partial(runs, **given),
        "builds": partial(builds, folder=folder, children=children),
        "trainings": partial(trainings, dataset=dataset, folder=folder, children=children),
        "pushes": partial(pushes, dataset=dataset, folder=folder, children=children),
        "launches": partial(launches, **given),
        "nodes": partial(nodes, **given),
        "partners": partial(runs, **given, **partners),
        "partners-launched": partial(launches, **given, **partners),
        "retraining": partial(runs, **given, what="retraining", changes=RETRAINING),
        "suites": partial(suites, folder=folder, children=children),
        "studies": partial(in_sqlite, folder=folder, children=children),
        "postgres": partial(in_postgres, folder=folder, children=children),
        "disks": partial(disks, **given),
        "choices": partial(choices, **given),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for what, count in COUNTS.items():
        parser.add_argument(f"--{what}", type=int, default=count, metavar="N", help=f"default: {count}")
    parser.add_argument(
        "--only", nargs="*", choices=list(COUNTS), default=list(COUNTS), help="kinds to run (default: all)"
    )
    parser.add_argument("--clock", action="store_true", help="set the clock back or forward at each start")
    args = parser.parse_args()
    kills = differing = 0
    with TemporaryDirectory() as scratch:
        children = (OtherTimes if args.clock else Children)(Path(scratch, "caches"))
        for what, loop in loops(Path(scratch), children).items():
            if what in args.only:
                start = time.monotonic()
                outcome = loop(getattr(args, what.replace("-", "_")))
                kills, differing = kills + outcome.kills.total(), differing + len(outcome.differing)
                print(f"{outcome}; {time.monotonic() - start:.0f} s", flush=True)
    print(f"{kills} kills, {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
