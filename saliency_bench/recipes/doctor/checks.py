"""Results of `doctor`. Each check has a mark, a finding and a fix."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from saliency_bench.read.statistics.clusters import Matched
from saliency_bench.read.statistics.paired_test import adjusted_p

ENOUGH = 20  # minimum number of images to judge accuracy
ALPHA = 0.01  # level of a test, adjusted for all alternatives
CLEAR = 0.05  # a gain in accuracy of at least this much is marked "wrong", a smaller one "look"
Mark = Literal["ok", "look", "undecided", "wrong"]


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: Name of the check.
        mark: "ok", "look" (worth a look), "undecided" (too few images or too little time), or "wrong".
        text: The finding, as a sentence.
        fix: Suggested fix, or "" if there is nothing to fix.
        values: Numbers that the finding is based on.
    """

    name: str
    mark: Mark
    text: str
    fix: str = ""
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """Return the finding followed by the fix."""
        return f"{self.text}; {self.fix}" if self.fix else self.text

    def as_dict(self) -> dict[str, Any]:
        """Return the check as a dict for JSON."""
        return {"check": self.name, "mark": self.mark, "text": self.text, "fix": self.fix, "values": self.values}


@dataclass(frozen=True)
class Gain:
    """Comparison of an alternative with the declared setting, on the same images.

    Attributes:
        value: Mean score with the alternative.
        declared: Mean score with the declared setting.
        p: P-value of the paired test, adjusted for all alternatives.
        n: Number of images with both scores.
    """

    value: float
    declared: float
    p: float
    n: int

    @property
    def is_better(self) -> bool:
        """Return whether the alternative is significantly better."""
        return self.n >= ENOUGH and self.p < ALPHA and self.value > self.declared

    @property
    def mark(self) -> Mark:
        """Return the mark of this alternative."""
        return "ok" if not self.is_better else "wrong" if self.value - self.declared >= CLEAR else "look"

    def __str__(self) -> str:
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"accuracy {self.value:.0%} instead of {self.declared:.0%}, {p}, n = {self.n}"

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as a dict for JSON."""
        return {"accuracy": self.value, "declared": self.declared, "p": self.p, "n": self.n, "better": self.is_better}


def gains(declared: np.ndarray, others: Sequence[np.ndarray], codes: np.ndarray, seed: int) -> list[Gain]:
    """Compare each alternative with the declared setting, using the paired test of the reports.

    The p-values are adjusted for the number of alternatives.

    Args:
        declared: (n,) scores of the declared setting: 0 or 1, or NaN for an image without a score.
        others: (n,) scores of each alternative.
        codes: (n,) cluster of each image.
        seed: Seed of the test.
    """
    pairs = [(0, index) for index in range(1, len(others) + 1)]
    (p_values,) = adjusted_p([Matched([declared, *others], codes, (0.0, 1.0))], [pairs], seed=seed)
    results = []
    for index, other in enumerate(others, start=1):
        both = np.isfinite(declared) & np.isfinite(other)
        value, before = (float(column[both].mean()) if both.any() else 0.0 for column in (other, declared))
        results.append(Gain(value, before, float(p_values.get((0, index), 1.0)), int(both.sum())))
    return results


def first_few(items: Sequence[Any], count: int = 4) -> str:
    """Format the first `count` items of a list, and say how many more there are."""
    more = len(items) - count
    return ", ".join(map(str, items[:count])) + (f" and {more} more" if more > 0 else "")
