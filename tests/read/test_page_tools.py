"""Browser tests of report pages: export of plots, filters of samples by score, and the display of small n."""

import html
import json
import re
import subprocess
from base64 import b64decode, b64encode
from hashlib import sha256
from io import BytesIO
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from PIL import Image
from refusals import refused
from test_pairs import CHROMIUM, browser, in_browser
from test_reporting import METHODS, make_run, page_of

from saliency_bench.compute.examples import thumbnail_rows
from saliency_bench.read.parts import RunStore, StoredResult
from saliency_bench.read.report import words
from saliency_bench.read.report.plots import DOT
from saliency_bench.read.report.report_page import report
from saliency_bench.read.report.sample_pictures import sample_groups, split_strips
from saliency_bench.read.report.titles import metric_title
from saliency_bench.read.run_folder import read_run

DOWNLOADS = """
const files = [];
HTMLAnchorElement.prototype.click = function () { files.push([this.download, this.href]); };
document.querySelectorAll("figure.plot")[0].querySelectorAll(".tools button").forEach((one) => one.click());
const wait = () => (files.length === 2 ? (document.title = JSON.stringify(files)) : setTimeout(wait, 20));
wait();
"""


@pytest.mark.slow
@browser
def test_plots_are_downloaded_as_svg_and_png_under_the_policy_of_the_page(folder, tmp_path):
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
    column = run.columns[0]
    assert texts[0] == f"{metric_title(column.name)} {column.arrow} {column.direction}: Mean with 95 % interval"
    for row, cell in run.cells_of_column(column):
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
    assert explainers == [row.name for row in run.rows]
    assert metrics == [metric_title(column.name) for column in run.columns]
    row = next(row for row in run.rows if row.name == "rise")
    column = next(column for column in run.columns if column.name == "saliency_insertion")
    values = run.values[run.cell(row, column).cell_id]
    ids = [sample["id"] for group in split_strips(sample_groups(run))[1] for sample in group["samples"]]
    own = {image_id: round(float(values[run.position[image_id]]), 3) for image_id in ids}

    def within(low, high):
        return sorted(name for name, value in own.items() if low <= value <= high)

    ends = [(-9, 9), (0.4, 9), (0.4, 0.5), (-9, 0.5), (-9, 9)]
    assert shown == [within(*one) for one in ends]
    assert len({len(one) for one in shown}) > 2


def with_thumbnails(folder):
    """Add thumbnails of the explainers to a run; the last sample of each explainer has none."""
    run = read_run(folder)
    maps = torch.linspace(0, 1, 36).reshape(1, 6, 6).repeat(len(run.ids) - 1, 1, 1)
    parts = RunStore.from_identity(folder, run.identity).thumbnails
    places = range(len(maps))
    rows = thumbnail_rows(maps, places)
    parts.write([StoredResult(row.explainer_id, places, {row.explainer_id: rows}) for row in run.rows])
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
def test_the_page_of_all_samples_holds_what_the_records_say(sampled):
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
def test_samples_without_small_maps_or_of_another_dataset_are_told(folder, tmp_path):
    page = report(folder, tmp_path / "page.html", samples=True)
    text = page.with_name("page-samples.html").read_text(encoding="utf-8")
    assert "has no thumbnails of maps of gradcam, rise, integrated_gradients" in text
    other = Dataset.from_dict({"image": [Image.new("RGB", (4, 4))], "label": [0]})
    words = "does not contain the same samples as the dataset of"
    refused(words, report, folder, tmp_path / "page.html", samples=True, data=other)
    two = [folder, make_run(tmp_path / "two", pictures=False)]
    refused("all samples can be shown for one run", report, two, tmp_path / "page.html", samples=True)
    refused("--samples", report, folder, tmp_path / "page.html", data=other)


@pytest.mark.slow
@browser
def test_all_samples_are_filtered_and_sorted_in_a_browser(sampled):
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
