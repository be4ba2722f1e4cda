"""Tests of comparisons of two explainers, on the page, in a browser and on the console."""

import csv
import html
import json
import re
import shutil
import subprocess
from base64 import b64encode
from hashlib import sha256
from io import StringIO

import numpy as np
import pytest
from commands import said
from test_reporting import METHODS, METRICS, make_run, page_of

from saliency_bench.read.analysis.pairs import explainer_pairs
from saliency_bench.read.report.titles import metric_title
from saliency_bench.read.run_folder import read_run

PAIRS = len(METHODS) * (len(METHODS) - 1) // 2
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def test_pairs_are_what_the_scores_say(folder):
    run = read_run(folder)
    cells = {(cell.explainer_text, cell.metric_text): cell for cell in run.cells}
    found = explainer_pairs(run)
    assert [len(pairs) for _, pairs in found] == [PAIRS] * len(METRICS)
    for column, pairs in found:
        for pair in pairs:
            names = pair.against.name, pair.against.other
            first, second = (run.values[cells[name, column.name].cell_id] for name in names)
            gains = {image_id: one - other for image_id, one, other in zip(run.ids, first, second, strict=True)
                     if np.isfinite(one) and np.isfinite(other)}  # fmt: skip
            total = len(gains)
            better, worse = (sum(sign * gain > 1e-9 for gain in gains.values()) / total for sign in (1, -1))
            assert [pair.better, pair.equal, pair.worse] == pytest.approx([better, 1 - better - worse, worse])
            assert pair.against.contrast.difference == pytest.approx(sum(gains.values()) / total)
            assert pair.against.contrast.difference >= 0, "the better mean stands first"
            order = sorted(gains, key=lambda image_id: -gains[image_id])
            assert [one.image_id for one in pair.ahead] == [name for name in order[:3] if gains[name] > 0]
            behind = [gains[name] for name in order[::-1][:3] if gains[name] < 0]
            assert [one.difference for one in pair.behind] == pytest.approx(behind)


def test_lower_is_better_turns_who_is_ahead(folder):
    run = read_run(folder)
    higher = explainer_pairs(run)[0][1][0]
    cells = [cell.model_copy(update={"higher_is_better": False}) for cell in run.cells]
    lower = explainer_pairs(type(run)(folder, cells, run.ids, run.groups, run.values, run.summary))[0][1]
    turned = next(pair for pair in lower if {pair.against.name, pair.against.other}
                  == {higher.against.name, higher.against.other})  # fmt: skip
    assert (turned.against.name, turned.against.other) == (higher.against.other, higher.against.name)
    assert (turned.better, turned.worse) == (higher.better, higher.worse)
    assert [one.image_id for one in turned.ahead] == [one.image_id for one in higher.ahead]
    assert [one.difference for one in turned.ahead] == pytest.approx([-one.difference for one in higher.ahead])


@pytest.mark.slow
def test_the_console_prints_every_pair_and_json_holds_it(folder, tmp_path, capsys):
    line = ["report", str(folder), "--out", str(tmp_path / "page.html"), "--pairs"]
    shown = said(capsys, line)
    found = [pair for _, pairs in explainer_pairs(read_run(folder)) for pair in pairs]
    for pair in found:
        contrast = pair.against.contrast
        row = rf"{pair.against.name} +{pair.against.other} +{contrast.difference:+.3f} \[{contrast.low:+.3f}, "
        assert re.search(row.replace("+0", r"\+0").replace("+-", "-").replace("[-", r"[-"), shown), row
    assert json.loads(said(capsys, [*line, "--json"]))["pairs"] == [[pair.as_dict() for pair in found]]


def test_the_page_has_a_table_of_pairs_for_each_metric(folder, page):
    assert page.count('<details class="pairs">') == len(METRICS)
    for column, pairs in explainer_pairs(read_run(folder)):
        assert f'<span title="{column.name}">{metric_title(column.name)}</span>: {PAIRS} pairs' in page
        assert all(one.image_id in page for pair in pairs for one in (*pair.ahead, *pair.behind))


def test_only_the_script_of_the_page_may_run_and_nothing_is_loaded(page):
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy in html.unescape(page)
    assert not re.search(r"fetch|XMLHttpRequest|import\(|innerHTML|eval", script)


def test_the_page_cites_what_was_used(page):
    (cited,) = re.findall(r'<pre data-form="BibTeX"[^>]*>(.*?)</pre>', page, flags=re.S)
    assert [line for line in cited.splitlines() if line.startswith("@")] == [
        "@software{saliency_bench,", "@software{saliency_bench_shapes,", "@article{zhang2023saliency,",
        "@article{zhang2018top,", "@inproceedings{petsiuk2018rise,",
    ]  # fmt: skip
    assert cited.count("{") == cited.count("}")


def in_browser(page: str, script: str, tmp_path, width: int = 1280) -> object:
    """Open a page in a browser window of this width, run a script, and return its `result`."""
    page = re.sub(r"<meta http-equiv[^>]+>", "", page)  # the policy would block the script
    page = page.replace("</body>", f"<script>{script}; parent.document.title = JSON.stringify(result)</script></body>")
    outer = tmp_path / "outer.html"
    outer.write_text(f'<title>-</title><iframe width="{width}" height="800" srcdoc="{html.escape(page)}"></iframe>')
    line = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom", f"file://{outer}"]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout, flags=re.S)[:1]
    return json.loads(html.unescape(title))


COPY = """
Object.defineProperty(navigator, "clipboard", {value: {writeText: async (text) => { window.copied = text; }}});
const table = document.querySelector("table.scores");
const bar = table.closest(".scroll").nextElementSibling;
const texts = [...bar.querySelectorAll("button")].map((one) => { one.click(); return [one.title, window.copied]; });
const heads = (body) => [...body.querySelectorAll("tr:not(.divider) th")].map((one) => one.textContent);
const names = () => [...table.tBodies].map(heads);
const click = (column) => table.tHead.rows[0].cells[column].querySelector("button").click();
const orders = [names()];
for (const column of [1, 1, 0]) { click(column); orders.push(names()); }
const result = [texts, orders, table.tBodies[1].rows[0].className];
"""


@pytest.mark.slow
@browser
def test_tables_are_copied_and_sorted(folder, page, tmp_path):
    texts, orders, first = in_browser(page, COPY, tmp_path)
    run = read_run(folder)
    copied = {title.removeprefix("Copy as "): text for title, text in texts}
    rows = list(csv.DictReader(StringIO(copied["CSV"])))
    assert [row["Explainer"] for row in rows] == [row.name for row in run.rows]
    for row, own in zip(rows, run.rows, strict=True):
        for column in run.columns:
            cell, name = run.cell(own, column), f"{metric_title(column.name)} {column.arrow}"
            assert row[f"{name} note"] == f"#{cell.ranks}" + " best" * (cell.cell_id in run.best)
            numbers = [float(row[name + end]) for end in ("", " low", " high")]
            assert numbers == [round(number, 3) for number in (cell.value, cell.low, cell.high)]
    assert copied["Markdown"].splitlines()[1] == "| --- | --- | --- | --- |"
    assert copied["Markdown"].count("\n") == 2 + len(METHODS)
    assert copied["LaTeX"].startswith("\\begin{tabular}{llll}\n\\toprule\nExplainer & Overlap (mIoU) $\\uparrow$ & ")
    assert "integrated\\_gradients & 0." in copied["LaTeX"]
    by_mean = [row.name for row in run.rows if not row.baseline]
    assert [one[0] for one in orders] == [by_mean, by_mean[::-1], by_mean, sorted(by_mean)]
    assert {frozenset(one[1]) for one in orders} == {frozenset({"random", "centre"})}
    assert first == "divider"


FILTER = """
const [label, outcome] = document.querySelectorAll(".filter select");
const shown = () => [...document.querySelectorAll(".samples .sample")].filter((one) => one.offsetParent).length;
const choose = (select, value) => { select.value = value; select.dispatchEvent(new Event("change")); return shown(); };
const result = [shown(), choose(label, "circle"), choose(outcome, "wrong"), choose(label, ""), choose(outcome, "")];
"""


@pytest.mark.slow
@browser
def test_samples_are_filtered_by_class_and_by_right_and_wrong(folder, page, tmp_path):
    run = read_run(folder)
    samples = [run.samples[str(image_id)] for image_id in run.examples["ids"] if f"<h4>{image_id}</h4>" in page]
    assert len(samples) == len(run.examples["ids"]) - 2  # the best and the worst sample are shown above
    circles = [one for one in samples if one["label"] == "circle"]
    wrong = [one for one in samples if not one["correct"]]
    both = [one for one in circles if not one["correct"]]
    expected = [len(samples), len(circles), len(both), len(wrong), len(samples)]
    assert 0 < len(wrong) < len(samples)
    assert in_browser(page, FILTER, tmp_path) == expected


WIDTH = """
document.querySelectorAll("details").forEach((one) => { one.open = true; });
const root = document.documentElement;
const result = [root.scrollWidth - root.clientWidth, innerWidth];
"""


@pytest.mark.slow
@browser
@pytest.mark.parametrize("width", [375, 1280])
def test_no_page_is_wider_than_its_screen(page, tmp_path, width):
    long = ["a-folder-with-a-very-long-name/that-goes-on/and-on" + str(number) for number in range(60)]
    for shown in (page, page_of(make_run(tmp_path / "run", ids=long))):
        assert in_browser(shown, WIDTH, tmp_path, width) == [0, width]
