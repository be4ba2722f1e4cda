"""Seeded simulations, as in `benchmarks/simulations.py`, of the guarantees of intervals and tests."""

import pytest
import simulations as simulation


def at_least(share, times):
    """Return the share of successes that almost all simulations exceed if `share` is the true share."""
    return share - 2.5 * (share * (1 - share) / times) ** 0.5


@pytest.mark.sample(2, 4)
@pytest.mark.parametrize("design", ["unclustered samples", "clusters of 6, ICC .3", "log-normal sizes, ICC .5"])
@pytest.mark.parametrize("law", ["95 % zeros", "70 % zeros", "IoU (beta .7, 1.3)", "narrow (beta 30, 30)"])
def test_intervals_cover_means_of_bounded_scores(law, design):
    covered = [simulation.coverage(law, design, effective, times=200) for effective in (20, 50)]
    assert min(covered) >= at_least(0.93, 200)


@pytest.mark.parametrize(("name", "share", "n"), [
    ("mean .75, spread .02", 0.02, 20), ("mean .75, spread .02", 0.02, 50), ("mean .7, spread .1", 0.08, 20),
    ("mean .8, spread .09", 0.05, 30),
])  # fmt: skip
def test_intervals_cover_means_with_rare_failures(name, share, n):
    """Test the wider bounds. Intervals that lack them contain the mean in only 42 to 87 % of the runs."""
    law = simulation.at_grid(simulation.NARROW[name])
    before, after = simulation.covered_with_failures(law, share, n, 300)
    assert before < 0.9
    assert after > at_least(0.9, 300)
    assert simulation.met_by_mistake(law, share, n, 1, 300)[1] <= 1 - at_least(0.975, 300)


def test_intervals_cover_cluster_and_one_sided_failures():
    law = simulation.at_grid(simulation.NARROW["mean .7, spread .1"])
    before, after = simulation.covered_with_failures(law, 0.05, 20, 200, size=6, whole=True)
    assert before < 0.85
    assert after > at_least(0.9, 200)
    before, after = simulation.covered_differences(0.02, 0.05, 20, 200, both=False)
    assert before < 0.75
    assert after > at_least(0.9, 200)


def test_pairs_with_rare_failures_are_seldom_called_alike():
    """Test the error rate. Student's interval alone has 7.7 % with 50 samples and 6.2 % with 200 samples."""
    assert max(simulation.called_alike(n, 200, 0.005, share=0.05) for n in (50, 80, 200)) <= 1 - at_least(0.975, 200)
    assert simulation.called_alike(200, 50, 0.05) > 0.9


def test_intervals_of_ordinary_scores_stay_narrow():
    names = ("0/1, 5 % ones", "IoU (beta .7, 1.3)")
    for law in (*simulation.ORDINARY.values(), *(simulation.LAWS[name] for name in names)):
        assert simulation.widths(law, 20, 100)[0] <= 1.13
        assert simulation.widths(law, 50, 40)[0] <= 1.05


def test_intervals_cover_mean_with_uneven_clusters():
    """Test the degrees of freedom. With C - 1, only 89.0 % of 1,500 intervals contained the mean."""
    assert simulation.coverage("95 % zeros", "log-normal sizes, ICC .5", 20, times=400) >= at_least(0.93, 400)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("explainers", "times"), [(5, 150), (23, 60), (40, 30)])
@pytest.mark.parametrize("settings", [{"size": 6}, {"missing": 0.1}], ids=["clusters", "missing"])
def test_paired_test_limits_false_findings(explainers, times, settings):
    often = times // 3 if "missing" in settings and explainers > 5 else times
    rate = simulation.false_findings(["70 % zeros"] * explainers, 50, often, flips=199, **settings)
    assert rate <= 1 - at_least(0.93, often)


@pytest.mark.parametrize(
    ("shapes", "clusters"),
    [
        ("0/1 with 5 % ones, smooth", 50), ("0/1 with 2 % ones, constant", 50), ("0/1 with 2 % ones, constant", 200),
        ("95 % zeros, smooth", 50), ("few large scores, more small ones", 100),
    ],
)  # fmt: skip
def test_paired_test_limits_false_findings_for_unequal_shapes(shapes, clusters):
    """Test the error rates. With the sign flips alone, the five rates are 13, 38, 11, 20 and 12 %."""
    assert simulation.false_findings(simulation.UNEQUAL[shapes](), clusters, 150, flips=199) <= 1 - at_least(0.93, 150)


def test_paired_test_distinguishes_forty_explainers():
    assert simulation.pairs_found(40, 500, 3, "every") == (780, 780)
    assert simulation.pairs_found(40, 500, 4.5, "neighbours")[0] > 770
