"""A planted truth: how every metric ranks the mask itself, blurred, shifted, inverted, and noise, as "explanations".

example:
  python benchmarks/planted.py --out docs/metrics.md

Trains the demo's small ResNet on shapes-xai (or takes --model), scores the planted maps of the test split by every
metric that needs nothing but maps, masks, labels, the classifier and other samples, and writes the table as a page in a
few minutes.
"""

import argparse
import atexit
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torchvision.transforms.functional import gaussian_blur

from saliency_bench import registry
from saliency_bench.bound_metric import Metric, load_metric
from saliency_bench.utils.files import write_text
from saliency_bench.utils.seeds import seed_of, uniform

ORDER = ("mask", "blurred", "shifted", "noise", "inverted")  # from the best explanation to the worst
NEEDED = {"maps", "masks", "curves", "labels"}

PAGE = """# How the metrics rank a planted truth

In shapes-xai the class is decided by one object, whose mask is known. Here five maps take the place of explanations:
the mask itself, the mask blurred (a Gaussian whose sigma is 1/32 of the image's side), shifted (by 1/16 of it), uniform
noise, and the mask inverted. They are listed from the best to the worst, and a metric should put them in this
order.

Every alignment metric does. These metrics compare a map with the mask, so this is their sanity check. Faithfulness
metrics query the classifier instead. If they order the five maps differently, the reason is the classifier or the
pictures that the metric shows to it:

- saliency_deletion, saliency_roae and saliency_cds prefer noise to a shifted mask. Black dots all over a picture are
  unlike anything the network was trained on, more so than one black patch that misses part of the object. A score that
  falls quickly therefore does not prove that the classifier used the deleted pixels. Insertion and saliency_kae put all
  five maps in order, and so does saliency_road, which fills in removed pixels from their neighbours.
- saliency_cauc prefers the blurred mask to the mask: slightly fewer pixels are above half of its range, which alone
  makes the score smaller, and the middle of the object is removed first. Pixels that are not salient are never removed
  (see its card).
- saliency_confidence prefers the inverted mask to noise: half of an image's pixels, scattered over another, are unlike
  anything the network was trained on. saliency_correctness puts all five maps in order.
- saliency_own_region prefers the inverted mask to all others: a picture without its object is still most of a picture,
  and the hole has the object's outline. The score of a region means little without the region's size.
- A difference in the third digit between the mask and its blurred copy is small compared with the effect of choosing
  another metric. The pixels inside a mask are tied and follow the fixed pseudo-random order; in a blurred mask the
  middle comes first.

saliency_mcs, saliency_mcr and saliency_idr compare the maps of an object classifier with the maps of a scene
classifier, so their planted truth is a pair of maps. Both classifiers are assumed to be right. The scores equal the
values worked out by hand:

| maps for the object, and for the scene | saliency_mcs ↑ | saliency_mcr ↑ | saliency_idr ↓ |
|---|---|---|---|
| the mask; the rest, and the mask once the object is gone | 1 | 1 | 0 |
| the mask for all, or one map for all pictures | 0 | 0 | 0.5 |
| the rest; the mask, and nothing once the object is gone | -1 | -1 | 1 |

Measured on {samples} samples of the test split ({side} x {side} pixels) with a ResNet of {weights:.1f} million weights
whose test accuracy is {accuracy:.1%}; mean of each metric with its default options. An arrow says whether higher or
lower is better; bold marks a map that is out of order, that is, scores better than a map further left.

{table}

Made by `python benchmarks/planted.py --out docs/metrics.md`.
"""


def planted(masks: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Return {name: float32 maps (B, H, W)} of bool masks (B, H, W)."""
    truth = masks.astype(np.float32)
    side = masks.shape[2]
    size = 2 * max(1, side // 16) + 1
    noise = uniform(seed_of("planted", seed), masks.size).reshape(masks.shape)
    return {
        "mask": truth,
        "blurred": gaussian_blur(torch.from_numpy(truth), [size, size], [side / 32] * 2).numpy(),
        "shifted": np.roll(truth, max(1, side // 16), axis=2),
        "noise": noise,
        "inverted": 1 - truth,
    }


def comparable() -> list[Metric]:
    """Return the metrics that need only maps, masks, labels and curves."""
    metrics = [load_metric(name) for name in registry.names("metrics")]
    return [metric for metric in metrics if set(metric.inputs) <= NEEDED]


def of_partners() -> list[Metric]:
    """Return the metrics that use several samples at once."""
    return [metric for metric in map(load_metric, registry.names("metrics")) if metric.declaration.plan is not None]


def by_partners(
    metric: Metric, images: torch.Tensor, labels: np.ndarray, maps: np.ndarray, classifier: object
) -> float:
    """Return its value for an explainer that gives each image its planted map."""
    from saliency_bench.compute.scoring.samples import score_parts, score_samples

    places = {image.numpy().tobytes(): place for place, image in enumerate(images)}

    def planted_map(classifier: object, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(maps[[places[image.numpy().tobytes()] for image in images]])

    given = (metric, images, classifier, planted_map)
    if metric.aggregate is None:
        return float(np.nanmean(score_samples(*given, labels=labels)))
    parts = score_parts(*given, labels=labels)
    there = parts[np.isfinite(parts).any(axis=1)]
    return float(metric.aggregate(there.mean(axis=0)[None], dict(metric.options))[0])


def row(metric: Metric, means: list[float]) -> str:
    """Return a line of the table; scores of maps that beat a better explanation are bold."""
    goodness = np.array(means) * (1 if metric.higher_is_better else -1)
    cells = [f"{mean:.3f}" for mean in means]
    marked = [
        f"**{cell}**" if place and goodness[place] > goodness[:place].min() + 5e-4 else cell
        for place, cell in enumerate(cells)
    ]
    return f"| {metric.name} {'↑' if metric.higher_is_better else '↓'} | " + " | ".join(marked) + " |"


def main() -> None:
    from saliency_bench.compute.classifiers.loading import load_classifier
    from saliency_bench.compute.scoring.perturbation import Curves, right_classes
    from saliency_bench.compute.training import train
    from saliency_bench.data.building import build
    from saliency_bench.data.loading import load_dataset
    from saliency_bench.push_scripts.demo import EPOCHS, SIZE, small_resnet
    from saliency_bench.target_weights import one_hot
    from saliency_bench.utils.files import read_json

    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="folder of a network trained on shapes-xai (default: trained now)")
    parser.add_argument("--limit", type=int, default=128, metavar="N", help="samples; default: 128")
    parser.add_argument("--out", type=Path, help="the page to write (default: printed)")
    args = parser.parse_args()

    work = Path(tempfile.mkdtemp(prefix="planted-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    dataset = build("shapes-xai", work / "shapes-xai", size=SIZE, progress=False)
    model = Path(args.model) if args.model else work / "resnet"
    if not args.model:
        train(dataset=str(dataset), model=small_resnet(), out=model, epochs=EPOCHS, size=SIZE, progress=False)
    classifier = load_classifier(str(model), device="cpu")
    rows = load_dataset(str(dataset), split="test").select(range(args.limit))

    scores: dict[tuple[str, str], list[np.ndarray]] = {}
    for start in range(0, len(rows), 16):
        batch = classifier.prepare([rows[index] for index in range(start, min(start + 16, len(rows)))])
        target = one_hot(batch.labels, len(classifier.labels))
        for name, maps in planted(batch.masks.numpy(), seed=start).items():
            labels = right_classes(batch.labels.numpy(), len(classifier.labels))
            given = {"maps": maps, "masks": batch.masks.numpy(), "labels": labels}
            given["curves"] = Curves(classifier, batch.images, target, maps)
            for metric in comparable():
                found = metric(**{need: given[need] for need in metric.inputs})
                scores.setdefault((metric.name, name), []).append(found)
    whole = classifier.prepare([rows[index] for index in range(len(rows))])
    of_all = planted(whole.masks.numpy())
    lines = ["| | " + " | ".join(ORDER) + " |", "|---|" + "---|" * len(ORDER)]
    for metric in sorted(comparable(), key=lambda metric: "curves" in metric.inputs):
        lines.append(row(metric, [np.nanmean(np.concatenate(scores[metric.name, name])) for name in ORDER]))
    for metric in of_partners():
        values = [by_partners(metric, whole.images, whole.labels.numpy(), of_all[name], classifier) for name in ORDER]
        lines.append(row(metric, values))
    page = PAGE.format(
        samples=len(rows),
        side=SIZE,
        weights=sum(weight.numel() for weight in classifier.parameters()) / 1e6,
        accuracy=read_json(model / "training_log.json")["test_accuracy"],
        table="\n".join(lines),
    )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(args.out, page)
    print(page)


if __name__ == "__main__":
    main()
