"""Tests of the page of assessments: hostile clients, and people who use a keyboard or a phone."""

import json
import threading

import pytest
from pages import client_of, serving

from saliency_bench.spaces.assess.app import create_app

from .crowd import PLANTED, run_images, start_assess

RATINGS = {"complete": 5, "precise": 3, "convincing": 1}


@pytest.fixture
def study(tmp_path):
    return start_assess(tmp_path, run_images(10, 48), raters=5, per_person=2, checks=0)


@pytest.fixture
def client(study):
    return client_of(create_app(study))


def test_client_receives_no_explainer_or_file_names(client, key):
    replies = [client.get(path, headers=key) for path in ("/api/state", "/api/map?place=0", "/api/image?place=0")]
    everything = "".join(one.text + repr(one.headers) for one in replies)
    assert [one.status_code for one in replies] == [200, 200, 200]
    assert not any(word in everything for word in (*PLANTED, "secret", ".jpg"))


@pytest.mark.parametrize("path", [
    "/api/map?place=4", "/api/image?place=4", "/api/map?place=-1", "/api/map", "/api/map?place=a",
    "/api/map?place=0&person=p", "/api/image?place=1e3",
])  # fmt: skip
def test_invalid_picture_requests_are_rejected(client, path, key):
    client.get("/api/state", headers=key)
    assert (client.get(path, headers=key).status_code, client.get(path).status_code) == (400, 401)


BODIES = [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"place": 0}']
CHANGES = [{"place": place} for place in (4, 99, -1, "0", None, False, [0])]
CHANGES += [{"ratings": ratings} for ratings in (None, {}, {"complete": 1}, [RATINGS], RATINGS | {"more": 3})]
CHANGES += [{"ratings": RATINGS | {"complete": level}} for level in (6, 0, 2.0, True, "3")]
CHANGES += [{"request": request} for request in (None, "short", "x" * 101, "\n" * 20)]


@pytest.mark.parametrize("body", [*BODIES, *CHANGES])
def test_invalid_answers_are_rejected_and_not_stored(client, study, body, key):
    client.get("/api/state", headers=key)
    if isinstance(body, dict):
        body = json.dumps({"place": 0, "ratings": RATINGS, "request": "a random text of many characters"} | body)
    reply = client.post("/api/answer", headers=key, content=body)
    assert (reply.status_code, len(reply.json()["error"].splitlines())) == (400, 1)
    assert study.study.answers(last=False) == []


def test_double_click_stores_one_answer(client, study, key):
    client.get("/api/state", headers=key)
    sent = {"place": 1, "ratings": RATINGS, "request": "a random text of many characters"}
    threads = [threading.Thread(target=lambda: client.post("/api/answer", headers=key, json=sent)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(study.study.answers(last=False)) == 1
    assert client.get("/api/state", headers=key).json()["maps"][1]["ratings"] == RATINGS


@pytest.fixture
def served(study):
    with serving(create_app(study)) as address:
        yield address


READY = "body:not(.waiting) #asking:not([hidden])"


@pytest.mark.slow
def test_two_images_are_rated_by_keyboard(study, served, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda one: problems.append(one.text) if one.type == "error" else None)
    page.goto(served)
    page.wait_for_selector("#helpDialog[open]")
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    for _ in range(7):  # two maps, and one question on the third map
        page.keyboard.press("4")
    page.wait_for_selector("#status:has-text('5 answers left')")
    page.wait_for_timeout(300)
    page.reload()  # stored answers are displayed again
    page.wait_for_selector(READY)
    assert page.locator("input:checked").count() == 6
    for key in "555":
        page.keyboard.press(key)
    page.keyboard.press("ArrowUp")  # go back and change the last answer
    page.keyboard.press("1")
    for key in "222":
        page.keyboard.press(key)
    page.wait_for_selector("#status:has-text('All saved')")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{READY} ~ * , #count:has-text('2 of 2')")
    page.wait_for_selector(READY)
    for _ in range(12):
        page.keyboard.press("3")
    page.keyboard.press("Enter")
    page.wait_for_selector("#finished:not([hidden])")
    (person,) = study.study.people()
    ratings = [one.payload["ratings"] for one in study.study.answers(person)]
    assert sorted(tuple(one.values()) for one in ratings) == sorted(
        [(4, 4, 4)] * 2 + [(5, 5, 1), (2, 2, 2)] + [(3, 3, 3)] * 4
    )
    assert problems == []


@pytest.mark.slow
def test_page_works_on_a_phone(study, served, browser):
    page = browser.new_page(viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True)
    page.goto(served)
    page.wait_for_selector("#helpDialog[open]")
    page.tap("#start")
    page.wait_for_selector(READY)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    sizes = [one.bounding_box() for one in page.locator(".levels label").all()[:15]]
    assert all(size["height"] >= 44 and size["width"] >= 44 for size in sizes)
    for number in range(3):
        page.locator("fieldset").nth(number).locator("label").nth(number).tap()
    page.wait_for_selector(".map.rated")
    page.wait_for_selector("#status:has-text('9 answers left')")
    page.tap("#next", force=True)  # goes to the first unanswered question
    assert page.locator("#finished").is_hidden()
    page.wait_for_timeout(300)
    assert [one.payload["ratings"] for one in study.study.answers()] == [{"complete": 1, "precise": 2, "convincing": 3}]
