"""Tests of `choose`: its rounds with known scores, its sentences, its questions, and one complete run."""

import json
import re
from dataclasses import asdict, dataclass, field
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from refusals import refused
from test_doctor import classifier, pictures
from torch import nn

import saliency_bench as sb
from saliency_bench import targets
from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.errors import UserError
from saliency_bench.read.analysis.sequential import Race
from saliency_bench.read.report.choice_page import MOST_IMAGES, rounded, sentences
from saliency_bench.recipes.choosing import rounds
from saliency_bench.recipes.choosing.answers import answer_of, question_answer
from saliency_bench.recipes.choosing.candidates import candidates
from saliency_bench.recipes.choosing.choose import Choice, _affordable, _score_later
from saliency_bench.recipes.choosing.copying import elsewhere, load_call, setup
from saliency_bench.recipes.choosing.questions import QUESTIONS, questions_of
from saliency_bench.spec import RunSpec
from saliency_bench.utils.durations import seconds_of

METRIC = "saliency_average_precision"


@dataclass
class Known:
    """Laboratory that returns constant scores with a little noise and records requests."""

    means: dict[str, float]
    unchanged: frozenset[str] = frozenset()
    noise: float = 0.05
    asked: list = field(default_factory=list)
    checked: list = field(default_factory=list)

    def scores(self, asked, images):
        self.asked.append((images, {metric: list(names) for metric, names in asked.items()}))
        values = {}
        for metric, names in asked.items():
            for name in names:
                rng = np.random.default_rng(list(f"{name.removesuffix(':again')}{metric}".encode()))
                values[name, metric] = self.means[name] + self.noise * rng.uniform(-1, 1, 400)[:images]
        ids = [str(index) for index in range(images)]
        return rounds.RoundScores(
            values, ids, [None] * images, dict.fromkeys(asked, (0.0, 1.0)), dict.fromkeys(asked, True)
        )

    def survivors(self, names, images):
        self.checked += names
        return self.unchanged & set(names)

    def twins(self, names):
        return dict.fromkeys(names[1:], names[0])


def narrowed(means, baselines=(), images=200, limit=inf, costs=None, **settings):
    laboratory = Known(means, **settings)
    budget = rounds.Budget(limit, costs or dict.fromkeys(means, 1.0), {})
    narrowing = rounds.Narrowing(laboratory, {METRIC: list(means)}, frozenset(baselines), images, budget, 0.02)
    narrowing.narrow()
    return narrowing, laboratory


def content_of(narrowing, laboratory, images=400, later=True, question="alignment", metrics=(METRIC,)):
    if later is True:
        later = laboratory.scores({METRIC: list(laboratory.means)}, 400).since(narrowing.rounds[-1].images)
    answers = [answer_of(contest, narrowing.baselines, later or None) for contest in narrowing.contests.values()]
    asked = QUESTIONS[question]
    return {
        "dataset": {"images": images, "masks": True},
        "may_decide": narrowing.images,
        "margin": 0.02,
        "candidates": [{"name": name, "baseline": name in narrowing.baselines, "passes": 1}
                       for name in laboratory.means],
        "questions": [question_answer(asked, answers, [asked]) | {"metrics": list(metrics)}],
        "metrics": answers,
        "survive_random_weights": sorted(narrowing.excluded),
        "twins": narrowing.twins,
        "too_slow": [],
        "rounds": [asdict(item) for item in narrowing.rounds]}  # fmt: skip


def test_beaten_candidates_are_dropped_and_best_remains():
    narrowing, laboratory = narrowed({"good": 0.9, "poor": 0.3, "random": 0.2, "close": 0.6}, ["random"])
    contest = narrowing.contests[METRIC]
    assert (contest.ended, contest.leader) == (rounds.ONE_LEFT, "good")
    assert set(contest.race.dropped) == {"poor", "random", "close"}
    sizes = [len(asked[METRIC]) for _, asked in laboratory.asked]
    assert (sizes[0], sizes) == (4, sorted(sizes, reverse=True))
    assert contest.race.dropped["poor"].clusters <= contest.race.dropped["close"].clusters
    assert narrowing.budget.spent < 4 * contest.images


def test_method_surviving_random_weights_is_excluded():
    narrowing, laboratory = narrowed({"edges_like": 0.95, "good": 0.7, "random": 0.1}, ["random"],
                                     unchanged=frozenset({"edges_like"}))  # fmt: skip
    contest = narrowing.contests[METRIC]
    assert contest.leader == "good"
    assert "edges_like" not in contest.race.left
    assert "good" not in contest.race.dropped
    assert "random" not in laboratory.checked
    text = " ".join(sentences(content_of(narrowing, laboratory)))
    assert "For pointing at the object: good (one pass per image)." in text
    assert "Excluded, because their maps stay the same when all weights are random: edges_like." in text


def test_candidates_with_same_maps_count_once():
    means = {"good": 0.9, "poor": 0.7, "good:again": 0.9, "random": 0.2}
    narrowing, laboratory = narrowed(means, ["random"])
    assert narrowing.twins == {"good:again": "good"}
    alone, _ = narrowed({name: mean for name, mean in means.items() if name != "good:again"}, ["random"])
    race, expected = narrowing.contests[METRIC].race, alone.contests[METRIC].race
    assert (race.names, race.dropped) == (expected.names, expected.dropped)
    assert [METRIC in asked and "good:again" in asked[METRIC] for _, asked in laboratory.asked][:2] == [True, False]
    text = " ".join(sentences(content_of(narrowing, laboratory)))
    assert "good:again and good have the same maps here and are counted once, as good." in text


CLOSE = {"a": 0.52, "b": 0.5, "c": 0.48, "random": 0.5}


@pytest.mark.parametrize(("means", "settings", "ended", "most", "left"), [
    ({"a": 0.8, "b": 0.8, "random": 0.1}, {"noise": 0.01}, rounds.ALIKE, 199, "ab"),
    ({"a": 0.8, "b": 0.78, "random": 0.1}, {"noise": 0.3}, rounds.HOPELESS, 99, "ab"),
    ({"a": 0.8, "b": 0.6, "random": 0.1}, {"noise": 0.3}, rounds.ONE_LEFT, 200, "a"),  # enough images to decide
    (CLOSE, {"images": 16}, rounds.NO_IMAGES, 16, CLOSE),
])  # fmt: skip
def test_race_ends_for_the_right_reason(means, settings, ended, most, left):
    narrowing, _ = narrowed(means, ["random"], **settings)
    contest = narrowing.contests[METRIC]
    assert (contest.ended, set(contest.race.left)) == (ended, set(left))
    assert contest.images <= most
    assert narrowing.rounds[-1].images == contest.images


def test_time_limit_ends_race_and_reserves_held_out_images():
    narrowing, _ = narrowed(CLOSE, ["random"], limit=200.0)
    assert narrowing.contests[METRIC].ended == rounds.NO_TIME
    images = narrowing.rounds[-1].images
    assert narrowing.budget.spent + 3 * images <= 200  # two finalists and a baseline, on the same number of images


@dataclass
class Drawn(Known):
    """Laboratory of two metrics with random scores; for the second metric, lower is better."""

    table: dict = field(default_factory=dict)
    groups: list = field(default_factory=list)

    def scores(self, asked, images):
        values = {(name, metric): self.table[name, metric][:images] for metric, names in asked.items()
                  for name in names}  # fmt: skip
        ids = [str(index) for index in range(images)]
        return rounds.RoundScores(values, ids, self.groups[:images], dict.fromkeys(asked, (0.0, 1.0)),
                      {metric: metric == METRIC for metric in asked})  # fmt: skip


def drawn(seed):
    """Return (rounds of a random case, content of choice.json, laboratory)."""
    rng = np.random.default_rng(seed)
    count = int(rng.choice([16, 24, 40, 41, 90, 300]))
    methods = [f"m{number}" for number in range(rng.integers(1, 6))]
    baselines = list(rng.choice(["centre", "edges", "random"], rng.integers(1, 4), replace=False))
    names, metrics = [*methods, *baselines], [METRIC, "saliency_deletion"]
    level = {name: rng.choice([0.3, 0.5, 0.52, 0.55, 0.8]) for name in names}
    if "centre" in level and rng.random() < 0.3:
        level["centre"] = 0.95
    table = {}
    for metric in metrics:
        shared, sign = rng.normal(0, 0.1, count), 1 if metric == METRIC else -1
        for name in names:
            noise = rng.normal(0, rng.choice([0.0, 0.02, 0.15, 0.4]), count)
            table[name, metric] = sign * np.clip(level[name] + shared + noise, 0, 1)
            if rng.random() < 0.1:
                table[name, metric][rng.random(count) < rng.choice([0.02, 0.5, 1.0])] = np.nan
    groups = [None] * count if rng.random() < 0.7 else [f"p{index // 3}" for index in range(count)]
    unchanged = frozenset(name for name in methods if rng.random() < 0.1)
    laboratory = Drawn(level, unchanged, table=table, groups=groups)
    limit = inf if rng.random() < 0.4 else float(rng.uniform(20, 24 + count)) * len(names)
    budget = rounds.Budget(limit, dict.fromkeys(names, 1.0), {})
    lineup = {metric: list(names) for metric in metrics}
    narrowing = rounds.Narrowing(laboratory, lineup, frozenset(baselines), max(1, count // 2), budget,
                          0.02, largest=1 if groups[0] is None else 3)  # fmt: skip
    narrowing.narrow()
    content = content_of(narrowing, laboratory, count, _score_later(narrowing, metrics, count), metrics=metrics)
    return narrowing, content, laboratory


@pytest.mark.parametrize("seed", range(120))
def test_sentences_follow_from_tables(seed):
    narrowing, content, laboratory = drawn(seed)
    there, lines = content["dataset"]["images"], sentences(content)
    parts = [part for line in lines for part in re.split(r"(?<=\.) (?=[A-Z])", line)]
    assert len(parts) == len(set(parts)), parts
    recommended, headline = content["questions"][0]["recommended"], lines[0]
    assert (f": {recommended} (" in headline) == (recommended is not None)
    for answer in content["metrics"]:
        metric, later, left = answer["metric"], answer["later"], answer["left"]
        contest = narrowing.contests[metric]
        deciding = {name: np.nanmean(laboratory.table[name, metric][: contest.images]) for name in left}
        (line, *advice) = [line for line in lines if re.match(f"On .*{metric}", line)]
        if not left:
            assert "no candidate has scores" in line
            continue
        # Scores equal the scores of the table. If another candidate has a better score, the sentence names it.
        better = max if answer["higher_is_better"] else min
        named = re.match(r"On \S+: (\S+) \(|On \S+: (\S+), not itself|On \S+: (\S+) led on", line)
        name = next(filter(None, named.groups())) if named else left[0]
        if name in later:
            mine = later[name]
            assert f"({mine['value']:.3f}" in line
            assert f" on {mine['n']} held-out image{'s' * (mine['n'] > 1)}" in line
            best = better(later, key=lambda other: later[other]["value"])
            assert (
                best == name or later[best]["value"] == mine["value"] or f"; {best} {later[best]['value']:.3f}" in line
            )
        for other, value in re.findall(r"; (\w+) (\d\.\d{3})", line):
            assert f"{later[other]['value']:.3f}" == value
        if " led on " in line:
            assert max(deciding.values()) == deciding[name]
            assert f"the {contest.images} images of the race" in line
        if "not shown to beat" in line:
            assert answer["not_shown_to_beat"][name]
            assert name != recommended
        if beaten := re.search(r"(\d+) others? (?:is|are) beaten", line):
            assert int(beaten[1]) == len(contest.race.dropped)
        if "beats every method tried" in line:
            for method in laboratory.means.keys() - narrowing.baselines:
                assert method in contest.race.dropped or later[method]["winner_ahead"]["low"] > 0
                assert (
                    method not in later or better(later[method]["value"], later[name]["value"]) == later[name]["value"]
                )
        # The page gives no advice that cannot help.
        for text in advice:
            used = contest.images >= narrowing.images
            if "more time" in text:
                assert contest.ended == rounds.NO_TIME
                assert not used
                assert 2 * contest.images < int(re.search(r"about ([\d,]+) of", text)[1].replace(",", "")) <= there
            elif number := re.search(r"about ([\d,]+) images", text):
                assert int(number[1].replace(",", "")) > there
                assert f"there are {there}" in text
    for text in re.findall(r"at least about ([\d,]+) is needed", headline):
        assert int(text.replace(",", "")) > there


def test_sentences_show_recommendation_scores_and_lead():
    narrowing, laboratory = narrowed({"good": 0.9, "poor": 0.3, "random": 0.2}, ["random"])
    content = content_of(narrowing, laboratory)
    (headline, by_metric, silent) = sentences(content)
    assert headline == "For pointing at the object: good (one pass per image)."
    later = content["metrics"][0]["later"]["good"]
    assert later["rare"]  # scores between .85 and .95; one in a hundred may still be 0
    assert by_metric.startswith(f"On saliency_average_precision: good (0.898 [{later['low']:.3f}, 0.900] (rare")
    behind = min(item["behind"] for item in content["metrics"][0]["dropped"])
    assert by_metric.endswith(f"; random 0.199); 2 others are beaten by at least {behind:.2g}.")
    assert silent.startswith("This does not show whether the network relies on")


def test_leading_baseline_or_unproven_lead_recommends_nothing():
    ahead, laboratory = narrowed({"method": 0.2, "centre": 0.9}, ["centre"])
    content = content_of(ahead, laboratory)
    lines = sentences(content)
    assert content["questions"][0]["recommended"] is None
    assert ": the centre spot beats every method tried, so these images cannot show" in lines[0]
    assert lines[1].startswith("On saliency_average_precision: the centre spot beats every method tried")
    assert re.search(r"\(0\.9\d+ .*; method 0\.\d{3}\)\.$", lines[1])
    unclear, laboratory = narrowed({"method": 0.54, "centre": 0.5}, ["centre"], images=24, noise=0.2)
    content = content_of(unclear, laboratory, images=48, later=False)
    lines, answer = sentences(content), content["metrics"][0]
    least, needed, most = (answer[f"images_{end}"] for end in ("at_least", "needed", "at_most"))
    assert 48 < least < needed
    assert most is None or needed < most
    assert lines[0].endswith(
        f"24 images are too few for a conclusion: a dataset of at least about {rounded(least)} images is needed."
    )
    assert "method led on the 24 images of the race, but is not shown to beat the centre spot." in lines[1]
    bounded = most is not None and most <= MOST_IMAGES
    span = f"{rounded(least)} to {rounded(most)}" if bounded else f"at least {rounded(least)}"
    assert f"about {rounded(needed)} images ({span} within two standard errors) are needed to " in lines[2]
    assert [rounded(images) for images in (7, 48, 1_234, 98_765)] == ["7", "48", "1,200", "99,000"]


def test_explainer_requires_a_recommendation(tmp_path):
    content = content_of(*narrowed({"method": 0.2, "centre": 0.9}, ["centre"]))
    refused("nothing is recommended: the centre spot beats every method tried", Choice(tmp_path, content).explainer)
    refused(r"unknown question 'alignmentt'.*alignment", lambda: Choice(tmp_path, content).explainer("alignmentt"))


def test_disagreeing_metrics_recommend_nothing():
    first, second = [{"metric": name, "outcome": "method", "left": [name], "beat_baselines": [*beaten],
                      "not_shown_to_beat": {name: []}} for name, beaten in (("a", "a"), ("b", "ba"))]  # fmt: skip
    answers = [first, second]
    question = QUESTIONS["faithfulness"]
    assert question_answer(question, answers, [question])["recommended"] is None
    second["left"] = ["b", "a"]
    together = question_answer(question, answers, [question])
    assert (together["recommended"], together["not_shown"]) == ("a", None)
    second["beat_baselines"] = ["b"]
    together = question_answer(question, answers, [question])
    assert (together["recommended"], together["not_shown"]) == (None, "a")


def test_method_must_itself_beat_the_baselines():
    """Test that `even` gains nothing when `good` drops the baseline.

    `even` is only as good as the baseline on average.
    """
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores = {
            "good": rng.uniform(0.7, 0.9, 60), "even": (rng.random(60) < 0.5) * 1.0, "random": np.full(60, 0.5),
        }  # fmt: skip
        race, baselines = Race(list(scores), 1.0, 0.02), {"random"}
        for start in range(0, 60, 20):
            look = {name: values[start : start + 20] for name, values in scores.items() if name in race.left}
            race.duel(look, np.arange(20), baselines)
            if start:
                race.look(look, np.arange(20), "good", race.left[-1], start + 20)
        assert race.beats("good", baselines)
        assert not race.beats("even", baselines)
        fresh = scores | {"even": np.full(60, 0.9)}
        race.duel(fresh, np.arange(60), baselines)  # held-out images are used, too
        assert race.beats("even", baselines)


def test_duel_matches_literal_wealth():
    rng = np.random.default_rng(0)
    first, second = rng.uniform(0, 1, 30), rng.uniform(0, 0.6, 30)
    first[3] = np.nan
    for methods in (1, 2, 60):
        race = Race([*(f"method{number}" for number in range(methods)), "centre"], 1.0)
        for rows in (slice(0, 8), slice(8, 30)):
            race.duel({"method0": first[rows], "centre": second[rows]}, np.arange(30)[rows] - rows.start, {"centre"})
        wealth = 0.0
        for bet, weight in zip([0.95, *(0.5**power for power in range(1, 8))], 0.5 ** np.arange(8), strict=True):
            gains = [1 + bet * (a - b) for a, b in zip(first, second, strict=True) if np.isfinite(a)]
            wealth += weight / sum(0.5 ** np.arange(8)) * np.prod(gains)
        assert race.beats("method0", {"centre"}) == (wealth >= methods / 0.05)


def test_tied_method_seldom_beats_the_baseline():
    """Test the leader of ten methods whose mean equals the mean of the baseline.

    The leader seems to beat the baseline in at most 5 % of the cases.
    """
    wrong = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        scores = {f"m{number}": rng.uniform(0, 1, 120) for number in range(10)} | {"random": rng.uniform(0, 1, 120)}
        race = Race(list(scores), 1.0, 0.02)
        race.duel(scores, np.arange(120), {"random"})
        wrong += any(race.beats(name, {"random"}) for name in scores if name != "random")
    assert wrong <= 200 * 0.05


def test_questions_match_masks_and_metrics():
    assert [question.name for question in questions_of([], [], has_masks=True)] == ["alignment", "faithfulness"]
    assert [question.name for question in questions_of([], [], has_masks=False)] == ["faithfulness"]
    refused("needs masks", questions_of, ["alignment"], [], has_masks=False)
    refused("unknown question 'aligment'", questions_of, ["aligment"], [], has_masks=True)
    refused("cannot be combined", questions_of, ["alignment"], [as_metric(METRIC)], has_masks=True)
    with pytest.raises(UserError, match="saliency_correctness has one value for all samples"):
        questions_of([], [as_metric("saliency_correctness")], has_masks=True)
    refused("saliency_roar trains networks", questions_of, [], [as_metric("saliency_roar")], has_masks=True)


def test_time_limits_are_parsed_or_rejected():
    for text, seconds in (("90s", 90), ("30m", 1800), ("1.5h", 5400), (12, 12), (None, None)):
        assert seconds_of(text) == seconds
    for text in ("soon", "0m", "-3", ""):
        refused("--within", seconds_of, text)


def test_printed_code_matches_explainer_options():
    explainer = sb.load_explainer("gradcam_plus_plus", layer="layer3")
    assert load_call(explainer) == "explainer = sb.load_explainer(\"gradcam_plus_plus\", layer='layer3')"
    assert 'module_named("layer3")' in elsewhere(explainer, "layer4")["pytorch-grad-cam"]
    assert 'module_named("layer4")' in elsewhere(sb.load_explainer("gradcam"), "layer4")["pytorch-grad-cam"]
    assert "n_steps=20" in elsewhere(sb.load_explainer("integrated_gradients:steps=20"), "")["captum"]
    # Baselines with options that the command cannot express would have other maps.
    assert elsewhere(sb.load_explainer("integrated_gradients:baseline=blur"), "") == {}
    assert elsewhere(sb.load_explainer("rise"), "") == {}


def test_unknown_layer_is_rejected_before_writing(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        sb.choose(dataset=pictures(), model=classifier(), explainers=["random", "gradcam:layer=nowhere"],
                  out=tmp_path / "choice", device="cpu", progress=False)  # fmt: skip
    assert not list((tmp_path / "choice").glob("*"))


def affordable(within):
    """Return the names that are tried, and the names that are too slow.

    The choice is made among a baseline and two explainers, which need 1 and 10 passes of one second each.
    """
    chosen = [SimpleNamespace(name=name, baseline=name == "random", passes=passes)
              for name, passes in (("gradcam", 1), ("rise", 10), ("random", 0))]  # fmt: skip
    scoring = {(item.name, METRIC): 1.0 for item in chosen}
    budget = rounds.Budget(within, {item.name: float(item.passes) for item in chosen}, scoring)
    kept, slow = _affordable(chosen, [METRIC], budget, 8, 1.0)
    return [item.name for item in kept], list(slow)


def test_expensive_explainers_are_skipped_when_time_is_short():
    # Two rounds of 8 images in a quarter of the time: 16 x (1 + 10 passes, and 3 of the metric) are 224 s.
    assert affordable(896) == (["gradcam", "rise", "random"], [])
    assert affordable(895) == (["gradcam", "random"], ["rise"])
    assert affordable(192) == (["gradcam", "random"], ["rise"])
    # One round in half of the time: 8 x (1 pass, and 2 of the metric) are 24 s.
    assert affordable(48) == (["gradcam", "random"], ["rise"])
    refused(r"--within 47s is too short for .*a pass of the network takes 1 s; use --within 1m, or", affordable, 47)


@pytest.mark.slow
def test_interrupted_choice_resumes_to_same_result(tmp_path):
    settings = {
        "dataset": pictures(48), "model": classifier(), "metrics": [METRIC], "within": None, "progress": False,
        "batch_size": 8, "explainers": ["gradient", "gradcam", "occlusion:window=8,stride=8"]}  # fmt: skip
    choice = sb.choose(out=tmp_path / "whole", **settings)
    assert choice.recommended == {"given metrics": choice.explainer().name}
    assert choice.page.is_file()
    page = choice.page.read_text(encoding="utf-8")
    assert "use this" in page
    assert "http" not in page.replace("http-equiv", "").replace("https://www.w3.org", "")
    # After an interruption in any round, the rounds and the bytes are the same.
    (tmp_path / "whole" / "costs.json").replace(tmp_path / "costs.json")
    (tmp_path / "half").mkdir()
    (tmp_path / "costs.json").replace(tmp_path / "half" / "costs.json")
    sb.choose(out=tmp_path / "half", limit=24, **settings)
    again = sb.choose(out=tmp_path / "half", **settings)
    first, second = (json.loads((folder / "choice.json").read_text()) for folder in (choice.folder, again.folder))
    for content in (first, second):
        content.pop("command"), content.pop("seconds")
    assert first == second
    records = [folder / "run" / "records.parquet" for folder in (choice.folder, again.folder)]
    assert records[0].read_bytes() == records[1].read_bytes()


def test_choose_rejects_several_processes(monkeypatch, tmp_path):
    monkeypatch.setattr("saliency_bench.recipes.choosing.choose.accelerator_on",
                        lambda device: SimpleNamespace(num_processes=2))  # fmt: skip
    with pytest.raises(UserError, match="`choose` runs in a single process"):
        sb.choose(dataset="shapes-xai", model="torchvision:resnet18", out=tmp_path / "choice")
    assert not list(tmp_path.iterdir())


def test_printed_code_runs(shapes, resnet):
    spec = RunSpec(dataset=str(shapes), model=str(resnet), explainers=["gradcam"], metrics=[METRIC], out="run")
    lines = ["import saliency_bench as sb", setup(spec), load_call(sb.load_explainer("gradcam"))]
    scope: dict = {}
    exec("\n".join([*lines, "maps = explainer(classifier, images, target)"]), scope)
    assert (scope["maps"].shape, scope["target"][0, scope["label"]]) == ((1, 32, 32), 1)


def test_layers_of_sequential_network_are_candidates():
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    loaded = load_classifier(network, mean=0.5, std=0.5, device="cpu")
    fitting, _ = candidates(loaded, torch.rand(1, 3, 16, 16), targets.one_hot([0], 2))
    by_name = {candidate.name: dict(candidate.explainer.options).get("layer") for candidate in fitting}
    assert by_name.get('gradcam:layer="1"') == "1", by_name
