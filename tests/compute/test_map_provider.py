"""Test maps that metrics request: the explainer and its seeds, repeated requests, and errors."""

import json

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from small_networks import gradient
from torch import nn

from saliency_bench import load_classifier, load_dataset, run
from saliency_bench.bound_explainer import as_explainer
from saliency_bench.cli import main
from saliency_bench.compute.maps.map_provider import ExplainerRaisedError, MapProvider
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.errors import UserError
from saliency_bench.score_notes import is_expected
from saliency_bench.target_weights import one_hot

SEEDS = [7, 8, 9, 10]


def small(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 20, classes))


class Recorder:
    """Explainer that records its calls and whose maps encode the sample's seed and class."""

    def __init__(self):
        self.calls = []

    def __call__(self, classifier, images, target, *, seeds=None):
        self.calls.append(seeds)
        at = torch.tensor(seeds).float() + 100 * target.argmax(dim=1)
        return at[:, None, None] + images.mean(dim=1)


def asked(explainer, **fields):
    return MapProvider(as_explainer(explainer), small(), SEEDS, **fields)


def test_maps_use_seeds_of_their_samples():
    explainer, images = Recorder(), torch.rand(4, 3, 4, 5)
    explain = asked(explainer)
    maps = explain(images[[2, 0]], one_hot([1, 2], 3), [2, 0])
    assert explainer.calls == [[9, 7]]
    assert np.floor(maps[:, 0, 0]).tolist() == [109, 207]
    assert (maps.shape, maps.dtype) == ((2, 4, 5), np.float32)
    explain(images, one_hot(1, 3))  # one row for all samples
    assert explainer.calls[-1] == SEEDS


def test_existing_maps_are_reused():
    explainer, images, target = Recorder(), torch.rand(4, 3, 4, 5), one_hot([0, 1, 2, 0], 3)
    first = asked(explainer)(images, target)
    explain = asked(explainer, first=(images, target, torch.from_numpy(first)))
    explainer.calls.clear()
    np.testing.assert_array_equal(explain(images, target), first)
    assert explainer.calls == []
    other = explain(images, one_hot([0, 2, 2, 1], 3))
    assert explainer.calls == [[8, 10]]
    np.testing.assert_array_equal(other[[0, 2]], first[[0, 2]])
    np.testing.assert_array_equal(other, asked(Recorder())(images, one_hot([0, 2, 2, 1], 3)))
    explain(images.clone(), target)  # treated as another picture
    assert explainer.calls[-1] == SEEDS


def test_other_classifier_is_explained_and_passes_are_counted():
    images, target = torch.rand(4, 3, 4, 5), one_hot([0, 1, 2, 0], 3)
    own, other = (load_classifier(small(classes), mean=0, std=1) for classes in (3, 5))
    torch.nn.init.normal_(other.model[1].weight)
    explain = MapProvider(as_explainer(gradient), own, SEEDS)
    first = explain(images, target)
    explain.first = images, target, torch.from_numpy(first)
    found = explain(images, one_hot([4, 3, 2, 1], 5), classifier=other)
    theirs = MapProvider(as_explainer(gradient), other, SEEDS)(images, one_hot([4, 3, 2, 1], 5))
    np.testing.assert_array_equal(found, theirs)
    before = own.passes
    some = explain(images[[1, 3]], one_hot(0, 5), [1, 3], classifier=other)
    assert own.passes - before == 2
    assert not np.isclose(some, first[[1, 3]]).all()
    explain(images, target, classifier=own)  # already computed
    assert own.passes - before == 2


def test_non_finite_and_flat_maps_are_reported_by_sample():
    def broken(classifier, images, target):
        maps = images.mean(dim=1).clone()
        maps[0, 0, 0], maps[1] = float("nan"), 4
        return maps

    explain = asked(broken)
    maps = explain(torch.rand(3, 3, 4, 5), one_hot(0, 3), [3, 1, 2])
    assert explain.faulty == {3: "the map holds NaN or infinite values"}
    assert (maps[0] == 0).all()
    assert explain.flat == {3, 1}


def test_faulty_metric_map_is_attributed_to_its_sample():
    """The first sample has no mask, so the metric receives only the other samples of the batch."""

    def dark(classifier, images, target):
        return images.mean(dim=1) / (images.amax(dim=(1, 2, 3), keepdim=True)[:, 0] > 0.3)

    def darker(masks, images, target, explain):
        return explain(images * 0.5, target).mean(axis=(1, 2))

    images, masks = torch.ones(4, 3, 4, 5), np.ones((4, 4, 5), bool)
    images[2], masks[0] = 0.4, False
    classifier = load_classifier(small(), mean=0, std=1)
    refused("image 2: the map holds NaN or infinite", score_samples, darker, images, classifier, dark, masks=masks)


def test_out_of_memory_batch_is_halved():
    def greedy(classifier, images, target):
        if len(images) > 1:
            raise RuntimeError("CUDA out of memory")
        maps = images.mean(dim=1).clone()
        return maps / (0 if images[0, 0, 0, 0] == 1 else 1)

    images = torch.rand(4, 3, 4, 5)
    images[2] = 1
    explain = asked(greedy)
    maps = explain(images, one_hot(0, 3))
    assert explain.halved == 3
    assert set(explain.faulty) == {2}
    kept = [0, 1, 3]
    np.testing.assert_allclose(maps[kept], images[kept].mean(dim=1), rtol=1e-6)


def test_explainer_errors_are_wrapped_and_user_errors_pass():
    def failing(classifier, images, target):
        raise OverflowError("too\nlarge")

    def refusing(classifier, images, target):
        raise UserError("no ReLU in the model")

    with pytest.raises(ExplainerRaisedError, match=r"OverflowError: too large"):
        asked(failing)(torch.rand(1, 3, 4, 5), one_hot(0, 3))
    refused("no ReLU", asked(refusing), torch.rand(1, 3, 4, 5), one_hot(0, 3))


METRICS = ["saliency_ccs", "saliency_cgs", "saliency_class_sensitivity", "saliency_max_sensitivity:draws=2"]


@pytest.mark.slow
def test_run_counts_passes_of_metrics_with_own_maps(shapes, resnet, tmp_path):
    result = run(dataset=shapes, model=resnet, explainers=[gradient, "random"], out=tmp_path / "run", limit=8,
                 metrics=METRICS, batch_size=4, device="cpu", progress=False)  # fmt: skip
    cells = {(cell["explainer"], cell["metric"]): cell for cell in result.summary["cells"]}
    ours = [cells["gradient", metric.partition(":")[0]] for metric in METRICS]
    assert [cell["n"] for cell in ours] == [8] * 4
    # nine pictures with one map each; two maps minus the existing maps for the label; two maps
    assert [cell["forward_passes"]["metric"] for cell in ours[:2]] == [80, 80]
    labels = pq.read_table(result.folder / "predictions.parquet").to_pylist()
    known = sum(row["label"] in (np.argmax(row["logits"]), np.argmin(row["logits"])) for row in labels)
    assert ours[2]["forward_passes"]["metric"] == 16 - known
    assert ours[3]["forward_passes"]["metric"] == 16
    # noise does not use the network, so only the nine pictures remain
    assert cells["random", "saliency_ccs"]["forward_passes"]["metric"] == 72
    # noise is redrawn for another class or picture
    assert abs(cells["random", "saliency_class_sensitivity"]["value"]) < 0.1
    assert cells["random", "saliency_max_sensitivity"]["value"] > 0.5


def odd(classifier, images, target):
    """Return valid maps for the samples' own target, and NaN for a contrast if the first pixel is dark."""
    maps = images.mean(dim=1).clone()
    if (target < 0).any():
        maps[images[:, 0, 0, 0] < 0.5, 0, 0] = float("nan")
    return maps


def failing(classifier, images, target):
    if (target < 0).any():
        raise OverflowError("contrast")
    return images.mean(dim=1)


def flat(classifier, images, target):
    return images.new_full((len(images), *images.shape[2:]), 2.0)


def test_samples_with_failed_metric_maps_are_left_out(shapes, resnet, tmp_path):
    def started(*explainers, name="run", **options):
        return run(dataset=shapes, model=resnet, explainers=list(explainers), out=tmp_path / name, limit=8,
                   metrics=["saliency_ccs", "saliency_pgs"], batch_size=4, device="cpu", progress=False,
                   **options)  # fmt: skip

    result = started(odd, failing)
    rows = [row for row in result.records() if row["metric"] == "saliency_ccs"]
    of_odd, of_failing = ([row for row in rows if row["explainer"] == name] for name in ("odd", "failing"))
    pictures = {row["image_id"]: row for row in load_dataset(shapes)}
    images = load_classifier(resnet, device="cpu").prepare([pictures[row["image_id"]] for row in of_odd]).images
    bad = (images[:, 0, 0, 0] < 0.5).tolist()
    assert 0 < sum(bad) < 8
    assert [row["reason"] == "the map holds NaN or infinite values" for row in of_odd] == bad
    assert [row["value"] is None for row in of_odd] == bad
    assert {row["reason"] for row in of_failing} == {"the explainer raised OverflowError: contrast"}
    assert [cell.n for cell in result.cells if cell.metric == "saliency_pgs"] == [8, 8]
    assert sum(result.summary["faults"].values()) == sum(bad) + 8
    refused(r"odd.*saliency_ccs.*shapes-\d+.*NaN", started, odd, name="odd strict", strict=True)
    refused(r"failing.*saliency_ccs.*OverflowError", started, failing, name="failing strict", strict=True)


def test_group_file_changes_ids_of_group_metrics(shapes, resnet, tmp_path, capsys):
    file = tmp_path / "groups.csv"
    file.write_text("class,group\ndisc,a\nring,a\nsquare,b\n")
    common = ["run", "--dataset", str(shapes), "--model", str(resnet), "--explainers", "gradcam", "--limit", "8",
              "--device", "cpu", "--json", "--metrics", "saliency_ccs", "saliency_insertion", "--out"]  # fmt: skip
    assert main([*common, str(tmp_path / "own"), "--groups", str(file)]) == 0
    assert main([*common, str(tmp_path / "known")]) == 0
    capsys.readouterr()
    summary = json.loads((tmp_path / "own" / "summary.json").read_text())
    assert summary["groups"]["name"] == "groups.csv"
    assert f"groups.csv, digest {summary['groups']['identity'][:8]}" in (tmp_path / "own" / "report.html").read_text()
    own, known = (pq.read_table(tmp_path / name / "records.parquet").to_pylist() for name in ("own", "known"))
    for metric, same in (("saliency_insertion", True), ("saliency_ccs", False)):
        ids = [{row["cell_id"] for row in found if row["metric"] == metric} for found in (own, known)]
        assert (ids[0] == ids[1]) == same
    without = [row for row in own if row["metric"] == "saliency_ccs" and row["prediction"] not in ("disc", "ring")]
    assert without
    reason = "not defined for this sample: the group of the predicted class contains no other class"
    assert {row["reason"] for row in without} == {reason}
    assert is_expected(reason)
    assert main([*common, str(tmp_path / "own")]) == 2
    assert "a run with a different set of groups" in capsys.readouterr().err
    assert main([*common, str(tmp_path / "bad"), "--groups", str(tmp_path / "none.json")]) == 2
    assert "none.json is not a file" in capsys.readouterr().err


def test_group_metrics_are_rejected_without_groups(tmp_path, shapes):
    rows = datasets.load_dataset(str(shapes), split="test").select(range(4)).remove_columns(["scene", "group"])
    plain = rows.cast_column("label", datasets.ClassLabel(names=[f"kind {number}" for number in range(8)]))
    plain.to_parquet(tmp_path / "data" / "test-00000.parquet")
    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 8))
    settings = {"dataset": tmp_path / "data", "model": load_classifier(network, mean=0, std=1), "explainers": flat,
                "out": tmp_path / "run", "device": "cpu", "progress": False}  # fmt: skip
    refused(r"saliency_pgs.*groups.*--groups", run, **settings, metrics=["saliency_pgs"])
    assert not (tmp_path / "run").exists()
    done = run(**settings, metrics=["saliency_class_sensitivity"])
    assert done.records()["group"] == [None] * 4
    (cell,) = done.summary["cells"]
    assert (cell["n"], cell["left_out"]) == (0, {"flat map, not ranked": 4})  # this metric needs no groups
