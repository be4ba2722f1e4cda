"""Exposures, the shares of an image's pixels that are shown, and areas under what is measured at them, in numpy only.

At each exposure a network or people name the class of an image (Lu et al., Crowdsourcing Evaluation of Saliency-based
XAI Methods, 2021). People see more and more of an image until they name it rightly: all that is known of one judgement
is the exposure of its first right answer, if there is one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

EXPOSURES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)  # of accuracy curves
SHOWN = EXPOSURES[1:]  # to people; nobody names what shows no pixel
ROUNDING = 1e-9  # between two texts of one exposure


def area(values: np.ndarray, exposures: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the area under `values` (..., N) at `exposures` (N,): trapezoid rule on the last axis / (last - first)."""
    exposures = np.asarray(exposures, dtype=np.float64)
    return np.trapezoid(values, exposures, axis=-1) / (exposures[-1] - exposures[0])


def right_by(first_right: np.ndarray, exposures: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return Bool (B, N), whether judgements were right at or before each exposure.

    Never, where `first_right` is NaN.
    """
    return np.asarray(first_right)[:, None] <= np.asarray(exposures) + ROUNDING


def judgement_areas(first_right: np.ndarray, exposures: Sequence[float] = SHOWN) -> np.ndarray:
    """Return float64 (B,), of each judgement the area under a(r), 1 where it was right at or before r, else 0.

    The mean over judgements is the area under the accuracy of people, as the area of a mean is the mean of areas.

    Args:
        first_right: (B,), the exposure of the first right answer, NaN where there is none.
        exposures: those of the trapezoid rule, beside 0, where a is 0.
    """
    at = [0.0, *exposures]
    right = right_by(first_right, at)
    right[:, 0] = False
    return area(right.astype(np.float64), at)


def read_first_right(given: Any) -> np.ndarray:
    """Return float64 (B,) of a list or array, NaN for None.

    Raises:
        ValueError: Something is no exposure above 0 and at most 1.
    """
    try:
        values = np.array([np.nan if exposure is None else float(exposure) for exposure in given])
    except (TypeError, ValueError) as error:
        raise ValueError("the exposures of first right answers are numbers (B,), None where there is none") from error
    if len(outside := values[~(np.isnan(values) | ((values > 0) & (values <= 1)))]):
        raise ValueError(f"the exposure of a first right answer is a share above 0 and at most 1; got {outside[0]:g}")
    return values


def check_shown(exposures: Any) -> None:
    """Raise ValueError unless these are shares above 0 and at most 1, in increasing order."""
    try:
        values = np.array([float(exposure) for exposure in exposures])
    except (TypeError, ValueError):
        values = np.empty(0)
    if len(values) == 0 or not (values[0] > 0 and values[-1] <= 1 and (np.diff(values) > 0).all()):
        raise ValueError(f"exposures are increasing shares above 0 and at most 1; got {exposures!r}")
