"""Tests of the page of `choose`, created from plain data: its content, no external files, and escaped names."""

import numpy as np
import pytest
from scored_cells import run_of

from saliency_bench.read.analysis.sequential import ALIKE, ONE_LEFT
from saliency_bench.read.report.choice_cards import cards_of
from saliency_bench.read.report.choice_page import page_text, sentences
from saliency_bench.read.report.plots import distribution_plot

METRIC = "saliency_average_precision"


def result(value, lead=None):
    numbers = {"value": value, "low": value - 0.05, "high": value + 0.05, "n": 60, "clusters": 60, "rare": False}
    ahead = {} if lead is None else {"winner_ahead": numbers | {"value": lead, "low": lead - 0.01, "high": lead + 0.01}}
    return numbers | ahead


CONTENT = {
    "saliency_bench": "1", "command": "saliency-bench choose --dataset d", "device": "cpu", "seconds": 12.0,
    "dataset": {"id": "folder:d", "split": "test", "images": 120, "masks": True},
    "model": {"id": "<b>net</b>", "layer": "layer4"}, "margin": 0.02, "may_decide": 60,
    "later_images": 60, "seed": 0, "within": None,
    "setup": "label = 3",
    "candidates": [
        {"name": "gradcam", "baseline": False, "passes": 1, "load": 'explainer = sb.load_explainer("gradcam")',
         "elsewhere": {"pytorch-grad-cam": "GradCAM(model=model)"}},
        {"name": "lime", "baseline": False, "passes": 1000, "load": "", "elsewhere": {}},
        {"name": "random", "baseline": True, "passes": 0, "load": "", "elsewhere": {}},
    ],
    "not_tried": {"attention": "this network has none"}, "twins": {"gradcam:layer=layer4": "gradcam"},
    "too_slow": ["scorecam"], "within_for_all": 5400,
    "questions": [{"name": "alignment", "about": "pointing at the object", "silent": "whether it is faithful",
                   "metrics": [METRIC], "recommended": "gradcam", "as_good": [], "not_shown": None}],
    "metrics": [{
        "metric": METRIC, "higher_is_better": True, "outcome": "method", "left": ["gradcam"], "by_sign": False,
        "unbeaten_baselines": [], "beat_baselines": ["gradcam"], "not_shown_to_beat": {"gradcam": []},
        "apart": ["gradcam"],
        "images": 24, "clusters": 24, "ended": ONE_LEFT, "images_needed": None,
        "dropped": [{"name": "random", "clusters": 16, "wealth": 9.0, "behind": 0.31, "leader": "gradcam"},
                    {"name": "lime", "clusters": 24, "wealth": 5.0, "behind": 0.12, "leader": "gradcam"}],
        "later": {"gradcam": result(0.9), "random": result(0.4, 0.5)},
    }],
    "rounds": [{"limit": limit, "images": limit, "clusters": limit, "lineup": {METRIC: names}, "dropped": {METRIC: []}}
               for limit, names in ((16, ["gradcam", "lime", "random"]), (24, ["gradcam", "lime"]))],
    "reliability": {"gradcam": {"median": 0.5, "n": 9, "draws": 100}, "lime": {"median": 0.9, "n": 9, "draws": 5}},
    "survive_random_weights": [], "passes": {"spent": 100, "all": 1000},
    "checks": {"gradcam": {"verdict": "depends", "similarity": 0.1, "low": 0.0, "high": 0.2, "n": 16,
                           "class_sensitivity": -0.4}},
}  # fmt: skip


RUN = run_of({"gradcam": np.ones(4), "random": np.zeros(4)}, metric=METRIC, summary={
    "model": {"accuracy": {"value": 0.9, "low": 0.8, "high": 0.95, "n": 4, "clusters": 4}}})  # fmt: skip


def test_reason_that_ended_the_race_decides_what_is_missing():
    metric = CONTENT["metrics"][0] | {"ended": ALIKE, "left": ["gradcam", "lime"], "apart": ["gradcam", "lime"]}
    page = page_text(CONTENT | {"metrics": [metric], "margin": 0.02}, RUN)
    assert "gradcam leads none of the others by more than 0.02" in page
    assert f"ended because {ALIKE}" in page


def test_method_not_shown_to_beat_baselines_is_not_recommended():
    question = CONTENT["questions"][0] | {"recommended": None, "not_shown": "gradcam"}
    content = CONTENT | {"questions": [question], "metrics": [CONTENT["metrics"][0] | {
        "beat_baselines": [], "not_shown_to_beat": {"gradcam": ["random"]}}]}  # fmt: skip
    first, second, *_ = sentences(content)
    assert first.startswith(
        "For pointing at the object, nothing is recommended: gradcam is not beaten, but is not shown"
    )
    assert "gradcam, not shown to beat random maps (0.900 [" in second


@pytest.mark.parametrize("outcome", ["nothing", "baseline", "open", "method"])
@pytest.mark.parametrize("left", [["gradcam"], ["gradcam", "lime"], ["lime", "gradcam"], ["random", "gradcam"]])
@pytest.mark.parametrize("beat", [[], ["gradcam"], ["gradcam", "lime"]])
@pytest.mark.parametrize("recommended", [None, "gradcam"])
def test_card_verdict_follows_from_metric_outcome(outcome, left, beat, recommended):
    answer = CONTENT["metrics"][0] | {"outcome": outcome, "left": left, "beat_baselines": beat}
    question = CONTENT["questions"][0] | {"recommended": recommended}
    (card,) = cards_of(question, CONTENT | {"metrics": [answer]})
    assert card["is_good"] == (outcome == "method" and card["explainer"] in beat)
    assert (card["explainer"] == "") == (outcome == "nothing") == (card["verdict"] == "no scores")
    assert ("a baseline" in card["verdict"]) == (outcome == "baseline")
    assert ("not shown to beat every baseline" in card["verdict"]) == (
        outcome in ("open", "method") and not card["is_good"]
    )
    if outcome == "method" and recommended:
        assert card["explainer"] == recommended
    if card["is_good"]:
        others = len(set(left) - {"random", card["explainer"]})
        assert card["verdict"] == (f"not distinguishable from {others} other" if others else "best")
    if card["later"]:
        assert card["later"].value == answer["later"][card["explainer"]]["value"]


def test_page_shows_recommendation_evidence_and_settings():
    page = page_text(CONTENT, RUN)
    for text in (
        "For pointing at the object: gradcam (one pass per image).",
        "2 others are beaten by at least 0.12",
        "Reliability of the maps of gradcam: 0.50 (below 0.8; about 900 draws instead of 100 would reach 0.9).",
        "0.900", "[0.850, 0.950]", "gradcam leads by +0.500", "explainer = sb.load_explainer(&#34;gradcam&#34;)",
        "GradCAM(model=model)", "this network has none", "saliency-bench choose --dataset d",
        "10 % of the 1,000", "90.0", "&lt;b&gt;net&lt;/b&gt;", "label = 3",
        "gradcam:layer=layer4 and gradcam have the same maps here and are counted once, as gradcam.",
        "Not tried for lack of time: scorecam; use --within 90m to try all.",
    ):  # fmt: skip
        assert text in page, text
    # The length of a bar is the number of images: random explained 16 of 24 images, lime all of them.
    assert 'class="name">random</span><span><span class="bar" style="width: 66.67%">' in page
    assert 'class="name">lime</span><span><span class="bar" style="width: 100.0%">' in page
    assert "Reliability of the maps of lime" not in page  # lime is not recommended
    assert "<b>net" not in page
    assert "<script" not in page


def test_nearly_equal_scores_are_plotted():
    near = np.array([1.0, np.nextafter(1.0, 0), 1.0])
    run = run_of({"gradcam": near, "random": near}, metric=METRIC)
    table = run.table
    svg, _ = distribution_plot(table, run.scores, table.columns[0])
    assert "<svg" in svg
