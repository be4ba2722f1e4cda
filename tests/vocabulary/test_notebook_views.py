"""Tests of notebook output: tables with intervals, images that are large enough, and escaped strings."""

import re
import sys
import types
from base64 import b64decode
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from html_structure import Structure
from PIL import Image
from submissions import write

import saliency_bench as sb
from saliency_bench import notebook_views
from saliency_bench.board.board import SHOWN, Board, Refused
from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.examples import thumbnail_rows, thumbnails
from saliency_bench.read.cell import best
from saliency_bench.read.parts import PartFolder, StoredResult
from saliency_bench.utils import progress
from saliency_bench.utils.overlays import heat_map, overlay, scaled

ALLOWED = {"table", "thead", "tbody", "tr", "th", "td", "p", "strong", "div", "figure", "figcaption", "img"}
HOSTILE = "<script>alert('x')</script>"


def lit(classifier, images, target):
    return images.mean(dim=1)


lit.__name__ = HOSTILE


def structure_of(page):
    """Parse a page, and check that it is balanced and contains only a few types of tags."""
    structure = Structure(page)
    assert structure.open == []
    assert set(structure.tags) <= ALLOWED
    return structure


def images_of(page):
    found = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    return [Image.open(BytesIO(b64decode(data))) for data in found]


@pytest.fixture(scope="module")
def done(tmp_path_factory, shapes, resnet):
    return sb.run(dataset=str(shapes), model=str(resnet), explainers=["centre", "random", lit],
                  metrics=["saliency_miou", "saliency_pointing_game"], limit=60, split="train", device="cpu",
                  progress=False, out=tmp_path_factory.mktemp("runs") / "shown")  # fmt: skip


def test_run_view_shows_intervals_and_verdict(done):
    shown = structure_of(done._repr_html_())
    assert shown.tags.count("tr") == 4
    texts = " ".join(shown.texts)
    for cell in done.cells:
        assert f"{cell.value:.3f} [{cell.low:.3f}, {cell.high:.3f}]" in texts
    assert HOSTILE in texts  # as text, not as a tag
    for sentence in done.verdict:
        assert sentence in texts
    assert str(done.report) in texts
    assert "60 samples" in texts
    assert repr(done) == str(done)
    marked = [cell for cell in done.cells if cell.cell_id in best(done.cells)]
    assert marked
    for cell in marked:
        assert f"<strong>{cell.value:.3f} [" in done._repr_html_()
    assert done._repr_html_().count("<strong>") - 1 == len(marked)  # and the title


def test_explanation_view_shows_image_and_map(shapes, resnet):
    sample = sb.load_dataset(shapes)[0]
    seen = sb.explain(sample["image"], str(resnet), "edges")
    page = seen._repr_html_()
    picture, overlay = images_of(page)
    assert min(picture.size) >= 224
    assert picture.size == overlay.size
    original = np.asarray(sample["image"].convert("RGB").resize(picture.size, Image.Resampling.NEAREST), dtype=float)
    assert np.abs(np.asarray(picture, dtype=float) - original).mean() < 8  # JPEG
    assert "edges" in " ".join(structure_of(page).texts)
    assert seen.prediction in " ".join(structure_of(page).texts)
    strip = Image.open(BytesIO(seen._repr_png_()))
    assert strip.height >= 224
    assert strip.width >= 2 * 224


def test_pictures_are_scaled_to_display_size():
    sizes = {(32, 32): (224, 224), (48, 48): (240, 240), (224, 224): (224, 224), (600, 600): (512, 512),
             (1000, 250): (896, 224), (300, 400): (300, 400)}  # fmt: skip
    for given, shown in sizes.items():
        assert notebook_views.large(Image.new("RGB", given)).size == shown


def test_metric_and_explainer_views_describe_them():
    def says(item, *words):
        texts = " ".join(structure_of(item._repr_html_()).texts)
        assert [word for word in words if word not in texts] == []

    insertion = sb.load_metric("saliency_insertion", steps=4)
    says(insertion, "saliency_insertion:steps=4", "higher is better", "curves", "steps=4", "-1 to 1")
    says(sb.load_explainer("rise", masks=9), "rise:masks=9", "Petsiuk", "masks=9", "outputs")

    @sb.metric(higher_is_better=False)
    def own(maps):
        """Mean <b>level</b>."""
        return maps.mean(axis=(1, 2))

    metric = as_metric(own)
    says(metric, "own", "Mean <b>level</b>.", "lower is better", "unbounded", metric.version)
    own.__name__ = HOSTILE
    says(as_metric(own), HOSTILE)
    says(as_explainer(lit), HOSTILE)


def test_board_view_shows_and_counts_its_cells(tmp_path):
    write(tmp_path, {"gradcam": np.linspace(0.1, 0.9, 60), "mine@1": np.linspace(0.2, 0.3, 60)}, "ada")
    first, second = sb.load_results(tmp_path).rows
    hostile = second.cell.model_copy(update={"explainer_text": HOSTILE})  # a name that no submission can have
    board = Board([first, replace(second, cell=hostile)], [], [])
    shown = structure_of(board._repr_html_())
    texts = " ".join(shown.texts)
    assert shown.tags.count("tr") == 1 + len(board.cells) == 3
    for words in (f"{first.cell.value:.3f} [", "ada", HOSTILE):
        assert words in texts
    page = Board([first] * (SHOWN + 3), [], [Refused("a/b/c", f"left out {HOSTILE}")])._repr_html_()
    assert structure_of(page).tags.count("tr") == 1 + SHOWN
    assert "3 more" in page
    assert HOSTILE not in page


def test_notebook_progress_uses_tqdm_auto(monkeypatch):
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    auto = types.ModuleType("tqdm.auto")
    auto.tqdm = type("Widget", (), {"__init__": lambda self, iterable=None, **options: setattr(self, "got", options)})
    monkeypatch.setitem(sys.modules, "tqdm.auto", auto)
    assert progress.bar(total=3, desc="all").got == {"total": 3, "desc": "all"}
    shell.config = {}
    assert not isinstance(progress.bar(total=3, shown=False), auto.tqdm)


def test_signed_map_has_two_colours_around_zero():
    values = np.zeros((20, 20))
    values[2:6, 2:6], values[12:16, 12:16] = 1.0, -0.5
    values[0, 0] = 1000.0  # as for a single pixel of a gradient
    drawn = np.asarray(overlay(np.full((20, 20, 3), 128, np.uint8), values), dtype=int)
    red, blue = drawn[..., 0] - drawn[..., 2], drawn[..., 2] - drawn[..., 0]
    assert red[4, 4] > 30
    assert blue[14, 14] > 30
    assert abs(red[9, 9]) < 5  # zero
    other = np.asarray(overlay(np.full((20, 20, 3), 128, np.uint8), -values), dtype=int)
    assert (other[..., 2] - other[..., 0])[4, 4] > 30


def test_scaled_map_keeps_zero_and_signs():
    values = np.linspace(-1, 3, 81).reshape(9, 9)
    assert scaled(values)[values == 0] == 0
    np.testing.assert_array_equal(np.sign(scaled(values)), np.sign(values))
    assert scaled(values).max() == 1
    np.testing.assert_allclose(scaled(values + 1), (values + 1) / 4)
    # negative only because of rounding
    np.testing.assert_allclose(scaled(values + 1 - 1e-9), (values + 1) / 4, atol=1e-8)
    assert not scaled(np.full((3, 3), 7.0)).any()
    assert (scaled(np.full((3, 3), -7.0)) == -1).all()


def test_thumbnails_keep_signs_of_maps(tmp_path):
    maps = torch.zeros(2, 112, 112)
    maps[0, :56], maps[0, 56:] = 2, -1
    maps[1, :56] = 5
    folder = PartFolder(tmp_path / "thumbnails", "run")
    folder.write([StoredResult("mine", [8, 10], {"mine": thumbnail_rows(maps, [8, 10])})])
    assert thumbnails(folder.parts(), "another", [8]) == {}
    stored = {place - 8: values for place, values in thumbnails(folder.parts(), "mine", [8, 9, 10]).items()}
    assert {place: values.shape for place, values in stored.items()} == {0: (56, 56), 2: (56, 56)}
    assert (stored[0][0, 0], stored[0][-1, -1], stored[2][0, 0], stored[2][-1, -1]) == (255, -128, 255, 0)
    colours = np.asarray(heat_map(stored[0]).convert("RGB"), dtype=int)
    assert colours[0, 0, 0] > colours[0, 0, 2]
    assert colours[-1, -1, 2] > colours[-1, -1, 0]
