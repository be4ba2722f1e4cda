"""Tests of attention checks in assessments, with inattentive people, and of human masks among the maps."""

import csv
from collections import Counter
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from datasets import Dataset, Features
from datasets import Image as Pictures
from PIL import Image
from refusals import refused

from saliency_bench.data.geometry import Geometry
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.assess.protocol import KIND, configuration
from saliency_bench.studies.assess.questions import read_questions
from saliency_bench.studies.assess.results import export, rated, results
from saliency_bench.studies.human_masks import RunMasks
from saliency_bench.studies.run_images import HUMAN, pair_of
from saliency_bench.utils.overlays import overlay

from .crowd import PLANTED, QUESTIONS, run_images, start_assess, unit_at

LOOKING, STRAIGHT = "looks", "always in the middle"


def with_masks(count=12):
    """Add masks for all images except the last."""
    images = run_images(count)
    masks = {one: images.frame(one).max(axis=2) > 100 for one in images.ids[:-1]}
    return replace(images, masks=masks)


def start(folder, images, **options):
    return start_assess(folder, images, **{"raters": 3, "per_person": 6} | options)


def rate(study, kind=LOOKING):
    """Join as a person and rate everything, either by the visible image or without looking."""
    person = study.study.join().name
    while maps := study.state(person)["maps"]:
        for one in maps:
            level = 3 if kind == STRAIGHT else look(study, person, one["place"])
            sent = {"place": one["place"], "ratings": dict.fromkeys(QUESTIONS, level)}
            study.save(person, sent | {"request": f"a random text of a person {one['place']}", "seconds": 2})
    return person


def look(study, person, place):
    """Return 1 if the picture does not contain the image. Otherwise, return 5 minus the rank of the explainer."""
    image, name = pair_of(unit_at(study, person, place))
    shown = np.asarray(Image.open(BytesIO(study.picture(person, place))))
    expected = {one: overlay(study.images.frame(image), study.images.map(image, one)) for one in names_of(study)}
    recognised = [one for one, picture in expected.items() if np.array_equal(shown, np.asarray(picture))]
    assert recognised == ([] if name is None else [name])
    return 5 - names_of(study).index(name) if recognised else 1


def names_of(study):
    return [*PLANTED, *([HUMAN] if study.images.masks is not None else [])]


def test_attention_check_uses_its_own_image_and_a_foreign_map(tmp_path):
    study = start(tmp_path, run_images(), checks=2)
    own = study.study.configuration
    assert not set(own["checks"]) & set(own["images"])
    assert len(own["images"]) == 10
    labels = study.images.labels
    assert all(labels[image] != labels[other] for image, other in own["checks"].items())
    positions = set()
    for _ in range(5):
        person = study.study.join().name
        given = [(pair_of(maps[0].unit)[0], maps) for maps in study.given(person)]
        assert (len(given), len({image for image, _ in given})) == (6 + 2, 8)
        for number, (image, maps) in enumerate(given):
            names = [pair_of(one.unit)[1] for one in maps]
            if image in own["checks"]:
                positions.add(number)
                assert Counter(name is None for name in names) == {True: 1, False: 3}
            else:
                assert sorted(names) == sorted(PLANTED)
    assert len(positions) > 3  # at different positions for each person
    assert study.given(study.study.join().name) == []  # all images are assigned, and nobody gets only checks


def test_attention_check_shows_the_overlay_of_another_image(tmp_path):
    study = start(tmp_path, run_images(), checks=1, per_person=1)
    person = study.study.join().name
    ((image, other),) = study.study.configuration["checks"].items()
    while pair_of(unit_at(study, person, study.state(person)["maps"][0]["place"]))[0] != image:
        for one in study.state(person)["maps"]:
            sent = {"place": one["place"], "ratings": dict.fromkeys(QUESTIONS, 3), "request": f"{'x' * 20}{one}"[:90]}
            study.save(person, sent)
    for one in study.state(person)["maps"]:
        shown = Image.open(BytesIO(study.picture(person, one["place"])))
        if pair_of(unit_at(study, person, one["place"]))[1] is None:
            expected = [overlay(study.images.frame(other), study.images.map(other, name)) for name in PLANTED]
            assert any(np.array_equal(np.asarray(shown), np.asarray(picture)) for picture in expected)
            plain = Image.open(BytesIO(study.picture(person, one["place"], plain=True)))
            np.testing.assert_array_equal(np.asarray(plain), study.images.frame(image))
            break
    else:
        pytest.fail("no check")
    state = repr(study.state(person))
    assert not any(word in state for word in (*PLANTED, "secret", "check"))


@pytest.mark.slow
def test_failed_people_are_excluded_from_means_and_reported(tmp_path):
    study = start(tmp_path, run_images(), checks=1, raters=4, per_person=11)
    people = [rate(study, kind) for kind in (LOOKING, LOOKING, LOOKING, STRAIGHT)]
    found = rated(study.study)
    assert found.checks == {person: [person != people[3]] for person in people}
    assert len(found.ratings) == 4 * 11 * 4  # without the ratings of the check
    whole = results(study.study, with_failed=True)
    means = {row["explainer"]: row["mean"] for row in whole.data["ratings"] if row["question"] == "complete"}
    assert means == {"good": 4.5, "half": 3.75, "noise": 3.0, "bad": 2.25}
    line = "1 of 4 people failed an attention check: their ratings"
    assert f"{line} are included." in whole.notes
    less = results(study.study)
    means = {row["explainer"]: row["mean"] for row in less.data["ratings"] if row["question"] == "complete"}
    assert means == {"good": 5, "half": 4, "noise": 3, "bad": 2}
    everyone = {row["explainer"]: row["with everyone"] for row in less.data["ratings"] if row["question"] == "complete"}
    assert everyone == {"good": 4.5, "half": 3.75, "noise": 3.0, "bad": 2.25}
    assert f"{line} are excluded; include them with --with-failed." in less.notes
    assert {row["krippendorff's alpha"] for row in less.data["agreement"]} == {1.0}
    by_person = {row["person"]: row for row in whole.data["people"]}
    assert {person: row["checks right"] for person, row in by_person.items()} == {
        person: int(person != people[3]) for person in people
    }
    assert {(row["maps"], row["checks"], row["median seconds"]) for row in by_person.values()} == {(44, 1, 2.0)}
    assert by_person[people[3]]["mean rating"] == 3.0
    hidden = results(study.study, people=False).data["people"]
    assert {row["person"] for row in hidden} == {"1", "2", "3", "4"}
    assert export(study.study, tmp_path / "all.csv", with_failed=True) == 4 * 44 * 3
    assert export(study.study, tmp_path / "some.csv") == 3 * 44 * 3
    assert people[3] not in (tmp_path / "some.csv").read_text()


@pytest.mark.parametrize(("levels", "passing"), [(2, [1]), (3, [1]), (4, [1, 2]), (5, [1, 2]), (9, [1, 2, 3, 4])])
def test_attention_check_passes_in_lower_half_of_scale(tmp_path, levels, passing):
    questions = {"scale": [str(level) for level in range(levels)], "questions": {"a": "A?", "b": "B?"}}
    settings = configuration(run_images(), questions, checks=1)
    study = Store(tmp_path / "study.db").study(KIND, "s", configuration=settings)
    (check,) = settings["checks"]
    unit = f'["{check}", null]'
    for level in range(1, levels + 1):
        payload = {"place": 0, "ratings": {"a": 1, "b": level}}
        study.record(f"p {level}", unit, f"request of person {level}", payload)
    assert [level for level in range(1, levels + 1) if rated(study).checks[f"p {level}"] == [True]] == passing


@pytest.mark.parametrize(("options", "line"), [
    ({"checks": -1}, "too few"),
    ({"checks": 12}, "12 images are too few: one to rate and 12 attention checks are needed"),
    ({"checks": 2, "limit": 11}, "from 1 to 10"),
])  # fmt: skip
def test_configuration_rejects_impossible_numbers_of_checks(options, line):
    refused(line, configuration, run_images(), read_questions(), **options)


@pytest.mark.slow
def test_human_masks_are_rated_like_maps(tmp_path, monkeypatch):
    names = (f"p-person3{number}" for number in range(2))  # the order of maps depends on the name of the person
    monkeypatch.setattr("saliency_bench.studies.study._pseudonym", lambda *_: next(names))
    study = start(tmp_path, with_masks(), per_person=10, raters=2)
    assert study.images.ids[-1] not in {*study.study.configuration["images"], *study.study.configuration["checks"]}
    people = [rate(study) for _ in range(2)]
    positions = Counter(
        number for person in people for maps in study.given(person) for number, one in enumerate(maps)
        if pair_of(one.unit)[1] == HUMAN)  # fmt: skip
    assert set(positions) == set(range(5))
    findings = results(study.study)
    rows = [row for row in findings.data["ratings"] if row["question"] == "precise"]
    # By the crowd's ranks the mask is the worst; in the next test it is the best.
    assert [(row["explainer"], row["mean"]) for row in rows] == [
        ("good", 5), ("half", 4), ("noise", 3), ("bad", 2), (HUMAN, 1)]  # fmt: skip
    assert {row["maps"] for row in findings.data["agreement"]} == {10 * 4}
    export(study.study, tmp_path / "ratings.csv")
    with (tmp_path / "ratings.csv").open() as file:
        assert Counter(row["explainer"] for row in csv.DictReader(file))[HUMAN] == 10 * 2 * 3


def test_human_mask_is_the_last_row_despite_best_rating(tmp_path):
    study = start(tmp_path, with_masks(), per_person=10, checks=0)
    (image, *_) = study.study.configuration["images"]
    for name, level in ((HUMAN, 5), ("good", 4), ("bad", 1)):
        payload = {"place": 0, "ratings": dict.fromkeys(QUESTIONS, level)}
        study.study.record("a", f'["{image}", "{name}"]', f"a request about {name}", payload)
    rows = [row["explainer"] for row in results(study.study).data["ratings"] if row["question"] == "complete"]
    assert rows == ["good", "bad", HUMAN]


def test_only_masks_of_the_explained_class_are_used():
    images = with_masks(6)
    wrong = images.ids[0]
    explained = dict(images.explained) | {wrong: images.labels[images.ids[1]]}
    settings = configuration(replace(images, explained=explained), read_questions(), checks=0)
    assert set(settings["images"]) == set(images.ids[1:-1])
    refused("no image of the run has a mask", configuration, replace(images, masks={}), read_questions())
    five = {str(number): images.maps["good"] for number in range(5)}
    refused("there are 6 including the human mask", configuration, replace(images, maps=five), read_questions())
    one = configuration(replace(images, maps={"good": images.maps["good"]}), read_questions(), checks=0)
    assert (one["explainers"], one["masks"]) == (["good"], True)


def test_masks_are_cropped_to_frame_and_unusable_ones_left_out(capsys):
    """Test images of 4 x 4 pixels. The frame consists of the central 2 x 2 pixels."""
    drawn = np.zeros((4, 4), np.uint8)
    drawn[1, 1] = drawn[3, 3] = 255
    corner = np.zeros((4, 4), np.uint8)
    corner[0, 0] = 255
    masks = [drawn, drawn // 255, None, np.zeros_like(drawn), corner, np.full_like(drawn, 255), drawn[:2]]
    image = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
    pictures = [None if one is None else Image.fromarray(one) for one in masks]
    rows = Dataset.from_dict(
        {"image": [image] * len(masks), "mask": pictures}, features=Features({"image": Pictures(), "mask": Pictures()})
    )
    found = RunMasks(rows, {str(index): index for index in range(len(masks))}, Geometry(crop=(2, 2)))
    assert list(found) == ["0", "1"]
    for one in found.values():
        assert one.tolist() == [[True, False], [False, False]]
    with pytest.raises(KeyError):
        found["2"]
    trimap = Image.fromarray(np.where(drawn, 1, 2).astype(np.uint8))
    rows = Dataset.from_dict({"image": [image], "mask": [trimap]}, features=rows.features)
    assert dict(RunMasks(rows, {"0": 0}, Geometry(crop=(2, 2)))) == {}
    assert "1 mask cannot be shown, such as the mask of image 0: a mask with two values" in capsys.readouterr().err
    assert RunMasks(rows, {"0": 0}, Geometry(crop=(2, 2)), "1")["0"].tolist() == [[True, False], [False, False]]
    plain = Dataset.from_dict({"image": ["x"]})
    refused("has no masks; remove --with-masks", RunMasks, plain, {"0": 0}, Geometry())
