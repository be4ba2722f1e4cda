"""Tests of the command `annotate` without its page: import, report, export and invalid arguments."""

import json

import numpy as np
import pytest
from commands import said
from pages import dataset

from saliency_bench.cli import main
from saliency_bench.studies.answer_store import Store
from saliency_bench.utils.pictures import png, values


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "noise"
    dataset(12, masks=2).save_to_disk(folder)
    return folder


@pytest.fixture
def line(noise, tmp_path):
    return ["annotate", "--dataset", str(noise), "--name", "study", "--store", str(tmp_path / "study.db")]


def masks(folder, columns):
    folder.mkdir()
    for index in range(12):
        mask = np.zeros((60, 80), bool)
        mask[:, columns] = True
        (folder / f"image-{index:03d}.png").write_bytes(png(mask))
    return str(folder)


def test_masks_of_two_people_are_reported_and_exported(line, tmp_path, capsys):
    settings = ["--annotators", "2", "--honeypots", "1"]
    first = masks(tmp_path / "a", slice(0, 20))
    second = masks(tmp_path / "b", slice(10, 20))
    assert main([*line, *settings, "--import", first, "--person", "ada"]) == 0
    assert main([*line, "--import", second, "--person", "bob", "--json"]) == 0
    capsys.readouterr()
    report = json.loads(said(capsys, [*line, "--report", "--json"]))
    assert (report["images"], report["images complete"], report["people"]) == (11, 11, 2)
    assert report["answers"] == {"mask": 24}
    iou = report["agreement"]["IoU"]
    assert (iou["value"], iou["n"]) == (0.5, 11)
    assert iou["low"] < 0.5 < iou["high"]
    assert report["agreement"]["Dice"]["value"] == pytest.approx(2 / 3)
    # the known mask is 20 x 20 pixels from column 5 and row 10: 300 of 1200 + 400 - 300, and 200 of 600 + 400 - 200
    scores = {person: one["value"] for person, one in report["honeypots"].items()}
    assert scores == pytest.approx({"ada": 15 * 20 / (1200 + 400 - 300), "bob": 10 * 20 / (600 + 400 - 200)})
    shown = said(capsys, [*line, "--report"])
    assert "agreement: IoU" in shown
    assert "0.500 (" in shown
    assert "masks of 11 images" in said(capsys, [*line, "--export", str(tmp_path / "out")])
    agreed = values(tmp_path / "out/consensus" / sorted((tmp_path / "out/consensus").iterdir())[0].name)
    assert (agreed > 0).sum() == 60 * 20, "one of two people is half"


@pytest.mark.parametrize(("options", "words"), [
    (["--import", "x"], "--person NAME require each other"),
    (["--person", "x"], "--person NAME require each other"),
    (["--report"], "there is no store"),
    (["--annotators", "0"], "--annotators must be at least 1"),
    (["--honeypots", "3"], "but the dataset has 2 such"),
    (["--import", "nowhere", "--person", "ada"], "nowhere is not a folder"),
    (["--practice-iou", "7"], "--practice-iou must be a number from 0 to 1"),
    (["--grow"], "there is no store"), (["--host", "256.0.0.1"], "choose a different port"),
    (["--lease", "0"], "--lease must be a number of minutes"),
    (["--invite", "-1"], "--invite must be a number of people"),
    (["--completion-url", "javascript:alert(1)"], "--completion-url must begin with https:"),
    (["--label", "dog"], "--label NAME selects imported regions"),
    (["--segment", "one.onnx"], "--segment got 1 files; pass two ONNX files (the encoder and the decoder), or no file"),
    (["--segment", "one.onnx", "two.onnx"], "there is no file one.onnx"),
])  # fmt: skip
def test_invalid_options_give_one_line_and_leave_no_store(line, tmp_path, options, words, capsys):
    assert words in said(capsys, [*line, *options], 2).splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_study_matches_any_spelling_of_its_dataset_path(noise, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(noise.parent)
    store, masks_of_ada = ["--store", str(tmp_path / "study.db")], masks(tmp_path / "a", slice(0, 20))
    imported = ["--import", masks_of_ada, "--person", "ada", "--protocol", "p0", "--annotators", "4"]
    assert main(["annotate", "--dataset", "./noise", *store, *imported]) == 0
    settings = Store(tmp_path / "study.db").find().configuration["settings"]
    assert (settings["annotators"], settings["reviewers"]) == (4, 2), "explicit options override the protocol"
    for written in ("noise", "noise/", str(noise)):
        capsys.readouterr()
        assert main(["annotate", "--dataset", written, *store, "--report", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["answers"] == {"mask": 12}
    dataset(3).save_to_disk(tmp_path / "others")
    for options in (["--dataset", str(tmp_path / "others")], ["--dataset", "noise", "--name", "another"]):
        message = said(capsys, ["annotate", *options, *store, "--report"], 2).splitlines()[-1]
        assert message.endswith("study.db contains no such study; available: ./noise, test (annotate)")
    assert len(Store(tmp_path / "study.db").all()) == 1


@pytest.mark.parametrize(("options", "words"), [
    (["--person", "bob"], "has no masks of bob; set --person to one of: ada"),
    (["--person", "../ada"], "--person must consist of 1 to 100 letters"),
    (["--person", "ada", "--format", "coco"], "is a folder without annotations.json"),
])  # fmt: skip
def test_rejected_import_leaves_no_store(line, tmp_path, options, words, capsys):
    (tmp_path / "out/masks").mkdir(parents=True)
    masks(tmp_path / "out/masks/ada", slice(0, 20))
    assert words in said(capsys, [*line, "--import", str(tmp_path / "out"), *options], 2)
    assert list(tmp_path.glob("study.db*")) == []
    assert "masks of 12 images" in said(capsys, [*line, "--import", str(tmp_path / "out"), "--person", "ada"])


def test_report_escapes_skip_reasons(line, tmp_path, capsys):
    assert main([*line, "--import", masks(tmp_path / "a", slice(0, 20)), "--person", "ada"]) == 0
    study = Store(tmp_path / "study.db").get("study")
    reason = "blurred\nagreement: IoU  1.000\r\x1b[2K\u202eabc"
    study.record("bob", "image-000", "a request", {"kind": "skip", "reason": reason})
    capsys.readouterr()
    rows = said(capsys, [*line, "--report"]).splitlines()
    assert sum("IoU  1.000" in row for row in rows) == 0
    assert [row for row in rows if row.startswith("skipped: blurred agreement: IoU 1.000 \\x1b[2K\\u202eabc ")]


def test_import_summary_accounts_for_every_region(line, tmp_path, capsys):
    def box(label, left):
        return f'<box label="{label}" xtl="{left}" ytl="10" xbr="{left + 20}" ybr="30"/>'

    image = '<image id="{0}" name="images/image-00{0}.png" width="80" height="60">{1}</image>'
    dogs = [box("dog", 5) + box("shadow", 40), box("dog", 5), '<mask label="dog" left="0" top="0" width="2" height="2" '
            'rle="0, 3"/>', '<points label="dog" points="1,2"/>']  # fmt: skip
    images = "".join(image.format(2 * number + 1, content) for number, content in enumerate(dogs))
    (tmp_path / "a.xml").write_text(f"<annotations>{images}{image.format(99, box('dog', 5))}</annotations>")
    options = ["--import", str(tmp_path / "a.xml"), "--format", "cvat", "--person"]
    assert main([*line, *options, "ada"]) == 0
    told = capsys.readouterr()
    assert "image images/image-005.png is left out: the run lengths do not match a mask of 2 x 2 pixels" in told.err
    assert (
        "the dataset contains no image for 1 name, such as images/image-0099.png; "
        "ids in the dataset look like image-000" in told.err
    )
    first, second = told.out.splitlines()
    assert first == "masks of 2 images are stored for ada"
    assert second == (
        "6 regions read: 2 drawn, 4 skipped (1 of type points, which has no area, "
        "1 for an image that is not in the dataset, "
        "1 labelled shadow, 1 of an image that was left out)"
    )
    facts = json.loads(said(capsys, [*line, *options, "bob", "--label", "shadow", "--json"]))
    assert facts["images"] == 1
    assert facts["regions"]["read"] == facts["regions"]["drawn"] + sum(facts["regions"]["skipped"].values()) == 6
    study = Store(tmp_path / "study.db").get("study")
    masks = {(one.person, one.unit): one.pixels for one in study.answers()}
    dog, shadow = np.zeros((2, 60, 80), bool)
    dog[10:30, 5:25] = shadow[10:30, 40:60] = True
    np.testing.assert_array_equal(masks["ada", "image-001"], dog)
    np.testing.assert_array_equal(masks["bob", "image-001"], shadow)
