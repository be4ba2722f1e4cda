"""Test that every metric leaves out samples with NaN or infinite logits and states the reason."""

import json
import shutil

import contracts
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from metric_modules import with_different_inputs
from refusals import refused
from run_order import in_run_order
from safetensors.torch import load_file, save_file
from torch import nn

import saliency_bench as sb
from saliency_bench.bound_metric import load_metric
from saliency_bench.cli import main
from saliency_bench.compute.scoring.samples import score_parts, score_samples
from saliency_bench.errors import UserError

OTHERS = {"other", "retrained", "first_right"}  # these need a second classifier, whole training runs or people
NAMES = [name for name in contracts.complete("metrics") if not OTHERS & set(load_metric(name).inputs)]
# These metrics classify pictures with half of their pixels black.
BLACKENED = ["insertion", "deletion", "kae", "roae", "cds", "ccs", "cgc", "pgs", "cgs"]
# These metrics do not. For metrics in neither list, both are possible.
NOT_BLACKENED = ["cauc", "cdrop", "consistency", "class_sensitivity", "max_sensitivity", "miou", "iosr", "precision",
                 "recall", "pointing_game", "average_precision"]  # fmt: skip


class Broken(nn.Module):
    """Network with eight logits that returns `value` for class 0 of the pictures selected by `where`."""

    def __init__(self, value, where):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 8))
        self.value, self.where = value, where

    def forward(self, images):
        logits = self.net(images)
        logits[self.where(images), 0] = self.value
        return logits


def loaded(model):
    return sb.load_classifier(model, mean=0, std=1, device="cpu")


def started(shapes, model, out, **options):
    return sb.run(dataset=shapes, model=loaded(model), explainers=["centre"], metrics=NAMES, out=out, limit=4,
                  batch_size=4, device="cpu", progress=False, **options)  # fmt: skip


@pytest.fixture
def images(shapes):
    model = loaded(Broken(0, lambda images: []))
    return model.prepare(in_run_order(sb.load_dataset(shapes))[:4]).images


def rows_of(result, name="records"):
    return pq.read_table(result.folder / f"{name}.parquet").to_pylist()


@pytest.mark.sample(0)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_metrics_and_accuracy_skip_non_finite_logits(value, shapes, images, tmp_path):
    model = Broken(value, lambda pictures: pictures[:, :, 0, 0].eq(images[2, :, 0, 0]).all(dim=1))
    result = started(shapes, model, tmp_path / "run")
    reason = "the classifier gave NaN or infinite values"
    third = [row["image_id"] for row in rows_of(result, "predictions")][2]
    of_third = [row for row in rows_of(result) if row["image_id"] == third]
    assert {row["metric"] for row in of_third} == set(NAMES)
    assert {(row["value"], row["prediction"], row["reason"]) for row in of_third} == {(None, None, reason)}
    assert {row["reason"] for row in rows_of(result) if row["image_id"] != third}.isdisjoint({reason})
    assert all(cell["left_out"][reason] == 1 for cell in result.summary["cells"])
    assert {cell["n"] for cell in result.summary["cells"]} <= {0, 1, 2, 3}
    assert result.summary["faults"] == {reason: len(NAMES)}
    assert result.summary["model"]["accuracy"]["n"] == 3
    refused(f"image {third}: {reason}", started, shapes, model, tmp_path / "run", strict=True)


@pytest.mark.parametrize(
    "name", with_different_inputs(name for name in NAMES if "masks" not in load_metric(name).inputs)
)
def test_direct_scoring_rejects_nan_logits(name, images):
    model = loaded(Broken(np.nan, lambda pictures: pictures[:, :, 0, 0].eq(images[2, :, 0, 0]).all(dim=1)))
    asked = {"groups": {"low": [0, 1, 2, 3], "high": [4, 5, 6, 7]}, "labels": [0] * len(images)}
    asked = {need: value for need, value in asked.items() if need in load_metric(name).inputs}
    scored = score_parts if load_metric(name).aggregate else score_samples
    refused(f"{name}.*centre.*image 2: .*NaN", scored, name, images, model, "centre", batch_size=2, **asked)


def test_cauc_does_not_depend_on_other_images_of_batch():
    """The first sample's path ends before its logits become NaN, although the second's path continues."""
    pictures = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) / 2 + 0.5
    pictures[:, 0, -1, -1] = torch.tensor([0.1, 0.2])
    maps = torch.arange(256.0).flip(0).view(1, 16, 16).repeat(2, 1, 1)
    maps[0, 0] += 1000

    def method(classifier, images, target):
        return maps[[int(image[0, -1, -1] > 0.15) for image in images]]

    def half_of_the_first_is_black(images):
        return images[:, 0, -1, -1].eq(pictures[0, 0, -1, -1]) & (images.eq(0).all(dim=1).flatten(1).sum(dim=1) > 100)

    model = loaded(Broken(np.nan, half_of_the_first_is_black))
    alone = [score_samples("saliency_cauc:reference=black", one[None], model, method)[0] for one in pictures]
    both = score_samples("saliency_cauc:reference=black", pictures, model, method)
    np.testing.assert_allclose(both, alone, rtol=1e-6)


def test_command_reports_unknown_accuracy(shapes, resnet, tmp_path, capsys):
    broken = shutil.copytree(resnet, tmp_path / "model")
    (weights,) = broken.glob("*.safetensors")
    tensors = load_file(weights)
    tensors["classifier.1.weight"][:] = tensors["classifier.1.bias"][:] = 3e38  # sums of the logits are infinite
    save_file(tensors, weights, metadata={"format": "pt"})
    line = ["run", "--dataset", str(shapes), "--model", str(broken), "--explainers", "gradcam", "--limit", "4",
            "--metrics", "saliency_miou", "--device", "cpu", "--out", str(tmp_path / "run")]  # fmt: skip
    assert main(line) == 2
    said = capsys.readouterr()
    assert "4 of 35 samples, accuracy unknown" in said.out
    reason = "the classifier gave NaN or infinite values"
    assert f"4 records were left out, for example: {reason}" in said.err
    result = sb.load_run(tmp_path / "run")
    known = {name: value for name, value in result.summary["model"]["accuracy"].items() if value is not None}
    assert known == {"n": 0, "clusters": 0, "rare": False}
    assert [(cell.value, cell.low, cell.n, cell.rank) for cell in result.cells] == [(None, None, 0, None)]
    assert json.dumps(result.summary, allow_nan=False)
    assert "nan" not in str(result)
    assert reason in result.report.read_text()


@pytest.mark.slow
def test_nan_logits_of_changed_images_have_a_separate_reason(shapes, tmp_path):
    model = Broken(np.nan, lambda pictures: pictures.eq(0).all(dim=1).flatten(1).float().mean(dim=1) >= 0.5)
    result = started(shapes, model, tmp_path / "run")
    reason = "the classifier gave NaN or infinite values for a changed image"
    told = {row["metric"] for row in rows_of(result) if row["reason"] == reason}
    assert {f"saliency_{name}" for name in BLACKENED} <= told
    assert told.isdisjoint(f"saliency_{name}" for name in NOT_BLACKENED)
    assert result.summary["model"]["accuracy"]["n"] == 4
    assert set(result.summary["faults"]) == {reason}
    with pytest.raises(UserError, match=rf"centre.*saliency_\w+.*shapes-\d+: {reason}"):
        started(shapes, model, tmp_path / "strict", strict=True)
