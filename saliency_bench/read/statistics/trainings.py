"""Scores of retrained networks, which vary with the images and with the training runs.

The name of a part, such as "0.05 training 1", contains an exposure and the number of a training run. Each training run
has its own initial weights and order of images, so the training runs are a random sample, like the images.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from saliency_bench.read.cell import FEWEST_TRAININGS, CellKey
from saliency_bench.read.statistics.clusters import sums_by_cluster
from saliency_bench.read.statistics.exposures import area
from saliency_bench.read.statistics.intervals import (
    INTERVAL_FROM,
    NOTHING,
    TAIL,
    Estimate,
    cluster_error,
    is_bounded,
    outlasting_rare_scores,
    t_quantile,
    wilson_ends,
)

NAME = re.compile(r"(?P<exposure>[\d.e-]+) training (?P<number>\d+)")


def areas_by_training(parts: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the area over the exposures for each image and training run, (n, T), from {name of a part: values (n,)}.

    The result is None if a part does not belong to a training run.
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


def crossed(
    areas: np.ndarray, codes: np.ndarray, limits: tuple[float, float], tail: float = TAIL, gate: bool = False
) -> Estimate:
    """Return the mean of areas (n, T), with an interval for the variation between images and between training runs.

    se^2 = se_C^2 + s_T^2 / T, where se_C is the standard error over clusters of the images' means (`cluster_error`),
    and s_T^2 is the variance between the means of the T training runs. Satterthwaite's degrees of freedom are se^4 /
    (se_C^4 / f_C + s_T^4 / (T^2 (T - 1))). The interval is Wilson's, as in `bounded`, and allows for rare images with
    very different scores that the samples may have missed (`outlasting_rare_scores`). For unbounded scores, the
    interval is Student's. With a single training run, s_T is undefined, and the interval accounts only for the
    variation between images.

    Args:
        areas: Area of each image and training run; rows with NaN are ignored.
        codes: Cluster (n,) of each image.
        limits: Range (low, high) of the metric; either end may be infinite.
        tail: As in `interval`.
        gate: As in `interval`.
    """
    rows = np.isfinite(areas).all(axis=1)
    codes = np.unique(codes[rows], return_inverse=True)[1]
    counts = np.bincount(codes)
    if len(codes) == 0:
        return NOTHING
    low, high = limits if is_bounded(limits) else (0.0, 1.0)  # unbounded scores are not scaled
    u = (areas[rows] - low) / (high - low)
    estimate = Estimate.alone(low + float(u.mean()) * (high - low), counts)
    if estimate.effective < INTERVAL_FROM:
        return estimate
    mean, within, between, freedom = crossed_variances(u, codes)
    variance = within + between
    if between:
        freedom = variance**2 / (within**2 / freedom + between**2 / (u.shape[1] - 1))
    z = t_quantile(freedom, tail)
    if not is_bounded(limits):
        half = z * float(np.sqrt(variance))
        return estimate.between(max(mean - half, limits[0]), min(mean + half, limits[1]), freedom)
    size = mean * (1 - mean) / variance if variance else estimate.clusters
    ends = wilson_ends(mean, size, freedom, limits)
    bottom, top = (float(end) for end in ends(np.array(tail)))
    return outlasting_rare_scores(estimate.between(bottom, top, freedom), ends, limits, tail, gate)


def crossed_variances(values: np.ndarray, codes: np.ndarray) -> tuple[float, float, float, float]:
    """Return (mean of values (n, T), se_C^2, s_T^2 / T, degrees of freedom of se_C).

    Args:
        values: Value of each image and training run, without NaN.
        codes: Cluster (n,) of each image, numbered from 0 without gaps.
    """
    counts, mean, trainings = np.bincount(codes), float(values.mean()), values.shape[1]
    error, freedom = cluster_error(sums_by_cluster(values.mean(axis=1), codes, len(counts)), counts, mean)
    between = float(values.mean(axis=0).var(ddof=1)) / trainings if trainings > 1 else 0.0
    return mean, error**2, between, freedom


def count_trainings(parts: Iterable[str]) -> int | None:
    """Return the number of training runs that the names of parts contain; None if no name contains one."""
    named = [NAME.fullmatch(name) for name in parts]
    return max((int(match["number"]) for match in named if match), default=None)


def has_few(key: CellKey) -> bool:
    """Return whether a planned cell has too few training runs for its explainer to be ranked."""
    trainings = key.metric_options.get("trainings")
    return isinstance(trainings, int) and trainings < FEWEST_TRAININGS
