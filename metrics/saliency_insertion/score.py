"""Measure how fast the probability of the target class rises as the top pixels of a map are inserted."""

from typing import Literal

import numpy as np

from saliency_bench.compute.scoring.perturbation import Curves, Reference, check_steps, row_counts
from saliency_bench.declarations import metric
from saliency_bench.errors import UserError
from saliency_bench.metrics._papers import PETSIUK_2018
from saliency_bench.read.statistics.exposures import area
from saliency_bench.target_weights import TargetRange

STARTS = ("auto", "subtract", "keep")


def starts_at_zero(*, reference: object, start: object, **others: object) -> bool:
    """Return whether the first value is subtracted from the curve."""
    return start == "subtract" or (start == "auto" and reference == "blur")


def limits(options: dict[str, object], target: TargetRange) -> tuple[float, float]:
    """Return the range of scores: [0, 1] for one class and [-1, 1] for a contrast, wider if the start is subtracted."""
    width = target.high - target.low
    return (-width, width) if starts_at_zero(**options) else (target.low, target.high)


def check(*, steps: int | None, start: str, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    check_steps(steps=steps)
    if start not in STARTS:
        raise UserError(f"start='{start}' of saliency_insertion is unknown; use one of {', '.join(STARTS)}")


@metric(
    version=3,
    title="Insertion AUC",
    higher_is_better=True,
    range=limits,
    paper=PETSIUK_2018,
    passes=lambda options, height, width: ((options["steps"] or height) + 1, 0),
    check=check,
    also_called=("ins", "iauc", "insertion auc"),
)
def saliency_insertion(
    curves: Curves,
    *,
    reference: Reference = "black",
    steps: int | None = None,
    start: Literal["auto", "subtract", "keep"] = "auto",
) -> np.ndarray:
    """Return the area under f(t), the target's probability once a reference shows the top fraction t of the pixels.

        score = integral of f(t) dt over [0, 1] by the trapezoid rule,    f(t) = sum_k w_k p_k(picture at t)

    For a one-hot target, f is p_c, the softmax probability of the sample's target class.

    RISE's authors insert pixels into the blurred image and do not subtract the start: reference="blur", start="keep".
    They explain the model's top class; this implementation uses the sample's target.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        reference: Picture into which pixels are inserted. "black": 0, for images in [0, 1]. "mean": the classifier's
            normalisation mean. "blur": the image blurred by a Gaussian of 11 x 11 pixels with sigma 5
            (`perturbation.blurred`). "noise": uniform noise in [0, 1). "inpaint": the other pixels are filled in from
            the inserted pixels (`perturbation.inpainted`). "linear": the other pixels are imputed linearly from the
            inserted pixels (ROAD). "farthest": 0 or 1, whichever is farther from the pixel's value. "gaussian": normal
            noise around the pixel's value, truncated to [0, 1]. "farthest" and "gaussian" are from Sturmfels et al.
            (2020).
        steps: Number of equal steps; the curve has one more point. None: one image row of pixels per step (H steps).
        start: Treatment of the start f(0). "subtract": subtract f(0) from the whole curve. "keep": do not subtract
            f(0). "auto": subtract f(0) for "blur" only, because a blurred picture may already show the class (Li et
            al., 2020, eq. 9).

    Returns:
        Scores of shape (B,), float64, in [0, 1] for one class if the start is not subtracted; higher is better.

    Raises:
        UserError: The reference or start is unknown, or steps is out of range.

    Example:
        Take a 4 x 4 image and a classifier whose p_c is the fraction of white pixels among the four in the upper left
        corner. The image is white, and the map ranks the pixels row by row. Each of the first two rows therefore
        inserts two of these four pixels:

            t       0   1/4   1/2   3/4   1
            p_c     0   1/2   1     1     1      area = 1/4 (0/2 + 1/2 + 1 + 1 + 1/2) = 0.75

        The reversed map inserts these pixels last: p_c = 0, 0, 0, 1/2, 1, and the area is 1/4 (1/2 + 1/2) = 0.25.

        >>> import torch
        >>> class Corner(torch.nn.Module):
        ...     def forward(self, images):
        ...         white = images[:, :, :2, :2].mean((1, 2, 3))
        ...         return torch.stack([1 - white, white], 1).log()
        >>> maps = torch.arange(16.0, 0, -1).view(1, 4, 4)
        >>> curves = Curves(Corner(), torch.ones(1, 3, 4, 4), torch.tensor([[0.0, 1.0]]), maps)
        >>> saliency_insertion(curves).tolist()
        [0.75]
    """
    check(steps=steps, start=start)
    counts = row_counts(curves.height, curves.width, steps)
    values = curves.path("top", reference, counts)
    if starts_at_zero(reference=reference, start=start):
        values = values - values[:, :1]
    return area(values, counts / counts[-1])
