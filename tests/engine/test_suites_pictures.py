"""Pictures of suites: which images are chosen, what a cell shows, and the files of every picture."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from torch import nn

from saliency_bench.engine.suites.jobs import Choice, jobs_of
from saliency_bench.engine.suites.pictures import _parts, cell_of, chosen
from saliency_bench.engine.suites.schema import Images, Picture, View, find_suite, read_suite
from saliency_bench.engine.suites.suite import suite
from saliency_bench.errors import UserError
from saliency_bench.scoring.partners import PartnerSamples

IDS = ["a", "b", "c", "d"]
SCORES = {"gradcam": [0.1, 0.9, 0.5, np.nan], "random": [0.2, 0.1, 0.4, 0.3]}


@pytest.fixture
def run(tmp_path):
    cells = [SimpleNamespace(cell_id=name, explainer_text=name, metric_text="saliency_miou") for name in SCORES]
    pd.DataFrame({"image_id": IDS, "label": [2, 10, 2, 10]}).to_parquet(tmp_path / "predictions.parquet")
    position = {image_id: place for place, image_id in enumerate(IDS)}
    return SimpleNamespace(ids=IDS, position=position, cells=cells, folder=tmp_path,
                           oriented=lambda cell: np.array(SCORES[cell.cell_id]))  # fmt: skip


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ({"ids": ["d", "a"]}, "da"),
        ({"count": 2}, "ab"),
        ({"rule": "per class", "count": 1}, "ab"),
        ({"rule": "per class", "count": 2}, "acbd"),
        ({"rule": "lowest", "count": 2}, "ac"),  # means 0.15, 0.5, 0.45, none
        ({"rule": "highest", "count": 1}, "b"),
        ({"rule": "disputed", "count": 2}, "ba"),  # spreads 0.05, 0.4, 0.05, none
    ],
)
def test_images_are_chosen_by_id_or_by_rule(run, images, expected):
    assert "".join(chosen(Images(**images), run, ["saliency_miou"], list(SCORES))) == expected


def test_rules_go_by_the_explainers_of_the_picture(run):
    images = Images(rule="lowest", count=2)
    assert chosen(images, run, ["saliency_miou"], ["random"]) == ["b", "a"]  # of gradcam too it would be a and c
    with pytest.raises(UserError, match="needs a value"):
        chosen(images, run, ["saliency_miou"], ["rise"])


def test_images_are_chosen_by_file(run, tmp_path):
    for text in ("c\n\nb\n", "image_id,why\nc,so\nb,too\n"):
        (tmp_path / "ids").write_text(text)
        assert chosen(Images(file=str(tmp_path / "ids")), run, [], []) == ["c", "b"]
    with pytest.raises(UserError, match="unknown image 'e'"):
        chosen(Images(ids=("e",)), run, [], [])
    with pytest.raises(UserError, match="needs a value"):
        chosen(Images(rule="disputed"), run, [], [])


class White(nn.Module):
    """Logits (2 ln 3 times the share of white, 0), so that p of class 0 is 1 / 2 for black and 0.9 for white."""

    activation = "softmax"

    def forward(self, images):
        white = images.mean(dim=(1, 2, 3)) * 2 * np.log(3)
        return torch.stack([white, torch.zeros_like(white)], dim=1)


FIRST = torch.tensor([[1.0, 0.0]])


def test_parts_of_a_picture_are_those_of_its_map():
    maps = np.array([[[0.9, 0.1], [0.6, 0.2]]], np.float32)
    shown = {kind: _parts(White(), torch.ones(1, 3, 2, 2), FIRST, maps, View(kind=kind, share=0.25))
             for kind in ("top", "rest", "region")}  # fmt: skip
    assert {kind: (cell.pixels[..., 0] == 255).ravel().tolist() for kind, cell in shown.items()} == {
        "top": [True, False, False, False],
        "rest": [False, True, True, True],
        "region": [True, False, True, False],
    }
    # A half is white: 3 / (3 + 1).
    assert shown["region"].lines == ("50% of the image, p 0.750",)


def test_the_salient_region_of_the_partner_is_pasted_or_the_rest_of_it():
    """The partner is white and its map marks the left half; the image itself is black."""
    maps = np.array([[[0.9, 0.1], [0.8, 0.2]]], np.float32)
    context = SimpleNamespace(classifier=White())
    partner = PartnerSamples(["h"], torch.ones(1, 3, 2, 2), np.array([[True, False]]), [7])

    def provider(explainer, seeds):
        assert (explainer, list(seeds)) == ("an explainer", [7])
        return lambda images, target: maps

    sample = SimpleNamespace(context=context, partner=partner, images=torch.zeros(1, 3, 2, 2), provider=provider)
    shown = {kind: cell_of(sample, "an explainer", View(kind=kind)) for kind in ("pasted", "inverse")}
    assert shown["pasted"].pixels[..., 0].tolist() == [[255, 0], [255, 0]]
    assert shown["inverse"].pixels[..., 0].tolist() == [[0, 255], [0, 255]]
    assert cell_of(sample, "an explainer", View(kind="picture", partner=True)).lines == ("p 0.900",)
    assert cell_of(sample, "an explainer", View(kind="region", partner=True)).lines == ("50% of the image, p 0.750",)
    alone = SimpleNamespace(partner=None)
    assert cell_of(alone, "an explainer", View(kind="pasted")).lines == ("not paired",)


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"rows": ["image", "view"], "columns": ["view"]}, "only once"), ({"rows": ["explainer"]}, "axis view"),
     ({"values": {"a": {"accuracy": "top1"}}}, "score of a metric")],
)  # fmt: skip
def test_a_picture_has_one_place_for_each_view(keys, words):
    whole = {"title": "t", "runs": ["all"], "rows": ["image"], "columns": ["view"], "views": {"a": {}, "b": {}}}
    Picture.model_validate(whole)
    with pytest.raises(ValueError, match=words):
        Picture.model_validate(whole | {"columns": ["image" if "explainer" in str(keys) else "view"]} | keys)


def test_a_picture_alone_runs_only_what_it_shows(tmp_path):
    _, content, names = find_suite("p0-figure3")
    (job,) = jobs_of(content, names, Choice(tmp_path))
    assert (job.dataset, job.model, job.spec.explainers) == ("action-xai", "resnet-18", ("gradcam",))
    every = {other.folder for other in jobs_of(content, content.items, Choice(tmp_path))}
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
def test_a_picture_is_written_in_three_formats_and_shown_on_the_page(tmp_path):
    (tmp_path / "own.yaml").write_text(PICTURES)
    options = {"out": tmp_path / "out", "smoke": True, "device": "cpu", "progress": False}
    done = suite(f"{tmp_path / 'own.yaml'}:maps", **options)
    assert (done.failed, done.tables, done.pictures) == ({}, [], ["maps"])
    folder = tmp_path / "out" / "pictures"
    svg = (folder / "maps.svg").read_text()
    assert svg.count("<image") == 2 * 4 * 4
    assert svg.count(">IDR ") == 2 * 2 * 4
    assert "no image_without" not in svg
    assert (folder / "maps.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(folder / "maps.png") as picture:
        assert min(picture.size) > 300
    assert "<image" in done.page.read_text()
    suite(f"{tmp_path / 'own.yaml'}:maps", **options)
    assert (folder / "maps.svg").read_text() == svg


def test_an_axis_with_several_names_must_stand_somewhere(tmp_path):
    content = yaml.safe_load(PICTURES)
    content["pictures"]["maps"]["columns"] = ["dataset"]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match="its runs have 4 names of explainer"):
        read_suite(tmp_path / "own.yaml")
