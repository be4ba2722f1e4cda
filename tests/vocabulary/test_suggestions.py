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

EXPLAINERS = {
    "GradCAM": "gradcam", "grad-cam": "gradcam", "Grad-CAM": "gradcam", "grad_cam": "gradcam", "GRADCAM": "gradcam",
    "gradcam++": "gradcam_plus_plus", "Grad-CAM++": "gradcam_plus_plus", "gradcampp": "gradcam_plus_plus",
    "ig": "integrated_gradients", "IG": "integrated_gradients", "IntegratedGradients": "integrated_gradients",
    "integrated gradients": "integrated_gradients", "Score-CAM": "scorecam", "score_cam": "scorecam",
    "GuidedBackprop": "guided_backprop", "guided_backpropagation": "guided_backprop",
    "InputXGradient": "input_x_gradient", "grad*input": "input_x_gradient", "saliency": "gradient",
    "SmoothGrad": "smoothgrad", "smooth_grad": "smoothgrad", "GradientShap": "gradient_shap", "shap": "gradient_shap",
    "attention_rollout": "rollout", "center": "centre", "sobel": "edges", "noise": "random", "RISE": "rise",
    "ViT": "gradcam_vit", "contrastive_excitation_backprop": "cebp", "LIME": "lime", "gradcan": "gradcam",
}  # fmt: skip
METRICS = {
    "miou": "saliency_miou", "mIoU": "saliency_miou", "IoU": "saliency_miou", "mean_iou": "saliency_miou",
    "saliency-miou": "saliency_miou", "PG": "saliency_pointing_game", "pointing game": "saliency_pointing_game",
    "PointingGame": "saliency_pointing_game", "insertion": "saliency_insertion", "iAUC": "saliency_insertion",
    "deletion": "saliency_deletion", "dAUC": "saliency_deletion", "AP": "saliency_average_precision",
    "saliency_ap": "saliency_average_precision", "IoSR": "saliency_iosr", "ROAE": "saliency_roae",
    "recall": "saliency_recall", "precision": "saliency_precision", "max-sensitivity": "saliency_max_sensitivity",
    "sensitivity_max": "saliency_max_sensitivity", "saliency_moiu": "saliency_miou",
}  # fmt: skip
DATASETS = {"pets": "pet-xai", "Oxford-IIIT Pet": "pet-xai", "PetXAI": "pet-xai", "shapes": "shapes-xai",
            "imagenet": "imagenet-val", "VOC": "voc-val", "coco": "coco-val", "Food101": "food-101",
            "sixray": "security-xai", "LIDC": "disease-xai", "shapes-xia": "shapes-xai"}  # fmt: skip


@pytest.mark.parametrize(("load", "given", "meant"), [
    (load, *names) for load, meant in (
        (sb.load_explainer, EXPLAINERS), (sb.load_metric, METRICS), (sb.load_dataset, DATASETS), (sb.build, DATASETS))
    for names in meant.items()
])  # fmt: skip
def test_mistyped_name_gets_correct_suggestion(load, given, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(f"did you mean {meant}[ ?]", load, given, *[tmp_path / "out"] * (load is sb.build))


@pytest.mark.parametrize("kind", ["explainers", "metrics", "hub_builders", "push_scripts"])
def test_aliases_are_unique_and_differ_from_item_names(kind):
    every = [alias for item in aliases(kind).items() for alias in item[1]]
    assert [alias for alias, times in Counter(every).items() if times > 1] == []
    assert not set(every) & set(registry.names(kind))


def test_unrelated_name_gets_list_of_known_names():
    assert str(unknown("thing", "§§", ["one", "two"])) == "unknown thing '§§'; known: one, two"
    assert "did you mean 猫?" in str(unknown("class", "猫 ", ["猫", "犬"]))
    assert "did you mean batch_size?" in str(unknown("argument", "BatchSize", ["batch_size", "seed"]))


@pytest.mark.parametrize(("line", "message"), [
    ("build ./pictures --out x", "your own images, run `saliency-bench build folder --images ./pictures --out NEW`"),
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
