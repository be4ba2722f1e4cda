"""Tests of suggestions for mistyped names and aliases: there is one correct suggestion and never a wrong one."""

from collections import Counter

import pytest
from commands import said
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.errors import unknown
from saliency_bench.registry import aliases

EXPLAINERS = {"Grad-CAM": "gradcam", "GRADCAM": "gradcam", "Grad-CAM++": "gradcam_plus_plus", "gradcan": "gradcam",
              "IG": "integrated_gradients", "integrated gradients": "integrated_gradients",
              "attention_rollout": "rollout"}  # fmt: skip
METRICS = {"mIoU": "saliency_miou", "PG": "saliency_pointing_game", "insertion": "saliency_insertion",
           "saliency_ap": "saliency_average_precision", "saliency_moiu": "saliency_miou"}  # fmt: skip
DATASETS = {"Oxford-IIIT Pet": "pet-xai", "PetXAI": "pet-xai", "shapes-xia": "shapes-xai"}


@pytest.mark.parametrize(("load", "given", "meant"), [
    (load, *names) for load, meant in (
        (sb.load_explainer, EXPLAINERS), (sb.load_metric, METRICS), (sb.load_dataset, DATASETS),
        (sb.build, {"pets": "pet-xai"}))
    for names in meant.items()
])  # fmt: skip
def test_mistyped_name_gets_correct_suggestion(load, given, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(f"did you mean {meant}[ ?]", load, given, *[tmp_path / "out"] * (load is sb.build))


@pytest.mark.parametrize("kind", ["explainers", "metrics", "hub_builders", "push_scripts"])
def test_aliases_are_unique_and_suggest_their_item(kind):
    for item, known in aliases(kind).items():
        assert [
            alias for alias in known if f"did you mean {item}?" not in str(registry.unknown_item(kind, alias))
        ] == []
    every = [alias for known in aliases(kind).values() for alias in known]
    assert [alias for alias, times in Counter(every).items() if times > 1] == []
    assert not set(every) & set(registry.names(kind))


def test_unrelated_name_gets_list_of_known_names():
    assert str(unknown("thing", "§§", ["one", "two"])) == "unknown thing '§§'; known: one, two"
    assert "did you mean 猫?" in str(unknown("class", "猫 ", ["猫", "犬"]))
    assert "did you mean batch_size?" in str(unknown("argument", "BatchSize", ["batch_size", "seed"]))


@pytest.mark.parametrize(("line", "message"), [
    ("build pictures --out x", "your own images, run `saliency-bench build folder --images pictures --out NEW`"),
    ("build a/b.json --out x", "saliency-bench build coco-json --json a/b.json --images DIR --out NEW"),
    ("build a/b.yaml --out x", "build yolo --names a/b.yaml --images DIR --labels DIR --out NEW"),
    ("run --dataset folder --model m --out x", "first run `saliency-bench build folder --images DIR --out NEW`"),
    ("run --explainers my.py --model m --out x",
     "my.py cannot be read (No such file or directory); write your own function as FILE.py"),
    ("run --metrics a/my.py --model m --out x", "a/my.py cannot be read (No such file or directory)"),
    ("train --split test --model m --out x", "'--split' of saliency-bench train; known: --activation, --"),
    ("choose --weights a.pt --model m --out x", "write it after the network, as in --model ./net.py:make:weights=..."),
    ("--verison", "unknown option '--verison'; did you mean --version?"),
])  # fmt: skip
def test_common_command_mistakes_get_a_correct_hint(line, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "pictures").mkdir()
    monkeypatch.chdir(tmp_path)
    assert message in said(capsys, line.split(), 2)


def test_unlabelled_picture_folder_suggests_build_command(tmp_path, resnet):
    Image.new("RGB", (32, 32)).save(tmp_path / "1.png")
    refused("build folder --images DIR", sb.run, dataset=tmp_path, model=str(resnet), explainers=["centre"],
            metrics=["saliency_insertion"], device="cpu", out=tmp_path.parent / "x")  # fmt: skip
