"""A second classifier of the same images: its predictions, its maps, its part of the ids, its accuracy."""

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.cli import main
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.errors import UserError

LIMIT = 12
GIVEN = {"limit": LIMIT, "batch_size": 5, "device": "cpu", "progress": False}


@sb.metric(higher_is_better=True)
def shift(maps, images, other, explain):
    """Mean of the run's map minus that of the other model for its label, and a hundred where that is right."""
    theirs = explain(images, other.target, classifier=other.classifier)
    right = other.labels[np.arange(len(images)), other.logits.argmax(dim=1).numpy()]
    return maps.mean(axis=(1, 2)) - theirs.mean(axis=(1, 2)) + 100 * right


@sb.metric(higher_is_better=True)
def shift_again(images, other, explain):
    return explain(images, other.target, classifier=other.classifier).mean(axis=(1, 2))


def tiny(path, names, side=32):
    torch.manual_seed(3)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
    )  # fmt: skip
    ResNetForImageClassification(config).save_pretrained(path)
    ViTImageProcessor(size={"height": side, "width": side}).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("scenes") / "scenes", list(registry.load("hub_builders", "shapes-xai").SCENES))


def settings(shapes, resnet, scenes, **changes):
    return {"dataset": shapes, "model": resnet, "explainers": "gradient", "metrics": [shift], "other_model": scenes,
            "other_label": "scene"} | GIVEN | changes  # fmt: skip


@pytest.fixture(scope="module")
def done(shapes, resnet, scenes, tmp_path_factory):
    return sb.run(**settings(shapes, resnet, scenes), out=tmp_path_factory.mktemp("other") / "run")


def values(done, metric="shift"):
    return {row["image_id"]: row["value"] for row in done.records() if row["metric"] == metric}


def batch_of(shapes, classifier, ids):
    rows = sb.load_dataset(shapes)
    rows = rows.select([rows["image_id"].index(name) for name in ids])
    return classifier.prepare(rows[:]), rows["scene"]


def test_its_maps_are_those_of_the_explainer_for_its_own_label(done, shapes, resnet, scenes):
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


def test_outside_a_run_it_is_given_with_its_labels(done, shapes, resnet, scenes):
    found = values(done)
    own = sb.load_classifier(resnet, device="cpu")
    batch, scene = batch_of(shapes, own, found)
    given = {"target": batch.labels, "image_ids": batch.ids, "batch_size": 5}
    scores = score_samples(shift, batch.images, own, "gradient", other=scenes, other_labels=scene, **given)
    np.testing.assert_allclose(scores, list(found.values()), rtol=1e-6)
    for wrong, words in (
        ({}, "shift needs a second classifier"),
        ({"other": scenes}, "other_labels"),
        ({"other": scenes, "other_labels": scene[1:]}, "per image, for 12 images"),
    ):
        with pytest.raises(UserError, match=words):
            score_samples(shift, batch.images, own, "gradient", **given, **wrong)
    with pytest.raises(UserError, match="saliency_insertion needs no second classifier"):
        score_samples("saliency_insertion", batch.images, own, "gradient", other=scenes, other_labels=scene)


def test_its_predictions_are_stored_as_those_of_the_model(done, shapes, scenes):
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


def test_its_accuracy_stands_beside_the_models(done, shapes, resnet, scenes, tmp_path, capsys):
    correct = pq.read_table(done.folder / "other_predictions.parquet")["correct"].to_pylist()
    other, own = done.summary["other_model"], done.summary["model"]
    assert other["accuracy"]["value"] == pytest.approx(np.mean(correct))
    assert set(other) == {*own, "label_column"}
    assert other["digest"] == sb.load_classifier(scenes, device="cpu").digest
    assert f"other model (scene) accuracy {np.mean(correct):.1%}" in str(done)
    page = done.report.read_text()
    assert re.search(rf"Other classifier, accuracy</dt><dd>{100 * np.mean(correct):.1f}", page)
    assert "label: scene" in page
    assert sb.run(**settings(shapes, resnet, None, metrics="saliency_miou", other_label=None),
                  out=tmp_path / "alone").summary["other_model"] is None  # fmt: skip


def test_the_command_takes_it_and_the_summary_repeats_it(shapes, resnet, scenes, tmp_path, capsys):
    words = [
        "run",
        "--dataset",
        shapes,
        "--model",
        resnet,
        "--explainers",
        "centre",
        "--metrics",
        "saliency_miou",
        "--other-model",
        scenes,
        "--other-label",
        "scene",
        "--limit",
        "4",
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
    ]
    assert main([str(word) for word in words]) == 0
    assert "other model (scene) accuracy" in capsys.readouterr().out
    command = json.loads((tmp_path / "run" / "summary.json").read_text())["command"]
    assert f"--other-model {scenes} --other-label scene" in command


@pytest.mark.slow
def test_objects_may_be_given_and_count_by_their_content(done, shapes, resnet, scenes, tmp_path):
    loaded = sb.load_classifier(scenes, device="cpu")
    same = sb.run(**settings(shapes, resnet, loaded), out=tmp_path / "same")
    assert same.cells[0].cell_id == done.cells[0].cell_id
    assert values(same) == values(done)
    assert "other_model=" in same.summary["command"]
    with torch.no_grad():
        loaded.model.classifier[1].bias += 1
    changed = sb.run(**settings(shapes, resnet, loaded), out=tmp_path / "changed")
    assert changed.cells[0].cell_id != done.cells[0].cell_id


@pytest.mark.slow
def test_it_is_part_of_the_ids_of_metrics_that_ask_for_it_alone(done, shapes, resnet, scenes, tmp_path):
    both = sb.run(**settings(shapes, resnet, scenes, metrics=["saliency_miou", shift]), out=tmp_path / "both")
    alone = sb.run(
        **settings(shapes, resnet, None, metrics=["saliency_miou"], other_label=None), out=tmp_path / "alone"
    )
    ids = {cell.metric: cell.cell_id for cell in both.cells}
    assert ids == {"saliency_miou": alone.cells[0].cell_id, "shift": done.cells[0].cell_id}
    rows = sb.load_dataset(shapes)
    turned = rows.map(lambda row: {"scene": (row["scene"] + 1) % 8})
    other = sb.run(**settings(turned, resnet, scenes, metrics=["saliency_miou", shift]), out=tmp_path / "turned")
    turned_ids = {cell.metric: cell.cell_id for cell in other.cells}
    assert turned_ids["saliency_miou"] == ids["saliency_miou"]
    assert turned_ids["shift"] != ids["shift"]


@pytest.mark.slow
def test_it_can_be_added_to_a_run_and_then_belongs_to_it(done, shapes, resnet, scenes, tmp_path):
    out = tmp_path / "run"
    sb.run(**settings(shapes, resnet, None, metrics=["saliency_miou"], other_label=None), out=out)
    added = sb.run(**settings(shapes, resnet, scenes), out=out)
    assert values(added) == values(done)
    assert len(added.cells) == 2
    assert sb.run(**settings(shapes, resnet, scenes), out=out).complete
    with pytest.raises(UserError, match=r"with the other model .*; give --other-model"):
        sb.run(**settings(shapes, resnet, None, metrics=["saliency_iosr"], other_label=None), out=out)
    names = sb.load_classifier(scenes, device="cpu").labels
    with pytest.raises(UserError, match="another other model"):
        sb.run(**settings(shapes, resnet, tiny(tmp_path / "again", names[::-1])), out=out)


@pytest.mark.slow
def test_a_lost_part_of_its_predictions_is_made_again(done, shapes, resnet, scenes, tmp_path):
    out = tmp_path / "run"
    first = sb.run(**settings(shapes, resnet, scenes), out=out)
    before = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    assert set(before) == {"records.parquet", "predictions.parquet", "other_predictions.parquet"}
    for path in [*(out / "other_predictions").iterdir(), out / "other_predictions.parquet"]:
        path.unlink()
    again = sb.run(**settings(shapes, resnet, scenes), out=out)
    assert {path.name: path.read_bytes() for path in out.glob("*.parquet")} == before
    assert again.summary["other_model"] == first.summary["other_model"]


def test_metrics_share_the_maps_of_the_images_as_they_are(shapes, resnet, scenes, tmp_path):
    calls = []

    def counted(classifier, images, target):
        if len(images) == 5:  # once, half of the first chunk comes again
            calls.append((classifier.id, len(images)))
        return images.mean(dim=1)

    sb.run(**settings(shapes, resnet, scenes, explainers=[counted], metrics=[shift, shift_again], limit=5),
           out=tmp_path / "run")  # fmt: skip
    assert sorted(calls) == sorted([(str(resnet), 5), (str(scenes), 5)])


@pytest.mark.slow
def test_what_does_not_fit_is_refused_in_one_line(shapes, resnet, scenes, tmp_path):
    names = sb.load_classifier(scenes, device="cpu").labels
    for changes, words in (
        ({"other_model": None, "other_label": None}, "shift compares with a second classifier; give --other-model"),
        ({"other_label": None}, "--other-model goes with --other-label"),
        ({"other_model": None}, "--other-label goes with --other-model"),
        ({"other_label": "scenery"}, "'scenery'; did you mean scene"),
        ({"other_label": "label"}, "classes of --other-model must be those of --other-label label"),
        ({"other_model": "no/where/at/all"}, "no/where/at/all"),
        ({"other_model": tiny(tmp_path / "large", names, side=64)}, "prepare images alike"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            sb.run(**settings(shapes, resnet, scenes, **changes), out=tmp_path / "run")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 8)

    def forward(self, images):
        return self.linear(images.mean(dim=(2, 3)))


class Failing(torch.nn.Module):
    """Raises for dark images where `error` says so, else gives no numbers for them."""

    def __init__(self, error):
        super().__init__()
        self.error = error
        self.linear = torch.nn.Linear(3, 8)

    def forward(self, images):
        dark = images.mean(dim=(1, 2, 3)) < 0.45
        if self.error and dark.any():
            raise RuntimeError("too dark")
        return self.linear(images.mean(dim=(2, 3))).masked_fill(dark[:, None], torch.nan)


@pytest.mark.slow
@pytest.mark.parametrize(("error", "words"), [(True, "too dark"), (False, "NaN or infinite")])
def test_samples_that_it_cannot_classify_are_left_out_of_its_metrics_alone(error, words, shapes, resnet, tmp_path):
    names = list(registry.load("hub_builders", "shapes-xai").SCENES)
    own = sb.load_classifier(resnet, device="cpu")
    other = sb.load_classifier(Failing(error), mean=0, std=1, labels=names, size=32, device="cpu")
    model = sb.load_classifier(Plain(), mean=0, std=1, labels=own.labels, size=32, device="cpu")
    given = settings(shapes, model, other, metrics=[shift_again, "saliency_miou"], explainers="edges", limit=24)
    done = sb.run(**given, out=tmp_path / "run")
    rows = {row["image_id"]: row for row in done.records() if row["metric"] == "shift_again"}
    left_out = [row for row in rows.values() if row["value"] is None]
    assert 0 < len(left_out) < 24
    assert all(words in row["reason"] for row in left_out)
    cells = {cell.metric: cell for cell in done.cells}
    assert cells["saliency_miou"].n > cells["shift_again"].n == 24 - len(left_out)
    with pytest.raises(UserError, match=words):
        sb.run(**given, out=tmp_path / "strict", strict=True)


def test_a_sample_without_its_label_is_left_out_as_expected(shapes, resnet, scenes, tmp_path, done):
    rows = sb.load_dataset(shapes)
    first = next(iter(values(done)))
    names = rows.features["scene"].names
    texts = [
        None if name == first else names[scene] for name, scene in zip(rows["image_id"], rows["scene"], strict=True)
    ]
    rows = rows.remove_columns("scene").add_column("scene", texts)
    found = sb.run(**settings(rows, resnet, scenes), out=tmp_path / "run")
    records = {row["image_id"]: row for row in found.records()}
    assert records[first]["reason"] == "not defined for this sample: no scene"
    assert found.summary["faults"] == {}
    assert {name: row["value"] for name, row in records.items() if name != first} == {
        name: value for name, value in values(done).items() if name != first
    }
