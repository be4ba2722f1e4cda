"""Compute the chance level of peek-a-boom, and detect people whose answers look like guesses.

A guesser chooses one of K labels at each exposure r_1 < ... < r_n without looking at the image. If tried labels remain
available, a guess is correct with probability 1 / K, so the accuracy up to r_s is g_s = 1 - (1 - 1 / K)^s. If tried
labels are struck out, the accuracy is min(s / K, 1). For four labels and the default exposures, the area G under g is
0.743, or 0.900 if tried labels are struck out. The value 0.900 is higher than the area reached by a person who names
the class of every image at an exposure of 20 % (0.825).

The corrected area is (A - G) / (M - G), where M is the area reached by people who name the class of every image at the
first exposure. The corrected area is 1 for these people, 0 for guessing, and negative for results worse than guessing.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from saliency_bench.read.statistics.exposures import judgement_areas

LIKE_GUESSING = 1.0  # log10 of the likelihood ratio above which a person is reported


def guessing_accuracy(choices: int, exposures: Sequence[float], strike: bool) -> np.ndarray:
    """Return the accuracy that a guesser reaches up to each exposure, (N,)."""
    step = np.arange(1, len(exposures) + 1)
    return np.minimum(step / choices, 1.0) if strike else 1 - (1 - 1 / choices) ** step


def guessing_area(choices: int, exposures: Sequence[float], strike: bool) -> float:
    """Return G, the area under a guesser's accuracy."""
    # Average over the exposures at which judgements end. Judgements that are never correct have an area of 0.
    ends = np.diff(guessing_accuracy(choices, exposures, strike), prepend=0.0)
    return float(ends @ judgement_areas(np.array(exposures), exposures))


def corrected(area: float | None, guessing: float, exposures: Sequence[float]) -> float | None:
    """Return the corrected area (A - G) / (M - G), or None if there is no area."""
    most = float(judgement_areas(np.array(exposures[:1]), exposures)[0])
    return None if area is None else (area - guessing) / (most - guessing)


def evidence_of_guessing(attempts: pd.DataFrame) -> dict[str, float]:
    """Return {person: log10 likelihood ratio of guessing versus answering like all other people}.

    The probability of a correct answer is estimated from the answers of all other people for each explainer and
    exposure, as (right + 1) / (answers + 2). By Markov's inequality, the probability that a person who answers
    like the others exceeds a ratio of 10 is at most 10 %. In simulations with 20 judgements, the ratio stays far below
    10.

    Args:
        attempts: One row per answer with a label. The columns are person, explainer, exposure, right, and chance
            (probability that a guess is correct).
    """
    if attempts.empty:
        return {}
    places = attempts.groupby(["explainer", "exposure"])["right"]
    same_person = attempts.groupby(["person", "explainer", "exposure"])["right"]
    right = places.transform("sum") - same_person.transform("sum")
    answers = places.transform("size") - same_person.transform("size")
    others = (right + 1) / (answers + 2)
    chance = attempts["chance"].clip(upper=1 - 1e-6)  # 1 if only one label remains
    ratio = np.log10(
        np.where(attempts["right"], chance / others, (1 - chance) / (1 - others)),
    )
    return {str(person): float(total) for person, total in pd.Series(ratio).groupby(attempts["person"]).sum().items()}
