"""Test whether a different assignment of logits to classes explains the predictions better than the declared one.

An assignment with free parameters is fitted on one half of the images and evaluated on the other half, and vice versa,
so that fitting gives it no advantage. The assignment must be better than the declared assignment. It must also be
better than always predicting the most common class. For a network with constant predictions, an assignment could
otherwise seem better by mapping the predicted logit to the most common class.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from saliency_bench.recipes.doctor.checks import CLEAR, Gain, gains

NONE = -1  # marks a class without a logit
CLOSE = 0.02  # difference in accuracy below which the simpler explanation is chosen
Fit = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (labels, predictions) -> the logit of each class (D,)


@dataclass(frozen=True)
class ClassAssignment:
    """An assignment of logits to classes that explains the predictions significantly better.

    Attributes:
        name: Description of the assignment.
        logits: (D,) index of the logit of each class in the dataset.
        gain: Comparison of the accuracy of this assignment with that of the declared one, on images that were not used
            for fitting.
    """

    name: str
    logits: np.ndarray
    gain: Gain

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the assignment as a dict for JSON. The dict includes a label map that declares this assignment."""
        label_map = {name: int(logit) for name, logit in zip(names, self.logits, strict=True) if logit != NONE}
        return {"assignment": self.name, "label_map": label_map, **self.gain.as_dict()}


def better_assignment(
    labels: np.ndarray, predictions: np.ndarray, declared: np.ndarray, classes: int, names: Sequence[str],
    codes: np.ndarray, seed: int,
) -> ClassAssignment | None:  # fmt: skip
    """Return an assignment that explains the predictions significantly better than the declared one, or None.

    Args:
        labels: (n,) class of each image.
        predictions: (n,) index of the largest logit of each image.
        declared: (D,) index of each class's logit, or NONE for a class without a logit.
        classes: Number of logits.
        names: Names of the dataset's classes.
        codes: (n,) cluster of each image.
        seed: Seed of the test.
    """
    half = _halves(labels, codes)
    fits = _fits(declared, classes, names)
    scores = {name: _score(fit, labels, predictions, half) for name, fit in fits.items()}
    right = (declared[labels] == predictions).astype(float)
    constant = _score_of_most_common(labels, half)
    listed = list(scores.values())
    over_declared = gains(right, listed, codes, seed)
    over_constant = gains(constant, listed, codes, seed)
    explaining = [
        (name, gain)
        for name, gain, other in zip(scores, over_declared, over_constant, strict=True)
        if gain.is_better and other.is_better and gain.value - gain.declared >= CLEAR
    ]
    if not explaining:
        return None
    best = max(gain.value for _, gain in explaining)
    name, gain = next((name, gain) for name, gain in explaining if gain.value >= best - CLOSE)
    logits = fits[name](labels, predictions)
    if name == SHIFT:
        name = _shift_name(declared, logits, classes)
    return ClassAssignment(name, logits, gain)


SHIFT = "shifted"


def _fits(declared: np.ndarray, classes: int, names: Sequence[str]) -> dict[str, Fit]:
    """Return {name: function that fits an assignment}, with the simplest kind of assignment first."""
    fits: dict[str, Fit] = {SHIFT: lambda labels, predictions: _shifted(declared, labels, predictions, classes)}
    orders: dict[str, np.ndarray] = {"reversed": np.where(declared == NONE, NONE, classes - 1 - declared)}
    if classes == len(names):
        orders["sorted by class name"] = _ranks(names)
        orders["sorted as text (0, 1, 10, 2)"] = _ranks([str(number) for number in range(classes)])
    fits |= {
        name: lambda labels, predictions, logits=logits: logits  # type: ignore[misc]
        for name, logits in orders.items()
        if not np.array_equal(logits, declared)
    }
    fits["permuted"] = lambda labels, predictions: _permuted(declared, labels, predictions, classes)
    return fits


def _shifted(declared: np.ndarray, labels: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """Shift the declared assignment by the offset (in logits) that makes the most predictions match their labels."""
    known = declared[labels] != NONE
    shifts = Counter(((predictions - declared[labels]) % classes)[known].tolist())
    shift = max(shifts, key=lambda number: (shifts[number], -number), default=0)
    return np.where(declared == NONE, NONE, (declared + shift) % classes)


def _permuted(declared: np.ndarray, labels: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """Return the one-to-one assignment that matches the most labels. In a tie, a class keeps its declared logit."""
    counts = np.zeros((len(declared), classes))
    np.add.at(counts, (labels, predictions), 1.0)
    has_logit = np.flatnonzero(declared != NONE)
    counts[has_logit, declared[has_logit]] += 0.5
    rows, logits = linear_sum_assignment(-counts[has_logit])
    assigned = np.full(len(declared), NONE)
    assigned[has_logit[rows]] = logits
    return assigned


def _ranks(names: Sequence[str]) -> np.ndarray:
    """Return the position of each name in sorted order."""
    ranks = np.empty(len(names), dtype=int)
    ranks[np.argsort(np.array(names), kind="stable")] = np.arange(len(names))
    return ranks


def _halves(labels: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return a mask, bool (n,), that selects half of the clusters, with about half of the images of each class."""
    half, seen, of_cluster = np.zeros(len(labels), dtype=bool), Counter[int](), {}
    for index, (label, code) in enumerate(zip(labels.tolist(), codes.tolist(), strict=True)):
        if code not in of_cluster:
            of_cluster[code] = seen[label] % 2 == 1
            seen[label] += 1
        half[index] = of_cluster[code]
    return half


def _score(fit: Fit, labels: np.ndarray, predictions: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Return scores (n,): 1 for images that are classified correctly by the assignment fitted on the other half."""
    right = np.zeros(len(labels))
    for chosen in (half, ~half):
        logits = fit(labels[~chosen], predictions[~chosen])
        right[chosen] = logits[labels[chosen]] == predictions[chosen]
    return right


def _score_of_most_common(labels: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Return scores (n,): 1 for images of the most common class in the other half."""
    right = np.zeros(len(labels))
    for chosen in (half, ~half):
        if (~chosen).any():
            right[chosen] = labels[chosen] == np.bincount(labels[~chosen]).argmax()
    return right


def _shift_name(declared: np.ndarray, logits: np.ndarray, classes: int) -> str:
    known = np.flatnonzero(declared != NONE)
    shift = int((logits[known[0]] - declared[known[0]]) % classes)
    if classes == 2:
        return "the two classes swapped"
    steps, way = (shift, "later") if shift <= classes // 2 else (classes - shift, "earlier")
    return f"shifted: each class is {steps} logit{'s' * (steps > 1)} {way} than declared"
