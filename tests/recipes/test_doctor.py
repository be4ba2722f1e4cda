"""Tests of `doctor`: it reports planted faults and passes correct pairs, and its accuracies equal plain torch."""

import json
import re
import shlex
from dataclasses import replace
from itertools import permutations
from math import inf

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import saliency_bench as sb
from saliency_bench import cli
from saliency_bench.compute.python_objects import describe
from saliency_bench.recipes.doctor import order as order_module
from saliency_bench.recipes.doctor.doctor import _load, _of_classes
from saliency_bench.recipes.doctor.examine import examine
from saliency_bench.recipes.doctor.maps import check_maps
from saliency_bench.recipes.doctor.masks import check_masks

COLOURS = {"red": (1, 0, 0), "lime": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0), "aqua": (0, 1, 1)}
NAMES = list(COLOURS)


def pictures(count=20, labels=range(5), grey=False, mask=lambda index, mask: mask, names=NAMES):
    """Write dark images of 24 x 24 pixels with a square in the colour of the class, which is the mask."""
    rng = np.random.default_rng(0)
    rows = {"image": [], "label": [], "mask": []}
    for index in range(count):
        label = list(labels)[index % len(labels)]
        array, shape = rng.integers(0, 30, (24, 24, 3)), np.zeros((24, 24), np.uint8)
        top, left = rng.integers(1, 13, 2)
        array[top : top + 10, left : left + 10] += 200 * np.array(COLOURS[NAMES[label]])
        shape[top : top + 10, left : left + 10] = 255
        array = np.repeat(array.mean(2, keepdims=True), 3, 2) if grey else array
        rows["image"].append(Image.fromarray(array.astype(np.uint8)))
        rows["label"].append(label)
        changed = mask(index, shape)
        rows["mask"].append(None if changed is None else Image.fromarray(changed))
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names), "mask": datasets.Image()}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))


class Colours(nn.Module):
    """Network that predicts the most frequent colour. It needs (x - mean) / std and one input size."""

    def __init__(self, order=range(5), mean=0.5, std=0.5, bgr=False, side=None):
        super().__init__()
        self.paint = nn.Conv2d(3, 5, 1)
        weights = torch.tensor([COLOURS[NAMES[index]] for index in order]).float() * 2 - 1
        weights = weights.flip(1) if bgr else weights
        with torch.no_grad():
            self.paint.weight.copy_(20 * std * weights[:, :, None, None])
            self.paint.bias.copy_(20 * (mean * weights.sum(1) - 0.3 * (weights > 0).sum(1)))
        self.side = side

    def forward(self, images):
        logits = self.paint(images).relu().mean((2, 3))
        return logits if self.side in (None, images.shape[-1]) else logits.roll(1, 1)


def classifier(network=None, mean=0.5, std=0.5, labels=NAMES, **settings):
    return sb.load_classifier(network or Colours(), mean=mean, std=std, labels=labels, device="cpu", **settings)


def examined(rows, model, **settings):
    spec, objects = describe({"dataset": rows, "model": model, "explainers": [], "metrics": [], "out": "x",
                              "batch_size": 8, "device": "cpu"} | settings)  # fmt: skip
    data, network, refusal = _load(spec, objects)
    return examine(data, network, inf), refusal


def checks_of(rows, model, **settings):
    done, refusal = examined(rows, model, **settings)
    return {check.name: check for check in [*_of_classes(done, refusal), *check_masks(done)]}


def marks(checks, *chosen):
    return {name for name, check in checks.items() if check.mark in chosen}


def half(index, mask):
    return mask[:12] if index % 2 else mask


def corner(index, mask):
    corner = mask * 0
    corner[:3, :3] = 255
    return corner


def cropping(network):
    network.geometry = replace(network.geometry, resize=24, crop=(16, 16))
    return network


FAULTS = {
    "shifted": (pictures, lambda: classifier(Colours([4, 0, 1, 2, 3])), "order of classes", "1 logit later"),
    "reversed": (pictures, lambda: classifier(Colours([4, 3, 2, 1, 0])), "order of classes", "reversed"),
    "by name": (pictures, lambda: classifier(Colours([4, 2, 1, 0, 3]), labels=None), "order of classes", "by class"),
    "BGR": (pictures, lambda: classifier(Colours(bgr=True)), "channel order", "BGR instead of RGB: accuracy 100%"),
    "mean": (pictures, lambda: classifier(mean=0, std=1), "normalisation", "mean 0.5 and std 0.5: accuracy 100%"),
    "scale": (pictures, lambda: classifier(Colours(mean=0, std=1 / 255), 0.5), "normalisation", "from 0 to 255: acc"),
    "size": (pictures, lambda: classifier(Colours(side=24), size=48), "size", "24 px instead of 48: accuracy 100%"),
    "classes": (pictures, lambda: classifier(labels=list("abcde")), "classes", "does not have the dataset's classes"),
    "constant": (pictures, lambda: classifier(nn.Sequential(Colours(), Constant())), "outputs", "same"),
    "sizes of masks": (lambda: pictures(mask=half), classifier, "images", "mask is 24 x 12"),
    "full masks": (lambda: pictures(mask=lambda index, mask: mask | 255), classifier, "mask area", "20 of 20 masks"),
    "crop": (lambda: pictures(mask=corner), lambda: cropping(classifier()), "masks", "centre crop removes"),
    "empty masks": (lambda: pictures(mask=lambda index, mask: mask * 0), classifier, "masks", "none of 20 .*empty"),
}  # fmt: skip


class Constant(nn.Module):
    def forward(self, logits):
        return 0 * logits + torch.arange(5.0)


@pytest.mark.parametrize("fault", FAULTS)
def test_doctor_reports_each_planted_fault(fault):
    rows, model, name, words = FAULTS[fault]
    checks = checks_of(rows(), model())
    assert checks[name].mark == "wrong"
    assert re.search(words, checks[name].sentence), checks[name].sentence
    named = marks(checks, "wrong") - {"accuracy", "outputs", name}
    assert not named, "only the cause is wrong, and what follows from it"


JUDGED = ("accuracy", "order of classes", "channel order", "normalisation", "size")


@pytest.mark.parametrize(("rows", "settings", "expected"), [
    (pictures, {}, {}), (pictures, {"labels": None}, {}),
    (lambda: pictures(mask=lambda index, mask: None), {}, {"masks": "look"}),
    (lambda: pictures(labels=[2]), {}, {"classes": "look"} | dict.fromkeys(JUDGED, "undecided")),
    (lambda: pictures(3), {}, dict.fromkeys([*JUDGED, "images"], "undecided")),
])  # fmt: skip
def test_doctor_passes_healthy_pairs(rows, settings, expected):
    checks = checks_of(rows(), classifier(**settings))
    assert {name: check.mark for name, check in checks.items() if check.mark != "ok"} == expected


def test_channel_order_is_not_judged_on_grey_images():
    assert "grey" in checks_of(pictures(grey=True), classifier())["channel order"].text


def test_accuracies_match_plain_torch():
    rows, network = pictures(), Colours([0, 1, 2, 4, 3], mean=0.4, std=0.3)
    checks = checks_of(rows, classifier(network, mean=0.2, std=0.4))
    labels = np.array(rows["label"])

    def accuracy(mean=0.2, std=0.4, side=24, bgr=False):
        images = [np.asarray(image.resize((side, side), Image.Resampling.BILINEAR)) / 255 for image in rows["image"]]
        images = torch.tensor(np.stack(images)).float().permute(0, 3, 1, 2)
        images = images.flip(1) if bgr else images
        mean, std = (torch.tensor(values).float().expand(3)[:, None, None] for values in (mean, std))
        return float((network((images - mean) / std).argmax(1).numpy() == labels).mean())

    imagenet = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    expected = {
        "BGR instead of RGB": accuracy(bgr=True),
        "mean and std of ImageNet": accuracy(*imagenet),
        "mean 0.5 and std 0.5": accuracy(0.5, 0.5),
        "no normalisation": accuracy(0, 1),
        "values from 0 to 255": accuracy(0, 1 / 255),
        "BGR values up to 255 without their mean": accuracy(imagenet[0][::-1], 1 / 255, bgr=True),
        **{f"{side} px instead of 24": accuracy(side=side) for side in (12, 21, 28, 48)},
    }
    shown = {name: numbers for kind in ("channel order", "normalisation", "size")
             for name, numbers in checks[kind].values.items()}  # fmt: skip
    assert {name: numbers["accuracy"] for name, numbers in shown.items()} == pytest.approx(expected)
    assert {numbers["declared"] for numbers in shown.values()} == {checks["accuracy"].values["value"]}
    assert checks["accuracy"].values["value"] == pytest.approx(accuracy())
    assert len(set(expected.values())) > 2


def test_suggested_label_map_is_best_permutation():
    rows, network = pictures(), Colours([1, 2, 0, 3, 4])
    checks = checks_of(rows, classifier(network))
    order = checks["order of classes"]
    assert re.search("permuted.*100%", order.sentence), order.sentence
    assert marks(checks, "wrong") - {"accuracy", "outputs"} == {"order of classes"}
    images = torch.stack([torch.tensor(np.asarray(image)).permute(2, 0, 1) / 127.5 - 1 for image in rows["image"]])
    predictions, labels = network(images).argmax(1).numpy(), np.array(rows["label"])
    best = max(permutations(range(5)), key=lambda order: (np.array(order)[labels] == predictions).sum())
    assert list(order.values["label_map"].values()) == list(best)
    again = checks_of(rows, classifier(network), label_map=order.values["label_map"])
    assert not marks(again, "wrong")


def test_assignment_is_scored_on_images_not_used_for_fitting():
    """Predict a different logit in each half, so that an assignment fitted to one half fails on the other."""
    labels, half = np.zeros(6, int), np.array([True, False] * 3)
    for predictions, right in ((np.where(half, 1, 2), 0), (np.full(6, 2), 1)):
        found = order_module._score(lambda _, predictions: predictions[:1], labels, predictions, half)
        assert found.tolist() == [right] * 6


def test_baseline_scores_match_a_run(tmp_path):
    rows, model = pictures(), classifier()
    scores = checks_of(rows, model, seed=3)["baselines"].values
    run = sb.run(dataset=rows, model=model, explainers=list(scores), metrics=list(scores["centre"]), seed=3,
                 batch_size=8, device="cpu", out=tmp_path / "run", progress=False)  # fmt: skip
    for cell in run.cells:
        expected = {"value": cell.value, "low": cell.low, "high": cell.high}
        assert scores[cell.explainer][cell.metric] == pytest.approx(expected)


@pytest.mark.slow
def test_flat_maps_of_saturated_network_are_reported():
    for network, is_flat in ((Colours(), False), (nn.Sequential(Colours(), nn.Hardtanh(-1e-3, 1e-3)), True)):
        report = check_maps(examined(pictures(), classifier(network))[0], inf)
        checks = {check.name: check for check in report.checks}
        assert (checks["maps"].mark == "wrong") == is_flat, checks["maps"].text
        assert checks["layer"].values["shape"] == [5, 24, 24]


@pytest.mark.slow
def test_printed_commands_run(shapes, resnet, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = ["doctor", "--dataset", str(shapes), "--model", str(resnet), "--limit", "24", "--within", "5s"]
    assert cli.main([*line, "--device", "cpu", "--json", "--out", "doctor.json"]) == 1  # the weights are random
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads((tmp_path / "doctor.json").read_text())
    assert "accuracy" in {check["check"] for check in content["checks"] if check["mark"] == "wrong"}
    assert len(content["commands"]) == 3
    for command in content["commands"]:
        shorter = ["--explainers", "gradcam", "--metrics", "saliency_miou"] if " choose " in command else []
        assert cli.main([*shlex.split(command)[1:], *shorter]) == 0, command
    assert cli.main(["doctor", "--dataset", "nowhere", "--model", str(resnet)]) == 2
