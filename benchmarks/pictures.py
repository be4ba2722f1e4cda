"""Create the images for the README and the site from the demo's folder: maps of photographs, and the report.

example:
  saliency-bench demo --limit 64
  saliency-bench demo --photos
  python benchmarks/pictures.py --demo saliency-bench-demo --out docs/pictures

Chromium takes a screenshot of the top of the report. It is saved with a reduced number of colours, so that the file is
small.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import pandas as pd
from PIL import Image

import saliency_bench as sb
from saliency_bench.push_scripts.demo import OF_PHOTOS

PHOTOGRAPHS = ("camera", "coffee")  # a small object, and an object that fills the centre
TITLES = {
    "gradcam": "Grad-CAM",
    "integrated_gradients": "integrated gradients",
    "rise": "RISE",
    "centre": "centre spot (baseline)",
    "random": "noise (baseline)",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0], epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--demo", default="saliency-bench-demo", metavar="DIR", help="folder of the demo")
    parser.add_argument("--out", default="docs/pictures", metavar="DIR", help="folder of the images")
    parser.add_argument("--height", type=int, default=1080, help="size of the screenshot in pixels")
    args = parser.parse_args()
    demo, out = Path(args.demo), Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    made = []
    if (demo / "run" / "report.html").exists():
        photograph(demo / "run" / "report.html", out / "report.png", args.height)
        made.append(out / "report.png")
    if (demo / "run-photos" / "report.html").exists():
        photographs(demo, out / "photographs.jpg")
        made.append(out / "photographs.jpg")
    for file in made:
        if file.suffix == ".png":
            reduce_colours(file)
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def photographs(demo: Path, path: Path) -> None:
    """Draw photographs and maps of a pretrained network's prediction, with the insertion score of each map."""
    scores = pd.read_parquet(demo / "run-photos" / "records.parquet")
    scores = scores[scores.metric == "saliency_insertion"].pivot_table("value", "image_id", "explainer")
    rows = {row["image_id"]: row for row in sb.load_dataset(f"{demo}/photos-xai")}
    classifier = sb.load_classifier(f"{demo}/lite0", device="cpu")
    figure, lines = canvas(len(PHOTOGRAPHS), len(OF_PHOTOS["explainers"]) + 1, below=0.13)
    for axes, name in zip(lines, PHOTOGRAPHS, strict=True):
        of_photograph(axes, classifier, rows[name], scores.loc[name])
    figure.savefig(path, facecolor="white", pil_kwargs={"quality": 78})


def of_photograph(axes, classifier, row: dict, scores: pd.Series) -> None:
    """Draw a photograph and its maps. The highest score is bold."""
    axes[0].imshow(classifier.prepare([row]).images[0].permute(1, 2, 0).numpy())
    for axis, explainer in zip(axes[1:], OF_PHOTOS["explainers"], strict=True):
        name = explainer.partition(":")[0]
        explanation = sb.explain(row["image"], classifier, explainer, image_id=row["image_id"])
        axis.imshow(explanation.overlay)
        axis.set_title(TITLES[name], fontsize=11)
        weight = "bold" if scores[name] == scores.max() else "normal"
        caption(axis, f"insertion {scores[name]:.2f}", fontweight=weight)
    axes[0].set_title(f"prediction: {explanation.prediction}", fontsize=11)


def caption(axis, text: str, **options: object) -> None:
    axis.text(0.5, -0.06, text, transform=axis.transAxes, ha="center", va="top", fontsize=11, **options)


def canvas(lines: int, columns: int, below: float = 0.24):
    """Return a figure and its axes (lines, columns).

    Below each line, the share `below` of its height is left for a caption.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, (2.05 + 2.5 * below) * lines), dpi=100)
    axes = figure.subplots(lines, columns, squeeze=False)
    figure.subplots_adjust(left=0.005, right=0.995, top=1 - 0.1 / lines, bottom=below / lines, wspace=0.05,
                           hspace=0.1 + 1.7 * below)  # fmt: skip
    for axis in axes.flat:
        axis.axis("off")
    return figure, axes


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
