"""Tests of studies that grow: more people or more images create a revision that the report mentions."""

import pytest
from pages import answer_all, dataset
from refusals import refused

from saliency_bench.studies.annotating import open_study
from saliency_bench.studies.annotation_report import annotation_report, report_rows
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.images import StudyImages


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "study.db")


def opened(store, images=4, fingerprint="four", **options):
    return open_study(store, "noise", StudyImages(dataset(images, masks=2)), fingerprint, **options)


def finish(annotating, letter):
    return len(answer_all(annotating, annotating.study.join(letter * 32).name))


def test_grown_study_assigns_more_people_and_images(store):
    before = opened(store, annotators=1, honeypots=1, honeypot_every=2)
    assert [finish(before, letter) for letter in "ab"] == [4, 1], "the second one gets the honeypot alone"
    grown = opened(store, 7, "seven", annotators=2, growing=True)
    assert grown.honeypots == before.honeypots, "known masks stay those that people have seen"
    assert (len(grown.units), [finish(grown, letter) for letter in "ab"]) == (6, [3, 6])
    again = opened(store, 7, "seven")
    assert (again.settings, again.units) == (grown.settings, grown.units)
    rows = annotation_report(again)["protocol"]
    assert [(row["annotators"], row["images"]) for row in rows] == [(1, 4), (2, 7)]
    assert ["protocol 1", "1 people per image, 4 images"] in report_rows(annotation_report(again))


def test_study_grows_only_with_grow_option(store):
    opened(store, annotators=2)
    for options in ({"annotators": 3}, {"images": 5, "fingerprint": "five"}):
        refused("--grow to add people or images", opened, store, **options)
    opened(store, annotators=3, growing=True)
    refused(r"a different configuration \(annotators 3, now 2\); use", opened, store, annotators=2)
    assert len(annotation_report(opened(store, annotators=3, growing=True))["protocol"]) == 2, "once however often"


@pytest.mark.parametrize(("options", "words"), [
    ({"annotators": 1}, "--annotators was 2"), ({"per_person": 3}, "--per-person was 0"),
    ({"seed": 1}, "--seed was 0"), ({"honeypots": 1}, "--honeypots was 0"),
])  # fmt: skip
def test_growing_rejects_other_changes(store, options, words):
    opened(store, annotators=2)
    refused(words, opened, store, growing=True, **options)


def test_growing_rejects_missing_or_changed_images(store):
    finish(opened(store), "a")
    refused("has no image image-003", opened, store, 3, "three", growing=True)
    others = StudyImages(dataset(5, seed=1))
    refused("differs from the annotated image", open_study, store, "noise", others, "others", growing=True)
