"""Browser tests of the page for annotators: drawings are stored exactly, even after interruptions."""

import numpy as np
import pytest
from pages import Served, dataset, serving, stroke, study_of

from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies.answer_store import Store

playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
pytestmark = pytest.mark.slow
DESKTOP = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 375, "height": 700}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
NAME = """() => {
  const one = document.activeElement;
  return one.ariaLabel || one.innerText || one.labels?.[0]?.innerText || one.tagName;
}"""
READY = "#save:not([disabled])"
STUDY = {"count": 14}


@pytest.fixture
def page(browser, annotating):
    yield from shown(browser, annotating)


def shown(browser, annotating, options=DESKTOP, **settings):
    with serving(create_app(annotating, **settings)) as url:
        yield from opened(browser, url, options)


def opened(browser, url, options):
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda request: request.url.startswith((url[:16], "blob:", "data:")) or problems.append(request.url)
    )
    page.goto(url)
    page.wait_for_selector(READY)
    yield page
    context.close()
    assert problems == []


def saved(page):
    playwright.expect(page.locator("#status")).to_have_text("All saved")


def count(page, text):
    playwright.expect(page.locator("#count")).to_have_text(text)


def view(page):
    """Return (scale, left, top) of the image on the screen, and the brush."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    board = page.locator("#board")
    box, data = board.bounding_box(), board.evaluate("(board) => ({...board.dataset})")
    x, y = box["x"] + float(data["x"]), box["y"] + float(data["y"])
    return float(data["scale"]), x, y, float(data["size"])


def drag(page, points, mask=None, value=True):
    """Draw a line through points in pixels of the image on the screen, and on `mask` with the second implementation."""
    scale, left, top, size = view(page)
    screen = [(round(left + x * scale), round(top + y * scale)) for x, y in points]
    page.mouse.move(*screen[0])
    page.mouse.down()
    for place in screen[1:]:
        page.mouse.move(*place)
    page.mouse.up()
    if mask is not None:
        stroke(mask, [((x - left) / scale, (y - top) / scale) for x, y in screen], size, value)


def test_drawings_are_stored_exactly(page, annotating):
    random = np.random.default_rng(1)
    drawn = []
    for index in range(6):
        mask = np.zeros((60, 80), bool)
        low, high = ((30, 22), (50, 38)) if index == 0 else ((5, 5), (75, 55))  # on the screen
        for _ in range(index % 3):
            page.keyboard.press("]" if index % 2 else "[")
        if index == 0:  # zoomed in
            scale, *_, size = view(page)
            page.mouse.move(700, 380)
            page.mouse.wheel(0, -400)
            zoomed, *_, smaller = view(page)
            assert zoomed > 1.5 * scale
            assert size * scale == pytest.approx(24) == smaller * zoomed, "the brush keeps its size on the screen"
        for _ in range(3):
            drag(page, random.uniform(low, high, (5, 2)), mask)
        if index % 2:
            drag(page, random.uniform(low, high, (4, 2)))
            page.keyboard.press("z")
        if index % 3 == 0:
            page.keyboard.press("e")
            drag(page, random.uniform(low, high, (4, 2)), mask, False)
            page.keyboard.press("b")
        if index == 5:
            drag(page, [(10, 10), (20, 20)])
            page.keyboard.press("Control+z")
            page.keyboard.press("Control+y")
            page.keyboard.press("Control+z")
        drawn.append(mask)
        page.keyboard.press("Enter")
        page.wait_for_selector(READY)
    saved(page)
    stored = annotating.study.answers()
    assert len(stored) == 6
    for answer, mask in zip(stored, drawn, strict=True):
        np.testing.assert_array_equal(answer.pixels, mask)
        assert 0 < answer.seconds < 60
    assert len({answer.unit for answer in stored}) == 6


def test_page_stores_polygon_no_region_and_skip(page, annotating):
    scale, left, top, _ = view(page)
    corners = [(10, 10), (50, 12), (40, 40), (12, 30)]
    page.keyboard.press("p")
    for x, y in corners:
        page.mouse.click(round(left + x * scale), round(top + y * scale))
    page.keyboard.press("Enter")  # closes the dialog
    page.keyboard.press("Enter")  # saves the drawing
    page.wait_for_selector(READY)
    drag(page, [(5, 5), (9, 9)])
    page.keyboard.press("b")
    drag(page, [(5, 5), (9, 9)])
    page.keyboard.press("x")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#note")).to_contain_text("Nothing is marked")
    page.keyboard.press("n")
    page.wait_for_selector(READY)
    page.keyboard.press("s")
    page.get_by_label("Another reason").check()
    page.get_by_label("Details").fill("<img src=x onerror=alert(1)>")
    page.get_by_role("button", name="Skip", exact=True).click()
    page.wait_for_selector(READY)
    saved(page)
    first, second, third = annotating.study.answers()
    assert second.payload == {"kind": "no_region"}
    assert second.mask is None
    assert third.payload == {"kind": "skip", "reason": "<img src=x onerror=alert(1)>"}
    where = [(round(left + x * scale) - left, round(top + y * scale) - top) for x, y in corners]
    polygon = [(x / scale, y / scale) for x, y in where]
    inside = [[crossings(polygon, x + 0.5, y + 0.5) % 2 == 1 for x in range(80)] for y in range(60)]
    np.testing.assert_array_equal(first.pixels, inside)


def crossings(polygon, x, y):
    edges = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    return sum((ya <= y) != (yb <= y) and xa + (y - ya) * (xb - xa) / (yb - ya) > x for (xa, ya), (xb, yb) in edges)


def test_page_works_with_keyboard_only(page, annotating):
    page.keyboard.press("Tab")
    page.locator("#board").focus()
    mask = np.zeros((60, 80), bool)
    size = view(page)[3]
    step = max(1, round(size / 4))
    page.keyboard.press("Space")
    points = [(40, 30)]
    for key, (dx, dy) in (("ArrowRight", (1, 0)), ("ArrowDown", (0, 1)), ("ArrowLeft", (-1, 0))):
        for _ in range(4):
            page.keyboard.press(key)
            points.append((points[-1][0] + dx * step, points[-1][1] + dy * step))
    page.keyboard.press("Space")
    stroke(mask, points, size)
    page.keyboard.press("Enter")
    count(page, "1 of 14")
    saved(page)
    np.testing.assert_array_equal(annotating.study.answers()[0].pixels, mask)
    for _ in range(30):  # every control can be reached and has a name
        page.keyboard.press("Tab")
        assert page.evaluate(NAME).strip() not in ("", "INPUT", "BUTTON")


def test_phone_draws_with_one_finger_and_zooms_with_two(browser, annotating):
    for page in shown(browser, annotating, PHONE):
        touch = page.context.new_cdp_session(page)

        def send(kind, *points, touch=touch):
            touched = [{"x": x, "y": y, "id": index} for index, (x, y) in enumerate(points)]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touched})

        scale, left, top, size = view(page)
        screen = [(round(left + x * scale), round(top + y * scale)) for x, y in ((20, 20), (30, 25), (50, 40))]
        send("touchStart", screen[0])
        for place in screen[1:]:
            send("touchMove", place)
        send("touchEnd")
        send("touchStart", (150, 300))  # two fingers draw nothing and enlarge the image
        send("touchStart", (150, 300), (220, 300))
        for step in range(1, 5):
            send("touchMove", (150 - 10 * step, 300), (220 + 10 * step, 300))
        send("touchEnd")
        assert view(page)[0] > 1.3 * scale
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="Save").tap()
        count(page, "1 of 14")
        saved(page)
        mask = np.zeros((60, 80), bool)
        stroke(mask, [((x - left) / scale, (y - top) / scale) for x, y in screen], size)
        np.testing.assert_array_equal(annotating.study.answers()[0].pixels, mask)


@pytest.fixture
def served(tmp_path):
    dataset(14).save_to_disk(tmp_path / "noise")
    with Served(tmp_path / "noise", tmp_path / "study.db", "--annotators", 2) as served:
        yield served


def test_killed_server_and_closed_tab_lose_no_answer(browser, served, tmp_path):
    contexts = [browser.new_context(**DESKTOP) for _ in range(2)]
    pages = [context.new_page() for context in contexts]
    masks = []
    for page in pages:
        page.goto(served.url)
        page.wait_for_selector(READY)
    for index in range(2):
        for page in pages:
            masks.append(np.zeros((60, 80), bool))
            drag(page, [(10 + 9 * index, 10), (40, 40)], masks[-1])
            page.keyboard.press("Enter")
            page.wait_for_selector(READY)
    for page in pages:
        saved(page)
    first, second = pages
    drag(first, [(20, 10), (20, 40)])
    served.kill()
    masks.append(np.zeros((60, 80), bool))
    drag(second, [(30, 10), (60, 50)], masks[-1])
    second.keyboard.press("Enter")
    playwright.expect(second.locator("#status")).to_have_text("Offline: 1 stored in this browser")
    second.close(run_before_unload=False)  # unsent answers are stored in the browser
    served.start()
    second = contexts[1].new_page()
    second.goto(served.url)
    second.wait_for_selector(READY)
    saved(second)
    count(second, "3 of 14")
    first.reload()  # the unsaved drawing is restored
    first.wait_for_selector(READY)
    masks.append(np.zeros((60, 80), bool))
    scale, left, top, size = view(first)
    screen = [(round(left + 20 * scale), round(top + y * scale)) for y in (10, 40)]
    stroke(masks[-1], [((x - left) / scale, (y - top) / scale) for x, y in screen], size)
    first.keyboard.press("Enter")
    count(first, "3 of 14")
    saved(first)
    stored = Store(tmp_path / "study.db").find().answers(last=False)
    assert len(stored) == 6, "no answer is lost or repeated"
    assert {one.revision for one in stored} == {1}
    assert sorted(one.pixels.tobytes() for one in stored) == sorted(mask.tobytes() for mask in masks)
    for context in contexts:
        context.close()


def test_rejected_mask_returns_with_its_comment(browser, page, annotating):
    drag(page, [(10, 10), (30, 30)])
    page.keyboard.press("Enter")
    count(page, "1 of 14")
    saved(page)
    reviewer = annotating.study.join(role="reviewer")
    for review in opened(browser, f"{page.url}#key={reviewer.key}", DESKTOP):
        assert annotating.study.people()[0] not in review.content()
        review.get_by_role("button", name="Reject").click()
        review.get_by_label("Comment for the person who drew the mask").fill("  ")
        review.get_by_role("button", name="Send back").click()
        playwright.expect(review.locator("#commentMissing")).to_have_text("Please describe what should be changed.")
        review.get_by_label("Comment for the person who drew the mask").fill("<i>the ear</i> is missing")
        with review.expect_response(lambda response: response.request.method == "POST"):
            review.get_by_role("button", name="Send back").click()
        playwright.expect(review.locator("#finishedTitle")).to_have_text("All done")
        saved(review)
    page.reload()
    page.wait_for_selector(READY)
    playwright.expect(page.locator("#note")).to_have_text("Sent back by a reviewer: <i>the ear</i> is missing")
    count(page, "0 of 14")
    drag(page, [(40, 40), (50, 50)])
    page.keyboard.press("Enter")
    count(page, "1 of 14")
    saved(page)
    before, after = annotating.study.answers(last=False)
    assert (before.unit, before.revision, after.revision) == (after.unit, 1, 2)
    assert (after.pixels & before.pixels).sum() == before.pixels.sum() < after.pixels.sum()


def test_finished_page_shows_an_answer_sent_back_later(browser, tmp_path):
    """Send back an answer without a region. The annotator sees it only as text."""
    study = study_of(tmp_path, 1, annotators=1)
    for page in shown(browser, study):
        page.keyboard.press("n")
        playwright.expect(page.locator("#finishedTitle")).to_have_text("All done")
        (answer,) = study.study.answers()
        study.study.review(answer.id, study.study.join(role="reviewer").name, "reject", "a request", "look again")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        words = "Sent back by a reviewer (you answered: no region): look again"
        playwright.expect(page.locator("#note")).to_have_text(words)
        playwright.expect(page.locator("#task")).to_contain_text("Sent back: mark what shows")
