"""Shared by the four scores of P3 (RFxG: reference frame and granularity): own maps, one curve each, its area.

Each score has its own question about the classifier's top class A and gets the explainer's map for that question. The
top pixels of the map, a share of 0.1 to 0.9 in steps of 0.1, are removed from the image, and the probabilities of all
classes are read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.read.statistics.exposures import area
from saliency_bench.score_notes import NO_PROBABILITIES_CHANGED
from saliency_bench.target_weights import activation_of, no_probabilities, probabilities
from saliency_bench.types import Images, Target

SHARES = np.linspace(0.1, 0.9, 9)


@dataclass(frozen=True)
class ExplainerQuestion:
    """A sample's question to the explainer, and the function that scores the answer.

    Attributes:
        target: (1, K), what the map explains.
        value: function that scores probabilities f (N, K), given the probabilities g of the whole image.
    """

    target: Target
    value: Callable[[np.ndarray, np.ndarray], np.ndarray]


Ask = Callable[[int, np.ndarray], ExplainerQuestion | None]  # (A, probabilities of the image); None: undefined
# (groups, A, probabilities of the image) -> the classes that a metric asks about; None: undefined
Sides = Callable[[ClassGroups, int, np.ndarray], TargetTerms | None]


def question_of(sides: Sides) -> Callable[[dict, np.ndarray, ClassGroups], list[tuple[TargetTerms, ...]]]:
    """Return the `question` of a metric, see `saliency_bench.bound_metric`."""

    def question(options: dict, probabilities: np.ndarray, groups: ClassGroups) -> list[tuple[TargetTerms, ...]]:
        """Return the classes of each sample's question."""
        terms_of_samples = [None if np.isnan(p).any() else sides(groups, int(p.argmax()), p) for p in probabilities]
        return [() if terms is None else (terms,) for terms in terms_of_samples]

    return question


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
    """Return the area under a question's value, divided by 0.8, Float64 (B,); NaN if undefined.

    It is undefined for a sample without a question or without probabilities. With `published`, like in the authors'
    code, the area is not divided and the number of pixels is rounded down.
    """
    activation = activation_of(classifier)
    whole, broken = probabilities(logits.double(), activation).cpu().numpy(), no_probabilities(logits, activation)
    all_questions = [None if without else ask(int(p.argmax()), p) for p, without in zip(whole, broken, strict=True)]
    kept = [index for index, question in enumerate(all_questions) if question is not None]
    questions = [question for question in all_questions if question is not None]
    results = np.full(len(images), np.nan)
    if not kept:
        return results
    images = images if len(kept) == len(images) else images[kept]
    target = torch.cat([question.target for question in questions]).to(images.device)
    maps = explain(images, target, kept)
    curves = Curves(classifier, images, target, maps, [seeds[index] for index in kept])
    pixels = curves.height * curves.width
    counts = np.floor(SHARES * pixels) if published else np.rint(np.arange(1, 10) * (pixels / 10))
    along = curves.probabilities("rest", reference, counts.astype(int)).astype(np.float64)
    values = np.stack([q.value(f, g) for q, f, g in zip(questions, along, whole[kept], strict=True)])
    explain.faulty |= {kept[place]: NO_PROBABILITIES_CHANGED for place in np.flatnonzero(curves.undefined)}
    results[kept] = area(values, SHARES) * (SHARES[-1] - SHARES[0] if published else 1)
    return results


def higher_is_better(options: dict[str, object]) -> bool:
    """Return whether better maps score higher; with the sign of the authors' code, this holds only for PGS."""
    return not options["published"]
