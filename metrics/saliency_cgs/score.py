"""Test whether the map that contrasts two groups of classes finds the evidence that distinguishes them."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.perturbation import Reference
from saliency_bench.compute.targets import group_vs_group
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.declarations import metric
from saliency_bench.metrics import _rfxg
from saliency_bench.metrics._papers import ELISHA_2025
from saliency_bench.metrics._rfxg import ExplainerQuestion, higher_is_better
from saliency_bench.types import Images


def sides(groups: ClassGroups, a: int, p: np.ndarray) -> TargetTerms | None:
    """Return A's group and the most probable group disjoint from it, or None if no group is disjoint from A's group."""
    rival = groups.rival(a, p)
    return TargetTerms(groups.group_of(a), rival) if rival else None


@metric(
    version=4,
    title="Why this group, not that (CGS)",
    higher_is_better=higher_is_better,
    range=(-1, 1),
    paper=ELISHA_2025,
    undefined="the predicted class is in no group, or no group is disjoint from its group",
    question=_rfxg.question_of(sides),
    passes=(9, 1),
)
def saliency_cgs(
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
    """Return the contrastive group score.

    It measures how far the probabilities of G_A fall and the probabilities of G_B rise as distinguishing pixels are
    removed.

        CGS = 1/0.8 * integral of 1/2 [mean over k in G_A of (f_k(x) - f_k(x_s))
                                       + mean over j in G_B of (f_j(x_s) - f_j(x))] ds over [0.1, 0.9]

    This is equation 5 of Elisha et al. (2025). The integral is computed by the trapezoid rule on 0.1, 0.2, ..., 0.9. f
    denotes the probabilities, and G_A is the group of the top class. G_B is the group with the highest mean probability
    among the groups that share no class with G_A. It is never a merged group, because a merged group does not represent
    a single concept. The map explains the target group_vs_group(G_A, G_B). x_s is the image without the top fraction s
    of the map's pixels.

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
        published: Whether to follow the authors' code: the term of G_A has the opposite sign, the area is not divided
            by 0.8, and the number of pixels is rounded down. Lower is then better.

    Returns:
        Scores in [-1, 1], float64 (B,); higher is better (lower if `published`). The score is NaN if the predicted
        class belongs to no group, or if its group overlaps with all other groups.

    Raises:
        UserError: The reference is unknown.

    Example:
        Take a white 4 x 4 image and the groups {A, B} and {C, D}. u and l are the fractions of white pixels in the
        upper and the lower half of the image. The classifier predicts p_A = u / 2 and p_B = 3 l / 10. The remaining
        probability r is divided into p_C = 3 r / 4 and p_D = r / 4. The map for {A, B} against {C, D} ranks the upper
        half first:

            removed        2        3        5        6        8        10       11       13       14 pixels
            value          0.0625   0.09375  0.15625  0.1875   0.25     0.2875   0.30625  0.34375  0.3625

        The area is 1/8 (sum - (first + last) / 2) = 1/8 (2.05 - 0.2125) = 0.2296875.
    """

    def ask(a: int, p: np.ndarray) -> ExplainerQuestion | None:
        """Return the question about the group of class A, or None if `sides` finds no second group."""
        terms = sides(groups, a, p)
        if terms is None:
            return None
        members, rival = list(terms.plus), list(terms.minus)
        sign = -1 if published else 1
        return ExplainerQuestion(
            group_vs_group(members, rival, len(p)),
            lambda f, g: (sign * (g - f)[:, members].mean(axis=1) + (f - g)[:, rival].mean(axis=1)) / 2,
        )

    return _rfxg.scores(ask, images, classifier, logits, explain, seeds, reference, published)
