"""Generator of the pictures on the pages of metrics: maps of two photographs and a drawing, with the metric's scores.

The photographs are from photos-xai with EfficientNet-Lite0. The drawings are from shapes-xai, whose ground truth is
known, with the small ResNet of the page of explainers.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from datasets import Dataset

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite
from saliency_bench.utils.files import write_text, write_with

EXPLAINERS = ("gradcam", "integrated_gradients:steps=20", "rise:masks=200", "centre", "random")
SHOWN = ("coffee", "rocket")
LIMIT = 16  # number of drawings, one of which is shown
FILE = "shown_maps.png"
ABOUT = """\
The upper rows show two photographs of `photos-xai` with maps of EfficientNet-Lite0. The lower row shows a drawing of
`shapes-xai` with maps of a small ResNet that was trained on this dataset. Masks are outlined. The photographs
show what maps of a real network look like. In the drawing, the network can only use pixels inside the mask. For this
metric, {direction}. Individual samples like these do not support a conclusion.
"""


def measured() -> list[str]:
    """Return the metrics that need a map and at most its mask, a classifier and labels."""
    cheap = {"maps", "masks", "curves", "labels"}
    names = [name for name in registry.names("metrics") if set(load_metric(name).inputs) <= cheap]
    return [name for name in names if name not in ("saliency_cauc", "saliency_cdrop")]  # compare two classes


def write(folder: Path, models: Path) -> None:
    """Write the picture into the folder of the metrics' pages, and a table into each page with scores."""
    rows = sb.load_dataset("photos-xai", split="test")
    rows = rows.select([index for index, name in enumerate(rows["image_id"]) if name in SHOWN])
    photographs = rows, write_efficientnet_lite(models / "lite0")
    drawings = sb.load_dataset(str(models / "shapes-xai"), split="test"), models / "ResNet"
    shown = scored(models / "run-photos", *photographs, target="predicted", label_map="photos_to_imagenet")
    drawn = scored(models / "run-shapes", *drawings, limit=LIMIT)
    drawing = str(drawn.groupby("image_id").correct.first().idxmax())
    write_with(folder / FILE, partial(draw, rows=[*((*photographs, name) for name in SHOWN), (*drawings, drawing)]))
    scores = pd.concat([shown, drawn[drawn.image_id == drawing]])
    for name in measured():
        path = folder / f"{name}.md"
        text = path.read_text(encoding="utf-8")
        write_text(path, with_picture(text, name, scores[scores.metric == name]))


def scored(out: Path, dataset: Dataset, model: Path, **settings: object) -> pd.DataFrame:
    """Run the metrics and return the records with the column `correct` of the predictions."""
    sb.run(dataset=dataset, model=str(model), explainers=EXPLAINERS, metrics=measured(), out=out, device="cpu",
           progress=False, **settings)  # fmt: skip
    predictions = pd.read_parquet(out / "predictions.parquet")[["image_id", "correct"]]
    return pd.read_parquet(out / "records.parquet").merge(predictions, on="image_id")


def with_picture(text: str, name: str, records: pd.DataFrame) -> str:
    """Return a page with the picture and the table of scores inserted before the heading "How to use"."""
    table = records.pivot_table("value", "image_id", "explainer", sort=False)
    names = [text.partition(":")[0] for text in EXPLAINERS]
    title = name.removeprefix("saliency_").replace("_", " ")
    lines = [f"| {title} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for image in [*(name for name in SHOWN if name in table.index), *table.index.difference(SHOWN)]:
        label = image if image in SHOWN else "the drawing"
        lines.append(f"| {label} | {' | '.join(cell(table.loc[image].get(explainer)) for explainer in names)} |")
    direction = f"{'higher' if load_metric(name).higher_is_better else 'lower'} is better"
    part = "\n\n".join([f"![maps of two photographs and of a drawing]({FILE})", "\n".join(lines),
                        ABOUT.format(direction=direction)])  # fmt: skip
    head, mark, rest = text.partition("\n## How to use")
    return f"{head}\n## On a photograph and on a drawing\n\n{part}{mark}{rest}"


def cell(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else f"{value:.2f}"


def draw(path: Path, rows: Sequence[tuple[Dataset, Path, str]]) -> None:
    """Draw a row of maps for each image, given as (dataset, model, image id)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 2.2 * len(rows)), dpi=100, layout="constrained")
    for axes, (dataset, model, name) in zip(figure.subplots(len(rows), len(EXPLAINERS) + 1), rows, strict=True):
        row = dataset[dataset["image_id"].index(name)]
        classifier = sb.load_classifier(str(model), device="cpu")
        batch = classifier.prepare([row])
        axes[0].imshow(batch.images[0].permute(1, 2, 0).numpy())
        axes[0].set_title(name if name in SHOWN else "a drawing", fontsize=10)
        for axis, explainer in zip(axes[1:], EXPLAINERS, strict=True):
            seen = sb.explain(row["image"], classifier, explainer, image_id=name)
            axis.imshow(seen.overlay)
            axis.set_title(explainer.partition(":")[0].replace("_", " "), fontsize=10)
        for axis in axes:
            axis.axis("off")
            axis.contour(np.asarray(batch.masks[0]), levels=[0.5], colors="white", linewidths=1)
    figure.savefig(path, format="png", metadata={"Software": None})
