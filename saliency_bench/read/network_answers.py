"""Compare logits for fixed images to check that two calls for the same run, or two runs, used the same network.

A digest covers everything that is known to affect a network. The logits also reveal changes that the digest misses,
such as a change in a file, an environment variable or a library. Results are merged only if rounding errors can explain
the differences between the logits (`TOLERANCE`). The logits are computed without autocast, so runs in bfloat16 and in
float32 are compared equally strictly.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from saliency_bench.errors import UserError
from saliency_bench.read.cell import StrictModel

# Largest allowed difference of two logits, as a share of the range of all logits. In tests with nine networks, a
# different batch size, memory layout, CPU kernel or float64 changed logits by at most 2e-6 of their range, and a GPU by
# at most 1e-4. Changing the brightness of images by 1/255 changed logits by 2e-3 or more.
TOLERANCE = 5e-4
COARSE = 5e-2  # for weights in half precision; bfloat16 changed the logits of these networks by up to 2.2e-2
HALF = ("bf16 weights", "fp16 weights")
Role = Literal["model", "other model", "model of the targets"]
FLAT = 1e-2  # lower bound on the range, as a share of the largest absolute logit


PICTURES, MOST = 4, 1000  # largest number of images, and largest number of logits per image
Logits = Annotated[list[float | None], Field(min_length=1, max_length=MOST)]


class NetworkAnswers(StrictModel):
    """Logits for the fixed images of `compute.fixed_answers`.

    Attributes:
        size: Height and width of the images.
        logits: Logits of each image, at most 1,000; null for a logit that is not finite.
    """

    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    logits: Annotated[list[Logits], Field(min_length=1, max_length=PICTURES)]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        """Raise ValueError unless all images have the same number of logits."""
        if len({len(row) for row in self.logits}) > 1:
            raise ValueError("images have different numbers of logits")
        return self

    def distance(self, other: "NetworkAnswers") -> float:
        """Return the largest difference between logits as a fraction of their range; infinity if shapes differ."""
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
    """Raise UserError if two networks with equal digests have different logits.

    Args:
        first: Logits of the network of earlier results; None if they are unknown.
        second: Logits of the current network; None if they are unknown.
        arithmetic: Arithmetic of both networks (`Classifier.arithmetic`).
        difference: First part of the message, which names the network that differs.
        fix: Last part of the message, which describes the fix.
    """
    if first is None or second is None:
        return
    allowed = COARSE if arithmetic.startswith(HALF) else TOLERANCE
    if (distance := first.distance(second)) > allowed:
        raise UserError(
            f"{difference}: weights and settings are equal, but logits for fixed images differ by {distance:.2g} of "
            f"their range ({allowed:g} is allowed), perhaps because a library, a file or an environment variable has "
            f"changed; {fix}"
        )


def joined(
    earlier: Mapping[Role, NetworkAnswers], now: Mapping[Role, NetworkAnswers], arithmetic: str, out: str
) -> dict[Role, NetworkAnswers]:
    """Merge the logits of the networks from an earlier call of `run` and from the current call, by role.

    Raises:
        UserError: A network's logits differ from its logits in the earlier call.
    """
    for role in earlier.keys() & now.keys():
        difference = f"{out} contains results of a different {role}"
        check_same_network(earlier[role], now[role], arithmetic, difference, "choose a different --out")
    return {**now, **earlier}
