"""Tests of ranks, and of step-down sign flips against slow code and SciPy.

Order, scale and threads must not change p-values.
"""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from test_reporting import _key

from saliency_bench.read.statistics import paired_test
from saliency_bench.read.statistics.clusters import Matched, cluster_codes, summable
from saliency_bench.read.statistics.intervals import p_with_failures, paired_difference
from saliency_bench.read.statistics.paired_test import (
    adjusted_p,
    another_cluster,
    holm,
    outlasting_failures,
    signed_sums,
    step_down,
)
from saliency_bench.read.statistics.ranking import compare, scored_shares
from saliency_bench.utils.seeds import random_bits, seed_of


def p_of(columns, codes=None, flips=199, **options):
    columns = np.asarray(columns, dtype=float)
    codes = np.arange(len(columns)) if codes is None else codes
    pairs = list(combinations(range(columns.shape[1]), 2))
    return adjusted_p([Matched(list(columns.T), codes)], [pairs], flips=flips, **options)[0]


def literal(columns, codes, flips, seed=0):
    """Compute the adjusted p-values in plain Python: cluster sums, signs, T, and the greatest T from each rank down."""
    rows, width = len(columns), len(columns[0])
    clusters = max(codes) + 1
    words = -(-clusters // 64)
    bits = random_bits(seed_of(seed, "flips", 0), flips * words)
    signs = [[1 - 2 * int(_bit(bits[flip * words : (flip + 1) * words], c)) for c in range(clusters)]
             for flip in range(flips)]  # fmt: skip
    for sign, word in zip(signs, random_bits(seed_of(seed, "flips", "another"), flips), strict=True):
        sign.append(1 - 2 * int(_bit([word], 0)))
    sums = {}
    for first, second in combinations(range(width), 2):
        own = [0.0] * clusters
        for row in range(rows):
            a, b = columns[row][first], columns[row][second]
            if not math.isnan(a) and not math.isnan(b):
                own[codes[row]] += a - b
        sums[first, second] = own

    def t(own, sign):
        norm = math.sqrt(sum(d * d for d in own))
        return abs(sum(s * d for s, d in zip(sign, own, strict=False))) / norm if norm > 1e-12 else 0.0

    def share(pairs, of, value):
        reached = sum(max(t(of[pair], sign) for pair in pairs) >= value * (1 - 1e-9) for sign in signs)
        return (1 + reached) / (flips + 1)

    # One more cluster, as large as the largest, that contradicts the sum of the others.
    longer = {pair: [*own, -math.copysign(max(map(abs, own)), sum(own))] for pair, own in sums.items()}
    seen = {pair: t(own, [1] * clusters) for pair, own in sums.items()}
    order = sorted(seen, key=lambda pair: -seen[pair])
    p, greatest_p = {}, 0.0
    for rank, pair in enumerate(order):
        greatest_p = max(greatest_p, share(order[rank:], sums, seen[pair]))
        again = share(order[rank:], longer, t(longer[pair], [1] * (clusters + 1))) / 2
        p[pair] = again if greatest_p < 0.05 <= again else greatest_p
    return p


def _bit(words, place):
    """Return the bits of little-endian words, starting with the highest bit of each byte."""
    byte = (int(words[place // 64]) >> (8 * (place % 64 // 8))) & 255
    return byte >> (7 - place % 8) & 1


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("rare", [False, True])
def test_p_values_match_literal_computation(size, seed, rare):
    """Include two equal columns, and rare scores of 0 or 1, which are compared by their samples alone."""
    rng = np.random.default_rng(seed)
    columns = rng.normal([0, 0.2, 0.5, 0.5, 0], 1, (66, 5))
    columns = (columns > 1.2) * 1.0 if rare else columns
    columns[:, 3] = np.where(rng.random(66) < 0.2, np.nan, columns[:, 3])
    columns[5, 0] = np.nan
    columns[:, 4] = columns[:, 1]
    codes = np.arange(66) // size
    own = p_of(columns, codes, flips=60, seed=seed)
    assert own == pytest.approx(literal(columns.tolist(), codes.tolist(), 60, seed))
    assert own[1, 4] == 1
    assert len(set(own.values())) > 2


def test_single_pair_matches_scipy_permutation_test():
    rng = np.random.default_rng(4)
    gaps = rng.normal(0.25, 1, 50)
    theirs = stats.permutation_test((gaps,), np.mean, permutation_type="samples", n_resamples=20_000, rng=1).pvalue
    assert p_of(np.stack([gaps, np.zeros(50)], axis=1), flips=9999)[0, 1] == pytest.approx(theirs, abs=0.01)


def test_step_down_matches_hand_computation():
    """Test T = 3, 2 and 1. They are compared with the maximum over all pairs, the last two pairs, and the last pair."""
    flipped = np.array([[1, 0, 5], [0, 2, 0], [3, 0, 0], [0, 0, 0.5]], dtype=float)  # columns: T 2, 3, 1

    def p_of_rows(seen, rows):
        return step_down(np.array(seen), np.array(seen), lambda pair: np.stack([rows[:, pair]] * 2))

    p = p_of_rows([2.0, 3.0, 1.0], flipped)
    # For 3, rows 1 and 3 reach it. For T 2 and 1, rows 1 and 3. For 1 alone, row 1, raised to the previous maximum.
    assert p.tolist() == [3 / 5, 3 / 5, 3 / 5]
    p = p_of_rows([2.0, 3.0, 1.0], flipped[1:])
    assert p.tolist() == [2 / 4, 2 / 4, 2 / 4]
    p = p_of_rows([2.0, 9.0, 1.0], flipped[1:])
    assert p.tolist() == [2 / 4, 1 / 4, 2 / 4]


def literal_holm(p):
    """Return Holm's adjusted p-values: the running maximum of (n - k + 1) times the k-th smallest of n values."""
    ordered = sorted(range(len(p)), key=lambda test: p[test])
    products = [p[test] * (len(p) - place) for place, test in enumerate(ordered)]
    return [max(products[: ordered.index(test) + 1]) for test in range(len(p))]


@given(arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 1)))
def test_holm_matches_literal_computation(p):
    assert holm(p).tolist() == literal_holm(p.tolist())


def test_zeros_do_not_rule_out_rare_scores_of_one():
    """Compare 60 zeros of a 0/1 score with a constant .02. The zeros do not rule out that 2 % of the scores are 1."""
    zeros, constant = np.zeros(60), np.full(60, 0.02)
    assert adjusted_p([Matched([zeros, constant], np.arange(60))], [[(0, 1)]], flips=999)[0][0, 1] == 0.001
    p = adjusted_p([Matched([zeros, constant], np.arange(60), (0.0, 1.0))], [[(0, 1)]], flips=999)[0][0, 1]
    # The sum of -1.2 and 1 is .2 in absolute value; the other cluster alone changes the flipped sums by 1.
    assert another_cluster(np.full(60, -0.02), 1.0) == 1
    assert p == pytest.approx(0.5, abs=0.01)
    many = Matched([np.zeros(600), np.full(600, 0.02)], np.arange(600), (0.0, 1.0))
    assert adjusted_p([many], [[(0, 1)]], flips=999)[0][0, 1] == 0.001  # 11 / sqrt(1.24)


@pytest.mark.parametrize(("events", "told_apart"), [(9, False), (10, True)])
def test_few_rare_events_do_not_bound_their_size(events, told_apart, monkeypatch):
    """Compare zeros and a few scores of .1 with a constant .04. With ten such scores, the largest of them is used."""
    monkeypatch.setattr(paired_test, "p_with_failures", lambda *_: (0.0, 0.0))  # use only the flips
    rare = np.zeros(60)
    rare[:events] = 0.1
    p = adjusted_p([Matched([rare, np.full(60, 0.04)], np.arange(60), (0.0, 1.0))], [[(0, 1)]], flips=999)[0][0, 1]
    assert (p < 0.05) == told_apart


def literal_p(gaps, means, scores):
    """Return the maximum over many shares of failures, with k from the interval, computed one number at a time."""
    count, mean, error = len(gaps), abs(np.mean(gaps)), np.std(gaps, ddof=1) / len(gaps) ** 0.5
    weights = (gaps - np.mean(gaps)) ** 2
    freedom = min(count - 1, 2 / ((weights**2).sum() / weights.sum() ** 2 - 1 / count))
    better, worse = max(means), min(means)
    far = max(worse, 1 - better)  # either the better one fails, or the worse one is perfect
    worst = 0
    for share in np.linspace(0, 0.6, 6001):
        without = mean - share * far / (1 - share)
        worst = max(worst, stats.t.sf(without / error, freedom) * (1 - share) ** count)

    def moved(chance):
        tails = chance + (np.arange(50) + 0.5) / 50 * (1 - chance)
        lows = mean - stats.t.ppf(1 - tails, freedom) * error
        others = (chance / tails) ** (1 / count)
        return min(others * lows - (1 - others) * far)

    ordinary, k = stats.t.ppf(0.975, freedom) * error, min(3, 1.5 + 30 / count)
    k = 1 if mean - ordinary - moved(k * 0.025) > 3 * ordinary else k
    return min(1, max(2 * stats.t.sf(mean / error, freedom), scores * worst / k))


def outlasting(matched, columns=2, p=0.0):
    return outlasting_failures(p, p_with_failures(matched, 0, 1), columns)


@pytest.mark.sample(3)
@pytest.mark.parametrize("count", [50, 120])
@pytest.mark.parametrize(("spread", "lead"), [(0.02, 0.02), (0.02, -0.03), (0.06, 0.03), (0.1, 0.06), (0.25, 0.1)])
def test_p_value_allows_for_unseen_failures(spread, lead, count):
    columns = np.clip(np.random.default_rng(count).normal([0.6 + lead, 0.6], spread, (count, 2)), 0, 1)
    matched = Matched(list(columns.T), np.arange(count), (0.0, 1.0))
    for scores in (2, 7):
        theirs = literal_p(columns[:, 0] - columns[:, 1], columns.mean(axis=0), scores)
        assert outlasting(matched, scores) == pytest.approx(theirs, rel=0.01)
    alone = p_of(columns)[0, 1]  # without a range there is no bound
    p = adjusted_p([matched], [[(0, 1)]], flips=199)[0][0, 1]
    assert p == (alone if alone >= 0.05 else max(alone, outlasting(matched)))


def test_failure_p_counts_columns_of_every_family():
    rng = np.random.default_rng(2)
    columns = [np.clip(rng.normal([0.65, 0.6, 0.6], 0.06, (70, 3)), 0, 1) for _ in range(3)]
    families = [Matched(list(one.T), np.arange(70), (0.0, 1.0)) for one in columns]
    pairs = [(0, 1), (0, 2), (1, 2)]
    alone = adjusted_p(families, [pairs] * 3, flips=199)
    across = adjusted_p(families, [pairs] * 3, [[(number, (0, 1)) for number in range(3)]], flips=199)
    for number, family in enumerate(families):
        assert alone[number][0, 1] >= outlasting(family, columns=3) > 0
        assert across[number][0, 1] >= outlasting(family, columns=6) > outlasting(family, columns=3)
        assert across[number][0, 2] == alone[number][0, 2]


@pytest.mark.parametrize("names", [("gradcam", "random"), ("gradcam", "lime")])
def test_only_baseline_comparisons_share_a_family_of_metrics(names):
    keys = [_key(name, metric, 0) for metric in ("saliency_miou", "saliency_insertion") for name in names]
    columns = np.random.default_rng(3).random((4, 100))
    columns[0] += 0.11
    scores = {key.cell_id: column / 2 for key, column in zip(keys, columns, strict=True)}
    codes = np.arange(100)
    (alone,), (together, _) = (compare(keys[:count], scores, codes, 0)[0] for count in (2, 4))
    if "random" in names:
        assert 1.5 * alone.p < together.p <= 2 * alone.p
    else:
        assert together.p == alone.p


def test_few_effective_samples_are_not_tested():
    """Test 100 images in 60 groups. One group contains 41 images, each other group contains one."""
    keys = [_key(name, "saliency_miou", 0) for name in ("rise", "lime")]
    scores = {key.cell_id: np.linspace(0, 0.1, 100) + number for number, key in enumerate(keys)}
    ((contrast,), standings) = compare(keys, scores, np.maximum(np.arange(100) - 40, 0), 0)
    assert (contrast.clusters, contrast.p) == (60, None)
    assert {standing.rank for standing in standings.values()} == {None}


def test_versions_of_a_metric_are_not_compared():
    keys = [_key(name, "saliency_miou", version).model_copy(update={"metric_version": version})
            for version in (1, 2) for name in ("rise", "lime")]  # fmt: skip
    scores = {key.cell_id: np.linspace(0, 0.1, 60) + 0.2 * number for number, key in enumerate(keys)}
    contrasts, standings = compare(keys, scores, np.arange(60), 0)
    assert [contrast.cells for contrast in contrasts] == [(keys[0].cell_id, keys[1].cell_id),
                                                          (keys[2].cell_id, keys[3].cell_id)]  # fmt: skip
    assert [standings[key.cell_id].rank for key in keys] == [(2, 2), (1, 1)] * 2


def test_share_of_scored_samples_ignores_samples_without_scores():
    gap = np.nan
    assert scored_shares([np.array([0.1, 0.2, gap, gap, 0]), np.array([gap, 0.2, 0.3, gap, 0])]) == [0.75, 0.75]
    assert scored_shares([np.array([True, False]), np.array([False, False])]) == [1.0, 0.0]
    assert scored_shares([np.full(2, gap)]) == [0.0]


def test_significant_difference_has_interval_without_0():
    rng, apart = np.random.default_rng(0), 0
    for number in range(300):
        spread, count = rng.choice([0.02, 0.06, 0.1, 0.2]), int(rng.choice([50, 70, 150]))
        columns = np.clip(rng.normal([0.6 + 3 * rng.random() * spread / 5, 0.6], spread, (count, 2)), 0, 1)
        matched = Matched(list(columns.T), np.arange(count), (0.0, 1.0))
        estimate = paired_difference(matched, 0, 1)
        assert (outlasting(matched) < 0.05) == (not estimate.low <= 0 <= estimate.high), number
        apart += estimate.low > 0
    assert 30 < apart < 270


def test_family_across_metrics_raises_only_its_p_values():
    rng = np.random.default_rng(2)
    columns = [rng.normal([0.45, 0, 0], 1, (60, 3)) for _ in range(6)]
    matched = [Matched(list(one.T), np.arange(60)) for one in columns]
    pairs = [[(0, 1), (0, 2), (1, 2)]] * 6
    alone = adjusted_p(matched, pairs, flips=499)
    across = adjusted_p(matched, pairs, [[(number, (0, 2)) for number in range(6)]], flips=499)
    for one, other in zip(alone, across, strict=True):
        assert other == one | {(0, 2): other[0, 2]}
        assert other[0, 2] >= one[0, 2]
    assert any(other[0, 2] > one[0, 2] for one, other in zip(alone, across, strict=True))
    # Only the family of the baseline: as if the pairs of all metrics were pairs of one metric.
    gaps = np.stack([one[:, 0] - one[:, 2] for one in columns], axis=1)
    together = np.concatenate([gaps, np.zeros((60, 1))], axis=1)
    own = adjusted_p([Matched(list(together.T), np.arange(60))], [[(number, 6) for number in range(6)]], flips=499)[0]
    for number in range(6):
        assert across[number][0, 2] == max(alone[number][0, 2], own[number, 6])


@pytest.mark.parametrize(("pairs", "across"), [
    ([[(0, 1), (1, 2)], [], [(0, 2)], [(0, 1), (0, 2)]], [(0, (0, 1)), (3, (0, 2))]),
    ([list(combinations(range(4), 2))] * 3, [(number, (0, 3)) for number in range(3)]),
])  # fmt: skip
def test_chunk_size_does_not_change_p_values(pairs, across, monkeypatch):
    rng = np.random.default_rng(0)
    columns = [rng.random((80, 4)) for _ in pairs]
    for own in columns:
        own[rng.random(own.shape) < 0.1] = np.nan

    def found():
        matched = [Matched(list(one.T), np.arange(80)) for one in columns]
        return adjusted_p(matched, pairs, [across], flips=499), [len(own.columns) for own in matched]

    p, held = found()
    assert held == [0] * len(pairs)
    assert [set(own) for own in p] == [set(own) for own in pairs]
    monkeypatch.setattr(paired_test, "ELEMENTS_AT_ONCE", 1)
    assert found() == (p, held)


values = st.lists(st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=20, max_size=20)


@settings(max_examples=25, deadline=None)
@given(values, st.permutations(range(20)), st.permutations(range(3)), st.sets(st.integers(0, 59), max_size=12),
       st.sampled_from([0.125, 4.0, 2.0**40]))  # fmt: skip
def test_p_values_are_invariant_to_order_direction_and_scale(rows, order, explainers, gaps, scale):
    columns = np.array(rows)
    columns.ravel()[list(gaps)] = np.nan
    names = [f"{index:02d}" for index in range(20)]
    groups = [str(index // 2) if index < 10 else None for index in range(20)]
    codes = cluster_codes(names, groups)
    own = p_of(columns, codes, flips=49)
    shuffled = cluster_codes([names[i] for i in order], [groups[i] for i in order])
    assert p_of(columns[list(order)], shuffled, flips=49) == own
    assert p_of(-columns, codes, flips=49) == own
    assert p_of(columns * scale, codes, flips=49) == own
    turned = p_of(columns[:, list(explainers)], codes, flips=49)
    for (first, second), p in turned.items():
        assert own[tuple(sorted((explainers[first], explainers[second])))] == p


def test_signed_sums_are_exact():
    """Exact sums do not depend on the number of threads, or on the order of the clusters."""
    columns = summable(np.random.default_rng(0).normal(0, 1, (600, 3)), 600)
    signs = signed_sums(list(np.eye(600)), 1, 20)
    assert set(signs.ravel()) == {-1, 1}
    expected = [[math.fsum(signs_of_flip * column) for column in columns.T] for signs_of_flip in signs]
    assert signed_sums(list(columns.T), 1, 20).tolist() == expected
