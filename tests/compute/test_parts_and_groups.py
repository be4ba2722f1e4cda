"""Test what records contain: the parts of a score, and the group and the scalar columns of the dataset."""

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from refusals import refused

import saliency_bench as sb
from saliency_bench.board.checks import checked
from saliency_bench.board.recorded import recorded
from saliency_bench.board.submission import of_run
from saliency_bench.board.submission_schema import Result
from saliency_bench.bound_metric import load_metric
from saliency_bench.maps import mean_of_parts
from saliency_bench.read import records

METRICS = ["saliency_roae", "saliency_kae:reference=mean", "saliency_consistency", "saliency_miou"]


@pytest.fixture(scope="module")
def done(tmp_path_factory, shapes, resnet):
    rows = sb.load_dataset(shapes).select(range(9)).remove_columns("group")
    columns = {"group": [f"scene {index // 2}" for index in range(9)], "weight": np.arange(9) / 2,
               "prediction": ["by a person"] * 9}  # fmt: skip
    for name, values in columns.items():
        rows = rows.add_column(name, list(values))
    folder = tmp_path_factory.mktemp("data")
    rows.to_parquet(folder / "data" / "test-00000.parquet")
    return sb.run(dataset=folder / "data", model=str(resnet), explainers=["gradcam", "random"], metrics=METRICS,
                  out=folder / "run", batch_size=4, limit=5, device="cpu", progress=False)  # fmt: skip


def by_sample(done, metric, explainer="gradcam"):
    """Return {image id: (score, {part: value})} of one cell. The row of the score precedes the rows of its parts."""
    found: dict = {}
    for row in done.records():
        if (row["metric"], row["explainer"]) == (metric, explainer):
            found.setdefault(row["image_id"], []).append(row)
    (names,) = {tuple(row["part"] for row in rows) for rows in found.values()}
    assert (names.index(None), names.count(None)) == (0, 1)
    return {image_id: (rows[0], {row["part"]: row for row in rows[1:]}) for image_id, rows in found.items()}


def test_consistency_is_mean_over_valid_transforms(done):
    found = by_sample(done, "saliency_consistency")
    for score, parts in found.values():
        assert len(parts) == 12
        assert all((row["value"] is None) == (row["reason"] is not None) for row in parts.values())
        if known := [row["value"] for row in parts.values() if row["value"] is not None]:
            assert score["value"] == pytest.approx(np.mean(known), rel=1e-12)
    absent = load_metric("saliency_consistency").declaration.absent
    reasons = {row["reason"] for score, parts in found.values() if score["value"] for row in parts.values()}
    assert reasons <= {None, f"not defined for this sample: {absent}"}
    assert len(found) == 5


def test_summary_has_mean_and_interval_of_every_part(done):
    for cell in done.summary["cells"]:
        found = by_sample(done, cell["metric"], cell["explainer"])
        known = [score["value"] for score, _ in found.values() if score["value"] is not None]
        assert (cell["n"], cell["value"]) == (len(known), pytest.approx(np.mean(known)))
        assert set(cell["parts"]) == {name for _, parts in found.values() for name in parts}
        assert (cell["parts"] == {}) == (cell["metric"] == "saliency_miou")
        for name, part in cell["parts"].items():
            values = [parts[name]["value"] for _, parts in found.values() if parts[name]["value"] is not None]
            assert part["n"] == len(values)
            assert part["value"] == (pytest.approx(np.mean(values)) if values else None)
            assert part["low"] is None or part["low"] <= part["value"] <= part["high"]


@pytest.mark.parametrize("change", ["value", "name", "only a part"])
def test_submission_with_altered_parts_is_rejected(change, done):
    submission = of_run(done.folder, "ada")
    cells = [cell.model_dump() for cell in submission.result.cells]
    parts = next(cell["parts"] for cell in cells if cell["metric"] == "saliency_roae")
    table = submission.records.cast(records.SCHEMA)
    if change == "value":
        parts["0.5"]["value"] = parts["0.5"]["value"] + 0.1
        parts["0.5"]["low"] = parts["0.5"]["high"] = None
    elif change == "name":
        parts["half"] = parts.pop("0.5")
    else:
        row = table.filter(pc.equal(table["part"], "0.5")).slice(0, 1)
        row = row.set_column(0, "cell_id", pa.array(["0" * 16]))
        table = pa.concat_tables([table, row])
    result = Result.model_validate(submission.result.model_dump() | {"cells": cells})
    path = done.folder / "records.parquet"
    words = r"part (0\.5|half) of cell|has 341 rows"
    refused(words, lambda: checked(result, recorded(result, table, path), path))


def test_predictions_contain_group_and_scalar_columns(done, shapes):
    table = pq.read_table(done.folder / "predictions.parquet")
    ids, rows = table["image_id"].to_pylist(), sb.load_dataset(shapes)
    places = [rows["image_id"].index(image_id) for image_id in ids]
    groups = [f"scene {place // 2}" for place in places]
    assert table["group"].to_pylist() == groups
    for score, parts in by_sample(done, "saliency_roae").values():
        assert {row["group"] for row in (score, *parts.values())} == {groups[ids.index(score["image_id"])]}
    assert table["weight"].to_pylist() == [place / 2 for place in places]
    assert table["dataset_prediction"].to_pylist() == ["by a person"] * 5
    assert all(isinstance(prediction, int) for prediction in table["prediction"].to_pylist())
    assert isinstance(rows.features["scene"], datasets.ClassLabel)
    assert table["scene"].to_pylist() == rows.features["scene"].int2str(rows.select(places)["scene"][:])
    assert not {"image", "mask", "image_without_object"} & set(table.schema.names)


def test_mean_of_parts_skips_missing_values():
    values = np.array([[1.0, 2.0, np.nan], [np.nan] * 3, [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(mean_of_parts(values), [1.5, np.nan, 0.0])
