"""Test whether the class is recognised when the salient region is pasted, and not when the rest is."""

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
    """Return the top-1 and top-5 accuracies with S pasted, with the rest pasted, and of the image itself."""
    return [f"{kind}@{top}" for kind in ("normal", "inverse", "plain") for top in TOPS]


def pseudo_f1(means: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return 2 / (1 / (1 - inverse) + 1 / normal), Float64 (D,), of mean accuracies (D, 6); 0 if one of the terms is 0.

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
    note="a harmonic mean; its interval is too narrow if few samples have few hits",
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
    """Return accuracies with the salient region, or the rest, pasted into a picture of the class (P4).

        score = 2 / (1 / (1 - acc_inverse) + 1 / acc_normal)

    The score is the pseudo-F1 of two mean accuracies. For each class, the k images with the highest probability of that
    class (H) and the k images with the lowest (L), disjoint, are paired one to one at random, `pairings` times. S are
    the salient pixels of H's map for its class, min-max, above the threshold. Normal: S of H on L; inverse: the rest of
    H on L, which should not be recognised. The accuracies are means over L and the pairings, and the score is computed
    from these means, not from scores of single images.

    The paper uses "a fixed threshold" for S and Th(1 - E) for the rest. At thresholds other than 0.5 these overlap or
    leave holes, so here the rest is everything outside S.

    Args:
        images: (B, 3, H, W) in [0, 1], the images of L.
        logits: (B, K), the classifier's logits for these images.
        labels: Bool (B, K), their correct classes.
        classifier: the network that judges the pasted pictures.
        partners: the images of H paired with each image.
        k: images of each class; at most n // 2 of a class with n images.
        pairings: random pairings within a class.
        threshold: where S begins: with by="value" a share of the map's range, from 0 to 1; with by="percentile" a
            percentile of the map's own pixels, from 0 to 100, such as 20, 40, 60, 80, so that S has the same number of
            pixels for every map.
        by: what the threshold refers to: "value", the range of the map, or "percentile", its pixels.
        top: whether the class must come first (1) or be among the first five (5).

    Returns:
        Float64 (B, 6): for each image of L, the shares of its pairings in which it is recognised: normal@1, normal@5,
        inverse@1, inverse@5; and for the image itself plain@1, plain@5. @5 is NaN with five classes or fewer, or
        without a softmax.
        Images that are not in any L are not scored. Higher is better.

    Raises:
        UserError: top=5 with five classes or fewer, or without a softmax.

    Example:
        One pairing, 4 x 4: the map of H is 8 in its upper left quarter, 3 in its lower right, else 0. The classifier
        sees the class where the upper left quarter is white, as it is in H and not in L:

            8 8 0 0     S, above 0.5 of the range, is the upper left quarter.
            8 8 0 0     normal: white there, recognised: 1
            0 0 3 3     inverse: L's own upper left quarter stays, not recognised: 0
            0 0 3 3     score = 2 / (1 / (1 - 0) + 1 / 1) = 1
    """
    activation, classes = activation_of(classifier), logits.shape[1]
    if top == 5 and not _pasting.has_five(activation, classes):
        raise UserError(
            f"saliency_correctness:top=5 needs a softmax over more than five classes; this model has {activation} and "
            f"{classes}: leave top=5 out"
        )
    pictures = _pasting.pasted(images, classifier, partners, threshold, by)
    plain = probabilities(logits.double(), activation).cpu().numpy()
    recognised = [
        _pasting.accuracies(pictures.p[:, which], labels[:, None], activation).mean(axis=1) for which in (0, 1)
    ]
    values = np.concatenate([*recognised, _pasting.accuracies(plain, labels, activation)], axis=1)
    undefined = np.isnan(pictures.p).any(axis=(1, 2, 3)) | no_probabilities(logits, activation)
    return np.where(undefined[:, None], np.nan, values)
