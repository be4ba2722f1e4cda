"""Measure the effect of a lower precision: scores and rankings of a run in fp32, bf16 and, on a GPU, tf32 and fp16.

example:
  saliency-bench demo
  python benchmarks/precision.py --dataset saliency-bench-demo/shapes-xai --model saliency-bench-demo/resnet

Use a trained network, because the ranking is arbitrary with random weights. For each metric, the script prints the
largest change of an explainer's mean, in units of the score, and Kendall's tau-b between the rankings of the explainers
in fp32 and in the lower precision (1 for the same order). It also prints the largest change of a single sample over all
cells."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from scipy.stats import kendalltau

import saliency_bench as sb
from saliency_bench.read.finished_run import Run

EXPLAINERS = (
    "gradcam",
    "integrated_gradients:steps=20",
    "smoothgrad:samples=10",
    "occlusion",
    "rise:masks=500",
    "random",
)
METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion")
FASTER = {"cpu": ("bf16",), "cuda": ("tf32", "bf16", "fp16")}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", required=True, help="name, Hub id or folder")
parser.add_argument("--model", required=True, help="Hub id or folder")
parser.add_argument("--explainers", nargs="+", default=EXPLAINERS, metavar="NAME")
parser.add_argument("--metrics", nargs="+", default=METRICS, metavar="NAME")
parser.add_argument("--limit", type=int, default=64, metavar="N", help="number of samples (default: 64)")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def scored(precision: str, args: argparse.Namespace, folder: Path) -> Run:
    return sb.run(
        dataset=args.dataset, model=args.model, explainers=args.explainers, metrics=args.metrics, limit=args.limit,
        device=args.device, precision=precision, out=folder / precision,
    )  # fmt: skip


def samples(run: Run) -> np.ndarray:
    """Return the scores of all samples, in an order that does not depend on cell ids."""
    table = run.records().to_pandas()
    table = table[table["part"].isna()]
    return table.sort_values(["explainer", "metric", "image_id"])["value"].to_numpy(float)


def main() -> None:
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: scored(name, args, Path(folder)) for name in ("fp32", *FASTER[torch.device(args.device).type])}
        exact = runs.pop("fp32")
        print(f"\n{len(args.explainers)} explainers, {args.limit} samples, on {args.device}, compared with fp32\n")
        print(f"{'':5} {'metric':24} {'change of a mean':>16} {'tau':>6}")
        for name, run in runs.items():
            for metric in dict.fromkeys(cell.metric for cell in exact.cells):
                before, after = (
                    np.array([cell.value for cell in one.cells if cell.metric == metric], float) for one in (exact, run)
                )
                tau = kendalltau(before, after).statistic
                print(f"{name:5} {metric:24} {np.abs(after - before).max():>16.5f} {tau:>6.3f}")
            change = np.nanmax(np.abs(samples(run) - samples(exact)))
            print(f"{name:5} largest change of a single sample: {change:.4f}\n")


if __name__ == "__main__":
    main()
