"""Why A and not B: whether the map of B against A finds the evidence for B."""

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
    """Return A and the most probable other class of its group, or None if its group has no other class."""
    b = groups.runner_up(a, p)
    return None if b is None else TargetTerms((a,), (b,))


@metric(
    version=4,
    title="Why A, not B (CCS)",
    higher_is_better=higher_is_better,
    range=(-1, 1),
    paper=ELISHA_2025,
    undefined="no other class in the group of the predicted one",
    question=_rfxg.question_of(sides),
    passes=(10, 1),
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
    """Return the contrastive contrastivity score (P3 eq. 2): how far A leads B as the evidence for B is removed.

        CCS = 1/0.8 * integral of f_A(x_s) - f_B(x_s) ds over [0.1, 0.9], trapezoid rule on 0.1, 0.2, ..., 0.9

    f are the probabilities, A the top class, B the most probable other member of A's group. x_s is the image without
    the top share s of the pixels of the map for the target contrast(B, A): the evidence for B and not for A.

    Args:
        images: (B, 3, H, W) in [0, 1].
        classifier: the network whose probabilities are read.
        logits: (B, K), the classifier's logits for these images.
        groups: groups of the classifier's classes.
        explain: makes the map for the target above.
        seeds: one per image, for the references "noise", "linear" and "gaussian".
        reference: what replaces the removed pixels: "black" (0 in [0, 1]), "blur", "mean", "noise", "inpaint",
            "linear", "farthest" (0 or 1, whichever is farther from each value) or "gaussian" (normal noise around each
            value, within [0, 1]).
        published: follow the authors' code: the map is for contrast(A, B), the area is not divided by 0.8 and the
            number of pixels is rounded down. Lower is then better.

    Returns:
        Float64 (B,) in [-1, 1], higher is better (lower if `published`); NaN for a sample whose class is alone in its
        group or in no group.

    Raises:
        UserError: The reference is unknown.

    Example:
        A white 4 x 4 image; u and l are the shares of white in its upper and its lower half. The classifier says p_A =
        u / 2, p_B = 3 l / 10, p_C = 3 r / 4 and p_D = r / 4 of the rest r. The groups are {A, B} and {C, D}. The map
        for B against A ranks the lower half first, so B falls before A does:

            removed        2        3        5        6        8        10       11       13       14 pixels
            f_A - f_B      0.275    0.3125   0.3875   0.425    0.5      0.375    0.3125   0.1875   0.125

        and the area is 1/8 (sum - (first + last) / 2) = 1/8 (2.9 - 0.2) = 0.3375.
    """

    def ask(a: int, p: np.ndarray) -> ExplainerQuestion | None:
        """Return the question about class A, or None if it has no rival in its group."""
        terms = sides(groups, a, p)
        if terms is None:
            return None
        b = terms.minus[0]
        target = contrast(a, b, len(p)) if published else contrast(b, a, len(p))
        return ExplainerQuestion(target, lambda f, g: f[:, a] - f[:, b])

    return _rfxg.scores(ask, images, classifier, logits, explain, seeds, reference, published)
