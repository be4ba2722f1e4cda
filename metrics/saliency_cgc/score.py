"""Test whether a map finds the evidence that distinguishes class A from the other classes of its group."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.perturbation import Reference
from saliency_bench.compute.targets import class_vs_group
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.declarations import metric
from saliency_bench.metrics import _rfxg
from saliency_bench.metrics._papers import ELISHA_2025
from saliency_bench.metrics._rfxg import ExplainerQuestion, higher_is_better
from saliency_bench.types import Images


def sides(groups: ClassGroups, a: int, p: np.ndarray) -> TargetTerms | None:
    """Return A and the other classes of A's group, or None if there are no other classes."""
    others = tuple(member for member in groups.group_of(a) if member != a)
    return TargetTerms((a,), others) if others else None


@metric(
    version=4,
    title="Why A, not its group (CGC)",
    higher_is_better=higher_is_better,
    range=(-1, 1),
    paper=ELISHA_2025,
    undefined="the group of the predicted class contains no other class",
    question=_rfxg.question_of(sides),
    passes=(9, 1),
)
def saliency_cgc(
    images: Images,
    classifier: nn.Module,
    logits: Tensor,
    groups: ClassGroups,
    explain: MapProvider,
    seeds: Sequence[int],
    *,
    reference: Reference = "black",
    published: bool = False,
) -> np.ndarray:
    """Return the class group contrastivity.

    It measures how far the probability of A falls and the probabilities of the other classes in its group rise as the
    evidence for A is removed.

        CGC = 1/0.8 * integral of 1/2 [mean over k in G_A of (f_k(x_s) - f_k(x)) + f_A(x) - f_A(x_s)] ds

    This is equation 3 of Elisha et al. (2025). The integral is over [0.1, 0.9], computed by the trapezoid rule on 0.1,
    0.2, ..., 0.9. f denotes the probabilities, A is the top class, and G_A is its group without A. The map explains the
    target class_vs_group(A, G_A). x_s is the image without the top fraction s of the map's pixels.

    Args:
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        classifier: Network that predicts the probabilities.
        logits: Logits of the classifier for these images, of shape (B, K).
        groups: Groups of the classifier's classes.
        explain: Function that computes the map for the target above.
        seeds: One seed per image for the references "noise", "linear" and "gaussian".
        reference: Values that replace the removed pixels of images in [0, 1]: "black" (0), "blur", "mean", "noise",
            "inpaint", "linear", "farthest" (0 or 1, whichever is farther from the pixel's value) or "gaussian" (normal
            noise around the pixel's value, truncated to [0, 1]).
        published: Whether to follow the authors' code: the term of A has the opposite sign, the area is not divided by
            0.8, and the number of pixels is rounded down. Lower is then better.

    Returns:
        Scores in [-1, 1], float64 (B,); higher is better (lower if `published`). The score is NaN if the predicted
        class is alone in its group or belongs to no group.

    Raises:
        UserError: The reference is unknown.

    Example:
        Take a white 4 x 4 image and the groups {A, B} and {C, D}. u and l are the fractions of white pixels in the
        upper and the lower half of the image. The classifier predicts p_A = u / 2 and p_B = 3 l / 10. The remaining
        probability r is divided into p_C = 3 r / 4 and p_D = r / 4. The map for A against B ranks the upper half first,
        so p_A falls before p_B:

            removed        2        3        5        6        8        10       11       13       14 pixels
            value          0.0625   0.09375  0.15625  0.1875   0.25     0.2125   0.19375  0.15625  0.1375

        The area is 1/8 (sum - (first + last) / 2) = 1/8 (1.45 - 0.1) = 0.16875.
    """

    def ask(a: int, p: np.ndarray) -> ExplainerQuestion | None:
        """Return the question about class A, or None if A is alone in its group."""
        terms = sides(groups, a, p)
        if terms is None:
            return None
        others = list(terms.minus)
        sign = -1 if published else 1
        return ExplainerQuestion(
            class_vs_group(a, others, len(p)),
            lambda f, g: ((f - g)[:, others].mean(axis=1) + sign * (g[a] - f[:, a])) / 2,
        )

    return _rfxg.scores(ask, images, classifier, logits, explain, seeds, reference, published)
