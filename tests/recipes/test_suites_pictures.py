"""Tests of the pictures of suites: selected images, the content of a cell, and the files of each picture."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from refusals import refused
from torch import nn

from saliency_bench.compute.scoring.partners import PartnerSamples
from saliency_bench.read.run_folder import CellScores
from saliency_bench.recipes.suites import numbers
from saliency_bench.recipes.suites.suite import suite
from saliency_bench.recipes.suites.suite_jobs import SuiteChoice, jobs_of
from saliency_bench.recipes.suites.suite_pictures import _false_positives, _parts, _terms, cell_of, chosen
from saliency_bench.recipes.suites.suite_schema import Images, PictureSpec, ViewSpec, find_suite, read_suite

IDS = ["a", "b", "c", "d"]
SCORES = {"gradcam": [0.1, 0.9, 0.5, np.nan], "random": [0.2, 0.1, 0.4, 0.3]}


@pytest.fixture
def run(tmp_path):
    cells = [SimpleNamespace(cell_id=name, explainer_text=name, metric_text="saliency_miou", higher_is_better=True)
             for name in SCORES]  # fmt: skip
    pd.DataFrame({"image_id": IDS, "label": [2, 10, 2, 10]}).to_parquet(tmp_path / "predictions.parquet")
    scores = CellScores(IDS, [None] * 4, {name: np.array(values) for name, values in SCORES.items()})
    return SimpleNamespace(scores=scores, cells=cells, folder=tmp_path)


@pytest.mark.parametrize(("images", "expected"), [
    ({"ids": ["d", "a"]}, "da"), ({"count": 2}, "ab"), ({"rule": "per class", "count": 1}, "ab"),
    ({"rule": "per class", "count": 2}, "acbd"),
    ({"rule": "lowest", "count": 2}, "ac"),  # means 0.15, 0.5, 0.45, none
    ({"rule": "highest", "count": 1}, "b"),
    ({"rule": "disputed", "count": 2}, "ba"),  # spreads 0.05, 0.4, 0.05, none
])  # fmt: skip
def test_images_are_selected_by_id_or_rule(run, images, expected):
    assert "".join(chosen(Images(**images), run, ["saliency_miou"], list(SCORES))) == expected


def test_rules_use_explainers_of_the_picture(run):
    images = Images(rule="lowest", count=2)
    assert chosen(images, run, ["saliency_miou"], ["random"]) == ["b", "a"]  # with gradcam, the images would be a and c
    refused("needs scores", chosen, images, run, ["saliency_miou"], ["rise"])


def test_images_are_selected_by_file(run, tmp_path):
    for text in ("c\n\nb\n", "image_id,why\nc,so\nb,too\n"):
        (tmp_path / "ids").write_text(text)
        assert chosen(Images(file=str(tmp_path / "ids")), run, [], []) == ["c", "b"]
    refused("unknown image 'e'", chosen, Images(ids=("e",)), run, [], [])
    refused("needs scores", chosen, Images(rule="disputed"), run, [], [])


CLASSES = 3  # person, motorbike, chair


@pytest.fixture
def several(tmp_path):
    """Return a multi-label run of 40 samples of 30 images with the scores that equation 19 needs, and its network."""
    rng, rows = np.random.default_rng(5), []
    for number in range(40):
        image = number % 30
        labels = [[0], [0, 1], [1], [2], [0, 2], [1, 2]][image % 6]
        label = labels[(number // 30) % len(labels)]
        logits = np.random.default_rng(image).normal(1, 3, CLASSES)
        p = 1 / (1 + np.exp(-logits))
        rows.append({"image_id": f"s{number}", "label": label, "labels": labels, "logits": logits.tolist(),
                     "target_confidence": p[label],
                     "correct": [bool(p[label] > 0.5), None][number % 17 == 0]})  # fmt: skip
    pd.DataFrame(rows).to_parquet(tmp_path / "predictions.parquet")
    values = {"pg": rng.choice([0.0, 1.0], 40, p=[0.8, 0.2]), "iauc": rng.uniform(size=40)}
    values["iauc"][3] = np.nan
    cells = [SimpleNamespace(cell_id=name, explainer_text="gradcam", metric_text=name) for name in values]
    ids = [row["image_id"] for row in rows]
    known = {name: [row[name] for row in rows] for name in ("correct", "target_confidence")}
    scores = CellScores(ids, [f"image {number % 30}" for number in range(40)], values)
    run = SimpleNamespace(scores=scores, cells=cells, folder=tmp_path, prediction_columns=known, seed=0)
    question = SimpleNamespace(members=[(0,), (1,), (2,)])
    model = SimpleNamespace(question=question, classifier=SimpleNamespace(activation="sigmoid"))
    return SimpleNamespace(run=run, model=model, rows=rows, values=values)


def equation_19(several):
    """Return the samples that equation 19 of P1 selects, computed by a loop, highest iAUC first."""
    known = [k for k in range(40) if not np.isnan(several.values["iauc"][k])]
    median = sorted(several.values["iauc"][k] for k in known)[len(known) // 2]  # of 39
    found = []
    for k in known:
        row = several.rows[k]
        sure, right = row["target_confidence"] > 0.9, row["correct"] is not False
        if sure and right and several.values["pg"][k] < 0.5 and several.values["iauc"][k] > median:
            found.append(k)
    return sorted(found, key=lambda k: -several.values["iauc"][k])


def test_clever_hans_selection_matches_equation_19(several):
    expected = equation_19(several)
    assert 3 < len(expected) < 15
    images = Images(rule="clever hans", count=3)
    assert chosen(images, several.run, ["pg", "iauc"], ["gradcam"]) == [f"s{k}" for k in expected[:3]]
    lowest = [k for k in range(40) if several.values["pg"][k] == 0]
    assert expected != lowest[: len(expected)]  # the pointing game alone selects other samples
    number = numbers._clever_hans(several.run, "gradcam", "pg", "iauc")
    assert (number.value, number.n) == (pytest.approx(len(expected) / 39), 39)
    assert number.low < number.value < number.high
    refused("two values", chosen, images, several.run, ["pg"], ["gradcam"])
    with pytest.raises(numbers.NoNumberError):
        numbers._clever_hans(several.run, "gradcam", "pg", "deletion")


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_false_positives_match_literal_selection(several, activation):
    several.model.classifier.activation = activation
    suspects = {several.rows[k]["label"] for k in equation_19(several)}
    expected = {}
    for number, row in enumerate(several.rows):
        logits, absent = row["logits"], [c for c in range(CLASSES) if c not in row["labels"]]
        worst = max(absent, key=lambda c: logits[c])
        exponentials = [np.exp(logit) for logit in logits]
        p = exponentials[worst] / sum(exponentials) if activation == "softmax" else 1 / (1 + np.exp(-logits[worst]))
        if worst in suspects and p > 0.5 and number % 30 not in expected:
            expected[number % 30] = (-p, f"s{number}")
    assert len(expected) > 3
    found = _false_positives(several.model, several.run, ["pg", "iauc"], "gradcam")
    assert found == [name for _, name in sorted(expected.values())]
    # an image occurs once, although it has several rows
    assert len({int(name[1:]) % 30 for name in found}) == len(found)
    for name in found:
        row = several.rows[int(name[1:])]
        sample = SimpleNamespace(model=several.model, row=row)
        several.model.question.groups = None
        assert _terms(sample, "false positive").plus[0] not in row["labels"]


class White(nn.Module):
    """Network with logits (2 ln 3 times the share of white, 0): p of class 0 is 1 / 2 for black and 0.9 for white."""

    activation = "softmax"

    def forward(self, images):
        white = images.mean(dim=(1, 2, 3)) * 2 * np.log(3)
        return torch.stack([white, torch.zeros_like(white)], dim=1)


FIRST = torch.tensor([[1.0, 0.0]])


def test_picture_parts_follow_the_map():
    maps = np.array([[[0.9, 0.1], [0.6, 0.2]]], np.float32)
    shown = {kind: _parts(White(), torch.ones(1, 3, 2, 2), FIRST, maps, ViewSpec(kind=kind, share=0.25))
             for kind in ("top", "rest", "region")}  # fmt: skip
    assert {kind: (cell.pixels[..., 0] == 255).ravel().tolist() for kind, cell in shown.items()} == {
        "top": [True, False, False, False],
        "rest": [False, True, True, True],
        "region": [True, False, True, False],
    }
    # Half of the image is white: 3 / (3 + 1).
    assert shown["region"].lines == ("50% of the image, p 0.750",)


def test_partner_region_or_its_inverse_is_pasted():
    """Test a white partner whose map marks the left half, and a black image."""
    maps = np.array([[[0.9, 0.1], [0.8, 0.2]]], np.float32)
    model = SimpleNamespace(classifier=White())
    partner = PartnerSamples(["h"], torch.ones(1, 3, 2, 2), np.array([[True, False]]), [7])

    def provider(explainer, seeds):
        assert (explainer, list(seeds)) == ("an explainer", [7])
        return lambda images, target: maps

    sample = SimpleNamespace(model=model, partner=partner, images=torch.zeros(1, 3, 2, 2), provider=provider)
    shown = {kind: cell_of(sample, "an explainer", ViewSpec(kind=kind)) for kind in ("pasted", "inverse")}
    assert shown["pasted"].pixels[..., 0].tolist() == [[255, 0], [255, 0]]
    assert shown["inverse"].pixels[..., 0].tolist() == [[0, 255], [0, 255]]
    assert cell_of(sample, "an explainer", ViewSpec(kind="picture", partner=True)).lines == ("p 0.900",)
    assert cell_of(sample, "an explainer", ViewSpec(kind="region", partner=True)).lines == (
        "50% of the image, p 0.750",
    )
    alone = SimpleNamespace(partner=None)
    assert cell_of(alone, "an explainer", ViewSpec(kind="pasted")).lines == ("not paired",)


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"rows": ["image", "view"], "columns": ["view"]}, "only once"), ({"rows": ["explainer"]}, "axis `view`"),
     ({"values": {"a": {"accuracy": "top1"}}}, "score of a metric")],
)  # fmt: skip
def test_invalid_picture_axes_are_rejected(keys, words):
    whole = {"title": "t", "runs": ["all"], "rows": ["image"], "columns": ["view"], "views": {"a": {}, "b": {}}}
    PictureSpec.model_validate(whole)
    with pytest.raises(ValueError, match=words):
        PictureSpec.model_validate(whole | {"columns": ["image" if "explainer" in str(keys) else "view"]} | keys)


def test_single_picture_runs_only_what_it_shows(tmp_path):
    _, content, names = find_suite("p0-figure3")
    (job,) = jobs_of(content, names, SuiteChoice(tmp_path))
    assert (job.dataset, job.model, job.spec.explainers) == ("action-xai", "resnet-18", ("gradcam",))
    every = {other.folder for other in jobs_of(content, content.items, SuiteChoice(tmp_path))}
    assert job.folder in every


PICTURES = """
paper: Own
datasets: {one: {name: one}}
models: {small: {name: small, family: resnet, train: {epochs: 1}}}
runs:
  pair:
    {datasets: [one], models: [small], explainers: [gradcam, random, "rise:masks=50", "rise:masks=60"],
     other: {label: scene}}
tables:
  scores: {title: T, runs: [pair], rows: [explainer], columns: [value], values: {IDR: {metric: saliency_idr}}}
pictures:
  maps:
    title: Maps
    runs: [pair]
    rows: [image, view]
    columns: [explainer]
    views:
      map: {}
      why: {target: contrast}
      other: {other: true}
      without: {other: true, without: true, scores: false}
    values: {IDR: {metric: saliency_idr}}
    images: {count: 2}
smoke: {drawings: 60, passes: 1, count: 60, limit: 8, options: {rise: {masks: 8}}}  # which makes two of them one
"""


@pytest.mark.slow
def test_picture_is_saved_in_three_formats_and_shown_on_page(tmp_path):
    (tmp_path / "own.yaml").write_text(PICTURES)
    options = {"out": tmp_path / "out", "smoke": True, "device": "cpu", "progress": False}
    done = suite(f"{tmp_path / 'own.yaml'}:maps", **options)
    assert (done.failed, done.tables, done.pictures) == ({}, [], ["maps"])
    folder = tmp_path / "out" / "pictures"
    svg = (folder / "maps.svg").read_text()
    assert (svg.count("<image"), svg.count(">IDR ")) == (2 * 4 * 4, 2 * 2 * 4)
    assert "no image_without" not in svg
    assert (folder / "maps.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(folder / "maps.png") as picture:
        assert min(picture.size) > 300
    assert "<image" in done.page.read_text()
    suite(f"{tmp_path / 'own.yaml'}:maps", **options)
    assert (folder / "maps.svg").read_text() == svg


def test_axis_with_several_values_must_be_shown(tmp_path):
    content = yaml.safe_load(PICTURES)
    content["pictures"]["maps"]["columns"] = ["dataset"]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
    refused("the runs have 4 different values of explainer", read_suite, tmp_path / "own.yaml")
