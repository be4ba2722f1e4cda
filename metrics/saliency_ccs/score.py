"""Test whether the map that contrasts class B with class A finds the evidence for B."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.perturbation import Reference
from saliency_bench.compute.targets import contrast
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.declarations import metric
from saliency_bench.metrics import _rfxg
from saliency_bench.metrics._papers import ELISHA_2025
from saliency_bench.metrics._rfxg import ExplainerQuestion, higher_is_better
from saliency_bench.types import Images


def sides(groups: ClassGroups, a: int, p: np.ndarray) -> TargetTerms | None:
    """Return A and the most probable other class of A's group, or None if there is no other class."""
    b = groups.runner_up(a, p)
    return None if b is None else TargetTerms((a,), (b,))


@metric(
    version=4,
    title="Why A, not B (CCS)",
    higher_is_better=higher_is_better,
    range=(-1, 1),
    paper=ELISHA_2025,
    undefined="the group of the predicted class contains no other class",
    question=_rfxg.question_of(sides),
    passes=(9, 1),
)
def saliency_ccs(
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
    """Return the contrastive contrastivity score: A's lead over B as the evidence for B is removed.

        CCS = 1/0.8 * integral of f_A(x_s) - f_B(x_s) ds over [0.1, 0.9], trapezoid rule on 0.1, 0.2, ..., 0.9

    This is equation 2 of Elisha et al. (2025). f denotes the probabilities, A is the top class, and B is the most
    probable other member of A's group. The map explains the target contrast(B, A): the evidence for B and not for A.
    x_s is the image without the top fraction s of the map's pixels.

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
        published: Whether to follow the authors' code: the map explains contrast(A, B), the area is not divided by 0.8,
            and the number of pixels is rounded down. Lower is then better.

    Returns:
        Scores in [-1, 1], float64 (B,); higher is better (lower if `published`). The score is NaN if the predicted
        class is alone in its group or belongs to no group.

    Raises:
        UserError: The reference is unknown.

    Example:
        Take a white 4 x 4 image and the groups {A, B} and {C, D}. u and l are the fractions of white pixels in the
        upper and the lower half of the image. The classifier predicts p_A = u / 2 and p_B = 3 l / 10. The remaining
        probability r is divided into p_C = 3 r / 4 and p_D = r / 4. The map for B against A ranks the lower half first,
        so p_B falls before p_A:

            removed        2        3        5        6        8        10       11       13       14 pixels
            f_A - f_B      0.275    0.3125   0.3875   0.425    0.5      0.375    0.3125   0.1875   0.125

        The area is 1/8 (sum - (first + last) / 2) = 1/8 (2.9 - 0.2) = 0.3375.
    """

    def ask(a: int, p: np.ndarray) -> ExplainerQuestion | None:
        """Return the question about class A, or None if A's group has no other class."""
        terms = sides(groups, a, p)
        if terms is None:
            return None
        b = terms.minus[0]
        target = contrast(a, b, len(p)) if published else contrast(b, a, len(p))
        return ExplainerQuestion(target, lambda f, g: f[:, a] - f[:, b])

    return _rfxg.scores(ask, images, classifier, logits, explain, seeds, reference, published)
