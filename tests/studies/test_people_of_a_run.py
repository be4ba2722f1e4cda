"""Tests of studies on the maps of a real run, with the commands that users type."""

import json
import re
import shutil
from functools import reduce

import numpy as np
import pytest
import torch
from commands import said
from pages import Command
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.data.building import build
from saliency_bench.studies.run_images import HUMAN, run_images

from .conftest import EXPLAINERS


def test_frames_and_masks_match_input_of_network_and_metrics(done, shapes, resnet):
    images = run_images(done, ["gradient"], with_masks=True)
    rows = sb.load_dataset(str(shapes), split="train")
    by_id = {str(row["image_id"]): row for row in rows}
    classifier = sb.load_classifier(str(resnet), device="cpu")
    assert len(images.ids) == 12
    assert set(images.masks) == set(images.ids)
    for one in images.ids:
        row = by_id[one]
        batch = classifier.prepare([row])
        frame, mask = batch.images[0].permute(1, 2, 0).numpy(), batch.masks[0].numpy()
        np.testing.assert_allclose(images.frame(one) / 255, frame, atol=1 / 255)
        assert images.labels[one] == rows.features["label"].int2str(row["label"])
        assert images.map(one, "gradient").shape == frame.shape[:2]
        np.testing.assert_array_equal(images.masks[one], mask)
        np.testing.assert_array_equal(images.map(one, HUMAN), mask.astype(np.float32))
    assert run_images(done, ["gradient"]).masks is None


def test_frames_are_cropped_and_labelled_like_the_run(shapes, tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    torch.manual_seed(0)
    rows = sb.load_dataset(str(shapes), split="train")
    names = list(rows.features["label"].names)
    model = sb.load_classifier(module, mean=0.5, std=0.5, labels=names, device="cpu", size=24)
    made = sb.run(dataset=str(shapes), model=model, split="train", limit=6, device="cpu", progress=False, out=tmp_path,
                  explainers=["edges", "random"], metrics=["saliency_kae"], keep_maps=True,
                  target="predicted")  # fmt: skip
    images, records = run_images(tmp_path), made.records()
    assert images.explained == dict(zip(records["image_id"], records["target"], strict=True)) != images.labels
    assert set(images.explained.values()) <= set(names)
    numbers = {str(one): index for index, one in enumerate(rows["image_id"])}
    for one in images.ids:
        expected = model.prepare([rows[numbers[one]]]).images[0].permute(1, 2, 0).numpy()
        assert images.frame(one).shape == expected.shape
        assert np.abs(images.frame(one) / 255 - expected).mean() < 0.02


@pytest.mark.parametrize("command", ["assess", "peekaboom"])
def test_rejected_start_leaves_no_store(command, done, tmp_path, capsys):
    for options in (["--images", "99"], ["--port", "99999999"], ["--name", "two\nlines"]):
        assert main([command, "serve", str(done), "--store", str(tmp_path / "study.db"), *options]) == 2
        assert options[0].lstrip("-") in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_invalid_runs_and_datasets_are_rejected(done, tmp_path):
    other = build("shapes-xai", tmp_path / "other", size=32, count=40, progress=False)
    refused("gradint", run_images, done, ["gradint"])
    refused("not the dataset of the run", run_images, done, dataset=str(other))
    refused("not the folder of a finished run", run_images, tmp_path)
    refused("if it has moved, set --dataset", run_images, done, dataset="somewhere/else/shapes")


@pytest.mark.slow
def test_peekaboom_runs_from_serve_to_agreement(done, tmp_path, capsys):
    store = tmp_path / "study.db"
    words = ["peekaboom", "serve", done, "--store", store, "--protocol", "p2", "--judgements", 1, "--pairs", 10,
             "--checks", 1]  # fmt: skip
    with Command(*words) as server:
        key = server.call("api/join", body={"request": "a random text of many characters"})["key"]
        state = server.call("api/state", key)
        for _ in range(7):
            sent = {"place": state["place"], "step": state["step"], "choice": None}
            state = server.call("api/answer", key, sent)["state"]
    with Command(*words) as server:  # killed and started again
        assert server.call("api/state", key) == state
        for number in range(6):
            own = (
                key
                if number == 0
                else server.call("api/join", body={"request": f"another random text {number}"})["key"]
            )
            state = server.call("api/state", own)
            while state["place"] is not None:
                assert server.call(f"api/picture?place={state['place']}&step={state['step']}", own)[:4] == b"\x89PNG"
                left = [label for label in state["choices"] if label not in state["tried"]]
                sent = {"place": state["place"], "step": state["step"], "choice": left[0]}
                state = server.call("api/answer", own, sent)["state"]
    out = tmp_path / "out"
    text = said(capsys, ["peekaboom", "results", "--store", str(store), "--out", str(out), "--with-failed"])
    assert re.search(r"people failed an attention check|of 6 people", text)
    data = json.loads((out / "peekaboom.json").read_text())
    assert {row["explainer"]: row["judgements"] for row in data["crowd"][:-1]} == dict.fromkeys(EXPLAINERS, 11)
    assert (out / "peekaboom.svg").read_text().startswith("<?xml")
    answers = tmp_path / "answers.csv"
    assert main(["peekaboom", "export", "--store", str(store), "--out", str(answers), "--without-people",
                 "--with-failed"]) == 0  # fmt: skip
    assert main(["analyse", str(done), "--what", "agreement", "--answers", str(answers), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.partition("\n")[2])
    areas = {row["explainer"]: row["saliency_crowd_auc"] for row in found["people"]}
    assert areas == pytest.approx({row["explainer"]: row["saliency_crowd_auc"] for row in data["crowd"][:-1]})


@pytest.mark.slow
def test_assess_runs_from_serve_to_table(done, tmp_path, capsys):
    store, questions = tmp_path / "study.db", tmp_path / "questions.yaml"
    questions.write_text("scale: ['no', maybe, 'yes']\nquestions:\n  good: Is it a good map of {class}?")
    words = ["assess", "serve", done, "--store", store, "--questions", questions, "--raters", 2, "--images", 4,
             "--with-masks"]  # fmt: skip
    with Command(*words) as server:
        for number in range(2):
            key = server.call("api/join", body={"request": f"a random text of many characters {number}"})["key"]
            while maps := (state := server.call("api/state", key))["maps"]:
                assert state["questions"]["good"] == f"Is it a good map of {state['class']}?"
                assert (state["total"], len(maps)) == (4 + 1, 4)  # with an attention check and the human mask
                for one in maps:
                    assert server.call(f"api/map?place={one['place']}", key)[:4] == b"\x89PNG"
                    sent = {"place": one["place"], "ratings": {"good": 2}, "request": f"{number} {one} {'x' * 20}"}
                    server.call("api/answer", key, sent)
    assert main(["assess", "results", "--store", str(store)]) == 2
    assert "is excluded; include people who failed with --with-failed" in capsys.readouterr().err
    assert main(["assess", "results", "--store", str(store), "--out", str(tmp_path / "out"), "--with-failed"]) == 0
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700, "the folder contains pseudonyms"
    assert "2.000" in capsys.readouterr().out
    data = json.loads((tmp_path / "out/assess.json").read_text())
    assert {row["explainer"]: (row["mean"], row["ratings"]) for row in data["ratings"]} == dict.fromkeys(
        [*EXPLAINERS, HUMAN], (2.0, 8)
    )
    assert data["ratings"][3]["explainer"] == HUMAN
    assert (tmp_path / "out/assess.svg").exists()
    assert main(["assess", "export", "--store", str(store), "--out", str(tmp_path / "ratings.csv"), "--json",
                 "--with-failed"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["answers"] == 32


@pytest.mark.parametrize("command", ["peekaboom", "assess"])
@pytest.mark.parametrize(("words", "line"), [
    (["serve", "--store", "x.db"], "`serve` needs RUN"),
    (["results", "runs/first", "--store", "x.db"], "`results` reads only the store"),
    (["results", "--store", "none.db"], "there is no store"),
    (["export", "--store", "none.db"], "needs --out"),
])  # fmt: skip
def test_invalid_command_lines_give_one_line(command, words, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = said(capsys, [command, *words], 2)
    assert line in error
    assert (len(error.splitlines()), list(tmp_path.iterdir())) == (1, [])


def changed(folder, place, **values):
    content = json.loads((folder / "run.json").read_text())
    reduce(dict.__getitem__, place, content).update(values)
    (folder / "run.json").write_text(json.dumps(content))


@pytest.mark.parametrize("sizes", [
    {"resize": [60_000, 60_000]}, {"resize": 10**9}, {"resize": -5}, {"resize": "x"}, {"crop": [0, 0]}, {"resample": 5},
])  # fmt: skip
def test_invalid_geometry_is_rejected(done, tmp_path, sizes):
    folder = shutil.copytree(done, tmp_path / "run")
    changed(folder, ["identity", "geometry"], **sizes)
    refused(r"run\.json has no usable geometry", run_images, folder)


@pytest.mark.parametrize(
    ("name", "line"), [("~/{}", "is from the Hub and refers to ~/"), ("~nobody-here/x", "is not a folder")]
)
def test_hub_run_does_not_open_home_folders(done, shapes, tmp_path, monkeypatch, name, line):
    folder = shutil.copytree(done, tmp_path / "run")
    changed(folder, ["spec"], dataset=name.format(shapes.name))
    monkeypatch.setenv("HOME", str(shapes.parent))
    monkeypatch.setattr("saliency_bench.studies.run_images.HF_HUB_CACHE", str(tmp_path))
    refused(line, run_images, folder)


def test_hub_run_opens_local_dataset_only_if_requested(done, shapes, tmp_path, monkeypatch, capsys):
    assert len(run_images(done).ids) == 12
    assert f"the images are from {shapes}, the dataset in run.json" in capsys.readouterr().err
    run_images(done, dataset=str(shapes))
    assert "names" not in capsys.readouterr().err
    monkeypatch.setattr("saliency_bench.studies.run_images.HF_HUB_CACHE", str(done.parent))
    refused(r"is from the Hub and refers to .*set --dataset", run_images, done)
    assert len(run_images(done, dataset=str(shapes)).ids) == 12
