"""Labels without a class of the model, by a label map: predicted, not explained, and not part of the accuracy."""

import pytest

import saliency_bench as sb
from saliency_bench.errors import UserError

SETTINGS = {"explainers": ["centre"], "metrics": ["saliency_miou"], "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def classes(shapes):
    return sb.load_dataset(str(shapes)).features["label"].names


def test_they_are_predicted_and_not_explained(shapes, resnet, classes, tmp_path, capsys):
    label_map = {name: [] if name == classes[0] else name for name in classes}
    result = sb.run(dataset=str(shapes), model=str(resnet), label_map=label_map, out=tmp_path, **SETTINGS)
    rows = {row["image_id"]: row for row in result.predictions()}
    without = {image_id for image_id, row in rows.items() if row["label"] == 0}
    assert without
    assert all((rows[image_id]["correct"] is None) == (image_id in without) for image_id in rows)
    assert {row["image_id"] for row in result.records()} == set(rows) - without
    assert result.summary["model"]["accuracy"]["n"] == len(rows) - len(without)
    assert result.summary["model"]["no_class"] == len(without)
    page = result.report.read_text(encoding="utf-8")
    assert f"not counted: {len(without)} whose label is no class of the model" in page
    assert f"of the {len(rows)} samples (the label of {len(without)} is no class of the model)" in page
    assert (
        f"{len(without)} of {len(rows)} samples show no class of the model: they are predicted, not explained"
        in capsys.readouterr().err
    )


def test_where_the_target_is_predicted_all_are_explained(shapes, resnet, classes, tmp_path):
    label_map = {name: [] if name == classes[0] else name for name in classes}
    result = sb.run(dataset=str(shapes), model=str(resnet), label_map=label_map, target="predicted", out=tmp_path,
                    **SETTINGS)  # fmt: skip
    assert len(result.records()) == len(result.predictions())


def test_conditions_still_hold(shapes, resnet, classes, tmp_path):
    label_map = {name: [] if name == classes[0] else name for name in classes}
    settings = SETTINGS | {"dataset": str(shapes), "model": str(resnet), "label_map": label_map}
    result = sb.run(**settings, only=[f"label={classes[1]}"], out=tmp_path / "b")
    assert {row["label"] for row in result.records()} == {classes[1]}
    with pytest.raises(UserError, match=classes[0]):
        sb.run(**settings, only=[f"label={classes[0]}"], out=tmp_path / "a")
