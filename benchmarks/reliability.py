"""Compare the reliability of a map, from halves of its draws, with the correlation of the maps of two seeds.

example:
  python benchmarks/reliability.py           # a few minutes; the tables of docs/reliability.md

The first table uses a law whose reliability is known: a signal, and draws with noise. The second table uses a small
network with weights from the package's random numbers, and runs each explainer with several seeds.
"""

from collections.abc import Iterator
from itertools import combinations

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


def known_law(draws: int, known: float, maps: int = 1000, pixels: int = 256) -> tuple[float, float, float]:
    """Return (mean, 5th, 95th percentile) of the reliability from halves, for maps whose reliability is known."""
    rng = np.random.default_rng(draws)
    width = np.sqrt(draws * (1 - known) / known)  # so that signal / (signal + noise / draws) = known
    every = rng.normal(size=(maps, 1, pixels)) + width * rng.normal(size=(maps, draws, pixels))
    even, odd = (every[:, start::2].mean(axis=1)[:, None] for start in (0, 1))
    found = reliability(even, odd)
    return found.mean(), *np.percentile(found, [5, 95])


def network() -> nn.Module:
    """Return two convolutions and a linear layer."""
    module = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, 2, 1), nn.ReLU(),
                           nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES))  # fmt: skip
    for number, parameter in enumerate(module.parameters()):
        parameter.data = torch.from_numpy(uniform(number, parameter.numel()) - np.float32(0.5)).view(parameter.shape)
    return module


def of_network() -> Iterator[tuple[str, float, float, int | None]]:
    """Yield (explainer, mean correlation of the maps of two seeds, median reliability, draws that reach 0.9)."""
    classifier = sb.load_classifier(network(), mean=0, std=1, device="cpu")
    images = torch.from_numpy(uniform(99, IMAGES * 3 * SIDE**2)).view(IMAGES, 3, SIDE, SIDE)
    target = one_hot(list(range(IMAGES)), CLASSES)
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


def main() -> None:
    """Print both tables."""
    print("| draws | reliability | mean of what halves say | 5 to 95 % of maps |\n| ---: | ---: | ---: | ---: |")
    for draws, known in KNOWN:
        mean, low, high = known_law(draws, known)
        print(f"| {draws} | {known:.2f} | {mean:.3f} | {low:.2f} to {high:.2f} |")
    print("\n| explainer | correlation of two seeds | reliability, median | draws that reach 0.9 |")
    print("| --- | ---: | ---: | ---: |")
    for name, between, median, wanted in of_network():
        print(f"| `{name}` | {between:.2f} | {median:.2f} | {f'{wanted:,}' if wanted else '–'} |")


if __name__ == "__main__":
    main()
