"""Measure the classifier's accuracy when the top or bottom pixels are imputed from their neighbours."""

from typing import Literal

import numpy as np

from saliency_bench.compute.scoring.perturbation import (
    Curves,
    check_exposure,
    exposure_area,
    exposure_names,
    recognised_at,
)
from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import RONG_2022


def higher_is_better(options: dict[str, object]) -> bool:
    """Return True if the least relevant pixels are removed first."""
    return options["order"] == "lerf"


@metric(
    version=2,
    title="Remove and debias (ROAD)",
    higher_is_better=higher_is_better,
    range=(0, 1),
    paper=RONG_2022,
    parts=exposure_names,
    reduce=exposure_area,
    passes=(9, 0),
    check=check_exposure,
    also_called=("remove and debias", "noisy linear imputation"),
)
def saliency_road(
    curves: Curves, labels: np.ndarray, *, order: Literal["morf", "lerf"] = "morf", exposure: float | None = None
) -> np.ndarray:
    """Return a(r) of ROAD (remove and debias): whether the classifier is right about a picture with imputed pixels.

        score = integral of a(r) dr over [0, 1] by the trapezoid rule at r = 0, 5, 10, 15, 20, 30, 50, 75, 100 %

    a(r) is 1 if the classifier predicts the sample's label, whatever class the map explains, and 0 otherwise. Removed
    pixels are not blackened, because a black shape could reveal the class. Each removed pixel becomes the weighted mean
    of its neighbours: 1/6 for direct and 1/12 for diagonal neighbours. Removed neighbours are included, so one linear
    system must be solved per picture. Normal noise with a standard deviation of 0.01, for values in [0, 1], is added;
    it is the same for every r, order and map of an image. If all pixels are removed, the picture is black.

    With `order=morf` the score equals saliency_roae with `reference=linear`, and with `order=lerf` it equals
    saliency_kae with `reference=linear`. Rong et al. remove 10 to 90 % of the pixels in steps of 10 %.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        labels: Correct classes of each image, bool (B, K).
        order: Order of removal. "morf": the most relevant fraction r is removed; lower is better. "lerf": all pixels
            except the most relevant fraction r are removed, so the least relevant pixels are removed first as r falls;
            higher is better.
        exposure: Fraction r in [0, 1] at which a(r) is returned. None: return the area.

    Returns:
        Values of a(r) at each exposure, of shape (B, P); these are the parts of the score. `reduce` computes the area,
        in [0, 1].

    Raises:
        UserError: The exposure is out of range.

    Example:
        Take a black 4 x 4 image whose four pixels in the upper left corner are white. The map ranks these pixels first,
        row by row. The classifier is right if more than half of these four pixels are white:

            removed   a white pixel becomes                                         white    right
            1         1, of three white neighbours                                  1        1
            2         x = 5/6, y = 7/12, from 5 x = 2 y + 3 and 8 y = 2 x + 3       41/48    1
            3         x = 5/9, y = 4/9 (twice), from 5 x = 4 y + 1, 7 y = 2 x + 2   11/18    1
            5         0, of black neighbours                                        0        0

        The rows are the pixel counts at 5 %, at 10 and 15 %, at 20 % and at 30 %, so area = 0.2 * 1 + 0.1 * 1/2 = 0.25.

        >>> import torch
        >>> class Corner(torch.nn.Module):
        ...     def forward(self, images):
        ...         white = images[:, :, :2, :2].mean((1, 2, 3))
        ...         return torch.stack([1 - white, white], 1) * 4
        >>> maps, images = torch.zeros(1, 4, 4), torch.zeros(1, 3, 4, 4)
        >>> maps[0, :2, :2], images[:, :, :2, :2] = torch.tensor([[4.0, 3], [2, 1]]), 1
        >>> curves = Curves(Corner(), images, torch.tensor([[0.0, 1.0]]), maps)
        >>> labels = np.array([[False, True]])
        >>> saliency_road(curves, labels).tolist()
        [[1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]
        >>> exposure_area(saliency_road(curves, labels), {"exposure": None}).round(6).tolist()
        [0.25]
    """
    check_exposure(exposure=exposure)
    return recognised_at(curves, labels, "rest" if order == "morf" else "top", "linear", exposure)
