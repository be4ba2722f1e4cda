"""Tests of the page of peek-a-boom: hostile clients, and people who use a keyboard or a phone."""

import json
import threading
from io import BytesIO

import numpy as np
import pytest
from pages import client_of, joined, serving
from PIL import Image

from saliency_bench.spaces.peekaboom.app import create_app
from saliency_bench.studies.run_images import pair_of

from .crowd import PLANTED, run_images, start_peekaboom

RANDOM = "a random text of many characters"


@pytest.fixture
def game(tmp_path):
    return start_peekaboom(tmp_path, run_images(30, 48), judgements=1, pairs=4, checks=0)


@pytest.fixture
def client(game):
    return client_of(create_app(game))


def test_client_receives_no_hidden_pixels_or_names(client, game, key):
    state = client.get("/api/state", headers=key)
    assert state.headers["cache-control"] == "no-store"
    picture = client.get("/api/picture?place=0&step=0", headers=key)
    assert picture.headers["content-type"] == "image/png"
    assert "content-disposition" not in picture.headers
    pixels = np.asarray(Image.open(BytesIO(picture.content)))
    assert 0 < (pixels != 0).any(axis=2).sum() <= round(0.05 * 48 * 48)
    assert Image.open(BytesIO(picture.content)).info == {}
    everything = state.text + repr(state.headers) + repr(picture.headers)
    assert not any(word in everything for word in (*PLANTED, "secret", ".jpg"))


def test_repeated_join_returns_the_same_person(client, game):
    assert (joined(client), len(game.study.people())) == (joined(client), 1)
    assert client.post("/api/join", json={"request": "short"}).status_code == 400
    assert client.post("/api/join", json={}).status_code == 200  # a browser that cannot create ids
    assert client.post("/api/join", json={"request": 7}).status_code == 400


@pytest.mark.parametrize("path", [
    "/api/picture?place=0&step=1", "/api/picture?place=1&step=0", "/api/picture?place=0&step=7",
    "/api/picture?place=0&step=0&exposure=1", "/api/picture", "/api/picture?place=0", "/api/picture?place=-1&step=0",
    "/api/picture?place=zero&step=0", "/api/picture?place=%D9%A0&step=0", "/api/picture?place=0.0&step=0",
    "/api/picture?place=99999999999999999999&step=0",
])  # fmt: skip
def test_invalid_picture_requests_are_rejected(client, path, key):
    client.get("/api/state", headers=key)
    reply = client.get(path, headers=key)
    assert (reply.status_code, list(reply.json())) == (400, ["error"])
    assert "\n" not in reply.json()["error"]


@pytest.mark.parametrize("path", [
    "/static/../app.py", "/static/app.py", "/static/page.html", "/static/%2e%2e%2fapp.py", "/static/serving.py",
    "/study.db", "/api/export", "/api/results", "/api/people", "/docs",
])  # fmt: skip
def test_unknown_addresses_return_404(client, path):
    assert client.get(path).status_code == 404


def test_requests_act_only_for_their_key(client, game):
    first, second = joined(client), joined(client, RANDOM + "2")
    for path in ("/api/state", "/api/picture?place=0&step=0"):
        for headers in ({}, {"X-Key": ""}, {"X-Key": "x" * 5000}, {"X-Key": game.study.people()[0]}):
            assert client.get(path, headers=headers).status_code == 401
    one, other = (client.get("/api/state", headers=key).json() for key in (first, second))
    assert one["person"] != other["person"]
    # The address of a picture that the first person may see is not valid for the second person.
    assert len({client.get("/api/picture?place=0&step=0", headers=key).content for key in (first, second)}) == 2
    sent = {"place": 0, "step": 0, "choice": None, "person": other["person"]}
    assert client.post("/api/answer", headers=first, json=sent).status_code == 200
    assert {answer.person for answer in game.study.answers()} == {one["person"]}


@pytest.mark.sample(6)
@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"place": 0}', b" " * 70_000,
    b'{"place": 0, "step": 0, "choice": "purple"}', b'{"place": 3, "step": 0, "choice": null}',
    b'{"place": 0, "step": 3, "choice": null}', b'{"place": NaN, "step": 0, "choice": null}',
    b'{"place": 0, "step": false, "choice": null}', b'{"place": {"a": 1}, "step": [], "choice": {}}',
    b'{"place": 1e400, "step": 0, "choice": null}', b'{"place": "0", "step": 0, "choice": null}',
    b'{"place": 0, "step": 0}', b'{"place": 0, "step": 0.5, "choice": null}', b'{"place": 0, "step": 0, "choice": 3}',
    b'{"place": null, "step": 0, "choice": null}', b'{"place": -1, "step": 0, "choice": null}',
    b'{"place": 0, "step": 0, "choice": ["red"]}',
])  # fmt: skip
def test_invalid_answers_are_rejected_and_not_stored(client, game, body, key):
    client.get("/api/state", headers=key)
    reply = client.post("/api/answer", headers=key, content=body)
    assert (reply.status_code, len(reply.json()["error"].splitlines())) == (400, 1)
    assert game.study.answers(last=False) == []


def test_double_click_stores_one_answer(client, game, key):
    state = client.get("/api/state", headers=key).json()
    sent = {"place": 0, "step": 0, "choice": None, "seconds": 1.0}
    replies = []

    def send():
        replies.append(client.post("/api/answer", headers=key, json=sent))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ({reply.status_code for reply in replies}, len(game.study.answers(last=False))) == ({200}, 1)
    assert client.post("/api/answer", headers=key, json=sent | {"choice": state["choices"][0]}).status_code == 400
    assert client.get("/api/state", headers=key).json()["step"] == 1


@pytest.fixture
def served(game):
    with serving(create_app(game)) as address:
        yield address


def ready(page):
    page.wait_for_selector("body:not(.waiting) #asking:not([hidden])")


def until(page, text):
    """Wait until the page displays this exposure.

    The page's policy does not allow evaluating conditions in the page.
    """
    page.wait_for_selector(f"body:not(.waiting) #shown:has-text('{text}')")


@pytest.mark.slow
def test_sheet_is_completed_by_keyboard(game, served, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    problems, bodies = [], {}
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda one: problems.append(one.text) if one.type == "error" else None)

    def pass_on(route):
        reply = route.fetch()
        bodies[route.request.url] = reply.body()
        route.fulfill(response=reply)

    page.route("**/api/**", pass_on)
    page.goto(served)
    page.wait_for_selector("#helpDialog[open]")
    page.keyboard.press("Enter")
    ready(page)
    (person,) = game.study.people()
    page.keyboard.press("0")
    until(page, "10 %")
    page.reload()  # the visible pixels stay visible
    ready(page)
    assert page.text_content("#shown").startswith("10 %")
    assert not page.is_visible("#helpDialog")
    for _ in range(4):
        question = game.question(person)
        right = game.images.labels[pair_of(question.unit)[0]]
        ready(page)
        page.keyboard.press(str(game.choices(person, question.unit).index(right) + 1))
        if question.place < 3:
            page.wait_for_selector(f"#count:has-text('{question.place + 2} of 4')")
            assert page.text_content("#feedback").startswith("Right")
    page.wait_for_selector("#finished:not([hidden])")
    assert len(game.study.answers(last=False)) == 5
    pictures = [body for url, body in bodies.items() if "picture" in url]
    assert len(pictures) == 5
    for body in pictures:
        picture = Image.open(BytesIO(body))
        assert picture.info == {}  # no metadata; a search for text would match compressed pixels by chance
        assert (np.asarray(picture) != 0).any(axis=2).sum() <= round(0.1 * 48 * 48)
    texts = [body.decode() for url, body in bodies.items() if "picture" not in url and "join" not in url]
    everything = "".join(texts) + json.dumps(list(bodies))
    assert not any(word in everything for word in (*PLANTED, "secret"))
    assert problems == []


@pytest.mark.slow
def test_phone_keeps_an_answer_while_offline(game, served, browser, tmp_path):
    page = browser.new_page(viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True)
    page.goto(served)
    page.wait_for_selector("#helpDialog[open]")
    page.tap("#start")
    ready(page)
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
    assert len(game.study.answers(last=False)) == 1
    assert page.is_hidden("#offline")
