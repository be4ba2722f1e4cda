"""The report of a small run that is made here with the core's own functions."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from saliency_bench.analysis.comparison import compare_runs, merge_runs
from saliency_bench.analysis.differences import conflicts, differences
from saliency_bench.cli import main
from saliency_bench.engine.examples import choose, save_arrays
from saliency_bench.errors import UserError
from saliency_bench.reasons import FLAT
from saliency_bench.reports.figures import Axis, agreement, axis_of
from saliency_bench.reports.page import report
from saliency_bench.reports.samples import outline, picture
from saliency_bench.reports.words import verdict
from saliency_bench.results import records
from saliency_bench.results.cell import CellKey, CellResult, as_json, read_cells
from saliency_bench.results.run_folder import RunData, read_run
from saliency_bench.results.statistics import bootstrap
from saliency_bench.results.summary import RunFacts, summarise, table
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import identity
from saliency_bench.utils.provenance import provenance

METHODS = {"gradcam": 0.55, "rise": 0.45, "integrated_gradients": 0.3, "centre": 0.25, "random": 0.22}
METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion")
LABELS = ("circle", "square")


def make_run(
    folder: Path, samples=40, methods=METHODS, metrics=METRICS, side=24, ids=None, seed=0, pictures=True, no_masks=False
) -> Path:
    """A finished run folder: every third sample (or all) has no mask, the first map of each explainer is flat."""
    rng = np.random.default_rng(seed)
    ids = ids or [f"sample-{number:05d}" for number in range(samples)]
    predicted = [_prediction(rng, number, image_id, no_masks) for number, image_id in enumerate(ids)]
    keys = [_key(name, metric, seed) for name in methods for metric in metrics]
    records.write(folder / "predictions.parquet", predicted, records.PREDICTIONS)
    columns = [_column(rng, key, predicted, methods[key.explainer]) for key in keys]
    records.write(folder / "records.parquet", pa.concat_tables(columns), records.SCHEMA)
    plan = dict(zip([key.cell_id for key in keys], as_json(keys), strict=True))
    write_json(folder / "run.json", {"cells": plan})
    facts = RunFacts(
        folder=folder, dataset="shapes-xai", split="test", fingerprint="f1", samples=len(ids), used=len(ids),
        classes=len(LABELS), model="runs/models/small-resnet", revision=None, digest="d1", geometry="as it is",
        target="label", groups=None, precision="fp32", seed=0, batch_size=16,
        command=f"saliency-bench run --dataset shapes-xai --seed {seed}", provenance=provenance(torch.device("cpu")),
    )  # fmt: skip
    summary = summarise(facts)
    write_json(folder / "timings.json", {"started": 1.0, "seconds": 12.5, "explainers": dict.fromkeys(methods, 2.25)})
    if pictures:
        _pictures(rng, folder, choose(folder, read_cells(summary["cells"])), list(methods), side)
    return folder


def _prediction(rng: np.random.Generator, number: int, image_id: str, no_masks: bool) -> dict:
    masked = number % 3 != 2 and not no_masks
    right = bool(rng.random() < 0.9)
    return {
        "image_id": image_id, "label": number % 2, "prediction": number % 2 if right else 1 - number % 2,
        "confidence": 0.9, "correct": right, "mask_share": 0.1 if masked else None,
        "left_out": None if masked else "no mask", "logits": [0.0, 1.0],
    }  # fmt: skip


def _key(explainer: str, metric: str, seed: int, higher_is_better: bool = True) -> CellKey:
    return CellKey(
        cell_id=identity(explainer, metric, seed),
        explainer_id=identity(explainer),
        explainer=explainer.partition(":")[0],
        baseline=explainer in ("random", "centre"),
        explainer_options={},
        explainer_text=explainer,
        explainer_version=1,
        metric=metric.partition(":")[0],
        metric_options={},
        metric_text=metric,
        metric_version=1,
        higher_is_better=higher_is_better,
    )


def _result(key: CellKey, n: int, value: float | None = None, low: float | None = None, high: float | None = None):
    return CellResult(
        **dict(key), value=value, low=low, high=high, n=n, rank=None, left_out={}, flat=0, marked={},
        forward_passes={"explain": n, "metric": 0},
    )  # fmt: skip


def _column(rng: np.random.Generator, key: CellKey, predicted: list[dict], level: float) -> pa.Table:
    needs_mask = key.metric != "saliency_insertion"
    scores = np.clip(rng.normal(level, 0.2, len(predicted)), 0, 1)
    if key.metric == "saliency_pointing_game":
        scores = (scores > 0.4).astype(float)
    rows = []
    for index, (row, score) in enumerate(zip(predicted, scores, strict=True)):
        reason = row["left_out"] if needs_mask else None
        rows.append(
            {
                **dict.fromkeys(("explainer_options", "metric_options"), "{}"),
                **{"cell_id": key.cell_id, "explainer": key.explainer, "metric": key.metric},
                **{"dataset": "shapes-xai", "split": "test", "model": "small-resnet", "image_id": row["image_id"]},
                **{
                    "label": LABELS[row["label"]],
                    "prediction": LABELS[row["prediction"]],
                    "target": LABELS[row["label"]],
                },
                **{
                    "value": None if reason else float(score),
                    "reason": reason or (FLAT if index == 0 else None),
                },
            }
        )
    return pa.Table.from_pylist(rows, schema=records.SCHEMA)


def _pictures(rng: np.random.Generator, folder: Path, chosen: list, methods: list[str], side: int) -> None:
    """Each picture has a disc, which is its mask; each explainer a blob there, of its own width."""
    count = len(chosen)
    y, x = np.mgrid[:side, :side] / side
    centres = rng.uniform(0.3, 0.7, (count, 2, 1, 1))
    distance = np.hypot(y - centres[:, 0], x - centres[:, 1])
    images = np.clip(120 + 80 * np.sin(12 * x) + 60 * (distance < 0.2) * np.sign(y - x), 0, 255)
    blobs = {name: np.exp(-((distance * rng.uniform(1, 4)) ** 2)) for name in methods}
    save_arrays(
        folder / "examples.npz",
        ids=np.array([image_id for image_id, _ in chosen]),
        kinds=np.array([kind for _, kind in chosen]),
        images=np.stack([images, images * 0.8, images * 0.6], axis=-1).astype(np.uint8),
        masks=distance < 0.2,
        **{f"maps/{name}": np.round(255 * blob).astype(np.uint8) for name, blob in blobs.items()},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def copied(folder, tmp_path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "run", ignore=lambda *_: ["report.html"]))


def page_of(folder: Path) -> str:
    return report([folder]).read_text(encoding="utf-8")


def change_summary(folder: Path, change) -> dict:
    summary = read_json(folder / "summary.json")
    change(summary)
    write_json(folder / "summary.json", summary)
    return summary


class Structure(HTMLParser):
    """What a browser would load, every table, and whether tags close in order."""

    VOID = ("meta", "img", "br", "col", "wbr")

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.pictures: list[dict] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append(tag)
        self.loads += [named[key] for key in ("src", "href", "srcset", "data", "poster") if key in named]
        self.ids += [named["id"]] if "id" in named else []
        self.pictures += [named] if tag == "img" else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_whole_and_well_formed(folder):
    page = page_of(folder)
    structure = Structure(page)
    assert structure.open == []
    assert all(load.startswith(("#", "data:image/")) for load in structure.loads)
    assert "url(" not in page
    assert "@import" not in page
    assert not {"script", "link", "iframe", "object"} & set(structure.tags)
    assert len(structure.ids) == len(set(structure.ids))
    assert {load[1:] for load in structure.loads if load.startswith("#")} <= set(structure.ids)
    assert len(structure.pictures) == 12 * (1 + len(METHODS))
    assert all(picture["alt"] for picture in structure.pictures)


def test_every_number_interval_and_reason_is_there(folder):
    page = page_of(folder)
    summary = read_json(folder / "summary.json")
    assert len(summary["cells"]) == len(METHODS) * len(METRICS)
    for cell in summary["cells"]:
        interval = f"[{cell['low']:.3f}, {cell['high']:.3f}]"
        rank = f' <span class="interval">#{cell["rank"]}</span>' if cell["rank"] else ""
        assert f'<span class="value">{cell["value"]:.3f}</span> <span class="interval">{interval}</span>{rank}' in page
        assert cell["cell_id"] in page
    assert any(cell["rank"] for cell in summary["cells"])
    assert "saliency_miou: n = 27; left out: no mask 13" in page
    assert "saliency_insertion: n = 40, none left out" in page
    assert "scored as zeros: gradcam 1, rise 1" in page
    assert "27 of 40" in page
    accuracy = summary["model"]["accuracy"]
    assert f"{100 * accuracy['value']:.1f}\N{NO-BREAK SPACE}%" in page
    assert f"[{100 * accuracy['low']:.1f}, {100 * accuracy['high']:.1f}]\N{NO-BREAK SPACE}%" in page
    assert "saliency-bench run --dataset shapes-xai --seed 0" in page
    assert "small-resnet</em> on <em>shapes-xai" in page


def test_best_value_of_each_column_is_marked(folder):
    page = page_of(folder)
    cells = read_json(folder / "summary.json")["cells"]
    for metric in METRICS:
        value = max(cell["value"] for cell in cells if cell["metric"] == metric)
        assert re.search(
            rf'class="best">\s*<span class="value">{value:.3f}</span>.*<span class="tag">best</span>', page
        )
    assert page.count('class="best"') == len(METRICS)


def test_equal_folders_give_equal_bytes(folder, tmp_path):
    assert report([folder], tmp_path / "one.html").read_bytes() == report(folder, tmp_path / "two.html").read_bytes()


def test_text_of_others_is_escaped(tmp_path):
    hostile = "<script>alert(1)</script>\"'&"
    ids = [f"{hostile}{number}" for number in range(12)]
    folder = make_run(tmp_path / "run", ids=ids)
    change_summary(folder, lambda summary: summary["dataset"].update(id=hostile))
    page = page_of(folder)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;0" in page
    assert Structure(page).open == []


def test_without_pictures_the_rest_stands(copied):
    (copied / "examples.npz").unlink()
    (copied / "timings.json").unlink()
    page = page_of(copied)
    assert "Samples</h2>" not in page
    assert "<img" not in page
    assert "Provenance</h2>" in page


def test_missing_values_are_dashes(tmp_path):
    folder = make_run(tmp_path / "run", samples=1)  # an interval needs two samples
    page = page_of(folder)
    cell = read_json(folder / "summary.json")["cells"][0]
    assert cell["low"] is None
    assert f'<span class="value">{cell["value"]:.3f}</span> <span class="interval"></span>' in page
    empty = make_run(tmp_path / "empty", ids=["a", "b", "c"], no_masks=True, pictures=False)
    page = page_of(empty)
    assert read_json(empty / "summary.json")["cells"][0]["value"] is None
    assert '<span class="value">–</span>' in page
    assert "nan" not in re.sub(r"base64,[^\"]*", "", page).lower().replace("provenance", "")
    assert "None" not in page


def test_forgotten_metrics_and_passed_functions_are_described(copied):
    def forget(summary):
        for cell in summary["cells"]:
            if cell["metric"] == "saliency_insertion":
                cell.update(metric="saliency_forgotten", metric_text="saliency_forgotten")
            if cell["explainer"] == "rise":
                cell.update(explainer="mine", explainer_text="mine", explainer_version="0123abcd")

    change_summary(copied, forget)
    page = page_of(copied)
    assert "Not known to the version of saliency-bench" in page
    assert "A Python function" in page


def test_two_versions_of_a_metric_stay_apart(copied):
    def another_version(summary):
        for cell in summary["cells"]:
            if cell["metric"] == "saliency_insertion":
                cell.update(metric_text="saliency_miou", metric_version=2)

    change_summary(copied, another_version)
    run = read_run(copied)
    assert [column.name for column in run.columns] == [
        "saliency_miou (version 1)", "saliency_pointing_game", "saliency_miou (version 2)"
    ]  # fmt: skip
    assert len(run.rows) == len(METHODS)


def cells_for(intervals: dict[str, tuple[float, float]], higher: bool = True) -> RunData:
    cells = [
        _result(_key(name, "saliency_miou", 0, higher), 10, (low + high) / 2, low, high)
        for name, (low, high) in intervals.items()
    ]
    return RunData(Path(), cells, [], {})


@pytest.mark.parametrize(
    ("intervals", "higher", "words"),
    [
        ({"a": (0.5, 0.6), "random": (0.1, 0.2)}, True, "a beats random .* saliency_miou"),
        ({"a": (0.5, 0.6), "random": (0.1, 0.2)}, False, "a falls behind random .* saliency_miou"),
        ({"a": (0.1, 0.3), "random": (0.1, 0.2)}, True, "a does not differ clearly from random .* saliency_miou"),
        ({"a": (0.2, 0.3), "random": (0.1, 0.2)}, True, "a does not differ clearly"),
        ({"a": (0.5, 0.6), "b": (0.7, 0.8), "random": (0.1, 0.2)}, True, "a and b beat random .* saliency_miou"),
        ({"a": (0.5, 0.6), "centre": (0.55, 0.7), "random": (0, 0)}, True, "No explainer beats centre.* saliency_miou"),
        ({"a": (0.5, 0.6), "b": (0.1, 0.2), "centre": (0.3, 0.4)}, True, "b falls behind centre.* saliency_miou"),
        ({"a": (0.5, 0.6), "b": (0.7, 0.8)}, True, "no random baseline"),
        ({"a": (0.5, 0.6), "b": (0.7, 0.8)}, False, "Best .* a on saliency_miou"),
        ({"a": (0.5, 0.6), "b": (0.5, 0.6)}, True, "Best .* a and b on saliency_miou"),
    ],
)
def test_verdict(intervals, higher, words):
    assert any(re.search(rf"\b{words}\b", sentence) for sentence in verdict(cells_for(intervals, higher)))


def test_rank_agreement_of_metrics_by_hand():
    """Two samples, three explainers. Orders 1 2 3 and 3 2 1: -1. Orders 1 2 3 and 1 3 2: 1 - 6 * (1 + 1) / 24 = 0.5."""
    cells = [_result(_key(name, metric, 0), 2) for name in "abc" for metric in METRICS[:2]]
    scores = {
        ("a", METRICS[0]): [1, 1], ("b", METRICS[0]): [2, 2], ("c", METRICS[0]): [3, 3],
        ("a", METRICS[1]): [3, 1], ("b", METRICS[1]): [2, 3], ("c", METRICS[1]): [1, 2],
    }  # fmt: skip
    values = {cell.cell_id: np.array(scores[cell.explainer, cell.metric], float) for cell in cells}
    result = agreement(RunData(Path(), cells, ["x", "y"], values))
    assert result is not None
    assert result["table"][0][1] == (pytest.approx(-0.25), 2)


def test_outline_is_the_border_of_the_mask():
    mask = np.zeros((4, 5), bool)
    mask[1:3, 1:4] = True
    assert outline(mask) == "M1 1h3M1 3h3M1 1v2M4 1v2"
    assert outline(np.zeros((4, 5), bool)) == ""
    assert outline(np.ones((1, 1), bool)) == "M0 0h1M0 1h1M0 0v1M1 0v1"


def test_ticks_are_round_and_inside():
    axis = Axis(0.213, 0.871)
    assert [text for _, text in axis.ticks] == ["0.4", "0.6", "0.8"]
    assert axis.percent(0.213) == 0
    assert axis.percent(0.871) == 100
    assert axis_of([], margin=0.1).low < 0.5 < axis_of([None], margin=0.1).high
    assert axis_of([0.3, 0.3], margin=0.1).ticks


def test_several_runs_side_by_side(folder, tmp_path):
    other = make_run(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match="--out"):
        report([folder, other])
    page = report([folder, other], tmp_path).read_text(encoding="utf-8")
    structure = Structure(page)
    assert structure.open == []
    assert len(structure.ids) == len(set(structure.ids))
    assert "2 runs side by side" in page
    before = page[: page.index('id="run-1"')]
    for run in (folder, other):
        summary = read_json(run / "summary.json")
        for cell in summary["cells"]:
            interval = f'<span class="interval">[{cell["low"]:.3f}, {cell["high"]:.3f}]</span>'
            assert re.search(
                rf'>{cell["value"]:.3f}</span> {re.escape(interval)}\s*<span class="interval">n = ', before
            )
        assert f"{100 * summary['model']['accuracy']['value']:.1f}\N{NO-BREAK SPACE}%" in before
    assert before.count('<span class="tag">best explainer</span>') == 2 * len(METRICS)
    assert before.count('<span class="tag">best run</span>') == len(METHODS) * len(METRICS)
    assert "conflict" not in before.lower()


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """Another run over the same samples, from another model, with a seed of its own."""
    folder = make_run(tmp_path_factory.mktemp("other"), seed=1, pictures=False)
    change_summary(folder, lambda summary: (summary.update(seed=1), summary["model"].update(digest="d2")))
    return folder


def change_records(folder: Path, change) -> None:
    """`change` gets the rows, in their order."""
    rows = pq.read_table(folder / "records.parquet").to_pylist()
    change(rows)
    records.write(folder / "records.parquet", rows, records.SCHEMA)


def slow_differences(first: Path, second: Path) -> list[dict]:
    """The same, written a second time: rows, dictionaries and one bootstrap after the other."""
    scores = []
    for folder in (first, second):
        read = pq.read_table(folder / "records.parquet").to_pylist()
        scores.append({(row["explainer"], row["metric"], row["image_id"]): row["value"] for row in read})
    found = []
    for cell in read_json(first / "summary.json")["cells"]:
        here = {key[2]: value for key, value in scores[0].items() if key[:2] == (cell["explainer"], cell["metric"])}
        there = {key[2]: value for key, value in scores[1].items() if key[:2] == (cell["explainer"], cell["metric"])}
        both = [i for i in here if here[i] is not None and there.get(i) is not None]
        gaps = [there[i] - here[i] for i in both]
        _, low, high = bootstrap(np.array(gaps))
        up, down = sum(gap > 0 for gap in gaps) / len(gaps), sum(gap < 0 for gap in gaps) / len(gaps)
        most = sorted((i for i in both if there[i] != here[i]), key=lambda i: -abs(there[i] - here[i]))[:5]
        found.append(
            {
                "explainer": cell["explainer"], "metric": cell["metric"], "n": len(both),
                "mean": sum(gaps) / len(gaps), "low": low, "high": high,
                "better": up if cell["higher_is_better"] else down, "worse": down if cell["higher_is_better"] else up,
                "equal": sum(gap == 0 for gap in gaps) / len(gaps),
                "largest": [(i, here[i], there[i]) for i in most],
            }
        )  # fmt: skip
    return found


def test_differences_agree_with_a_second_writing(copied, other):
    def turn(summary):
        for cell in summary["cells"]:
            cell["higher_is_better"] = cell["metric"] != "saliency_insertion"

    change_summary(copied, turn)
    found = {(one["explainer"], one["metric"]): one for one in differences(copied, other)}
    wanted = slow_differences(copied, other)
    assert len(found) == len(wanted) == len(METHODS) * len(METRICS)
    for one in wanted:
        mine = found[one["explainer"], one["metric"]]
        for key in ("n", "mean", "low", "high", "better", "equal", "worse"):
            assert mine[key] == pytest.approx(one[key], abs=1e-12), key
        assert [(entry["image_id"], entry["first"], entry["second"]) for entry in mine["largest"]] == one["largest"]
    json.dumps(list(found.values()), allow_nan=False)


def test_differences_by_hand():
    """Lower is better: of -0.2, 0 and +0.1 the first is better, the last worse; one more sample is in one run alone."""
    first, second = (
        RunData(
            Path(name),
            [_result(_key("rise", "saliency_miou", seed, higher_is_better=False), len(ids), 0.5)],
            ids,
            {identity("rise", "saliency_miou", seed): np.array(values)},
            {"dataset": {"id": "x", "fingerprint": "f", "split": "test"}},
        )
        for name, seed, ids, values in (
            ("one", 0, ["a", "b", "c", "d"], [0.5, 0.3, 0.1, 0.9]), ("two", 1, ["c", "b", "a"], [0.2, 0.3, 0.3])
        )
    )  # fmt: skip
    (found,) = differences(first, second)
    assert (found["n"], found["unpaired"]) == (3, 1)
    assert found["mean"] == pytest.approx(-0.1 / 3)
    assert [found[key] for key in ("better", "equal", "worse")] == pytest.approx([1 / 3] * 3)
    assert [entry["image_id"] for entry in found["largest"]] == ["a", "c"]
    (back,) = differences(second, first)
    assert back["mean"] == pytest.approx(0.1 / 3)


def test_explainers_that_follow_the_seed_of_the_run_are_paired(copied, other, tmp_path):
    def seeded(summary):
        for cell in summary["cells"]:
            if cell["explainer"] == "rise":
                cell.update(
                    explainer_options={"masks": 10, "seed": 1},
                    explainer_text="rise:masks=10,seed=1",
                    explainer_id=identity("s"),
                )

    def unseeded(summary):
        for cell in summary["cells"]:
            if cell["explainer"] == "rise":
                cell.update(explainer_options={"masks": 10, "seed": 0}, explainer_text="rise:masks=10")

    change_summary(copied, unseeded)
    second = Path(shutil.copytree(other, tmp_path / "other"))
    change_summary(second, seeded)
    found = differences(copied, second)
    assert len(found) == len(METHODS) * len(METRICS)
    assert {one["explainer"] for one in found} == set(METHODS) - {"rise"} | {"rise:masks=10"}


def test_what_cannot_be_compared_is_said(folder, copied, other, tmp_path):
    change_summary(copied, lambda summary: summary["dataset"].update(fingerprint="f2", id="other-xai"))
    with pytest.raises(UserError, match="different datasets"):
        differences(copied, other)
    page = report([copied, other], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Not compared: they are over different datasets (other-xai with fingerprint f2 and shapes-xai" in page
    assert "best run" not in page[page.index("<body>") :]
    with pytest.raises(UserError, match="no-such"):
        differences(folder, tmp_path / "no-such")


def test_differences_are_on_the_page(folder, other, tmp_path):
    page = report([folder, other], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Every other run is compared with run 1" in page
    assert "Seed: 0 → 1." in page
    assert re.search("Of 15 pairs .* run 2 scores significantly better than run 1 on", page)
    for one in differences(folder, other):
        assert f'<span class="value">{one["mean"]:+.3f}</span>'.replace("-", "−") in page
        assert f"[{one['low']:+.3f}, {one['high']:+.3f}]".replace("-", "−") in page
        for entry in one["largest"]:
            assert f"<td>{entry['image_id']}</td><td>{entry['first']:.3f}</td><td>{entry['second']:.3f}</td>" in page
    assert "-0." not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL)


def test_runs_with_the_same_cells_are_shown_once(folder, copied, other, tmp_path):
    change_records(copied, lambda rows: rows[0].update(value=rows[0]["value"] * (1 + 5e-6)))
    comparison = compare_runs([read_run(folder), read_run(other), read_run(copied)])
    assert [group.name for group in comparison.merged] == ["Runs 1 + 3", "Run 2"]
    assert comparison.conflicts == []
    page = report([folder, other, copied], tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search("Runs 1 \\+ 3 agree .* shown as one", page)
    assert page.count("Saliency maps of <em>") == 2
    assert 'role="note"' not in page
    alone = report([folder, copied], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Scores by run</h2>" not in alone
    assert alone.count("Saliency maps of <em>") == 1
    assert Structure(alone).open == []


def test_a_run_grown_from_another_gives_its_cells(tmp_path):
    """Fewer explainers over all samples, and all explainers over the first ones: each cell from where it has most."""
    small = make_run(tmp_path / "small", samples=40, methods={"gradcam": 0.5}, pictures=False)
    large = make_run(tmp_path / "large", samples=20, pictures=False)
    read = pq.read_table(small / "records.parquet").to_pylist()
    known = {(row["cell_id"], row["image_id"]): row["value"] for row in read}
    change_records(
        large,
        lambda rows: [row.update(value=known.get((row["cell_id"], row["image_id"]), row["value"])) for row in rows],
    )
    runs = [read_run(large), read_run(small)]
    assert conflicts(*runs) == []
    (group,) = compare_runs(runs).merged
    assert group.members == [1, 2]
    data = group.data
    assert len({cell.cell_id for cell in data.cells}) == len(data.cells) == len(METHODS) * len(METRICS)
    for cell in data.cells:
        assert cell.n == np.isfinite(data.values[cell.cell_id]).sum()
        wide = 40 if cell.explainer == "gradcam" else 20
        assert cell.n == (wide if cell.metric == "saliency_insertion" else -(-wide * 2 // 3))
        assert data.explained[cell.cell_id] == wide
    assert merge_runs(runs[:1]) is runs[0]
    page = report([large, small], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Run 2: folder small, 3 cells over 40 samples" in page


def test_equal_ids_with_other_values_are_a_conflict(folder, copied, tmp_path):
    def change(rows):
        rows[0].update(value=rows[0]["value"] + 0.1)
        rows[1].update(value=rows[1]["value"] * (1 + 2e-5))

    change_records(copied, change)
    (found,) = conflicts(read_run(folder), read_run(copied))
    assert (found.explainer, found.metric) == ("gradcam", "saliency_miou")
    assert (found.samples, found.of) == (2, 40)
    assert found.largest.image_id == "sample-00000"
    assert found.largest.second == pytest.approx(found.largest.first + 0.1)
    page = report([folder, copied], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Conflict:" in page
    assert page.count('<span class="tag">conflict</span>') == 2
    assert page.count("same as run 1") == len(METHODS) * len(METRICS) - 1
    assert "14 cells are the same" in page
    several = compare_runs([read_run(folder), read_run(folder), read_run(copied)])
    assert [conflict.samples for conflict in several.conflicts] == [2]


def test_score_against_gap_and_other_mean_are_conflicts(folder, copied):
    def lose(rows):
        rows[0].update(value=None, reason="broken")

    change_records(copied, lose)
    change_summary(copied, lambda summary: summary["cells"][0].update(n=summary["cells"][0]["n"] - 1))
    change_summary(copied, lambda summary: summary["cells"][1].update(value=0.9))
    gap, mean = conflicts(read_run(folder), read_run(copied))
    assert gap.largest.second is None
    assert (mean.samples, mean.largest) == (0, None)


def test_faults_are_told_near_the_scores(copied):
    def faulty(summary):
        summary.update(faults={"cannot be read: <torn>": 6, "rise raised OverflowError": 1}, halved_chunks=3)

    change_summary(copied, faulty)
    timings = read_json(copied / "timings.json")
    write_json(copied / "timings.json", timings | {"waiting_for_data": 0.5})
    page = page_of(copied)
    notice = page[page.index('role="note"') : page.index("Classifier accuracy")]
    assert "7 records have no score because something went wrong" in notice
    assert "6 records: cannot be read: &lt;torn&gt;" in notice
    assert "1 record: rise raised OverflowError" in notice
    assert "<dt>Batches halved to fit into memory</dt><dd>3</dd>" in page
    assert "<dt>Of which waiting for data</dt><dd>0.5 s, 4.0\N{NO-BREAK SPACE}%</dd>" in page
    assert Structure(page).open == []


def test_a_run_without_faults_has_no_notice(folder):
    assert 'role="note"' not in page_of(folder)


def test_samples_that_could_not_be_read(copied):
    """Their records and predictions are empty, even where a picture was kept."""
    lost = str(read_run(copied).examples["ids"][0])
    gone = [row["cell_id"] for row in pq.read_table(copied / "records.parquet").to_pylist()
            if row["image_id"] == lost and row["value"] is not None]  # fmt: skip

    def empty(rows):
        for row in rows:
            if row["image_id"] == lost:
                row.update(prediction=None, target=None, value=None, reason="cannot be read")

    change_records(copied, empty)
    rows = pq.read_table(copied / "predictions.parquet").to_pylist()
    for row in rows:
        if row["image_id"] == lost:
            row.update(dict.fromkeys(("prediction", "confidence", "correct", "mask_share", "logits")))
    records.write(copied / "predictions.parquet", rows, records.PREDICTIONS)
    change_summary(
        copied,
        lambda summary: [cell.update(n=cell["n"] - 1) for cell in summary["cells"] if cell["cell_id"] in gone],
    )
    page = page_of(copied)
    assert "prediction <b>–</b> (–); maps explain <b>–</b>" in page
    assert "None" not in page


def test_pictures_of_noise_are_kept():
    """Noise does not compress: its file is larger than what an encoder reckons with."""
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3)).astype(np.uint8)
    assert len(picture(Image.fromarray(noise))) > 50_000


@pytest.mark.parametrize("name", ["summary.json", "records.parquet", "predictions.parquet"])
def test_missing_file_is_named(copied, name):
    (copied / name).unlink()
    with pytest.raises(UserError, match=re.escape(str(copied))) as error:
        report([copied])
    assert name in str(error.value)


@pytest.mark.parametrize(
    "name", ["summary.json", "records.parquet", "predictions.parquet", "examples.npz", "timings.json"]
)
@pytest.mark.parametrize("share", [0, 0.5, 0.97])
def test_torn_file_is_named(copied, name, share):
    path = copied / name
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(UserError, match=re.escape(str(path))):
        report([copied])
    assert not (copied / "report.html").exists()


def test_foreign_folders(copied, tmp_path):
    with pytest.raises(UserError, match=r"no-such.*summary\.json"):
        report([tmp_path / "no-such"])
    with pytest.raises(UserError, match="at least one"):
        report([])
    write_json(tmp_path / "foreign" / "summary.json", {"loss": 1})
    with pytest.raises(UserError, match="not the summary of a run"):
        report([tmp_path / "foreign"])
    change_summary(copied, lambda summary: summary.update(format=99))
    with pytest.raises(UserError, match=r"summary\.json .*format 99.*--out"):
        report([copied])
    change_summary(copied, lambda summary: (summary.update(format=2), summary["cells"][0].update(n=1)))
    with pytest.raises(UserError, match=r"records\.parquet .* 27 scores of gradcam by saliency_miou"):
        report([copied])


def test_place_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out"):
        report([folder], tmp_path / "file" / "page.html")


def test_command(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    shown = capsys.readouterr().out
    assert table(read_run(folder).cells, 40) in shown
    assert f"report: {page}" in shown
    assert main(["report", str(folder), "--out", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(page)
    assert told["runs"][str(folder)]["dataset"]["id"] == "shapes-xai"
    other = make_run(tmp_path / "other", seed=1, pictures=False)
    both = ["report", str(folder), str(other), "--out", str(page)]
    assert main(both) == 0
    assert f"{other} minus {folder}: " in capsys.readouterr().out
    assert main([*both, "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["merged"] == [[str(folder)], [str(other)]]
    assert told["conflicts"] == []
    (one,) = told["differences"]
    assert (one["first"], one["second"], one["why_not"]) == ([str(folder)], [str(other)], None)
    assert one["pairs"] == differences(folder, other)
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("saliency-bench: error:")
