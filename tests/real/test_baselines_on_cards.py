"""Tests that metric cards have the scores of baselines in benchmarks/baselines.json, and that a run reproduces them."""

import json

import baselines
import pytest

import saliency_bench as sb
from saliency_bench import registry


@pytest.fixture(scope="module")
def table():
    return json.loads(baselines.TABLE.read_text(encoding="utf-8"))


def test_each_card_has_the_lines_of_the_table(table):
    measured = {metric.name for metric in baselines.measured()}
    assert measured == set(table["shapes-xai"]) > set(table["photos-xai"])
    for name in registry.names("metrics"):
        card = baselines.card_of(name).read_text(encoding="utf-8")
        text = baselines.block(sb.load_metric(name), table)
        assert card.count(text) == card.count(baselines.BEGIN) == 1, f"{name}: python benchmarks/baselines.py --write"
        assert ("are not reported here" in text) == (name not in measured)


def test_baselines_that_reach_the_best_score_are_named():
    means = {"random": 0.9, "centre": 0.2, "edges": None, "gradcam": 0.9, "upside_down": 0.1, "mask": None}
    higher, lower = (baselines.verdict(sb.load_metric(f"saliency_{name}"), means) for name in ("miou", "deletion"))
    assert (
        higher
        == "`random` reaches the best score on the drawings, so the metric does not measure whether a map is right."
    )
    assert lower == "No baseline reaches the best score on the drawings."
    both = baselines.verdict(
        sb.load_metric("saliency_deletion"), means | {"random": 0.1, "centre": 0.05, "edges": 0.05}
    )
    assert both.startswith("`centre` and `edges` reach the best score")


@pytest.mark.slow
def test_two_cells_are_what_a_run_computes_today(table, lite0, photos_folder, tmp_path):
    run = sb.run(dataset=str(photos_folder), model=lite0, explainers=["centre"], target="predicted", device="cpu",
                 metrics=["saliency_energy", "saliency_miou"], out=tmp_path / "run", progress=False)  # fmt: skip
    assert len(run.cells) == 2
    for cell in run.cells:
        assert cell.value == pytest.approx(table["photos-xai"][cell.metric]["centre"], rel=1e-6), cell.metric
