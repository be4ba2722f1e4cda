"""Test whether a map changes when the network's weights are randomised."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from scipy.stats import entropy
from torch import nn
from torch.nn import functional

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.maps.composing import noisy_copies
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.maps.randomised import cascade, layer_names
from saliency_bench.declarations import metric
from saliency_bench.errors import UserError
from saliency_bench.maps import is_flat, is_tied, normalise
from saliency_bench.metrics._papers import ADEBAYO_2018
from saliency_bench.metrics._ranks import spearman
from saliency_bench.score_notes import TIED
from saliency_bench.types import Images, Target

BINS = 100  # bins of the histogram of a map
NOISE = 0.1  # standard deviation, relative to the range of the normalised image
WINDOW = 7  # side of the SSIM windows in pixels


def limits(options: dict[str, object]) -> tuple[float, float]:
    """Return the range of scores, which has no upper bound for complexity."""
    return (-1.0, float("inf")) if options["form"] == "complexity" else (-1.0, 1.0)


def higher_is_better(options: dict[str, object]) -> bool:
    """Return True for complexity only."""
    return options["form"] == "complexity"


def parts(options: dict, classifier: nn.Module) -> list[str]:
    """Return the names of the layers, from the logits down. Maps are compared after each layer is randomised."""
    names = layer_names(classifier)
    count = 1 if options["form"] == "complexity" else min(options["layers"] or len(names), len(names))
    return [names[(stage * len(names)) // count - 1] for stage in range(1, count + 1)]


def marked(maps: np.ndarray, *, form: str, **others: object) -> np.ndarray:
    """Return whether ranks are compared and more than a tenth of a map's absolute values are tied, bool (B,)."""
    return is_tied(np.abs(maps)) & (form == "spearman")


def check(*, smooth: int, layers: int, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    if smooth < 0 or layers < 0:
        raise UserError(f"saliency_randomisation needs smooth >= 0 and layers >= 0; got {smooth=} and {layers=}")


@metric(
    version=2,
    title="Weight randomisation",
    higher_is_better=higher_is_better,
    range=limits,
    paper=ADEBAYO_2018,
    undefined="the map is constant",
    mark=TIED,
    marked=marked,
    parts=parts,
    check=check,
    also_called=("model parameter randomisation test", "MPRT", "sMPRT", "eMPRT", "sanity check"),
)
def saliency_randomisation(
    maps: np.ndarray,
    images: Images,
    target: Target,
    classifier: Classifier,
    explain: MapProvider,
    seeds: Sequence[int],
    run_seed: int,
    *,
    form: Literal["ssim", "spearman", "complexity"] = "ssim",
    smooth: int = 0,
    layers: int = 0,
) -> np.ndarray:
    """Return the similarity of a map to the maps of the network with randomised layers, from the logits down (MPRT).

        score = mean over layers l of similarity(|E(x; f)|, |E(x; f_l)|)

    f_l is a copy of the network in which the layers from the last layer down to l have new random weights. The weights
    are the same for all samples of a run; see `compute/maps/randomised.py` for the definition of a layer and of its
    random weights. The similarity falls to 0 for a map that explains what the network has learned. A map that stays the
    same, such as an edge map, does not depend on the weights.

    Args:
        maps: Maps E(x; f) of shape (B, H, W).
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Target of the maps, of shape (B, K).
        classifier: The network, which is copied and not changed.
        explain: Function that computes the maps of the copy.
        seeds: One seed per image for the noise of `smooth`.
        run_seed: Seed of the new weights.
        form: Similarity of two maps. "ssim": structural similarity of the absolute maps, min-max scaled to [0, 1]. It
            uses windows of 7 x 7 pixels, or smaller windows for a smaller image; variances within a window have ddof 1,
            as in scikit-image. "spearman": rank correlation of the absolute maps; equal values share the mean of their
            ranks. A run reports the number of maps in which more than a tenth of the values are tied; most upsampled
            maps have such ties. "complexity" (eMPRT, Hedstroem et al., 2024): relative increase in the entropy H of the
            map's histogram under full randomisation, (H(E(x; f_1)) - H(E(x; f))) / H(E(x; f)), with 100 bins from the
            map's minimum to its maximum; higher is better.
        smooth: Number of noisy copies of the image over which each map is averaged, with Gaussian noise whose
            standard deviation is 0.1 times the range of the normalised image (sMPRT; Hedstroem et al., 2024, use 50
            copies). 0: no noise. Signed maps are averaged before the absolute value is computed, as in Quantus. The
            last copy has no noise in Quantus; here all copies have noise.
        layers: Number of equally spaced stages at which maps are compared. All weights are new at the last stage. 0:
            one stage per layer.

    Returns:
        Similarities after each layer, of shape (B, P). The score is their mean; "complexity" uses only full
        randomisation. The score is NaN for a constant map, which would otherwise have the best possible score. A map
        that is constant after randomisation has a rank correlation of 0.

    Raises:
        UserError: An option is negative, or the network has no weights or cannot be copied.

    Example:
        |E| is 1 in the top row of 4 x 4 pixels and 0 elsewhere; with random weights it is 1 in the top two rows. Each
        map has two distinct values, so the rank correlation equals Pearson's correlation. The means are 1/4 and 1/2,
        the covariance is 4/16 - 1/8 = 1/8, and the variances are 3/16 and 1/4. form="spearman" therefore returns 1/8 /
        sqrt(3/64) = 1 / sqrt(3) = 0.5774. The histograms contain 4 and 12 pixels before randomisation, and 8 and 8
        pixels after it. Their entropies are 0.5623 and 0.6931, so form="complexity" returns 0.2326.
    """
    check(smooth=smooth, layers=layers)
    names = parts({"form": form, "layers": layers}, classifier)
    unchanged = _maps(maps, images, target, classifier, classifier, explain, seeds, smooth)
    similarities = np.full((len(maps), len(names)), np.nan)
    for name, randomised in cascade(classifier, run_seed):
        if name in names:
            changed = _maps(None, images, target, classifier, randomised, explain, seeds, smooth)
            similarities[:, names.index(name)] = FORMS[form](unchanged, changed)
    similarities[is_flat(unchanged)] = np.nan
    return similarities


def _maps(
    given: np.ndarray | None,
    images: Images,
    target: Target,
    classifier: Classifier,
    explained: nn.Module,
    explain: MapProvider,
    seeds: Sequence[int],
    smooth: int,
) -> np.ndarray:
    """Return maps of the network `explained`, averaged over noisy copies of the images, float64 (B, H, W).

    If `smooth` is 0, the images have no noise, and `given` is returned unless it is None.
    """
    if smooth == 0:
        return (explain(images, target, classifier=explained) if given is None else given).astype(np.float64)
    noisy = noisy_copies(classifier, images, NOISE, list(seeds), smooth)
    every = torch.arange(len(images), device=images.device)
    total = np.zeros((len(images), *images.shape[2:]))
    for draw in range(smooth):
        total += explain(noisy(every, torch.full_like(every, draw)), target, classifier=explained)
    return total / smooth


def ssim(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the structural similarities, float64 (B,), of the absolute values of maps (B, H, W).

    This is SSIM (Wang et al., 2004) with uniform windows that lie inside the image.
    """
    side = min(WINDOW, first.shape[1], first.shape[2])
    side -= 1 - side % 2

    def local(values: np.ndarray) -> np.ndarray:
        """Return the mean of each window."""
        return functional.avg_pool2d(torch.from_numpy(values)[:, None], side, 1)[:, 0].numpy()

    x, y = normalise(np.abs(first)), normalise(np.abs(second))
    sample = side**2 / max(1, side**2 - 1)  # correction of variances for ddof = 1
    means = local(x), local(y)
    variances = sample * (local(x * x) - means[0] ** 2), sample * (local(y * y) - means[1] ** 2)
    covariance = sample * (local(x * y) - means[0] * means[1])
    c1, c2 = 0.01**2, 0.03**2
    similar = (2 * means[0] * means[1] + c1) * (2 * covariance + c2)
    total = (means[0] ** 2 + means[1] ** 2 + c1) * (variances[0] + variances[1] + c2)
    return (similar / total).mean(axis=(1, 2))


def rank_correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the rank correlations, float64 (B,), of the absolute values of maps (B, H, W)."""
    return spearman(*(np.abs(maps).reshape(len(maps), -1) for maps in (first, second)))


def relative_rise(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the relative increase in the entropy of maps (B, H, W), float64 (B,), or NaN if it was 0 before."""
    old, new = (np.array([_entropy(values) for values in maps]) for maps in (before, after))
    return np.divide(new - old, old, out=np.full(len(old), np.nan), where=old > 0)


def _entropy(values: np.ndarray) -> float:
    """Return the entropy in nats of a map's histogram between its minimum and maximum."""
    return float(entropy(np.histogram(normalise(values[None]), bins=BINS, range=(0, 1))[0]))


FORMS = {"ssim": ssim, "spearman": rank_correlation, "complexity": relative_rise}
