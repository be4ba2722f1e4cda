"""Exposures (fractions of an image's pixels that are shown), and areas under curves over exposures.

At each exposure, a network or a person names the class of an image (Lu et al., Crowdsourcing Evaluation of
Saliency-based XAI Methods, 2021). People see more and more of an image until they name the class correctly. A judgement
is therefore fully described by the exposure of the first correct answer, if any. This module needs only NumPy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

EXPOSURES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)  # exposures of accuracy curves
SHOWN = EXPOSURES[1:]  # exposures shown to people; nobody can name an image without pixels
ROUNDING = 1e-9  # tolerance for an exposure that was printed and read back


def area(values: np.ndarray, exposures: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the trapezoidal area under `values` (..., N) at `exposures` (N,), divided by the range of `exposures`."""
    exposures = np.asarray(exposures, dtype=np.float64)
    return np.trapezoid(values, exposures, axis=-1) / (exposures[-1] - exposures[0])


def right_by(first_right: np.ndarray, exposures: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return bool (B, N): whether each judgement was correct at or before each exposure.

    A judgement whose `first_right` is NaN was never correct.
    """
    return np.asarray(first_right)[:, None] <= np.asarray(exposures) + ROUNDING


def judgement_areas(first_right: np.ndarray, exposures: Sequence[float] = SHOWN) -> np.ndarray:
    """Return the area under a(r) for each judgement, float64 (B,).

    a(r) is 1 if the judgement was correct at or before exposure r, and 0 otherwise.

    The mean over judgements is the area under people's accuracy, because the area of a mean is the mean of areas.

    Args:
        first_right: Exposure (B,) of the first correct answer, NaN if there is none.
        exposures: Exposures of the trapezoid rule; exposure 0, at which a is 0, is added.
    """
    at = [0.0, *exposures]
    right = right_by(first_right, at)
    right[:, 0] = False
    return area(right.astype(np.float64), at)


def read_first_right(given: Any) -> np.ndarray:
    """Return a list or array as float64 (B,), with NaN for None.

    Raises:
        ValueError: A value is not an exposure above 0 and at most 1.
    """
    try:
        values = np.array([np.nan if exposure is None else float(exposure) for exposure in given])
    except (TypeError, ValueError) as error:
        raise ValueError(
            "the exposure at the first correct answer must be a number, or None if no answer was correct"
        ) from error
    if len(outside := values[~(np.isnan(values) | ((values > 0) & (values <= 1)))]):
        raise ValueError(f"the exposure of a first correct answer must be above 0 and at most 1; got {outside[0]:g}")
    return values


def check_shown(exposures: Any) -> None:
    """Raise ValueError unless the exposures are fractions above 0 and at most 1, in increasing order."""
    try:
        values = np.array([float(exposure) for exposure in exposures])
    except (TypeError, ValueError):
        values = np.empty(0)
    if len(values) == 0 or not (values[0] > 0 and values[-1] <= 1 and (np.diff(values) > 0).all()):
        raise ValueError(f"exposures must be increasing fractions above 0 and at most 1; got {exposures!r}")
