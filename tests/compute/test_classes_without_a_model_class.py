"""Test labels to which a label map assigns no class of the model.

Their images are predicted, but they are not explained and do not count in the accuracy.
"""

from refusals import refused

import saliency_bench as sb

SETTINGS = {"explainers": ["centre"], "metrics": ["saliency_miou"], "device": "cpu", "progress": False}


def test_they_are_predicted_but_not_explained_by_their_label(shapes, resnet, tmp_path, capsys):
    classes = sb.load_dataset(str(shapes)).features["label"].names
    label_map = {name: [] if name == classes[0] else name for name in classes}
    settings = SETTINGS | {"dataset": str(shapes), "model": str(resnet), "label_map": label_map}
    result = sb.run(**settings, out=tmp_path / "run")
    rows = {row["image_id"]: row for row in result.predictions()}
    without = {image_id for image_id, row in rows.items() if row["label"] == 0}
    assert without
    assert all((rows[image_id]["correct"] is None) == (image_id in without) for image_id in rows)
    assert {row["image_id"] for row in result.records()} == set(rows) - without
    assert result.summary["model"]["accuracy"]["n"] == len(rows) - len(without)
    assert result.summary["model"]["no_class"] == len(without)
    page = result.report.read_text(encoding="utf-8")
    assert f"not counted: {len(without)} whose label is not a class of the model" in page
    assert f"of the {len(rows)} samples (the label of {len(without)} is not a class of the model)" in page
    line = f"{len(without)} of {len(rows)} samples show no class of the model: they are predicted, not explained"
    assert line in capsys.readouterr().err
    predicted = sb.run(**settings, target="predicted", out=tmp_path / "predicted")
    assert len(predicted.records()) == len(predicted.predictions())
    some = sb.run(**settings, only=[f"label={classes[1]}"], out=tmp_path / "some")
    assert {row["label"] for row in some.records()} == {classes[1]}
    refused(classes[0], sb.run, **settings, only=[f"label={classes[0]}"], out=tmp_path / "none")
