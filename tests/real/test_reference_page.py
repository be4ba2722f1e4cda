"""Tests of the page of the reference study: its sentences follow from generated numbers with known orders."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference
import reference_figures
import reference_page as script
from findings_data import analysed
from scipy.stats import spearmanr

from saliency_bench.recipes.suites.suite_schema import Suite, find_suite

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def published():
    return script.load()


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
    return analysed(replace(run, ids=ids, groups=[None] * images, values=values))


def up(number, _):
    return 1.0 + number


def down(number, _):
    return 6.0 - number


@pytest.mark.parametrize(("place", "rho"), [(up, 1), (down, -1)])
def test_orders_that_are_known_are_found_with_intervals(published, place, rho):
    run = published.runs["lite0-pets"]
    first, other = generated(run, up), generated(run, place, seed=1)
    found = script.orders(first, other, "a network")
    assert [order.rho.value for order in found] == pytest.approx([rho] * 6)
    assert all(order.above == (rho > 0) == order.same_best for order in found)
    lines = "\n".join(script.question_shapes(found, {"resnet-shapes": first}))
    assert f"{6 if rho > 0 else 0} have an interval above 0" in lines
    assert f"Spearman's correlation is {rho:.2f} on average" in lines
    assert f"{0 if rho > 0 else 6} have an interval below 0" in lines
    assert ("by no metric with every network" in lines) == (rho < 0)
    assert f"{6 if rho > 0 else 0} of 6" in "\n".join(script.question_networks(found, {}))


def test_an_order_is_spearmans_of_the_means_of_the_images_that_a_run_has(published):
    first, other = (published.runs[f"lite0-{name}"] for name in ("pets", "voc"))
    for order in script.orders(first, other, ""):
        means = [[np.nanmean(run.oriented(cell)) for cell in run.cells if cell.metric == order.metric
                  and not cell.baseline] for run in (first, other)]  # fmt: skip
        assert order.rho.value == pytest.approx(spearmanr(*means).statistic)
        assert order.same_best == (np.argmax(means[0]) == np.argmax(means[1]))


@pytest.mark.parametrize("images", [20, 60])
def test_sentences_about_baselines_follow_from_known_leaders(published, images):
    """Test that the last two explainers lead by the first metric only. 20 images are too few for a test."""
    run = published.runs["lite0-pets"]
    names = methods(run)
    run = generated(run, lambda number, metric: 3.0 if names[number] in names[-2:] and metric == 0 else -1.0, images)
    lines = "\n".join(script.question_beaten({"lite1": [run]}, {}))
    cases = 6 if images == 60 else 0
    assert f"Lite1 n = {images}" in lines
    assert f"in {min(1, cases)} of {cases} cases" in lines
    assert [f"{name}: 1 of 6" in lines for name in names] == [cases > 0 and name in names[-2:] for name in names]


def test_options_of_metrics_and_explainers_hide_no_leader(published):
    """Test that the last explainer, which has options, leads on every metric of agreement or faithfulness."""
    run = published.runs["resnet-shapes-shapes"]
    run = generated(run, lambda number, _: 3.0 if number == len(methods(run)) - 2 else -1.0)
    ((_, found),) = script.beaten({"resnet-shapes": [run]}).items()
    assert "saliency_insertion" in found
    assert len(found) == 8
    assert all(names == [methods(run)[-2]] for names in found.values())
    assert methods(run)[-2] in script.names_of([run])


def test_images_of_several_sets_are_one_sample(published):
    runs = {name: published.runs[f"lite0-{name}"] for name in ("pets", "voc")}
    whole = script.pooled(runs)
    assert len(whole.ids) == len(set(whole.ids)) == sum(len(run.ids) for run in runs.values())
    for cell in whole.cells:
        key = (cell.explainer_text, cell.metric_text)
        scores = np.concatenate([run.values[of.cell_id] for run in runs.values() for of in run.cells
                                 if (of.explainer_text, of.metric_text) == key])  # fmt: skip
        assert cell.value == pytest.approx(np.nanmean(scores))


def test_metrics_that_agree_stand_side_by_side():
    rho = {pair: script.Estimate.alone(value, np.ones(9)) for pair, value in
           {("a", "b"): -0.5, ("a", "c"): 0.9, ("a", "d"): -0.4, ("b", "c"): -0.6, ("b", "d"): 0.8, ("c", "d"): 0.0}
           .items()}  # fmt: skip
    names = reference_figures.clustered(rho)
    assert abs(names.index("a") - names.index("c")) == abs(names.index("b") - names.index("d")) == 1


def test_the_plan_counts_passes_at_the_documented_speed():
    content = find_suite("reference")[1].model_dump()
    metrics = {"a": {"metric": "saliency_insertion:steps=9"}, "b": {"metric": "saliency_max_sensitivity:draws=3"}}
    table = {"title": "t", "runs": ["all"], "rows": ["model"], "columns": ["explainer", "value"], "values": metrics}
    run = {"datasets": ["pets"], "models": ["lite0", "lite1"], "explainers": ["rise:masks=40", "gradient"]}
    suite = Suite.model_validate(content | {"runs": {"all": run}, "tables": {"one": table}})
    ((_, images, cost, hours),) = script.plan(suite, 10)
    forward, gradient = 1 + 40 * 4 + 2 * 10, 1 * 4  # a prediction; a map and the maps of 3 draws; insertion of each
    assert (images, cost.forward, cost.gradient) == (20, 20 * forward, 20 * gradient)
    assert hours == pytest.approx(20 * (forward * 1.938 / 16_000 + gradient * 0.239 / 800) / 3600)
    speed = (DOCS / "speed.md").read_text(encoding="utf-8")
    assert "| 800 | 0.239 (" in speed
    assert "| 16,000 | 1.938 (" in speed


def test_the_small_form_is_the_suite_with_other_options(tmp_path):
    (tmp_path / "small.yaml").write_text(reference.small({"rise": {"masks": 7}}))
    small, whole = (find_suite(name)[1] for name in (f"{tmp_path}/small.yaml", "reference"))
    changed = {
        name: [text.replace("rise:masks=7", "rise") for text in run.explainers] for name, run in small.runs.items()
    }
    assert changed == {name: list(run.explainers) for name, run in whole.runs.items()}
    assert "rise:masks=7" in small.runs["vit"].explainers


def test_the_published_page_has_the_numbers_of_its_data_file(published, tmp_path):
    assert script.page(published) == (DOCS / "reference.md").read_text(encoding="utf-8")
    script.write_figures(published, tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 5
    for path in drawn:
        texts = [re.findall(r">([^<>\s][^<>]*)<", file.read_text()) for file in (path, DOCS / "pictures" / path.name)]
        assert texts[0] == texts[1]
