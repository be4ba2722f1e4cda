"""Tests of reviews: reviewers lease answers, second opinions, and answers that are sent back."""

from dataclasses import replace

import numpy as np
from pages import BOX, answer_all, client_of, study_of
from refusals import refused

from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies.annotating import AnswerChoice
from saliency_bench.studies.annotation_report import annotation_report, report_rows
from saliency_bench.studies.answer_rows import add_lines, copy_without, lines_after
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.exporting import export
from saliency_bench.studies.owner_actions import act
from saliency_bench.studies.runs import runs_of

STUDY = {"annotators": 1, "reviewers": 2}


def draw(annotating, letter):
    person = annotating.study.join(letter * 32).name
    answer_all(annotating, person)
    return person


def corrected(annotating, reviewer, answer, mask=BOX, **other):
    sent = {"answer": answer, "kind": "mask", "runs": runs_of(mask), "request": f"{reviewer} corrects {answer}"}
    annotating.correct(reviewer, sent | other)


def held(annotating, reviewer):
    return [task["answer"] for task in annotating.review_state(reviewer)["tasks"]]


def test_reviewers_lease_different_answers(annotating):
    draw(annotating, "a")
    rita, saul, theo = (annotating.study.join(letter * 32, "reviewer").name for letter in "rst")
    assert held(annotating, rita) == held(annotating, rita) == [1, 2]
    assert (held(annotating, saul), held(annotating, theo)) == ([3, 4], [])
    assert held(replace(annotating, lease_hours=0.0), theo) == [1, 2]


def test_mask_is_accepted_by_a_second_review(annotating):
    draw(annotating, "a")
    rita, saul = (annotating.study.join(letter * 32, "reviewer").name for letter in "rs")
    (first, _) = held(annotating, rita)
    annotating.study.review(first, rita, "accept", "first opinion of rita")
    assert first not in held(annotating, rita), "an answer is not reviewed twice by one person"
    assert annotating.counted(AnswerChoice(accepted=True)) == {}
    assert first in held(annotating, saul)
    annotating.study.review(first, saul, "accept", "second opinion of saul")
    assert first not in [answer.id for answer in annotating.to_review()]
    assert [answers[0].id for answers in annotating.counted(AnswerChoice(accepted=True)).values()] == [first]


def test_answers_of_excluded_people_are_not_reviewed(annotating):
    person = draw(annotating, "a")
    waiting = [answer.id for answer in annotating.to_review()]
    act(annotating.study, "exclude", "leave out a", person, "scribbles")
    assert not {answer.person for answer in annotating.to_review()} & {person}
    act(annotating.study, "include", "take in a", person)
    assert [answer.id for answer in annotating.to_review()] == waiting


def test_rejected_image_is_reassigned_when_its_author_leaves(annotating):
    person, unit = draw(annotating, "a"), annotating.study.answers()[1].unit
    annotating.study.review(2, "rita", "reject", "an opinion of rita", "too small")
    assert 2 not in [answer.id for answer in annotating.to_review()]
    assert [task["comment"] for task in annotating.state(person)["tasks"]] == ["too small"]
    other = annotating.study.join("b" * 32).name
    assert annotating.state(other)["tasks"] == [], "its author still has the image"
    later = replace(annotating, lease_hours=0.0)
    assert [task["unit"] for task in later.state(other)["tasks"]] == [unit]


def test_correction_replaces_the_mask_and_names_its_source(annotating):
    person = draw(annotating, "a")
    rita, saul = (annotating.study.join(letter * 32, "reviewer").name for letter in "rs")
    for _ in range(2):  # repeating a request stores nothing
        corrected(annotating, rita, 1)
    (unit,) = [answer.unit for answer in annotating.study.answers() if answer.id == 1]
    correction = annotating.study.corrections()[1]
    assert correction.payload == {"kind": "mask", "corrects": {"person": person, "revision": 1}}
    assert correction.reviewer == rita
    (counted,) = annotating.counted()[unit]
    assert (counted.person, counted.revision, counted.corrected_by) == (person, 1, rita)
    np.testing.assert_array_equal(annotating.pixels(counted), BOX)
    (drawn,) = annotating.counted(AnswerChoice(as_drawn=True))[unit]
    assert (drawn.corrected_by, annotating.pixels(drawn).any()) == (None, False)
    assert [task["unit"] for task in annotating.state(person)["tasks"]] == [], "the answer is not sent back"

    assert 1 not in held(annotating, rita)
    (task,) = [task for task in annotating.review_state(saul)["tasks"] if task["answer"] == 1]
    assert (task["corrected"], task["runs"]) == (True, runs_of(BOX))
    assert annotating.counted(AnswerChoice(accepted=True)) == {}, "a correction is one of two opinions"
    annotating.study.review(1, saul, "accept", "second opinion of saul")
    assert list(annotating.counted(AnswerChoice(accepted=True))) == [unit]


def test_reviews_of_a_mask_do_not_accept_its_correction(annotating):
    draw(annotating, "a")
    rita, saul = (annotating.study.join(letter * 32, "reviewer").name for letter in "rs")
    annotating.study.review(1, rita, "accept", "first opinion of rita")
    corrected(annotating, saul, 1)
    assert annotating.counted(AnswerChoice(accepted=True)) == {}
    assert 1 in held(annotating, rita), "the correction needs a new review"
    assert annotating.review_state(saul)["done"] == 1
    annotating.study.review(1, rita, "accept", "another opinion of rita")
    assert [answers[0].id for answers in annotating.counted(AnswerChoice(accepted=True)).values()] == [1]


def test_corrections_are_validated_and_can_be_rejected(annotating):
    person = draw(annotating, "a")
    for other in ({"kind": "skip"}, {"runs": [4800]}, {"runs": [1]}, {"answer": 99}, {"answer": None}):
        refused(".", corrected, annotating, "rita", **{"answer": 1} | other)
    corrected(annotating, "rita", 1)
    annotating.study.review(1, "saul", "reject", "an opinion of saul", "both are wrong")
    assert [task["comment"] for task in annotating.state(person)["tasks"]] == ["both are wrong"]
    unit = annotating.state(person)["tasks"][0]["unit"]
    annotating.save(person, {"unit": unit, "kind": "no_region", "request": "the second attempt"})
    refused("its author has changed it", corrected, annotating, "theo", 1)
    (counted,) = annotating.counted()[unit]
    assert (counted.revision, counted.corrected_by) == (2, None)


def test_reports_and_exports_list_corrections(annotating, tmp_path):
    person = draw(annotating, "a")
    corrected(annotating, "rita", 1)
    unit = annotating.study.answers()[0].unit
    report = annotation_report(annotating)
    assert report["corrections"] == [{"image": unit, "person": person, "revision": 1, "corrected by": "rita"}]
    assert report["reviews"]["correct"] == 1
    assert ["corrected by rita", "1 masks"] in report_rows(report)
    assert "agreement as drawn" in report
    export(annotating, tmp_path / "out", "coco")
    lines = (tmp_path / "out/corrections.csv").read_text().splitlines()
    assert lines == ["image,person,revision,corrected by", f"{unit},{person},1,rita"]
    export(annotating, tmp_path / "consensus", "png", people=False)
    assert "rita" not in (tmp_path / "consensus/corrections.csv").read_text()


def test_corrections_are_copied_and_erased_with_their_people(annotating, tmp_path):
    draw(annotating, "a")
    corrected(annotating, "rita", 1)
    store = annotating.study.store
    other = Store(tmp_path / "other.db")
    lines, _ = lines_after(store, {})
    assert add_lines(other, lines, "a test") == add_lines(Store(tmp_path / "third.db"), lines[::-1], "a test")
    assert add_lines(other, lines, "a test").added == 0
    (correction,) = other.find().corrections().values()
    assert (correction.reviewer, correction.mask) == ("rita", annotating.study.corrections()[1].mask)
    copy_without(store, Store(tmp_path / "fourth.db"), {"rita"})
    assert Store(tmp_path / "fourth.db").find().corrections() == {}


def test_only_reviewers_see_other_masks_and_correct(tmp_path):
    annotating = study_of(tmp_path, 2, annotators=3)
    client = client_of(create_app(annotating))
    draw(annotating, "a")
    annotator, reviewer = annotating.study.join("b" * 32), annotating.study.join("r" * 32, "reviewer")
    unit = annotating.study.answers()[0].unit
    annotating.study.assign(annotator.name, [unit])
    sent = {"unit": unit, "kind": "mask", "runs": runs_of(BOX), "request": "another mask"}
    annotating.save(annotator.name, sent)
    seen = client.get("/api/others?answer=1", headers={"X-Key": reviewer.key})
    assert seen.json() == {"people": 1, "runs": runs_of(BOX)}
    assert client.get("/api/others?answer=99", headers={"X-Key": reviewer.key}).status_code == 400
    assert client.get("/api/others?answer=1", headers={"X-Key": annotator.key}).status_code == 403
    sent = {"answer": 1, "kind": "mask", "runs": runs_of(BOX), "request": "a correction"}
    assert client.post("/api/correct", json=sent, headers={"X-Key": annotator.key}).status_code == 400
    assert client.post("/api/correct", json=sent, headers={"X-Key": reviewer.key}).json()["done"] == 1
