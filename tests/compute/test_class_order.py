"""Test that a run warns about an accuracy below chance if the classes are in a different order from the logits."""

import datasets
import numpy as np
from PIL import Image
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench.read.accuracy import below_chance

COLOURS = ["red", "green", "blue"]


class Brightest(nn.Module):
    """Network whose logits are the means of red, green and blue."""

    def forward(self, images):
        return images.mean(dim=(2, 3))


def pictures(count):
    labels = [number % 3 for number in range(count)]
    images = [Image.fromarray(np.full((8, 8, 3), 200 * np.eye(3, dtype=np.uint8)[label])) for label in labels]
    rows = datasets.Dataset.from_dict({"image": images, "image_id": list(map(str, range(count))), "label": labels})
    rows = rows.cast_column("image", datasets.Image())
    return rows.cast_column("label", datasets.ClassLabel(names=COLOURS))


def loaded(labels, **options):
    return sb.load_classifier(Brightest(), mean=0, std=1, labels=labels, **options)


def coloured(out, model, count=24):
    return sb.run(dataset=pictures(count), model=model, explainers=["centre"], metrics=["saliency_insertion:steps=2"],
                  split="train", device="cpu", progress=False, out=out)  # fmt: skip


def test_run_warns_about_labels_in_wrong_order(tmp_path, capsys):
    run = coloured(tmp_path / "run", loaded(["green", "blue", "red"]))
    assert run.summary["model"]["accuracy"]["value"] == 0
    message = "accuracy 0.0% is below chance (33.3% for 3 classes), so the classes are probably in the wrong order"
    assert capsys.readouterr().err.count(f"saliency-bench: {message}") == 1
    assert str(run).count(message) == 1
    assert message in run._repr_html_()
    assert message in run.report.read_text()
    assert "labels=[...]" in run.doubt
    assert "--label-map" in run.doubt


def _model(low, high, n=100, **others):
    about = {"accuracy": {"value": (low + high) / 2, "low": low, "high": high, "n": n, "clusters": n}, "classes": 10}
    return about | {"accuracy_kind": "accuracy"} | others


def test_below_chance_needs_whole_interval_below_chance():
    assert below_chance(_model(0.01, 0.0999))
    assert not below_chance(_model(0.01, 0.1001))
    assert not below_chance(_model(0.01, 0.05, n=19))
    assert not below_chance(_model(0.01, 0.05, accuracy_kind="mean average precision"))
    assert not below_chance(_model(0.01, 0.05, classes=1))
    assert not below_chance(_model(0.01, 0.05, classes=None))  # as in a summary of an earlier version


def test_model_with_correct_order_keeps_given_name(tmp_path, capsys):
    model = loaded(COLOURS, name="three colours")
    run = coloured(tmp_path / "run", model, 20)
    assert run.summary["model"]["accuracy"]["value"] == 1
    assert "below chance" not in run.doubt + capsys.readouterr().err + run.report.read_text()
    assert run.summary["model"]["id"] == "module:three colours"
    assert "<em>three colours</em>" in run.report.read_text()
    assert model.digest == loaded(COLOURS).digest
    refused("is not valid; use at most 100", loaded, COLOURS, name="a/b")
