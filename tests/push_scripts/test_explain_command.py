"""Tests of `saliency-bench explain`: a strip of maps of one image."""

import json
import os

import numpy as np
import pytest
from commands import refusal
from PIL import Image, ImageChops

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.notebook_views import LINE, MARGIN, SIDE, strip


@pytest.fixture
def photo(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def command(photo, model, out, *words):
    return main(["explain", str(photo), "--model", str(model), "--out", str(out), "--device", "cpu", *words])


def is_panel(drawn, seen, column, top):
    """Return whether the panel in this column is the overlay of the explanation."""
    left = MARGIN + column * (SIDE + MARGIN)
    expected = seen.overlay.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return ImageChops.difference(drawn.crop((left, top, left + SIDE, top + SIDE)), expected).getbbox() is None


def test_strip_shows_picture_and_maps_side_by_side(photo, resnet, tmp_path, capsys):
    names = ["gradcam", "integrated_gradients:steps=4", "rise:masks=20"]
    assert command(photo, resnet, tmp_path / "strip.png", "--explainers", *names) == 0
    drawn = Image.open(tmp_path / "strip.png").convert("RGB")
    assert drawn.size == (MARGIN + 4 * (SIDE + MARGIN), 3 * MARGIN + SIDE + 3 * LINE)  # with the reliability of rise
    classifier = sb.load_classifier(resnet, device="cpu")
    for number, name in enumerate(names, 1):
        seen = sb.explain(photo, classifier, name)
        assert is_panel(drawn, seen, number, MARGIN), name
    shown = capsys.readouterr().out
    assert f"{seen.prediction} ({seen.probability:.1%})" in shown
    assert all(f"  {name} of {seen.prediction}" in shown for name in names)


def test_strip_has_a_row_per_target_and_contrast(photo, resnet, tmp_path, capsys):
    """Test a target alone and against each of the other targets. The targets are classes or groups."""
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"round": ["disc", "ring"]}))
    words = ["--explainers", "gradcam", "gradient", "--target", "ring", "round", "--against", "disc", "round"]
    assert command(photo, resnet, tmp_path / "rows.png", *words, "--groups", str(groups), "--json") == 0
    told = [item["target"] for item in json.loads(capsys.readouterr().out)["maps"]]
    questions = [("ring", None), ("ring", "disc"), ("ring", "round"), ("round", None), ("round", "disc")]
    drawn = Image.open(tmp_path / "rows.png").convert("RGB")
    classifier, bottom = sb.load_classifier(resnet, device="cpu"), MARGIN
    for number, (target, against) in enumerate(questions):
        row = [sb.explain(photo, classifier, name, target=target, against=against, groups=groups)
               for name in ("gradcam", "gradient")]  # fmt: skip
        assert told[2 * number : 2 * number + 2] == [one.target for one in row]
        for place, seen in enumerate(row, 1):
            assert is_panel(drawn, seen, place, bottom), (target, against, place)
        bottom += SIDE + 3 * MARGIN + LINE * max(2, *(len(one.caption) for one in row))
    assert drawn.height == bottom - MARGIN


def test_long_caption_stays_below_its_panel():
    picture = Image.new("RGB", (32, 32), "red")
    short, long = (strip([(picture, [word]), (picture, ["gradcam"])]) for word in ("a", "a very long name " * 20))
    right = (MARGIN + SIDE, 0, *short.size)
    assert ImageChops.difference(short.crop(right), long.crop(right)).getbbox() is None
    assert ImageChops.difference(short, long).getbbox() is not None
    assert strip([(Image.new("RGB", (8, 300)), ["tall"])]).size[0] == 2 * MARGIN + SIDE


def test_explain_accepts_target_and_prints_json(photo, resnet, tmp_path, capsys):
    out = tmp_path / "new" / "strip.jpg"
    assert command(photo, resnet, out, "--target", "ring", "--json") == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert "using gradcam, because" in shown.err
    assert [(item["explainer"], item["target"]) for item in told["maps"]] == [("gradcam", "ring")]
    assert told["maps"][0]["why"]
    seen = sb.explain(photo, str(resnet), "gradcam", device="cpu")
    assert (told["prediction"], told["probability"]) == (seen.prediction, pytest.approx(seen.probability))
    with Image.open(out) as drawn:
        assert drawn.format == "JPEG"


@pytest.mark.parametrize(("words", "message"), [
    (["gone.png"], "no image 'gone.png'"),
    (["photo.png", "--out", "strip.gif"], "strip.gif must end in .png"),
    (["photo.png", "--out", "photo.png"], "is the input image"),
    (["photo.png", "--explainers", "gradcan"], "did you mean gradcam"),
    (["photo.png", "--model", "./nothing"], "no folder './nothing'"),
    (["photo.png", "--target", "rong"], "did you mean ring"),
    (["notes.png"], "notes.png: the image cannot be read"), (["pipe.png"], "no image 'pipe.png'"),
])  # fmt: skip
def test_invalid_explain_arguments_are_rejected(words, message, photo, resnet, monkeypatch, capsys):
    monkeypatch.chdir(photo.parent)
    (photo.parent / "notes.png").write_text("no picture")
    os.mkfifo(photo.parent / "pipe.png")
    before = sorted(photo.parent.iterdir())
    options = {"--model": str(resnet), "--out": "strip.png", "--device": "cpu"}
    line = [*words, *(part for name, value in options.items() if name not in words for part in (name, value))]
    assert message in refusal(capsys, ["explain", *line])
    assert sorted(photo.parent.iterdir()) == before
