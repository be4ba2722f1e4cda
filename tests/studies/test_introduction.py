"""Tests of consent and instructions in Markdown: how they are rendered and displayed, and that consent is required."""

import json

import numpy as np
import pytest
from pages import client_of, serving
from PIL import Image
from refusals import refused

from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies.answer_rows import copy_without, lines_after
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.events import events_of
from saliency_bench.studies.introduction import Introduction, read_text

CONSENT = "# Taking part\n\nWe store **what you draw**. [More](https://example.org/more)\n"
INSTRUCTIONS = """# Draw the cat

![The whole cat](good.png "good") ![With the sofa](bad.png "bad")

1. Follow its outline.
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts").mkdir()
    for name, colour in (("good", (0, 200, 0)), ("bad", (200, 0, 0))):
        Image.fromarray(np.full((30, 40, 3), colour, np.uint8)).save(tmp_path / f"texts/{name}.png")
    (tmp_path / "texts/consent.md").write_text(CONSENT)
    (tmp_path / "texts/instructions.md").write_text(INSTRUCTIONS)
    return tmp_path / "texts"


@pytest.fixture
def introduction(folder):
    return Introduction(read_text(folder / "consent.md"), read_text(folder / "instructions.md"))


@pytest.fixture
def client(annotating, introduction):
    return client_of(create_app(annotating, introduction=introduction))


def join(client, agreed="", request="r" * 32):
    return client.post("/api/join", json={"request": request}, headers={"X-Consent": agreed})


def test_markdown_becomes_safe_html(folder):
    (folder / "hostile.md").write_text(
        "<script>alert(1)</script> <img src=x onerror=alert(1)>\n\n[a](javascript:alert(1)) [b](https://example.org)\n"
    )
    html = read_text(folder / "hostile.md").html
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html
    assert 'href="javascript' not in html
    assert '<a href="https://example.org" target="_blank" rel="noopener noreferrer">b</a>' in html


def test_example_pictures_are_labelled_and_served(client, introduction):
    html = client.get("/api/about").json()["instructions"]["html"]
    assert '<span class="example good">' in html
    assert "✓ Good: The whole cat" in html
    assert "✗ Not like this: With the sofa" in html
    for name in introduction.pictures:
        assert client.get(f"/about/{name}").headers["content-type"] == "image/png"
        assert f'src="about/{name}"' in html
    assert client.get("/about/study.db").status_code == 404


@pytest.mark.parametrize(("source", "words"), [
    ("https://example.org/a.png", "put the picture next to the text"),
    ("../study.db", "put the picture next to the text"), ("missing.png", "not a readable picture"),
    ("consent.md", "not a readable picture"),
])  # fmt: skip
def test_unusable_picture_source_is_rejected(folder, source, words):
    (folder / "text.md").write_text(f"![x]({source})")
    refused(words, read_text, folder / "text.md")


def test_empty_or_unreadable_text_is_rejected(folder):
    (folder / "empty.md").write_text(" \n")
    (folder / "latin.md").write_bytes("déjà".encode("latin-1"))
    for name in ("empty.md", "latin.md", "missing.md"):
        refused(name, read_text, folder / name)


def test_joining_requires_consent(client, annotating, introduction):
    assert join(client).status_code == join(client, "another text").status_code == 428
    assert annotating.study.people() == []
    joined = join(client, introduction.consent.id)
    person = annotating.study.people()[0]
    (consent,) = events_of(annotating.study, "consent")
    assert (consent.person, consent.payload) == (person, {"id": introduction.consent.id})
    key = {"X-Key": joined.json()["key"]}
    assert client.get("/api/state", headers=key).status_code == 200, "one consent is enough for all devices"
    assert join(client, introduction.consent.id).json() == joined.json()
    assert len(events_of(annotating.study, "consent")) == 1
    reviewer = annotating.study.join(role="reviewer")  # is not asked
    assert client.get("/api/state", headers={"X-Key": reviewer.key}).status_code == 200


def test_changed_consent_text_requires_new_consent(client, annotating, introduction, folder):
    key = {"X-Key": join(client, introduction.consent.id).json()["key"]}
    (folder / "consent.md").write_text(CONSENT + "\nAnd for how long.\n")
    newer = Introduction(read_text(folder / "consent.md"))
    later = client_of(create_app(annotating, introduction=newer))
    assert later.get("/api/state", headers=key).status_code == 428
    assert later.get("/api/state", headers=key | {"X-Consent": newer.consent.id}).status_code == 200
    assert later.get("/api/state", headers=key).status_code == 200
    texts = [event.payload["markdown"] for event in events_of(annotating.study, "text")]
    assert texts == [CONSENT, INSTRUCTIONS, newer.consent.markdown]


def test_consent_events_are_copied_and_erased_with_their_person(client, annotating, introduction, tmp_path):
    join(client, introduction.consent.id)
    study = annotating.study
    lines, _ = lines_after(study.store, {})
    assert sum(json.loads(line)["table"] == "event" for line in lines) == 3
    less = Store(tmp_path / "less.db")
    copy_without(study.store, less, study.people())
    assert [event.kind for event in events_of(less.find(), "text", "consent")] == ["text", "text"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 375])
def test_person_consents_and_starts_in_a_browser(annotating, browser, introduction, width):
    with serving(create_app(annotating, introduction=introduction)) as url:
        page = browser.new_page(viewport={"width": width, "height": 700})
        page.goto(url)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="I do not agree").click()
        assert annotating.study.people() == []
        page.get_by_role("button", name="Read it again").click()
        page.get_by_role("button", name="I agree").click()
        page.locator("#helpDialog .example.good img").wait_for()
        page.wait_for_function("() => [...document.images].every((image) => image.complete)")
        assert page.evaluate("() => [...document.images].every((image) => image.naturalWidth > 0)")
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        page.locator("#helpDialog").get_by_role("button", name="Close").click()
        page.wait_for_selector("#save:not([disabled])")
        page.reload()
        page.wait_for_selector("#save:not([disabled])")
        assert page.locator("dialog[open]").count() == 0, "no dialog is shown again"
        assert len(events_of(annotating.study, "consent")) == 1
