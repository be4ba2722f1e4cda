"""Tests of peek-a-boom against slow second implementations, and with a crowd of known preferences."""

import csv
from collections import Counter
from dataclasses import replace
from io import BytesIO

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from torch import nn

from saliency_bench import load_classifier
from saliency_bench.compute.scoring.perturbation import Curves, fraction_counts
from saliency_bench.maps import descending
from saliency_bench.read.analysis.order_agreement import read_answers
from saliency_bench.read.statistics.exposures import SHOWN, judgement_areas
from saliency_bench.studies.peekaboom.assignment import leftovers, sheets, with_checks
from saliency_bench.studies.peekaboom.chance import LIKE_GUESSING, corrected, evidence_of_guessing, guessing_area
from saliency_bench.studies.peekaboom.protocol import configuration, revealed
from saliency_bench.studies.peekaboom.results import export, judged, results
from saliency_bench.studies.run_images import pair_of, unit_of

from .crowd import PLANTED, Worker, run_images, start_peekaboom, work

pytestmark = pytest.mark.usefixtures("same_pseudonyms")


def start(folder, images=None, **options):
    return start_peekaboom(folder, images or run_images(), **{"judgements": 2, "pairs": 5} | options)


@pytest.fixture
def game(tmp_path):
    return start(tmp_path)


def pixels(png):
    return np.asarray(Image.open(BytesIO(png)))


@pytest.mark.parametrize("exposure", SHOWN)
@pytest.mark.parametrize("size", [7, 20, 33])
def test_revealed_pixels_match_kae_order(exposure, size):
    images = run_images(2, size)
    for name in PLANTED:
        frame, values = images.frame(images.ids[0]), images.map(images.ids[0], name)
        values = np.round(values * 4) / 4  # with ties
        first = descending(values[None])[0][: fraction_counts(size, size, [exposure])[0]]
        expected = np.zeros((size * size, 3), np.uint8)
        for pixel in first:
            expected[pixel] = frame[pixel // size, pixel % size]
        np.testing.assert_array_equal(revealed(frame, values, exposure).reshape(-1, 3), expected)


class Seen(nn.Module):
    def forward(self, images):
        self.images = images
        return images.mean(dim=(2, 3))


@pytest.mark.parametrize("fill", ["black", "grey"])
def test_people_see_the_pixels_kae_shows_the_network(tmp_path, fill):
    game = start(tmp_path, fill=fill)
    assert game.study.configuration.get("fill") == (None if fill == "grey" else "black")
    person, network = game.study.join().name, load_classifier(Seen(), mean=(0, 0, 0), std=(1, 1, 1), device="cpu")
    question = game.question(person)
    while pair_of(question.unit)[1] is None:
        game.save(person, {"place": question.place, "step": question.step, "choice": None})
        question = game.question(person)
    image, explainer = pair_of(question.unit)
    frame, values = game.images.frame(image), game.images.map(image, explainer)
    for step, exposure in enumerate(SHOWN):
        shown = pixels(game.picture(person, question.place, step))
        whole = torch.from_numpy(frame.copy()).permute(2, 0, 1)[None].float() / 255
        curves = Curves(network, whole, torch.eye(3)[:1], values[None])
        curves.probabilities("top", "black", fraction_counts(*values.shape, [exposure]))
        of_network = (network.model.images[0] * 255).round().permute(1, 2, 0).numpy()
        hidden = (shown != of_network).any(axis=2)
        assert hidden.any() == (fill == "grey" and exposure < 1)
        assert (shown[hidden] == 128).all()
        game.save(person, {"place": question.place, "step": step, "choice": None})


def test_everybody_gets_the_same_choices_in_varying_order(game):
    people = [game.study.join().name for _ in range(6)]
    for image in game.images.ids:
        found = [game.choices(person, unit_of(image, name)) for person in people for name in PLANTED]
        assert all(len(own) == 4 and game.images.labels[image] in own for own in found)
        assert len({frozenset(own) for own in found}) == 1
        assert len({tuple(own) for own in found}) > 1  # in different orders


def test_wrong_or_unknown_answers_reveal_more_pixels(game):
    person = game.study.join().name
    state = game.state(person)
    while game.question(person).is_check:
        game.save(person, {"place": state["place"], "step": 0, "choice": None})
        state = game.state(person)
    place, unit = state["place"], game.question(person).unit
    right = game.images.labels[pair_of(unit)[0]]
    wrong = next(label for label in state["choices"] if label != right)
    assert game.save(person, {"place": place, "step": 0, "choice": wrong}) == {"right": False}
    assert (game.state(person)["exposure"], game.state(person)["tried"]) == (0.1, [wrong])
    assert game.save(person, {"place": place, "step": 1, "choice": None}) == {"right": False}
    assert (game.state(person)["exposure"], game.state(person)["next"]) == (0.15, 0.2)
    assert game.save(person, {"place": place, "step": 2, "choice": right}) == {"right": True}
    assert game.state(person)["place"] == place + 1
    stored = [one.payload for one in game.study.answers(person, unit, last=False)]
    assert stored == [{"step": 0, "exposure": 0.05, "choice": wrong, "right": False},
                      {"step": 1, "exposure": 0.1, "choice": None, "right": False},
                      {"step": 2, "exposure": 0.15, "choice": right, "right": True}]  # fmt: skip


def test_repeated_answer_is_stored_once_and_restart_resumes(game, tmp_path):
    person = game.study.join().name
    state = game.state(person)
    sent = {"place": state["place"], "step": state["step"], "choice": None, "seconds": 2}
    assert game.save(person, sent) == game.save(person, sent) == {"right": False}
    assert [answer.seconds for answer in game.study.answers(person, last=False)] == [2]
    after = game.state(person)
    refused("not your current question", game.save, person, sent | {"choice": state["choices"][0]})
    again = start(tmp_path)
    assert (again.state(person), again.given(person)) == (after, game.given(person))
    assert len(again.study.answers(person, last=False)) == 1


@pytest.mark.parametrize(("options", "line"), [
    ({"judgements": 0}, "judgements must be at least 1"),
    ({"pairs": 0}, "pairs must be at least 1"), ({"choices": 6}, "from 2 to 5"),
    ({"choices": 1}, "from 2 to 5"), ({"limit": 11}, "too few"), ({"limit": 0}, "too few"),
    ({"checks": 12}, "too few"), ({"checks": -1}, "too few"),
    ({"fill": "white"}, "fill must be black or grey; got white"),
])  # fmt: skip
def test_configuration_rejects_invalid_numbers(options, line):
    refused(line, configuration, run_images(), **options)


@pytest.mark.slow
def test_crowd_recovers_planted_order(tmp_path):
    """Test 24 people, every sixth of whom is careless. Each of them judges 5 pairs of image and explainer.

    There are 12 images, 2 of which are checks, 4 explainers, and 3 judgements per pair.
    """
    game = start(tmp_path, judgements=3)
    for number in range(24):
        work(game, Worker(f"w{number}", careless=number % 6 == 0))
    assert game.state(game.study.join().name)["place"] is None  # all pairs are assigned
    found = judged(game.study)
    counts = Counter(zip(found.judgements["image"], found.judgements["explainer"], strict=True))
    assert (len(counts), set(counts.values())) == (10 * 4, {3})
    seen = Counter(zip(found.judgements["person"], found.judgements["image"], strict=True))
    assert set(seen.values()) == {1}
    data = results(game.study, with_failed=True).data
    assert [row["explainer"] for row in data["crowd"]] == [*PLANTED, "guessing"]
    areas = [row["saliency_crowd_auc"] for row in data["crowd"]]
    assert areas[0] > areas[1] + 0.03 > areas[2] + 0.06 > areas[3] + 0.3
    assert {row["judgements"] for row in data["crowd"][:-1]} == {30}
    whole = dict(zip(PLANTED, areas[:-1], strict=True))  # random parts of the judgements have these means, too
    assert {row["judgements per pair"] for row in data["judgements"]} >= {0.3, 0.5, 1.0}
    for row in data["judgements"]:
        assert row["2.5 %"] <= row["saliency_crowd_auc"] <= row["97.5 %"]
        assert row["saliency_crowd_auc"] == pytest.approx(whole[row["explainer"]], abs=0.02)
    width = {(row["judgements per pair"], row["explainer"]): row["97.5 %"] - row["2.5 %"] for row in data["judgements"]}
    assert all(width[0.3, name] > width[1.0, name] for name in ("half", "noise"))


@pytest.mark.slow
def test_people_who_leave_are_replaced(tmp_path):
    game = start(tmp_path, judgements=1)
    people = [work(game, Worker(f"w{number}"), most=7 if number % 2 else None) for number in range(8)]
    assert game.state(game.study.join().name)["place"] is None  # people who have not finished may come back
    game = replace(game, lease_hours=0.0)
    for number in range(8):
        work(game, Worker(f"x{number}"))
    found = judged(game.study)
    counts = Counter(zip(found.judgements["image"], found.judgements["explainer"], strict=True))
    assert (set(counts.values()), len(counts)) == ({1}, 40)
    assert found.unfinished > 0
    assert any(game.question(person) for person in people)


def make(game, person, unit, steps):
    """Store answers (exposure, right) without checking them."""
    for step, (exposure, right) in enumerate(steps):
        payload = {"step": step, "exposure": exposure, "choice": "red" if right else None, "right": right}
        game.study.record(person, unit, f"{person} {unit} {step}", payload, seconds=2.0)


@pytest.fixture
def by_hand(game):
    """Store judgements of "good" on one image: right at 5 %, right at 15 %, never right, and unfinished."""
    image = game.study.configuration["images"][0]
    unit, other = unit_of(image, "good"), unit_of(image, "bad")
    no = [(exposure, False) for exposure in SHOWN]
    make(game, "a", unit, [(0.05, True)])
    make(game, "b", unit, [*no[:2], (0.15, True)])
    make(game, "c", unit, no)
    make(game, "d", unit, no[:3])
    make(game, "c", other, [*no[:-1], (1.0, True)])
    make(game, "a", unit_of(game.study.configuration["checks"][0], None), [(1.0, True)])
    make(game, "c", unit_of(game.study.configuration["checks"][0], None), [(1.0, False)])
    return game, image


def test_results_match_values_by_hand(by_hand):
    game, image = by_hand
    findings = results(game.study, with_failed=True)
    curve = {row["exposure"]: row["accuracy"] for row in findings.data["accuracies"] if row["explainer"] == "good"}
    third = 1 / 3
    assert curve == pytest.approx({0.05: third, 0.1: third} | dict.fromkeys(SHOWN[2:], 2 * third))
    # Trapezoid rule from (0, 0): right at 5 %: .05 / 2 + .95; right at 15 %: .05 / 2 + .85; never right: 0.
    good, bad, guessing = findings.data["crowd"]
    assert guessing["explainer"] == "guessing"
    assert good["saliency_crowd_auc"] == pytest.approx((0.975 + 0.875 + 0) / 3)
    assert bad["saliency_crowd_auc"] == pytest.approx(0.25 / 2)
    assert (good["judgements"], good["never right"], good["images"]) == (3, 1, 1)
    assert (good["low"], good["rank"]) == (None, "too few to rank")
    assert findings.data["images"] == [
        {"image_id": image, "mean exposure": pytest.approx((0.05 + 0.15 + 1) / 3), "right": 3, "judgements": 4}
    ]
    people = {row["person"]: row for row in findings.data["people"]}
    assert (people["b"]["mean exposure"], people["c"]["right"], people["c"]["judgements"]) == (0.15, 1, 2)
    assert (people["c"]["checks right"], people["c"]["checks"], people["c"]["median seconds"]) == (0, 1, 16.0)
    assert "d" not in people
    numbered = results(game.study, people=False, with_failed=True).data["people"]
    assert {row["person"] for row in numbered} == {"1", "2", "3"}
    assert sorted(row["mean exposure"] for row in numbered) == sorted(row["mean exposure"] for row in people.values())
    assert "Unfinished judgements, which are excluded: 1." in " ".join(findings.notes)


def test_failed_and_named_people_are_excluded_from_results(by_hand):
    game, _ = by_hand
    findings = results(game.study)
    assert "1 of 2 people failed an attention check: their judgements are excluded" in " ".join(findings.notes)
    good = findings.data["crowd"][0]
    assert (good["explainer"], good["judgements"]) == ("good", 2)
    assert good["saliency_crowd_auc"] == pytest.approx((0.975 + 0.875) / 2)
    assert good["with everyone"] == pytest.approx((0.975 + 0.875 + 0) / 3)
    assert {row["person"] for row in findings.data["people"]} == {"a", "b", "c"}, "all people are listed"
    assert "their judgements are included" in " ".join(results(game.study, with_failed=True).notes)
    named = game.study.join().name
    make(game, named, unit_of(game.study.configuration["images"][1], "good"), [(0.05, True)])
    before, after = results(game.study), results(game.study, exclude=[named])
    assert [one.data["crowd"][0]["judgements"] for one in (before, after)] == [3, 2]
    assert f"Excluded by name: {named}." in after.notes
    refused("--exclude p-nobody", results, game.study, exclude=["p-nobody"])


@pytest.mark.parametrize(("choices", "strike"), [(4, True), (4, False), (2, False), (9, True)])
def test_guessing_area_matches_simulated_clickers(choices, strike):
    """Simulate 20,000 people who click each remaining label with equal probability. Label 0 is correct."""
    draw, people, steps = np.random.default_rng(0), 20_000, len(SHOWN)
    if strike:
        clicks = draw.permuted(np.tile(np.arange(choices), (people, 1)), axis=1)[:, :steps]
    else:
        clicks = draw.integers(choices, size=(people, steps))
    curves = np.zeros((people, 1 + steps))
    for step in range(steps):
        curves[:, step + 1] = (clicks[:, : step + 1] == 0).any(axis=1)
    areas = np.trapezoid(curves, [0, *SHOWN], axis=1)
    error = np.std(areas) / np.sqrt(people)
    assert abs(guessing_area(choices, SHOWN, strike) - np.mean(areas)) < 4 * error


def test_striking_out_labels_inflates_guessing_area():
    assert guessing_area(4, SHOWN, strike=True) == pytest.approx(0.900)
    assert guessing_area(4, SHOWN, strike=False) == pytest.approx(0.744, abs=0.0015)
    assert judgement_areas(np.array([0.2]))[0] == pytest.approx(0.825)


def test_corrected_area_ranges_from_guessing_to_first_exposure(by_hand):
    guessing = guessing_area(4, SHOWN, strike=False)
    assert (corrected(guessing, guessing, SHOWN), corrected(0.975, guessing, SHOWN)) == (0, pytest.approx(1))
    assert corrected(None, guessing, SHOWN) is None
    good, row = results(by_hand[0].study).data["crowd"]
    assert row["saliency_crowd_auc"] == pytest.approx(guessing)
    assert good["corrected"] == pytest.approx((0.925 - guessing) / (0.975 - guessing))


def test_evidence_of_guessing_matches_value_by_hand():
    """Test other people who were right in 3 of 4 answers: (3 + 1) / (4 + 2) = 2 / 3.

    "a" was right once and wrong once.
    """
    answers = [("a", True), ("a", False), ("b", True), ("b", True), ("c", True), ("c", False)]
    rows = pd.DataFrame([(person, "good", 0.3, right, 0.25) for person, right in answers],
                        columns=["person", "explainer", "exposure", "right", "chance"])  # fmt: skip
    ratio = (0.25 / (2 / 3)) * (0.75 / (1 / 3))
    assert evidence_of_guessing(rows)["a"] == pytest.approx(np.log10(ratio))


@pytest.mark.thorough
def test_results_name_exactly_the_guessers(tmp_path):
    """Test 12 people with an error of 5 %, two of whom guess."""
    game = start(tmp_path, run_images(22), judgements=3, pairs=20)
    clickers = {work(game, Worker(f"w{number}", careless=True)) for number in (0, 6)}
    for number in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11):
        work(game, Worker(f"w{number}"))
    findings = results(game.study)
    evidence = {row["person"]: row["like guessing"] for row in findings.data["people"]}
    assert {person for person, ratio in evidence.items() if ratio >= LIKE_GUESSING} == clickers
    assert max(ratio for person, ratio in evidence.items() if person not in clickers) < -2
    assert all(person in " ".join(findings.notes) for person in clickers)
    assert not any(person in " ".join(results(game.study, people=False).notes) for person in clickers)


def test_tried_labels_stay_available_unless_struck_out(tmp_path):
    for strike in (False, True):
        (folder := tmp_path / str(strike)).mkdir()
        game = start(folder, checks=0, strike=strike)
        person = game.study.join().name
        state = game.state(person)
        wrong = next(
            label for label in state["choices"] if label != game.images.labels[pair_of(game.question(person).unit)[0]]
        )
        game.save(person, {"place": 0, "step": 0, "choice": wrong})
        sent = {"place": 0, "step": 1, "choice": wrong}
        assert game.state(person)["strike"] is strike
        if strike:
            refused("already tried", game.save, person, sent)
        else:
            assert game.save(person, sent) == {"right": False}


def test_ranks_follow_the_paired_test(tmp_path):
    """Test 60 images.

    People recognise "good" at 5 %, and "half" and "noise" at 30 % and 50 % in turn. The ranks are obvious.
    """
    game = start(tmp_path, run_images(62, 8, ["good", "half", "noise"]), judgements=1, pairs=60)
    firsts = {"good": [0.05, 0.05], "half": [0.3, 0.5], "noise": [0.5, 0.3]}
    for number, image in enumerate(game.study.configuration["images"]):
        for name, own in firsts.items():
            make(game, f"p {name}", unit_of(image, name), [(own[number % 2], True)])
    rows = {row["explainer"]: row for row in results(game.study).data["crowd"]}
    assert rows.pop("guessing")["rank"] == ""
    assert {name: row["rank"] for name, row in rows.items()} == {"good": "1", "half": "2-3", "noise": "2-3"}
    # although all values are equal
    assert rows["good"]["low"] < rows["good"]["saliency_crowd_auc"] == pytest.approx(0.975)
    assert rows["half"]["low"] < rows["half"]["saliency_crowd_auc"] < rows["half"]["high"]


def test_exported_answers_load_in_analyse(by_hand, tmp_path):
    game, image = by_hand
    for name in ("answers.csv", "answers.parquet"):
        assert export(game.study, tmp_path / name, with_failed=True) == 1 + 3 + 8 + 8
        found = read_answers(tmp_path / name).judgements
        assert sorted(found["good"][image], key=str) == pytest.approx([0.05, 0.15, np.nan], nan_ok=True)
        assert found["bad"][image] == [1.0]
    assert export(game.study, tmp_path / "nobody.csv", people=False, with_failed=True) == 20
    with (tmp_path / "nobody.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["person"] for row in rows} == {"1", "2", "3"}
    found = read_answers(tmp_path / "nobody.csv").judgements
    assert sorted(found["good"][image], key=str) == pytest.approx([0.05, 0.15, np.nan], nan_ok=True)
    assert export(game.study, tmp_path / "passed.csv") == 4
    refused("must end in .csv or .parquet", export, game.study, tmp_path / "answers.txt")


def test_results_reject_a_study_without_judgements(game):
    refused("no judgement yet", results, game.study)


numbers = {"images": st.integers(1, 25), "explainers": st.integers(2, 6), "judgements": st.integers(1, 4),
           "pairs": st.integers(1, 12), "seed": st.integers(0, 5)}  # fmt: skip


def names(prefix, count):
    return [f"{prefix}{number}" for number in range(count)]


@given(**numbers)
def test_sheets_balance_judgements_and_never_repeat_an_image(images, explainers, judgements, pairs, seed):
    """Test also that the numbers of judgements of any two pairs of one image never differ by more than one."""
    found = sheets(names("i", images), names("e", explainers), judgements, pairs, seed)
    counts = Counter({(i, e): 0 for i in names("i", images) for e in names("e", explainers)})
    for sheet in found:
        assert 1 <= len(sheet) <= pairs
        assert len({image for image, _ in sheet}) == len(sheet)
        used = Counter(dict.fromkeys(names("e", explainers), 0) | Counter(e for _, e in sheet))
        assert max(used.values()) - min(used.values()) <= 1
        counts.update(sheet)
        for image, _ in sheet:
            own = [counts[image, name] for name in names("e", explainers)]
            assert max(own) - min(own) <= 1
    assert counts == {(i, e): judgements for i in names("i", images) for e in names("e", explainers)}
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(
    st.dictionaries(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz")), st.integers(0, 3)), st.integers(1, 5)
)
def test_leftovers_fill_every_missing_judgement(missing, pairs):
    missing = dict(missing)
    while sheet := leftovers(missing, pairs, 0):
        assert len(sheet) <= pairs
        assert len({image for image, _ in sheet}) == len(sheet)
        for pair in sheet:
            missing[pair] -= 1
            assert missing[pair] >= 0
    assert not any(missing.values())


def test_check_positions_vary_by_person():
    sheet, checks = names("u", 10), ["c", "d"]
    orders = [with_checks(sheet, checks, f"p{number}", 0) for number in range(30)]
    assert all(sorted(order) == sorted(sheet + checks) for order in orders)
    assert len({order.index("c") for order in orders}) > 5
    assert with_checks(sheet, checks, "p1", 0) == orders[1]
