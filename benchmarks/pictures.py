"""The pictures of README and site, made from the demo's folder: a strip of maps with their scores, and the report.

example:
  saliency-bench demo --limit 64
  python benchmarks/pictures.py --demo saliency-bench-demo --out docs/pictures

The strip shows the sample whose scores are nearest to the means of the table, among those that are classified correctly
and lie whole in the image. Chromium photographs the top of the report. Colours are reduced, so that both files stay
small.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

import saliency_bench as sb
from saliency_bench.push_scripts.demo import EXPLAINERS, METRICS

SHOWN = dict(zip(METRICS, ("mIoU", "pointing game", "insertion"), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0], epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--demo", default="saliency-bench-demo", metavar="DIR", help="what `saliency-bench demo` wrote")
    parser.add_argument("--out", default="docs/pictures", metavar="DIR", help="folder of the pictures")
    parser.add_argument("--height", type=int, default=1080, help="of the report, in pixels")
    args = parser.parse_args()
    demo, out = Path(args.demo), Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    strip(demo, out / "strip.png")
    photograph(demo / "run" / "report.html", out / "report.png", args.height)
    for file in (out / "strip.png", out / "report.png"):
        reduce_colours(file)
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def scores_of(demo: Path) -> pd.DataFrame:
    """A row per sample that is classified correctly, a column per (metric, explainer)."""
    records = pd.read_parquet(demo / "run" / "records.parquet")
    records = records[records.label == records.prediction]
    return records.pivot_table("value", "image_id", ["metric", "explainer"])


def strip(demo: Path, path: Path) -> None:
    from matplotlib.figure import Figure

    scores = scores_of(demo)
    rows = {row["image_id"]: row for row in sb.load_dataset(f"{demo}/shapes-xai")}
    distances = ((scores - scores.mean()) / scores.std()).pow(2).sum(axis=1)
    identity = min((each for each in distances.index if whole(rows[each]["mask"])), key=distances.get)
    row = rows[identity]
    classifier = sb.load_classifier(f"{demo}/resnet", device="cpu")
    batch = classifier.prepare([row])
    figure = Figure(figsize=(11, 2.65), dpi=100)
    axes = figure.subplots(1, len(EXPLAINERS) + 1)
    figure.subplots_adjust(left=0.005, right=0.995, top=0.9, bottom=0.24, wspace=0.05)
    for axis in axes:
        axis.axis("off")
    axes[0].imshow(batch.images[0].permute(1, 2, 0).numpy(), interpolation="nearest")
    axes[0].set_title(f"a {classifier.labels[row['label']]}", fontsize=11)
    axes[0].text(0.5, -0.08, "mask outlined", transform=axes[0].transAxes, ha="center", va="top", fontsize=9)
    for axis, explainer in zip(axes[1:], EXPLAINERS, strict=True):
        seen = sb.explain(row["image"], classifier, explainer, target=row["label"], image_id=identity)
        axis.imshow(seen.overlay, interpolation="nearest")
        axis.set_title(explainer.partition(":")[0].replace("_", " "), fontsize=11)
        own = {metric: scores.loc[identity, (metric, explainer.partition(":")[0])] for metric in SHOWN}
        lines = [f"{short} {own[metric]:.2f}" for metric, short in SHOWN.items()]
        axis.text(0.5, -0.08, "\n".join(lines), transform=axis.transAxes, ha="center", va="top", fontsize=9)
    for axis in axes:
        axis.contour(np.asarray(batch.masks[0]), levels=[0.5], colors="white", linewidths=1.2)
    figure.savefig(path, format="png", metadata={"Software": None}, facecolor="white")


def whole(mask: Image.Image) -> bool:
    """Whether no border of the image cuts the object off."""
    drawn = np.asarray(mask) > 0
    return not (drawn[[0, -1]].any() or drawn[:, [0, -1]].any())


def photograph(page: Path, path: Path, height: int) -> None:
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}",
             f"--window-size=1200,{height}", f"--screenshot={path}", page.resolve().as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip


def reduce_colours(file: Path) -> None:
    Image.open(file).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main()
