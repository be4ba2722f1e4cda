"""Measure times other than network passes: to start a command, call a function, reopen a run, and use `evaluate`.

example:
  python benchmarks/fixed_costs.py

Times are CPU seconds of this process and its children, because wall-clock time is unreliable on a busy machine. The
minimum of several repeats is used. The required times are for an idle machine.
"""

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

SIDE, MAPS = 224, 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="number of repeats (default: 5)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'what':44} {'seconds':>8} {'aim':>8}")
    for name, measure, aim in ROWS:
        with TemporaryDirectory() as folder:
            print(f"{name:44} {measure(Path(folder), args.repeats):8.4f} {aim:8.4f}", flush=True)
    return 0


def best(work: Callable[[], object], repeats: int, per: int = 1) -> float:
    """Return the minimum CPU seconds of several repeats after a warm-up."""
    work()
    return min(seconds(work) for _ in range(repeats)) / per


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that `work` takes, including children."""
    before = used()
    work()
    return used() - before


def used() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def command(*words: str, **environment: str) -> Callable[[Path, int], float]:
    """Return a function that measures a command in a separate process with compiled modules, as in an installation."""
    code = "import sys; from saliency_bench.cli import main; sys.exit(main(sys.argv[1:]))"

    def measure(folder: Path, repeats: int) -> float:
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}

        def run() -> None:
            with (folder / "completed").open("wb") as answer:  # because argcomplete writes to descriptor 8
                os.dup2(answer.fileno(), 8)
                subprocess.run([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL,
                               env=os.environ | compiled | environment, pass_fds=(8,), check=False)  # fmt: skip

        return best(run, repeats)

    return measure


def network() -> torch.nn.Module:
    import torchvision

    import saliency_bench as sb

    torch.manual_seed(0)
    return sb.load_classifier(torchvision.models.resnet18(num_classes=8), mean=0, std=1, size=SIDE)


def finished(folder: Path, repeats: int) -> float:
    """Measure how long it takes to start a finished run again, with libraries and network already loaded."""
    import saliency_bench as sb

    data = sb.build("shapes-xai", folder / "shapes", size=64, count=200, progress=False)
    settings = {"dataset": str(data), "model": network(), "explainers": ["gradcam", "random"], "limit": 8,
                "metrics": ["saliency_miou"], "out": folder / "run", "device": "cpu", "progress": False}  # fmt: skip
    return best(lambda: sb.run(**settings), repeats)


def of_evaluate(folder: Path, repeats: int) -> float:
    """Measure the time per map for `compute` of an evaluate metric and for the metric's function."""
    from saliency_bench.metrics.saliency_miou.saliency_miou import SaliencyMiou

    rng = np.random.default_rng(0)
    maps, masks = rng.random((MAPS, SIDE, SIDE)).astype(np.float32), rng.random((MAPS, SIDE, SIDE)) > 0.8
    module = SaliencyMiou()
    whole = best(lambda: module.compute(predictions=maps, references=masks), repeats, MAPS)
    return whole - best(lambda: SaliencyMiou.function(maps, masks), repeats, MAPS)


def folded(folder: Path, repeats: int) -> float:
    """Measure a repeated request for the faster copy of ResNet-18."""
    from saliency_bench.compute.classifiers.fast_forward import fast_forward

    classifier, images = network(), torch.rand(4, 3, SIDE, SIDE)
    return best(lambda: fast_forward(classifier, images), repeats)


COMPLETING = {"_ARGCOMPLETE": "1", "COMP_LINE": "saliency-bench run --m", "COMP_POINT": "22", "_ARGCOMPLETE_IFS": "\v"}
ROWS: list[tuple[str, Callable[[Path, int], float], float]] = [
    ("saliency-bench --help", command("--help"), 0.3),
    ("saliency-bench list", command("list"), 0.5),
    ("a tab behind saliency-bench run --m", command(**COMPLETING), 0.15),
    ("a finished run started again", finished, 0.5),
    (f"evaluate's compute, a map of {MAPS}", of_evaluate, 0.0005),
    ("repeated request for the faster copy", folded, 0.01),
]

if __name__ == "__main__":
    sys.exit(main())
