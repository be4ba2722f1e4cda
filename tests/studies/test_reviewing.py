"""Review as work: reviewers hold what they review, second opinions, and what happens to what was sent back."""

from dataclasses import replace

import pytest
from pages import dataset

from saliency_bench.cli import main
from saliency_bench.studies.annotating import Choice, open_study
from saliency_bench.studies.images import StudyImages
from saliency_bench.studies.store import Store


@pytest.fixture
def annotating(tmp_path):
    images = StudyImages(dataset(4))
    return open_study(Store(tmp_path / "study.db"), "noise", images, "print", annotators=1, reviewers=2)


def draw(annotating, letter):
    """A person who answers all images that are given; returns the pseudonym."""
    person = annotating.study.join(letter * 32).name
    while tasks := [task for task in annotating.state(person)["tasks"] if not task.get("again")]:
        unit = tasks[0]["unit"]
        annotating.save(person, {"unit": unit, "kind": "no_region", "request": f"{letter} answers {unit}"})
    return person


def held(annotating, reviewer):
    return [task["answer"] for task in annotating.review_state(reviewer)["tasks"]]


def test_two_reviewers_never_hold_the_same_until_the_lease_ends(annotating):
    draw(annotating, "a")
    rita, saul, theo = (annotating.study.join(letter * 32, "reviewer").name for letter in "rst")
    assert held(annotating, rita) == held(annotating, rita) == [1, 2]
    assert held(annotating, saul) == [3, 4]
    assert held(annotating, theo) == []
    assert held(replace(annotating, lease_hours=0.0), theo) == [1, 2]


def test_a_mask_is_accepted_by_a_second_opinion(annotating):
    draw(annotating, "a")
    rita, saul = (annotating.study.join(letter * 32, "reviewer").name for letter in "rs")
    (first, _) = held(annotating, rita)
    annotating.study.review(first, rita, "accept", "first opinion of rita")
    assert first not in held(annotating, rita), "nobody reviews an answer twice"
    assert annotating.counted(Choice(accepted=True)) == {}
    assert first in held(annotating, saul)
    annotating.study.review(first, saul, "accept", "second opinion of saul")
    assert first not in [answer.id for answer in annotating.to_review()]
    assert [answers[0].id for answers in annotating.counted(Choice(accepted=True)).values()] == [first]


def test_one_reviewer_is_enough_to_send_back(annotating):
    person = draw(annotating, "a")
    annotating.study.review(2, "rita", "reject", "an opinion of rita", "too small")
    assert 2 not in [answer.id for answer in annotating.to_review()]
    assert [task["comment"] for task in annotating.state(person)["tasks"]] == ["too small"]


def test_what_was_sent_back_goes_to_others_once_its_author_is_gone(annotating):
    draw(annotating, "a")
    unit = annotating.study.answers()[1].unit
    annotating.study.review(2, "rita", "reject", "an opinion of rita")
    other = annotating.study.join("b" * 32).name
    assert annotating.state(other)["tasks"] == [], "its author is at work"
    later = replace(annotating, lease_hours=0.0)
    assert [task["unit"] for task in later.state(other)["tasks"]] == [unit]


def test_the_protocol_of_the_paper(tmp_path, shapes):
    words = ["annotate", "--dataset", str(shapes), "--name", "study", "--store", str(tmp_path / "s.db"), "--protocol"]
    Store(tmp_path / "s.db").close()
    assert main([*words, "p0", "--report", "--annotators", "4"]) == 0
    settings = Store(tmp_path / "s.db").find().configuration["settings"]
    assert (settings["annotators"], settings["reviewers"]) == (4, 2), "what is given counts"
