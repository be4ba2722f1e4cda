"""Measure how often the classifier is right when only the top pixels of a map are kept."""

import numpy as np

from saliency_bench.compute.scoring.perturbation import (
    Curves,
    Reference,
    check_exposure,
    exposure_area,
    exposure_names,
    recognised_at,
)
from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import LU_2021


@metric(
    version=4,
    title="Accuracy on kept pixels (KAE)",
    higher_is_better=True,
    range=(0, 1),
    paper=LU_2021,
    parts=exposure_names,
    reduce=exposure_area,
    passes=(9, 0),
    check=check_exposure,
)
def saliency_kae(
    curves: Curves, labels: np.ndarray, *, reference: Reference = "black", exposure: float | None = None
) -> np.ndarray:
    """Return a(r): whether the classifier is right about a picture that keeps only the map's top fraction r of pixels.

        score = integral of a(r) dr over [0, 1] by the trapezoid rule at r = 0, 5, 10, 15, 20, 30, 50, 75, 100 %

    a(r) is 1 if the classifier predicts the sample's label, whatever class the map explains, and 0 otherwise. The
    prediction is correct if the top class is one of the label's classes or, with sigmoid outputs, if one of the label's
    classes has p > 0.5. The mean of a(r) over samples is the accuracy, and the mean score is the area under the
    accuracy curve.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        labels: Correct classes of each image, bool (B, K).
        reference: Values that replace the removed pixels. "black": 0, for images in [0, 1]. "mean": the classifier's
            normalisation mean, which is zero after normalisation. "blur": the image blurred by a Gaussian of 11 x 11
            pixels with sigma 5. "noise": uniform noise in [0, 1). "inpaint": values filled in from the kept pixels.
            "linear": linear imputation from the kept pixels (ROAD). "farthest": 0 or 1, whichever is farther from the
            pixel's value. "gaussian": normal noise around the pixel's value, truncated to [0, 1]. "farthest" and
            "gaussian" are from Sturmfels et al. (2020).
        exposure: Fraction r in [0, 1] at which a(r) is returned. None: return the area.

    Returns:
        Values of a(r) at each exposure, of shape (B, P); these are the parts of the score. `reduce` computes the area,
        in [0, 1]; higher is better.

    Raises:
        UserError: The reference is unknown or the exposure is out of range.

    Example:
        Take a 4 x 4 image and a classifier whose p_c is the fraction of white pixels among the four in the upper left
        corner. The image is white, and the map ranks the pixels row by row:

            exposure   0   5 %   10 %   15 %   20 %   30 %   50 %   75 %   100 %
            pixels     0   1     2      2      3      5      8      12     16
            p_c        0   1/4   1/2    1/2    1/2    3/4    1      1      1
            right      0   0     0      0      0      1      1      1      1

        At p_c = 1/2 both classes are equally probable, and the first one is the top class.

            area = 0.1 * 1/2 + 0.7 * 1 = 0.75

        >>> import torch
        >>> class Corner(torch.nn.Module):
        ...     def forward(self, images):
        ...         white = images[:, :, :2, :2].mean((1, 2, 3))
        ...         return torch.stack([1 - white, white], 1).log()
        >>> maps = torch.arange(16.0, 0, -1).view(1, 4, 4)
        >>> curves = Curves(Corner(), torch.ones(1, 3, 4, 4), torch.tensor([[0.0, 1.0]]), maps)
        >>> labels = np.array([[False, True]])
        >>> saliency_kae(curves, labels).tolist()
        [[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]]
        >>> exposure_area(saliency_kae(curves, labels), {"exposure": None}).round(6).tolist()
        [0.75]
    """
    check_exposure(exposure=exposure)
    return recognised_at(curves, labels, "top", reference, exposure)
