"""Compare the reliability of a map, estimated from halves of its draws, with the correlation of the maps of two seeds.

example:
  python benchmarks/reliability.py           # a few minutes; the tables of docs/reliability.md
  python benchmarks/reliability.py --photographs 2    # EfficientNet-Lite0; the table of docs/speed.md

The first table uses simulated maps with a known reliability: a signal and noisy draws. The second table uses a small
network with weights from the package's random numbers, and runs each explainer with several seeds. The third table
compares explainers that stop at a requested reliability per image with explainers that use all draws: passes, CPU
seconds, and the correlation between the maps of two seeds, which is the actual reliability. With --photographs, only
the third table is printed, for a trained network and photographs from scikit-image.
"""

import argparse
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
import torch
from torch import nn

import saliency_bench as sb
from saliency_bench.maps import reliability
from saliency_bench.read.statistics.reliability import Reliability
from saliency_bench.target_weights import one_hot
from saliency_bench.utils.seeds import uniform

CLASSES, IMAGES, SEEDS, SIDE = 8, 6, 6, 32
KNOWN = [(draws, known) for known in (0.3, 0.6, 0.9) for draws in (2, 10, 101)]
EXPLAINERS = {
    "rise": ("masks", (400, 1600, 6400)),
    "smoothgrad": ("samples", (4, 50)),
    "gradient_shap": ("samples", (10, 50, 200)),
    "gradient_shap:baselines=200": ("samples", (50, 200)),
    "lime": ("samples", (20, 100)),
}
STOPPING = ["smoothgrad", "gradient_shap:baselines=200,samples=200", "lime:samples=200", "rise"]
STOPPING_ON_PHOTOGRAPHS = ["smoothgrad", "gradient_shap:baseline=zero", "lime", "rise"]
WANTED = 0.9


def known_law(draws: int, known: float, maps: int = 1000, pixels: int = 256) -> tuple[float, float, float]:
    """Return (mean, 5th, 95th percentile) of the reliability from halves, for maps of known reliability."""
    rng = np.random.default_rng(draws)
    width = np.sqrt(draws * (1 - known) / known)  # signal / (signal + noise / draws) is then `known`
    every = rng.normal(size=(maps, 1, pixels)) + width * rng.normal(size=(maps, draws, pixels))
    even, odd = (every[:, start::2].mean(axis=1)[:, None] for start in (0, 1))
    found = reliability(even, odd)
    return found.mean(), *np.percentile(found, [5, 95])


def network() -> nn.Module:
    """Return a network with two convolutions and a linear layer."""
    module = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, 2, 1), nn.ReLU(),
                           nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES))  # fmt: skip
    for number, parameter in enumerate(module.parameters()):
        parameter.data = torch.from_numpy(uniform(number, parameter.numel()) - np.float32(0.5)).view(parameter.shape)
    return module


def small_inputs() -> tuple[sb.Classifier, torch.Tensor, torch.Tensor]:
    """Return the small network, images of noise, and their target."""
    classifier = sb.load_classifier(network(), mean=0, std=1, device="cpu")
    images = torch.from_numpy(uniform(99, IMAGES * 3 * SIDE**2)).view(IMAGES, 3, SIDE, SIDE)
    return classifier, images, one_hot(list(range(IMAGES)), CLASSES)


def of_network() -> Iterator[tuple[str, float, float, int | None]]:
    """Yield (explainer, mean correlation of the maps of two seeds, median reliability, draws that reach 0.9)."""
    classifier, images, target = small_inputs()
    for name, (option, counts) in EXPLAINERS.items():
        for count in counts:
            text = f"{name}{',' if ':' in name else ':'}{option}={count}"
            explainer = sb.load_explainer(text)
            made = [
                explainer.seeded(seed).made(classifier, images, target, seeds=[100 * seed + i for i in range(IMAGES)])
                for seed in range(SEEDS)
            ]
            maps = np.stack([one.maps.flatten(1).numpy() for one in made])  # (seeds, images, pixels)
            pairs = combinations(range(SEEDS), 2)
            between = [np.corrcoef(maps[a, i], maps[b, i])[0, 1] for a, b in pairs for i in range(IMAGES)]
            values = [value for one in made for value in one.reliability if value is not None]
            about = Reliability(median=float(np.median(values)), n=len(values), draws=count)
            yield text, float(np.mean(between)), about.median, about.wanted


def photographs(count: int) -> tuple[sb.Classifier, torch.Tensor, torch.Tensor]:
    """Return EfficientNet-Lite0, photographs from scikit-image, and their predicted classes as a target."""
    from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite

    with TemporaryDirectory() as folder:
        classifier = sb.load_classifier(write_efficientnet_lite(Path(folder, "lite0")), device="cpu")
        data = sb.build("photos-xai", Path(folder, "photographs"), progress=False)
        rows = list(sb.load_dataset(str(data), split="test"))[:count]
        images = classifier.prepare(rows).images
    with torch.no_grad():
        return classifier, images, one_hot(classifier.eval()(images).argmax(dim=1).tolist(), 1000)


def stopping(texts: list[str], classifier: sb.Classifier, images: torch.Tensor, target: torch.Tensor) -> Iterator[str]:
    """Yield a row per explainer: draws, passes and seconds, with and without stopping, and the actual reliability."""
    for text in texts:
        wanted = f"{text}{',' if ':' in text else ':'}reliability={WANTED}"
        taken = {}
        for name, seed in ((wanted, 1), (text, 0), (wanted, 0)):  # the first round only warms up, but its maps are used
            explainer, passes, start = sb.load_explainer(name).seeded(seed), classifier.passes, process_time()
            made = explainer.made(classifier, images, target, seeds=[100 * seed + i for i in range(len(images))])
            taken[name, seed] = made, classifier.passes - passes, process_time() - start
        (other, *_), (_, before, slow), (made, after, fast) = taken.values()
        between = [np.corrcoef(a.flatten(), b.flatten())[0, 1] for a, b in zip(made.maps, other.maps, strict=True)]
        reached = sum(value is not None and value >= WANTED for value in made.reliability)
        yield (
            f"| `{text}` | {before / len(images):,.0f} | {min(made.draws):,} to {max(made.draws):,} | {reached} of "
            f"{len(images)} | {after / before:.2f} | {fast / slow:.2f} | {np.mean(between):.2f} |"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--photographs", type=int, metavar="N", help="print only the third table, for N photographs")
    count = parser.parse_args().photographs
    torch.set_num_threads(1)
    if count is None:
        first_tables()
    texts = STOPPING if count is None else STOPPING_ON_PHOTOGRAPHS
    inputs = small_inputs() if count is None else photographs(count)
    print(
        f"\n| explainer | draws | draws at reliability={WANTED} | reached | passes | time | correlation of two seeds |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in stopping(texts, *inputs):
        print(row, flush=True)


def first_tables() -> None:
    """Print the tables with reliabilities estimated from halves."""
    print("| draws | reliability | mean estimate from halves | 5 to 95 % of maps |\n| ---: | ---: | ---: | ---: |")
    for draws, known in KNOWN:
        mean, low, high = known_law(draws, known)
        print(f"| {draws} | {known:.2f} | {mean:.3f} | {low:.2f} to {high:.2f} |")
    print("\n| explainer | correlation of two seeds | reliability, median | draws that reach 0.9 |")
    print("| --- | ---: | ---: | ---: |")
    for name, between, median, wanted in of_network():
        print(f"| `{name}` | {between:.2f} | {median:.2f} | {f'{wanted:,}' if wanted else '–'} |")


if __name__ == "__main__":
    main()
