"""Measure how far the probability of class A falls relative to class B once a map's salient pixels are removed."""

import numpy as np

from saliency_bench.compute.scoring.contrastive import (
    Rival,
    Salient,
    check_deletion,
    delete_salient,
    score_range,
    without_groups,
)
from saliency_bench.compute.scoring.perturbation import Curves, Reference
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import XIE_2023
from saliency_bench.target_weights import TargetRange

TAU = 0.05  # below this share of the image, fewer salient pixels do not raise the score
SMOOTHED = 3  # number of points averaged at the end of the path


def limits(options: dict[str, object], target: TargetRange) -> tuple[float, float]:
    """Return the range of scores: the range of the difference between two contrastive scores."""
    low, high = score_range(options, target)
    return low - high, high - low


@metric(
    version=4,
    title="Contrast drop (CDROP)",
    higher_is_better=True,
    range=limits,
    paper=XIE_2023,
    undefined="the group of the explained class contains no other class",
    passes=(4, 0),
    left_out=without_groups,
    check=check_deletion,
)
def saliency_cdrop(
    curves: Curves,
    groups: ClassGroups | None = None,
    *,
    step: int = 16,
    threshold: float = 0.5,
    salient: Salient = "range",
    reference: Reference = "mean",
    rival: Rival = "any",
) -> np.ndarray:
    """Return the drop in the contrastive score s when the salient pixels are removed, discounted by their number.

        CDROP = (s_0 - mean of the last three of s_0 ... s_(m-1)) / log2(1 + max(n, tau) / tau)

    n is the number of salient pixels, m = max(1, ceil(n / step)) and tau = 0.05 H W. If m < 3, the last point replaces
    the mean, as in the published code.

    The contrastive score is s = p_A (1 - p_B), with softmax probabilities. A is the set of classes with a positive
    target weight, and B is the set of classes with a negative weight. If no weight is negative, B is the class other
    than A that is most probable for the whole image; with rival="group", only classes in A's group are considered.

    Caveat: only salient pixels are deleted, so the score depends on the number of pixels above the threshold as much as
    on their positions. The discount is the same for all numbers below tau.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        groups: Groups of the classifier's classes, required for rival="group".
        step: Number of pixels removed per step. Only the whole image and the last three points of each path are
            classified.
        threshold: Fraction of the map's range (salient="range") or of its maximum ("maximum") above which pixels are
            salient.
        salient: Rule that selects the salient pixels. "range": pixels above min + threshold (max - min), as in the
            published code. "maximum": pixels of at least threshold * max, as in the paper; there are none if max <= 0.
        reference: Values that replace the removed pixels. "black": 0, for images in [0, 1]. "mean": the classifier's
            normalisation mean, which is zero after normalisation. "blur": the image blurred by a Gaussian of 11 x 11
            pixels with sigma 5. "noise": uniform noise in [0, 1). "inpaint": values filled in from the kept pixels.
            "linear": linear imputation from the kept pixels (ROAD). "farthest": 0 or 1, whichever is farther from the
            pixel's value. "gaussian": normal noise around the pixel's value, truncated to [0, 1]. "farthest" and
            "gaussian" are from Sturmfels et al. (2020).
        rival: Class B for a target without negative weights. "any": the most probable other class, as in the published
            code. "group": the most probable other class of A's group (Elisha et al., 2025, 5.3).

    Returns:
        Scores in [-1, 1], float64 (B,); higher is better. The score is 0 if at most `step` pixels are salient, as in a
        constant map (the published code returns NaN for a constant map).

    Raises:
        UserError: An option is out of range.

    Example:
        Take a 4 x 4 image and a classifier whose p_A is the fraction of white pixels among the four in the upper left
        corner, with p_B = 1 - p_A. The image is white, and the map ranks the pixels row by row from 16 to 1. The 8
        pixels above 8.5 are salient. With step=2 the path has 4 points, and tau = 0.8:

            pixels gone     0   2     4     6
            p_A             1   1/2   1/2   0
            s = p_A^2       1   1/4   1/4   0      CDROP = (1 - 1/6) / log2(1 + 8 / 0.8) = 0.2409

        >>> import torch
        >>> class Corner(torch.nn.Module):
        ...     def forward(self, images):
        ...         white = images[:, :, :2, :2].mean((1, 2, 3))
        ...         return torch.stack([1 - white, white], 1).log()
        >>> maps = torch.arange(16.0, 0, -1).view(1, 4, 4)
        >>> curves = Curves(Corner(), torch.ones(1, 3, 4, 4), torch.tensor([[0.0, 1.0]]), maps)
        >>> saliency_cdrop(curves, step=2, reference="black").round(4).tolist()
        [0.2409]
    """
    check_deletion(step=step, threshold=threshold, salient=salient)
    path = delete_salient(curves, groups, step=step, threshold=threshold, salient=salient, reference=reference)
    last = [_last(points) for points in path.points]
    scores = path.scores([np.union1d(0, points) for points in last])
    starts = np.array([curve[0] for curve in scores])
    ends = np.array([curve[-len(points) :].mean() for curve, points in zip(scores, last, strict=True)])
    tau = TAU * curves.height * curves.width
    scores = (starts - ends) / np.log2(1 + np.maximum(path.salient, tau) / tau)
    return np.where(path.lacks_rival, np.nan, scores)


def _last(points: int) -> np.ndarray:
    """Return the indices of the final points that are averaged, or only the last point of a short path."""
    return np.arange(points - (SMOOTHED if points >= SMOOTHED else 1), points)
