"""Browser tests of the drawing tools and the stored masks, and of double clicks, which do not answer twice."""

from contextlib import contextmanager
from datetime import datetime

import numpy as np
import pytest
from datasets import Image
from pages import dataset, serving, study_of
from test_annotate_page import DESKTOP, PHONE, READY, count, drag, opened, saved, shown, view

from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.spaces.peekaboom.app import create_app as create_peekaboom
from saliency_bench.studies.superpixels import superpixels
from saliency_bench.utils.pictures import png

from .crowd import run_images, start_peekaboom

playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
pytestmark = pytest.mark.slow
STUDY = {"count": 5}
SMALL = {"viewport": {"width": 320, "height": 256}}  # 1280 x 1024 at 400 %


def square(file, strokes):
    region = np.zeros((60, 80), bool)
    for stroke in sorted(strokes, key=lambda one: not one.add):
        x, y = np.mean(stroke.points, axis=0)
        region[max(0, int(y) - 4) : int(y) + 4, max(0, int(x) - 4) : int(x) + 4] = stroke.add
    return region


def click(page, x, y):
    scale, left, top, _ = view(page)
    page.mouse.click(left + x * scale, top + y * scale)


def stored(page, annotating):
    page.keyboard.press("Enter")
    return stored_before(page, annotating)


def stored_before(page, annotating):
    page.wait_for_selector(READY)
    saved(page)
    return annotating.study.answers()[-1]


def tiles(folder):
    """Create a study of images of 6 x 8 single-colour tiles, so that superpixels are smaller than the image."""
    colours = np.random.default_rng(2).integers(0, 255, (5, 6, 8, 3), np.uint8).repeat(10, axis=1).repeat(10, axis=2)
    pictures = [{"bytes": png(one), "path": None} for one in colours]
    return study_of(folder, dataset(5).remove_columns("image").add_column("image", pictures, feature=Image()))


def test_clicks_and_drags_mark_superpixels(browser, tmp_path):
    pytest.importorskip("skimage", reason="needs scikit-image")
    annotating, held = tiles(tmp_path / "tiles"), []
    for page in shown(browser, annotating, assist=True):
        page.route("**/api/superpixels*", lambda route: held.append(route))
        for _ in range(2):
            page.keyboard.press("a")
            playwright.expect(page.locator("#note")).to_have_text("The pieces are being computed.")
        (asked,) = held
        asked.continue_()
        page.unroute("**/api/superpixels*")
        playwright.expect(page.locator("#note")).to_be_hidden()
        scale, left, top, _ = view(page)
        screenshots = []
        for x, y in ((40, 30), (10, 10)):  # the outlined piece follows the mouse
            page.mouse.move(left + x * scale, top + y * scale)
            view(page)
            screenshots.append(page.screenshot())
        assert screenshots[0] != screenshots[1]
        answers = []
        toggled = (40, 30), (10, 50), (10, 50)  # a second click removes a superpixel
        for points, keys in (([(20, 15)], ""), ([(20, 15), (60, 40), (61, 10)], "zz"), (toggled, "")):
            for x, y in points:
                click(page, x + 0.5, y + 0.5)
            for key in keys:
                page.keyboard.press(key)
            with page.expect_response("**/api/superpixels*"):  # superpixels of the next image
                answers.append(stored(page, annotating))
            view(page)
        drag(page, [(20.5, 30.5), (60.5, 30.5)])
        answers.append(stored(page, annotating))
    for answer, rows, columns in zip(answers, (15, 15, 30, 30), (20, 20, 40, slice(20, 61)), strict=True):
        pieces = superpixels(annotating.images.shown(answer.unit).path)
        np.testing.assert_array_equal(answer.pixels, np.isin(pieces, np.unique(pieces[rows, columns])))
        assert 1 < answer.pixels.sum() < answer.pixels.size / 2


def test_polygon_erases_and_strokes_select_a_region(browser, annotating):
    for page in shown(browser, annotating, segmenter=square):
        page.keyboard.press("g")
        for x, add in ((20, True), (50, True), (22, False)):
            page.keyboard.down("Shift") if not add else None
            with page.expect_response("**/api/segment"):
                click(page, x + 0.5, 30.5)
            page.keyboard.up("Shift")
        page.wait_for_function("() => document.querySelector('#note').hidden")
        page.keyboard.press("p")
        page.keyboard.press("t")
        for corner in ((40, 20), (60, 20), (60, 30), (40, 30)):
            click(page, *corner)
        page.keyboard.press("Enter")
        answer = stored(page, annotating)
    expected = np.zeros((60, 80), bool)
    expected[26:34, 16:18] = expected[30:34, 46:54] = True  # the last stroke removes the columns from 18
    np.testing.assert_array_equal(answer.pixels, expected)


def test_saving_waits_for_a_pending_region(browser, annotating):
    for page in shown(browser, annotating, segmenter=square):
        page.route("**/api/segment", lambda route: (route.request.frame.page.wait_for_timeout(700), route.continue_()))
        page.keyboard.press("g")
        click(page, 20.5, 30.5)
        playwright.expect(page.locator("#note")).to_have_text("The region for your strokes is being computed.")
        page.keyboard.press("b")  # switch to another tool
        page.keyboard.press("Enter")  # save immediately
        count(page, "1 of 5")
        answer = stored_before(page, annotating)
    expected = np.zeros((60, 80), bool)
    expected[26:34, 16:24] = True
    np.testing.assert_array_equal(answer.pixels, expected)


def test_reviewer_sees_other_masks_and_corrects_one(browser, annotating):
    for letter in "ab":
        person = annotating.study.join(letter * 32).name
        unit = annotating.units[0]
        annotating.study.assign(person, [unit])
        sent = {"unit": unit, "kind": "mask", "runs": [0, 2400, 2400], "request": f"{letter} draws"}
        annotating.save(person, sent)
    reviewer = annotating.study.join("r" * 32, "reviewer")
    with serving(create_app(annotating)) as url:
        for page in opened(browser, f"{url}#key={reviewer.key}", DESKTOP):
            page.keyboard.press("o")
            playwright.expect(page.locator("#note")).to_have_text("Blue: marked by another person.")
            page.keyboard.press("c")
            page.keyboard.press("e")
            drag(page, [(10, 10), (60, 20)])
            page.keyboard.press("Enter")
            page.wait_for_selector(READY)
            saved(page)
            count(page, "1 of 2")
            page.keyboard.press("Enter")  # accepts the second answer
            playwright.expect(page.locator("#finishedTitle")).to_have_text("All done")
            saved(page)
    first, second = annotating.counted()[annotating.units[0]]
    assert (first.corrected_by, second.corrected_by) == (reviewer.name, None)
    assert 0 < first.pixels.sum() < second.pixels.sum() == 2400


def test_image_total_stays_while_others_take_images(browser, annotating):
    for page in shown(browser, annotating):
        count(page, "0 of 5")
        for letter in "ab":  # two people take all images that are left
            annotating.study.assign(annotating.study.join(letter * 32).name, annotating.units)
        drag(page, [(10, 10), (60, 20)])
        page.keyboard.press("Enter")
        count(page, "1 of 5")
        page.wait_for_selector(READY)
        drag(page, [(10, 10), (60, 20)])
        page.keyboard.press("Enter")
        playwright.expect(page.locator("#finishedTitle")).to_have_text("All done")
        count(page, "2 of 2")


def test_drawing_works_at_400_percent_zoom(browser, annotating):
    for page in shown(browser, annotating, SMALL):
        assert page.locator("#board").bounding_box()["height"] >= 200
        page.locator("#board").scroll_into_view_if_needed()
        mask = np.zeros((60, 80), bool)
        drag(page, [(20, 20), (50, 30)], mask)
        page.get_by_role("button", name="Save").click()
        saved(page)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    np.testing.assert_array_equal(annotating.study.answers()[-1].pixels, mask)


def test_redo_restores_strokes_and_regions(browser, annotating):
    asked = []

    def segmenter(file, strokes):
        asked.append(len(strokes))
        return square(file, strokes)

    for page in shown(browser, annotating, segmenter=segmenter):
        drag(page, [(5, 5), (9, 5)])
        page.keyboard.press("g")
        for x in (20, 50):
            with page.expect_response("**/api/segment"):
                click(page, x + 0.5, 30.5)
            page.wait_for_function("() => document.querySelector('#note').hidden")
        page.keyboard.press("z")
        page.keyboard.press("z")
        page.keyboard.press("z")  # undo the brush stroke as well
        playwright.expect(page.locator("#undo")).to_be_disabled()
        for _ in range(3):
            page.keyboard.press("y")
        playwright.expect(page.locator("#redo")).to_be_disabled()
        page.keyboard.press("z")
        page.keyboard.press("y")
        with page.expect_response("**/api/segment"):
            click(page, 35.5, 30.5)
        page.wait_for_function("() => document.querySelector('#note').hidden")
        answer = stored(page, annotating)
    assert asked == [1, 2, 3], "restored strokes count for the next region"
    expected = np.zeros((60, 80), bool)
    for x in (20, 50, 35):
        expected[26:34, x - 4 : x + 4] = True
    np.testing.assert_array_equal(answer.pixels[20:], expected[20:])
    assert answer.pixels[5, 5]


@pytest.mark.parametrize(
    "options", [DESKTOP, PHONE, {"viewport": {"width": 812, "height": 375}}], ids=["desktop", "phone", "low"]
)
def test_help_and_long_class_name_fit_the_screen(browser, annotating, options):
    for page in shown(browser, annotating, options):
        page.evaluate("document.getElementById('lead').textContent = 'Practice: mark what shows'")
        page.evaluate("document.getElementById('label').textContent = 'German short-haired pointer'")
        assert page.evaluate("document.documentElement.scrollWidth") == options["viewport"]["width"]
        task, label = (page.locator(name).bounding_box() for name in ("#task", "#label"))
        assert label["x"] + label["width"] <= task["x"] + task["width"]
        page.locator("#help").click()
        at = "dialog => [dialog.scrollTop, dialog.scrollHeight - dialog.clientHeight]"
        assert page.locator("#helpDialog").evaluate(at) == [0, 0]


LATER = 700  # milliseconds after which a second click is accepted


@pytest.fixture
def page(browser):
    """Open a page with a clock that tests control, so that the speed of the machine does not matter."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(60_000)
    page.clock.install()
    yield page
    page.close()


@pytest.fixture
def url(annotating):
    with serving(create_app(annotating)) as url:
        yield url


@contextmanager
def stopped_clock(page):
    """Stop the clock of the page within the context; `page.clock.run_for` advances it."""
    page.clock.pause_at(datetime.fromtimestamp(page.evaluate("Date.now()") / 1000 + 1))
    yield
    page.clock.run_for(LATER)
    page.clock.resume()


def place(page, selector):
    box = page.locator(selector).bounding_box()
    return box["x"] + 20, box["y"] + box["height"] / 2


def settling(page):
    page.wait_for_selector("body.settling")


def twice(page, selector, pause, shown, clicks=2):
    """Double-click with a pause in milliseconds, waiting for `shown(page)` after the first click.

    With clicks=1, the second click is a separate tap.
    """
    point = place(page, selector)
    with stopped_clock(page):
        page.mouse.click(*point)
        shown(page)
        page.clock.run_for(pause)
        page.mouse.down(click_count=clicks)
        page.mouse.up(click_count=clicks)


PAIRS = (150, 2), (480, 2), (150, 1)  # pause and `clicks` of `twice`


def draw(page):
    box = page.locator("#board").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 40)
    page.mouse.up()


def test_double_click_stores_one_answer_and_one_review(page, url, annotating):
    page.goto(url)
    for pause, clicks in PAIRS:
        page.wait_for_selector(READY)
        before = len(annotating.study.answers())
        twice(page, "#none", pause, saved, clicks)
        saved(page)
        assert len(annotating.study.answers()) == before + 1
    page.goto(f"{url}#key={annotating.study.join(role='reviewer').key}")
    page.reload()  # only the part after # changes
    page.wait_for_selector(READY)
    twice(page, "#save", 150, saved)
    saved(page)
    assert len(annotating.study.reviews()) == 1
    page.wait_for_selector(READY)
    page.keyboard.press("Enter")  # after the delay, keys are accepted at once
    playwright.expect(page.locator("#count")).to_have_text("2 of 3")


def test_no_region_confirms_before_discarding_a_drawing(page, url, annotating):
    page.goto(url)
    page.wait_for_selector(READY)
    draw(page)
    for click in (lambda: page.keyboard.press("n"), lambda: twice(page, "#none", 150, saved, 1)):
        click()
        playwright.expect(page.locator("#note")).to_contain_text("You have drawn a region")
        assert annotating.study.answers() == []
        page.keyboard.press("z")  # annotators who continue to draw are asked again
        page.keyboard.press("y")
    page.keyboard.press("n")
    with stopped_clock(page):
        pass
    page.keyboard.press("n")
    playwright.expect(page.locator("#count")).to_have_text("1 of 5")
    page.wait_for_selector(READY)
    page.keyboard.press(",")
    playwright.expect(page.locator("#note")).to_contain_text("You answered: no region")
    page.wait_for_selector(READY)
    playwright.expect(page.locator("#clear")).to_be_enabled()
    page.keyboard.press("Enter")
    saved(page)
    first, second = annotating.study.answers(last=False)
    assert (first.payload["kind"], second.payload["kind"], first.unit) == ("no_region", "mask", second.unit)
    assert np.any(second.pixels)


def test_double_click_stores_one_guess_in_peekaboom(page, tmp_path):
    game = start_peekaboom(tmp_path, run_images(30, 48), judgements=1, pairs=4, checks=0)
    with serving(create_peekaboom(game)) as address:
        page.goto(address)
        page.wait_for_selector("#helpDialog[open]")
        page.keyboard.press("Enter")
        for number, (pause, clicks) in enumerate(PAIRS, start=1):
            page.wait_for_selector("body:not(.waiting) #asking:not([hidden])")
            twice(page, "#unknown", pause, settling, clicks)
            page.wait_for_selector("body:not(.waiting)")
            assert len(game.study.answers(last=False)) == number
        page.wait_for_selector("body:not(.waiting)")
        page.keyboard.press("0")
        page.wait_for_selector("body:not(.waiting)")
        assert len(game.study.answers(last=False)) == 4
