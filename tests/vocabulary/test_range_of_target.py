"""Tests of ranges of scores, and so of intervals, that depend on the target: a probability or a difference."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from refusals import refused

import saliency_bench as sb
from saliency_bench.board.submission import of_run
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.targets import contrast, group
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.statistics.intervals import bounded
from saliency_bench.target_weights import TargetRange, one_hot

CURVES = ["saliency_insertion:steps=2", "saliency_insertion:steps=2,reference=blur", "saliency_deletion:steps=2"]
PLAIN = [[0.0, 1.0], [-1.0, 1.0], [0.0, 1.0]]
CONTRASTS = [[-1.0, 1.0], [-2.0, 2.0], [-1.0, 1.0]]


def ranges(target, metrics=CURVES):
    return [list(load_metric(metric).limits(target)) for metric in metrics]


def test_class_and_contrast_targets_have_different_ranges():
    assert ranges(TargetRange.of_classes(1, 0)) == ranges(TargetRange.of_classes(5, 0)) == PLAIN
    assert ranges(TargetRange.of_classes(1, 1)) == ranges(TargetRange.of_classes(2, 7)) == CONTRASTS


def test_sigmoid_range_grows_with_group_size():
    assert ranges(TargetRange.of_classes(1, 0, "sigmoid")) == PLAIN
    assert ranges(TargetRange.of_classes(3, 2, "sigmoid")) == [[-2, 3], [-5, 5], [-2, 3]]
    others = ["saliency_cds", "saliency_cauc", "saliency_cdrop"]
    assert ranges(TargetRange.of_classes(1, 1, "sigmoid"), others) == [[-1, 1], [0, 1], [-1, 1]]
    assert ranges(TargetRange.of_classes(3, 2, "sigmoid"), others) == [[-3, 3], [-3, 3], [-6, 6]]


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_target_range_matches_extreme_probabilities(activation):
    """Test all extreme probabilities of an activation, summed by hand."""
    corners = np.eye(4) if activation == "softmax" else np.array(list(product([0.0, 1.0], repeat=4)))
    for weights in ([1, 0, 0, 0], [1, 1, 0, 0], [1, -1, 0, 0], [1, 1, -1, 0], [0.5, 0.5, -1, 0], [0, 3, 0, -2]):
        row = np.array([weights], dtype=float)
        found = TargetRange.of_weights(row, activation)
        sums = corners @ row[0]
        assert (found.low, found.high) == (sums.min(), sums.max())
        assert (found.a, found.b) == ((corners @ (row[0] > 0)).max(), (corners @ (row[0] < 0)).max())
        if set(weights) <= {1, 0, -1}:
            assert found == TargetRange.of_classes(weights.count(1), weights.count(-1), activation)


class Sure(torch.nn.Module):
    """Multi-label network for which every class is certain for a white image and impossible for a black image."""

    activation = "sigmoid"
    mean = torch.zeros(1, 3, 1, 1)

    def forward(self, images):
        return (images.mean((1, 2, 3))[:, None] - 0.5).expand(-1, 4) * 100


def test_multi_label_group_scores_are_within_range():
    maps = torch.arange(16.0, 0, -1).view(1, 4, 4)
    for target in (group([0, 1, 2], 4), group([0, 1], 4) - group([2, 3], 4)):
        curves = Curves(Sure(), torch.ones(1, 3, 4, 4), target, maps)
        for name in ("saliency_insertion", "saliency_deletion", "saliency_cds", "saliency_cauc", "saliency_cdrop"):
            assert np.isfinite(load_metric(name)(curves)).all()


def test_impossible_score_of_single_class_is_rejected(monkeypatch):
    curves = Curves(Sure(), torch.ones(1, 3, 4, 4), one_hot([1], 4), torch.rand(1, 4, 4))
    monkeypatch.setattr(Curves, "path", lambda self, *asked: np.full((1, 5), -0.2))
    with pytest.raises(ValueError, match=r"-0\.2 is outside the range from 0 to 1"):
        load_metric("saliency_deletion", steps=4)(curves)
    curves.target = contrast([1], [0], 4).numpy()
    assert load_metric("saliency_deletion", steps=4)(curves) == pytest.approx(-0.2)


def test_metric_with_target_input_uses_target_range():
    def half(target, classifier):
        return np.full(len(target), -0.5)

    metric = replace(load_metric("saliency_deletion"), function=half, inputs=("target", "classifier"), options=())
    assert metric(contrast([1], [0], 4), Sure()) == [-0.5]
    assert metric(target=contrast([1], [0], 4), classifier=Sure()) == [-0.5]
    with pytest.raises(ValueError, match=r"-0\.5 is outside the range from 0 to 1"):
        metric(one_hot([1], 4), Sure())


def go(out, shapes, resnet, **changes):
    settings = {"explainers": ["random"], "metrics": CURVES, "limit": 12, "batch_size": 4} | changes
    return sb.run(dataset=str(shapes), model=str(resnet), out=out, device="cpu", progress=False, **settings)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("target", "expected"), [("label", PLAIN), ("contrast:second", CONTRASTS)])
def test_summary_page_and_board_use_range_of_target(target, expected, shapes, resnet, tmp_path):
    done = go(tmp_path / "run", shapes, resnet, target=target)
    cells = read_run(done.folder).cells
    assert [list(cell.range) for cell in cells] == expected
    scores = read_run(done.folder).scores.values
    for cell in cells:
        own = bounded(scores[cell.cell_id], np.arange(12), cell.limits)
        assert (cell.low, cell.high) == pytest.approx((own.low, own.high))
        assert cell.low >= cell.range[0]
    low, high = expected[0]
    assert f"from {low:g} to {high:g}" in done.report.read_text(encoding="utf-8")
    assert [list(cell.range) for cell in of_run(done.folder, "ada").result.cells] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("against", "expected"), [(("", ""), PLAIN), (("", "circle"), CONTRASTS)])
def test_range_of_target_file_follows_its_content(against, expected, shapes, resnet, tmp_path):
    rows = sb.load_dataset(shapes)
    names = rows.features["label"].names
    picked = [next(name for name in names if name != other) for other in against]
    against = [other and names[-1] for other in against]
    lines = [
        f"{image_id},{picked[number % 2]},{against[number % 2]}" for number, image_id in enumerate(rows["image_id"])
    ]
    file = tmp_path / "targets.csv"
    file.write_text("\n".join(["image_id,target,against", *lines]))
    done = go(tmp_path / "run", shapes, resnet, target=str(file))
    assert [cell["range"] for cell in done.summary["cells"]] == expected
    of_run(done.folder, "ada")


def widened(folder):
    """Write a run folder of an earlier version, in which every target had the range of a contrast."""
    for name in ("run.json", "summary.json"):
        content = json.loads((folder / name).read_text())
        cells = content["cells"].values() if name == "run.json" else content["cells"]
        for cell, own in zip(cells, CONTRASTS * 2, strict=False):
            cell["range"] = own
        (folder / name).write_text(json.dumps(content))
    (folder / "written.json").unlink()  # an earlier version wrote another format


@pytest.mark.slow
def test_older_run_with_wide_ranges_is_fixed_by_restart(shapes, resnet, tmp_path):
    folder = go(tmp_path / "run", shapes, resnet, explainers=["random", "centre"]).folder
    fresh = read_run(folder).cells
    widened(folder)
    sb.report(folder)
    assert [list(cell.range) for cell in read_run(folder).cells] == CONTRASTS * 2
    refused(r"range of cell .*saliency_insertion.* must be \[0\.0, 1\.0\].*--out", of_run, folder, "ada")
    go(folder, shapes, resnet, explainers=["centre"])
    assert [list(key.range) for key in read_manifest(folder).cells.values()] == PLAIN * 2
    again = read_run(folder).cells
    assert [cell.model_dump() for cell in again] == [cell.model_dump() for cell in fresh]
    of_run(folder, "ada")
