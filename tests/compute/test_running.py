"""Test complete runs of a small network with random weights: the written files, and the error messages."""

import errno
import html
import io
import itertools
import json
import os
import re
import resource
import threading
import time
from collections import Counter

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from commands import said
from filelock import FileLock
from PIL import Image
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.compute import writing
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.parts import PartFolder
from saliency_bench.read.statistics.intervals import interval
from saliency_bench.score_notes import HALVED, PEAKED, TIED
from saliency_bench.spec import PythonObject
from saliency_bench.utils.hashing import hash_of

EXPLAINERS = ["gradcam", "rise:masks=20", "random"]
METRICS = ["saliency_miou", "saliency_insertion:steps=4"]
CLASSES = list(registry.load("hub_builders", "shapes-xai").OBJECTS)


def go(out, shapes, resnet, **changes):
    settings = {"dataset": str(shapes), "model": str(resnet), "explainers": EXPLAINERS, "metrics": METRICS,
                "batch_size": 8, "limit": 20, "device": "cpu", "progress": False}  # fmt: skip
    return sb.run(out=out, **settings | changes)


@pytest.fixture(scope="module")
def done(tmp_path_factory, shapes, resnet):
    return go(tmp_path_factory.mktemp("runs") / "first", shapes, resnet)


@pytest.fixture
def start(shapes, resnet, tmp_path):
    """Return a function that starts a run in `tmp_path`, by default of a baseline and one metric."""
    usual = {"explainers": ["random"], "metrics": ["saliency_miou"], "limit": 8}
    return lambda name="run", **changes: go(tmp_path / name, shapes, resnet, **usual | changes)


def test_single_sample_has_value_but_no_interval(start):
    result = start(explainers=["centre", "random"], limit=1)
    for cell in result.summary["cells"]:
        assert [cell[name] for name in ("n", "low", "high", "rank")] == [1, None, None, None]
        assert cell["unranked"] == "too few to rank"
        assert f" {cell['value']:.3f}\n" in f"{result}\n"
    assert "Too few samples to rank explainers: 1 independent samples, but ranks need at least 50." in result.verdict
    assert json.loads(json.dumps(result.summary, allow_nan=False)) == result.summary


def rows_of(folder):
    return pq.read_table(folder / "records.parquet").to_pylist()


def test_summary_and_report_match_records(done):
    rows, text, page = rows_of(done.folder), str(done), done.report.read_text()
    assert len(done.summary["cells"]) == 6
    for cell in done.summary["cells"]:
        values = [row["value"] for row in rows if row["cell_id"] == cell["cell_id"]]
        own = interval(np.array(values), np.arange(20), tuple(cell["range"]))
        written = [cell[name] for name in own._fields[:5]]  # other settings are not stored
        assert written == pytest.approx(list(own[:5]), rel=1e-12)
        assert (cell["n"], cell["unranked"]) == (20, "too few to rank")
        assert f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]" in text
        assert f"{cell['value']:.3f}" in page
    predictions = pq.read_table(done.folder / "predictions.parquet").to_pylist()
    assert len(predictions) == 20
    assert done.summary["model"]["accuracy"]["value"] == np.mean([p["correct"] for p in predictions])
    assert done.summary["masks"]["usable"] == 20
    assert done.summary == json.loads((done.folder / "summary.json").read_text())
    assert "saliency-bench run --dataset" in done.summary["command"]
    passes = {cell["explainer"]: cell["forward_passes"]["explain"] for cell in done.summary["cells"]}
    assert passes == {"gradcam": 24, "rise": 20 * 24, "random": 0}  # three whole batches of 8


def test_adding_a_metric_keeps_existing_cells(start):
    first = start(explainers=["gradcam"], limit=4)
    old = rows_of(first.folder)
    part = next((first.folder / "scores").glob("000000000-*.parquet"))
    before = part.stat().st_mtime_ns
    second = start(explainers=["gradcam"], metrics=["saliency_pointing_game"], limit=4)
    assert part.stat().st_mtime_ns == before
    rows = rows_of(second.folder)
    assert len(rows) == 8
    assert {row["metric"] for row in rows} == {"saliency_miou", "saliency_pointing_game"}
    assert [row for row in rows if row["metric"] == "saliency_miou"] == old


def my_own(classifier, images, target):
    return images.mean(dim=1)


def flat(classifier, images, target):
    return torch.zeros(len(images), *images.shape[2:])


def dark(classifier, images, target):
    maps = -1 - images.mean(dim=1)
    first = images[:, 0, 0, 0]
    maps[first < first.median()] = 0
    maps[first == first.max(), :, :4] = 2
    return maps


@pytest.mark.slow
def test_unusual_scores_are_counted_and_marked(start):
    result = start(explainers=[dark, "centre"], metrics=["saliency_iosr", "saliency_pointing_game"])
    rows = [row for row in rows_of(result.folder) if (row["explainer"], row["metric"]) == ("dark", "saliency_iosr")]
    batch = "depends on its batch"  # by the median of the batch
    expected = {f"flat map; no salient area; {batch}": 3, f"no salient area; {batch}": 4, batch: 1}
    assert Counter(row["reason"] for row in rows) == expected
    assert {row["value"] for row in rows if row["reason"] != batch} == {0}
    cells = {(cell["explainer"], cell["metric"]): cell for cell in result.summary["cells"]}
    told = {key: (cell["n"], cell["flat"], cell["marked"], cell["left_out"]) for key, cell in cells.items()}
    assert told == {
        ("dark", "saliency_iosr"): (8, 3, {"no salient area": 7, batch: 8}, {}),
        ("dark", "saliency_pointing_game"): (8, 3, {batch: 8}, {}),
        ("centre", "saliency_iosr"): (8, 0, {}, {}),
        ("centre", "saliency_pointing_game"): (8, 0, {}, {}),
    }
    assert result.summary["faults"] == {}
    line = "saliency_iosr of dark: n = 8 (8 × depends on its batch, 7 × no salient area), none left out"
    assert line in result.report.read_text()


def nan(classifier, images, target):
    maps = images.mean(dim=1)
    maps[2, 0, 0] = float("nan")
    return maps


def failing(classifier, images, target):
    failing.calls = getattr(failing, "calls", 0) + (len(images) == 8)  # half of the first batch is passed again, once
    if len(images) == 8 and failing.calls % 2 == 0:
        raise ZeroDivisionError("by design")
    return images.mean(dim=1)


def coloured(classifier, images, target):
    return images


def test_invalid_maps_and_failed_batches_are_left_out(start):
    failing.calls = 0
    result = start(explainers=[nan, failing, "random"], metrics=METRICS, limit=16)
    cells = {(cell["explainer"], cell["metric"]): cell for cell in result.summary["cells"]}
    why_nan, why_raised = "the map holds NaN or infinite values", "the explainer raised ZeroDivisionError: by design"
    for metric in ("saliency_miou", "saliency_insertion"):
        assert (cells["nan", metric]["n"], cells["nan", metric]["left_out"]) == (14, {why_nan: 2})
        assert (cells["failing", metric]["n"], cells["failing", metric]["left_out"]) == (8, {why_raised: 8})
        assert (cells["random", metric]["n"], cells["random", metric]["left_out"]) == (16, {})
    assert result.summary["faults"] == {why_raised: 16, why_nan: 4}
    rows = [row for row in rows_of(result.folder) if row["reason"] == why_nan]
    assert all(row["value"] is None for row in rows)
    # a strict start recomputes faulty results
    refused("the map holds NaN", start, explainers=[nan], metrics=METRICS, limit=16, strict=True)


def damaged(shapes, folder, changes):
    """Return a dataset of 12 samples, some of which are damaged. The pictures are stored as undecoded bytes."""
    rows = sb.load_dataset(shapes).select(range(12))
    plain = rows.cast_column("image", datasets.Image(decode=False)).cast_column("mask", datasets.Image(decode=False))
    listed = [dict(row) for row in plain]
    for index, column, content in changes:
        listed[index][column] = content and {"bytes": content, "path": None}
    table = datasets.Dataset.from_list(listed, features=plain.features)
    table.cast(rows.features).to_parquet(folder / "data" / "test-00000-of-00001.parquet")
    return str(folder), [row["image_id"] for row in listed]


def png_of(width, height, value=255):
    Image.new("L", (width, height), value).save(buffer := io.BytesIO(), "png")
    return buffer.getvalue()


def test_samples_without_mask_are_left_out_with_reason(shapes, start, tmp_path):
    data, ids = damaged(shapes, tmp_path / "data", [(1, "mask", None), (4, "mask", png_of(32, 32, 0))])
    result = start(dataset=data, metrics=METRICS, limit=None)
    by_metric = {cell["metric"]: (cell["n"], cell["left_out"]) for cell in result.summary["cells"]}
    assert by_metric == {"saliency_miou": (10, {"empty mask": 1, "no mask": 1}), "saliency_insertion": (12, {})}
    assert result.summary["masks"]["usable"] == 10
    left_out = {row["image_id"]: row["reason"] for row in rows_of(result.folder) if row["value"] is None}
    assert left_out == {ids[1]: "no mask", ids[4]: "empty mask"}
    (row,) = (line for line in str(result).splitlines() if line.startswith("random  "))
    shown = [part.partition(" n=")[2] for part in row.split("  ") if part]
    assert shown == ["", "10", ""]  # explainer, mIoU, insertion of all 12


def test_run_continues_after_unreadable_samples(shapes, resnet, start, tmp_path, capsys):
    data, _ = damaged(shapes, tmp_path / "data", [(0, "image", b"no picture"), (9, "mask", png_of(5, 6))])
    result = start(dataset=data, metrics=METRICS, limit=None)
    assert {cell["n"] for cell in result.summary["cells"]} == {10}
    assert sum(result.summary["faults"].values()) == 4
    assert any("the image cannot be read" in reason for reason in result.summary["faults"])
    assert any("the mask is 5 x 6" in reason for reason in result.summary["faults"])
    assert result.summary["model"]["accuracy"]["n"] == 10
    assert result.report.exists()
    data, _ = damaged(shapes, tmp_path / "images", [(3, "image", b"no picture")])
    line = ["run", "--dataset", data, "--model", str(resnet), "--explainers", "random", "--device", "cpu",
            "--batch-size", "1", "--metrics", "saliency_miou"]  # fmt: skip
    assert "1 record was left out" in said(capsys, [*line, "--out", str(tmp_path / "cli")], code=2)
    for folder in ("strict", "cli"):  # the stored predictions of a run that was not strict do not count
        shown = said(capsys, [*line, "--out", str(tmp_path / folder), "--strict"], code=2)
        assert "saliency-bench: error: image shapes-" in shown
    assert not (tmp_path / "strict" / "summary.json").exists()


def test_explainer_batch_is_halved_when_out_of_memory(start):
    def small_memory(classifier, images, target):
        if len(images) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return images.mean(dim=1)

    result = start(explainers=[small_memory, my_own], limit=16)
    assert result.summary["halved_chunks"] == 6  # two batches: 8 to 4 + 4, and each 4 to 2 + 2
    assert result.summary["faults"] == {}
    small, own = sorted(result.cells, key=lambda cell: cell.explainer == "my_own")
    assert small.value == own.value
    assert (small.marked, own.marked) == ({HALVED: small.n}, {})


@pytest.mark.slow
def test_prediction_batch_is_halved_when_out_of_memory(start, resnet, capsys):
    def small_memory(module, given):
        if len(given[0]) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate")

    model = sb.load_classifier(str(resnet))
    model.model.register_forward_pre_hook(small_memory)
    runs = start("small", model=model), start("large")
    assert all(run.summary["faults"] == {} for run in runs)
    found, expected = (pq.read_table(run.folder / "predictions.parquet")["prediction"].to_pylist() for run in runs)
    assert found == expected
    shown = capsys.readouterr().err
    assert shown.count("8 images do not fit in memory at once; trying half as many") == 1
    assert shown.count("4 images do not fit in memory") == 2


@pytest.mark.slow
def test_run_reports_nondeterministic_network(start, resnet, capsys):
    model = sb.load_classifier(str(resnet), device="cpu")
    model.model.register_forward_pre_hook(lambda module, given: (given[0] * torch.rand(()),))
    start(model=model, limit=4)
    assert "returns different logits when it is called twice on the same image" in capsys.readouterr().err


@pytest.mark.slow
def test_writing_overlaps_the_next_explainer(start, monkeypatch):
    second, write = threading.Event(), PartFolder.write

    def waits(folder, results):
        if folder.path.name == "scores":
            assert second.wait(60)
        write(folder, results)

    def tells(classifier, images, target):
        second.set()
        return images.mean(dim=1)

    monkeypatch.setattr(writing, "SECONDS", 0)
    monkeypatch.setattr(PartFolder, "write", waits)
    assert [cell.n for cell in start(explainers=["random", tells], limit=16).cells] == [16, 16]


@pytest.mark.slow
def test_jumping_clock_changes_no_results(done, shapes, resnet, tmp_path, monkeypatch):
    jumps = itertools.cycle([2e9, 0.0, 1e9])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    found = go(tmp_path / "run", shapes, resnet)
    assert (found.folder / "records.parquet").read_bytes() == (done.folder / "records.parquet").read_bytes()
    timings = json.loads((found.folder / "timings.json").read_text())
    assert 0 < timings["seconds"] < 300
    # Two kernel counters, each accurate up to some pages per thread.
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 0.5 * peak < timings["peak_memory"] < 1.01 * peak
    assert all(0 <= seconds <= timings["seconds"] for seconds in timings["explainers"].values())


def test_run_resumes_after_a_full_disk(start, tmp_path, monkeypatch):
    expected = start("whole")
    replace, calls = os.replace, []

    def full(*args):
        calls.append(args)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(*args)

    monkeypatch.setattr("os.replace", full)
    refused("No space left on device", start)
    assert not list(tmp_path.rglob("*.tmp"))
    monkeypatch.setattr("os.replace", replace)
    assert (start().folder / "records.parquet").read_bytes() == (expected.folder / "records.parquet").read_bytes()


@pytest.mark.parametrize(("changes", "words"), [
    ({"explainers": ["gradcam:layer=3"]}, 'must be text or None; got 3; to pass it as text, write layer="3"'),
    ({"explainers": [my_own, my_own.__class__(my_own.__code__, globals(), "my_own")]}, "same name, options and code"),
    ({"explainers": []}, "at least one"),
    ({"limit": 0}, "limit .*; got 0"),
    ({"label_map": {"dsic": 0}}, "no entry for"),
    ({"explainers": [nan], "strict": True}, "image shapes-.*: the map holds NaN"),
    ({"explainers": [failing], "strict": True, "limit": 16}, "raised ZeroDivisionError: by design"),
    ({"explainers": [coloured]}, r"maps of shape \(8, 3, 32, 32\)"),
])  # fmt: skip
def test_invalid_input_is_rejected_without_partial_results(changes, words, start, tmp_path):
    refused(words, start, **changes)
    assert not (tmp_path / "run" / "summary.json").exists()
    assert not list(tmp_path.rglob("*.tmp"))
    is_seen_before_it_starts = changes.get("explainers", [])[:1] not in ([nan], [failing], [coloured])
    assert (tmp_path / "run").exists() is not is_seen_before_it_starts


def test_incompatible_data_and_folders_are_rejected(done, start, shapes, resnet, tmp_path):
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5))
    refused("use --label-map", start, model=sb.load_classifier(model, mean=0, std=1))
    rows = sb.load_dataset(shapes).select([0, 1, 1])
    rows.to_parquet(tmp_path / "data" / "data" / "test-00000-of-00001.parquet")
    refused("occurs 2 times", start, dataset=str(tmp_path / "data"))
    with FileLock(done.folder / ".lock"):
        refused(f"another run is writing to {done.folder}", go, done.folder, shapes, resnet, seed=9)
    refused("contains a run with a different seed", go, done.folder, shapes, resnet, seed=9)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    refused("is not a run", start, "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_widened_run_hides_old_cells_and_keeps_them_in_manifest(start, tmp_path, capsys):
    mapped = dict.fromkeys(CLASSES, 1)
    start(explainers=[my_own], limit=3, label_map=mapped)
    more = start(limit=20, label_map=mapped)
    assert [(cell["explainer"], cell["n"]) for cell in more.summary["cells"]] == [("random", 20)]
    assert "my_own by saliency_miou was computed earlier for fewer samples" in capsys.readouterr().err
    manifest = read_manifest(tmp_path / "run")
    assert (manifest.spec.limit, manifest.spec.explainers, manifest.spec.batch_size) == (20, ("random",), 8)
    assert [cell.explainer for cell in manifest.cells.values()] == ["my_own", "random"]
    # Compare the description of the dict, and the identity as stored in a submission.
    table = PythonObject(kind="dict", name="label_map", digest=hash_of(mapped), code=repr(mapped))
    assert manifest.spec.label_map == table
    assert manifest.identity.labels == [[1]] * 8
    again = start(explainers=[my_own], limit=20, label_map=mapped)
    assert {cell["n"] for cell in again.summary["cells"]} == {20}


@pytest.mark.slow
def test_rise_masks_use_the_run_seed_by_default(start):
    def value(name, explainer, seed):  # of all samples, because the seed also selects the samples of a limit
        (cell,) = start(name, explainers=[explainer], seed=seed, limit=None).summary["cells"]
        assert cell["explainer_text"] == explainer
        return cell["value"]

    of_3, of_0 = value("a", "rise:masks=20", 3), value("c", "rise:masks=20", 0)
    assert value("b", "rise:masks=20,seed=3", 0) == pytest.approx(of_3, rel=1e-5)
    assert value("d", "rise:masks=20,seed=0", 3) == pytest.approx(of_0, rel=1e-5)
    assert of_3 != pytest.approx(of_0, rel=1e-3)


def test_explainers_are_compared_and_ranked(start, shapes):
    masks = {}
    for row in sb.load_dataset(str(shapes), split="train"):
        masks[np.asarray(row["image"]).tobytes()] = np.asarray(row["mask"]) > 0

    def truth(classifier, images, target):
        pictures = (images * 255).round().byte().permute(0, 2, 3, 1).numpy()
        return torch.from_numpy(np.stack([masks[picture.tobytes()] for picture in pictures])).float()

    def nearly(classifier, images, target):
        return truth(classifier, images, target) * 2

    result = start(explainers=["random", truth, nearly], split="train", limit=60)
    cells = {cell["explainer"]: cell for cell in result.summary["cells"]}
    assert {name: cell["rank"] for name, cell in cells.items()} == {"random": [3, 3], "truth": [1, 2], "nearly": [1, 2]}
    first, _, last = result.summary["comparisons"]
    assert (first["metric"], first["explainers"], first["n"]) == ("saliency_miou", ["random", "truth"], 60)
    assert first["cells"] == [cells["random"]["cell_id"], cells["truth"]["cell_id"]]
    assert first["difference"] == pytest.approx(cells["random"]["value"] - 1)
    assert first["low"] < first["difference"] < first["high"] < 0
    assert first["p"] == 1 / 10000
    assert (last["difference"], last["p"]) == (0, 1)
    assert "1.000 [0.940, 1.000] #1-2 best" in str(result)
    assert "truth and nearly beat random on saliency_miou." in result.verdict


def ramp(rows):
    """Return maps of 32 x 32 pixels with equal values in the first `rows` rows only."""

    def tied(classifier, images, target, *, rows=rows):
        maps = torch.arange(1024.0).view(1, 32, 32).repeat(len(images), 1, 1)
        maps[:, :rows] = -1
        return maps

    tied.__name__ = f"ramp_{rows}"
    return tied


def test_scores_of_maps_with_tied_pixels_are_marked(start):
    """Metrics that use the order of the pixels mark a score if a tenth of the pixels is tied."""
    metrics = ["saliency_deletion:steps=2", "saliency_miou"]
    result = start(explainers=[ramp(3), ramp(4), flat], metrics=metrics, limit=4, batch_size=4)
    cells = {(cell.explainer, cell.metric): cell for cell in result.cells}
    assert {key: (cell.flat, cell.marked) for key, cell in cells.items()} == {
        ("ramp_3", "saliency_deletion"): (0, {}), ("ramp_3", "saliency_miou"): (0, {}),
        ("ramp_4", "saliency_deletion"): (0, {TIED: 4}), ("ramp_4", "saliency_miou"): (0, {}),
        ("flat", "saliency_deletion"): (4, {}), ("flat", "saliency_miou"): (4, {}),
    }  # fmt: skip
    assert cells["flat", "saliency_miou"].value == 0
    for text in (str(result), result._repr_html_()):
        assert "flat maps (one value everywhere): flat 4 maps" in text


def test_verdict_names_explainers_with_peaked_maps(start, tmp_path):
    def square(side):
        """Return maps with a bright square of this side; a square of 3 pixels is below 1 % of the map, of 4 is not."""

        def bright(classifier, images, target, *, side=side):
            maps = torch.rand(len(images), 32, 32) * 0.4
            maps[:, :side, :side] = 1
            return maps

        bright.__name__ = f"square_{side}"
        return bright

    metrics = ["saliency_miou", "saliency_miou:threshold=mask_area", "saliency_recall", "saliency_energy"]
    result = start(explainers=[square(2), square(3), square(4)], metrics=metrics, limit=6)
    marked = {(cell.explainer, cell.metric_text): cell.marked for cell in result.cells if cell.marked}
    assert marked == {(name, metric): {PEAKED: 6} for name in ("square_2", "square_3")
                      for metric in ("saliency_miou", "saliency_recall")}  # fmt: skip
    (line,) = [line for line in result.verdict if "above the midpoint of the map's range" in line]
    assert re.match("square_(2 and square_3|3 and square_2): in most samples, fewer than 1 % of the pixels ", line)
    assert "The scores for saliency_miou and saliency_recall use only these pixels" in line
    page = sb.report(tmp_path / "run").read_text(encoding="utf-8")
    assert line in html.unescape(re.sub("</?code>", "", page))
    assert re.search("<code>square_[23]</code>: in most", page)
