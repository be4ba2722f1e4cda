"""Tests of messages for common mistakes: no value, a failing explainer, an incomplete name, a missing file."""

import re
import shutil

import numpy as np
import pytest
import torch
from refusals import refused

import saliency_bench as sb
from saliency_bench import cli
from saliency_bench.read.report.report_page import report
from saliency_bench.utils import progress

SETTINGS = {"metrics": ["saliency_miou", "saliency_pointing_game"], "limit": 8, "batch_size": 4, "device": "cpu"}


def broken(classifier, images, target):
    raise RuntimeError("no such layer")


def sometimes(classifier, images, target):
    maps = images.mean(dim=1)
    maps[0] = torch.nan
    return maps


@pytest.mark.slow
def test_failing_explainer_is_reported_with_its_error(shapes, resnet, tmp_path, capsys):
    settings = SETTINGS | {"dataset": str(shapes), "model": str(resnet), "progress": False}
    done = sb.run(explainers=["random", broken, sometimes], out=tmp_path / "run", **settings)
    text = str(done)
    (row,) = [line for line in text.splitlines() if line.startswith("broken  ")]
    assert row.count("- (the explainer raised RuntimeError: no such layer)") == 2
    assert re.search(r"^broken: 16 records .*RuntimeError: no such layer$", text, re.MULTILINE)
    assert re.search(r"^sometimes: 4 records .*NaN", text, re.MULTILINE)
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    assert text.partition(done.verdict[0])[0] in capsys.readouterr().out
    assert "RuntimeError: no such layer" in done.report.read_text().split("</table>")[0]


@pytest.mark.parametrize("name", ["ResNet-50", "vit-base-patch16-224"])
def test_model_name_without_owner_gets_a_suggestion(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(rf"did you mean (microsoft|google)/{name.lower()}\?", sb.load_classifier, name)


def test_checkpoint_without_image_processor_is_rejected(resnet, tmp_path):
    folder = shutil.copytree(resnet, tmp_path / "net")
    (folder / "preprocessor_config.json").unlink()
    words = r"net has no preprocessor_config\.json.*save_pretrained.*mean="
    assert len(refused(words, sb.load_classifier, str(folder), device="cpu")) < 400


@pytest.mark.parametrize(("numbers", "words"), [
    ({"mean": (123.675, 116.28, 103.53), "std": (0.2, 0.2, 0.2)}, r"mean .*0 to 255.*0\.485, 0\.456, 0\.406"),
    ({"mean": 0.5, "std": (58.395, 57.12, 57.375)}, r"std .*0 to 255.*0\.229, 0\.224, 0\.225"),
    ({"mean": 127.5, "std": 127.5}, r"mean .*0\.5 instead of 127\.5"),
])  # fmt: skip
def test_normalisation_for_byte_values_is_rejected(numbers, words):
    refused(words, sb.load_classifier, torch.nn.Identity(), **numbers)


def test_normalisation_for_floats_is_accepted():
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    for numbers in ({"mean": 0, "std": 1}, {"mean": 1, "std": 1 / 255}, {"mean": -1, "std": 2.0}):
        assert sb.load_classifier(network, device="cpu", **numbers).id == "module:Sequential"


def test_progress_in_a_file_prints_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 1000)
    with progress.bar(total=50, desc="explain") as advance:
        for number in range(50):
            advance.set_postfix_str(f"explainer {number}")
            advance.update()
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("explain:   0%")
    assert "50/50" in last
    monkeypatch.setattr(progress, "EVERY", 0)
    assert list(progress.bar(range(3), desc="all", leave=False)) == [0, 1, 2]
    text = capsys.readouterr().err
    assert "\r" not in text
    assert "3/3" in text.splitlines()[-1]
    with progress.bar(total=1, shown=False) as advance:
        advance.update()
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_shows_a_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for _ in progress.bar(range(3), desc="all"):
        pass
    assert "\r" in capsys.readouterr().err


def test_single_logit_checkpoint_works_in_all_commands(shapes, tmp_path, capsys):
    """Test a network that predicts the class against its only logit.

    A picture, a run and a template explain this class.
    """
    from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

    rows, model = sb.load_dataset(str(shapes)), tmp_path / "model"
    name = rows.features["label"].names[0]
    config = ResNetConfig(embedding_size=4, hidden_sizes=[8], depths=[1], num_labels=1, id2label={0: name})
    network = ResNetForImageClassification(config).eval()
    network.classifier[1].bias.data[:] = -10  # the network predicts the class against the logit for every image
    network.save_pretrained(model)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(model)
    rows[0]["image"].save(tmp_path / "picture.png")
    settings = ["--activation", "sigmoid", "--device", "cpu"]
    command = ["explain", tmp_path / "picture.png", "--explainers", "gradient", "--out", tmp_path / "e.png"]
    assert cli.main([*map(str, command), "--model", str(model), *settings]) == 0
    assert f"not {name} (100.0%)" in capsys.readouterr().out
    wanted = ["--target", "predicted", "--limit", "6"]
    command = ["run", "--dataset", shapes, "--explainers", "gradient", "--metrics", "saliency_roae:exposure=0.0"]
    command += ["--out", tmp_path / "run"]
    assert cli.main([*map(str, command), "--model", str(model), *settings, *wanted]) == 0
    done = sb.load_run(tmp_path / "run")
    assert {(row["target"], row["prediction"]) for row in done.records()} == {(f"not {name}", f"not {name}")}
    other = [row["label"] != name for row in done.records() if row["part"] is None]
    assert [row["value"] for row in done.records() if row["part"] is None] == other
    assert done.summary["model"]["accuracy"]["value"] == np.mean(other)
    command = ["template", shapes, model, "--out", tmp_path / "template", *settings, *wanted]
    assert cli.main(list(map(str, command))) == 0
    assert (tmp_path / "template/samples.csv").read_text().count(f",not {name},0,") == len(other)
    assert 'activation="sigmoid"' in (tmp_path / "template/example.py").read_text()


def test_page_describes_the_classifier(shapes, tmp_path):
    rows = sb.load_dataset(str(shapes))
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 9))
    model = sb.load_classifier(network, device="cpu", mean=0, std=1)
    settings = SETTINGS | {"dataset": rows, "explainers": ["random"], "progress": False, "target": "predicted"}
    without = sb.run(model=model, out=tmp_path / "without", **settings)
    page = without.report.read_text()
    assert "softmax assumed" in page
    assert without.summary["model"]["no_accuracy"] in page.replace("&#39;", "'").replace("&#34;", '"')
    names = rows.features["label"].names
    with_map = sb.run(model=model, out=tmp_path / "with", label_map={n: i for i, n in enumerate(names)}, **settings)
    five = with_map.summary["model"]["top5"]["value"]
    assert f"top-5 {100 * five:.1f}" in with_map.report.read_text()


def test_merged_page_names_metric_with_fewer_samples(shapes, resnet, tmp_path):
    settings = SETTINGS | {"dataset": str(shapes), "model": str(resnet), "progress": False}
    one = sb.run(explainers=["random"], out=tmp_path / "one", **settings | {"metrics": ["saliency_miou"]})
    two = sb.run(explainers=["centre"], out=tmp_path / "two", **settings | {"metrics": ["saliency_iosr"], "limit": 4})
    page = report([one.folder, two.folder], tmp_path / "both.html").read_text().replace("<wbr>", "")
    assert "softmax assumed" not in page
    (line,) = re.findall(r"<li>(saliency_iosr: n = 4\b.*)</li>", page)
    assert "4 of the 8 samples" in line
    (line,) = re.findall(r"<li>(saliency_miou: n = 8\b.*)</li>", page)
    assert "of the" not in line
