"""Tests of agreement measures against their definitions, and of consensus masks by counting."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from sklearn.metrics import cohen_kappa_score, f1_score, jaccard_score

from saliency_bench.read.statistics.intervals import wilson
from saliency_bench.studies import agreement
from saliency_bench.studies.agreement import cohens_kappa, consensus, dice, image_agreement, iou, krippendorffs_alpha

EMPTY, FULL = np.zeros((2, 3), bool), np.ones((2, 3), bool)
LEFT = np.array([[1, 0, 0], [1, 0, 0]], bool)
TOP = np.array([[1, 1, 1], [0, 0, 0]], bool)
masks = st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=2, max_size=4).map(
    lambda rows: [np.array(row).reshape(3, 4) for row in rows]
)


def literal_alpha(masks):
    """Compute 1 - D_o / D_e from all pairs of values of the same pixel, and all pairs of any values."""
    units = list(zip(*(mask.ravel().tolist() for mask in masks), strict=True))
    count = len(masks)
    observed = sum(a != b for unit in units for a, b in combinations(unit, 2)) * 2 / (count - 1)
    values = Counter(value for unit in units for value in unit)
    expected = 2 * values[True] * values[False] / (sum(values.values()) - 1)
    return 1 - observed / expected


@given(masks)
def test_agreement_measures_match_reference_implementations(given):
    first, second = given[:2]
    a, b = first.ravel(), second.ravel()
    if a.any() or b.any():
        assert iou(first, second) == pytest.approx(jaccard_score(a, b))
        assert dice(first, second) == pytest.approx(f1_score(a, b))
    if len({*a, *b}) == 2:
        assert cohens_kappa(first, second) == pytest.approx(cohen_kappa_score(a, b))
    if len({value for mask in given for value in mask.ravel()}) == 2:
        assert krippendorffs_alpha(given) == pytest.approx(literal_alpha(given))


def test_agreement_measures_match_values_by_hand():
    """Test 2 x 3 pixels with the left column against the top row, which share one of four pixels."""
    assert (iou(LEFT, TOP), dice(LEFT, TOP)) == (1 / 4, 2 / 5)
    # they agree on 3 of 6 pixels; by chance on 1/3 1/2 + 2/3 1/2 = 1/2
    assert cohens_kappa(LEFT, TOP) == pytest.approx(0)
    # D_o = 3 / 6; 5 of 12 values are marked: D_e = 2 5 7 / (12 11)
    assert krippendorffs_alpha([LEFT, TOP]) == pytest.approx(1 - (1 / 2) / (70 / 132))


@pytest.mark.parametrize(("first", "second", "wanted"), [
    (EMPTY, EMPTY, [1, 1, 1, 1]), (FULL, FULL, [1, 1, 1, 1]),
    (EMPTY, TOP, [0, 0, 0, 1 - (1 / 2) / (2 * 3 * 9 / (12 * 11))]),
    (EMPTY, FULL, [0, 0, 0, 1 - 1 / (72 / 132)]),
])  # fmt: skip
def test_agreement_of_empty_and_full_masks(first, second, wanted):
    found = image_agreement([first, second])
    assert (list(found), list(found.values())) == (list(agreement.LIMITS), pytest.approx(wanted))


def test_study_agreement_averages_pairs_then_images():
    assert image_agreement([LEFT, TOP, EMPTY])["IoU"] == pytest.approx((1 / 4 + 0 + 0) / 3)
    few = agreement.study_agreement([[LEFT, TOP], [TOP, TOP], [LEFT]])
    assert (few["IoU"].value, few["IoU"].n) == (5 / 8, 2)
    assert np.isnan(few["IoU"].low), "two images give no interval"
    many = agreement.study_agreement([[TOP, TOP]] * 6 + [[EMPTY, TOP]] * 6)["IoU"]
    assert (many.low, many.high) == pytest.approx(wilson(0.5, 12, 1.959964))
    assert np.isnan(agreement.study_agreement([])["Dice"].value)


@given(masks)
def test_consensus_keeps_pixels_marked_by_at_least_half(given):
    wanted = [[sum(mask[y, x] for mask in given) >= len(given) / 2 for x in range(4)] for y in range(3)]
    np.testing.assert_array_equal(consensus(given), wanted)


def test_consensus_rules_match_values_by_hand():
    first, second = np.array([[1, 1, 0, 0]], bool), np.array([[1, 0, 1, 0]], bool)
    assert consensus([first, second]).tolist() == [[True, True, True, False]], "at least half of two is the union"
    assert consensus([first, second], "majority").tolist() == [[True, False, False, False]]
    assert consensus([first], "majority").tolist() == first.tolist()
    refused("consensus rule", consensus, [first], "most")
    refused("different sizes", consensus, [LEFT, LEFT.T])


def test_staple_ignores_a_random_annotator():
    """Test three people, one of whom marks at random. STAPLE agrees with the other two, like a majority vote."""
    pytest.importorskip("SimpleITK")
    truth = np.zeros((40, 40), bool)
    truth[10:30, 10:30] = True
    careless = np.random.default_rng(0).random((40, 40)) < 0.5
    np.testing.assert_array_equal(consensus([truth, truth, careless], "staple"), truth)
    assert not consensus([~truth & False] * 2, "staple").any()
