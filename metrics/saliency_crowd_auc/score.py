"""Area under the accuracy of people who see a growing share of a picture, in the order of a map."""

from collections.abc import Sequence

import numpy as np

from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import LU_2021
from saliency_bench.read.statistics.exposures import SHOWN, check_shown, judgement_areas, read_first_right


def check(*, exposures: Sequence[float]) -> None:
    """Raise ValueError if an option is out of range."""
    check_shown(exposures)


@metric(
    version=1,
    title="Recognised by people (Crowd AUC)",
    higher_is_better=True,
    range=(0, 1),
    paper=LU_2021,
    check=check,
    also_called=("peekaboom", "crowd auc"),
)
def saliency_crowd_auc(first_right: np.ndarray, *, exposures: Sequence[float] = SHOWN) -> np.ndarray:
    """Return the area under a(r): whether people name the class when they see a map's top share r of a picture.

        score = integral of a(r) dr over [0, R] / R, by the trapezoid rule at r = 0 and the R exposures

    "Crowd" in section 3 and table 2 of the paper.

    A person sees the top 5 % of the pixels of a picture, then more of them until they choose its class correctly among
    several. a(r) of this judgement is 1 from that exposure on, else 0, and 0 if no pixel is shown. The mean over
    judgements is the area under the accuracy of people, the share of judgements that are correct at or before r.

    Args:
        first_right: Float (B,), for each judgement (one person, one picture, one map) the exposure of the first correct
            answer; NaN if it ended without a correct answer ("I don't know" at 100 %).
        exposures: increasing shares of the pixels at which people were asked, above 0 and at most 1.

    Returns:
        Float64 (B,) in [0, 1], higher is better; 0 without a correct answer.

    Raises:
        ValueError: The exposures are not increasing shares.

    Example:
        People see the top 4, then 8, then all 16 pixels of a 4 x 4 picture: r = 0.25, 0.5, 1

            right at 0.25   a = 0 1 1 1   area = 0.25 / 2 + 0.25 + 0.5 = 0.875
            right at 0.5    a = 0 0 1 1   area = 0.25 / 2 + 0.5        = 0.625
            right at 1      a = 0 0 0 1   area = 0.5 / 2               = 0.25
            never           a = 0 0 0 0   area = 0

        >>> first_right = np.array([0.25, 0.5, 1, np.nan])
        >>> saliency_crowd_auc(first_right, exposures=[0.25, 0.5, 1]).tolist()
        [0.875, 0.625, 0.25, 0.0]
    """
    check(exposures=exposures)
    return judgement_areas(read_first_right(first_right), exposures)
