"""How long a board takes to open: the first time, when every submission is checked and every rank computed, and again.

example:
  python benchmarks/board.py --folder /tmp/board

Scores are drawn at random: 14 datasets with a network each, 7 people who submit 12 explainers by 4 metrics on 100
images are 4,704 rows. The board has run the explainers of one person on each dataset, so that all others are ranked
beside these. Each opening is a process of its own. Its seconds are those of the clock on the wall and of the processor,
children included; the libraries of each process take one to three of them.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import boards
import submissions

EXPLAINERS, SAMPLES = 12, 100
OPEN = "import sys, saliency_bench as sb; print(len(sb.load_results(sys.argv[1]).rows))"


def make(root: Path, datasets: int, people: int) -> None:
    ids = [f"image {number:03d}" for number in range(SAMPLES)]
    for number in range(datasets):
        scene = f"saliency-bench/data-{number}", f"{number:064x}", f"{number:032x}"
        boards.know(root, scene, ids)
        for person in range(people):
            submitted = [f"method-{person}-{index}@1" for index in range(EXPLAINERS)]
            names = [*boards.METHODS, "gae", "lime", "iia"] if person == 0 else submitted
            scores = boards.scores_of(names[:EXPLAINERS], boards.METRICS, number * people + person, SAMPLES)
            # One image is as hard for everybody, and some methods are better than others.
            levels = np.random.default_rng(person).uniform(-0.2, 0.2, len(scores))
            better = {
                name: np.clip(column + level, 0, 1)
                for (name, column), level in zip(scores.items(), levels, strict=True)
            }
            folder = boards.put(
                root, pytest.MonkeyPatch(), scene, scores if person == 0 else better, f"person-{person}", ids=ids
            )
            if person == 0:
                submissions.vouch(root, folder)


def opened(root: Path, cache: Path) -> tuple[int, float, float]:
    """(rows, seconds on the wall, seconds of the processor) of an opening in a new process."""
    start = time.perf_counter()
    environment = os.environ | {"SALIENCY_BENCH_CACHE": str(cache)}
    process = subprocess.Popen([sys.executable, "-c", OPEN, root], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    rows = int(process.stdout.read())
    _, _, used = os.wait4(process.pid, 0)
    return rows, time.perf_counter() - start, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="where the board is, or is made")
    parser.add_argument("--datasets", type=int, default=14, metavar="N", help="default: 14")
    parser.add_argument("--people", type=int, default=7, metavar="N", help="who submit on each; default: 7")
    args = parser.parse_args()
    root = args.folder / "results"
    if not root.exists():
        make(root, args.datasets, args.people)
    cache = args.folder / f"cache-{time.time_ns()}"
    for what in ("the first time", "again"):
        rows, seconds, used = opened(root, cache)
        print(f"{rows:,} rows {what}: {seconds:.1f} s, {used:.1f} s of the processor")


if __name__ == "__main__":
    main()
