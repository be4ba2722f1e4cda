"""Tests of reading records in batches, against slow code that reads them row by row."""

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saliency_bench.read import records
from saliency_bench.read.run_folder import CellScores
from saliency_bench.read.summary import _outcomes
from saliency_bench.score_notes import FLAT, MARKS

CELLS = [letter * 32 for letter in "cab"]
PARTS = {CELLS[0]: [None, "late", "early"], CELLS[1]: [None], CELLS[2]: [None, "only"]}
MARK = "undefined region ignored"


def rows(samples, shuffled=False):
    """Return records of three cells in the order of samples; some have no value, and some have remarks."""
    rng = np.random.default_rng(samples)
    found = [
        dict.fromkeys(records.SCHEMA.names, "x")
        | {
            "cell_id": cell, "image_id": f"image-{number}", "group": f"g{number // 3}" if number % 5 else None,
            "part": part, "value": None if number % 7 == 3 else float(rng.normal()),
            "reason": "no mask" if number % 7 == 3 else [None, FLAT, MARK, MARKS.join([FLAT, MARK])][number % 4],
        }
        for cell in sorted(PARTS) for number in range(samples) for part in PARTS[cell]
    ]  # fmt: skip
    return [found[place] for place in rng.permutation(len(found))] if shuffled else found


def written(found, path, row_group_size=None):
    pq.write_table(pa.Table.from_pylist(found, schema=records.SCHEMA), path, row_group_size=row_group_size)
    return path


def literal_outcomes(found):
    """Return {cell: (scores, {part: values}, left out, remarks)}."""
    outcomes = {}
    for row in found:
        scores, parts, left_out, marks = outcomes.setdefault(row["cell_id"], ([], {}, Counter(), Counter()))
        series = scores if row["part"] is None else parts.setdefault(row["part"], [])
        series.append(math.nan if row["value"] is None else row["value"])
        if row["part"] is None and row["value"] is None:
            left_out[row["reason"]] += 1
        elif row["part"] is None and row["reason"] is not None:
            marks.update(row["reason"].split(MARKS))
    return outcomes


@pytest.fixture(params=[(40, None, False), (40, 7, False), (40, 11, True), (1, None, False)], ids=str)
def made(request, tmp_path, monkeypatch):
    """Return (rows, file with these rows) in row groups of several sizes; 16 rows are read at a time."""
    monkeypatch.setattr(records, "READ", 16)
    samples, size, shuffled = request.param
    found = rows(samples, shuffled)
    return found, written(found, tmp_path / "records.parquet", size)


def test_outcomes_match_loop_over_rows(made):
    found, path = made
    ids, outcomes = _outcomes(path)
    expected = literal_outcomes(found)
    assert outcomes.keys() == expected.keys()
    for cell, (scores, parts, left_out, marks) in expected.items():
        own = outcomes[cell]
        np.testing.assert_array_equal(own.scores, scores)
        assert list(own.parts) == list(parts)
        for name, values in parts.items():
            np.testing.assert_array_equal(own.parts[name], values)
        assert (own.left_out, own.marks) == (left_out, marks)
    first = next(iter(outcomes))
    assert ids == [row["image_id"] for row in found if row["cell_id"] == first and row["part"] is None]


@pytest.mark.parametrize("part", [None, "early"])
def test_scores_match_images_in_any_order(made, part):
    found, path = made
    own = [row for row in found if row["part"] == part]
    scores = CellScores.read(records.by_cell(path, ["image_id", "group", "part", "value"]), part)
    assert set(scores.ids) == {row["image_id"] for row in own}
    assert len(scores.ids) == len(set(scores.ids)) == len(scores.groups)
    assert dict(zip(scores.ids, scores.groups, strict=True)) == {row["image_id"]: row["group"] for row in own}
    assert scores.values.keys() == {row["cell_id"] for row in own}
    for row in own:
        value = scores.values[row["cell_id"]][scores.ids.index(row["image_id"])]
        assert value == row["value"] or (row["value"] is None and math.isnan(value))
    for cell, values in scores.values.items():
        assert np.isfinite(values).sum() == sum(row["value"] is not None for row in own if row["cell_id"] == cell)


def test_only_requested_cells_are_read(made):
    found, path = made
    read = [(cell, name) for cell, own in records.by_cell(path, ["image_id"], {CELLS[1]})
            for name in own.column("image_id").to_pylist()]  # fmt: skip
    assert read == [(row["cell_id"], row["image_id"]) for row in found if row["cell_id"] == CELLS[1]]


def test_only_row_groups_that_may_contain_a_cell_are_opened(tmp_path):
    path = written(rows(40), tmp_path / "records.parquet", 20)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[:footer] + content[footer:].replace(CELLS[1].encode(), b"~" * 32))  # wrong statistics
    with pq.ParquetFile(path) as file:
        may = [number for number in range(file.num_row_groups) if records._holds(file, number, {CELLS[1]})]
        groups = [set(file.read_row_group(number)["cell_id"].to_pylist()) for number in range(file.num_row_groups)]
    assert may == [number for number, own in enumerate(groups) if CELLS[1] in own]
    assert len(may) < len(groups)


@pytest.mark.parametrize(("change", "named"), [
    (lambda table: table.drop_columns("part"), "part"),
    (lambda table: table.set_column(0, "cell_id", pa.array(range(len(table)))), "cell_id"),
    (lambda table: table.set_column(0, "cell_id", pa.array([None] * len(table), pa.string())), "cell_id"),
])  # fmt: skip
def test_invalid_records_table_is_rejected(tmp_path, change, named):
    table = change(pa.Table.from_pylist(rows(4), schema=records.SCHEMA))
    pq.write_table(table, tmp_path / "records.parquet")
    with pytest.raises(ValueError, match=named):
        list(records.by_cell(tmp_path / "records.parquet", ["part"]))
