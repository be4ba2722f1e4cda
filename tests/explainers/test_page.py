"""The page of all explainers is written by a script; this is what tells whoever adds one to run it."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from saliency_bench import load_classifier, registry
from saliency_bench.explainers import _page
from saliency_bench.types import Batch

PAGE = _page.PAGE
RUN = f"run: {_page.SCRIPT}"


@pytest.fixture(scope="module")
def text():
    return PAGE.read_text(encoding="utf-8")


def test_the_page_lists_the_explainers_that_there_are(text):
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == registry.names("explainers"), RUN


@pytest.mark.parametrize("name", registry.names("explainers"))
def test_the_page_says_what_the_docstrings_say(name, text):
    assert _page.section(name) in text, RUN


def test_every_explainer_is_in_a_picture_or_left_out_with_a_reason(text):
    pictured = [
        name for line in re.findall(r"^In the picture: (.*)\.$", text, re.MULTILINE) for name in line.split(", ")
    ]
    left_out = re.findall(r"^- (\w+): .+$", text, flags=re.MULTILINE)
    assert sorted(pictured + left_out) == registry.names("explainers"), RUN


def test_the_pictures_are_there(text):
    files = re.findall(r"\]\((maps_\w+\.png)\)", text)
    assert files
    for file in files:
        with Image.open(_page.FOLDER / file) as picture:
            assert picture.width == 200 * _page.COLUMNS


def test_an_explainer_that_refuses_a_network_is_left_for_the_next_with_its_reason(monkeypatch):
    module = registry.load("explainers", "centre")

    def refusing(classifier, images, target, *, sigma=0.25):
        raise _page.UserError("only for transformers")

    refusing.__name__ = "centre"
    monkeypatch.setattr(module, "centre", refusing)
    classifier = load_classifier(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2)), device="cpu", mean=0, std=1
    )
    maps, reasons = _page.maps_of(
        classifier, torch.rand(1, 3, 4, 4), torch.tensor([[1.0, 0.0]]), ["centre", "random", "occlusion"]
    )
    assert list(maps) == ["random", "occlusion"]
    assert reasons == {"centre": "only for transformers"}
    assert "In no picture:\n\n- centre: only for transformers\n" in _page.page(["top"], reasons)


def test_samples_are_seen_rightly_lie_whole_in_the_image_and_away_from_the_middle():
    masks = torch.zeros(4, 9, 9, dtype=torch.bool)
    for mask, (row, column) in zip(masks, [(4, 4), (6, 6), (1, 1), (0, 4)], strict=True):
        mask[row, column] = True
    batch = Batch(torch.zeros(4, 3, 9, 9), masks, torch.zeros(4), list("abcd"), [None] * 4)
    assert _page.telling(batch, torch.ones(4, dtype=torch.bool)) == [2, 1, 0]
    assert _page.telling(batch, torch.tensor([True, True, False, True])) == [1, 0]


def test_a_sample_with_a_constant_map_is_passed_over(monkeypatch):
    batch = Batch(torch.rand(2, 3, 9, 9), torch.ones(2, 9, 9, dtype=torch.bool), torch.zeros(2), list("ab"), [None] * 2)
    classifier = load_classifier(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(243, 2)), labels=["a", "b"], mean=0, std=1
    )
    shown = []
    monkeypatch.setattr(_page, "load_dataset", lambda *rows, **split: None)
    monkeypatch.setattr(type(classifier), "prepare", lambda self, rows: batch)
    monkeypatch.setattr(_page, "telling", lambda batch, right: [1, 0])
    flat = iter([np.zeros((9, 9)), np.eye(9)])
    monkeypatch.setattr(_page, "maps_of", lambda classifier, image, *rest: ({"one": next(flat)}, {}))
    monkeypatch.setattr(_page, "write_with", lambda path, write: shown.append(write.keywords["image"]))
    _page.with_picture([], {"one": ""}, "Net", classifier, _page.FOLDER)
    assert torch.equal(shown[0], batch.images[0])


def test_a_picture_shows_the_image_and_every_map(tmp_path):
    maps = {name: np.random.default_rng(0).normal(size=(8, 8)) for name in ("one", "two")}
    _page.draw(tmp_path / "maps.png", torch.rand(3, 8, 8), torch.eye(8) > 0, maps)
    with Image.open(tmp_path / "maps.png") as picture:
        assert picture.size == (200 * _page.COLUMNS, 225)
