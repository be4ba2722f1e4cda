"""Tests of the report of a small run that is generated with functions of the core."""

import json
import math
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import said
from html_structure import Structure
from PIL import Image
from refusals import refused
from scipy import stats
from scored_cells import run_in_memory

from saliency_bench.cli import main
from saliency_bench.compute.examples import choose, save_arrays
from saliency_bench.read import records
from saliency_bench.read.analysis.comparison import compare_runs, merge_runs
from saliency_bench.read.analysis.correlations import metric_agreement
from saliency_bench.read.analysis.differences import conflicts, differences, same
from saliency_bench.read.cell import CellKey, CellResult, read_cells
from saliency_bench.read.finished_run import Run, load_run, read_run
from saliency_bench.read.identity import Identity
from saliency_bench.read.manifest import Manifest, read_manifest
from saliency_bench.read.report.comparison_page import difference_verdict, run_names
from saliency_bench.read.report.report_page import report
from saliency_bench.read.report.sample_pictures import outline, picture
from saliency_bench.read.report.templates import HERE
from saliency_bench.read.report.words import signed
from saliency_bench.read.statistics.ranking import compare, ranked
from saliency_bench.read.summary import summarise, table
from saliency_bench.score_notes import FLAT
from saliency_bench.spec import RunSpec
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.overlays import heat_map, overlay
from saliency_bench.utils.provenance import provenance

METHODS = {"gradcam": 0.55, "rise": 0.45, "integrated_gradients": 0.3, "centre": 0.25, "random": 0.22}
METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion")
SMALL = {"samples": 12, "methods": {"gradcam": 0.5}, "metrics": METRICS[:1]}  # a run with a small page
LABELS = ("circle", "square")


def make_run(folder: Path, samples=90, methods=METHODS, metrics=METRICS, side=24, ids=None, seed=0, pictures=True,
             no_masks=False) -> Path:  # fmt: skip
    """Write a finished run. A third of the samples has no mask; the first map of each explainer is flat."""
    rng = np.random.default_rng(seed)
    ids = ids or [f"sample-{number:05d}" for number in range(samples)]
    predicted = [_prediction(rng, number, image_id, no_masks) for number, image_id in enumerate(ids)]
    keys = [_key(name, metric, seed) for name in methods for metric in metrics]
    summary = _write(folder, keys, predicted, [_column(rng, key, predicted, methods[key.explainer]) for key in keys],
                     seed)  # fmt: skip
    write_json(folder / "timings.json", {"started": 1.0, "seconds": 12.5,
                                         "explainers": dict.fromkeys(map(hash_of, methods), 2.25)})  # fmt: skip
    if pictures:
        _pictures(rng, folder, choose(folder, read_cells(summary["cells"])), list(methods), side)
    return folder


def _write(folder: Path, keys: list, predicted: list, tables: list, seed: int, classifier="d" * 16, digest="d1"):
    """Write the files of a run with these cells, predictions and tables of records, and return its summary."""
    records.write(folder / "predictions.parquet", predicted, records.PREDICTIONS)
    records.write(folder / "records.parquet", pa.concat_tables(tables), records.SCHEMA)
    explainers, metrics = (tuple(dict.fromkeys(getattr(key, kind) for key in keys))
                           for kind in ("explainer_text", "metric_text"))  # fmt: skip
    spec = RunSpec(dataset="shapes-xai", model="m", explainers=explainers, metrics=metrics, out=str(folder))
    identity = Identity(fingerprint="f" * 16, split="test", classifier=classifier, geometry={}, layer=None,
                        target="label", labels=[], precision="fp32", seed=seed)  # fmt: skip
    Manifest(spec=spec, identity=identity, cells={key.cell_id: key for key in keys}).write(folder)
    return summarise(folder, _facts(len(predicted), seed, digest))


def _facts(samples: int, seed: int, digest: str = "d1") -> dict:
    return {
        "dataset": {"id": "shapes-xai", "title": None, "repo": None, "revision": None, "split": "test",
                    "fingerprint": "f1", "samples": samples, "used": samples, "classes": len(LABELS)},
        "model": {"id": "runs/models/small-resnet", "repo": None, "revision": None, "digest": digest,
                  "geometry": "as it is", "classes": None, "activation": "softmax", "activation_assumed": False,
                  "no_accuracy": None},
        "other_model": None, "only": None, "target": "label", "groups": None, "precision": "fp32", "seed": seed,
        "batch_size": 16, "provenance": provenance(torch.device("cpu")),
    }  # fmt: skip


def part_of(folder: Path, out: Path, methods: tuple[str, ...], samples: int | None = None) -> Path:
    """Write a run that has only some of the explainers, over the first samples."""
    manifest = read_manifest(folder)
    kept = {key: cell for key, cell in manifest.cells.items() if cell.explainer in methods}
    manifest.model_copy(update={"cells": kept}).write(out)
    predicted = pq.read_table(folder / "predictions.parquet").to_pylist()[:samples]
    ids = {row["image_id"] for row in predicted}
    rows = pq.read_table(folder / "records.parquet").to_pylist()
    records.write(out / "predictions.parquet", predicted, records.PREDICTIONS)
    own = [row for row in rows if row["cell_id"] in kept and row["image_id"] in ids]
    records.write(out / "records.parquet", own, records.SCHEMA)
    summarise(out, _facts(len(predicted), manifest.identity.seed))
    return out


def _prediction(rng: np.random.Generator, number: int, image_id: str, no_masks: bool) -> dict:
    masked, right = number % 3 != 2 and not no_masks, bool(rng.random() < 0.9)
    return {
        "image_id": image_id, "label": number % 2, "prediction": number % 2 if right else 1 - number % 2,
        "confidence": 0.9, "target_confidence": 0.9, "correct": right, "mask_share": 0.1 if masked else None,
        "left_out": None if masked else "no mask", "logits": [0.0, 1.0],
    }  # fmt: skip


def _key(explainer: str, metric: str, seed: int, higher_is_better: bool = True, limits: tuple = (0.0, 1.0)) -> CellKey:
    return CellKey(
        cell_id=hash_of(explainer, metric, seed), explainer_id=hash_of(explainer), explainer_options={},
        explainer=explainer.partition(":")[0], baseline=explainer in ("random", "centre"), explainer_text=explainer,
        explainer_version=1, metric=metric.partition(":")[0], metric_options={}, metric_text=metric, metric_version=1,
        higher_is_better=higher_is_better, range=limits,
    )  # fmt: skip


def _result(key: CellKey, n: int, value: float | None = None, low: float | None = None, high: float | None = None):
    return CellResult(
        **dict(key), value=value, low=low, high=high, n=n, clusters=n, rank=(1, 1), unranked=None,
        scored=1.0, median=None, left_out={}, flat=0, marked={}, forward_passes={"explain": n, "metric": 0},
    )  # fmt: skip


def _column(rng: np.random.Generator, key: CellKey, predicted: list[dict], level: float) -> pa.Table:
    needs_mask = key.metric != "saliency_insertion"
    scores = np.clip(rng.normal(level, 0.2, len(predicted)), 0, 1)
    if key.metric == "saliency_pointing_game":
        scores = (scores > 0.4).astype(float)
    common = {"explainer_options": "{}", "metric_options": "{}", "cell_id": key.cell_id, "explainer": key.explainer,
              "metric": key.metric, "dataset": "shapes-xai", "split": "test", "model": "small-resnet"}  # fmt: skip
    rows = []
    for index, (row, score) in enumerate(zip(predicted, scores, strict=True)):
        reason = row["left_out"] if needs_mask else None
        names = {"label": LABELS[row["label"]], "prediction": LABELS[row["prediction"]], "target": LABELS[row["label"]]}
        value = {"value": None if reason else float(score), "reason": reason or (FLAT if index == 0 else None)}
        rows.append(common | {"image_id": row["image_id"]} | names | value)
    return pa.Table.from_pylist(rows, schema=records.SCHEMA)


def _pictures(rng: np.random.Generator, folder: Path, chosen: list, methods: list[str], side: int) -> None:
    """Return images of a disc, which is the mask, and for each explainer maps with a blob at the disc."""
    count = len(chosen)
    y, x = np.mgrid[:side, :side] / side
    centres = rng.uniform(0.3, 0.7, (count, 2, 1, 1))
    distance = np.hypot(y - centres[:, 0], x - centres[:, 1])
    images = np.clip(120 + 80 * np.sin(12 * x) + 60 * (distance < 0.2) * np.sign(y - x), 0, 255)
    blobs = {name: np.exp(-((distance * rng.uniform(1, 4)) ** 2)) for name in methods}
    save_arrays(folder / "examples.npz", ids=np.array([image_id for image_id, _ in chosen]),
                kinds=np.array([kind for _, kind in chosen]),
                images=np.stack([images, images * 0.8, images * 0.6], axis=-1).astype(np.uint8), masks=distance < 0.2,
                **{f"maps/{hash_of(name)}": np.round(255 * blob).astype(np.uint8)
                   for name, blob in blobs.items()})  # fmt: skip


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


def change_cells(folder: Path, **changes: dict) -> None:
    """Change fields of all cells of the given explainers or metrics."""
    change_summary(folder, lambda summary: [
        cell.update(changes[name]) for cell in summary["cells"] for name in (cell["explainer"], cell["metric"])
        if name in changes])  # fmt: skip


def test_page_is_self_contained_and_well_formed(folder, page, tmp_path):
    assert report(folder, tmp_path / "again.html").read_text(encoding="utf-8") == page
    structure = Structure(page)
    assert structure.open == []
    assert all(load.startswith(("#", "data:image/")) for load in structure.loads)
    assert "url(" not in page
    assert "@import" not in page
    assert not {"link", "iframe", "object"} & set(structure.tags)
    assert (structure.tags.count("script"), len(structure.ids)) == (1, len(set(structure.ids)))
    assert {load[1:] for load in structure.loads if load.startswith("#")} <= set(structure.ids)
    assert len(structure.pictures) == 12 * (1 + len(METHODS))
    assert all(picture["alt"] for picture in structure.pictures)


def test_page_shows_every_value_interval_and_reason(folder, page):
    summary = read_json(folder / "summary.json")
    assert len(summary["cells"]) == len(METHODS) * len(METRICS)
    for cell in summary["cells"]:
        interval = f"[{cell['low']:.3f}, {cell['high']:.3f}]"
        low, high = cell["rank"]
        rank = f' <span class="interval">#{low}{f"-{high}" if low < high else ""}</span>'
        assert f'<span class="value">{cell["value"]:.3f}</span> <span class="interval">{interval}</span>{rank}' in page
        assert cell["cell_id"] in page
    assert {cell["rank"][1] - cell["rank"][0] for cell in summary["cells"]} >= {0, 1}
    assert "saliency_miou: n = 60; left out: 30 × no mask" in page
    assert "saliency_insertion: n = 90, none left out" in page
    assert "scored as zeros: gradcam 1, rise 1" in page
    assert "60 of 90" in page
    accuracy = summary["model"]["accuracy"]
    assert f"{100 * accuracy['value']:.1f}\N{NO-BREAK SPACE}%" in page
    assert f"[{100 * accuracy['low']:.1f}, {100 * accuracy['high']:.1f}]\N{NO-BREAK SPACE}%" in page
    assert summary["command"].startswith("saliency-bench run --dataset shapes-xai --model m --explainers gradcam rise")
    assert summary["command"] in page
    assert "<em>small-resnet</em> on <em>shapes-xai</em>" in page


def test_page_escapes_hostile_names(tmp_path):
    hostile = "<script>alert(1)</script>\u202e\"'&"  # it also contains a character that reverses the text direction
    ids = [f"{hostile}{number}" for number in range(12)]
    folder = make_run(tmp_path / "run", **SMALL, ids=ids)
    change_summary(folder, lambda summary: summary["dataset"].update(id=hostile))
    page = page_of(folder)
    assert page.count("<script") == 1  # only the script of the page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e&#34;&#39;&amp;0" in page
    assert "\u202e" not in page
    assert Structure(page).open == []


def test_page_shows_what_a_small_or_empty_run_contains(tmp_path):
    folder = make_run(tmp_path / "run", **SMALL | {"samples": 9})  # an interval needs ten samples
    page, cell = page_of(folder), read_json(folder / "summary.json")["cells"][0]
    assert cell["low"] is None
    assert f'<span class="value">{cell["value"]:.3f}</span> <span class="interval"></span>' in page
    empty = make_run(tmp_path / "empty", ids=["a", "b", "c"], no_masks=True, pictures=False)
    (empty / "timings.json").unlink()
    page = page_of(empty)
    assert read_json(empty / "summary.json")["cells"][0]["value"] is None
    assert '<span class="value">–</span>' in page
    assert "nan" not in re.sub(r"base64,[^\"]*", "", page).lower().replace("provenance", "")
    assert "None" not in page
    assert "Samples</h2>" not in page
    assert "<img" not in page
    assert "Provenance</h2>" in page


def test_metric_versions_have_separate_columns(copied):
    change_cells(copied, saliency_insertion={"metric_text": "saliency_miou", "metric_version": 2})
    run = read_run(copied)
    names = ["saliency_miou (version 1)", "saliency_pointing_game", "saliency_miou (version 2)"]
    assert [column.name for column in run.table.columns] == names
    assert len(run.table.rows) == len(METHODS)


@pytest.mark.slow
def test_page_names_class_groups_once(folder, copied, tmp_path):
    groups = {"name": "shapes", "identity": "0123456789abcdef"}
    change_summary(copied, lambda summary: summary.update(groups=groups))
    second = Path(shutil.copytree(copied, tmp_path / "second"))
    page = report([copied, second], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "groups of classes shapes, digest 01234567" in page
    page = report([copied, folder], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<td>shapes, digest 01234567</td><td>none</td>" in page


def test_metric_agreement_matches_hand_computation():
    """Orders 1 2 3 and 3 2 1 correlate by -1; orders 1 2 3 and 1 3 2 by 1 - 6 * (1 + 1) / 24 = 0.5."""
    cells = [_result(_key(name, metric, 0), 2) for name in "abc" for metric in METRICS[:2]]
    scores = {
        ("a", METRICS[0]): [1, 1], ("b", METRICS[0]): [2, 2], ("c", METRICS[0]): [3, 3],
        ("a", METRICS[1]): [3, 1], ("b", METRICS[1]): [2, 3], ("c", METRICS[1]): [1, 2],
    }  # fmt: skip
    values = {cell.cell_id: np.array(scores[cell.explainer, cell.metric], float) for cell in cells}
    run = run_in_memory(cells, ["x", "y"], values)
    result = metric_agreement(run.table, run.scores)
    assert result is not None
    assert result["table"][0][1] == (pytest.approx(-0.25), 2)
    without = run_in_memory(cells[:-1], ["x", "y"], values)
    assert metric_agreement(without.table, without.scores) is None, "only two explainers have both metrics"


def test_outline_is_the_border_of_the_mask():
    mask = np.zeros((4, 5), bool)
    mask[1:3, 1:4] = True
    assert outline(mask) == "M1 1h3M1 3h3M1 1v2M4 1v2"
    assert outline(np.zeros((4, 5), bool)) == ""
    assert outline(np.ones((1, 1), bool)) == "M0 0h1M0 1h1M0 0v1M1 0v1"


@pytest.mark.slow
def test_page_shows_several_runs_side_by_side(folder, tmp_path):
    other = make_run(tmp_path / "other", seed=1)
    refused("--out", report, [folder, other])
    page = report([folder, other], tmp_path).read_text(encoding="utf-8")
    structure = Structure(page)
    assert (structure.open, len(structure.ids)) == ([], len(set(structure.ids)))
    assert f"{other.name} against {folder.name}" in page
    before = page[: page.index('id="run-1"')]
    for run in (folder, other):
        summary = read_json(run / "summary.json")
        for cell in summary["cells"]:
            interval = re.escape(f'<span class="interval">[{cell["low"]:.3f}, {cell["high"]:.3f}]</span>')
            assert re.search(rf'>{cell["value"]:.3f}</span> {interval}\s*<span class="interval">n = ', before)
        assert f"{100 * summary['model']['accuracy']['value']:.1f}\N{NO-BREAK SPACE}%" in before
    best = sum(cell["rank"][0] == 1 for run in (folder, other) for cell in read_json(run / "summary.json")["cells"])
    assert before.count('<span class="tag">best explainer</span>') == best >= 2 * len(METRICS)
    assert "best run" not in before
    assert "conflict" not in before.lower()


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """Create another run over the same samples, with another model and seed. Two explainers differ between the runs."""
    return make_other_run(tmp_path_factory.mktemp("other"), methods=METHODS | {"gradcam": 0.8, "rise": 0.2})


def make_other_run(folder: Path, **options) -> Path:
    make_run(folder, seed=1, pictures=False, **options)
    change_summary(folder, lambda summary: (summary.update(seed=1), summary["model"].update(digest="d2")))
    return folder


def change_records(folder: Path, change) -> None:
    """Apply `change` to the rows of the records, and update the means in the summary."""
    rows = pq.read_table(folder / "records.parquet").to_pylist()
    change(rows)
    records.write(folder / "records.parquet", rows, records.SCHEMA)

    def follow(summary):
        for cell in summary["cells"]:
            values = [row["value"] for row in rows if row["cell_id"] == cell["cell_id"] and row["value"] is not None]
            if values and cell["value"] is not None:
                cell["value"] = float(np.mean(values))

    change_summary(folder, follow)


def slow_differences(first: Path, second: Path) -> list[dict]:
    """Compute the differences, except for the test, by slow code with rows, dictionaries and SciPy."""
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
        squares = [(gap - sum(gaps) / len(gaps)) ** 2 for gap in gaps]
        freedom = min(len(gaps) - 1, 2 / (sum(s**2 for s in squares) / sum(squares) ** 2 - 1 / len(gaps)))
        half = stats.t.ppf(0.975, freedom) * stats.sem(gaps)  # Satterthwaite's degrees of freedom
        low, high = sum(gaps) / len(gaps) - half, sum(gaps) / len(gaps) + half
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


def test_run_differences_match_literal_computation(copied, other):
    change_cells(copied, saliency_insertion={"higher_is_better": False})
    found = {(one["explainer"], one["metric"]): one for one in differences(read_run(copied), read_run(other))}
    wanted = slow_differences(copied, other)
    assert len(found) == len(wanted) == len(METHODS) * len(METRICS)
    for one in wanted:
        mine = found[one["explainer"], one["metric"]]
        for key in ("n", "mean", "low", "high", "better", "equal", "worse"):
            assert mine[key] == pytest.approx(one[key], abs=1e-12), key
        assert [(entry["image_id"], entry["first"], entry["second"]) for entry in mine["largest"]] == one["largest"]
    json.dumps(list(found.values()), allow_nan=False)


def rise_alone(seed: int, ids: list[str], values, higher=True) -> Run:
    return run_in_memory(
        [_result(_key("rise", "saliency_miou", seed, higher), len(ids), 0.5)], ids,
        {hash_of("rise", "saliency_miou", seed): np.array(values)},
        dataset={"id": "x", "fingerprint": "f", "split": "test"},
    )  # fmt: skip


def test_run_differences_match_hand_computation():
    """The differences -0.2, 0 and +0.1 are better, equal and worse. One sample is in only one run."""
    first = rise_alone(0, ["a", "b", "c", "d"], [0.5, 0.3, 0.1, 0.9], higher=False)
    second = rise_alone(1, ["c", "b", "a"], [0.2, 0.3, 0.3], higher=False)
    (found,) = differences(first, second)
    assert (found["n"], found["unpaired"]) == (3, 1)
    assert found["mean"] == pytest.approx(-0.1 / 3)
    assert [found[key] for key in ("better", "equal", "worse")] == pytest.approx([1 / 3] * 3)
    assert [entry["image_id"] for entry in found["largest"]] == ["a", "c"]
    (back,) = differences(second, first)
    assert back["mean"] == pytest.approx(0.1 / 3)


def test_run_difference_p_value_agrees_with_interval():
    """Test leads of four sizes. A small lead is not significant, because 60 samples may have missed rare failures."""
    rng, verdicts = np.random.default_rng(0), set()
    names = [f"image {number}" for number in range(60)]
    for lead in (0.01, 0.03, 0.1, 0.3):
        runs = [rise_alone(seed, names, rng.normal(0.5 + level, 0.02, 60)) for seed, level in enumerate((0, lead))]
        (found,) = differences(*runs)
        assert (found["p"] < 0.05) == (found["low"] > 0)
        verdicts.add(found["p"] < 0.05)
    assert verdicts == {True, False}


@pytest.mark.parametrize("count", [49, 50])
def test_differences_and_ranks_need_50_samples(count):
    names, low = [f"image {number}" for number in range(count)], np.linspace(0.2, 0.4, count)
    (found,) = differences(rise_alone(0, names, low), rise_alone(1, names, low + 0.5))
    assert (found["p"] is not None) == (count >= 50)
    keys = [_key(name, "saliency_miou", 0) for name in ("rise", "lime")]
    scores = dict(zip([key.cell_id for key in keys], (low + 0.5, low), strict=True))
    contrasts, standings = compare(keys, scores, np.arange(count), 0)
    assert [contrast.p is not None for contrast in contrasts] == [count >= 50]
    assert [standing.rank for standing in standings.values()] == ([(1, 1), (2, 2)] if count >= 50 else [None, None])
    assert ranked(keys, scores, np.arange(count), 0, {}) == standings


def test_explainers_with_run_seed_are_paired_across_runs(copied, other, tmp_path):
    second = Path(shutil.copytree(other, tmp_path / "other"))
    change_cells(copied, rise={"explainer_options": {"masks": 10, "seed": 0}, "explainer_text": "rise:masks=10"})
    change_cells(second, rise={"explainer_options": {"masks": 10, "seed": 1}, "explainer_id": hash_of("s"),
                               "explainer_text": "rise:masks=10,seed=1"})  # fmt: skip
    found = differences(read_run(copied), read_run(second))
    assert len(found) == len(METHODS) * len(METRICS)
    assert {one["explainer"] for one in found} == set(METHODS) - {"rise"} | {"rise:masks=10"}


def test_incomparable_runs_are_reported(tmp_path):
    one, two = make_run(tmp_path / "one", **SMALL), make_other_run(tmp_path / "two", **SMALL)
    change_summary(one, lambda summary: summary["dataset"].update(fingerprint="f2", id="other-xai"))
    refused("different datasets", differences, read_run(one), read_run(two))
    page = report([one, two], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Not compared: they use different datasets (other-xai with fingerprint f2 and shapes-xai" in page
    assert "best run" not in page[page.index("<body>") :]
    refused("no-such", read_run(one).compare, tmp_path / "no-such")


def test_page_and_cards_show_run_differences(folder, other, tmp_path):
    page = report([folder, other], tmp_path / "page.html").read_text(encoding="utf-8")
    first, second = folder.name, other.name
    (compared,) = compare_runs([read_run(folder), read_run(other)]).differences
    assert f"Every other run is compared with {first}, the first run" in page
    assert "seed 0 → 1." in page
    before = page[: page.index('aria-labelledby="comparison"')]
    assert f"<h1>{second} against {first}</h1>" in before
    assert f"{second} is significantly better than {first} on 3 of 15 pairs of explainer and metric" in before
    assert "; worse on 3; no difference found on 9." in before
    unchanged = [pair for pair in compared.pairs if pair.explainer not in ("gradcam", "rise")]
    assert difference_verdict(first, second, unchanged) == (
        f"{second} against {first}: no difference found on 9 of 9 pairs of explainer and metric."
    )
    pairs = differences(read_run(folder), read_run(other))
    for one in pairs:
        assert f'<span class="value">{signed(one["mean"])}</span>' in page
        assert f"[{signed(one['low'])}, {signed(one['high'])}]" in page
        for entry in one["largest"]:
            assert f"<td>{entry['image_id']}</td><td>{entry['first']:.3f}</td><td>{entry['second']:.3f}</td>" in page
    assert "-0." not in re.sub(r"<(style|svg).*?</\1>", "", page, flags=re.DOTALL)
    cards = page[page.index('<ul class="cards">') : page.index("</ul>")].split("<li ")[1:]
    for metric, card in zip(METRICS, cards, strict=True):
        means = {pair["explainer"]: signed(pair["mean"]) for pair in pairs if pair["metric"] == metric}
        tags = re.findall(r'<b>(\w+)</b> <span class="tag (?:good|bad)">(better|worse)</span> (\S+)', card)
        assert tags == [("gradcam", "better", means["gradcam"]), ("rise", "worse", means["rise"])]


def test_nearly_constant_run_differences_do_not_rule_out_rare_failures(tmp_path):
    settings = SMALL | {"samples": 90}
    one, two = make_run(tmp_path / "one", **settings), make_other_run(tmp_path / "two", **settings)
    values = {(row["explainer"], row["metric"], row["image_id"]): row["value"] for row in read_run(one).records()}

    def shrunk(rows):
        for row in rows:
            value = values[row["explainer"], row["metric"], row["image_id"]]
            row["value"] = None if value is None else 0.99 * value

    change_records(two, shrunk)
    widened = {(pair["explainer"], pair["metric"]) for pair in differences(read_run(one), read_run(two))
               if pair["rare_failures"]}  # fmt: skip
    assert widened == {("gradcam", "saliency_miou")}
    (compared,) = compare_runs([read_run(one), read_run(two)]).differences
    assert {(pair.explainer, pair.metric) for pair in compared.pairs if pair.rare} == widened
    page = report([one, two], tmp_path / "page.html").read_text(encoding="utf-8")
    comparison = page[page.index('aria-labelledby="comparison"') :]
    assert comparison.count("rare failures possible</span>") >= len(widened)


@pytest.mark.parametrize("first", [0.0, 1e-9, 3e-5, 0.7, -0.7, 800.0, -800.0, np.nan])
def test_scores_that_differ_by_rounding_are_equal(first):
    for second in (first, first * (1 + 9e-6), first * (1 + 11e-6), first + 2e-10, first + 2e-9, -first, np.nan):
        both_missing = np.isnan(first) and np.isnan(second)
        assert same(first, second) == (both_missing or math.isclose(first, second, rel_tol=1e-5, abs_tol=1e-9))


def test_runs_with_same_cells_are_merged(tmp_path):
    folder, copied = (make_run(tmp_path / name, **SMALL) for name in ("one", "two"))
    other = make_other_run(tmp_path / "other", **SMALL)
    change_records(copied, lambda rows: rows[0].update(value=rows[0]["value"] * (1 + 5e-6)))
    comparison = compare_runs([read_run(folder), read_run(other), read_run(copied)])
    assert list(map(comparison.numbers, comparison.merged)) == [[1, 3], [2]]
    assert comparison.conflicts == []
    page = report([folder, other, copied], tmp_path / "page.html").read_text(encoding="utf-8")
    both = " \\+ ".join(run_names([read_run(one) for one in (folder, other, copied)])[::2])
    assert re.search(f"{both} agree .* are merged", page)
    assert page.count('class="title"') == 2
    assert 'role="note"' not in page
    alone = report([folder, copied], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Scores by run</h2>" not in alone
    assert (alone.count('class="title"'), Structure(alone).open) == (1, [])


def test_merged_run_keeps_cells_with_most_samples(tmp_path):
    small = make_run(tmp_path / "small", samples=40, methods={"gradcam": 0.5}, pictures=False)
    large = make_run(tmp_path / "large", samples=20, pictures=False)
    read = pq.read_table(small / "records.parquet").to_pylist()
    known = {(row["cell_id"], row["image_id"]): row["value"] for row in read}
    change_records(
        large,
        lambda rows: [row.update(value=known.get((row["cell_id"], row["image_id"]), row["value"])) for row in rows],
    )
    runs = [read_run(large), read_run(small)]
    assert conflicts(*((run.cells, run.scores) for run in runs)) == []
    (merged,) = (comparison := compare_runs(runs)).merged
    assert comparison.numbers(merged) == [1, 2]
    assert len({cell.cell_id for cell in merged.cells}) == len(merged.cells) == len(METHODS) * len(METRICS)
    for cell in merged.cells:
        assert cell.n == np.isfinite(merged.scores.values[cell.cell_id]).sum()
        wide = 40 if cell.explainer == "gradcam" else 20
        assert cell.n == (wide if cell.metric == "saliency_insertion" else -(-wide * 2 // 3))
        assert merged.origins[cell.cell_id].samples_explained == wide
    assert merge_runs(runs[:1]) is runs[0]
    page = report([large, small], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "small: 3 cells over 40 samples" in page


def tables_of(page: str) -> list[str]:
    """Return the scores with their ranks, and the pairs of explainers, as the page displays them."""
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", page[page.index("Mean score of each") :], flags=re.DOTALL)
    return sorted(row for row in rows if 'class="value"' in row)


def test_page_shows_every_pair_of_explainers(folder, page):
    run, page = read_run(folder), page.replace("<wbr>", "")
    better = {cell.cell_id: cell.value for cell in run.cells}
    for pair in run.contrasts:
        seen = pair.seen_from(max(pair.cells, key=lambda cell_id: better[cell_id]))
        numbers = f'{seen.difference:+.3f}</span> <span class="interval">[{seen.low:+.3f}, {seen.high:+.3f}]'
        row = '{}</th><td>{}</td><td><span class="value">'.format(*seen.explainers) + numbers.replace("-", "−")
        word = "beats" if pair.p < 0.05 else "no difference found"
        assert re.search(re.escape(row) + f"</span></td><td>{word}</td><td>{pair.p:.4f}</td>", page), pair
    assert len(run.contrasts) == len(METRICS) * 10


@pytest.mark.slow
def test_merged_parts_match_the_whole_run(folder, tmp_path, capsys):
    one = part_of(folder, tmp_path / "one", ("gradcam", "rise"))
    two = part_of(folder, tmp_path / "two", ("integrated_gradients", "centre", "random"))
    (merged,) = compare_runs([read_run(one), read_run(two)]).merged
    whole = read_run(folder)
    assert {cell.cell_id: cell.rank for cell in merged.cells} == {c.cell_id: c.rank for c in whole.cells}
    alone = {cell.cell_id: cell.rank for run in (one, two) for cell in read_run(run).cells}
    assert any(alone[cell.cell_id] != cell.rank for cell in merged.cells)
    refused("merged runs have no common records.parquet", merged.records)
    of_pair = {tuple(pair["cells"]): pair for pair in merged.summary["comparisons"]}
    assert of_pair == {tuple(pair["cells"]): pair for pair in whole.summary["comparisons"]}
    page = report([one, two], tmp_path / "page.html").read_text(encoding="utf-8")
    assert (tables_of(page), page.count("<h1>")) == (tables_of(page_of(folder)), 1)
    shown = said(capsys, ["report", str(one), str(two), "--out", str(tmp_path / "page.html")])
    assert table(merged.cells, 90) in shown
    assert f"{one} + {two}" in shown
    told = json.loads(said(capsys, ["report", str(one), str(two), "--out", str(tmp_path / "page.html"), "--json"]))
    assert told["results"] == [json.loads(json.dumps(merged.summary))]


def test_merged_ranks_use_common_samples(folder, tmp_path, capsys):
    one = part_of(folder, tmp_path / "one", ("gradcam", "random"))
    two = part_of(folder, tmp_path / "two", ("rise",), samples=24)
    (merged,) = compare_runs([read_run(one), read_run(two)]).merged
    pairs = {tuple(pair["explainers"]): pair["n"] for pair in merged.summary["comparisons"]
             if pair["metric"] == "saliency_insertion"}  # fmt: skip
    assert pairs == {("gradcam", "random"): 90, ("gradcam", "rise"): 24, ("random", "rise"): 24}
    assert main(["report", str(one), str(two), "--out", str(tmp_path / "page.html")]) == 0
    assert f"{one} covers 90 samples, {two} covers 24" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "They cover 90 and 24 samples" in page


def test_runs_with_different_settings_are_not_merged(folder, tmp_path, capsys):
    one = part_of(folder, tmp_path / "one", ("gradcam", "random"))
    for name, change in (("target", "second"), ("layer", "layer1"), ("labels", [[1], [0]])):
        two = part_of(folder, tmp_path / name, ("gradcam", "rise"))
        manifest = read_manifest(two)
        manifest.model_copy(update={"identity": manifest.identity.model_copy(update={name: change})}).write(two)
        assert len(compare_runs([read_run(one), read_run(two)]).merged) == 2
    assert main(["report", str(one), str(two), "--out", str(tmp_path / "page.html")]) == 0
    assert f"{two} and {one} are not merged: different label map (" in capsys.readouterr().out


def test_run_listed_twice_is_read_once(tmp_path, capsys):
    folder, page = make_run(tmp_path / "run", **SMALL), tmp_path / "page.html"
    assert main(["report", str(folder), f"{folder}/", "--out", str(page)]) == 0
    shown = capsys.readouterr()
    assert f"{folder} is listed twice" in shown.err
    assert shown.out.count("\ngradcam  ") == 1
    assert "side by side" not in page.read_text(encoding="utf-8")
    report([folder, folder], page)
    assert "is listed twice" in capsys.readouterr().err


def test_different_values_under_one_id_are_a_conflict(folder, copied, tmp_path):
    change_records(copied, lambda rows: (rows[0].update(value=rows[0]["value"] + 0.1),
                                         rows[1].update(value=rows[1]["value"] * (1 + 2e-5))))  # fmt: skip
    (found,) = conflicts(*((run.cells, run.scores) for run in map(read_run, (folder, copied))))
    assert (found.explainer, found.metric) == ("gradcam", "saliency_miou")
    assert (found.samples, found.common) == (2, 90)
    assert found.largest.image_id == "sample-00000"
    assert found.largest.second == pytest.approx(found.largest.first + 0.1)
    page = report([folder, copied], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Conflict:" in page
    assert page.count('<span class="tag">conflict</span>') == 2
    assert page.count(f"same as {folder.name}") == len(METHODS) * len(METRICS) - 1
    assert "14 cells are equal" in page
    several = compare_runs([read_run(folder), read_run(folder), read_run(copied)])
    assert [conflict.samples for conflict in several.conflicts] == [2]


def test_missing_scores_and_different_means_are_conflicts(folder, copied):
    change_records(copied, lambda rows: rows[0].update(value=None, reason="broken"))
    change_summary(copied, lambda summary: summary["cells"][0].update(n=59, clusters=59))
    before, read = read_run(folder), read_run(copied)
    cells = [read.cells[0], read.cells[1].model_copy(update={"value": 0.9, "high": 0.9}), *read.cells[2:]]
    gap, mean = conflicts((before.cells, before.scores), (cells, read.scores))
    assert gap.largest.second is None
    assert (mean.samples, mean.largest) == (0, None)


def test_page_reports_faults_unknown_metrics_and_functions(copied):
    def faulty(summary):
        summary.update(faults={"cannot be read: <torn>": 6, "rise raised OverflowError": 1}, halved_chunks=3)
        summary["dataset"].update(samples=300)

    change_summary(copied, faulty)
    timings = read_json(copied / "timings.json")
    write_json(copied / "timings.json", timings | {"waiting_for_data": 0.5})
    change_cells(copied, saliency_insertion={"metric": "saliency_forgotten", "metric_text": "saliency_forgotten"},
                 rise={"explainer": "mine", "explainer_text": "mine", "explainer_version": "0123abcd"})  # fmt: skip
    page = page_of(copied)
    assert "This name is unknown to the version of saliency-bench" in page
    assert "A Python function" in page
    assert "images of the test split, drawn from 300" in page  # the dataset has no groups
    notice = page[page.index('role="note"') : page.index("Classifier accuracy")]
    assert "7 records have no score because of failures" in notice
    assert "6 records: cannot be read: &lt;torn&gt;" in notice
    assert "1 record: rise raised OverflowError" in notice
    assert "<dt>Batches halved to fit into memory</dt><dd>3</dd>" in page
    assert "<dt>Time waiting for data</dt><dd>0.5 s, 4.0\N{NO-BREAK SPACE}%</dd>" in page
    assert Structure(page).open == []


def test_unreadable_samples_are_shown_with_dashes(copied):
    """Test samples without records and predictions, even if an image was stored."""
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
    change_summary(copied, lambda summary: [cell.update(n=cell["n"] - 1, clusters=cell["clusters"] - 1)
                                            for cell in summary["cells"] if cell["cell_id"] in gone])  # fmt: skip
    page = page_of(copied)
    assert "prediction <b>–</b> (–); maps explain <b>–</b>" in page
    assert "None" not in page


def test_page_of_many_explainers_is_small(tmp_path):
    """Use noise, which compresses worst, for images and maps."""
    methods = {f"method_{number}": 0.3 for number in range(23)}
    folder = make_run(tmp_path, samples=60, methods=methods, metrics=METRICS[:1])
    stored, rng = dict(np.load(folder / "examples.npz")), np.random.default_rng(0)
    stored["images"] = rng.integers(0, 256, (len(stored["ids"]), 224, 224, 3)).astype(np.uint8)
    for name in methods:
        stored[f"maps/{hash_of(name)}"] = rng.integers(0, 256, (len(stored["ids"]), 56, 56)).astype(np.uint8)
    assert len(picture(Image.fromarray(stored["images"][0]))) > 50_000  # larger than the buffer that an encoder expects
    stored["masks"] = np.zeros((len(stored["ids"]), 224, 224), bool)
    save_arrays(folder / "examples.npz", **stored)
    page = page_of(folder)
    assert page.count("<img") == 12 * 24
    assert len(page) < 4_000_000


def test_map_overlay_on_page_matches_overlay_function():
    """Compose the grey image and the heat map as the page does, and compare with `overlay`."""
    rng = np.random.default_rng(0)
    image, values = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8), rng.integers(0, 256, (8, 8)).astype(np.uint8)
    values[0, :2] = 0, 255
    strength = float(re.search(r"\.frame \.map {[^}]*opacity: ([\d.]+);", (HERE / "report.css").read_text())[1])
    grey = np.round(image.mean(axis=2))[..., None]
    laid = (1 - strength) * grey + strength * np.asarray(heat_map(values).convert("RGB"))
    np.testing.assert_allclose(laid, np.asarray(overlay(image, values / 255)), atol=1.5)


FILES = ["summary.json", "records.parquet", "predictions.parquet", "examples.npz", "timings.json"]


@pytest.mark.parametrize(("name", "share"), [*product(FILES, (0, 0.97)), *product(FILES[:3], [None])])
def test_truncated_or_missing_file_is_rejected_by_name(copied, name, share):
    path = copied / name
    content = path.read_bytes()
    path.unlink()
    if share is None:
        assert name in refused(re.escape(str(copied)), report, [copied])
    else:
        path.write_bytes(content[: int(share * len(content))])
        refused(re.escape(str(path)), report, [copied])
    assert not (copied / "report.html").exists()


def test_foreign_and_inconsistent_folders_are_rejected(copied, tmp_path):
    refused(r"no-such.*summary\.json", report, [tmp_path / "no-such"])
    refused("at least one", report, [])
    write_json(tmp_path / "foreign" / "summary.json", {"loss": 1})
    refused(r"summary\.json has no format.*--out", report, [tmp_path / "foreign"])
    change_summary(copied, lambda summary: summary.update(format=99))
    refused(r"summary\.json .*format 99.*--out", report, [copied])
    change_summary(copied, lambda summary: (summary.update(format=3), summary["cells"][0].update(n=1, clusters=1)))
    refused(r"records\.parquet .* 60 scores of gradcam by saliency_miou", report, [copied])


def test_report_does_not_overwrite_other_files(tmp_path):
    folder, notes = make_run(tmp_path / "run", **SMALL), tmp_path / "notes.py"
    notes.write_text("mine")
    refused("--out", report, [folder], notes / "page.html")
    refused(r"exists and is not an HTML page; give a file name that ends in \.html as --out", report, [folder], notes)
    assert notes.read_text() == "mine"


@pytest.mark.slow
def test_report_command_prints_tables_and_json(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    shown = said(capsys, ["report", str(folder), "--out", str(page)])
    assert table(read_run(folder).cells, 90) in shown
    assert f"report: {page}" in shown
    told = json.loads(said(capsys, ["report", str(folder), "--out", str(page), "--json"]))
    assert (told["report"], told["runs"][str(folder)]["dataset"]["id"]) == (str(page), "shapes-xai")
    other = make_run(tmp_path / "other", seed=1, pictures=False)
    both = ["report", str(folder), str(other), "--out", str(page)]
    assert f"{other} minus {folder}: " in said(capsys, both)
    told = json.loads(said(capsys, [*both, "--json"]), parse_constant=pytest.fail)
    assert (told["merged"], told["conflicts"]) == ([[str(folder)], [str(other)]], [])
    (one,) = told["differences"]
    assert (one["first"], one["second"], one["why_not"]) == ([str(folder)], [str(other)], None)
    assert one["pairs"] == differences(read_run(folder), read_run(other))
    assert said(capsys, ["report", str(tmp_path / "nothing")], 2).startswith("saliency-bench: error:")


def test_by_correct_scores_match_records(tmp_path, capsys):
    """Compare with means computed by hand. A group without images has no value; images without a label are left out."""
    folder = make_run(tmp_path / "run", methods={"gradcam": 0.5, "random": 0.2}, pictures=False)
    predicted = pq.read_table(folder / "predictions.parquet").to_pylist()
    for row in predicted[::5]:
        row["correct"] = None
    records.write(folder / "predictions.parquet", predicted, records.PREDICTIONS)
    run, correct = load_run(folder), {row["image_id"]: row["correct"] for row in predicted}
    rows, frame = run.records().to_list(), run.by_correct()
    assert set(frame["images"]) == {"right", "wrong"}
    for (explainer, metric, images), row in frame.set_index(["explainer", "metric", "images"]).iterrows():
        values = [
            one["value"] for one in rows
            if (one["explainer"], one["metric"]) == (explainer, metric) and one["part"] is None
            and one["value"] is not None and correct[one["image_id"]] is (images == "right")
        ]  # fmt: skip
        assert row["n"] == len(values)
        assert row["value"] == pytest.approx(np.mean(values) if values else np.nan, nan_ok=True)
    assert "right" in said(capsys, ["report", str(folder), "--by-correct"])
    assert main(["report", str(folder), "--by-correct", "--json"]) == 0
    (rows,) = json.loads(capsys.readouterr().out)["by_correct"]
    assert [row["n"] for row in rows] == frame["n"].tolist()
