"""Browser tests of the board page: mouse, keyboard, phone and dark mode.

The page sends no requests to other machines.
"""

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from boards import SCENES
from test_board_page import EVIL, METHOD, archive, key_of, root  # noqa: F401

pytestmark = pytest.mark.slow
CHROMIUM = "/usr/bin/chromium"
PETS = SCENES[0][0]
IDLE = "[data-part=body]:not([aria-busy])"  # no content will be replaced until the next click
PATIENCE = 60_000  # milliseconds; long, because these tests run beside others on few cores


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def accepts(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(line, port, **options):
    """Run a command, and yield its address as soon as it accepts connections at this port."""
    server = subprocess.Popen([str(word) for word in line], **options)
    try:
        until = time.monotonic() + 300
        while not accepts(port):
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < until, "the server does not accept connections"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait(timeout=30)


@pytest.fixture(scope="module")
def address(root):  # noqa: F811
    line = [sys.executable, "-m", "saliency_bench", "leaderboard", "--results", root, "--core", root / "core.yaml",
            "--port", port := free_port(), "--no-browser", "--quiet"]  # fmt: skip
    with running(line, port, env=os.environ | {"GRADIO_ANALYTICS_ENABLED": "False"}) as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason='needs pip install -e ".[test]"')
    if not Path(CHROMIUM).exists():
        pytest.skip(f"needs {CHROMIUM}")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium, address):
    """Return a function tab(query, **options) that opens the board in a page; errors on the page fail the test."""
    faults, contexts = [], []

    def show(query="", width=1280, **options):
        context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda asked: faults.append(asked.url) if is_elsewhere(asked.url, address) else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
        page.goto(address + ("?" + query if query else ""))
        page.wait_for_selector(".lb-pages")
        page.wait_for_selector(IDLE)
        return page

    yield show
    for context in contexts:
        context.close()
    assert faults == []


def is_elsewhere(url, address):
    return not url.startswith((address, address.replace("http", "ws"), "data:", "blob:"))


def explainers(page):
    return page.locator(".lb-table tbody th.lb-explainer > a").all_inner_texts()


def state(page):
    return {name: value[0] for name, value in parse_qs(urlsplit(page.url).query).items()}


def settled(page, words):
    page.wait_for_function("words => words.every((word) => location.search.includes(word))", arg=words)


def test_filters_and_sorting_update_the_address(tab, archive):  # noqa: F811
    page = tab()
    page.get_by_role("link", name="pet-xai", exact=True).click()
    settled(page, ["dataset="])
    menu(page, "Metric")
    page.get_by_role("checkbox", name="Deletion AUC", exact=True).check()
    settled(page, ["metric=saliency_deletion"])
    values = [float(text) for text in page.locator(".lb-table .lb-value:visible").all_inner_texts()]
    assert values == sorted(values)  # lower is better
    assert len(values) == 9
    page.get_by_text("Unverified: 1 row").click()
    assert page.locator(".lb-table .lb-value:visible").count() == 10
    page.get_by_label("Search").fill("rise")
    settled(page, ["search=rise"])
    assert set(explainers(page)) == {"rise", "random", "centre", "edges"}
    again = tab(urlsplit(page.url).query)
    assert (explainers(again), again.get_by_label("Search").input_value()) == (explainers(page), "rise")
    again.get_by_role("link", name="Passes per image").click()
    settled(again, ["sort=passes"])
    assert explainers(again)[0] == "rise"
    again.go_back()
    again.wait_for_function("!location.search.includes('sort')")
    assert set(explainers(again)) == {"rise", "random", "centre", "edges"}
    tick(again, "Columns", "Seconds per image")
    settled(again, ["seconds"])
    assert "Seconds per image" in again.locator(".lb-table thead").inner_text()


def menu(page, name):
    if page.locator(".lb-filters[open]").count() == 0:
        page.locator(".lb-filters > summary").click()
    page.locator("summary").filter(has_text=re.compile(f"^{name}\\s(?!family)")).click()


def tick(page, name, box):
    """Tick a box in a menu. The menu may close in the meantime, because the page is redrawn."""
    from playwright.sync_api import TimeoutError as TimedOut

    for _ in range(3):
        if page.get_by_role("checkbox", name=box).count() == 0:
            menu(page, name)
        with suppress(TimedOut):
            page.get_by_role("checkbox", name=box).check(timeout=5_000)
            return
    pytest.fail(f"{box} cannot be ticked")


def test_filter_accepts_several_values(tab, archive):  # noqa: F811
    page = tab(f"dataset={PETS}&metric=saliency_miou")
    menu(page, "Explainer")
    for name in ("gradcam", "rise"):
        page.get_by_role("checkbox", name=name, exact=True).check()
        settled(page, [f"explainer={name}"])
    assert page.locator("[data-menu=explainer] .lb-chosen").inner_text() == "2 chosen"
    assert page.locator("[data-menu=explainer]").get_attribute("open") is not None
    assert page.evaluate("document.activeElement.value") == "rise"
    assert set(explainers(page)) == {"gradcam", "rise", "random", "centre", "edges"}
    assert explainers(tab(urlsplit(page.url).query)) == explainers(page)
    page.keyboard.press("Escape")
    assert page.locator("[data-menu][open]").count() == 0
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Enter")
    page.get_by_role("checkbox", name="gradcam", exact=True).uncheck()
    page.wait_for_function("!location.search.includes('gradcam')")
    assert set(explainers(page)) == {"rise", "random", "centre", "edges"}
    page.get_by_role("link", name="show all", exact=True).click()
    page.wait_for_function("!location.search.includes('explainer=')")
    assert len(explainers(page)) == 10


def test_row_opens_and_can_be_compared(tab, archive):  # noqa: F811
    page = tab(f"dataset={PETS}&metric=saliency_miou")
    page.get_by_role("link", name="gradcam", exact=True).click()
    settled(page, ["row="])
    assert state(page)["row"] == key_of(archive, "gradcam", "saliency_miou")
    detail = page.locator("#lb-detail")
    assert "saliency-bench run" in detail.inner_text()
    assert page.evaluate("document.activeElement.id") == "lb-detail"
    page.locator(".lb-table").get_by_role("link", name="compare").first.click()
    settled(page, ["other="])
    assert "sample by sample" in detail.inner_text()
    assert page.locator(".lb-pairwise circle").count() == 60
    detail.get_by_role("link", name="close").click()
    page.wait_for_function("!location.search.includes('row=')")
    assert page.locator("#lb-detail").count() == 0


def test_downloads_contain_the_shown_rows(tab):
    page = tab(f"dataset={PETS}&metric=saliency_miou")
    for name, first in (("CSV", "dataset,model"), ("LaTeX", "% \\usepackage{booktabs}"), ("BibTeX", "@misc{")):
        with page.expect_download() as download:
            page.get_by_role("link", name=name, exact=True).click()
        assert Path(download.value.path()).read_text().startswith(first)


def test_script_in_a_name_is_shown_as_text(tab):
    page = tab(f"search={EVIL}")
    assert METHOD in explainers(page)
    page.get_by_role("link", name=METHOD, exact=True).first.click()
    settled(page, ["row="])
    assert page.locator("#lb-detail h2").inner_text().startswith(METHOD)
    assert page.locator(".lb script").count() == 0


def test_plots_and_other_tabs_open(tab):
    page = tab()
    page.get_by_role("link", name="Plots").click()
    settled(page, ["tab=plots"])
    assert page.locator(".lb-plot").count() == 2
    page.locator("select[name=y]").select_option("saliency_insertion")
    settled(page, ["y=saliency_insertion"])
    assert page.evaluate("document.activeElement.name") == "y"
    page.locator(".lb-plot a circle").first.click()
    settled(page, ["row="])
    page.get_by_role("link", name="Overall").click()
    settled(page, ["tab=overall"])
    assert "In the best set" in page.locator(".lb").inner_text()
    page.get_by_role("link", name="How we check").click()
    settled(page, ["tab=about"])
    assert "Intervals, ties and ranks" in page.locator(".lb").inner_text()


def test_board_works_with_keyboard_only(tab):
    page = tab(f"dataset={PETS}&metric=saliency_miou")
    press_until(page, "document.activeElement.name === 'search'")
    page.keyboard.type("gradc")
    settled(page, ["search=gradc"])
    # the focus stays in the field, so typing is not interrupted
    assert page.evaluate("document.activeElement.name") == "search"
    press_until(page, "document.activeElement.innerText === 'gradcam'")
    page.keyboard.press("Enter")
    settled(page, ["row="])
    press_until(page, "document.activeElement.innerText === 'close'")
    page.keyboard.press("Enter")
    page.wait_for_function("!location.search.includes('row=')")
    page.wait_for_function("document.activeElement.innerText === 'gradcam'")


def press_until(page, condition):
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(condition):
            return
    raise AssertionError(f"60 times Tab, and never {condition}")


@pytest.mark.parametrize("query", ["", "tab=overall", "tab=plots", "tab=about", "OPEN"])
def test_pages_fit_on_a_phone(tab, archive, query):  # noqa: F811
    query = f"row={key_of(archive, 'gradcam', 'saliency_miou')}" if query == "OPEN" else query
    page = tab(query, 375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.locator(".lb").evaluate("element => element.scrollWidth <= element.clientWidth")


def test_filter_menus_fit_on_a_phone(tab):
    page = tab("", 375)
    for name in ("Dataset", "Metric", "Status", "Columns"):
        menu(page, name)
        assert page.locator("[data-menu][open]").count() == 1
        box = page.locator("[data-menu][open] fieldset").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 375
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(tab, scheme):
    """Test that the contrast of every text is at least 4.5 (WCAG AA)."""
    page = tab(f"dataset={PETS}", color_scheme=scheme)
    menu(page, "Metric")
    assert page.evaluate(CONTRAST) == []
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", shade)[:3])) < 300) == (scheme == "dark")


def test_server_rejects_uploads_and_other_calls(address):
    files = {"files": ("run.zip", b"PK" * 1000)}
    for headers in ({}, {"origin": "https://evil.example"}, {"origin": address.rstrip("/")}):
        assert httpx.post(f"{address}gradio_api/upload", files=files, headers=headers).status_code == 403
    answer = httpx.post(f"{address}gradio_api/component_server", content=b" " * 1_000_001)
    assert (answer.status_code, answer.text.strip()) == (413, "the request has more than 1,000,000 bytes")
    assert httpx.post(f"{address}gradio_api/run/show", json={"data": []}).status_code == 404


CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => c.slice(0, 3).map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const c = rgb(getComputedStyle(at).backgroundColor);
      if (c.length < 4 || c[3] > 0.9) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll('.lb *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.getClientRects().length || node.closest('svg')) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(node.className + ': ' + node.innerText.slice(0, 40));
  }
  return [...new Set(found)];
}"""
