"""What a page offers beyond its tables, in a browser: plots as files, samples by their scores. n beside few samples."""

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
import pytest
from PIL import Image
from test_pairs import CHROMIUM, browser, in_browser
from test_reporting import METHODS, make_run, page_of

from saliency_bench.reports import words
from saliency_bench.reports.plots import DOT
from saliency_bench.reports.titles import metric_title
from saliency_bench.results.run_folder import read_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("tools") / "run")


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
    assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 5  # something is drawn


SCORES = """
const [explainer, metric] = [...document.querySelectorAll(".filter select")].slice(-2);
const [low, high] = document.querySelectorAll(".filter input");
const set = (control, value) => { control.value = value; control.dispatchEvent(new Event("input")); };
const shown = () => [...document.querySelectorAll(".sample:not([hidden]) h4")].map((one) => one.textContent).sort();
const result = [[...explainer.options].map((one) => one.value), [...metric.options].map((one) => one.value), shown()];
set(explainer, "rise"); set(metric, "Network relies (insertion)"); set(low, "0.4"); result.push(shown());
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
    own = {str(image_id): round(float(values[run.position[str(image_id)]]), 3) for image_id in run.examples["ids"]}

    def within(low, high):
        return sorted(name for name, value in own.items() if low <= value <= high)

    ends = [(-9, 9), (0.4, 9), (0.4, 0.5), (-9, 0.5), (-9, 9)]
    assert shown == [within(*one) for one in ends]
    assert len({len(one) for one in shown}) > 2


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
