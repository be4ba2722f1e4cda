"""Scores of networks that were trained anew: what they say of the explainer varies with images and with trainings.

A part is named "0.05 training 1": an exposure and the number of a training. Each training has its own initial weights
and order of the images, so that trainings are a sample as images are.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from saliency_bench.results.cell import FEWEST_TRAININGS, CellKey
from saliency_bench.results.clusters import sums_by_cluster
from saliency_bench.results.intervals import (
    INTERVAL_FROM,
    NOTHING,
    TAIL,
    Estimate,
    cluster_error,
    t_quantile,
    wilson,
)
from saliency_bench.scoring.exposures import area

NAME = re.compile(r"(?P<exposure>[\d.e-]+) training (?P<number>\d+)")


def areas_by_training(parts: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return (n, T), the area over the exposures of each image and training; None for parts of another kind.

    Args:
        parts: {name: (n,)}.
    """
    named = [NAME.fullmatch(name) for name in parts]
    if not named or None in named:
        return None
    exposures = sorted({match["exposure"] for match in named if match}, key=float)
    numbers = sorted({match["number"] for match in named if match}, key=int)
    values = np.stack(
        [np.stack([parts[f"{exposure} training {number}"] for exposure in exposures], axis=1) for number in numbers]
    )
    return np.stack([area(columns, [float(exposure) for exposure in exposures]) for columns in values], axis=1)


def crossed(areas: np.ndarray, codes: np.ndarray, limits: tuple[float, float], tail: float = TAIL) -> Estimate:
    """Return the mean of areas (n, T) with an interval for other images and other trainings.

    se^2 = se_C^2 + s_T^2 / T: the error over clusters of the images' means (`cluster_error`), and the variance between
    the means of the T trainings. Satterthwaite's degrees of freedom are se^4 / (se_C^4 / f_C + s_T^4 / (T^2 (T - 1))).
    The ends are Wilson's, as of `bounded`. With one training there is no s_T, and the interval is for other images
    alone.

    Args:
        areas: of each image and training; NaN rows do not count.
        codes: (n,) the cluster of each image.
        limits: (low, high) of the metric, both finite.
        tail: as of `interval`.
    """
    rows = np.isfinite(areas).all(axis=1)
    codes = np.unique(codes[rows], return_inverse=True)[1]
    counts = np.bincount(codes)
    if len(codes) == 0:
        return NOTHING
    low, high = limits
    u = (areas[rows] - low) / (high - low)
    mean, trainings = float(u.mean()), u.shape[1]
    estimate = Estimate.alone(low + mean * (high - low), counts)
    if estimate.effective < INTERVAL_FROM:
        return estimate
    error, freedom = cluster_error(sums_by_cluster(u.mean(axis=1), codes, estimate.clusters), counts, mean)
    between = float(u.mean(axis=0).var(ddof=1)) / trainings if trainings > 1 else 0.0
    variance = error**2 + between
    if between:
        freedom = variance**2 / (error**4 / freedom + between**2 / (trainings - 1))
    size = mean * (1 - mean) / variance if variance else estimate.clusters
    bottom, top = (low + end * (high - low) for end in wilson(mean, size, t_quantile(freedom, tail)))
    return estimate.between(bottom, top, freedom)


def count_trainings(parts: Iterable[str]) -> int | None:
    """Return how many trainings the names of parts tell of; None for parts of another kind."""
    named = [NAME.fullmatch(name) for name in parts]
    return max((int(match["number"]) for match in named if match), default=None)


def has_few(key: CellKey) -> bool:
    """Return whether a planned cell has too few trainings for its explainer to be ranked."""
    trainings = key.metric_options.get("trainings")
    return isinstance(trainings, int) and trainings < FEWEST_TRAININGS
