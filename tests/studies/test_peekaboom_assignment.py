"""Tests of the assignment of judgements by Latin squares, for any numbers of images, explainers and people."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from saliency_bench.studies.peekaboom.assignment import leftovers, sheets, with_checks

numbers = {"images": st.integers(1, 25), "explainers": st.integers(2, 6), "judgements": st.integers(1, 4),
           "pairs": st.integers(1, 12), "seed": st.integers(0, 5)}  # fmt: skip


def names(prefix, count):
    return [f"{prefix}{number}" for number in range(count)]


@given(**numbers)
def test_sheets_balance_judgements_and_never_repeat_an_image(images, explainers, judgements, pairs, seed):
    """Test also that the numbers of judgements of any two pairs of one image never differ by more than one."""
    found = sheets(names("i", images), names("e", explainers), judgements, pairs, seed)
    counts = Counter({(i, e): 0 for i in names("i", images) for e in names("e", explainers)})
    for sheet in found:
        assert 1 <= len(sheet) <= pairs
        assert len({image for image, _ in sheet}) == len(sheet)
        used = Counter(dict.fromkeys(names("e", explainers), 0) | Counter(e for _, e in sheet))
        assert max(used.values()) - min(used.values()) <= 1
        counts.update(sheet)
        for image, _ in sheet:
            own = [counts[image, name] for name in names("e", explainers)]
            assert max(own) - min(own) <= 1
    assert counts == {(i, e): judgements for i in names("i", images) for e in names("e", explainers)}
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(
    st.dictionaries(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz")), st.integers(0, 3)), st.integers(1, 5)
)
def test_leftovers_fill_every_missing_judgement(missing, pairs):
    missing = dict(missing)
    while sheet := leftovers(missing, pairs, 0):
        assert len(sheet) <= pairs
        assert len({image for image, _ in sheet}) == len(sheet)
        for pair in sheet:
            missing[pair] -= 1
            assert missing[pair] >= 0
    assert not any(missing.values())


def test_check_positions_vary_by_person():
    sheet, checks = names("u", 10), ["c", "d"]
    orders = [with_checks(sheet, checks, f"p{number}", 0) for number in range(30)]
    assert all(sorted(order) == sorted(sheet + checks) for order in orders)
    assert len({order.index("c") for order in orders}) > 5
    assert with_checks(sheet, checks, "p1", 0) == orders[1]
