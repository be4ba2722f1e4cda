"""Whether a map changes when the network's weights are lost."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from scipy.stats import entropy
from torch import nn
from torch.nn import functional

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.map_sources.composing import noisy_copies
from saliency_bench.map_sources.map_provider import MapProvider
from saliency_bench.map_sources.randomised import cascade, layer_names
from saliency_bench.maps import is_flat, normalise
from saliency_bench.metrics._ranks import spearman
from saliency_bench.types import Images, Target

PAPER = "Adebayo et al., Sanity Checks for Saliency Maps, NeurIPS 2018, https://arxiv.org/abs/1810.03292"
HIGHER_IS_BETTER = False
VERSION = 1
ALSO_CALLED = ("model parameter randomisation test", "MPRT", "sMPRT", "eMPRT", "sanity check")
UNDEFINED = "the map is constant"
BINS = 100  # of the histogram of a map
NOISE = 0.1  # standard deviation, by the range of the normalised image
WINDOW = 7  # pixels of a side, in which structures are compared


def limits(options: dict[str, object]) -> tuple[float, float]:
    return (-1.0, float("inf")) if options["form"] == "complexity" else (-1.0, 1.0)


RANGE = limits


def higher_is_better(options: dict[str, object]) -> bool:
    return options["form"] == "complexity"


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
    """Similarity of a map and the map after layers are re-initialised, from the logits down (MPRT).

        score = mean over layers l of similarity(|E(x; f)|, |E(x; f_l)|)

    f_l is a copy of the network whose layers from the last down to l have new random weights, the same for all samples
    of a run (`map_sources/randomised.py`: what a layer is and how its weights are drawn). A map that explains what the
    network has learned changes: similarity falls to 0. One that stays, as edges do, does not depend on the weights.

    Args:
        maps: (B, H, W), E(x; f). images: (B, 3, H, W) in [0, 1]. target: (B, K), of the maps.
        classifier: is copied, and left as it is. explain: makes the maps of the copy.
        seeds: of each image, for the noise of `smooth`. run_seed: for the weights.
        form: "ssim": structural similarity of the absolute maps, min-max to [0, 1] (windows of 7 x 7 pixels; smaller
            ones where the image is smaller; variances within a window have ddof 1, as in scikit-image). "spearman":
            rank correlation of the absolute maps. "complexity" (eMPRT, Hedstroem et al., 2024): relative rise of the
            entropy of the map's histogram under full randomisation, (H(E(x; f_1)) - H(E(x; f))) / H(E(x; f)) in 100
            bins between its minimum and maximum; higher is better.
        smooth: each map is the mean over so many noisy copies of the image, normal noise of 0.1 times the range of the
            normalised image (sMPRT, Hedstroem et al., 2024, who take 50); 0: no noise. Signed maps are averaged, and
            the mean made absolute, as in Quantus, whose last copy has no noise; here all have.
        layers: stages at which maps are compared, at equal distances, of which the last has no old weights; 0: one for
            each layer.

    Returns:
        (B, P): the similarity after each layer, whose mean is the score; "complexity" has full randomisation alone.
        NaN for a constant map, which would be the best possible and is not ranked. A map that is constant after
        randomisation has a rank correlation of 0.

    Example: |E| is 1 in the top row of 4 x 4 pixels and 0 elsewhere, and without the weights 1 in the two upper rows.
    Of two values per map the rank correlation is Pearson's: means 1/4 and 1/2, covariance 4/16 - 1/8 = 1/8, variances
    3/16 and 1/4, so form="spearman" gives 1/8 / sqrt(3/64) = 1 / sqrt(3) = 0.5774. The histograms are 4 and 12, and 8
    and 8 pixels: entropies 0.5623 and 0.6931, so form="complexity" gives 0.2326.

    Raises: UserError for a negative number, or a network without weights or that cannot be copied.
    """
    check(smooth=smooth, layers=layers)
    names = parts({"form": form, "layers": layers}, classifier)
    unchanged = _maps(maps, images, target, classifier, classifier, explain, seeds, smooth)
    found = np.full((len(maps), len(names)), np.nan)
    for name, randomised in cascade(classifier, run_seed):
        if name in names:
            changed = _maps(None, images, target, classifier, randomised, explain, seeds, smooth)
            found[:, names.index(name)] = FORMS[form](unchanged, changed)
    found[is_flat(unchanged)] = np.nan
    return found


def parts(options: dict, classifier: nn.Module) -> list[str]:
    """The layers, from the logits down, after which maps are compared."""
    names = layer_names(classifier)
    count = 1 if options["form"] == "complexity" else min(options["layers"] or len(names), len(names))
    return [names[(stage * len(names)) // count - 1] for stage in range(1, count + 1)]


def check(*, smooth: int, layers: int, **others: object) -> None:
    if smooth < 0 or layers < 0:
        raise UserError(f"saliency_randomisation needs smooth >= 0 and layers >= 0; got {smooth} and {layers}")


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
    """Float64 (B, H, W): of the network `explained`, over noisy copies; the given ones where there are any to take."""
    if smooth == 0:
        return (explain(images, target, classifier=explained) if given is None else given).astype(np.float64)
    noisy = noisy_copies(classifier, images, NOISE, list(seeds), smooth)
    every = torch.arange(len(images), device=images.device)
    total = np.zeros((len(images), *images.shape[2:]))
    for draw in range(smooth):
        total += explain(noisy(every, torch.full_like(every, draw)), target, classifier=explained)
    return total / smooth


def ssim(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Float64 (B,) of absolute maps (B, H, W): Wang et al. (2004) with uniform windows that lie inside the image."""
    side = min(WINDOW, one.shape[1], one.shape[2])
    side -= 1 - side % 2

    def local(values: np.ndarray) -> np.ndarray:
        return functional.avg_pool2d(torch.from_numpy(values)[:, None], side, 1)[:, 0].numpy()

    x, y = normalise(np.abs(one)), normalise(np.abs(two))
    sample = side**2 / max(1, side**2 - 1)  # of which variances are estimated
    means = local(x), local(y)
    variances = sample * (local(x * x) - means[0] ** 2), sample * (local(y * y) - means[1] ** 2)
    covariance = sample * (local(x * y) - means[0] * means[1])
    c1, c2 = 0.01**2, 0.03**2
    similar = (2 * means[0] * means[1] + c1) * (2 * covariance + c2)
    total = (means[0] ** 2 + means[1] ** 2 + c1) * (variances[0] + variances[1] + c2)
    return (similar / total).mean(axis=(1, 2))


def rank_correlation(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Float64 (B,) of absolute maps (B, H, W)."""
    return spearman(*(np.abs(maps).reshape(len(maps), -1) for maps in (one, two)))


def relative_rise(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Float64 (B,) of the entropy of maps (B, H, W); NaN where there was none."""
    old, new = (np.array([_entropy(one) for one in maps]) for maps in (before, after))
    return np.divide(new - old, old, out=np.full(len(old), np.nan), where=old > 0)


def _entropy(one: np.ndarray) -> float:
    """Nats, of a histogram between minimum and maximum."""
    return float(entropy(np.histogram(normalise(one[None]), bins=BINS, range=(0, 1))[0]))


FORMS = {"ssim": ssim, "spearman": rank_correlation, "complexity": relative_rise}
