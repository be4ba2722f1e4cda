"""The logits of a network for fixed pictures: whether two starts of a run, or two runs, used the same network.

A digest covers what is known to change what a network computes. The answers do not depend on that list being complete:
a file, a variable of the environment or a changed library shows in them as well. Results are joined only if the answers
agree within what arithmetic explains (`TOLERANCE`). They are computed without autocast, so that a run in bfloat16 is
compared as finely as one in float32.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from saliency_bench.errors import UserError
from saliency_bench.results.cell import StrictModel

# Largest difference of two logits, as a share of the range of all. For nine networks, another batch size, memory layout
# or kernel of a CPU, or float64, moved logits by at most 2e-6 of their range, and a GPU by at most 1e-4. One of 255
# levels of brightness moves them by 2e-3 and more.
TOLERANCE = 5e-4
COARSE = 5e-2  # of weights in half precision; bfloat16 moved the logits of these networks by up to 2.2e-2
HALF = ("bf16 weights", "fp16 weights")
Role = Literal["model", "other model", "model of the targets"]
FLAT = 1e-2  # of the largest logit: a smaller range is taken for this


PICTURES, MOST = 4, 1000  # pictures, and logits of each
Logits = Annotated[list[float | None], Field(min_length=1, max_length=MOST)]


class NetworkAnswers(StrictModel):
    """Logits for the fixed pictures of `engine.answers`.

    Attributes:
        size: Height and width of the pictures.
        logits: For each picture its logits, at most 1,000 of them; null where a logit is not finite.
    """

    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    logits: Annotated[list[Logits], Field(min_length=1, max_length=PICTURES)]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        """Raise ValueError unless all pictures have the same number of logits."""
        if len({len(row) for row in self.logits}) > 1:
            raise ValueError("logits have another number for some pictures than for others")
        return self

    def distance(self, other: "NetworkAnswers") -> float:
        """Return the largest difference of two logits, as a share of their range; infinity if shapes differ."""
        first, second = (np.array(answers.logits, dtype=float) for answers in (self, other))
        if self.size != other.size or first.shape != second.shape:
            return np.inf
        finite = np.isfinite(first)
        if not np.array_equal(finite, np.isfinite(second)):
            return np.inf
        first, second = first[finite], second[finite]
        scale = max(np.ptp(first), FLAT * np.abs(first).max(), np.finfo(float).tiny) if len(first) else 1.0
        return float(np.abs(first - second).max(initial=0) / scale)


def check_same_network(
    first: NetworkAnswers | None, second: NetworkAnswers | None, arithmetic: str, difference: str, fix: str
) -> None:
    """Raise UserError if two networks of equal digest answer differently.

    Args:
        first: Answers of the network of earlier results; None if there are none.
        second: Answers of the present network, likewise.
        arithmetic: What both compute in (`Classifier.arithmetic`).
        difference: Says which network differs.
        fix: Says what to do.
    """
    if first is None or second is None:
        return
    allowed = COARSE if arithmetic.startswith(HALF) else TOLERANCE
    if (distance := first.distance(second)) > allowed:
        raise UserError(
            f"{difference}: weights and settings are equal, but logits for fixed pictures differ by {distance:.2g} of "
            f"their range ({allowed:g} is allowed), as after a change of a library, file or variable that it reads; "
            f"{fix}"
        )


def joined(
    earlier: Mapping[Role, NetworkAnswers], now: Mapping[Role, NetworkAnswers], arithmetic: str, out: str
) -> dict[Role, NetworkAnswers]:
    """Return the answers of all networks of a run, by their roles.

    Raises:
        UserError: A network answers differently than at an earlier start.
    """
    for role in earlier.keys() & now.keys():
        difference = f"{out} holds results of another {role}"
        check_same_network(earlier[role], now[role], arithmetic, difference, "choose another --out")
    return {**now, **earlier}
