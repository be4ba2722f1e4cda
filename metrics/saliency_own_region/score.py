"""Measure how often the classifier is right about a picture that shows only the map's salient region."""

from typing import Any

import numpy as np

from saliency_bench.compute.scoring.perturbation import Curves, Reference
from saliency_bench.declarations import metric
from saliency_bench.metrics import _pasting
from saliency_bench.metrics._papers import ANONYMOUS_2020
from saliency_bench.metrics._pasting import By


def parts(options: dict[str, Any], classifier: object) -> list[str]:
    """Return the parts: whether a correct class is the top class, and whether one is among the first five."""
    return ["acc@1", "acc@5"]


def reduce(values: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return whether a correct class is the top class."""
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
    """Return the accuracy on pictures that show only the map's salient region S (P4 A.5), a reference elsewhere.

        acc@1 = 1 if the top class of S x + (1 - S) reference is one of the label's, S = {map, min-max, > threshold}

    else 0. The mean over samples is an accuracy. S is defined as in saliency_correctness, which shows it on a picture
    of the class instead, because a mostly black picture is meaningless to a classifier of photographs.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        labels: Bool (B, K), the correct classes of each image, whatever class the map explains. A map that explains the
            label leaks it to the classifier; P4 does not specify which class its maps explain.
        reference: what is shown outside S. "black": 0 in [0, 1] (P4's table 9). "mean": the classifier's normalisation
            mean, instead of the grey of its table 10, which is the bias of a convolution that has no bias in
            torchvision's Inception v3. All others: see saliency_kae.
        threshold: where S begins: with by="value" a share of the map's range, from 0 to 1; with by="percentile" a
            percentile of the map's own pixels, from 0 to 100.
        by: what the threshold refers to: "value", the range of the map, or "percentile", its pixels.

    Returns:
        Float64 (B, 2): acc@1, the score, and acc@5, NaN with five classes or fewer or without a softmax; 0 or 1, higher
        is better; NaN if the classifier gives NaN for it or for the image itself. A constant map marks nothing, so the
        picture is the reference.

    Raises:
        UserError: The reference is unknown or the threshold is out of range.

    Example:
        A white 4 x 4 image of class 1, a classifier whose p_1 is the share of white in the upper left quarter:

            8 8 0 0     S, above 0.5 of the range from 0 to 9, has three pixels of that quarter
            8 3 0 0     p_1 = 3/4, class 1 comes first: acc@1 = 1
            0 0 9 9
            0 0 9 9     with threshold=0.9 it has none, p_1 = 0: acc@1 = 0

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
    # A picture for which the classifier gives NaN has no score, even if S leaves out the pixels that cause it.
    whole = curves.probabilities("rest", "black", [0])[:, 0]
    return np.where(np.isnan(p + whole).any(axis=1, keepdims=True), np.nan, correct)
