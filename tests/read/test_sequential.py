"""Tests of the race of `choose` against a slow second implementation, hand-computed cases and a seeded simulation."""

from math import inf, log

import choose as simulation
import numpy as np
import pytest

from saliency_bench.read.analysis.sequential import BETS, WEIGHTS, Race, clusters_needed, log_wealth


def literal_wealth(leader, other, groups, margin, span, largest):
    """Return the weighted sum over bets of the product over clusters, computed one number at a time."""
    total = 0.0
    for place, bet in enumerate([0.95, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125]):
        product = 1.0
        for group in sorted(set(groups)):
            y = 0.0
            for first, second, name in zip(leader, other, groups, strict=True):
                if name == group and first == first and second == second:
                    y += (first - second - margin) / (largest * (span + margin))
            product *= 1 + bet * y
        total += product / 2**place / (1 + 127 / 128)
    return total


def test_wealth_matches_literal_equation():
    rng = np.random.default_rng(0)
    leader, other = rng.random(30), rng.random(30) * 0.5
    other[4] = np.nan
    codes, race = np.repeat(np.arange(10), 3), Race(["a", "b"], span=1.0, margin=0.05, largest=4)
    race.look({"a": leader[:15], "b": other[:15]}, codes[:15], "a", "b", 5)
    race.look({"a": leader[15:], "b": other[15:]}, codes[15:] - 5, "a", "b", 10)
    expected = literal_wealth(leader, other, codes.tolist(), 0.05, 1.0, 4)
    assert race.wealth("b") == pytest.approx(log(expected))
    assert race.wealth("a") == pytest.approx(log(literal_wealth(other, leader, codes.tolist(), 0.05, 1.0, 4)))


def test_candidates_are_dropped_at_decreasing_thresholds():
    race = Race(["a", "b", "c"], span=1.0)
    scores = {"a": np.ones(5), "b": np.zeros(5), "c": np.full(5, 0.9)}
    # 1.95^5 / 2 is 14 with the largest bet alone, which is far below 3 / 0.05 = 60.
    assert race.look(scores, np.arange(5), "a", "c", 5) == []
    dropped = race.look(scores, np.arange(5), "a", "c", 10)
    assert [(item.name, item.clusters, item.leader) for item in dropped] == [("b", 10, "a")]
    assert (race.left, race.threshold) == (["a", "c"], pytest.approx(log(2 / 0.05)))
    race.exclude("c")  # excluding a candidate does not lower the threshold
    assert (race.left, race.threshold) == (["a"], pytest.approx(log(2 / 0.05)))


def test_behind_is_largest_excluded_margin():
    race = Race(["a", "b"], span=1.0)
    race.look({"a": np.full(40, 0.9), "b": np.full(40, 0.3)}, np.arange(40), "a", "b", 40)
    behind = race.dropped["b"].behind
    assert 0.3 < behind < 0.6
    assert race.wealth("b", behind) == pytest.approx(log(2 / 0.05), abs=1e-6)


def test_unbounded_scores_are_compared_by_sign():
    race = Race(["a", "b"], span=inf)
    race.look({"a": np.array([1e9, 2.0]), "b": np.array([0.0, 3.0])}, np.arange(2), "a", "b", 2)
    assert race.wealth("b") == pytest.approx(log(((1 + BETS) * (1 - BETS)) @ WEIGHTS))


def test_clusters_needed_predicts_when_candidate_is_dropped():
    y = np.tile([0.3, -0.1], 40)
    needed = clusters_needed(y, log(40))
    long = np.tile([0.3, -0.1], needed)
    assert log_wealth(long[:needed]) >= log(40)
    assert log_wealth(long[: needed // 2]) < log(40)
    assert clusters_needed(-y, log(40)) is None
    assert clusters_needed(np.zeros(9), log(40)) is None


@pytest.mark.parametrize("case", ["all tied", "far better, but only on a few images"])
def test_race_keeps_tied_candidates_that_plain_test_drops(case):
    outcomes = [simulation.simulate(simulation.CASES[case], 6, seed) for seed in range(8)]
    assert not any(item.false_drop for item in outcomes)
    assert sum(item.plain_false_drop for item in outcomes) >= 2


def test_race_finds_best_with_fewer_passes():
    outcomes = [simulation.simulate(simulation.CASES["0.05 ahead"], 10, seed) for seed in range(4)]
    assert all(item.right and not item.false_drop for item in outcomes)
    assert np.mean([item.share for item in outcomes]) < 0.5


@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("candidates", [10, 60])
@pytest.mark.parametrize("case", ["all tied", "four within the margin", "rare 0/1 scores, tied",
                                  "clusters of six, tied", "unbounded, tied"])  # fmt: skip
def test_race_limits_false_drop_rate(case, candidates):
    times = 40 if candidates == 10 else 10
    false = sum(simulation.simulate(simulation.CASES[case], candidates, seed).false_drop for seed in range(times))
    assert false <= 0.05 * times + 2.5 * (0.05 * 0.95 * times) ** 0.5
