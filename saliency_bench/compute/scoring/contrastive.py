"""Compute the contrastive score of CAUC and CDROP along a deletion path, as in the CWOX paper (Xie et al., 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.errors import UserError
from saliency_bench.target_weights import TargetRange

Salient = Literal["range", "maximum"]
Rival = Literal["any", "group"]
SALIENT = get_args(Salient)


@dataclass(frozen=True)
class Deletion:
    """Deletion path.

    Reference pixels replace the salient pixels, `step` at a time, starting with the highest map value.

    p_A is the total probability of the classes with positive target weights, and p_B is the total probability of the
    classes with negative weights. If there are no negative weights, B is a single class, chosen with the probabilities
    for the whole image: the most probable class outside A or, with groups, the most probable other member of A's
    groups.
    """

    curves: Curves
    salient: np.ndarray  # Int (B,), numbers of salient pixels
    step: int
    reference: str
    sides: np.ndarray  # Bool (B, 2, K), the classes of A and B
    lacks_rival: np.ndarray  # Bool (B,), whether A's groups have no other member

    @property
    def points(self) -> np.ndarray:
        """Number of points of each path, Int (B,), including the whole image.

        As in the published code, the number is max(1, ceil(n / step)) for n salient pixels. The last step is thus left
        out.
        """
        return np.maximum(-(-self.salient // self.step), 1)

    @property
    def steps(self) -> int:
        """Return the number of steps until the whole image is removed."""
        return -(-self.curves.height * self.curves.width // self.step)

    def scores(self, points: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return s = p_A (1 - p_B) for each sample at its points, float64 (n,), where point 0 is the whole image."""
        sides = self.sides.astype(np.float64)
        p_of_sides = self.curves.weighted_each(sides, "rest", self.reference, [self.step * counts for counts in points])
        return [p[:, 0] * (1 - p[:, 1]) for p in p_of_sides]


def score_range(options: dict[str, object], target: TargetRange) -> tuple[float, float]:
    """Return (low, high) of s = p_A (1 - p_B). This is (0, 1) unless sigmoid probabilities sum to more than 1."""
    return target.a * (1 - max(1.0, target.b)), target.a


def without_groups(options: dict[str, object]) -> tuple[str, ...]:
    """Return the names of inputs that are not needed with these options."""
    return () if options["rival"] == "group" else ("groups",)


def delete_salient(
    curves: Curves, groups: ClassGroups | None, *, step: int, threshold: float, salient: str, reference: str
) -> Deletion:
    """Return the path that deletes each map's salient pixels. If groups are passed, B is a member of A's groups."""
    a, b = np.asarray(curves.target > 0), np.asarray(curves.target < 0)
    others = np.asarray(~a if groups is None else ~a & np.stack([_members(row, groups) for row in a]))
    alone = np.asarray(~b.any(axis=1, keepdims=True))
    whole = curves.probabilities("rest", "black", [0])[:, 0]
    rivals = np.where(others, whole, -1.0).argmax(axis=1, keepdims=True)
    b |= alone & others & (np.arange(a.shape[1]) == rivals)
    lacks_rival = alone[:, 0] & ~others.any(axis=1) & (groups is not None)
    salient_counts = salient_pixels(curves.maps, threshold, salient)
    return Deletion(curves, salient_counts, step, reference, np.stack([a, b], axis=1), lacks_rival)


def _members(classes: np.ndarray, groups: ClassGroups) -> np.ndarray:
    """Return all members of the groups of the given classes. Argument and result are Bool (K,)."""
    members = np.zeros(len(classes), dtype=bool)
    for label in np.flatnonzero(classes).tolist():
        members[list(groups.group_of(label))] = True
    return members


def salient_pixels(maps: np.ndarray, threshold: float, salient: str) -> np.ndarray:
    """Return the number of salient pixels of each map, Int (B,).

    With "range", as in the published code, pixels above min + threshold (max - min) are salient. With "maximum", as in
    the paper, pixels of at least threshold * max are salient; there are none if max <= 0.
    """
    values = maps.reshape(len(maps), -1).astype(np.float64)
    high = values.max(axis=1, keepdims=True)
    if salient == "maximum":
        return np.count_nonzero((values >= threshold * high) & (high > 0), axis=1)
    low = values.min(axis=1, keepdims=True)
    return np.count_nonzero(values > low + threshold * (high - low), axis=1)


def check_deletion(*, step: int, threshold: float, salient: str, **others: object) -> None:
    """Raise UserError for an option that is out of range."""
    if step < 1:
        raise UserError(f"step must be at least 1 pixel; got {step}")
    if not 0 <= threshold <= 1:
        raise UserError(f"threshold must be in [0, 1]; got {threshold}")
    if salient not in SALIENT:
        raise UserError(f"salient='{salient}' is neither 'range' nor 'maximum'")
