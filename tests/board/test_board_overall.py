"""Tests of overall scores across a board's fixed datasets, and of their ranks, against a second implementation."""

from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from scipy import stats

from saliency_bench.board.view.overall import Scored, overall
from saliency_bench.read.statistics.clusters import Matched
from saliency_bench.read.statistics.intervals import paired_difference
from saliency_bench.read.statistics.paired_test import adjusted_p

BASELINES = frozenset({"random", "centre"})
DRAW = np.random.default_rng(3)


def scored(values, groups=None, first=0, **more):
    ids = [f"image {number}" for number in range(first, first + len(values))]
    return Scored(ids, groups or [None] * len(ids), np.asarray(values, float), **more)


def drawn(level, count=60, **more):
    return scored(level + 0.05 * DRAW.standard_normal(count), **more)


def of(found, name):
    return next(one for one in found if one.name == name)


def literal(own, reference, sign):
    """Compute (S, low, high) sample by sample."""
    means, errors, freedoms = [], [], []
    for dataset in own:
        theirs = dict(zip(reference[dataset].ids, reference[dataset].scores, strict=True))
        pairs = [
            (group or image_id, value - theirs[image_id])
            for image_id, group, value in zip(own[dataset].ids, own[dataset].groups, own[dataset].scores, strict=True)
            if image_id in theirs and np.isfinite(value - theirs[image_id])
        ]
        mean = sum(value for _, value in pairs) / len(pairs)
        sums = {}
        for name, value in pairs:
            sums[name] = sums.get(name, 0.0) + value - mean
        count = len(sums)
        means.append(sign * mean)
        errors.append(sqrt(count / (count - 1) * sum(value**2 for value in sums.values())) / len(pairs))
        # Satterthwaite's degrees of freedom: the spread of the squares determines how many clusters the error depends
        # on.
        spread = sum(value**4 for value in sums.values()) / sum(value**2 for value in sums.values()) ** 2
        freedoms.append(min(count - 1, 2 / (spread - 1 / count)))
    value = sum(means) / len(means)
    half = stats.t.ppf(0.975, min(freedoms)) * sqrt(sum(error**2 for error in errors)) / len(errors)
    return value, value - half, value + half


@pytest.mark.parametrize("higher", [True, False])
def test_score_and_interval_match_literal_formula(higher):
    groups = [f"patient {number // 2}" for number in range(120)]
    reference = {"a": drawn(0.3), "b": drawn(0.2, 120, groups=groups)}
    own = {"a": drawn(0.5), "b": drawn(0.1, 120, groups=groups)}
    own["a"].scores[:5] = np.nan  # only samples with both scores count
    found = of(overall({"mine": own, "random": reference}, ["a", "b"], BASELINES, higher), "mine")
    assert (found.value, found.low, found.high) == pytest.approx(literal(own, reference, 1 if higher else -1), rel=1e-9)
    assert found.new is None


def test_score_matches_value_by_hand():
    """Test differences of 0.2 on one dataset and 0.4 on the other, without any spread: the result is 0.3."""
    reference = {"a": scored([0.1] * 50), "b": scored([0.2] * 80)}
    own = {"a": scored([0.3] * 50), "b": scored([0.6] * 80)}
    found = of(overall({"mine": own, "random": reference}, ["a", "b"], BASELINES, True), "mine")
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.3, 0.3))
    assert dict(found.by_dataset) == pytest.approx({"a": 0.2, "b": 0.4})


def test_six_datasets_give_an_interval_for_new_datasets():
    names = [f"set {number}" for number in range(6)]
    gains = [0.1, 0.2, 0.15, 0.3, 0.05, 0.25]
    reference = {name: scored([0.2] * 50) for name in names}
    own = {name: scored([0.2 + gain] * 50) for name, gain in zip(names, gains, strict=True)}
    found = of(overall({"mine": own, "random": reference}, names, BASELINES, True), "mine")
    half = stats.t.ppf(0.975, 5) * np.std(gains, ddof=1) / sqrt(6)
    assert found.new == pytest.approx((np.mean(gains) - half, np.mean(gains) + half))


@pytest.mark.parametrize("higher", [True, False])
def test_ranks_follow_clear_differences(higher):
    levels = {"good": 0.8, "poor": 0.4, "twin": 0.4, "random": 0.2}
    noise = {name: 0.05 * DRAW.standard_normal(60) for name in ("good", "poor", "random")}
    noise["twin"] = noise["poor"]
    found = overall(
        {name: {data: scored((level if higher else 1 - level) + noise[name]) for data in ("a", "b")}
         for name, level in levels.items()},
        ["a", "b"], BASELINES, higher)  # fmt: skip
    assert {one.name: one.rank for one in found} == {"good": (1, 1), "poor": (2, 3), "twin": (2, 3), "random": (4, 4)}
    assert [one.name for one in found] == ["good", "poor", "twin", "random"]


def test_ranks_on_one_dataset_match_paired_test():
    """Test scores with little spread in a finite range.

    With the spread of the samples alone, nearly all pairs would be ranked.
    """
    rng, ranked = np.random.default_rng(1), []
    for lead in np.linspace(0.01, 0.3, 12):
        columns = [level + 0.02 * rng.standard_normal(60) for level in (0.5 + lead, 0.5, 0.1)]
        (p,) = adjusted_p([Matched(columns, np.arange(60), (0.0, 1.0))], [list(combinations(range(3), 2))])
        rows = {
            name: {"a": scored(column, limits=(0.0, 1.0))}
            for name, column in zip(("better", "worse", "random"), columns, strict=True)
        }
        ranked.append(of(overall(rows, ["a"], BASELINES, True), "better").rank == (1, 1))
        assert ranked[-1] == (p[0, 1] < 0.05)
    assert {*ranked} == {True, False}


def test_second_dataset_halves_effect_of_unseen_failures():
    """Test failures that the samples may have missed. They can reverse a lead of .02 on one dataset, but not on two."""
    rng = np.random.default_rng(2)
    wins = {}
    for count in (1, 2):
        data = ["a", "b"][:count]
        rows = {
            name: {one: scored(level + 0.02 * rng.standard_normal(60), limits=(0.0, 1.0)) for one in data}
            for name, level in {"better": 0.52, "worse": 0.5, "random": 0.1}.items()
        }
        wins[count] = of(overall(rows, data, BASELINES, True), "better").rank
        lead = of(overall({**rows, "random": rows["worse"]}, data, BASELINES, True), "better")
        ordinary = literal(rows["better"], rows["worse"], 1)
        assert lead.value == pytest.approx(ordinary[0])
        assert lead.low < ordinary[1] < ordinary[2] < lead.high
        if count == 1:
            columns = [rows[name]["a"].scores for name in ("better", "worse")]
            assert (lead.low, lead.high) == paired_difference(Matched(columns, np.arange(60), (0, 1)), 0, 1)[1:3]
    assert wins == {1: (1, 2), 2: (1, 1)}


def test_datasets_weigh_the_same_whatever_their_size():
    """Test a method that is better by 0.3 on 50 samples and worse by 0.2 on 5,000 samples. It is better overall."""
    few, many = 0.01 * DRAW.standard_normal(50), 0.01 * DRAW.standard_normal(5000)
    own = {"few": scored(0.6 + few), "many": scored(0.3 + many)}
    other = {"few": scored(0.3 + few[::-1]), "many": scored(0.5 + many[::-1])}
    base = {"few": scored(0.1 + few), "many": scored(0.1 + many)}
    found = overall({"own": own, "other": other, "random": base}, ["few", "many"], BASELINES, True)
    assert of(found, "own").value > of(found, "other").value
    assert (of(found, "own").rank, of(found, "other").rank) == ((1, 1), (2, 2))


def test_samples_without_any_score_do_not_change_weights():
    """Test a method that is worse by 0.05 on 50 samples, and better by 0.3 on 60 of 6,000 samples.

    The other samples have no score, for example because they have no mask, so the method is better overall.
    """
    levels = {"own": (0.55, 0.6), "other": (0.6, 0.3), "random": (0.1, 0.1)}
    rows = {name: {"few": drawn(few, 50), "many": drawn(many, 6000)} for name, (few, many) in levels.items()}
    for own in rows.values():
        own["many"].scores[60:] = np.nan
    found = overall(rows, ["few", "many"], BASELINES, True)
    assert of(found, "own").value > of(found, "other").value
    assert (of(found, "own").rank, of(found, "other").rank) == ((1, 1), (2, 2))


def test_only_methods_run_on_the_whole_core_are_ranked():
    core = ["a", "b"]
    full = {"a": drawn(0.5), "b": drawn(0.5)}
    rows = {"random": {"a": drawn(0.2), "b": drawn(0.2)}, "full": full, "partial": {"a": drawn(0.9)},
            "checked": {"a": drawn(0.9), "b": drawn(0.9, official=False)},
            "elsewhere": {"a": drawn(0.9), "b": drawn(0.9, first=1000)}}  # fmt: skip
    found = overall(rows, core, BASELINES, True)
    told = {one.name: (one.rank, one.value is None, one.unranked) for one in found}
    assert (told["full"], told["random"][0]) == (((1, 1), False, ""), (2, 2))
    assert told["partial"] == (None, True, "no scores on b")
    assert told["checked"] == (None, False, "not run by the board on b")
    assert told["elsewhere"] == (None, True, "no sample in common with random on b")
    assert [one.name for one in found][:2] == ["full", "random"]
    without = overall({name: own for name, own in rows.items() if name != "random"}, core, BASELINES, True)
    assert all(one.rank is None and one.value is None for one in without)
    rows["random"]["b"] = drawn(0.2, official=False)
    unofficial = {one.name: (one.rank, one.unranked) for one in overall(rows, core, BASELINES, True)}
    assert unofficial["full"] == (None, "random was not run by the board on b")
    assert unofficial["random"] == (None, "not run by the board on b")


def test_too_few_samples_are_not_ranked():
    rows = {name: {"a": drawn(level), "b": drawn(level, 49)} for name, level in {"mine": 0.9, "random": 0.1}.items()}
    found = overall(rows, ["a", "b"], BASELINES, True)
    assert ({one.rank for one in found}, {one.unranked for one in found}) == ({None}, {"too few to rank"})
