"""Measure how fast the probability of the target class falls as the top pixels of a map are removed."""

import numpy as np

from saliency_bench.compute.scoring.perturbation import Curves, Reference, check_steps, row_counts
from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import PETSIUK_2018
from saliency_bench.read.statistics.exposures import area
from saliency_bench.target_weights import TargetRange


def limits(options: dict[str, object], target: TargetRange) -> tuple[float, float]:
    """Return the range of scores: [0, 1] for one class and [-1, 1] for a contrast."""
    return target.low, target.high


@metric(
    version=3,
    title="Deletion AUC",
    higher_is_better=False,
    range=limits,
    paper=PETSIUK_2018,
    passes=lambda options, height, width: ((options["steps"] or height) + 1, 0),
    check=check_steps,
    also_called=("del", "dauc", "deletion auc"),
)
def saliency_deletion(curves: Curves, *, reference: Reference = "black", steps: int | None = None) -> np.ndarray:
    """Return the area under f(t), the target's probability once the top fraction t of the pixels is replaced.

        score = integral of f(t) dt over [0, 1] by the trapezoid rule,    f(t) = sum_k w_k p_k(picture at t)

    For a one-hot target, f is p_c, the softmax probability of the sample's target class.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        reference: Values that replace the removed pixels. "black": 0, for images in [0, 1]. "mean": the classifier's
            normalisation mean, which is zero after normalisation (the choice of RISE's authors). "blur": the image
            blurred by a Gaussian of 11 x 11 pixels with sigma 5. "noise": uniform noise in [0, 1). "inpaint": values
            filled in from the kept pixels. "linear": linear imputation from the kept pixels (ROAD). "farthest": 0 or 1,
            whichever is farther from the pixel's value. "gaussian": normal noise around the pixel's value, truncated to
            [0, 1]. "farthest" and "gaussian" are from Sturmfels et al. (2020).
        steps: Number of equal steps; the curve has one more point. None: one image row of pixels per step (H steps).

    Returns:
        Scores of shape (B,), float64, in [0, 1] for one class; lower is better.

    Raises:
        UserError: The reference is unknown or steps is out of range.

    Example:
        Take a 4 x 4 image and a classifier whose p_c is the fraction of white pixels among the four in the upper left
        corner. The image is white, and the map ranks the pixels row by row. Each of the first two rows therefore
        removes two of these four pixels:

            t       0   1/4   1/2   3/4   1
            p_c     1   1/2   0     0     0      area = 1/4 (1/2 + 1/2) = 0.25

        >>> import torch
        >>> class Corner(torch.nn.Module):
        ...     def forward(self, images):
        ...         white = images[:, :, :2, :2].mean((1, 2, 3))
        ...         return torch.stack([1 - white, white], 1).log()
        >>> maps = torch.arange(16.0, 0, -1).view(1, 4, 4)
        >>> curves = Curves(Corner(), torch.ones(1, 3, 4, 4), torch.tensor([[0.0, 1.0]]), maps)
        >>> saliency_deletion(curves).tolist()
        [0.25]
    """
    check_steps(steps=steps)
    counts = row_counts(curves.height, curves.width, steps)
    return area(curves.path("rest", reference, counts), counts / counts[-1])
