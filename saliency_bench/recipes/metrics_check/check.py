"""Score correct and damaged maps with every metric, and count the images for which the correct map scores higher.

Each kind of evidence has its own run, so an interrupted check can be resumed. The counts of all runs are written to a
small CSV file, which is the source of the page and the figure. Interventions on the images verify that the network uses
the intended evidence.
"""

import csv
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value
from scipy.stats import binomtest

from saliency_bench.bound_metric import list_metrics, load_metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.run import run
from saliency_bench.read.finished_run import Run, read_run
from saliency_bench.read.statistics.intervals import wilson
from saliency_bench.read.statistics.paired_test import ALPHA
from saliency_bench.recipes.metrics_check.damaged_maps import DAMAGED, EXPLAINERS, RIGHT
from saliency_bench.recipes.metrics_check.drawings import (
    CELL,
    GROUND,
    TEXTURES,
    Scene,
    draw,
    inside,
    quadrant_of,
)
from saliency_bench.recipes.metrics_check.known_networks import KINDS, network
from saliency_bench.utils.files import write_text

IMAGES, SMOKE_IMAGES = 64, 4  # number of pictures for each kind of evidence
SMOKE_KINDS = ("colour", "context")
Z = 1.959964  # 95 %
TIE = 1e-6  # relative difference below which two scores count as equal
# {metric that cannot be checked: reason}
NOT_CHECKED = {
    "saliency_kar": "retrains networks on the marked pixels, and it is unknown which pixels a retrained network uses",
    "saliency_roar": "retrains networks without the marked pixels, and it is unknown which pixels a retrained "
    "network uses",
    "saliency_crowd_auc": "needs people's answers",
    "saliency_correctness": "has one score for all images and no scores for individual images",
}
# Removed pixels are replaced by the grey of the scene instead of black.
ON_GREY = ("saliency_insertion:reference=mean", "saliency_deletion:reference=mean")
# Metrics that compare an object model with a scene model need a second network and a picture without the object. Only
# this kind of evidence has both.
PAIRED, OF_PAIRS = "colour", ("saliency_mcs", "saliency_mcr", "saliency_idr")
FLIPS = {
    "evidence replaced": "the evidence is replaced by evidence for the rival class",
    "evidence erased": "the evidence is erased, so only the weaker evidence for the rival remains",
    "all else changed": "everything except the evidence is changed",
}


@dataclass(frozen=True)
class Count:
    """Number of images on which a metric scores the correct map higher than a damaged map.

    Attributes:
        kind: Name of the kind of evidence.
        metric: Name of the metric with its non-default options, or "intervention" for changes to the image.
        damage: Name of the damage to the map, or of the change to the image.
        ahead: Number of images for which the correct map has the better score or, for an intervention, for which the
            decision changes.
        ties: Number of images for which both maps have the same score.
        behind: Number of images for which the damaged map has the better score.
        left_out: Number of images for which at least one of the two maps has no score.
        verdict: 1 if the metric detects the damage, -1 if the damage misleads the metric, 0 if neither is significant,
            and None before `judged` is called.
    """

    kind: str
    metric: str
    damage: str
    ahead: int
    ties: int
    behind: int
    left_out: int = 0
    verdict: int | None = None

    @property
    def n(self) -> int:
        """Return the number of images for which both the correct and the damaged map have a score."""
        return self.ahead + self.ties + self.behind

    @property
    def rate(self) -> float:
        """Return the detection rate, or NaN if there are no images. A tie counts as half a detection."""
        return (self.ahead + self.ties / 2) / self.n if self.n else np.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Return the rate's 95 % Wilson interval. If there are ties, the interval is wider than necessary."""
        return wilson(self.rate, self.n, Z) if self.n else (0.0, 1.0)

    @property
    def sees(self) -> bool:
        """Return whether the correct map has the better score for significantly more images."""
        return self.verdict == 1

    @property
    def misled(self) -> bool:
        """Return whether the damaged map has the better score for significantly more images."""
        return self.verdict == -1


def judged(counts: Sequence[Count]) -> list[Count]:
    """Return the counts with verdicts from exact sign tests, which ignore ties.

    Holm's method (1979) corrects the p-values of all counts together, so the probability that any verdict is due to
    chance is at most 5 %.
    """
    p = [binomtest(count.ahead, untied).pvalue if (untied := count.ahead + count.behind) else 1.0 for count in counts]
    order = np.argsort(p, kind="stable")
    adjusted = np.maximum.accumulate(np.array(p)[order] * np.arange(len(p), 0, -1))
    significant = dict(zip(order.tolist(), adjusted < ALPHA, strict=True))
    return [replace(count, verdict=(1 if count.ahead > count.behind else -1) if significant[index] else 0)
            for index, count in enumerate(counts)]  # fmt: skip


def checked_metrics(kind: str) -> list[str]:
    """Return the metrics to check with a kind of evidence: all suitable metrics with default options, and `ON_GREY`.

    The control differs from the colour network only in the mask, so it is used only for metrics that compare a map with
    a mask.
    """
    names = [name for name in list_metrics() if name not in NOT_CHECKED and (kind == PAIRED or name not in OF_PAIRS)]
    if KINDS[kind].mask == "evidence":
        return [name for name in names if is_alignment(load_metric(name).inputs)]
    return [*names, *ON_GREY]


def is_alignment(inputs: Collection[str]) -> bool:
    """Return whether a metric with these inputs compares a map with a mask."""
    return "masks" in inputs and "explain" not in inputs


def drawings(kind: str, images: int = IMAGES, seed: int = 0) -> list[Scene]:
    """Return the first `images` drawings that are used for a kind of evidence."""
    return [_drawn(index, KINDS[kind].layout, seed) for index in range(images)]


@cache
def _drawn(index: int, layout: str, seed: int) -> Scene:
    return draw(index, layout, seed)


def decided_class(kind: str, drawing: Scene) -> int:
    """Return the class that the network `kind`, which reads only one type of evidence, must predict for a drawing."""
    return {"colour": drawing.colour[0], "quadrant": drawing.quadrant, "stripes": (*drawing.stripes, 0)[0]}[
        KINDS[kind].reads
    ]


def classifier_of(kind: str) -> Classifier:
    """Return the network `kind` as a classifier. Its normalisation uses the grey of the drawings as the mean."""
    classes = list(KINDS[kind].classes)
    return load_classifier(network(kind), mean=GROUND, std=1, labels=classes, layer="features", name=kind, device="cpu")


def dataset_of(kind: str, images: int = IMAGES, seed: int = 0) -> Dataset:
    """Return the images for a kind of evidence as a `datasets.Dataset`."""
    rows = [
        {"image_id": f"{kind}-{index:03d}", "image": drawing.picture(), "label": decided_class(kind, drawing),
         "mask": mask_of(kind, drawing).astype(np.uint8) * 255, "scene": (*drawing.stripes, 0)[0],
         "image_without_object": drawing.without_object().picture()}
        for index, drawing in enumerate(drawings(kind, images, seed))
    ]  # fmt: skip
    features = Features({"image_id": Value("string"), "image": Image(), "mask": Image(),
                         "label": ClassLabel(names=list(KINDS[kind].classes)),
                         "scene": ClassLabel(names=list(TEXTURES)), "image_without_object": Image()})  # fmt: skip
    return Dataset.from_list(rows, features=features)


def mask_of(kind: str, drawing: Scene) -> np.ndarray:
    """Return the mask of a drawing for a kind of evidence, bool (H, W)."""
    return inside(drawing.coloured[:1]) if KINDS[kind].mask == "evidence" else drawing.mask


def check_metrics(
    out: Path, images: int = IMAGES, seed: int = 0, kinds: Iterable[str] = tuple(KINDS), progress: bool = True
) -> list[Count]:
    """Compute the missing runs of the check, write the counts to `out/metrics_check.csv`, and return them.

    Args:
        out: Output folder for the runs and the CSV file.
        images: Number of images for each kind of evidence.
        seed: Seed with which the images are drawn.
        kinds: Names of the kinds of evidence.
        progress: Whether to show progress bars.
    """
    counts = []
    for kind in kinds:
        classes = KINDS[kind].classes
        folder = out / "runs" / f"{kind}-{images}-{seed}"
        other = classifier_of("context") if kind == PAIRED else None
        run(dataset=dataset_of(kind, images, seed), model=classifier_of(kind), explainers=EXPLAINERS,
            metrics=checked_metrics(kind), groups={"first": list(classes[:2]), "second": list(classes[2:])},
            other_model=other, other_label="scene" if other else None, batch_size=32, seed=seed, out=folder,
            progress=progress)  # fmt: skip
        counts += [*interventions(kind, images, seed), *counted(kind, read_run(folder))]
    write_text(out / "metrics_check.csv", as_csv(counts))
    return counts


def counted(kind: str, run: Run) -> list[Count]:
    """Return a count for each metric and each kind of damage, from the scores of a run."""
    by_name = {(cell.metric_text, cell.explainer): cell for cell in run.cells}
    counts = []
    for metric in dict.fromkeys(cell.metric_text for cell in run.cells):
        right = run.scores.oriented(by_name[metric, RIGHT])
        for damage in DAMAGED:
            cell = by_name.get((metric, damage.replace(" ", "_")))
            if cell is not None:
                counts.append(Count(kind, metric, damage, *compared(right, run.scores.oriented(cell))))
    return counts


def compared(right: np.ndarray, damaged: np.ndarray) -> tuple[int, int, int, int]:
    """Return (ahead, ties, behind, left out) for two arrays of scores. Higher is better, and a missing score is NaN."""
    both = np.isfinite(right) & np.isfinite(damaged)
    right, damaged = right[both], damaged[both]
    equal = np.abs(right - damaged) <= TIE * np.maximum(np.abs(right), np.abs(damaged))
    ahead = int((~equal & (right > damaged)).sum())
    return ahead, int(equal.sum()), int(len(right) - equal.sum() - ahead), int((~both).sum())


def interventions(kind: str, images: int = IMAGES, seed: int = 0) -> list[Count]:
    """For each type of change, count the images for which the change alters the network's decision."""
    counts, net = [], network(kind)
    for change in FLIPS:
        flips = 0
        for number, drawing in enumerate(drawings(kind, images, seed)):
            picture = torch.from_numpy(intervened(kind, drawing, change, number).picture()).permute(2, 0, 1)[None] / 255
            flips += int(net(picture).argmax()) != decided_class(kind, drawing)
        counts.append(Count(kind, "intervention", change, flips, 0, images - flips))
    return counts


def intervened(kind: str, drawing: Scene, change: str, number: int) -> Scene:
    """Return a drawing in which the evidence was replaced or erased, or in which everything else was changed."""
    reads, grid = KINDS[kind].reads, drawing.layout == "grid"
    if change == "evidence erased":
        return _without_evidence(reads, drawing)
    if change == "evidence replaced":
        if reads == "colour":
            return replace(drawing, colour=(drawing.colour[1], drawing.colour[1]))
        if reads == "stripes":
            return replace(drawing, stripes=(drawing.stripes[1], drawing.stripes[1]))
        return replace(drawing, coloured=(_moved(drawing.coloured[0], quadrant_of(drawing.coloured[1])),
                                          drawing.coloured[1]))  # fmt: skip
    # Change everything else: remove objects and rival, draw new noise, and change the properties that are not evidence.
    plain = replace(drawing, objects=(), noise=drawing.noise + 1)
    if reads == "stripes":
        return replace(plain, colour=((drawing.colour[0] + 1) % 4,), coloured=drawing.coloured[:1],
                       stripes=drawing.stripes[:1], striped=drawing.striped[:1])  # fmt: skip
    other = () if grid else ((drawing.stripes[0] + 1 + number % 3) % 4, drawing.stripes[1])
    colour = drawing.colour[0] if reads == "colour" else (drawing.colour[0] + 1) % 4
    return replace(plain, colour=(colour,), coloured=drawing.coloured[:1], stripes=other)


def _without_evidence(reads: str, drawing: Scene) -> Scene:
    if reads == "stripes":
        return replace(drawing, stripes=drawing.stripes[1:], striped=drawing.striped[1:])
    return replace(drawing, colour=drawing.colour[1:], coloured=drawing.coloured[1:])


def _moved(box: tuple[int, int, int], quadrant: int) -> tuple[int, int, int]:
    """Return a box moved to the corresponding position in a different quadrant."""
    return quadrant // 2 * CELL + box[0] % CELL, quadrant % 2 * CELL + box[1] % CELL, box[2]


def as_csv(counts: Iterable[Count]) -> str:
    """Format counts as CSV."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [field.name for field in fields(Count) if field.name != "verdict"]
    writer.writerow(columns)
    writer.writerows([getattr(count, name) for name in columns] for count in counts)
    return text.getvalue()


def read_counts(path: Path) -> list[Count]:
    """Read counts from a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Count(row["kind"], row["metric"], row["damage"],
                      *(int(row[name]) for name in ("ahead", "ties", "behind", "left_out")))
                for row in csv.DictReader(file)]  # fmt: skip
