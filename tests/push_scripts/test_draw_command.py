"""Tests of `saliency-bench draw`: every panel against images and numbers computed in another way."""

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
from commands import refusal, said
from PIL import Image, ImageChops
from transformers import AutoModelForImageClassification, ResNetConfig, ResNetForImageClassification, ViTImageProcessor

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.notebook_views import LINE, MARGIN, SIDE
from saliency_bench.read.finished_run import read_run
from saliency_bench.utils.overlays import eight_bit, overlay
from saliency_bench.utils.seeds import seed_of

EXPLAINERS = ["gradient:reduction=sum", "integrated_gradients:steps=4", "random"]
SHARES = [0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1]
ROW = 3 * MARGIN + SIDE + 2 * LINE


def certain(network, processor, out, number):
    with torch.no_grad():
        network.classifier[1].bias[number] += 30
    network.save_pretrained(out)
    processor.save_pretrained(out)
    return str(out)


@pytest.fixture(scope="module")
def rows(shapes):
    return {row["image_id"]: row for row in sb.load_dataset(str(shapes), split="test")}


@pytest.fixture(scope="module")
def models(shapes, resnet, rows, tmp_path_factory):
    place, first = tmp_path_factory.mktemp("models"), next(iter(rows.values()))
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    own = certain(AutoModelForImageClassification.from_pretrained(resnet), processor, place / "own", first["label"])
    torch.manual_seed(3)
    names = list(registry.load("hub_builders", "shapes-xai").SCENES)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)})  # fmt: skip
    return own, certain(ResNetForImageClassification(config), processor, place / "scenes", first["scene"])


@pytest.fixture(scope="module")
def folder(shapes, models, tmp_path_factory):
    out = tmp_path_factory.mktemp("draw") / "run"
    sb.run(dataset=str(shapes), model=models[0], other_model=models[1], other_label="scene", explainers=EXPLAINERS,
           metrics=["saliency_mcs", "saliency_insertion:reference=mean,steps=8"], batch_size=4, device="cpu",
           progress=False, out=out)  # fmt: skip
    return out


@pytest.fixture(scope="module")
def name(rows):
    return next(iter(rows))


@pytest.fixture(scope="module")
def classifiers(models):
    return [sb.load_classifier(one, device="cpu") for one in models]


def drawn(folder, tmp_path, capsys, what, *words):
    out = tmp_path / "new" / f"{what}.png"
    line = ["draw", str(folder), "--what", what, "--out", str(out), "--device", "cpu", "--json", *words]
    found = json.loads(said(capsys, line))
    assert found["what"] == what
    return Image.open(out).convert("RGB"), {(one["sample"], one["explainer"]): one for one in found["scores"]}


def check_panel(picture, row, column, expected):
    left, top = MARGIN + column * (SIDE + MARGIN), row * ROW + MARGIN
    panel = picture.crop((left, top, left + SIDE, top + SIDE))
    large = expected.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    assert np.abs(np.asarray(ImageChops.difference(panel, large), int)).max() <= 2, (row, column)


def map_of(text, classifier, images, number, sample):
    explainer = sb.load_explainer(text)
    target = sb.targets.one_hot([number], len(classifier.labels))
    return explainer(classifier, images, target, seeds=[seed_of(0, sample, "explain")])[0].numpy()


def over(images, values):
    return overlay(eight_bit(images[0]), values)


def with_border(picture, mask):
    """Draw white where a pixel of the mask has a neighbour outside."""
    pixels, (height, width) = np.asarray(picture).copy(), mask.shape
    for y in range(height):
        for x in range(width):
            around = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
            inner = all(0 <= a < height and 0 <= b < width and mask[a, b] for a, b in around)
            if mask[y, x] and not inner:
                pixels[y, x] = 255
    return Image.fromarray(pixels)


def preprocessed(values):
    positive = np.clip(values.astype(float), 0, None)
    clipped = np.minimum(positive, np.percentile(positive, 99))
    return (clipped - clipped.min()) / (clipped.max() - clipped.min())


@pytest.mark.slow
def test_maps_panel_shows_several_runs_with_scores(folder, rows, classifiers, name, shapes, models, tmp_path, capsys):
    sb.run(dataset=str(shapes), model=models[1], label_column="scene", explainers=["edges", "random"],
           metrics=["saliency_miou", "saliency_pointing_game"], device="cpu", progress=False,
           out=tmp_path / "second")  # fmt: skip
    words = ["--samples", name, "--explainers", "edges", "random"]
    out = tmp_path / "maps.png"
    line = ["draw", str(tmp_path / "second"), str(folder), "--what", "maps", "--out", str(out), "--device", "cpu"]
    shown = json.loads(said(capsys, [*line, "--json", *words]))
    scores = {(row["run"], row["explainer"]): row for row in shown["scores"]}
    picture = Image.open(out).convert("RGB")
    assert picture.width == MARGIN + 4 * (SIDE + MARGIN)
    for row, (classifier, label) in enumerate(zip(classifiers[::-1], ("scene", "label"), strict=True)):
        batch = classifier.prepare([rows[name]])
        top = row * (ROW + LINE)  # three lines of the first run: a name and two scores
        shown = picture.crop((0, top, picture.width, picture.height))
        mask = batch.masks[0].numpy()
        pixels = eight_bit(batch.images[0])
        check_panel(shown, 0, 0, Image.fromarray(pixels))
        check_panel(shown, 0, 1, Image.fromarray(np.where(mask[..., None], pixels, pixels // 4)))
        for column, text in ((2, "edges"), (3, "random")):
            values = map_of(text, classifier, batch.images, rows[name][label], name)
            check_panel(shown, 0, column, with_border(over(batch.images, values), mask))
    for text in ("edges", "random"):
        for metric in ("saliency_miou", "saliency_pointing_game"):
            assert scores["second", text][metric] == pytest.approx(recorded(tmp_path / "second", name, text, metric))
    # The other run does not contain edges.
    assert set(scores["run", "edges"]) == {"run", "sample", "explainer"}
    expected = recorded(folder, name, "random", "saliency_insertion")
    assert scores["run", "random"]["saliency_insertion:reference=mean,steps=8"] == pytest.approx(expected)


@pytest.mark.slow
def test_insertion_panel_matches_literal_insertion(folder, rows, classifiers, name, tmp_path, capsys):
    picture, scores = drawn(folder, tmp_path, capsys, "insertion", "--samples", name)
    assert picture.size == (MARGIN + 9 * (SIDE + MARGIN), len(EXPLAINERS) * ROW)
    classifier = classifiers[0]
    images, label = classifier.prepare([rows[name]]).images, rows[name]["label"]
    for number, text in enumerate(EXPLAINERS):
        values = map_of(text, classifier, images, label, name)
        check_panel(picture, number, 0, over(images, values))
        levels = values.reshape(-1)
        order = sorted(range(values.size), key=lambda place: -levels[place])
        found, checked = scores[name, text], 0
        for column, share in enumerate(SHARES, 1):
            shown = classifier.mean.expand_as(images).clone()
            count = round(share * values.size)
            if 0 < count < values.size and levels[order[count - 1]] == levels[order[count]]:
                continue  # ties are in the order of a permutation
            for place in order[:count]:
                y, x = divmod(place, values.shape[1])
                shown[0, :, y, x] = images[0, :, y, x]
            check_panel(picture, number, column, Image.fromarray(eight_bit(shown[0])))
            p = classifier(shown).softmax(dim=1)[0, label].item()
            assert found[f"top {share:.0%}"] == pytest.approx(p, abs=1e-4)
            checked += 1
        assert checked > 4
        metric = "saliency_insertion:reference=mean,steps=8"
        assert found[metric] == pytest.approx(recorded(folder, name, text, "saliency_insertion"), abs=1e-6)


def recorded(folder, name, explainer, metric):
    run = read_run(folder)
    cell = next(one for one in run.cells if (one.explainer_text, one.metric) == (explainer, metric))
    return run.scores.values[cell.cell_id][run.scores.position[name]]


def test_classes_panel_shows_most_and_least_likely_class(folder, rows, classifiers, name, tmp_path, capsys):
    picture, scores = drawn(folder, tmp_path, capsys, "classes", "--samples", name, "--explainers", *EXPLAINERS[:2])
    assert picture.size == (MARGIN + 3 * (SIDE + MARGIN), 2 * ROW)
    classifier = classifiers[0]
    images = classifier.prepare([rows[name]]).images
    logits = classifier(images)[0].tolist()
    ends = [logits.index(max(logits)), logits.index(min(logits))]
    for column, text in enumerate(EXPLAINERS[:2], 1):
        maps = [map_of(text, classifier, images, one, name) for one in ends]
        for row, values in enumerate(maps):
            check_panel(picture, row, 0, Image.fromarray(eight_bit(images[0])))
            check_panel(picture, row, column, over(images, values))
        expected = np.corrcoef(maps[0].reshape(-1), maps[1].reshape(-1))[0, 1]
        assert scores[name, text]["saliency_class_sensitivity"] == pytest.approx(expected, abs=1e-5)


def test_models_panel_shows_maps_of_both_models(folder, rows, classifiers, name, tmp_path, capsys):
    picture, scores = drawn(folder, tmp_path, capsys, "models", "--samples", name)
    own, other = classifiers
    batch = own.prepare([rows[name]])
    mask = batch.masks[0].numpy()
    for column, text in enumerate(EXPLAINERS, 1):
        maps = [preprocessed(map_of(text, classifier, batch.images, rows[name][label], name))
                for classifier, label in ((own, "label"), (other, "scene"))]  # fmt: skip
        for row, values in enumerate(maps):
            check_panel(picture, row, column, with_border(over(batch.images, values), mask))
        first, second = maps
        expected = first[mask].mean() - second[mask].mean()
        assert scores[name, text]["saliency_mcs"] == pytest.approx(expected, abs=1e-5)
        assert scores[name, text]["saliency_mcs"] == pytest.approx(recorded(folder, name, text, "saliency_mcs"))
        shares = first[mask].sum() / first.sum() - second[mask].sum() / second.sum()
        assert scores[name, text]["saliency_mcr"] == pytest.approx(shares, abs=1e-5)


def test_object_panel_shows_scene_with_and_without_object(folder, rows, classifiers, name, tmp_path, capsys):
    picture, scores = drawn(folder, tmp_path, capsys, "object", "--samples", name)
    other = classifiers[1]
    batch = other.prepare([rows[name]])
    without = other.prepare([{"image": rows[name]["image_without_object"]}]).images
    mask = batch.masks[0].numpy()
    for column, text in enumerate(EXPLAINERS, 1):
        means = []
        for row, images in enumerate((batch.images, without)):
            check_panel(picture, row, 0, Image.fromarray(eight_bit(images[0])))
            values = preprocessed(map_of(text, other, images, rows[name]["scene"], name))
            check_panel(picture, row, column, with_border(over(images, values), mask))
            means.append(values[mask].mean())
        found = scores[name, text]
        assert [found["inside with"], found["inside without"]] == pytest.approx(means, abs=1e-5)
        assert found["saliency_idr"] == (means[0] > means[1]) + (means[0] == means[1]) / 2


def test_draw_uses_first_samples_and_prints_a_table(folder, tmp_path, capsys):
    words = ["draw", str(folder), "--what", "classes", "--out", str(tmp_path / "a.jpg"), "--explainers", "edges"]
    shown = said(capsys, [*words, "--device", "cpu"])
    assert all(f"{one}  edges" in shown for one in read_run(folder).scores.ids[:2])
    assert f"picture: {tmp_path / 'a.jpg'}" in shown
    assert Image.open(tmp_path / "a.jpg").size == (MARGIN + 2 * (SIDE + MARGIN), 4 * ROW)


def test_python_call_matches_the_draw_command(folder, name, tmp_path, capsys):
    """Test that text in a PDF or SVG stays text, and that images keep their pixels."""
    picture, scores = drawn(folder, tmp_path, capsys, "maps", "--samples", name, "--explainers", "random")
    drawing = sb.draw(folder, "maps", samples=[name], explainers=["random"], device="cpu", out=tmp_path / "a.svg")
    assert np.array_equal(np.asarray(drawing.picture), np.asarray(picture))
    assert drawing.scores == list(scores.values())
    svg = (tmp_path / "a.svg").read_text()
    assert f">{name}</text>" in svg
    embedded = [Image.open(io.BytesIO(base64.b64decode(data))) for data in re.findall(r"base64,([^\"]+)", svg)]
    large = drawing.rows[0][0][0].resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    assert len(embedded) == 3
    assert any(np.array_equal(np.asarray(image.convert("RGB")), np.asarray(large)) for image in embedded)
    pdf = drawing.save(tmp_path / "a.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert pdf == drawing.save(tmp_path / "b.pdf").read_bytes()


@pytest.mark.parametrize(("words", "line"), [
    (["--what", "insertion", "--out", "a.txt"], "must end in .pdf"),
    (["--what", "insertion", "--out", "a.png", "--samples", "nobody"], "nobody"),
    (["--what", "insertion", "--out", "a.png", "--explainers", "gradcan"], "gradcam"),
    (["--what", "insertion"], "--out"),
])  # fmt: skip
def test_invalid_draw_arguments_are_rejected(folder, words, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert line in refusal(capsys, ["draw", folder, *words, "--device", "cpu"])
    assert not (tmp_path / "a.png").exists()


@pytest.mark.slow
def test_runs_that_cannot_be_reloaded_are_rejected(shapes, resnet, folder, tmp_path, capsys):
    def says(run, what="insertion"):
        return refusal(capsys, ["draw", run, "--what", what, "--out", tmp_path / "a.png", "--device", "cpu"])

    assert "no run.json" in says(tmp_path)
    settings = {"dataset": str(shapes), "explainers": ["edges"], "metrics": ["saliency_miou"], "limit": 4,
                "device": "cpu", "progress": False}  # fmt: skip
    sb.run(**settings, model=str(resnet), out=tmp_path / "one")
    for what in ("models", "object"):
        assert f"--what {what} requires a second model, but the run in" in says(tmp_path / "one", what)
    rows = sb.load_dataset(str(shapes), split="test")
    sb.run(**settings | {"dataset": rows}, model=str(resnet), out=tmp_path / "two")
    assert "is a Python object" in says(tmp_path / "two")
    content = json.loads((folder / "run.json").read_text())
    (tmp_path / "three").mkdir()
    content["identity"]["classifier"] = "0" * 16
    (tmp_path / "three" / "run.json").write_text(json.dumps(content))
    assert "model has changed since" in says(tmp_path / "three")
