"""Test whether the class is recognised when the salient region is pasted, but not when the other pixels are pasted."""

from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from saliency_bench.compute.scoring.partners import Partners
from saliency_bench.declarations import metric
from saliency_bench.errors import UserError
from saliency_bench.metrics import _pasting
from saliency_bench.metrics._papers import ANONYMOUS_2020
from saliency_bench.metrics._pasting import By
from saliency_bench.target_weights import activation_of, no_probabilities, probabilities
from saliency_bench.types import Images

TOPS = (1, 5)


def parts(options: dict[str, Any], classifier: object) -> list[str]:
    """Return the names of the accuracies.

    There is a top-1 and a top-5 accuracy for images with the salient region pasted ("normal"), with the other pixels
    pasted ("inverse"), and for unchanged images ("plain").
    """
    return [f"{kind}@{top}" for kind in ("normal", "inverse", "plain") for top in TOPS]


def pseudo_f1(means: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return 2 / (1 / (1 - inverse) + 1 / normal), float64 (D,), of mean accuracies (D, 6), or 0 if a divisor is 0.

    >>> pseudo_f1(np.array([[0.8, 1, 0.4, 1, 0.1, 1], [0.0, 1, 0.0, 1, 0.0, 1]]), {"top": 1}).round(4).tolist()
    [0.6857, 0.0]
    """
    column = TOPS.index(options["top"])
    normal, kept = means[:, column], 1 - means[:, column + len(TOPS)]
    return 2 * normal * kept / np.where(normal + kept == 0, 1, normal + kept)


@metric(
    version=3,
    title="Correctness",
    higher_is_better=True,
    range=(0, 1),
    paper=ANONYMOUS_2020,
    parts=parts,
    absent=_pasting.NO_FIVE,
    aggregate=pseudo_f1,
    note="a harmonic mean; its interval is too narrow with few samples and few hits",
    plan=_pasting.plan,
    check=_pasting.check,
    also_called=("pseudo-F1", "pseudo F1", "pasting"),
)
def saliency_correctness(
    images: Images,
    logits: Tensor,
    labels: np.ndarray,
    classifier: nn.Module,
    partners: Partners,
    *,
    k: int = 5,
    pairings: int = 5,
    threshold: float = 0.5,
    by: By = "value",
    top: Literal[1, 5] = 1,
) -> np.ndarray:
    """Return accuracies on images into which part of a same-class image is pasted: its salient region or the rest.

        score = 2 / (1 / (1 - acc_inverse) + 1 / acc_normal)

    The score is the pseudo-F1 of two mean accuracies. For each class, the k images with the highest probability of that
    class (set H) are paired at random with the k images with the lowest probability (set L). H and L are disjoint, and
    images are paired one to one, `pairings` times. S is the salient region of an image in H: the pixels whose value in
    the map for its class exceeds the threshold after min-max scaling. A "normal" picture shows S pasted onto the paired
    image in L. An "inverse" picture shows the pixels outside S pasted onto the paired image, and should not be
    recognised. The accuracies are means over L and the pairings. The score is computed from these means, not from
    scores of individual images.

    The paper uses "a fixed threshold" for S and Th(1 - E) for the other pixels. At thresholds other than 0.5 these
    regions overlap or leave holes, so this implementation uses all pixels outside S.

    Args:
        images: Images of L, of shape (B, 3, H, W) with values in [0, 1].
        logits: Logits of the classifier for these images, of shape (B, K).
        labels: Correct classes of these images, bool (B, K).
        classifier: Network that classifies the pasted pictures.
        partners: Images of H that are paired with each image.
        k: Number of images per class in each of H and L, limited to n // 2 for a class of n images.
        pairings: Number of random pairings within a class.
        threshold: Threshold that the pixels in S exceed. With by="value", a fraction (0 to 1) of the map's range. With
            by="percentile", a percentile (0 to 100) of the map's pixels, such as 20, 40, 60 or 80; S then has the same
            number of pixels for every map.
        by: Scale of the threshold: the range of the map ("value") or the percentiles of its pixels ("percentile").
        top: Whether the class must be the top class (1) or among the top five (5).

    Returns:
        Accuracies of each image of L, float64 (B, 6). normal@1, normal@5, inverse@1 and inverse@5 are the fractions of
        pairings in which the class is recognised. plain@1 and plain@5 are the accuracies on the unchanged image. The @5
        values are NaN if there are five classes or fewer, or no softmax. Images that are not in any L have no score.
        Higher is better.

    Raises:
        UserError: `top` is 5, and the classifier has five classes or fewer, or no softmax.

    Example:
        Take one pairing of 4 x 4 images. The map of H is 8 in the upper left quarter, 3 in the lower right quarter and
        0 elsewhere. The classifier recognises the class if the upper left quarter is white. This is true for H but not
        for L:

            8 8 0 0     S (values above the midpoint of the range) is the upper left quarter.
            8 8 0 0     normal: this quarter is white, so the class is recognised: 1
            0 0 3 3     inverse: L's upper left quarter is kept, so it is not recognised: 0
            0 0 3 3     score = 2 / (1 / (1 - 0) + 1 / 1) = 1
    """
    activation, classes = activation_of(classifier), logits.shape[1]
    if top == 5 and not _pasting.has_five(activation, classes):
        raise UserError(
            "saliency_correctness:top=5 needs a softmax over more than five classes, but this model has a "
            f"{activation} over {classes} classes; remove top=5"
        )
    pictures = _pasting.pasted(images, classifier, partners, threshold, by)
    plain = probabilities(logits.double(), activation).cpu().numpy()
    recognised = [
        _pasting.accuracies(pictures.p[:, which], labels[:, None], activation).mean(axis=1) for which in (0, 1)
    ]
    values = np.concatenate([*recognised, _pasting.accuracies(plain, labels, activation)], axis=1)
    undefined = np.isnan(pictures.p).any(axis=(1, 2, 3)) | no_probabilities(logits, activation)
    return np.where(undefined[:, None], np.nan, values)
