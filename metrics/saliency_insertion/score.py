"""How fast the classifier recognises the image when its top pixels enter a reference picture."""

import numpy as np

from saliency_bench.errors import UserError, unknown
from saliency_bench.perturbation import REFERENCES, Curves, area, row_counts

PAPER = "Petsiuk et al., RISE, BMVC 2018, https://arxiv.org/abs/1806.07421"
HIGHER_IS_BETTER = True
RANGE = (-1.0, 1.0)  # for one class [0, 1]; less than 0 is possible from a blurred start and for contrasts
VERSION = 1


def saliency_insertion(curves: Curves, *, reference: str = "black", steps: int | None = None) -> np.ndarray:
    """Area under f(t), the target's probability when the top share t of a map's pixels has entered a reference picture.

        score = integral of f(t) dt over [0, 1] by the trapezoid rule,    f(t) = sum_k w_k p_k(picture at t)

    For a one-hot target f is p_c, the softmax probability of the sample's target class.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        reference: "black": 0 in [0, 1]. "mean": the classifier's normalisation mean. "blur": the image under a Gaussian
            of 11 x 11 pixels, sigma 5 (`perturbation.blurred`); f(0) is subtracted from the whole curve. "noise",
            "inpaint": uniform noise, and what has entered spread over the rest (`perturbation.inpainted`).
        steps: points of the curve less one, at equal distances; None: one image row of pixels per step (H steps).

    Returns:
        Float64 (B,), higher is better; in [0, 1] for one class from black or mean.

    Example: a 4 x 4 image, and a classifier whose p_c is the share of white among the pixels of the mask {a, b, c, d}.
    The image is white; the map ranks a, b, c and d first, so the first row's worth of pixels (t = 1/4) brings all four:

        t       0   1/4   1/2   3/4   1
        p_c     0   1     1     1     1      area = 1/4 (0/2 + 1 + 1 + 1 + 1/2) = 0.875

    The reversed map brings them last: p_c = 0, 0, 0, 0, 1 and 1/4 * 1/2 = 0.125.

    Errors: UserError for an unknown reference or steps out of range.
    """
    check(reference=reference, steps=steps)
    counts = row_counts(curves.height, curves.width, steps)
    values = curves.path("top", reference, counts)
    if reference == "blur":
        values = values - values[:, :1]
    return area(values, counts / counts[-1])


def check(*, reference: str, steps: int | None) -> None:
    if reference not in REFERENCES:
        raise unknown("reference", reference, REFERENCES)
    if steps is not None and steps < 1:
        raise UserError(f"steps of saliency_insertion must be at least 1; got {steps}")
