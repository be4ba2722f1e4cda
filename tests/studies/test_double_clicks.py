"""Tests of double clicks: a second click does not answer the next question or skip a drawing by accident."""

from contextlib import contextmanager
from datetime import datetime

import numpy as np
import pytest
from pages import serving

from saliency_bench.spaces.annotate.app import create_app as create_annotate
from saliency_bench.spaces.peekaboom.app import create_app

from .crowd import run_images, start_peekaboom

playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
pytestmark = pytest.mark.slow
READY = "#save:not([disabled])"
LATER = 700  # milliseconds after which a second click is accepted


@pytest.fixture
def page(browser):
    """Open a page with a clock that tests control, so that the speed of the machine does not matter."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(15000)
    page.clock.install()
    yield page
    page.close()


@pytest.fixture
def url(annotating):
    with serving(create_annotate(annotating)) as url:
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


def all_saved(page):
    playwright.expect(page.locator("#status")).to_have_text("All saved")


def settling(page):
    page.wait_for_selector("body.settling")


def twice(page, selector, pause, shown):
    """Double-click with a pause in milliseconds, waiting for `shown(page)` after the first click."""
    point = place(page, selector)
    with stopped_clock(page):
        page.mouse.click(*point)
        shown(page)
        page.clock.run_for(pause)
        page.mouse.down(click_count=2)
        page.mouse.up(click_count=2)


def taps(page, selector, pause, shown):
    """Tap twice with a pause, like `twice`. Each tap is a separate click."""
    point = place(page, selector)
    with stopped_clock(page):
        page.mouse.click(*point)
        shown(page)
        page.clock.run_for(pause)
        page.mouse.click(*point)
        page.clock.run_for(pause)


def draw(page):
    box = page.locator("#board").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 40)
    page.mouse.up()


def test_double_click_stores_one_answer_and_one_review(page, url, annotating):
    page.goto(url)
    for click, pause in ((twice, 150), (twice, 480), (taps, 150)):
        page.wait_for_selector(READY)
        before = len(annotating.study.answers())
        click(page, "#none", pause, all_saved)
        all_saved(page)
        assert len(annotating.study.answers()) == before + 1
    page.goto(f"{url}#key={annotating.study.join(role='reviewer').key}")
    page.reload()  # only the part after # changes
    page.wait_for_selector(READY)
    twice(page, "#save", 150, all_saved)
    all_saved(page)
    assert len(annotating.study.reviews()) == 1
    page.wait_for_selector(READY)
    page.keyboard.press("Enter")  # after the delay, keys are accepted at once
    playwright.expect(page.locator("#count")).to_have_text("2 of 3")


def test_no_region_confirms_before_discarding_a_drawing(page, url, annotating):
    page.goto(url)
    page.wait_for_selector(READY)
    draw(page)
    for click in (lambda: page.keyboard.press("n"), lambda: taps(page, "#none", 150, all_saved)):
        click()
        playwright.expect(page.locator("#note")).to_contain_text("You have drawn a region")
        assert annotating.study.answers() == []
        page.keyboard.press("z")  # annotators who continue to draw are asked again
        page.keyboard.press("y")
    page.keyboard.press("n")
    with stopped_clock(page):
        pass
    page.keyboard.press("n")
    playwright.expect(page.locator("#count")).to_have_text("1 of 4")
    page.wait_for_selector(READY)
    page.keyboard.press(",")
    playwright.expect(page.locator("#note")).to_contain_text("You answered: no region")
    page.wait_for_selector(READY)
    playwright.expect(page.locator("#clear")).to_be_enabled()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#status")).to_have_text("All saved")
    first, second = annotating.study.answers(last=False)
    assert (first.payload["kind"], second.payload["kind"], first.unit) == ("no_region", "mask", second.unit)
    assert np.any(second.pixels)


def test_double_click_stores_one_guess_in_peekaboom(page, tmp_path):
    game = start_peekaboom(tmp_path, run_images(30, 48), judgements=1, pairs=4, checks=0)
    with serving(create_app(game)) as address:
        page.goto(address)
        page.wait_for_selector("#helpDialog[open]")
        page.keyboard.press("Enter")
        for number, (click, pause) in enumerate(((twice, 150), (twice, 480), (taps, 150)), start=1):
            page.wait_for_selector("body:not(.waiting) #asking:not([hidden])")
            click(page, "#unknown", pause, settling)
            page.wait_for_selector("body:not(.waiting)")
            assert len(game.study.answers(last=False)) == number
        page.wait_for_selector("body:not(.waiting)")
        page.keyboard.press("0")
        page.wait_for_selector("body:not(.waiting)")
        assert len(game.study.answers(last=False)) == 4
