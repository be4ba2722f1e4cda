"""Measure how much faster a build is with several workers than with one.

example:
  python benchmarks/building.py --datasets pet-xai disease-xai

The sources are the synthetic sources of the tests, in a temporary folder. Builds with one worker and with several
alternate. The script checks that all builds are byte-identical. The time includes the single-threaded part (reading the
lists, hashing and writing the shards).
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from saliency_bench.data.building import build
from saliency_bench.hub_builders import _examples

parser = argparse.ArgumentParser(
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--datasets", nargs="+", default=["pet-xai", "cancer-xai", "disease-xai"], metavar="NAME")
parser.add_argument("--count", type=int, default=600, metavar="N", help="number of samples (default: 600)")
parser.add_argument("--side", type=int, default=448, metavar="N", help="side of an image in pixels (default: 448)")
parser.add_argument(
    "--workers", type=int, default=2, metavar="N", help="number of workers to compare with one (default: 2)"
)
parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds (default: 3)")
args = parser.parse_args()


def seconds(name: str, source: Path, out: Path, workers: int) -> tuple[float, bytes]:
    begun = time.perf_counter()
    folder = build(name, out, source, progress=False, workers=workers, **_examples.options(name))
    return time.perf_counter() - begun, (folder / "build_report.json").read_bytes()  # the report has all checksums


for name in args.datasets:
    with tempfile.TemporaryDirectory(prefix="building-") as work:
        source = _examples.write(name, Path(work) / "source", args.count, args.side)
        taken: dict[int, list[float]] = {1: [], args.workers: []}
        reports = set()
        for turn in range(args.rounds):
            for workers, found in taken.items():
                elapsed, report = seconds(name, source, Path(work) / f"{turn}-{workers}", workers)
                found.append(elapsed)
                reports.add(report)
        assert len(reports) == 1, "the bytes depend on the number of workers"
        ratios = [one / more for one, more in zip(*taken.values(), strict=True)]
        times = "  ".join(f"{workers}: {statistics.median(found):5.1f} s" for workers, found in taken.items())
        print(f"{name:20} workers {times}   {statistics.median(ratios):.2f} times as fast", flush=True)
