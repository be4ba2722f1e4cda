"""Shared code of the four scores of Elisha et al. (2025; RFxG: reference frame and granularity).

Each score derives its own target from the classifier's top class A, and requests the explainer's map for this target.
The map's top pixels are removed from the image: first 10 % of all pixels, then 20 %, and so on up to 90 %. The
classifier then predicts the probabilities of all classes. A function of these probabilities is computed at each
fraction, and the score is the area under this curve.
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
    """The target that a metric asks the explainer about, and the function that scores the resulting probabilities.

    Attributes:
        target: Target that the map explains, of shape (1, K).
        value: Function of (f, g) that returns values of shape (N,). f (N, K) are the probabilities for the images with
            removed pixels, and g (K,) are the values for the whole image.
    """

    target: Target
    value: Callable[[np.ndarray, np.ndarray], np.ndarray]


# (A, probabilities of the image) -> question about the image; None if it is undefined
Ask = Callable[[int, np.ndarray], ExplainerQuestion | None]
# (groups, A, probabilities of the image) -> classes of the question; None if they are undefined
Sides = Callable[[ClassGroups, int, np.ndarray], TargetTerms | None]


def question_of(sides: Sides) -> Callable[[dict, np.ndarray, ClassGroups], list[tuple[TargetTerms, ...]]]:
    """Return the function to declare as the `question` of a metric; see `saliency_bench.declarations`."""

    def question(options: dict, probabilities: np.ndarray, groups: ClassGroups) -> list[tuple[TargetTerms, ...]]:
        """Return the targets of each sample, or () for a sample without a target."""
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
    """Return the area under the curve of each sample, divided by 0.8, float64 (B,).

    The score is NaN for a sample without a target or without probabilities. If `published` is true, the area is not
    divided, and the number of pixels is rounded down, as in the authors' code.
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
    """Return whether higher is better. If `published` is true, the sign is reversed, as in the authors' code."""
    return not options["published"]
