"""Compute the agreement between people who marked an image, and their consensus mask.

The measures are defined for images with masks from at least two people. A and B are the masks of a pair (bool, H x W).

    IoU     |A and B| / |A or B|
    Dice    2 |A and B| / (|A| + |B|)
    kappa   Cohen's kappa (p_o - p_e) / (1 - p_e); p_o: fraction of pixels on which A and B agree; p_e: fraction
            expected if A and B were independent
    alpha   Krippendorff's alpha for nominal data, over all people at once; each pixel is a unit

If both masks are empty (or both full), all four measures are 1 by definition. If only one mask is empty, IoU and Dice
are 0. For an image, the value is the mean over its pairs. For a study, it is the mean over images, with an interval
from `saliency_bench.read.statistics.intervals` that treats images as independent.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from saliency_bench.errors import UserError, unknown
from saliency_bench.registry import install_hint

if TYPE_CHECKING:
    from saliency_bench.read.statistics.intervals import Estimate

RULES = ("half", "majority", "staple")  # consensus rules
LIMITS = {"IoU": (0.0, 1.0), "Dice": (0.0, 1.0), "Cohen's kappa": (-1.0, 1.0), "Krippendorff's alpha": (-1.0, 1.0)}


def votes(masks: Sequence[np.ndarray]) -> np.ndarray:
    """For each pixel, return the number of masks (bool, H x W) that mark it, uint16 (H, W).

    Raises:
        UserError: The masks have different sizes.
    """
    if len({mask.shape for mask in masks}) != 1:
        raise UserError("the masks of an image have different sizes")
    return np.stack(masks).sum(axis=0, dtype=np.uint16)


def consensus(masks: Sequence[np.ndarray], rule: str = "half") -> np.ndarray:
    """Return the consensus of people's masks, bool (H, W).

    Args:
        masks: One mask per person.
        rule: One of `RULES`. "half": pixels that at least half of the people marked (for two people, the union).
            "majority": pixels that more than half of the people marked (for two people, the intersection). "staple":
            pixels that belong to the region with a probability of at least 1/2 according to STAPLE (Warfield et al.,
            2004), which estimates how reliable each person is.

    Raises:
        UserError: The rule is unknown, the masks have different sizes, or SimpleITK is not installed.
    """
    if rule not in RULES:
        raise unknown("consensus rule", rule, RULES)
    counts = 2 * votes(masks).astype(np.int64)
    if rule == "staple" and len(masks) > 1 and any(mask.any() for mask in masks):
        return _staple(masks)
    return counts > len(masks) if rule == "majority" else counts >= len(masks)


def _staple(masks: Sequence[np.ndarray]) -> np.ndarray:
    """Return the STAPLE consensus, bool (H, W), computed with SimpleITK."""
    try:
        import SimpleITK
    except ModuleNotFoundError as error:
        raise UserError("the consensus rule staple needs SimpleITK; run `pip install SimpleITK`") from error
    probability = SimpleITK.STAPLE([SimpleITK.GetImageFromArray(mask.astype(np.uint8)) for mask in masks], 1.0)
    return SimpleITK.GetArrayFromImage(probability) >= 0.5


def iou(first: np.ndarray, second: np.ndarray) -> float:
    """Return intersection over union, or 1 if both masks are empty."""
    either = np.count_nonzero(first | second)
    return np.count_nonzero(first & second) / either if either else 1.0


def dice(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Dice coefficient, or 1 if both masks are empty."""
    total = np.count_nonzero(first) + np.count_nonzero(second)
    return 2 * np.count_nonzero(first & second) / total if total else 1.0


def cohens_kappa(first: np.ndarray, second: np.ndarray) -> float:
    """Compute Cohen's kappa with scikit-learn from the four counts of a pair.

    The result is 1 if both masks are empty or if both are full.
    """
    try:
        from sklearn.metrics import cohen_kappa_score
    except ModuleNotFoundError as error:
        raise UserError(f"agreement needs scikit-learn: {install_hint('studies')}") from error
    if (first.all() and second.all()) or not (first.any() or second.any()):
        return 1.0
    both, in_first = np.count_nonzero(first & second), np.count_nonzero(first)
    in_second = np.count_nonzero(second)
    counts = [first.size - in_first - in_second + both, in_second - both, in_first - both, both]
    return float(cohen_kappa_score([0, 0, 1, 1], [0, 1, 0, 1], labels=[0, 1], sample_weight=counts))


def krippendorffs_alpha(masks: Sequence[np.ndarray]) -> float:
    """Return Krippendorff's alpha of at least two masks, or 1 if all masks are empty or all are full.

    Let n be the number of people, and N the number of pixels times n. If k people mark a pixel, 1 - alpha is the sum of
    k (n - k) / (n - 1) over all pixels, times (N - 1), divided by the product of the numbers of ones and zeros. The sum
    is computed from the number of pixels with each k. The package krippendorff computes the same value but needs 6 s
    and 1.8 GB for an image of 12 megapixels.
    """
    people, marked = len(masks), votes(masks)
    pixels = [int(np.count_nonzero(marked == k)) for k in range(people + 1)]
    ones = sum(k * count for k, count in enumerate(pixels))
    zeros = people * marked.size - ones
    if ones == 0 or zeros == 0:
        return 1.0
    differing = sum(k * (people - k) * count for k, count in enumerate(pixels)) / (people - 1)
    return 1 - (ones + zeros - 1) * differing / (ones * zeros)


def image_agreement(masks: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the four measures for one image, which must have at least two masks."""
    pairs = list(combinations(masks, 2))
    scores = {"IoU": iou, "Dice": dice, "Cohen's kappa": cohens_kappa}
    means = {name: float(np.mean([score(*pair) for pair in pairs])) for name, score in scores.items()}
    return means | {"Krippendorff's alpha": krippendorffs_alpha(masks)}


def study_agreement(images: Iterable[Sequence[np.ndarray]]) -> "dict[str, Estimate]":
    """Return {measure: its mean and interval, over all images with at least two masks}."""
    from saliency_bench.read.statistics.intervals import (
        bounded,  # imported here because it imports torch, which would cost the server of a page 500 MB of memory
    )

    of_images = [image_agreement(masks) for masks in images if len(masks) > 1]
    columns = {name: np.array([numbers[name] for numbers in of_images]) for name in LIMITS}
    # Alpha can be below -1 only because of rounding.
    return {
        name: bounded(np.clip(values, *LIMITS[name]), np.arange(len(values)), LIMITS[name])
        for name, values in columns.items()
    }
