"""Test the page of all explainers in the documentation."""

import re

import numpy as np
import torch
from PIL import Image
from site_pages import site_page

from saliency_bench import explainer, load_classifier, registry
from saliency_bench.types import Batch

page = site_page("explainers")


def test_page_without_network_shows_docstrings(tmp_path):
    page.write(tmp_path, models=None)
    text = (tmp_path / "explainers.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == registry.names("explainers")
    assert "by bilinear interpolation" in text
    assert "- `masks=4000`: " in text.partition("## rise")[2]


def test_page_gives_reason_for_missing_map(monkeypatch):
    module = registry.load("explainers", "centre")

    @explainer(version=1)
    def refusing(classifier, images, target, *, sigma=0.25):
        raise page.UserError("only for transformers")

    refusing.__name__ = "centre"
    monkeypatch.setattr(module, "centre", refusing)
    classifier = load_classifier(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2)), device="cpu", mean=0, std=1
    )
    maps, reasons = page.maps_of(classifier, torch.rand(1, 3, 4, 4), torch.tensor([[1.0, 0.0]]),
                                 ["centre", "random", "occlusion"])  # fmt: skip
    assert list(maps) == ["random", "occlusion"]
    assert reasons == {"centre": "only for transformers"}
    assert "Explainers without a picture:\n\n- centre: only for transformers\n" in page.page(["top"], reasons)


def test_samples_are_correct_uncut_and_off_centre():
    masks = torch.zeros(4, 9, 9, dtype=torch.bool)
    for mask, (row, column) in zip(masks, [(4, 4), (6, 6), (1, 1), (0, 4)], strict=True):
        mask[row, column] = True
    batch = Batch(torch.zeros(4, 3, 9, 9), masks, torch.zeros(4), list("abcd"), [None] * 4)
    assert page.telling(batch, torch.ones(4, dtype=torch.bool)) == [2, 1, 0]
    assert page.telling(batch, torch.tensor([True, True, False, True])) == [1, 0]


def test_sample_with_constant_map_is_skipped(monkeypatch, tmp_path):
    batch = Batch(torch.rand(2, 3, 9, 9), torch.ones(2, 9, 9, dtype=torch.bool), torch.zeros(2), list("ab"), [None] * 2)
    classifier = load_classifier(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(243, 2)), labels=["a", "b"], mean=0, std=1
    )
    shown = []
    monkeypatch.setattr(page, "load_dataset", lambda *rows, **split: None)
    monkeypatch.setattr(type(classifier), "prepare", lambda self, rows: batch)
    monkeypatch.setattr(page, "telling", lambda batch, right: [1, 0])
    flat = iter([np.zeros((9, 9)), np.eye(9)])
    monkeypatch.setattr(page, "maps_of", lambda classifier, image, *rest: ({"one": next(flat)}, {}))
    monkeypatch.setattr(page, "write_with", lambda path, write: shown.append(write.keywords["image"]))
    page.with_picture([], {"one": ""}, "Net", classifier, tmp_path, tmp_path)
    assert torch.equal(shown[0], batch.images[0])


def test_picture_shows_image_and_every_map(tmp_path):
    maps = {name: np.random.default_rng(0).normal(size=(8, 8)) for name in ("one", "two")}
    page.draw(tmp_path / "maps.png", torch.rand(3, 8, 8), torch.eye(8) > 0, maps)
    with Image.open(tmp_path / "maps.png") as picture:
        assert picture.size == (200 * page.COLUMNS, 225)
