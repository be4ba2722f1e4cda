"""Power of the paired test in reports: the number of images needed to distinguish two explainers.

The mean difference d over C clusters has the standard error sigma / sqrt(C), with sigma^2 = C se_C^2 of the paired
differences (`read/statistics/intervals.py`). The power of a two-sided t-test at level alpha for a true difference d is

    power = P(|T| > t(1 - alpha / 2, C - 1))

where T follows a non-central t-distribution with C - 1 degrees of freedom and non-centrality d sqrt(C) / sigma (Cohen,
Statistical Power Analysis, 1988, chapter 2). The sign-flip test of reports has nearly the same power. If k differences
are tested together, alpha is 0.05 / k (Bonferroni). The step-down test needs at most as many clusters as this
correction. Fewer than 50 effective clusters are never enough, because reports then do not rank explainers.

A difference must also stay significant if the samples missed rare failures of explainers (`intervals.p_of_failures`).
For a given standard error and number of clusters, this requires a minimum mean difference, so the power is at most the
probability of reaching this minimum.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import ceil, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from saliency_bench.errors import UserError
from saliency_bench.read.statistics.betting import STEPS
from saliency_bench.read.statistics.clusters import Matched
from saliency_bench.read.statistics.intervals import (
    NOTHING,
    difference,
    error_and_far,
    is_bounded,
    p_of_failures,
    t_quantile,
)
from saliency_bench.read.statistics.paired_test import outlasting_failures
from saliency_bench.read.statistics.ranking import ALPHA, RANKED_FROM

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

POWER = 0.8
MOST = 10_000_000  # largest number of clusters that is tried
CURVE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # multiples of the needed number of clusters


@dataclass(frozen=True)
class Failures:
    """Rare failures that the samples may have missed. A difference must stay significant even if they occur.

    Attributes:
        reach: Largest absolute difference on a sample where one of two explainers fails; 0 for unbounded scores.
        columns: Number of explainers that are tested together, each of which may fail.
        evenness: Effective number of clusters, divided by the number of clusters.
    """

    reach: float = 0.0
    columns: int = 2
    evenness: float = 1.0

    def outlasted(self, mean: float, clusters: int, spread: float) -> bool:
        """Return whether a mean difference over this many clusters stays significant even if rare failures occur."""
        if not self.reach:
            return True
        if mean <= 0:
            return False
        error, freedom = spread / sqrt(clusters), clusters - 1.0
        half = t_quantile(freedom) * error
        estimate = NOTHING._replace(value=mean, effective=self.evenness * clusters).between(
            mean - half, mean + half, freedom
        )
        p = p_of_failures(estimate, error, (-self.reach, self.reach))
        return outlasting_failures(0.0, p, self.columns) < ALPHA

    def chance(self, clusters: int, spread: float, wanted: float) -> float:
        """Return the probability that a true difference stays significant even if rare failures occur."""
        if not self.reach:
            return 1.0
        low, high = 0.0, 2 * self.reach + abs(wanted)  # bounds of the smallest mean difference that stays significant
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.outlasted(middle, clusters, spread) else (middle, high)
        error = spread / sqrt(clusters)
        return float(stats.norm.sf((high - abs(wanted)) / error)) if error else float(abs(wanted) >= high)


NO_FAILURES = Failures()


@dataclass(frozen=True)
class Needed:
    """Number of images and clusters needed to find a difference between two explainers.

    Attributes:
        metric: Metric of the scores; "" if the spread was assumed.
        explainers: The two explainers; () if the spread was assumed.
        spread: sigma, the standard deviation of the mean difference over one cluster.
        difference: Difference to find.
        clusters: Number of clusters needed; None if it exceeds `MOST`.
        images: Number of images in these clusters.
        observed: Difference in the run; None if the spread was assumed.
        seen: Number of clusters in the run.
        failures: Rare failures to guard against: the difference must stay significant even if they occur.
    """

    metric: str
    explainers: tuple[str, ...]
    spread: float
    difference: float
    clusters: int | None
    images: int | None
    observed: float | None = None
    seen: int = 0
    failures: Failures = NO_FAILURES

    def as_dict(self) -> dict:
        """Return plain data."""
        return {name: value for name, value in vars(self).items() if name != "failures"} | {
            "explainers": list(self.explainers)
        }


def power_at(
    clusters: int, spread: float, wanted: float, alpha: float = ALPHA, failures: Failures = NO_FAILURES
) -> float:
    """Return the power of a paired t-test, with an allowance for rare failures.

    Args:
        clusters: Number of independent differences, at least 2.
        spread: Standard deviation of these differences.
        wanted: True difference.
        alpha: Level of the two-sided test.
        failures: Rare failures; by default none.
    """
    return min(_power_of_t(clusters, spread, wanted, alpha), failures.chance(clusters, spread, wanted))


def _power_of_t(clusters: int, spread: float, wanted: float, alpha: float) -> float:
    """Return the probability that a paired t-test finds a true difference."""
    if spread == 0:
        return 1.0
    critical = stats.t.ppf(1 - alpha / 2, clusters - 1)
    shift = abs(wanted) / spread * sqrt(clusters)
    if clusters > 1000:  # both distributions are normal to four digits, and the exact tails are slow
        return float(stats.norm.sf(critical - shift) + stats.norm.cdf(-critical - shift))
    return _tails(critical, clusters - 1, shift)


def _tails(critical: float, freedom: int, shift: float) -> float:
    """Return P(|T| > critical) of a non-central t, by integrating over the chi variable in its denominator.

    T = (Z + shift) / W with W^2 = chi^2(freedom) / freedom, so P(|T| > c) = E[Phi(shift - c W) + Phi(-shift - c W)].
    `stats.nct` returns NaN for many shifts of 5 and more.
    """
    low, high = (sqrt(end / freedom) for end in stats.chi2.ppf([1e-13, 1 - 1e-13], freedom))
    nodes, weights = _legendre()
    w = (low + high) / 2 + (high - low) / 2 * nodes
    density = stats.chi2.pdf(w**2 * freedom, freedom) * 2 * w * freedom
    inside = stats.norm.sf(critical * w - shift) + stats.norm.cdf(-critical * w - shift)
    return float(np.clip((high - low) / 2 * (weights * density * inside).sum(), 0, 1))


@cache
def _legendre() -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes and weights of Gauss-Legendre quadrature over [-1, 1]."""
    return np.polynomial.legendre.leggauss(500)


def clusters_needed(
    spread: float, wanted: float, power: float = POWER, comparisons: int = 1, failures: Failures = NO_FAILURES
) -> int | None:
    """Return the minimum number of clusters that gives this power and at least 50 effective clusters.

    Args:
        spread: Standard deviation of the mean difference over one cluster.
        wanted: True difference.
        power: Required power, between 0 and 1.
        comparisons: Number of differences that are tested together.
        failures: As in `power_at`.

    Returns:
        Number of clusters, or None if more than `MOST` are needed.

    Raises:
        UserError: The difference is 0, or power, spread or comparisons are out of range.
    """
    if not (wanted and np.isfinite(wanted)):
        raise UserError(
            "the difference (--difference) must not be 0; set it to the smallest difference that matters, such as 0.02"
        )
    if not 0 < power < 1:
        raise UserError(f"power (--power) must be between 0 and 1; got {power:g}")
    if not (spread >= 0 and np.isfinite(spread)) or comparisons < 1:
        raise UserError(f"spread (--spread) must be at least 0 (got {spread:g}), and comparisons must be at least 1")
    alpha = ALPHA / comparisons
    quantile = float(stats.norm.isf(power))

    def are_enough(clusters: int) -> bool:
        # The mean difference exceeds `least` with probability `power`.
        least = abs(wanted) + quantile * spread / sqrt(clusters)
        return power_at(clusters, spread, wanted, alpha) >= power and failures.outlasted(least, clusters, spread)

    high = ceil(RANKED_FROM / failures.evenness)
    low = high - 1
    while not are_enough(high):
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if are_enough(middle) else (middle, high)
    return high


def of_run(run: "Run", wanted: float, power: float = POWER, together: bool = True) -> list[Needed]:
    """Return the number of images needed to distinguish each pair of explainers of a run, for each metric.

    For each metric, the pairs that need the most images come first.

    Args:
        run: Run with at least 10 clusters; with fewer clusters, the spread is unknown.
        wanted: Difference to find, the same for all pairs.
        power: Power with which the difference is found.
        together: Whether all pairs of a metric are tested together, as in reports.

    Raises:
        UserError: No two explainers share enough samples.
    """
    codes = run.scores.codes()
    needed = []
    for column in run.table.columns:
        cells = [(row.name, cell) for row, cell in run.table.cells_of_column(column) if not cell.aggregate and cell.n]
        if not cells:
            continue
        matched = Matched([run.scores.values[cell.cell_id] for _, cell in cells], codes, cells[0][1].limits)
        pairs = list(combinations(range(len(cells)), 2))
        for first, second in pairs:
            estimate = difference(matched, first, second)
            if not np.isfinite(estimate.low):
                continue
            error, far = error_and_far(matched, first, second, estimate)
            spread = float(error * sqrt(estimate.clusters))
            failures = Failures(
                reach=max(map(abs, far)) if is_bounded(matched.limits) else 0.0,
                columns=len(cells) if together else 2,
                evenness=estimate.effective / estimate.clusters,
            )
            clusters = clusters_needed(spread, wanted, power, len(pairs) if together else 1, failures)
            images = None if clusters is None else ceil(clusters * estimate.n / estimate.clusters)
            names = cells[first][0], cells[second][0]
            needed.append(
                Needed(
                    column.name,
                    names,
                    spread,
                    wanted,
                    clusters,
                    images,
                    float(estimate.value),
                    estimate.clusters,
                    failures,
                )
            )
    if not needed:
        raise UserError(f"no two explainers of {run.folder} share 10 clusters; run them on more images first")
    return sorted(needed, key=lambda item: (item.metric, -item.spread, item.explainers))


def assumed(spread: float, wanted: float, power: float = POWER, size: int = 1, correlation: float = 0.0) -> Needed:
    """Return the number of images needed for an assumed spread of differences, for scores from 0 to 1.

    Args:
        spread: Standard deviation of the per-image paired differences.
        wanted: Difference to find.
        power: Power with which the difference is found.
        size: Images per cluster.
        correlation: Correlation of the differences within a cluster; the variance of a cluster's mean is
            spread^2 (1 + (size - 1) correlation) / size.
    """
    if size < 1 or not 0 <= correlation <= 1:
        raise UserError(
            f"a cluster must have at least 1 image and a correlation from 0 to 1; got {size} and {correlation:g}"
        )
    of_cluster = spread * sqrt((1 + (size - 1) * correlation) / size)
    failures = Failures(reach=1.0)
    clusters = clusters_needed(of_cluster, wanted, power, failures=failures)
    images = None if clusters is None else clusters * size
    return Needed("", (), of_cluster, wanted, clusters, images, failures=failures)


def curve(needed: Needed, comparisons: int = 1) -> list[tuple[int, float]]:
    """Return points [(clusters, power)] around the needed number of clusters; [] if that number exceeds `MOST`."""
    if needed.clusters is None:
        return []
    points = sorted({max(2, round(part * needed.clusters)) for part in CURVE})
    alpha = ALPHA / comparisons
    return [(point, power_at(point, needed.spread, needed.difference, alpha, needed.failures)) for point in points]
