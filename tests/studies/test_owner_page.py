"""Tests of the owner's page: statistics of people and images, and pausing, closing and excluding people."""

import numpy as np
import pytest
from pages import BOX, answer_all, serving
from starlette.testclient import TestClient

from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.spaces.assess.app import create_app as create_assess
from saliency_bench.spaces.peekaboom.app import create_app as create_peekaboom
from saliency_bench.studies.annotating import AnswerChoice
from saliency_bench.studies.annotation_report import annotation_report, report_rows
from saliency_bench.studies.database import hours_ago
from saliency_bench.studies.overview import AnnotationOverview
from saliency_bench.studies.owner_actions import act, excluded, status
from saliency_bench.studies.peekaboom.results import results
from saliency_bench.studies.runs import runs_of

from .crowd import Worker, rate, run_images, start_assess, start_peekaboom, work

STUDY = {"count": 5, "masks": 1, "annotators": 3, "honeypots": 1, "honeypot_every": 2}
OTHER = np.zeros((60, 80), bool)
OTHER[40:, 50:] = True


@pytest.fixture
def owner(annotating):
    return {"X-Key": annotating.study.join(role="owner").key}


def draw(annotating, mask, seconds, letter):
    person = annotating.study.join(letter * 32).name
    answer_all(annotating, person, most=5, kind="mask", runs=runs_of(mask), seconds=seconds)
    return person


def crowd(annotating):
    """Simulate two good people, and one person who is fast and draws elsewhere.

    All draw on the 4 images and the honeypot.
    """
    people = [draw(annotating, BOX, seconds, letter) for letter, seconds in (("a", 30), ("b", 40))]
    return [*people, draw(annotating, OTHER, 2, "c")]


def test_overview_lists_suspicious_people_and_images_first(annotating, client, owner):
    votes = [f"/api/votes?unit={unit}" for unit in (annotating.units[0], "nothing")]
    unmarked = client.get(votes[0], headers=owner).content
    good, other, careless = crowd(annotating)
    idle = annotating.study.join("d" * 32).name
    annotating.study.assign(idle, annotating.units[:1])
    seen = AnnotationOverview(annotating)()
    people = {row["person"]: row for row in seen["people"]}
    assert (seen["people"][0]["person"], people[careless]["marks"]) == (careless, ["quick", "careless"])
    assert people[good]["marks"] == people[other]["marks"] == people[idle]["marks"] == []
    assert (people[good]["checks right"], people[careless]["checks right"], people[good]["checks"]) == (1, 0, 1)
    assert people[good]["agreement"] == pytest.approx(0.5), "1 with the other good person, 0 with the careless person"
    assert people[careless]["agreement"] == 0
    assert (seen["done"], seen["wanted"], seen["last day"]) == (12, 12, 12), "honeypots do not count"
    assert sum(seen["by day"].values()) == 12
    assert [(row["people"], row["iou"]) for row in seen["images"]] == [(3, pytest.approx(1 / 3))] * 4
    assert all(row["marks"] == ["low agreement"] for row in seen["images"])
    marked, wrong = (client.get(path, headers=owner) for path in votes)
    assert (marked.status_code, marked.headers["content-type"], wrong.status_code) == (200, "image/png", 400)
    assert marked.content != unmarked


@pytest.mark.parametrize(("ahead", "lease"), [(0, -1.0), (24 * 3650, 24.0)])  # hours
def test_idle_person_with_open_images_is_marked_stuck(ahead, lease, annotating, monkeypatch):
    monkeypatch.setattr("saliency_bench.studies.study.now", lambda: hours_ago(-ahead))  # a clock that is set back later
    annotating.study.assign(annotating.study.join("d" * 32).name, annotating.units[:1])
    from dataclasses import replace

    (row,) = AnnotationOverview(replace(annotating, lease_hours=lease))()["people"]
    assert (row["marks"], row["open"]) == (["stuck"], 1)


def test_excluded_person_is_not_counted_until_readmitted(annotating, client, owner):
    careless = crowd(annotating)[-1]
    body = {"action": "exclude", "person": careless, "reason": "scribbles", "request": "first"}
    assert client.post("/api/act", json=body | {"person": [careless]}, headers=owner).status_code == 400
    assert client.post("/api/act", json=body, headers=owner).json() == {}
    assert excluded(annotating.study) == {careless: "scribbles"}
    seen = AnnotationOverview(annotating)()
    assert (seen["done"], seen["last day"], seen["days left"]) == (8, 8, 0.5), "excluded people do not count"
    assert sum(seen["by day"].values()) == 8
    report = annotation_report(annotating)
    assert (report["left out"], report["agreement"]["IoU"]["value"]) == ({careless: "scribbles"}, 1)
    assert report["agreement with everyone"]["IoU"]["value"] == pytest.approx(1 / 3)
    assert [f"left out: {careless}", "scribbles"] in report_rows(report)
    assert all(len(answers) == 2 for answers in annotating.counted().values())
    assert all(len(answers) == 3 for answers in annotating.counted(AnswerChoice(with_excluded=True)).values())
    assert len(annotating.state(annotating.study.join("n" * 32).name)["tasks"]) == 2, "their images are reassigned"
    state = client.get("/api/state", headers={"X-Key": annotating.study.join("c" * 32).key}).json()
    assert (state["stopped"], state["tasks"], state["completion"]) == ("excluded", [], None)
    client.post("/api/act", json=body | {"action": "include", "request": "second"}, headers=owner)
    assert excluded(annotating.study) == annotation_report(annotating)["left out"] == {}
    assert [event["action"] for event in AnnotationOverview(annotating)()["actions"]] == ["exclude", "include"]


def test_paused_study_stores_answers_but_assigns_nothing(annotating, client, owner, key):
    unit = client.get("/api/state", headers=key).json()["tasks"][0]["unit"]
    client.post("/api/act", json={"action": "pause", "request": "p"}, headers=owner)
    body = {"unit": unit, "kind": "mask", "runs": runs_of(BOX), "request": "r" * 16, "seconds": 3}
    state = client.post("/api/answer", json=body, headers=key).json()
    assert (state["revision"], state["stopped"], state["tasks"], state["done"]) == (1, "paused", [], 1)
    client.post("/api/act", json={"action": "close", "request": "c"}, headers=owner)
    assert client.get("/api/state", headers=key).json()["stopped"] == "closed"
    client.post("/api/act", json={"action": "pause", "request": "p"}, headers=owner)
    assert status(annotating.study) == "closed", "a repeated request does nothing"
    client.post("/api/act", json={"action": "open", "request": "o"}, headers=owner)
    assert len(client.get("/api/state", headers=key).json()["tasks"]) == 2


def test_owner_page_rejects_other_roles(annotating, client, owner, key):
    for other in (key, {"X-Key": annotating.study.join(role="reviewer").key}):
        assert client.get("/api/overview", headers=other).status_code == 403
        assert client.get("/api/votes?unit=image-001", headers=other).status_code == 403
        assert client.post("/api/act", json={"action": "pause", "request": "x"}, headers=other).status_code == 403
    assert client.get("/api/overview").status_code == 401
    assert (client.get("/api/state", headers=owner).status_code, annotating.study.assignments()) == (403, [])
    for body in ({"action": "delete"}, {"action": "exclude", "person": "nobody"}, {"action": ["pause"]}, {}):
        assert client.post("/api/act", json=body | {"request": "x"}, headers=owner).status_code == 400
    assert status(annotating.study) == "open"


def test_peekaboom_overview_counts_valid_judgements(tmp_path):
    """Test that only the last answer of a judgement counts. Attention checks and excluded people do not count."""
    peekaboom = start_peekaboom(tmp_path, run_images(6), judgements=2, pairs=3, checks=1, limit=4)
    bot = work(peekaboom, Worker("bot", careless=True))
    work(peekaboom, Worker("one"))
    work(peekaboom, Worker("other"), most=1)
    act(peekaboom.study, "exclude", "a request", bot)
    owner = {"X-Key": peekaboom.study.join(role="owner").key}
    seen = TestClient(create_peekaboom(peekaboom)).get("/api/overview", headers=owner).json()
    assert seen["done"] == seen["last day"] == sum(seen["by day"].values()) < len(peekaboom.study.answers(last=False))


def test_assess_overview_counts_valid_ratings(tmp_path):
    """Test two excluded people of three: the owner excludes one, and one fails the attention check."""
    assess = start_assess(tmp_path, run_images(6), raters=3, per_person=2, checks=1)
    people = {assess.study.join().name: rating for rating in (1, 1, 5)}
    for person, rating in people.items():
        rate(assess, person, lambda *about, rating=rating: rating)
    act(assess.study, "exclude", "a request", next(iter(people)))
    owner = {"X-Key": assess.study.join(role="owner").key}
    seen = TestClient(create_assess(assess)).get("/api/overview", headers=owner).json()
    assert (seen["done"], seen["last day"], sum(seen["by day"].values())) == (8, 8, 8), "two images of four maps"
    assert [row["marks"] for row in seen["people"] if people[row["person"]] == 5] == [["careless"]]


@pytest.mark.slow
def test_peekaboom_reassigns_judgements_of_excluded_people(tmp_path):
    peekaboom = start_peekaboom(tmp_path, run_images(6), judgements=2, pairs=6, checks=0, limit=6)
    count = len(peekaboom._sheets)
    people = [work(peekaboom, Worker(f"w{number}", noise=0.0)) for number in range(count - 1)]
    people.append(work(peekaboom, Worker("bot", careless=True)))
    by_name = results(peekaboom.study, exclude=people[-1:])
    assert results(peekaboom.study).data["crowd"] != by_name.data["crowd"]
    client = TestClient(create_peekaboom(peekaboom))
    owner = {"X-Key": peekaboom.study.join(role="owner").key}
    before = client.get("/api/overview", headers=owner).json()
    assert before["done"] == before["wanted"] == 2 * 6 * 4
    act(peekaboom.study, "exclude", "a request", people[-1])
    found = results(peekaboom.study)
    assert found.data["crowd"] == by_name.data["crowd"], "as when excluded by name"
    assert f"Excluded by name: {people[-1]}." in found.notes
    missing = before["done"] - client.get("/api/overview", headers=owner).json()["done"]
    assert missing == 6
    work(peekaboom, Worker("next", noise=0.0))
    assert client.get("/api/overview", headers=owner).json()["done"] == before["wanted"]


@pytest.mark.slow
def test_caption_reports_number_of_annotators(annotating, browser):
    """Test one image that somebody skipped, and one image on which only one person drew."""
    person = annotating.study.join("a" * 32).name
    for kind in ("skip", "mask"):
        unit = next(task["unit"] for task in annotating.state(person)["tasks"] if task["unit"] in annotating.units)
        annotating.save(person, {"unit": unit, "kind": kind, "runs": runs_of(BOX), "request": f"a request {kind}"})
    key = annotating.study.join(role="owner").key
    with serving(create_app(annotating)) as url:
        page = browser.new_page()
        page.goto(f"{url}owner#key={key}")
        for number, words in enumerate(
            ["nobody has marked a region, but the image was skipped.", "marked by one person."]
        ):
            page.get_by_role("button", name="Show").nth(number).click()
            page.locator("#caption", has_text=words).wait_for()
            page.locator("#closePicture").click()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 375])
def test_owner_excludes_readmits_and_pauses_in_a_browser(annotating, browser, width):
    careless = crowd(annotating)[-1]
    key = annotating.study.join(role="owner").key
    with serving(create_app(annotating)) as url:
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto(f"{url}owner#key={key}")
        page.locator("#amount", has_text="12 of 12 answers (100 %)").wait_for()
        for part in ("html", ".scroll >> nth=0", ".scroll >> nth=1"):
            assert page.locator(part).evaluate("one => one.scrollWidth <= one.clientWidth"), part
        assert page.locator("#people tr").nth(1).inner_text().startswith(careless)
        page.get_by_role("button", name=f"Exclude {careless}").click()
        page.locator("#reason").fill("<b>scribbles</b>")
        page.locator("#confirm").click()
        page.locator("#actions", has_text=f"exclude {careless}: <b>scribbles</b>").wait_for()
        page.get_by_role("button", name=f"Readmit {careless}").click()
        page.get_by_role("button", name=f"Exclude {careless}").wait_for()
        page.get_by_role("button", name="Show").first.click()
        page.locator("#picture").wait_for()
        page.locator("#closePicture").click()
        page.get_by_role("button", name="Pause").click()
        page.locator("#state", has_text="paused").wait_for()
    assert status(annotating.study) == "paused"
