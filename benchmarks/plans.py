"""Measure how near plans come: three suites of different character at ten times their smoke size, planned and run.

example:
  python benchmarks/plans.py

    perturbation   forward passes of maps and metrics, P1's figure 3
    retraining     ROAR and KAR, P2's table 2
    transformers   gradients of a vision transformer for several targets, P3's table 1

Datasets and networks are drawn and trained as under --smoke, with ten times the images. Seconds are of the processor,
in one thread, for the plan and for what the run uses: on a busy machine the clock on the wall says little, and it
stands beside. The training of the small networks is part of both.
"""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import yaml

from saliency_bench.recipes.suites import costs
from saliency_bench.recipes.suites.schema import find_suite
from saliency_bench.recipes.suites.suite import planned, suite
from saliency_bench.utils.files import write_text

SUITES = {
    "perturbation": ("p1-figure3", "dataset=voc"),
    "retraining": ("p2-table2", "dataset=food-101"),
    "transformers": ("p3-table1", "dataset=imagenet model=vit-b"),
}
TIMES = 10
PASSES = 2  # over the drawings that networks are first trained on, which say little of a plan
ASKED = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SUITES, default=list(SUITES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    costs.clock = time.process_time
    print(f"{'suite':14} {'planned':>8} {'used':>8} {'off by':>8} {'on the wall':>12}", flush=True)
    worst = 0.0
    for name in args.only:
        with TemporaryDirectory() as folder:
            plan, used, wall = measured(*SUITES[name], Path(folder))
        worst = max(worst, abs(plan / used - 1))
        print(f"{name:14} {plan:8.1f} {used:8.1f} {plan / used - 1:8.0%} {wall:12.1f}", flush=True)
    return int(worst > ASKED)


def measured(name: str, select: str, folder: Path) -> tuple[float, float, float]:
    """Return (planned seconds, used seconds of the processor, seconds on the wall) of a part of a suite."""
    options = {"out": folder / "out", "smoke": True, "device": "cpu", "select": select}
    table = enlarged(name, folder)
    plan = sum(step.seconds[1] for step in planned(table, **options).steps if step.seconds)
    begun, wall = time.process_time(), time.perf_counter()
    done = suite(table, **options, progress=False)
    if done.failed:
        raise SystemExit(f"{name} failed: {done.failed}")
    return plan, time.process_time() - begun, time.perf_counter() - wall


def enlarged(name: str, folder: Path) -> str:
    """Write the suite of a table with ten times the images of its smoke size; return what `suite` takes."""
    path, content, _ = find_suite(name)
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    size = {"limit": TIMES * content.smoke.limit, "count": TIMES * content.smoke.count, "passes": PASSES}
    write_text(folder / "own.yaml", yaml.safe_dump(given | {"smoke": given.get("smoke", {}) | size}))
    return f"{folder / 'own.yaml'}:{name}"


if __name__ == "__main__":
    sys.exit(main())
