"""Measure how early people recognise a picture whose pixels are revealed in the order of a map."""

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
    """Return the area under a(r): 1 if a person who sees the top fraction r of a picture names its class, else 0.

        score = integral of a(r) dr over [0, R] / R, by the trapezoid rule at r = 0 and at the exposures up to R

    The paper describes this score as "Crowd" in section 3 and table 2.

    A person is shown the top 5 % of the pixels of a picture, then more pixels, until the person chooses the correct
    class from several classes. For such a judgement, a(r) is 1 from the exposure of the correct answer on and 0 before;
    a(0) is 0. The mean over judgements is the area under the accuracy curve, where the accuracy at r is the fraction of
    judgements that are correct at or before r.

    Args:
        first_right: Exposure of the first correct answer in each judgement (one person, one picture, one map), float
            (B,). NaN for a judgement that ended without a correct answer ("I don't know" at 100 %).
        exposures: Increasing fractions of the pixels that people were shown, above 0 and at most 1.

    Returns:
        Scores in [0, 1], float64 (B,); higher is better. The score is 0 if no answer was correct.

    Raises:
        ValueError: The exposures are not increasing fractions.

    Example:
        People are shown the top 4, then 8, then all 16 pixels of a 4 x 4 picture, so r = 0.25, 0.5, 1:

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
