"""Tests of the pages of peek-a-boom and of assessments: hostile clients, and people who use a keyboard or a phone."""

import json
import threading
from io import BytesIO

import numpy as np
import pytest
from pages import client_of, joined, serving
from PIL import Image

from saliency_bench.spaces.assess.app import create_app as create_assess
from saliency_bench.spaces.peekaboom.app import create_app as create_peekaboom
from saliency_bench.studies.peekaboom.protocol import revealed
from saliency_bench.studies.run_images import pair_of
from saliency_bench.utils.overlays import overlay

from .crowd import PLANTED, run_images, start_assess, start_peekaboom, unit_at

RANDOM = "a random text of many characters"
RATINGS = {"complete": 5, "precise": 3, "convincing": 1}
SENT = {"peekaboom": {"place": 0, "step": 0, "choice": None, "seconds": 1.0},
        "assess": {"place": 1, "ratings": RATINGS, "request": RANDOM}}  # fmt: skip
peekaboom, assess, both = (pytest.mark.parametrize("kind", kinds) for kinds in (["peekaboom"], ["assess"], list(SENT)))


@pytest.fixture
def study(kind, tmp_path):
    if kind == "assess":
        return start_assess(tmp_path, run_images(10, 48), raters=5, per_person=2, checks=0)
    return start_peekaboom(tmp_path, run_images(30, 48), judgements=1, pairs=4, checks=0)


@pytest.fixture
def app(kind, study):
    return (create_assess if kind == "assess" else create_peekaboom)(study)


@pytest.fixture
def client(app):
    return client_of(app)


def pixels(reply):
    """Return the pixels of a picture, which has no metadata."""
    assert (reply.status_code, reply.headers["content-type"]) == (200, "image/png")
    assert "content-disposition" not in reply.headers
    opened = Image.open(BytesIO(reply.content))
    assert (opened.mode, opened.info, len(opened.getexif())) == ("RGB", {}, 0)
    return np.asarray(opened)


def check_anonymous(state, *pictures):
    assert state.headers["cache-control"] == "no-store"
    everything = state.text + "".join(repr(reply.headers) for reply in (state, *pictures))
    assert not any(word in everything for word in (*PLANTED, "secret", ".jpg"))


def test_peekaboom_client_receives_only_visible_pixels(tmp_path):
    game = start_peekaboom(tmp_path, run_images(), judgements=2, pairs=5)
    client = client_of(create_peekaboom(game))
    key, exposures = joined(client), []
    (person,) = game.study.people()
    while (reply := client.get("/api/state", headers=key)).json()["place"] is not None:
        state, (image, explainer) = reply.json(), pair_of(game.question(person).unit)
        picture = client.get(f"/api/picture?place={state['place']}&step={state['step']}", headers=key)
        check_anonymous(reply, picture)
        assert image.encode() not in picture.content
        shown = pixels(picture)
        if explainer is not None:
            expected = revealed(game.images.frame(image), game.images.map(image, explainer), state["exposure"])
            np.testing.assert_array_equal(shown, expected)
        client.post("/api/answer", headers=key, json={"place": state["place"], "step": state["step"], "choice": None})
        exposures.append(state["exposure"])
    assert exposures.count(0.05) == 5  # pairs
    assert exposures.count(1.0) == 5 + 2  # and attention checks


@assess
def test_assess_client_receives_overlays_without_names(client, study, key):
    reply, (person,) = client.get("/api/state", headers=key), study.study.people()
    maps = reply.json()["maps"]
    for one in maps:
        drawn, plain = (client.get(f"/api/{kind}?place={one['place']}", headers=key) for kind in ("map", "image"))
        check_anonymous(reply, drawn, plain)
        image, explainer = pair_of(unit_at(study, person, one["place"]))
        frame = study.images.frame(image)
        np.testing.assert_array_equal(pixels(drawn), np.asarray(overlay(frame, study.images.map(image, explainer))))
        np.testing.assert_array_equal(pixels(plain), frame)
    assert len(maps) == len(PLANTED)
    question = reply.json()["questions"]["complete"]
    assert question == f"Does it mark everything that shows “{study.images.labels[image]}”?"


@peekaboom
def test_repeated_join_returns_the_same_person(client, study):
    assert (joined(client), len(study.study.people())) == (joined(client), 1)
    assert client.post("/api/join", json={"request": "short"}).status_code == 400
    assert client.post("/api/join", json={}).status_code == 200  # a browser that cannot create ids
    assert client.post("/api/join", json={"request": 7}).status_code == 400


INVALID = {
    "peekaboom": [f"/api/picture{query}" for query in (
        "?place=0&step=1", "?place=1&step=0", "?place=0&step=7", "?place=0&step=0&exposure=1", "", "?place=0",
        "?place=-1&step=0", "?place=zero&step=0", "?place=%D9%A0&step=0", "?place=0.0&step=0",
        "?place=99999999999999999999&step=0")],
    "assess": [f"/api/{path}" for path in (
        "map?place=4", "image?place=4", "map?place=-1", "map", "map?place=a", "map?place=0&person=p",
        "image?place=1e3")],
}  # fmt: skip


@both
def test_invalid_picture_requests_are_rejected(client, kind, key):
    client.get("/api/state", headers=key)
    for path in INVALID[kind]:
        reply = client.get(path, headers=key)
        assert (reply.status_code, list(reply.json()), client.get(path).status_code) == (400, ["error"], 401), path
        assert "\n" not in reply.json()["error"], path


@peekaboom
def test_unknown_addresses_return_404(client):
    paths = ["/static/../app.py", "/static/app.py", "/static/page.html", "/static/%2e%2e%2fapp.py",
             "/static/serving.py", "/study.db", "/api/export", "/api/results", "/api/people", "/docs"]  # fmt: skip
    assert {path: client.get(path).status_code for path in paths} == dict.fromkeys(paths, 404)


@peekaboom
def test_requests_act_only_for_their_key(client, study):
    first, second = joined(client), joined(client, RANDOM + "2")
    keys = ("", "x" * 5000, "é".encode(), study.study.people()[0])
    for path in ("/api/state", "/api/picture?place=0&step=0"):
        for headers in ({}, *({"X-Key": key} for key in keys)):
            assert client.get(path, headers=headers).status_code == 401
    one, other = (client.get("/api/state", headers=key).json() for key in (first, second))
    assert one["person"] != other["person"]
    # The address of a picture that the first person may see is not valid for the second person.
    assert len({client.get("/api/picture?place=0&step=0", headers=key).content for key in (first, second)}) == 2
    sent = {"place": 0, "step": 0, "choice": None, "person": other["person"]}
    assert client.post("/api/answer", headers=first, json=sent).status_code == 200
    assert {answer.person for answer in study.study.answers()} == {one["person"]}


BODIES = [
    b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"place": 0}', b" " * 70_000,
    b'{"place": 0, "step": 0, "choice": "purple"}', b'{"place": 3, "step": 0, "choice": null}',
    b'{"place": 0, "step": 3, "choice": null}', b'{"place": NaN, "step": 0, "choice": null}',
    b'{"place": 0, "step": false, "choice": null}', b'{"place": {"a": 1}, "step": [], "choice": {}}',
    b'{"place": 1e400, "step": 0, "choice": null}', b'{"place": "0", "step": 0, "choice": null}',
    b'{"place": 0, "step": 0}', b'{"place": 0, "step": 0.5, "choice": null}', b'{"place": 0, "step": 0, "choice": 3}',
    b'{"place": null, "step": 0, "choice": null}', b'{"place": -1, "step": 0, "choice": null}',
    b'{"place": 0, "step": 0, "choice": ["red"]}',
]  # fmt: skip
CHANGES = [{"place": place} for place in (4, 99, -1, "0", None, False, [0])]
CHANGES += [{"ratings": ratings} for ratings in (None, {}, {"complete": 1}, [RATINGS], RATINGS | {"more": 3})]
CHANGES += [{"ratings": RATINGS | {"complete": level}} for level in (6, 0, 2.0, True, "3")]
CHANGES += [{"request": request} for request in (None, "short", "x" * 101, "\n" * 20)]
REFUSED = {"peekaboom": BODIES, "assess": [json.dumps(SENT["assess"] | change).encode() for change in CHANGES]}


@both
def test_invalid_answers_are_rejected_and_not_stored(client, study, kind, key):
    client.get("/api/state", headers=key)
    for body in REFUSED[kind]:
        reply = client.post("/api/answer", headers=key, content=body)
        assert (reply.status_code, len(reply.json()["error"].splitlines())) == (400, 1), body[:100]
        assert study.study.answers(last=False) == [], body[:100]


@both
def test_double_click_stores_one_answer(client, study, kind, key):
    state = client.get("/api/state", headers=key).json()
    replies = []

    def send():
        replies.append(client.post("/api/answer", headers=key, json=SENT[kind]))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ({reply.status_code for reply in replies}, len(study.study.answers(last=False))) == ({200}, 1)
    after = client.get("/api/state", headers=key).json()
    if kind == "assess":
        assert after["maps"][1]["ratings"] == RATINGS
    else:
        assert after["step"] == 1
        other = SENT[kind] | {"choice": state["choices"][0]}
        assert client.post("/api/answer", headers=key, json=other).status_code == 400


@pytest.fixture
def served(app):
    with serving(app) as address:
        yield address


READY = "body:not(.waiting) #asking:not([hidden])"


def started(browser, served, **options):
    """Open the page and return it with a list of its errors."""
    page, problems = browser.new_page(**options), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda one: problems.append(one.text) if one.type == "error" else None)
    page.goto(served)
    page.wait_for_selector("#helpDialog[open]")
    return page, problems


def until(page, text):
    """Wait until the page displays this exposure.

    The page's policy does not allow evaluating conditions in the page.
    """
    page.wait_for_selector(f"body:not(.waiting) #shown:has-text('{text}')")


@pytest.mark.slow
@peekaboom
def test_sheet_is_completed_by_keyboard(study, served, browser):
    page, problems = started(browser, served, viewport={"width": 1280, "height": 800})
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    (person,) = study.study.people()
    page.keyboard.press("0")
    until(page, "10 %")
    page.reload()  # the visible pixels stay visible
    page.wait_for_selector(READY)
    assert page.text_content("#shown").startswith("10 %")
    assert not page.is_visible("#helpDialog")
    for _ in range(4):
        question = study.question(person)
        right = study.images.labels[pair_of(question.unit)[0]]
        page.wait_for_selector(READY)
        page.keyboard.press(str(study.choices(person, question.unit).index(right) + 1))
        if question.place < 3:
            page.wait_for_selector(f"#count:has-text('{question.place + 2} of 4')")
            assert page.text_content("#feedback").startswith("Right")
    page.wait_for_selector("#finished:not([hidden])")
    assert len(study.study.answers(last=False)) == 5
    assert problems == []


@pytest.mark.slow
@peekaboom
def test_phone_keeps_an_answer_while_offline(study, served, browser):
    page, _ = started(browser, served, viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True)
    page.tap("#start")
    page.wait_for_selector(READY)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    bottom = page.locator("#unknown").bounding_box()
    assert bottom["y"] + bottom["height"] <= 667  # fits on the screen without scrolling
    assert all(page.locator("#choices button").nth(index).bounding_box()["height"] >= 44 for index in range(4))
    page.route("**/api/answer", lambda route: route.abort())
    page.tap("#unknown")
    page.wait_for_selector("#offline:not([hidden])")
    page.unroute("**/api/answer")
    page.reload()  # the answer is stored in the browser
    until(page, "10 %")
    assert len(study.study.answers(last=False)) == 1
    assert page.is_hidden("#offline")


@pytest.mark.slow
@assess
def test_two_images_are_rated_by_keyboard(study, served, browser):
    page, problems = started(browser, served, viewport={"width": 1280, "height": 800})
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
@assess
def test_assessment_works_on_a_phone(study, served, browser):
    page, _ = started(browser, served, viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True)
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
