"""Measure how far the probability of the target class falls when a map's top pixels are blackened."""

import numpy as np

from saliency_bench.compute.scoring.perturbation import Curves, Reference, fraction_counts
from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import ELISHA_2025
from saliency_bench.read.statistics.exposures import area
from saliency_bench.target_weights import TargetRange

FRACTIONS = tuple(np.arange(1, 10) / 10)


def limits(options: dict[str, object], target: TargetRange) -> tuple[float, float]:
    """Return the range of scores: [-1, 1] for one class, and a wider range for several classes with a sigmoid."""
    return -target.a, target.a


@metric(
    version=3,
    title="Class drop (CDS)",
    higher_is_better=True,
    range=limits,
    paper=ELISHA_2025,
    passes=(10, 0),
)
def saliency_cds(curves: Curves, *, reference: Reference = "black") -> np.ndarray:
    """Return the class deviation score: the mean drop in the target class's probability as more pixels are masked.

        CDS = integral of [p_A(x) - p_A(x_r)] dr over [0.1, 0.9] / 0.8,    by the trapezoid rule at r = 0.1, 0.2 ... 0.9

    x_r is the image with the top fraction r of the pixels masked. A is the set of classes with a positive target
    weight; the score ignores all other classes, including classes with a negative weight.

    We found no formula and no published code for this score. This implementation follows the description of Elisha et
    al. ("prediction shifts after masking" of "only the target class") and masks pixels as in the metrics that they
    propose. It may not reproduce the numbers that they report.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        reference: Values that replace the removed pixels. "black": 0, for images in [0, 1]. "mean": the classifier's
            normalisation mean, which is zero after normalisation. "blur": the image blurred by a Gaussian of 11 x 11
            pixels with sigma 5. "noise": uniform noise in [0, 1). "inpaint": values filled in from the kept pixels.
            "linear": linear imputation from the kept pixels (ROAD). "farthest": 0 or 1, whichever is farther from the
            pixel's value. "gaussian": normal noise around the pixel's value, truncated to [0, 1]. "farthest" and
            "gaussian" are from Sturmfels et al. (2020).

    Returns:
        Scores in [-1, 1], float64 (B,); higher is better.

    Raises:
        UserError: The reference is unknown.

    Example:
        Take a 4 x 4 image and a classifier whose p_A is the fraction of white pixels among the four in the upper left
        corner. The image is white, and the map ranks the pixels row by row:

            r             0.1   0.2   0.3   0.4   0.5   0.6   0.7   0.8   0.9
            pixels gone   2     3     5     6     8     10    11    13    14
            p_A           1/2   1/2   1/4   0     0     0     0     0     0

            CDS = 0.1 (0.5/2 + 0.5 + 0.75 + 5 * 1 + 1/2) / 0.8 = 0.875

        >>> import torch
        >>> class Corner(torch.nn.Module):
        ...     def forward(self, images):
        ...         white = images[:, :, :2, :2].mean((1, 2, 3))
        ...         return torch.stack([1 - white, white], 1).log()
        >>> maps = torch.arange(16.0, 0, -1).view(1, 4, 4)
        >>> curves = Curves(Corner(), torch.ones(1, 3, 4, 4), torch.tensor([[0.0, 1.0]]), maps)
        >>> saliency_cds(curves).round(6).tolist()
        [0.875]
    """
    counts = fraction_counts(curves.height, curves.width, FRACTIONS)
    p = curves.weighted(curves.target > 0, "rest", reference, [0, *counts])
    return area(p[:, :1] - p[:, 1:], np.array(FRACTIONS))
