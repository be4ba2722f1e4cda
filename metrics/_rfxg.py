"""What the four scores of P3 (RFxG: reference frame and granularity) share: own maps, one curve each, its area.

Each asks its own question about the classifier's top class A and gets the explainer's map for that question. The top
pixels of the map, a share of 0.1 to 0.9 by 0.1, are taken out of the image; probabilities of all classes are read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.explaining.map_provider import MapProvider
from saliency_bench.reasons import NO_PROBABILITIES_CHANGED
from saliency_bench.scoring.perturbation import Curves, area, check_path
from saliency_bench.target import no_probabilities
from saliency_bench.types import Images, Target

PAPER = "Elisha et al., Rethinking Saliency Maps, AAAI 2026, https://arxiv.org/abs/2511.13081"
SHARES = np.linspace(0.1, 0.9, 9)


@dataclass(frozen=True)
class Question:
    """What a sample's map is to explain (1, K), and the value of probabilities f (N, K) where the whole image has g."""

    target: Target
    value: Callable[[np.ndarray, np.ndarray], np.ndarray]


Ask = Callable[[int, np.ndarray], Question | None]  # (A, probabilities of the image); None: undefined


def scores(
    ask: Ask,
    images: Images,
    classifier: nn.Module,
    logits: Tensor,
    explain: MapProvider,
    seeds: Sequence[int],
    reference: str,
    published: bool,
) -> np.ndarray:
    """Float64 (B,): the area under a question's value, divided by 0.8; NaN where there is none, or no probabilities.

    published: as the authors' code, the area is not divided, and the number of pixels is rounded down.
    """
    check(reference=reference)
    whole, broken = logits.double().softmax(dim=1).cpu().numpy(), no_probabilities(logits)
    asked = [None if without else ask(int(p.argmax()), p) for p, without in zip(whole, broken, strict=True)]
    kept = [index for index, question in enumerate(asked) if question is not None]
    questions = [question for question in asked if question is not None]
    found = np.full(len(images), np.nan)
    if not kept:
        return found
    images = images if len(kept) == len(images) else images[kept]
    target = torch.cat([question.target for question in questions]).to(images.device)
    maps = explain(images, target, kept)
    curves = Curves(classifier, images, target, maps, [seeds[index] for index in kept])
    pixels = curves.height * curves.width
    counts = np.floor(SHARES * pixels) if published else np.rint(np.arange(1, 10) * (pixels / 10))
    along = curves.probabilities("rest", reference, counts.astype(int)).astype(np.float64)
    values = np.stack([q.value(f, g) for q, f, g in zip(questions, along, whole[kept], strict=True)])
    explain.faulty |= {kept[place]: NO_PROBABILITIES_CHANGED for place in np.flatnonzero(curves.undefined)}
    found[kept] = area(values, SHARES) * (SHARES[-1] - SHARES[0] if published else 1)
    return found


def check(*, reference: str, **others: object) -> None:
    check_path(reference=reference)
