"""Compare the speed of the compiled FastDTW with the library fastdtw, on maps of 224 x 224 flattened row by row.

example:
  python benchmarks/consistency.py

Both use radius 1 and must return the same distance and path. Only the call is measured; the time for compilation is
shown separately. The library takes seconds per pair, so each pair is timed once with the library. The compiled version
is timed several times per pair, and the median is used.
"""

import argparse
import statistics
import sys
from time import perf_counter

import numpy as np
from fastdtw import fastdtw as library

from saliency_bench.metrics.saliency_consistency.score import shares
from saliency_bench.metrics.saliency_consistency.warping import fastdtw

ASKED = 50  # required speed-up

parser = argparse.ArgumentParser(
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--side", type=int, default=224, metavar="N", help="side of a map in pixels (default: 224)")
parser.add_argument(
    "--rounds", type=int, default=9, metavar="N", help="number of calls of the compiled version (default: 9)"
)
args = parser.parse_args()

rng = np.random.default_rng(0)
y, x = np.mgrid[: args.side, : args.side] / args.side


def bump(down: float, right: float) -> np.ndarray:
    return np.exp(-((y - down) ** 2 + (x - right) ** 2) / 0.05)


PAIRS = {
    "smooth maps": (bump(0.4, 0.5), bump(0.45, 0.55)),
    "noise": (rng.random(y.shape), rng.random(y.shape)),
    "mostly zeros": (np.maximum(bump(0.4, 0.5) - 0.5, 0), np.maximum(bump(0.5, 0.4) - 0.5, 0)),
}

begun = perf_counter()
fastdtw(np.zeros(4), np.zeros(4))
print(f"compiling: {perf_counter() - begun:.1f} s, once per process")
print(f"{'pair':<14}{'fastdtw':>12}{'compiled':>12}{'ratio':>8}")
ratios = []
for name, pair in PAIRS.items():
    one, two = (shares(series.ravel()) for series in pair)
    begun = perf_counter()
    expected, steps = library(one, two, radius=1)
    theirs = perf_counter() - begun
    times = []
    for _ in range(args.rounds):
        begun = perf_counter()
        found, path = fastdtw(one, two)
        times.append(perf_counter() - begun)
    ours = statistics.median(times)
    if found != expected or path.tolist() != [list(step) for step in steps]:
        sys.exit(f"{name}: {found} is not the library's {expected}, or the paths differ")
    ratios.append(theirs / ours)
    print(f"{name:<14}{theirs:>10.2f} s{1000 * ours:>9.1f} ms{ratios[-1]:>8.0f}")
print(f"required: {ASKED} times as fast; minimum: {min(ratios):.0f}")
sys.exit(min(ratios) < ASKED)
