"""Tests of required numbers of images, against textbook values, simulations, and the differences of a run."""

from math import sqrt

import numpy as np
import pytest
from refusals import refused
from scipy import stats
from scipy.integrate import quad
from scored_cells import run_of

from saliency_bench.cli import main
from saliency_bench.read.analysis.power import assumed, clusters_needed, curve, of_run, power_at
from saliency_bench.read.report import power_curve
from saliency_bench.read.statistics.clusters import Matched
from saliency_bench.read.statistics.paired_test import adjusted_p


def test_required_clusters_match_textbook_values():
    # Cohen (1988), table 2.4.1, paired: at two-sided .05 and power .80, d_z = 0.2 needs 199 pairs, and d_z = 0.5 needs
    # 34.
    assert clusters_needed(1.0, 0.2) == 199
    assert power_at(34, 1.0, 0.5) >= 0.8 > power_at(33, 1.0, 0.5)
    assert clusters_needed(1.0, 0.5) == 50  # reports rank explainers from 50 clusters on
    assert power_at(50, 1.0, 0.0) == pytest.approx(0.05)


@pytest.mark.parametrize(("mean", "spread", "wanted"), [(0.5, 0.15, 0.05), (0.97, 0.01, 0.004)])
def test_paired_test_reaches_stated_power(mean, spread, wanted):
    rng = np.random.default_rng(0)

    def drawn(clusters, times=200):
        return np.clip(mean + wanted * np.array([1, 0]) + spread * rng.normal(size=(times, clusters, 2)), 0, 1)

    (needed,) = of_run(run_of(dict(zip("ab", drawn(5000, 1)[0].T, strict=True))), wanted)
    pairs = [Matched(list(scores.T), np.arange(needed.clusters), (0.0, 1.0)) for scores in drawn(needed.clusters)]
    p_values = [adjusted_p([pair], [[(0, 1)]], flips=999)[0][0, 1] for pair in pairs]
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.8, abs=0.1)
    points = dict(curve(needed))
    assert points[needed.clusters] == pytest.approx(0.8, abs=0.02)
    assert points[round(needed.clusters / 4)] < 0.4
    assert list(points.values()) == sorted(points.values())


@pytest.mark.parametrize("clusters", [12, 75, 1000])
@pytest.mark.parametrize("comparisons", [1, 5000])
def test_power_matches_numerical_integral(clusters, comparisons):
    """Compare with SciPy's adaptive quadrature, and with its non-central t distribution where its value is not NaN."""
    freedom, alpha = clusters - 1, 0.05 / comparisons
    critical, ends = stats.t.ppf(1 - alpha / 2, freedom), stats.chi2.ppf([1e-14, 1 - 1e-14], freedom)
    for wanted in (0.0, 0.3, -0.3, 1.0, 2.0, 5.0, 100.0, 1e6):
        shift = abs(wanted) * sqrt(clusters)

        def inside(value, shift=shift):
            limit = critical * sqrt(value / freedom)
            return (stats.norm.sf(limit - shift) + stats.norm.cdf(-limit - shift)) * stats.chi2.pdf(value, freedom)

        chance = power_at(clusters, 1.0, wanted, alpha)
        assert chance == pytest.approx(quad(inside, *ends, limit=1000, epsabs=1e-12)[0], abs=1e-9)
        known = stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift)
        assert np.isnan(known) or chance == pytest.approx(known, abs=1e-9)
        assert power_at(clusters, 1.0, wanted) >= power_at(clusters, 1.0, wanted / 2)


def test_power_is_continuous_at_normal_approximation():
    few, many = power_at(1000, 1.0, 0.08), power_at(1001, 1.0, 0.08)
    assert many == pytest.approx(few, abs=0.002)


def test_clusters_needed_is_minimal_and_grows_with_comparisons():
    clusters = clusters_needed(0.3, 0.02)
    assert power_at(clusters, 0.3, 0.02) >= 0.8 > power_at(clusters - 1, 0.3, 0.02)
    assert clusters_needed(0.3, 0.02, comparisons=10) > 1.4 * clusters
    assert clusters_needed(0.0, 0.02) == 50
    assert clusters_needed(1e6, 1e-6) is None


def test_command_answers_in_first_line(capsys):
    assert main(["power", "--spread", "0.3", "--difference", "0.05", "--cluster-size", "6"]) == 0
    needed, first = assumed(0.3, 0.05, size=6), capsys.readouterr().out.splitlines()[0]
    assert first == (f"{needed.images} images ({needed.clusters} clusters) are enough to detect a difference of 0.05 "
                     "between the two explainers with a power of 80%.")  # fmt: skip
    assert main(["power", "--spread", "1e6", "--difference", "1e-6"]) == 0
    assert capsys.readouterr().out.startswith("No realistic number of images is enough to detect a difference of 1e-06")


def test_drawn_curve_crosses_power_at_needed_clusters(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(power_curve, "write_figure", lambda figure, _: figures.append(figure))
    assert main(["power", "--spread", "0.3", "--difference", "0.05", "--out", str(tmp_path / "power.svg")]) == 0
    drawn, line = figures[0].axes[0].lines
    assert np.interp(assumed(0.3, 0.05).clusters, *drawn.get_data()) == pytest.approx(0.8, abs=0.005)
    assert set(line.get_ydata()) == {0.8}


def test_power_counts_clusters_not_images():
    single, alike, free = assumed(0.3, 0.05), assumed(0.3, 0.05, size=6, correlation=1.0), assumed(0.3, 0.05, size=6)
    assert (alike.clusters, alike.images) == (single.clusters, 6 * single.images)
    assert free.spread == pytest.approx(0.3 / sqrt(6))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [((0.3, 0.0), "--difference"), ((0.3, 0.02, 1.0), "--power"), ((-1.0, 0.02), "--spread"),
     ((0.3, 0.02, 0.8, 0), "cluster"), ((0.3, 0.02, 0.8, 2, 1.5), "correlation")],
)  # fmt: skip
def test_invalid_arguments_are_rejected(arguments, match):
    refused(match, assumed, *arguments)


def test_power_uses_spread_of_the_run():
    rng = np.random.default_rng(0)
    first, second = rng.random(60), rng.random(60)
    (needed,) = of_run(run_of({"a": first, "b": second}), 0.1)
    spread = (first - second).std(ddof=1)
    assert needed.spread == pytest.approx(spread)
    assert needed.observed == pytest.approx((first - second).mean())
    assert needed.clusters == needed.images == clusters_needed(spread, 0.1)
    three = of_run(run_of({"a": first, "b": second, "c": first}), 0.1)
    assert [item.explainers for item in three][-1] == ("a", "c")  # the pair that needs the fewest images
    assert three[0].clusters == clusters_needed(spread, 0.1, comparisons=3)
    refused("more images", of_run, run_of({"a": first[:8], "b": second[:8]}), 0.1)


def test_clustered_run_needs_whole_clusters():
    rng = np.random.default_rng(0)
    own, groups = np.repeat(rng.random(40), 3), [f"g{index // 3}" for index in range(120)]
    (needed,) = of_run(run_of({"a": own, "b": np.zeros(120)}, groups), 0.1)
    assert needed.images == 3 * needed.clusters
    assert needed.spread == pytest.approx(own.std() * sqrt(40 / 39), rel=1e-6)
    uneven = [f"g{max(index, 19)}" for index in range(80)]  # ranks need 50 effective clusters
    (needed,) = of_run(run_of({"a": rng.random(80), "b": rng.random(80)}, uneven), 0.5)
    assert needed.clusters == np.ceil(50 * 61 / (80**2 / (60 + 20**2)))
