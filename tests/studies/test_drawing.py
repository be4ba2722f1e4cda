"""Browser tests of the drawing tools: superpixels, brush, polygon, strokes, corrections, and the stored masks."""

import numpy as np
import pytest
from pages import serving
from test_annotate_page import DESKTOP, PHONE, READY, count, drag, opened, saved, view

from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies.superpixels import superpixels

playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
pytestmark = pytest.mark.slow
STUDY = {"count": 5}
SMALL = {"viewport": {"width": 320, "height": 256}}  # 1280 x 1024 at 400 %


def shown(browser, annotating, options=DESKTOP, **settings):
    with serving(create_app(annotating, **settings)) as url:
        yield from opened(browser, url, options)


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


def test_drag_marks_superpixels_and_outline_follows_mouse(browser, annotating):
    pytest.importorskip("skimage", reason="needs scikit-image")
    for page in shown(browser, annotating, assist=True):
        with page.expect_response("**/api/superpixels*"):
            page.keyboard.press("a")
        scale, left, top, _ = view(page)
        page.mouse.move(left + 40 * scale, top + 30 * scale)
        page.wait_for_function("() => document.querySelector('#note').hidden")
        view(page)
        before = page.screenshot()
        page.mouse.move(left + 10 * scale, top + 10 * scale)
        view(page)
        assert page.screenshot() != before, "another piece is outlined"
        drag(page, [(20.5, 30.5), (60.5, 30.5)])
        answer = stored(page, annotating)
    pieces = superpixels(annotating.images.shown(answer.unit).path)
    np.testing.assert_array_equal(answer.pixels, np.isin(pieces, np.unique(pieces[30, 20:61])))


def test_brush_keeps_its_screen_size_when_zoomed(browser, annotating):
    for page in shown(browser, annotating):
        scale, *_, size = view(page)
        page.mouse.move(640, 400)
        page.mouse.wheel(0, -462)  # zoom in by a factor of two
        zoomed, *_, smaller = view(page)
        assert zoomed == pytest.approx(2 * scale, rel=0.01)
        assert size * scale == pytest.approx(24) == smaller * zoomed
        mask = np.zeros((60, 80), bool)
        drag(page, [(38, 28), (41, 31)], mask)
        np.testing.assert_array_equal(stored(page, annotating).pixels, mask)


def test_polygon_erases_and_strokes_select_a_region(browser, annotating):
    for page in shown(browser, annotating, segmenter=square):
        page.keyboard.press("g")
        for x, add in ((20, True), (50, True), (22, False)):
            page.keyboard.down("Shift") if not add else None
            with page.expect_response("**/api/segment"):
                click(page, x + 0.5, 30.5)
            page.keyboard.up("Shift")
        page.wait_for_function("() => document.querySelector('#undo').disabled === false")
        page.keyboard.press("z")  # undo the last stroke
        page.keyboard.press("p")
        page.keyboard.press("t")
        for corner in ((40, 20), (60, 20), (60, 30), (40, 30)):
            click(page, *corner)
        page.keyboard.press("Enter")
        answer = stored(page, annotating)
    expected = np.zeros((60, 80), bool)
    expected[26:34, 16:24] = expected[30:34, 46:54] = True
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
    assert asked == [1, 2, 3], "the strokes that came back are among those of the next region"
    expected = np.zeros((60, 80), bool)
    for x in (20, 50, 35):
        expected[26:34, x - 4 : x + 4] = True
    np.testing.assert_array_equal(answer.pixels[20:], expected[20:])
    assert answer.pixels[5, 5]


@pytest.mark.parametrize(
    "options", [DESKTOP, PHONE, {"viewport": {"width": 812, "height": 375}}], ids=["desktop", "phone", "low"]
)
def test_help_opens_at_its_top_and_fits_the_screen(browser, annotating, options):
    for page in shown(browser, annotating, options):
        page.locator("#help").click()
        at = "dialog => [dialog.scrollTop, dialog.scrollHeight - dialog.clientHeight]"
        assert page.locator("#helpDialog").evaluate(at) == [0, 0]
