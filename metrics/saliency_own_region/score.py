"""Measure how often the classifier is right about a picture that shows only the map's salient region."""

from typing import Any

import numpy as np

from saliency_bench.compute.scoring.perturbation import Curves, Reference
from saliency_bench.declarations import metric
from saliency_bench.metrics import _pasting
from saliency_bench.metrics._papers import ANONYMOUS_2020
from saliency_bench.metrics._pasting import By


def parts(options: dict[str, Any], classifier: object) -> list[str]:
    """Return the names of the parts: whether a correct class is the top class, and whether it is in the top five."""
    return ["acc@1", "acc@5"]


def reduce(values: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return the score: whether a correct class is the top class."""
    return values[:, 0]


def check(*, threshold: float, by: By, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    _pasting.check_threshold(threshold, by)


@metric(
    version=2,
    title="Salient region alone",
    higher_is_better=True,
    range=(0, 1),
    paper=ANONYMOUS_2020,
    parts=parts,
    absent=_pasting.NO_FIVE,
    reduce=reduce,
    check=check,
    also_called=("vanilla masking", "masking accuracy"),
)
def saliency_own_region(
    curves: Curves,
    labels: np.ndarray,
    *,
    reference: Reference = "black",
    threshold: float = 0.5,
    by: By = "value",
) -> np.ndarray:
    """Return whether the classifier is right about a picture that shows only the map's salient region S on a reference.

        acc@1 = 1 if the top class for the picture S x + (1 - S) reference is one of the label's classes, else 0

    The paper describes the score in section A.5. S is the set of pixels whose min-max scaled map value exceeds the
    threshold. The mean over samples is an accuracy. saliency_correctness pastes the same S into a picture of the class
    instead, because a mostly black picture is meaningless to a classifier of photographs.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        labels: Correct classes of each image, bool (B, K), independent of the class that the map explains. A map that
            explains the label leaks the label to the classifier; the paper does not say which class its maps explain.
        reference: Values outside S. "black": 0, for images in [0, 1] (table 9 of the paper). "mean": the classifier's
            normalisation mean. Table 10 of the paper uses a grey that is computed from the bias of a convolution, but
            this convolution has no bias in torchvision's Inception v3. For the other references, see saliency_kae.
        threshold: Threshold that the pixels in S exceed. With by="value", a fraction (0 to 1) of the map's range. With
            by="percentile", a percentile (0 to 100) of the map's pixels.
        by: Scale of the threshold: the range of the map ("value") or the percentiles of its pixels ("percentile").

    Returns:
        Values acc@1 and acc@5 of 0 or 1, float64 (B, 2); higher is better. The score is acc@1. acc@5 is NaN if there
        are five classes or fewer, or no softmax. Both are NaN if the classifier returns NaN for the picture or for the
        unchanged image. A constant map has no salient pixels, so its picture is the reference.

    Raises:
        UserError: The reference is unknown or the threshold is out of range.

    Example:
        Take a white 4 x 4 image of class 1 and a classifier whose p_1 is the fraction of white pixels in the upper left
        quarter:

            8 8 0 0     S (values above 4.5, the midpoint of the range) has three pixels of this quarter
            8 3 0 0     p_1 = 3/4, so class 1 is the top class: acc@1 = 1
            0 0 9 9
            0 0 9 9     threshold=0.9: S has no pixel of it, p_1 = 0: acc@1 = 0

        >>> import torch
        >>> class Corner(torch.nn.Module):
        ...     def forward(self, images):
        ...         white = images[:, :, :2, :2].mean((1, 2, 3))
        ...         return torch.stack([1 - white, white], 1).log()
        >>> maps = torch.tensor([[[8.0, 8, 0, 0], [8, 3, 0, 0], [0, 0, 9, 9], [0, 0, 9, 9]]])
        >>> curves = Curves(Corner(), torch.ones(1, 3, 4, 4), torch.tensor([[0.0, 1.0]]), maps)
        >>> saliency_own_region(curves, np.array([[False, True]])).tolist()
        [[1.0, nan]]
        >>> saliency_own_region(curves, np.array([[False, True]]), threshold=0.9).tolist()
        [[0.0, nan]]
    """
    check(threshold=threshold, by=by)
    p = curves.shown(_pasting.salient_pixels(curves.maps, threshold, by), reference)
    correct = _pasting.accuracies(p, labels, curves.activation)
    # An image with NaN probabilities has no score, even if S excludes the pixels that cause NaN.
    whole = curves.probabilities("rest", "black", [0])[:, 0]
    return np.where(np.isnan(p + whole).any(axis=1, keepdims=True), np.nan, correct)
