"""Measure the largest change in a map under small changes of the image."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.declarations import metric
from saliency_bench.errors import UserError
from saliency_bench.maps import is_flat
from saliency_bench.metrics._papers import YEH_2019
from saliency_bench.types import Images, Target
from saliency_bench.utils.seeds import seed_of, uniform


def check(*, radius: float, draws: int, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    if not 0 < radius < float("inf") or draws < 1:
        raise UserError(f"saliency_max_sensitivity needs radius > 0 and draws >= 1; got {radius=} and {draws=}")


def passes(options: dict, height: int, width: int) -> tuple[int, int]:
    """Return (0, maps per image): one map per draw, and one more for unit=normalised, but no pictures."""
    return 0, options["draws"] + (_unit(options["unit"], options["relative"]) == "normalised")


@metric(
    version=2,
    title="Max-sensitivity",
    higher_is_better=False,
    range=(0, float("inf")),
    paper=YEH_2019,
    passes=passes,
    check=check,
    also_called=("sensitivity max", "sens max"),
)
def saliency_max_sensitivity(
    maps: np.ndarray,
    images: Images,
    target: Target,
    classifier: nn.Module,
    explain: MapProvider,
    seeds: Sequence[int],
    *,
    radius: float = 0.2,
    draws: int = 10,
    relative: bool = True,
    unit: Literal["image", "normalised"] | None = None,
) -> np.ndarray:
    """Return the largest relative change in a map under small random changes of the image.

        score = max over draws of ||E(x + d) - E(x)|| / ||E(x)||, Euclidean norms over the pixels

    d is uniform in [-radius, radius] for every pixel and channel of the normalised image. The target and seeds of the
    explainer do not change. Equation 16 of Li et al. (2020) has no denominator (`relative=False`), so it ranks
    explainers by the scale of their maps. A gradient with respect to an image in [0, 1] is 1 / std (about 4) times as
    large as a gradient with respect to the normalised image, while other maps do not depend on this unit. Without the
    denominator, the normalised image is therefore explained, as in published code (captum, Quantus).

    Args:
        maps: Maps E(x) of shape (B, H, W).
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Target of the maps, of shape (B, K).
        classifier: Network with a buffer `std` (1, 3, 1, 1), the standard deviation of its normalisation.
        explain: Function that computes one map per draw.
        seeds: One seed per image for the random changes.
        radius: Largest change in units of the normalised image, above 0.
        draws: Number of random changes, at least 1. The default is 10 in captum and 200 in Quantus.
        relative: Whether to divide by ||E(x)||. False: the equation as printed in Li et al. (2020).
        unit: Unit of the explained images. "image": values in [0, 1], as for all other metrics. "normalised": the
            network's normalised input, which is the unit of d. None: "image" if `relative`, else "normalised".

    Returns:
        Scores of shape (B,), float64; lower is better. The score is NaN for a constant map, which would otherwise have
        the best possible score.

    Raises:
        UserError: The radius or number of draws is out of range, or the classifier has no known normalisation.

    Example:
        E(x) is 2 on one of 4 x 4 pixels and 1 on all others, so ||E(x)|| = sqrt(15 + 4). In one of the draws, E(x + d)
        has its 2 on another pixel. The two maps then differ by 1 on two pixels, so the score is sqrt(2 / 19) = 0.3244,
        or sqrt(2) with relative=False.
    """
    check(radius=radius, draws=draws)
    std = getattr(classifier, "std", None)
    if not isinstance(std, Tensor):
        raise UserError("saliency_max_sensitivity needs a classifier with a known std; load it with load_classifier")
    kept = np.flatnonzero(~is_flat(maps)).tolist()
    scores = np.full(len(maps), np.nan)
    if len(kept) == 0:
        return scores
    images, target = images[kept], target[kept]
    before, step, network = maps[kept], std.to(images), None
    if _unit(unit, relative) == "normalised":
        if not isinstance(classifier, Classifier):
            raise UserError("unit=normalised of saliency_max_sensitivity needs a classifier from load_classifier")
        network = classifier.taking_normalised()
        images, step = (images - classifier.mean) / std.to(images), torch.ones_like(step)
        before = explain(images, target, kept, classifier=network)
    before = before.reshape(len(kept), -1).astype(np.float64)
    furthest = np.zeros(len(kept))
    for draw in range(draws):
        drawn = np.stack([2 * uniform(seed_of(seeds[index], draw), images[0].numel()) - 1 for index in kept])
        change = torch.from_numpy(radius * drawn).view(images.shape).to(images) * step
        after = explain(images + change, target, kept, classifier=network).reshape(len(kept), -1)
        furthest = np.maximum(furthest, np.linalg.norm(after - before, axis=1))
    size = np.linalg.norm(before, axis=1)
    scores[kept] = np.where(size > 0, furthest / np.where(size > 0, size, 1) if relative else furthest, np.nan)
    return scores


def _unit(unit: str | None, relative: bool) -> str:
    return unit or ("image" if relative else "normalised")
