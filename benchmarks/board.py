"""Measure the CPU time of opening a board from the submissions, from the cache, and from its index.

example:
  python benchmarks/board.py --folder /tmp/board
  python benchmarks/board.py --folder /tmp/board --rows 100 1000

Scores are random. For each dataset and its network, 7 people submit scores of 12 explainers on 4 metrics for 100
images. The number of datasets depends on the number of rows. For each dataset, the board itself has run the explainers
that one of the people submitted, and the rows of the other people are ranked relative to these. Each opening is
measured in a separate process, including its children. Imports are measured separately, because they take the same time
for every board.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from saliency_bench.board.index import INDEX

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import boards
import submissions

EXPLAINERS, SAMPLES, PEOPLE = 12, 100, 7
PER_DATASET = EXPLAINERS * len(boards.METRICS) * PEOPLE
OPEN = "import sys, saliency_bench as sb; print(len(sb.load_results(sys.argv[1]).rows))"
WRITE = (
    "import sys, pathlib; from saliency_bench.board.index import write_index;"
    "print(len(write_index(pathlib.Path(sys.argv[1])).rows))"
)
IMPORTS = "import saliency_bench.board.index; print(0)"


def make(root: Path, rows: int) -> None:
    """Write a board with approximately `rows` rows, and at least one row."""
    ids = [f"image {number:03d}" for number in range(SAMPLES)]
    for number in range(max(1, round(rows / PER_DATASET))):
        scene = f"saliency-bench/data-{number}", f"{number:064x}", f"{number:032x}"
        boards.know(root, scene, ids)
        people = PEOPLE if rows >= PER_DATASET else max(1, round(rows * PEOPLE / PER_DATASET))
        for person in range(people):
            submitted = [f"method-{person}-{index}@1" for index in range(EXPLAINERS)]
            names = [*boards.METHODS, "gae", "lime", "iia"] if person == 0 else submitted
            scores = boards.scores_of(names[:EXPLAINERS], boards.METRICS, number * PEOPLE + person, SAMPLES)
            # An image is equally difficult for all methods, but some methods are better than others.
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


def opened(code: str, root: Path, cache: Path) -> tuple[int, float, float]:
    """Run code in a new process and return (rows, wall-clock seconds, CPU seconds)."""
    start = time.perf_counter()
    environment = os.environ | {"SALIENCY_BENCH_CACHE": str(cache)}
    process = subprocess.Popen([sys.executable, "-c", code, root], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    rows = int(process.stdout.read())
    _, _, used = os.wait4(process.pid, 0)
    return rows, time.perf_counter() - start, used.ru_utime + used.ru_stime


def main() -> None:
    """Print a row of measured seconds for each board."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="folder of the boards, created if missing"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 1000, 5000], metavar="N", help="rows per board")
    args = parser.parse_args()
    *_, imports = opened(IMPORTS, args.folder, args.folder)
    print(f"imports: {imports:.1f} s of CPU time\n\nrows   without  from the cache  from the index")
    for size in args.rows:
        root = args.folder / f"board-{size}"
        if not root.exists():
            make(root, size)
        (root / INDEX).unlink(missing_ok=True)
        cache, empty = (args.folder / f"{name}-{time.time_ns()}" for name in ("cache", "empty"))
        rows, _, first = opened(OPEN, root, cache)
        *_, again = opened(OPEN, root, cache)
        opened(WRITE, root, cache)
        *_, indexed = opened(OPEN, root, empty)
        print(f"{rows:5,}  {first - imports:7.1f}  {again - imports:14.1f}  {indexed - imports:14.1f}", flush=True)


if __name__ == "__main__":
    main()
