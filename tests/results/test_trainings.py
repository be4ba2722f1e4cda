"""Scores of networks that were trained anew: their intervals are for other images and other trainings."""

import math

import numpy as np
import pytest
from scipy import stats
from test_reporting import _key

from saliency_bench.results.clusters import cluster_codes
from saliency_bench.results.intervals import bounded
from saliency_bench.results.ranking import FEW_TRAININGS, compare
from saliency_bench.results.trainings import areas_by_training, count_trainings, crossed

UNIT = (0.0, 1.0)


def test_areas_of_each_training_by_hand():
    parts = {
        "0 training 1": [1.0, 1], "0 training 2": [1.0, 0], "0.5 training 1": [1.0, 0], "0.5 training 2": [0.0, 0],
        "1 training 1": [0.0, 1], "1 training 2": [0.0, 0],
    }  # fmt: skip
    areas = areas_by_training({name: np.array(values) for name, values in parts.items()})
    assert areas.tolist() == [[0.75, 0.25], [0.5, 0]]  # (a(0) + a(.5)) / 4 + (a(.5) + a(1)) / 4
    assert count_trainings(parts) == 2
    assert areas_by_training({"0.5": np.ones(2)}) is None
    assert count_trainings(["0.5", "normal"]) is None


def test_trainings_that_differ_widen_the_interval():
    """Two trainings of mean .145 and .212: the images alone give .125 to .248."""
    rng = np.random.default_rng(0)
    areas = np.clip(rng.normal([0.145, 0.212], 0.2, (60, 2)), 0, 1)
    areas += [0.145, 0.212] - areas.mean(axis=0)
    estimate = crossed(np.clip(areas, -1, 1), np.arange(60), (-1.0, 1.0))
    images = bounded(areas.mean(axis=1), np.arange(60), (-0.25, 1.0))
    assert estimate.value == pytest.approx(0.1785) == images.value
    assert estimate.low < 0.145 - 0.05 < images.low
    assert estimate.high > 0.212 + 0.05 > images.high
    u = (areas + 1) / 2
    within, between = np.var(u.mean(axis=1), ddof=1) / 60, np.var(u.mean(axis=0), ddof=1) / 2
    squares = (u.mean(axis=1) - u.mean()) ** 2
    freedom_of_images = min(59, 2 / (sum(squares**2) / sum(squares) ** 2 - 1 / 60))
    freedom = (within + between) ** 2 / (within**2 / freedom_of_images + between**2 / 1)
    assert estimate.freedom == pytest.approx(freedom)
    m, t = u.mean(), stats.t.ppf(0.975, freedom)
    n_e = m * (1 - m) / (within + between)
    ends = [(m + t**2 / 2 / n_e + side * t * math.sqrt(m * (1 - m) / n_e + t**2 / 4 / n_e**2)) / (1 + t**2 / n_e)
            for side in (-1, 1)]  # fmt: skip
    assert (estimate.low, estimate.high) == pytest.approx((2 * ends[0] - 1, 2 * ends[1] - 1))


def test_intervals_hold_the_mean_over_trainings():
    """Trainings and images both vary; from five trainings on nine in ten intervals are not enough for chance."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        areas = 0.4 + rng.normal(0, 0.1, (60, 1)) + rng.normal(0, 0.05, (1, 5)) + rng.normal(0, 0.05, (60, 5))
        estimate = crossed(np.clip(areas, 0, 1), np.arange(60), UNIT)
        hits += estimate.low <= 0.4 <= estimate.high
    assert hits >= 200 * (0.93 - 2.5 * (0.93 * 0.07 / 200) ** 0.5)


def test_one_training_leaves_the_interval_of_the_images():
    scores = np.random.default_rng(1).random((40, 1))
    assert crossed(scores, np.arange(40), UNIT)[:6] == pytest.approx(bounded(scores[:, 0], np.arange(40), UNIT)[:6])


@pytest.mark.parametrize("trainings", [4, 5])
def test_explainers_are_ranked_from_five_trainings_on(trainings):
    keys = [_key(name, "saliency_roar", 0).model_copy(update={"metric_options": {"trainings": trainings}})
            for name in ("gradcam", "random")]  # fmt: skip
    scores = dict(
        zip((key.cell_id for key in keys), np.random.default_rng(0).random((2, 60)) * [[1], [0.3]], strict=True)
    )
    ids = [f"i{number}" for number in range(60)]
    (contrast,), standings = compare(keys, scores, cluster_codes(ids, [None] * 60), 0)
    if trainings == 5:
        assert contrast.p < 0.05
        assert all(standing.rank for standing in standings.values())
    else:
        assert contrast.p is None
        assert {standing.unranked for standing in standings.values()} == {FEW_TRAININGS}
