"""Test a second classifier of the same images: predictions, maps, cell ids and accuracy."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from checkpoints import small_checkpoint
from commands import said
from refusals import refused

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.compute.scoring.samples import score_samples

LIMIT = 12
ALONE = {"metrics": ["saliency_miou"], "other_model": None, "other_label": None}


@sb.metric(higher_is_better=True)
def shift(maps, images, other, explain):
    """Return the mean of the run's map minus the other model's map, plus 100 where the other model is correct."""
    theirs = explain(images, other.target, classifier=other.classifier)
    right = other.labels[np.arange(len(images)), other.logits.argmax(dim=1).numpy()]
    return maps.mean(axis=(1, 2)) - theirs.mean(axis=(1, 2)) + 100 * right


@sb.metric(higher_is_better=True)
def shift_again(images, other, explain):
    return explain(images, other.target, classifier=other.classifier).mean(axis=(1, 2))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    names = registry.load("hub_builders", "shapes-xai").SCENES
    return small_checkpoint(tmp_path_factory.mktemp("scenes") / "scenes", names, seed=3)


@pytest.fixture(scope="module")
def start(shapes, resnet, scenes):
    usual = {"dataset": shapes, "model": resnet, "explainers": "gradient", "metrics": [shift], "other_model": scenes,
             "other_label": "scene", "limit": LIMIT, "batch_size": 5, "device": "cpu", "progress": False}  # fmt: skip
    return lambda out, **changes: sb.run(**usual | changes, out=out)


@pytest.fixture(scope="module")
def done(start, tmp_path_factory):
    return start(tmp_path_factory.mktemp("other") / "run")


def values(done, metric="shift"):
    return {row["image_id"]: row["value"] for row in done.records() if row["metric"] == metric}


def batch_of(shapes, classifier, ids):
    rows = sb.load_dataset(shapes)
    rows = rows.select([rows["image_id"].index(name) for name in ids])
    return classifier.prepare(rows[:]), rows["scene"]


def test_other_model_is_explained_for_its_own_label(done, shapes, resnet, scenes):
    found = values(done)
    own, other = (sb.load_classifier(path, device="cpu") for path in (resnet, scenes))
    batch, scene = batch_of(shapes, own, found)
    explain = sb.load_explainer("gradient")
    mine = explain(own, batch.images, sb.targets.one_hot(batch.labels.tolist(), 8))
    theirs = explain(other, batch.images, sb.targets.one_hot(scene, 8))
    right = (other(batch.images).argmax(dim=1) == torch.tensor(scene)).double()
    expected = mine.mean(dim=(1, 2)) - theirs.mean(dim=(1, 2)) + 100 * right
    np.testing.assert_allclose(list(found.values()), expected.detach(), rtol=1e-5)
    assert {round(value, -2) for value in found.values()} == {0, 100}
    given = {"target": batch.labels, "image_ids": batch.ids, "batch_size": 5}
    scores = score_samples(shift, batch.images, own, "gradient", other=scenes, other_labels=scene, **given)
    np.testing.assert_allclose(scores, list(found.values()), rtol=1e-6)
    for metric, wrong, words in (
        (shift, {}, "shift needs a second classifier"),
        (shift, {"other": scenes}, "other_labels"),
        (shift, {"other": scenes, "other_labels": scene[1:]}, "for each of the 12 images"),
        ("saliency_insertion", {"other": scenes, "other_labels": scene},
         "saliency_insertion needs no second classifier"),
    ):  # fmt: skip
        refused(words, score_samples, metric, batch.images, own, "gradient", **given, **wrong)


def test_other_model_predictions_are_stored(done, shapes, scenes):
    table = pq.read_table(done.folder / "other_predictions.parquet")
    other = sb.load_classifier(scenes, device="cpu")
    batch, scene = batch_of(shapes, other, table["image_id"].to_pylist())
    assert table["label"].to_pylist() == scene
    np.testing.assert_allclose(table["logits"].to_pylist(), other(batch.images).detach(), rtol=1e-4, atol=1e-6)
    assert table["correct"].to_pylist() == [
        one == two for one, two in zip(table["prediction"].to_pylist(), scene, strict=True)
    ]
    own = pq.read_table(done.folder / "predictions.parquet")
    assert own.schema == table.schema
    assert own["image_id"] == table["image_id"]


def test_report_shows_accuracy_of_other_model(done, scenes):
    correct = pq.read_table(done.folder / "other_predictions.parquet")["correct"].to_pylist()
    other, own = done.summary["other_model"], done.summary["model"]
    assert other["accuracy"]["value"] == pytest.approx(np.mean(correct))
    assert set(other) == {*own, "label_column"}
    assert other["digest"] == sb.load_classifier(scenes, device="cpu").digest
    assert f"other model (scene) accuracy {np.mean(correct):.1%}" in str(done)
    page = done.report.read_text()
    assert re.search(rf"Other classifier, accuracy</dt><dd>{100 * np.mean(correct):.1f}", page)
    assert "label: scene" in page


def test_command_accepts_and_records_other_model(shapes, resnet, scenes, tmp_path, capsys):
    words = ["run", "--dataset", shapes, "--model", resnet, "--explainers", "centre", "--metrics", "saliency_miou",
             "--other-model", scenes, "--other-label", "scene", "--limit", 4, "--out", tmp_path / "run",
             "--device", "cpu"]  # fmt: skip
    shown = said(capsys, [str(word) for word in words])
    assert "other model (scene) accuracy" in shown
    run = sb.load_run(tmp_path / "run")
    assert f"--other-model {scenes} --other-label scene" in run.summary["command"]
    assert repr(run) == str(run)
    assert f"samples, accuracy {run.summary['model']['accuracy']['value']:.1%}" in str(run)
    for line in run.lines:
        assert line in shown.splitlines()
    for line in (*run.verdict, f"report: {run.report}"):
        assert line in str(run).splitlines()


def test_other_model_changes_only_ids_of_its_metrics(done, start, shapes, scenes, tmp_path):
    def ids(name, **changes):
        run = start(tmp_path / name, metrics=["saliency_miou", shift], **changes)
        return run, {cell.metric: cell.cell_id for cell in run.cells}

    loaded = sb.load_classifier(scenes, device="cpu")
    same, expected = ids("same", other_model=loaded)
    assert expected["shift"] == done.cells[0].cell_id
    assert values(same) == values(done)
    assert "other_model=" in same.summary["command"]
    alone = start(tmp_path / "alone", **ALONE)
    assert (alone.cells[0].cell_id, alone.summary["other_model"]) == (expected["saliency_miou"], None)
    turned = sb.load_dataset(shapes).map(lambda row: {"scene": (row["scene"] + 1) % 8})
    with torch.no_grad():
        loaded.model.classifier[1].bias += 1
    for name, changes in {"changed": {"other_model": loaded}, "turned": {"dataset": turned}}.items():
        _, found = ids(name, **changes)
        assert found["saliency_miou"] == expected["saliency_miou"]
        assert found["shift"] != expected["shift"]


@pytest.mark.slow
def test_other_model_is_added_to_run_and_lost_part_rebuilt(done, start, scenes, tmp_path):
    out = tmp_path / "run"
    start(out, **ALONE)
    added = start(out)
    assert values(added) == values(done)
    assert len(added.cells) == 2
    before = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    assert set(before) == {"records.parquet", "predictions.parquet", "other_predictions.parquet"}
    for path in [*(out / "other_predictions").iterdir(), out / "other_predictions.parquet"]:
        path.unlink()
    again = start(out)
    assert {path.name: path.read_bytes() for path in out.glob("*.parquet")} == before
    assert again.summary["other_model"] == added.summary["other_model"]
    assert start(out).complete
    refused(r"with the other model .*; give --other-model", start, out, **ALONE | {"metrics": ["saliency_iosr"]})
    names = sb.load_classifier(scenes, device="cpu").labels
    refused("a different --other-model", start, out, other_model=small_checkpoint(tmp_path / "again", names[::-1]))


def test_metrics_share_maps_of_both_models(start, resnet, scenes, tmp_path):
    calls = []

    def counted(classifier, images, target):
        if len(images) == 5:  # half of the first batch is passed again, once
            calls.append((classifier.id, len(images)))
        return images.mean(dim=1)

    start(tmp_path / "run", explainers=[counted], metrics=[shift, shift_again], limit=5)
    assert sorted(calls) == sorted([(str(resnet), 5), (str(scenes), 5)])


@pytest.mark.slow
def test_invalid_other_model_settings_are_rejected(start, scenes, tmp_path):
    names = sb.load_classifier(scenes, device="cpu").labels
    for changes, words in (
        ({"other_model": None, "other_label": None}, "shift needs a second classifier; use --other-model"),
        ({"other_label": None}, "--other-model also needs --other-label"),
        ({"other_model": None}, "--other-label also needs --other-model"),
        ({"other_label": "scenery"}, "'scenery'; did you mean scene"),
        ({"other_label": "label"}, "use an --other-model whose classes match those of --other-label label"),
        ({"other_model": "no/where/at/all"}, "no/where/at/all"),
        ({"other_model": small_checkpoint(tmp_path / "large", names, side=64)}, "that prepare images in the same way"),
    ):
        refused(words, start, tmp_path / "run", **changes)
        assert not (tmp_path / "run").exists()


class Failing(torch.nn.Module):
    """Network that, for dark images, raises an error (True), returns NaN (False) or does not fail (None)."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error
        self.linear = torch.nn.Linear(3, 8)

    def forward(self, images):
        dark = (images.mean(dim=(1, 2, 3)) < 0.45) & (self.error is not None)
        if self.error and dark.any():
            raise RuntimeError("too dark")
        return self.linear(images.mean(dim=(2, 3))).masked_fill(dark[:, None], torch.nan)


@pytest.mark.slow
@pytest.mark.parametrize(("error", "words"), [(True, "too dark"), (False, "NaN or infinite")])
def test_other_model_failures_affect_only_its_metrics(error, words, start, tmp_path):
    names, about = registry.load("hub_builders", "shapes-xai"), {"mean": 0, "std": 1, "size": 32, "device": "cpu"}
    other = sb.load_classifier(Failing(error), labels=list(names.SCENES), **about)
    given = {"model": sb.load_classifier(Failing(), labels=list(names.OBJECTS), **about), "other_model": other,
             "metrics": [shift_again, "saliency_miou"], "explainers": "edges", "limit": 24}  # fmt: skip
    done = start(tmp_path / "run", **given)
    rows = {row["image_id"]: row for row in done.records() if row["metric"] == "shift_again"}
    left_out = [row for row in rows.values() if row["value"] is None]
    assert 0 < len(left_out) < 24
    assert all(words in row["reason"] for row in left_out)
    cells = {cell.metric: cell for cell in done.cells}
    assert cells["saliency_miou"].n > cells["shift_again"].n == 24 - len(left_out)
    refused(words, start, tmp_path / "strict", **given, strict=True)


def test_sample_without_other_label_is_left_out_as_expected(start, shapes, tmp_path, done):
    rows, expected = sb.load_dataset(shapes), values(done)
    first, names = next(iter(expected)), rows.features["scene"].names
    texts = [
        names[scene] if name != first else None for name, scene in zip(rows["image_id"], rows["scene"], strict=True)
    ]
    found = start(tmp_path / "run", dataset=rows.remove_columns("scene").add_column("scene", texts))
    assert found.summary["faults"] == {}
    assert [row["reason"] for row in found.records() if row["image_id"] == first] == [
        "not defined for this sample: no scene"
    ]
    assert values(found) == expected | {first: None}
