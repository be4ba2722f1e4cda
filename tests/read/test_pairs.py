"""Tests of comparisons of two explainers, and of report pages in a browser: exports, filters, small n."""

import csv
import html
import json
import re
import shutil
import subprocess
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from io import BytesIO, StringIO
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from commands import said
from datasets import Dataset
from PIL import Image
from refusals import refused
from test_reporting import METHODS, METRICS, make_run, page_of

from saliency_bench.compute.examples import thumbnail_rows
from saliency_bench.read.analysis.pairs import explainer_pairs
from saliency_bench.read.cell import as_json
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.parts import RunStore, StoredResult
from saliency_bench.read.report import words
from saliency_bench.read.report.plots import DOT
from saliency_bench.read.report.report_page import report
from saliency_bench.read.report.sample_pictures import sample_groups, split_strips
from saliency_bench.read.report.titles import metric_title

PAIRS = len(METHODS) * (len(METHODS) - 1) // 2
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def test_pairs_match_scores(folder):
    run = read_run(folder)
    cells = {(cell.explainer_text, cell.metric_text): cell for cell in run.cells}
    found = explainer_pairs(run)
    assert [len(pairs) for _, pairs in found] == [PAIRS] * len(METRICS)
    for column, pairs in found:
        for pair in pairs:
            names = pair.against.name, pair.against.other
            first, second = (run.scores.values[cells[name, column.name].cell_id] for name in names)
            gains = {image_id: one - other for image_id, one, other in zip(run.scores.ids, first, second, strict=True)
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


def test_lower_is_better_reverses_the_pair(folder):
    run = read_run(folder)
    higher = explainer_pairs(run)[0][1][0]
    cells = [cell.model_copy(update={"higher_is_better": False}) for cell in run.cells]
    lower = explainer_pairs(replace(run, summary=run.summary | {"cells": as_json(cells)}))[0][1]
    turned = next(pair for pair in lower if {pair.against.name, pair.against.other}
                  == {higher.against.name, higher.against.other})  # fmt: skip
    assert (turned.against.name, turned.against.other) == (higher.against.other, higher.against.name)
    assert (turned.better, turned.worse) == (higher.better, higher.worse)
    assert [one.image_id for one in turned.ahead] == [one.image_id for one in higher.ahead]
    assert [one.difference for one in turned.ahead] == pytest.approx([-one.difference for one in higher.ahead])


@pytest.mark.slow
def test_console_and_json_list_every_pair(folder, tmp_path, capsys):
    line = ["report", str(folder), "--out", str(tmp_path / "page.html"), "--pairs"]
    shown = said(capsys, line)
    found = [pair for _, pairs in explainer_pairs(read_run(folder)) for pair in pairs]
    for pair in found:
        contrast = pair.against.contrast
        row = rf"{pair.against.name} +{pair.against.other} +{contrast.difference:+.3f} \[{contrast.low:+.3f}, "
        assert re.search(row.replace("+0", r"\+0").replace("+-", "-").replace("[-", r"[-"), shown), row
    assert json.loads(said(capsys, [*line, "--json"]))["pairs"] == [[pair.as_dict() for pair in found]]


def test_page_has_pair_table_for_each_metric(folder, page):
    assert page.count('<details class="pairs">') == len(METRICS)
    for column, pairs in explainer_pairs(read_run(folder)):
        assert f'<span title="{column.name}">{metric_title(column.name)}</span>: {PAIRS} pairs' in page
        assert all(one.image_id in page for pair in pairs for one in (*pair.ahead, *pair.behind))
    assert metric_title("saliency_miou:threshold=0.3") == f"{metric_title('saliency_miou')}, threshold=0.3"


def test_page_policy_allows_only_the_page_script(page):
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy in html.unescape(page)
    assert not re.search(r"fetch|XMLHttpRequest|import\(|innerHTML|eval", script)


def test_page_cites_methods_and_data_used(page):
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
def test_tables_can_be_copied_and_sorted(folder, page, tmp_path):
    texts, orders, first = in_browser(page, COPY, tmp_path)
    run = read_run(folder)
    copied = {title.removeprefix("Copy as "): text for title, text in texts}
    rows = list(csv.DictReader(StringIO(copied["CSV"])))
    assert [row["Explainer"] for row in rows] == [row.name for row in run.table.rows]
    for row, own in zip(rows, run.table.rows, strict=True):
        for column in run.table.columns:
            cell, name = run.table.cell(own, column), f"{metric_title(column.name)} {column.arrow}"
            assert row[f"{name} note"] == f"#{cell.ranks}" + " best" * (cell.cell_id in run.table.best)
            numbers = [float(row[name + end]) for end in ("", " low", " high")]
            assert numbers == [round(number, 3) for number in (cell.value, cell.low, cell.high)]
    assert copied["Markdown"].splitlines()[1] == "| --- | --- | --- | --- |"
    assert copied["Markdown"].count("\n") == 2 + len(METHODS)
    assert copied["LaTeX"].startswith("\\begin{tabular}{llll}\n\\toprule\nExplainer & Overlap (mIoU) $\\uparrow$ & ")
    assert "integrated\\_gradients & 0." in copied["LaTeX"]
    by_mean = [row.name for row in run.table.rows if not row.baseline]
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
def test_samples_are_filtered_by_class_and_correctness(folder, page, tmp_path):
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
def test_page_is_not_wider_than_screen(page, tmp_path, width):
    long = ["a-folder-with-a-very-long-name/that-goes-on/and-on" + str(number) for number in range(60)]
    for shown in (page, page_of(make_run(tmp_path / "run", ids=long))):
        assert in_browser(shown, WIDTH, tmp_path, width) == [0, width]


DOWNLOADS = """
const files = [];
HTMLAnchorElement.prototype.click = function () { files.push([this.download, this.href]); };
document.querySelectorAll("figure.plot")[0].querySelectorAll(".tools button").forEach((one) => one.click());
const wait = () => (files.length === 2 ? (document.title = JSON.stringify(files)) : setTimeout(wait, 20));
wait();
"""


@pytest.mark.slow
@browser
def test_plots_download_as_svg_and_png_under_page_policy(folder, tmp_path):
    policy = b64encode(sha256(DOWNLOADS.encode()).digest()).decode()
    page = page_of(folder).replace("script-src ", f"script-src 'sha256-{policy}' ")
    (tmp_path / "page.html").write_text(page.replace("</body>", f"<script>{DOWNLOADS}</script></body>"))
    line = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=5000", "--dump-dom", f"file://{tmp_path / 'page.html'}"]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout, flags=re.S)[:1]
    files = dict(json.loads(html.unescape(title)))
    svg = ElementTree.fromstring(unquote(files["plot.svg"].partition(",")[2]))
    texts = ["".join(node.itertext()) for node in svg.iter("{http://www.w3.org/2000/svg}text")]
    run = read_run(folder)
    column = run.table.columns[0]
    assert texts[0] == f"{metric_title(column.name)} {column.arrow} {column.direction}: Mean with 95 % interval"
    for row, cell in run.table.cells_of_column(column):
        assert row.name in texts
        assert any(text.startswith(f"{cell.value:.3f}") for text in texts)
    paths = svg.iter("{http://www.w3.org/2000/svg}path")
    assert sum(f"stroke-width: {DOT}" in path.get("style", "") for path in paths) == len(METHODS)
    picture = Image.open(BytesIO(b64decode(files["plot.png"].partition(",")[2])))
    assert picture.size == tuple(2 * int(svg.get(name)) for name in ("width", "height"))
    assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 5  # the picture is not empty


SCORES = """
const [explainer, metric] = [...document.querySelectorAll(".filter select")].slice(-2);
const [low, high] = document.querySelectorAll(".filter input");
const set = (control, value) => { control.value = value; control.dispatchEvent(new Event("input")); };
const shown = () => [...document.querySelectorAll(".sample:not([hidden]) h4")].map((one) => one.textContent).sort();
const result = [[...explainer.options].map((one) => one.value), [...metric.options].map((one) => one.value), shown()];
set(explainer, "rise"); set(metric, "Insertion AUC"); set(low, "0.4"); result.push(shown());
set(high, "0.5"); result.push(shown());
set(low, ""); result.push(shown());
set(high, ""); result.push(shown());
"""


@pytest.mark.slow
@browser
def test_samples_are_filtered_by_a_score(folder, tmp_path):
    explainers, metrics, *shown = in_browser(page_of(folder), SCORES, tmp_path)
    run = read_run(folder)
    assert explainers == [row.name for row in run.table.rows]
    assert metrics == [metric_title(column.name) for column in run.table.columns]
    row = next(row for row in run.table.rows if row.name == "rise")
    column = next(column for column in run.table.columns if column.name == "saliency_insertion")
    values = run.scores.values[run.table.cell(row, column).cell_id]
    ids = [sample["id"] for group in split_strips(sample_groups(run))[1] for sample in group["samples"]]
    own = {image_id: round(float(values[run.scores.position[image_id]]), 3) for image_id in ids}

    def within(low, high):
        return sorted(name for name, value in own.items() if low <= value <= high)

    ends = [(-9, 9), (0.4, 9), (0.4, 0.5), (-9, 0.5), (-9, 9)]
    assert shown == [within(*one) for one in ends]
    assert len({len(one) for one in shown}) > 2


def with_thumbnails(folder):
    """Add thumbnails of the explainers to a run; the last sample of each explainer has none."""
    run = read_run(folder)
    maps = torch.linspace(0, 1, 36).reshape(1, 6, 6).repeat(len(run.scores.ids) - 1, 1, 1)
    parts = RunStore(folder, run.identity).thumbnails
    places = range(len(maps))
    rows = thumbnail_rows(maps, places)
    parts.write([StoredResult(row.explainer_id, places, {row.explainer_id: rows}) for row in run.table.rows])
    return folder


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("samples") / "run", ids=[f"<i>{number}" for number in range(90)])
    report([with_thumbnails(folder)], samples=True)
    return folder


def content_of(folder):
    page = (folder / "report-samples.html").read_text(encoding="utf-8")
    return json.loads(page.partition('id="content">')[2].partition("</script>")[0])


@pytest.mark.slow
def test_page_of_all_samples_matches_records(sampled):
    content = content_of(sampled)
    assert [one[0] for one in content["samples"]] == [f"<i>{number}" for number in range(90)]
    rows = {(row["image_id"], row["explainer"], row["metric"]): row
            for row in pq.read_table(sampled / "records.parquet").to_pylist()}  # fmt: skip
    correct = {row["image_id"]: row["correct"] for row in pq.read_table(sampled / "predictions.parquet").to_pylist()}
    for image_id, label, prediction, _, is_right, scores, size in content["samples"]:
        for (name, _, _), of_row in zip(content["explainers"], scores, strict=True):
            for (_, metric, _), score in zip(content["metrics"], of_row, strict=True):
                row = rows[image_id, name, metric]
                assert score == (None if row["value"] is None else pytest.approx(row["value"], abs=5e-4))
                assert (content["labels"][label], content["labels"][prediction]) == (row["label"], row["prediction"])
        assert is_right == correct[image_id]
        assert (size == 0) == (image_id == "<i>89" and "<i>89" not in read_run(sampled).examples["ids"])
    first = Image.open(sampled / "report-samples" / "00000.jpg")
    assert first.size == (96 * (1 + len(METHODS)), 96)
    page = (sampled / "report-samples.html").read_text(encoding="utf-8")
    assert "<i>" not in page
    assert "give the dataset with --data" in page
    assert 'href="report-samples.html">All 90 samples</a>' in (sampled / "report.html").read_text(encoding="utf-8")
    before = {path.name: path.read_bytes() for path in (sampled / "report-samples").iterdir()}
    report([sampled], samples=True)
    assert {path.name: path.read_bytes() for path in (sampled / "report-samples").iterdir()} == before
    assert (sampled / "report-samples.html").read_text(encoding="utf-8") == page


@pytest.mark.slow
def test_samples_page_reports_missing_maps_and_wrong_dataset(folder, tmp_path):
    page = report(folder, tmp_path / "page.html", samples=True)
    text = page.with_name("page-samples.html").read_text(encoding="utf-8")
    assert "has no thumbnails of the maps of gradcam, rise, integrated_gradients" in text
    other = Dataset.from_dict({"image": [Image.new("RGB", (4, 4))], "label": [0]})
    words = "does not contain the same samples as the dataset of"
    refused(words, report, folder, tmp_path / "page.html", samples=True, data=other)
    two = [folder, make_run(tmp_path / "two", pictures=False)]
    refused("all samples can be shown for only one run", report, two, tmp_path / "page.html", samples=True)
    refused("--samples", report, folder, tmp_path / "page.html", data=other)


@pytest.mark.slow
@browser
def test_page_of_all_samples_filters_and_sorts(sampled):
    sync_api = pytest.importorskip("playwright.sync_api")
    content, faults = content_of(sampled), []
    methods = [index for index, (_, is_baseline, _) in enumerate(content["explainers"]) if not is_baseline]
    values = {one[0]: [one[5][row][0] for row in methods if one[5][row][0] is not None] for one in content["samples"]}
    with sync_api.sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        page.on("request", lambda asked: asked.url.startswith("file:///") or faults.append(asked.url))
        page.on("requestfailed", lambda asked: faults.append(asked.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((sampled / "report-samples.html").as_uri())

        def shown():
            return page.evaluate("""() => {
                const more = document.getElementById("more");
                while (!more.hidden) more.click();
                return [...document.querySelectorAll("#list h2")].map((head) => head.textContent);
            }""")

        assert page.locator("#list article").count() < 90  # the others are added while scrolling
        assert shown() == [one[0] for one in content["samples"]]
        assert page.locator("#list img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 96
        page.get_by_label("Prediction").select_option("wrong")
        wrong = [one[0] for one in content["samples"] if one[4] is False]
        assert shown() == wrong
        assert page.get_by_role("status").inner_text() == f"{len(wrong)} of 90 samples"
        page.get_by_label("Class").select_option("circle")
        circle = content["labels"].index("circle")
        assert shown() == [one[0] for one in content["samples"] if one[4] is False and one[1] == circle]
        page.get_by_label("Class").select_option("all")
        page.get_by_label("Prediction").select_option("all")
        page.locator("#choose select").nth(3).select_option("best first")
        means = {name: sum(scores) / len(scores) if scores else -1 for name, scores in values.items()}
        assert shown() == sorted(means, key=lambda name: -means[name])
        page.get_by_label("Explainers differ by at least").fill("0.5")
        far = {name for name, scores in values.items() if scores and max(scores) - min(scores) >= 0.5}
        assert 0 < len(far) < 90
        assert set(shown()) == far
        page.get_by_label("Id contains").fill("no such id")
        assert shown() == []
    assert faults == []


@pytest.mark.slow
def test_n_stands_beside_what_few_samples_say(tmp_path):
    folder = make_run(tmp_path / "few", samples=12)
    few, run = page_of(folder), read_run(folder)
    scores = few.partition("Mean score of each explainer")[2].partition("</table>")[0]
    for count in {cell.n for cell in run.cells}:
        assert scores.count(f"n = {count}<") == sum(cell.n == count for cell in run.cells)
    assert re.search(r"too few samples to tell, n = \d+", few)
    many = page_of(make_run(tmp_path / "many", samples=90))
    assert "n = 90" not in many.partition("Mean score of each explainer")[2].partition("</table>")[0]


def test_minus_signs_are_those_of_typography():
    assert words.number(-0.25) == "\N{MINUS SIGN}0.250"
    assert words.number(-0.00004) == "\N{MINUS SIGN}4.0e\N{MINUS SIGN}05"
    assert words.signed(-0.25) == words.number(-0.25)
    assert words.signed_interval(-0.5, 0.25) == "[\N{MINUS SIGN}0.500, +0.250]"
