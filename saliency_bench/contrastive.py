"""The contrastive score along a deletion path, as published with CWOX (Xie et al., 2023): CAUC and CDROP reduce it."""

from dataclasses import dataclass

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.perturbation import Curves, check_path

SALIENT = ("range", "maximum")
POINTS_AT_ONCE = 64  # pictures whose probabilities are looked at together


@dataclass(frozen=True)
class Deletion:
    """s = p_A (1 - p_B) while salient pixels leave, `step` at a time.

    scores: Float64 (B, N), of the whole image first; of sample i the first `points[i]` are its path.
    salient: Int (B,), numbers of salient pixels. steps: how many steps it takes until the whole image has left.
    """

    scores: np.ndarray
    points: np.ndarray
    salient: np.ndarray
    steps: int


def delete_salient(curves: Curves, *, step: int, threshold: float, salient: str, reference: str) -> Deletion:
    """Let the salient pixels leave for the reference, the highest first.

    p_A is the probability of the classes that the target weighs positively, together; p_B of those that it weighs
    negatively. Where there are none of those, B is the class that is the most probable in the whole image outside A.

    As in the published code a path of n salient pixels has max(1, ceil(n / step)) points, the whole image among them:
    the last step is not taken.
    """
    numbers = salient_pixels(curves.maps, threshold, salient)
    points = np.maximum(-(-numbers // step), 1)
    a, b = _sides(curves)
    scores = []
    for start in range(0, points.max(initial=1), POINTS_AT_ONCE):
        counts = step * np.arange(start, min(start + POINTS_AT_ONCE, points.max(initial=1)))
        p_a, p_b = (curves.weighted(side, "rest", reference, counts) for side in (a, b))
        scores.append(p_a * (1 - p_b))
    return Deletion(np.concatenate(scores, axis=1), points, numbers, -(-curves.height * curves.width // step))


def salient_pixels(maps: np.ndarray, threshold: float, salient: str) -> np.ndarray:
    """Int (B,): how many pixels are salient.

    "range": those above min + threshold (max - min), the published code's; "maximum": those at threshold * max or above
    it, its paper's, none where max <= 0.
    """
    values = maps.reshape(len(maps), -1).astype(np.float64)
    high = values.max(axis=1, keepdims=True)
    if salient == "maximum":
        return np.count_nonzero((values >= threshold * high) & (high > 0), axis=1)
    low = values.min(axis=1, keepdims=True)
    return np.count_nonzero(values > low + threshold * (high - low), axis=1)


def _sides(curves: Curves) -> tuple[np.ndarray, np.ndarray]:
    """Float64 (B, K) each: 1 for the classes of A, and of B."""
    a, b = curves.target > 0, curves.target < 0
    whole = curves.probabilities("rest", "black", [0])[:, 0]
    rivals = np.where(a, -1.0, whole).argmax(axis=1, keepdims=True)
    alone = ~b.any(axis=1, keepdims=True)
    b |= alone & ~a & (np.arange(a.shape[1]) == rivals)
    return a.astype(np.float64), b.astype(np.float64)


def check_deletion(*, step: int, threshold: float, salient: str, reference: str) -> None:
    """Errors: UserError for a value out of range."""
    check_path(reference=reference)
    if step < 1:
        raise UserError(f"step={step} must be 1 pixel or more")
    if not 0 <= threshold <= 1:
        raise UserError(f"threshold={threshold} must lie in [0, 1]")
    if salient not in SALIENT:
        raise UserError(f"salient='{salient}' is neither 'range' nor 'maximum'")
