"""The pictures of README and site, made from the demo's folder: strips of maps with their scores, and the report.

example:
  saliency-bench demo --limit 64
  saliency-bench demo --photos
  python benchmarks/pictures.py --demo saliency-bench-demo --out docs/pictures

The strip shows the sample whose scores are nearest to the means of the table, among those that are classified correctly
and lie whole in the image; another one shows photographs through a real network. Chromium photographs the top of the
report. Colours are reduced, so that the files stay small.
"""

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

import saliency_bench as sb
from saliency_bench.push_scripts.demo import EXPLAINERS, METRICS, OF_PHOTOS

PHOTOGRAPHS = ("coffee", "chelsea")
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
    made = []
    if (demo / "run" / "report.html").exists():
        strip(demo, out / "strip.png")
        photograph(demo / "run" / "report.html", out / "report.png", args.height)
        made += [out / "strip.png", out / "report.png"]
    if (demo / "run-photos" / "report.html").exists():
        photographs(demo, out / "photographs.jpg")
        made.append(out / "photographs.jpg")
    for file in made:
        if file.suffix == ".png":
            reduce_colours(file)
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def scores_of(run: Path) -> pd.DataFrame:
    """A row per sample that is classified correctly, a column per (metric, explainer)."""
    predictions = pd.read_parquet(run / "predictions.parquet")
    records = pd.read_parquet(run / "records.parquet")
    records = records[records.image_id.isin(predictions.image_id[predictions.correct.fillna(False)])]
    return records.pivot_table("value", "image_id", ["metric", "explainer"])


def strip(demo: Path, path: Path) -> None:
    """The shape whose scores are most usual, and what five explainers say about it."""
    scores = scores_of(demo / "run")
    rows = {row["image_id"]: row for row in sb.load_dataset(f"{demo}/shapes-xai")}
    distances = ((scores - scores.mean()) / scores.std()).pow(2).sum(axis=1)
    identity = min((each for each in distances.index if whole(rows[each]["mask"])), key=distances.get)
    classifier = sb.load_classifier(f"{demo}/resnet", device="cpu")
    figure, (axes,) = canvas(1, len(EXPLAINERS) + 1)
    draw(axes, classifier, rows[identity], EXPLAINERS, scores.loc[identity], rows[identity]["label"])
    save(figure, path)


def photographs(demo: Path, path: Path) -> None:
    """Photographs, and what the same explainers say about a real network's answer."""
    scores = scores_of(demo / "run-photos")
    rows = {row["image_id"]: row for row in sb.load_dataset(f"{demo}/photos-xai")}
    classifier = sb.load_classifier(f"{demo}/lite0", device="cpu")
    figure, lines = canvas(len(PHOTOGRAPHS), len(EXPLAINERS) + 1)
    for axes, name in zip(lines, PHOTOGRAPHS, strict=True):
        draw(axes, classifier, rows[name], OF_PHOTOS["explainers"], scores.loc[name], None)
    save(figure, path)


def canvas(lines: int, columns: int):
    """A figure and its axes (lines, columns), which are not drawn."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.65 * lines), dpi=100)
    axes = figure.subplots(lines, columns, squeeze=False)
    figure.subplots_adjust(left=0.005, right=0.995, top=1 - 0.1 / lines, bottom=0.24 / lines, wspace=0.05,
                           hspace=0.5)  # fmt: skip
    for axis in axes.flat:
        axis.axis("off")
    return figure, axes


def draw(axes, classifier, row: dict, explainers: Sequence[str], scores: pd.Series, target: int | None) -> None:
    """Draw an image with its mask, and the map of each explainer with its scores; target None: what is predicted."""
    batch = classifier.prepare([row])
    maps = [sb.explain(row["image"], classifier, name, target=target, image_id=row["image_id"]) for name in explainers]
    axes[0].imshow(batch.images[0].permute(1, 2, 0).numpy(), interpolation="nearest")
    shown = classifier.labels[target] if target is not None else maps[0].prediction
    axes[0].set_title(f"{'an' if shown[0] in 'aeiou' else 'a'} {shown}", fontsize=11)
    axes[0].text(0.5, -0.08, "mask outlined", transform=axes[0].transAxes, ha="center", va="top", fontsize=9)
    for axis, explainer, seen in zip(axes[1:], explainers, maps, strict=True):
        name = explainer.partition(":")[0]
        axis.imshow(seen.overlay, interpolation="nearest")
        axis.set_title(name.replace("_", " "), fontsize=11)
        lines = [f"{short} {scores[metric, name]:.2f}" for metric, short in SHOWN.items()]
        axis.text(0.5, -0.08, "\n".join(lines), transform=axis.transAxes, ha="center", va="top", fontsize=9)
    for axis in axes:
        axis.contour(np.asarray(batch.masks[0]), levels=[0.5], colors="white", linewidths=1.2)


def save(figure, path: Path) -> None:
    if path.suffix == ".jpg":
        figure.savefig(path, facecolor="white", pil_kwargs={"quality": 70})
    else:
        figure.savefig(path, format="png", metadata={"Software": None}, facecolor="white")


def whole(mask: Image.Image) -> bool:
    """Return whether no border of the image cuts the object off."""
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
