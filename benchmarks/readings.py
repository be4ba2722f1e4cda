"""Compare interpretations of mIoU, pointing game and iAUC with the numbers of the Saliency-Bench paper for Pet-XAI.

example:
  python benchmarks/readings.py --source raw/oxford-iiit-pet --work readings --images 24

The paper does not specify the threshold of a map, the treatment of negative values and of the trimap's border, or the
starting image of insertion. In this script, the paper's six methods explain predictions of EfficientNet-Lite0 (extra
`demo`) for some pets, with cheap settings. Each interpretation ("reading") of the three metrics is compared with the
published numbers for ResNet-18. Network and images differ from the paper, so the question is whether a reading is close
to all six numbers at once. The script prints Markdown tables; `--work` stores the dataset and the maps.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import findings_page as page
import numpy as np
import torch

import saliency_bench as sb
from saliency_bench import Classifier
from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite
from saliency_bench.compute.scoring.samples import score_samples

# Table 2 of the paper, Pet-XAI and ResNet-18: mIoU, pointing game, iAUC.
PRINTED = {
    "gradcam": (0.1564, 0.3215, 0.7596),
    "gradcam_plus_plus": (0.1631, 0.3352, 0.7694),
    "integrated_gradients": (0.1752, 0.2465, 0.5799),
    "input_x_gradient": (0.1790, 0.3583, 0.5451),
    "occlusion": (0.1820, 0.3675, 0.7894),
    "rise": (0.1855, 0.3738, 0.7924),
}
OPTIONS = {"integrated_gradients": {"steps": 8}, "occlusion": {"window": 56, "stride": 56}, "rise": {"masks": 40}}
BASELINES = ("random", "centre")
CELLS = 7  # number of cells per side of the network's last layer
TOLERANCE = 15  # pixels within this distance of the mask count as hits, as in TorchRay
SHOWN = 6  # number of readings in a table, in addition to the readings of the package's metrics
USUAL = ("signed, > 0.5; border out", "peak; border out", "black")
STARTS = ("black", "mean", "blur")
Readings = dict[str, dict[str, float]]  # {reading: {explainer: mean}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, required=True, metavar="DIR", help="raw Oxford-IIIT Pet, or a subset")
    parser.add_argument("--work", type=Path, default=Path("readings"), metavar="DIR", help="dataset and maps")
    parser.add_argument("--images", type=int, default=24, metavar="N", help="number of pets")
    parser.add_argument("--inserted", type=int, default=12, metavar="N", help="number of pets for the readings of iAUC")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=PRINTED,
        default=list(PRINTED),
        metavar="M",
        help="some of the paper's six methods",
    )
    args = parser.parse_args()
    names = [*args.methods, *BASELINES]
    classifier = sb.load_classifier(write_efficientnet_lite(args.work / "lite0"), device="cpu")
    images, masks, labels = pets(classifier, args.source, args.work, args.images)
    maps = maps_of(classifier, images, names, args.work / "maps.npz")
    shares = {name: f"{of_border.mean():.2f}" for name, of_border in masks.items()}
    print(f"{len(images)} pets; the mask's share of the frame: {shares}\n")
    print(table("mIoU", 0, means(overlaps, maps, masks, labels)))
    print(table("pointing game", 1, means(hits, maps, masks, labels)))
    print(table("iAUC", 2, areas(classifier, images[: args.inserted], maps, args.inserted)))


def pets(
    classifier: Classifier, source: Path, work: Path, count: int
) -> tuple[torch.Tensor, dict[str, np.ndarray], list[int]]:
    """Return (images (B, 3, H, W), {"border in" or "border out": masks}, labels) of pets of different breeds."""
    masks: dict[str, np.ndarray] = {}
    for name, border in (("border out", False), ("border in", True)):
        folder = work / f"pets-{name.replace(' ', '-')}"
        if not folder.exists():
            sb.build("pet-xai", folder, source, border=border, progress=False)
        rows = [row for split in ("train", "validation", "test") for row in sb.load_dataset(str(folder), split=split)]
        rows = sorted((row for row in rows if row["mask"] is not None), key=lambda row: row["image_id"])
        batch = classifier.prepare(rows[:: max(len(rows) // count, 1)][:count])
        masks[name] = batch.masks.numpy()
    return batch.images, masks, batch.labels.tolist()


def maps_of(classifier: Classifier, images: torch.Tensor, names: Sequence[str], path: Path) -> dict[str, np.ndarray]:
    """Return {explainer: maps (B, H, W)} for the predicted classes. The maps are computed once and stored."""
    maps = dict(np.load(path)) if path.exists() else {}
    with torch.no_grad():
        target = sb.targets.one_hot(classifier(images).argmax(dim=1).tolist(), 1000)
    for name in names:
        if name not in maps:
            explainer = sb.load_explainer(name, **OPTIONS.get(name, {}))
            parts = [explainer(classifier, images[i : i + 8], target[i : i + 8]) for i in range(0, len(images), 8)]
            maps[name] = torch.cat(parts).numpy()
            np.savez(path, **maps)
            print(name, flush=True)
    return {name: maps[name] for name in names}


def means(
    score: Callable[[np.ndarray, np.ndarray], Iterator[tuple[str, float]]],
    maps: dict[str, np.ndarray], masks: dict[str, np.ndarray], labels: list[int],
) -> Readings:  # fmt: skip
    """Return two means of each reading: over images, and over the means of the classes."""
    readings: Readings = {}
    for explainer, of_explainer in maps.items():
        for border, of_border in masks.items():
            scores: dict[str, list[float]] = {}
            for values, mask in zip(of_explainer.astype(np.float64), of_border, strict=True):
                for reading, value in score(values, mask):
                    scores.setdefault(f"{reading}; {border}", []).append(value)
            for reading, numbers in scores.items():
                readings.setdefault(reading, {})[explainer] = float(np.mean(numbers))
                readings.setdefault(f"{reading}; per class", {})[explainer] = per_class(numbers, labels)
    return readings


def per_class(scores: list[float], labels: list[int]) -> float:
    """Return the mean over the means of the classes."""
    by_class: dict[int, list[float]] = {}
    for score, label in zip(scores, labels, strict=True):
        by_class.setdefault(label, []).append(score)
    return float(np.mean([np.mean(of_class) for of_class in by_class.values()]))


def overlaps(values: np.ndarray, mask: np.ndarray) -> Iterator[tuple[str, float]]:
    """Yield (reading, IoU of a map and a mask (H, W))."""
    yield from page.overlaps(values, mask)
    for reading, value in page.overlaps(*in_cells(values, mask)):
        region, *background = reading.split("; ")
        yield "; ".join([region, f"{CELLS} x {CELLS} cells", *background]), value
    yield "sum of minima / sum of maxima", page.soft_iou(values, mask)


def in_cells(values: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (map, mask) at the size of the last layer: mean values, and whether the mask covers most of a cell."""
    height, width = values.shape[0] // CELLS, values.shape[1] // CELLS
    cells = (grid.reshape(CELLS, height, CELLS, width).mean(axis=(1, 3)) for grid in (values, mask.astype(np.float64)))
    scaled, share = cells
    return scaled, share > 0.5


def hits(values: np.ndarray, mask: np.ndarray) -> Iterator[tuple[str, float]]:
    """Yield (reading, whether the peak of a map is inside its mask).

    If several pixels are the peak, yield the share of them that are inside.
    """
    rows, columns = np.nonzero(mask)
    for sign, kind in (("peak", values), ("peak of the absolute values", np.abs(values)), ("lowest point", -values)):
        peaks = kind == kind.max()
        yield sign, float(mask[peaks].mean())
        yield f"{sign}, first in reading order", float(mask.ravel()[peaks.argmax()])
        row, column = np.unravel_index(peaks.argmax(), peaks.shape)
        squares = (rows - row) ** 2 + (columns - column) ** 2
        yield f"{sign}, {TOLERANCE} pixels of tolerance", float(squares.min() < TOLERANCE**2)
    scaled, inside = in_cells(values, mask)
    yield f"peak of {CELLS} x {CELLS} cells", float(inside[scaled == scaled.max()].mean())


def areas(classifier: Classifier, images: torch.Tensor, maps: dict[str, np.ndarray], count: int) -> Readings:
    """Return, for each starting image, the area under the insertion curve, and this area divided by p of the image."""
    with torch.no_grad():
        p = torch.softmax(classifier(images), dim=1).amax(dim=1).numpy()
    readings: Readings = {}
    for start in STARTS:
        for explainer, of_explainer in maps.items():
            stored = torch.from_numpy(of_explainer[:count])
            scores = score_samples("saliency_insertion", images, classifier, lambda *_, maps=stored: maps,
                                   batch_size=count, steps=8, reference=start)  # fmt: skip
            readings.setdefault(start, {})[explainer] = float(np.mean(scores))
            readings.setdefault(f"{start}, over p of the image", {})[explainer] = float(np.mean(scores / p))
    return readings


def table(title: str, column: int, readings: Readings) -> str:
    """Return a table of the readings closest to the paper's numbers, each with its largest difference from them."""

    names = list(next(iter(readings.values())))
    printed = {name: numbers[column] for name, numbers in PRINTED.items() if name in names}

    def farthest(reading: str) -> float:
        return max(abs(readings[reading][name] - number) for name, number in printed.items())

    nearest = sorted(readings, key=farthest)[:SHOWN]
    nearest += [reading for reading in USUAL if reading in readings and reading not in nearest]
    first = [f"{printed[name]:.3f}" if name in printed else "" for name in names]
    lines = [f"{title}: {len(readings)} readings", "", f"| reading | {' | '.join(names)} | farthest |",
             "|---|" + "---|" * (len(names) + 1),
             f"| printed | {' | '.join(first)} | |"]  # fmt: skip
    for reading in nearest:
        cells = " | ".join(f"{readings[reading][name]:.3f}" for name in names)
        lines.append(f"| {reading} | {cells} | {farthest(reading):.3f} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
