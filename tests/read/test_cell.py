"""Tests of cells in files: they are validated strictly, they are complete, and they are read back unchanged."""

import json

import pytest
from pydantic import TypeAdapter, ValidationError
from refusals import refused

from saliency_bench.read.cell import CellKey, CellResult, Count, PartResult, as_json, best, read_cells
from saliency_bench.read.summary import table, warnings
from saliency_bench.score_notes import CHANGES_NETWORK, DEPENDS_ON_BATCH

LATER = {"parts", "explainer_about", "metric_about", "aggregate", "note", "asked_for", "effective", "rare", "trainings",
         "beats_baselines"}  # absent in older results, which are still read  # fmt: skip
KEY = {
    "cell_id": "0123456789abcdef", "explainer_id": "fedcba9876543210", "explainer": "rise",
    "explainer_options": {"masks": 10, "seed": None}, "explainer_text": "rise:masks=10", "explainer_version": 1,
    "baseline": False, "metric": "saliency_miou", "metric_options": {}, "metric_text": "saliency_miou",
    "metric_version": 2, "higher_is_better": True, "range": [0.0, None], "explainer_about": "", "metric_about": "",
    "aggregate": False, "note": "", "asked_for": {},
}  # fmt: skip
PART = {"value": 0.1, "low": None, "high": None, "n": 1, "clusters": 1, "effective": None, "rare": False}
RESULT = KEY | {
    "value": 0.5, "low": 0.25, "high": 0.75, "n": 30, "clusters": 15, "effective": None, "rare": False,
    "rank": [1, 2], "unranked": None, "scored": 0.9, "median": None, "parts": {"0.1": PART},
    "left_out": {"no mask": 1}, "flat": 0, "marked": {}, "forward_passes": {"explain": 30, "metric": 0},
    "trainings": None, "beats_baselines": None,
}  # fmt: skip
UNRANKED = {"low": None, "high": None, "rank": None, "unranked": "too few to rank"}
NOTHING = {"value": None, "low": None, "high": None, "n": 0, "clusters": 0}


def test_cell_round_trips_through_flat_json():
    (cell,) = read_cells([RESULT])
    assert as_json([cell]) == [RESULT]
    assert cell.parts["0.1"] == PartResult(value=0.1, low=None, high=None, n=1, clusters=1)
    assert (cell.ends, cell.parts["0.1"].ends) == ((0.25, 0.75), None)
    assert (cell.forward_passes.explain, cell.limits) == (30, (0.0, float("inf")))
    assert CellKey.model_validate(KEY).metric_id == ("saliency_miou", 2)
    assert set(CellKey.model_fields) == set(KEY)
    assert set(CellResult.model_fields) == set(RESULT)


def test_cell_of_earlier_version_is_read():
    (cell,) = read_cells([{name: RESULT[name] for name in set(RESULT) - LATER}])
    assert (cell.aggregate, cell.note, cell.parts, cell.beats_baselines) == (False, "", {}, None)


def test_cell_is_immutable():
    (cell,) = read_cells([RESULT])
    with pytest.raises(ValidationError):
        cell.value = 1.0


@pytest.mark.parametrize(("field", "value"), [
    ("cell_id", "../../etc"), ("explainer_id", "a/b"), ("explainer_text", "rise\x1b[31m"),
    ("explainer_version", 1.0), ("baseline", 1), ("higher_is_better", "yes"), ("value", float("inf")),
    ("value", "0.5"), ("low", 0.8), ("n", -1), ("n", 0), ("rank", 1), ("rank", [0, 1]), ("rank", [2, 1]),
    ("rank", None), ("unranked", "too few to rank"), ("scored", 1.5), ("clusters", 31), ("range", [0.0]),
    ("parts", {"a": {"value": 0.1, "low": None, "high": None}}), ("left_out", {"no mask": -1}),
    ("forward_passes", {"explain": 1, "other": 1}), ("surplus", 1),
])  # fmt: skip
def test_invalid_field_is_rejected_by_name(field, value):
    named = "" if field in ("low", "n", "rank", "unranked", "clusters") else field
    refused(rf"^cells\.0.*{named}", read_cells, [RESULT | {field: value}])


@pytest.mark.parametrize("field", sorted(set(RESULT) - LATER))
def test_missing_field_is_rejected_by_name(field):
    refused(rf"cells\.0\.{field}", read_cells, [{name: RESULT[name] for name in RESULT if name != field}])


def test_table_shows_rank_interval_and_fewer_samples():
    other = {"metric_text": "other", "higher_is_better": False, "median": 0.4}
    centre = {"explainer_id": "c" * 16, "explainer_text": "centre"}
    cells = read_cells([RESULT, RESULT | UNRANKED | other, RESULT | UNRANKED | centre | NOTHING])
    header, _, first, second = table(cells, 4).splitlines()
    assert header.split() == ["explainer", "saliency_miou", "↑", "other", "↓"]
    assert first.split() == [
        *("rise:masks=10", "0.500", "[0.250,", "0.750]", "#1-2", "few", "samples", "n=30", "C=15"),
        *("0.500", "median", "0.400", "n=30", "C=15"),
    ]
    assert second.split() == ["centre", "-", "(no", "mask)", "-"]
    assert json.loads(json.dumps(as_json(cells))) == as_json(cells)


def test_table_reports_few_effective_clusters_and_trainings():
    cells = read_cells([RESULT | {"clusters": 30, "effective": 12.4, "trainings": 2}])
    assert "few samples few training runs (2)" in table(cells, 30)
    assert table(read_cells([RESULT | {"effective": 12.4}]), 30).splitlines()[-1].endswith("C=15 (12 effective)")
    assert "trainings" not in table(read_cells([RESULT | {"trainings": 5}]), 30)


def test_warnings_name_leaking_and_batch_dependent_explainers():
    found = warnings(read_cells([
        RESULT | {"marked": {DEPENDS_ON_BATCH: 4}},
        RESULT | {"explainer_id": "b" * 16, "explainer_text": "leaky", "left_out": {CHANGES_NETWORK: 7}},
        RESULT | {"explainer_id": "c" * 16, "explainer_text": "sound"},
    ]))  # fmt: skip
    lines = [line.partition(": ")[0] for line in found]
    assert lines == [f"{RESULT['explainer_text']} depends on its batch", "leaky changes the network"]
    assert "4 samples" in found[0]
    assert "7 scores of leaky" in found[1]


def test_table_separates_functions_and_metric_releases():
    functions = [RESULT | {"explainer_id": key * 16, "explainer_version": key * 8} for key in "ab"]
    releases = [RESULT | {"metric_version": f"1 of their-package {release}"} for release in ("1.2.0", "1.3.0")]
    *_, first, second = table(read_cells(functions), 4).splitlines()
    assert first.startswith(f"{RESULT['explainer_text']} (version aaaaaa)")
    assert second.startswith(f"{RESULT['explainer_text']} (version bbbbbb)")
    header, *_ = table(read_cells(releases), 30).splitlines()
    assert all(f"(version 1 of their-package {release})" in header for release in ("1.2.0", "1.3.0"))


@pytest.mark.parametrize(("changes", "ranks", "few", "approximate", "small"), [
    ({}, "1-2", True, False, True),
    ({"rank": [2, 2]}, "2", True, False, True),
    ({"clusters": 19}, "1-2", True, False, True),
    ({"clusters": 20, "median": 0.5}, "1-2", False, True, False),
    ({"n": 500, "clusters": 500, "median": 0.5}, "1-2", False, False, False),
    ({"low": None, "high": None, "median": 0.5}, "1-2", False, False, True),  # the cell shows n next to the value
    ({"n": 500, "clusters": 500, "effective": 19.9}, "1-2", True, False, True),
    ({"n": 1, "clusters": 1}, "1-2", True, False, True),
    (NOTHING, "1-2", False, False, False),
])  # fmt: skip
def test_cell_derives_ranks_and_sample_size_flags(changes, ranks, few, approximate, small):
    (cell,) = read_cells([RESULT | changes])
    assert (cell.ranks, cell.few, cell.approximate, cell.small) == (ranks, few, approximate, small)


@pytest.mark.parametrize(("cells", "marked"), [
    ({"a": ([1, 2], 1.0), "b": ([1, 2], 0.95), "random": ([3, 3], 1.0)}, "ab"),
    ({"a": ([1, 2], 1.0), "b": ([1, 2], 0.94), "random": ([3, 3], 1.0)}, "a"),  # too few samples are scored
    ({"a": ([1, 2], 1.0, True), "b": ([1, 3], 1.0, False), "random": ([2, 3], 1.0)}, "a"),
    ({"a": ([1, 2], 1.0, None), "b": ([2, 2], 1.0, None)}, "a"),  # without a baseline
    ({"a": ([1, 2], 1.0, None), "random": ([2, 2], 1.0)}, ""),  # from an older summary, without this field
    ({"a": ([1, 3], 1.0), "b": ([1, 3], 1.0), "random": ([1, 3], 1.0)}, ""),  # no two explainers differ
    ({"random": ([1, 1], 1.0), "a": ([2, 3], 1.0), "b": ([2, 3], 1.0)}, ""),  # a baseline is better
    # not shown to be better than the baseline
    ({"a": ([1, 2], 1.0, False), "random": ([1, 2], 1.0), "b": ([3, 3], 1.0)}, ""),
    ({"a": (None, 1.0), "random": (None, 1.0)}, ""),
])  # fmt: skip
def test_best_marks_unbeaten_methods_where_any_two_differ(cells, marked):
    ids = {name: f"{number:016x}" for number, name in enumerate(cells)}
    results = [RESULT | {"cell_id": ids[name], "baseline": name == "random", "rank": rank, "scored": scored}
               | {"unranked": None if rank else "too few to rank"}
               | {"beats_baselines": None if name == "random" else beats[0] if beats else rank is not None}
               for name, (rank, scored, *beats) in cells.items()]  # fmt: skip
    read = read_cells(results)
    assert best(read) == {ids[name] for name in marked}
    mark = "best" if any(cell.baseline for cell in read) else "best (not compared with a baseline)"
    assert {cell.best_mark for cell in read if cell.cell_id in best(read)} <= {mark}


def test_counts_beyond_table_range_are_rejected():
    assert TypeAdapter(Count).validate_python(2**53) == 2**53
    with pytest.raises(ValidationError, match="less than or equal to"):
        TypeAdapter(Count).validate_python(10**30)
