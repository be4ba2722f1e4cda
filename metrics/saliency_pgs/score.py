"""Why this group: whether the map of a group finds the evidence for all its classes."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.perturbation import Reference
from saliency_bench.compute.targets import group
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.declarations import metric
from saliency_bench.metrics import _rfxg
from saliency_bench.metrics._papers import ELISHA_2025
from saliency_bench.metrics._rfxg import ExplainerQuestion
from saliency_bench.types import Images


def sides(groups: ClassGroups, a: int, p: np.ndarray) -> TargetTerms | None:
    """Return the group of A, or None."""
    return TargetTerms(groups.group_of(a)) if groups.group_of(a) else None


@metric(
    version=4,
    title="Why this group (PGS)",
    higher_is_better=True,
    range=(-1, 1),
    paper=ELISHA_2025,
    undefined="the predicted class is in no group",
    question=_rfxg.question_of(sides),
    passes=(10, 1),
)
def saliency_pgs(
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
    """Return the pointwise group score (P3 eq. 4): how a group's classes fall as the group's evidence is removed.

        PGS = 1/0.8 * integral of mean over k in G_A of (f_k(x) - f_k(x_s)) ds over [0.1, 0.9]

    by the trapezoid rule on 0.1, 0.2, ..., 0.9. f are the probabilities, A the top class, G_A its group, A included.
    x_s is the image without the top share s of the pixels of the map for the target group(G_A).

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
        published: follow the authors' code: the values are the same, the area is not divided by 0.8 and the number of
            pixels is rounded down.

    Returns:
        Float64 (B,) in [-1, 1], higher is better; NaN for a sample whose class is in no group.

    Raises:
        UserError: The reference is unknown.

    Example:
        A white 4 x 4 image; u and l are the shares of white in its upper and its lower half. The classifier says p_A =
        u / 2, p_B = 3 l / 10, p_C = 3 r / 4 and p_D = r / 4 of the rest r. The groups are {A, B} and {C, D}. The map
        for the group ranks the upper half first, so A falls first, then B:

            removed        2        3        5        6        8        10       11       13       14 pixels
            value          0.0625   0.09375  0.15625  0.1875   0.25     0.2875   0.30625  0.34375  0.3625

        and the area is 1/8 (sum - (first + last) / 2) = 1/8 (2.05 - 0.2125) = 0.2296875.
    """

    def ask(a: int, p: np.ndarray) -> ExplainerQuestion | None:
        """Return the question about the group of class A, or None if it has no group."""
        terms = sides(groups, a, p)
        if terms is None:
            return None
        members = list(terms.plus)
        return ExplainerQuestion(group(members, len(p)), lambda f, g: (g - f)[:, members].mean(axis=1))

    return _rfxg.scores(ask, images, classifier, logits, explain, seeds, reference, published)
