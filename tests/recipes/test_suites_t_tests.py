"""Tests of the paired t-test next to a table, against the textbook formula for the common samples."""

from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import t

from saliency_bench.recipes.suites.t_tests import COLUMNS, remarks, t_tests

RANDOM = np.random.default_rng(0)
FIRST = RANDOM.normal(0.5, 0.1, 30)
SCORES = {"gradcam": FIRST, "gradient": FIRST - 0.05 + RANDOM.normal(0, 0.1, 30), "random": FIRST.copy()}
SCORES["gradient"][[3, 7]] = np.nan


def literal(first, second):
    """Compute p of a paired t-test from the mean and the standard deviation of the differences."""
    differences = [x - y for x, y in zip(first, second, strict=True) if not np.isnan(x + y)]
    n, mean = len(differences), sum(differences) / len(differences)
    deviation = sqrt(sum((x - mean) ** 2 for x in differences) / (n - 1))
    return 2 * t.sf(abs(mean) / (deviation / sqrt(n)), n - 1)


@pytest.fixture
def results():
    cells = [SimpleNamespace(explainer_text=name, metric_text="saliency_miou", cell_id=name, aggregate=False)
             for name in SCORES]  # fmt: skip
    contrasts = [SimpleNamespace(cells=("gradient", "gradcam"), p=0.3), SimpleNamespace(cells=("gradcam", "random"),
                                                                                        p=None)]  # fmt: skip
    run = SimpleNamespace(cells=cells, values=SCORES, contrasts=contrasts)
    value = SimpleNamespace(metric="saliency_miou", part=None)
    table = SimpleNamespace(runs=["all"], t_test="gradcam", values={"mIoU": value})
    suite = SimpleNamespace(tables={"main": table}, runs={"all": SimpleNamespace(explainers=tuple(SCORES))})
    job = SimpleNamespace(dataset="birds", model="small", name="all")
    return SimpleNamespace(suite=suite, finished=lambda names: [(job, run)], sized=lambda text: text)


def test_each_other_explainer_is_compared_with_the_one_that_is_named(results):
    rows = t_tests(results, "main").to_dict("records")
    assert [(row["explainer"], row["other"], row["n"]) for row in rows] == [
        ("gradcam", "gradient", 28), ("gradcam", "random", 30)]  # fmt: skip
    assert rows[0]["p_t_test"] == pytest.approx(literal(FIRST, SCORES["gradient"]), rel=1e-9)
    assert rows[0]["difference"] == pytest.approx(np.nanmean(FIRST - SCORES["gradient"]))
    assert rows[0]["p_paired_test"] == 0.3
    assert np.isnan(rows[1]["p_t_test"])  # equal scores
    assert np.isnan(rows[1]["p_paired_test"])


def test_what_either_test_finds_is_counted(results):
    frame = t_tests(results, "main")
    significant = int(literal(FIRST, SCORES["gradient"]) < 0.05)
    assert f"{significant} of 2 differ; by the adjusted paired test 0 of the 1" in remarks(frame)[0]
    assert (remarks(frame.iloc[:0]), list(frame.columns)) == ([], list(COLUMNS))
