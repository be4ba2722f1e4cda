"""Tests of assessments: questions, stored answers, and results compared by hand and with the package krippendorff."""

import csv
from collections import Counter
from dataclasses import replace
from io import BytesIO

import krippendorff
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused

from saliency_bench.studies.assess.protocol import configuration
from saliency_bench.studies.assess.questions import read_questions
from saliency_bench.studies.assess.results import export, ordinal_alpha, results
from saliency_bench.studies.run_images import pair_of, unit_of
from saliency_bench.utils.overlays import overlay

from .crowd import PLANTED, QUESTIONS, rate, run_images, start_assess, unit_at

pytestmark = pytest.mark.usefixtures("same_pseudonyms")
REQUEST = "a random text of 16 characters and more"


def start(folder, **options):
    return start_assess(folder, run_images(), **{"raters": 2, "per_person": 4, "checks": 0} | options)


@pytest.fixture
def study(tmp_path):
    return start(tmp_path)


@pytest.mark.slow
def test_every_image_gets_its_raters_for_all_maps(study):
    people = [rate(study, study.study.join().name, lambda *about: 3) for _ in range(7)]
    assert study.state(people[-1])["total"] == 0  # 12 images for 2 people each, 4 images per person: 6 people
    counts = Counter(one.unit for one in study.study.answers())
    assert counts == {unit_of(image, name): 2 for image in study.images.ids for name in PLANTED}
    for person in people[:6]:
        given = study.given(person)
        assert len(given) == 4
        assert all({pair_of(one.unit)[1] for one in maps} == set(PLANTED) for maps in given)


def test_map_order_varies_by_person_and_image_and_is_stable(study, tmp_path):
    people = [study.study.join().name for _ in range(6)]
    orders = {tuple(pair_of(one.unit)[1] for one in maps) for person in people for maps in study.given(person)}
    assert len(orders) > 8
    again = start(tmp_path)
    assert [again.given(person) for person in people] == [study.given(person) for person in people]
    rate(study, people[0], lambda *about: 1)
    for maps in study.given(people[0]):
        stored = {one.unit: one.payload["place"] for one in study.study.answers(people[0])}
        assert [stored[one.unit] for one in maps] == [0, 1, 2, 3]


@pytest.mark.slow
def test_raters_who_leave_are_replaced(study):
    for _ in range(6):
        rate(study, study.study.join().name, lambda *about: 3, most=6)
    assert study.state(study.study.join().name)["total"] == 0
    study = replace(study, lease_hours=0.0)
    for _ in range(6):
        rate(study, study.study.join().name, lambda *about: 3)
    counts = Counter(one.unit for one in study.study.answers())
    assert {counts[unit_of(image, name)] >= 2 for image in study.images.ids for name in PLANTED} == {True}


def test_page_receives_no_explainer_name(study):
    person = study.study.join().name
    state = study.state(person)
    assert "secret" not in repr(state)
    assert not any(name in repr(state) for name in PLANTED)
    for one in state["maps"]:
        image, explainer = pair_of(unit_at(study, person, one["place"]))
        opened = Image.open(BytesIO(study.picture(person, one["place"])))
        expected = overlay(study.images.frame(image), study.images.map(image, explainer))
        np.testing.assert_array_equal(np.asarray(opened), np.asarray(expected))
        assert (opened.info, len(opened.getexif())) == ({}, 0)
        plain = Image.open(BytesIO(study.picture(person, one["place"], plain=True)))
        np.testing.assert_array_equal(np.asarray(plain), study.images.frame(image))
    assert state["questions"]["complete"] == f"Does it mark everything that shows “{study.images.labels[image]}”?"


def test_repeated_answer_is_stored_once_and_change_as_revision(study, tmp_path):
    person = study.study.join().name
    place = study.state(person)["maps"][0]["place"]
    sent = {"place": place, "ratings": dict.fromkeys(QUESTIONS, 2), "request": REQUEST, "seconds": 4}
    study.save(person, sent)
    study.save(person, sent)
    assert len(study.study.answers(last=False)) == 1
    study.save(person, sent | {"ratings": dict.fromkeys(QUESTIONS, 5), "request": REQUEST + "2"})
    assert [one.payload["ratings"]["precise"] for one in study.study.answers(last=False)] == [2, 5]
    again = start(tmp_path)
    assert again.state(person)["maps"][0]["ratings"] == dict.fromkeys(QUESTIONS, 5)
    # If another person sends the same request, it is a different request.
    other = study.study.join().name
    study.save(other, sent | {"place": study.state(other)["maps"][0]["place"]})
    assert len(study.study.answers()) == 2


@pytest.mark.parametrize(("options", "line"), [
    ({"raters": 0}, "raters must be at least 1"), ({"per_person": 0}, "per_person"),
    ({"limit": 0}, "from 1 to 12"), ({"limit": 13}, "from 1 to 12"),
])  # fmt: skip
def test_configuration_rejects_invalid_numbers(options, line):
    refused(line, configuration, run_images(), read_questions(), **{"checks": 0} | options)
    refused("2 to 5 maps", configuration, run_images(explainers=["good"]), read_questions())


def test_mean_ratings_match_values_by_hand(study):
    """Test two people who rate the map of one image by "good": complete with 4 and 5, precise with 1 and 1."""
    image = study.study.configuration["images"][0]
    for person, complete in (("a", 4), ("b", 5)):
        payload = {"place": 0, "ratings": {"complete": complete, "precise": 1, "convincing": 2}}
        study.study.record(person, unit_of(image, "good"), f"{person} {REQUEST}", payload)
    data = results(study.study).data
    means = {row["question"]: (row["mean"], row["low"], row["images"], row["ratings"]) for row in data["ratings"]}
    assert means == {"complete": (4.5, None, 1, 2), "precise": (1.0, None, 1, 2), "convincing": (2.0, None, 1, 2)}
    assert [row["maps"] for row in data["agreement"]] == [1, 1, 1]


def test_ratings_recover_planted_order_and_agreement(tmp_path):
    study = start(tmp_path, raters=3, per_person=12)
    bits = np.random.default_rng(0)

    def rating(image, explainer, question):
        if question == "convincing":
            return int(bits.integers(1, 6))  # no two people agree
        return 4 - PLANTED.index(explainer) + (question == "complete")

    for _ in range(3):
        rate(study, study.study.join().name, rating)
    findings = results(study.study)
    rows = findings.data["ratings"]
    assert [row["explainer"] for row in rows if row["question"] == "complete"] == PLANTED
    assert [row["mean"] for row in rows if row["question"] == "precise"] == [4, 3, 2, 1]
    assert all(row["low"] <= row["mean"] <= row["high"] for row in rows)
    assert {(row["images"], row["ratings"]) for row in rows} == {(12, 36)}
    alpha = {row["question"]: row for row in findings.data["agreement"]}
    assert alpha["complete"]["krippendorff's alpha"] == alpha["precise"]["krippendorff's alpha"] == 1
    assert abs(alpha["convincing"]["krippendorff's alpha"]) < 0.3
    assert alpha["convincing"]["low"] < alpha["convincing"]["krippendorff's alpha"] < alpha["convincing"]["high"]
    assert (alpha["convincing"]["maps"], alpha["convincing"]["people"]) == (48, 3)


@given(st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=5), min_size=2, max_size=8))
def test_ordinal_alpha_matches_krippendorff_package(ratings):
    assume(len({level for own in ratings for level in own}) > 1)
    counts = np.array([np.bincount(own, minlength=5) for own in ratings], float)
    expected = krippendorff.alpha(value_counts=counts, level_of_measurement="ordinal")
    assert ordinal_alpha(counts, np.ones((1, len(counts))))[0] == pytest.approx(expected)
    twice = np.concatenate([counts, counts[:1]])  # a weight of 2 equals a map that occurs twice
    weights = np.array([[2.0] + [1.0] * (len(counts) - 1)])
    expected = krippendorff.alpha(value_counts=twice, level_of_measurement="ordinal")
    assert ordinal_alpha(counts, weights)[0] == pytest.approx(expected)


def test_ordinal_alpha_of_identical_ratings_is_nan():
    assert np.isnan(ordinal_alpha(np.array([[0.0, 2.0], [0.0, 3.0]]), np.ones((1, 2)))[0])


def test_export_writes_ratings_with_or_without_people(study, tmp_path):
    people = [rate(study, study.study.join().name, lambda *about: 3) for _ in range(6)]
    assert export(study.study, tmp_path / "ratings.csv") == 12 * 4 * 2 * 3
    with (tmp_path / "ratings.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert ({row["person"] for row in rows}, {row["question"] for row in rows}) == (set(people), set(QUESTIONS))
    export(study.study, tmp_path / "nobody.csv", people=False)
    text = (tmp_path / "nobody.csv").read_text()
    assert not any(person in text for person in people)
    refused("must end in .csv or .parquet", export, study.study, tmp_path / "ratings.xlsx")
    assert export(study.study, tmp_path / "ratings.parquet") == 288


def test_results_reject_a_study_without_ratings(study):
    refused("no rating yet", results, study.study)


@pytest.mark.parametrize(("text", "line"), [
    ("scale: [a, b]", r"must contain only scale \(a list\)"),
    ("scale: [a]\nquestions: {a: b}", "2 to 9 strings"),
    ("scale: [yes, no]\nquestions: {a: b}", "put yes and no in quotes"),
    ("scale: [a, a]\nquestions: {a: b}", "differ"), ("scale: [a, b]\nquestions: {}", "1 to 6 ids"),
    ("scale: [a, b]\nquestions: [text]", "1 to 6 ids"),
    ("scale: [a, b]\nquestions: {A b: text}", "an id that consists of"),
    ("scale: [a, b]\nquestions: {a: 3}", "an id that consists of"),
    ("scale: [a, b]\nquestions: {seconds: Does it take long?}", "cannot be called seconds"),
    ("scale: [a, b]\nquestions: {a: !!python/name:os.system x}", "cannot be read as YAML"),
    ("a: [", "cannot be read as YAML"),
    ("scale: [a, b]\nquestions: {a: one, a: two}", "the key a appears twice"),
])  # fmt: skip
def test_invalid_question_files_are_rejected(tmp_path, text, line):
    path = tmp_path / "questions.yaml"
    path.write_text(text)
    refused(line, read_questions, path)
    refused("cannot be read", read_questions, tmp_path / "none.yaml")
