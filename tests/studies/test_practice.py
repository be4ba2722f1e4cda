"""Tests of practice: images with known masks come first, with feedback, and are excluded from all results."""

import pytest
from pages import BOX, dataset, joined, serving, study_of
from refusals import refused

from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies.annotation_report import annotation_report, report_rows
from saliency_bench.studies.practice import ATTEMPTS
from saliency_bench.studies.runs import runs_of

STUDY = {"count": 6, "masks": 4, "honeypots": 1, "practice": 2, "practice_iou": 0.6}
HALF = BOX.copy()
HALF[20:] = False  # IoU 0.5


class Person:
    def __init__(self, client, letter):
        self.client, self.letter, self.count = client, letter, 0
        self.key = joined(client, letter)
        self.state = client.get("/api/state", headers=self.key).json()

    def draw(self, mask, kind="mask"):
        self.count += 1
        body = {"unit": self.state["tasks"][0]["unit"], "kind": kind, "runs": runs_of(mask), "seconds": 10}
        body["request"] = f"attempt {self.count} of {self.letter}"
        self.state = self.client.post("/api/answer", json=body, headers=self.key).json()
        return self.state["feedback"]


def test_practice_comes_first_and_shows_the_known_mask(annotating, client):
    person = Person(client, "a")
    assert (person.state["practice"], person.state["done"], person.state["total"]) == (True, 0, 2)
    first = person.state["tasks"][0]["unit"]
    assert [task["unit"] for task in person.state["tasks"]] == annotating.practice[:1]
    feedback = person.draw(HALF)
    expected = {"unit": first, "iou": 0.5, "needed": 0.6, "passed": False, "again": True, "runs": runs_of(BOX)}
    assert feedback == expected
    assert person.state["tasks"][0]["runs"] == runs_of(HALF), "the drawing can be corrected"
    feedback = person.draw(BOX)
    assert (feedback["iou"], feedback["passed"], feedback["again"]) == (1.0, True, False)
    assert person.state["tasks"][0]["unit"] == annotating.practice[1]
    person.draw(BOX)
    assert (person.state["practice"], person.state["done"], person.state["latest"]) == (False, 0, None)
    assert not {task["unit"] for task in person.state["tasks"]} & set(annotating.practice)
    assert person.draw(HALF) is None


def test_practice_ends_after_the_last_attempt(annotating, client):
    person = Person(client, "a")
    feedbacks = [person.draw(HALF, kind) for kind in ("mask", "no_region", "skip")]
    assert [feedback["iou"] for feedback in feedbacks] == [0.5, 0.0, 0.0]
    assert [feedback["again"] for feedback in feedbacks] == [True] * (ATTEMPTS - 1) + [False]
    assert person.state["tasks"][0]["unit"] == annotating.practice[1]


def test_practice_is_reported_but_not_counted(annotating, client):
    for letter in "ab":
        person = Person(client, letter)
        for mask in (HALF, BOX, BOX, ~BOX):
            person.draw(mask)
    report = annotation_report(annotating)
    people = annotating.study.people()
    assert (report["answers"], report["images with an answer"]) == ({"mask": 2}, len(annotating.counted()))
    assert not set(annotating.counted()) & set(annotating.practice)
    assert not {answer.unit for answer in annotating.to_review()} & set(annotating.practice)
    assert report["practice"] == {
        person: {"first": 0.75, "last": 1.0, "attempts": 3, "passed": 2, "images": 2} for person in people
    }
    assert any("0.75 at first, 1.00 in the end, 3 attempts, 2 of 2 passed" in row[1] for row in report_rows(report))


def test_practice_images_differ_from_honeypots(annotating, tmp_path):
    assert not set(annotating.practice) & set(annotating.honeypots)
    assert len(annotating.units) == 3
    words = "5 honeypots and practice images need images with a mask"
    refused(words, study_of, tmp_path / "new", dataset(6, masks=4), honeypots=1, practice=4)


@pytest.mark.slow
def test_practice_works_in_a_browser(annotating, browser):
    with serving(create_app(annotating)) as url:
        page = browser.new_page(viewport={"width": 375, "height": 700})
        page.goto(url)
        for text in ("Not yet", "Not yet", "Please note the difference"):
            page.wait_for_selector("#save:not([disabled])")
            page.locator("#board").click(position={"x": 180, "y": 200})
            page.keyboard.press("Enter")
            page.locator("#note", has_text=text).wait_for()
            assert page.locator("#skip").is_disabled()
            page.wait_for_selector("#save:not([disabled])")
            page.keyboard.press("Enter")
        page.locator("#count", has_text="Practice: 1 of 2").wait_for()
    assert [answer.revision for answer in annotating.study.answers(last=False)] == [1, 2, 3]
