"""Ten faults planted in explainers and metrics, two for each paper: each changes a number of a smoke table."""

import importlib
import shutil

import numpy as np
import pytest

from saliency_bench.recipes.suites.suite import suite

# (table, what to select of it, module and name of a helper, what takes its place: a function of the helper)
FAULTS = {
    "IoU of the wrong pixels": (
        "p0-table2", "dataset=pet-xai model=resnet-18 explainer=gradcam metric=saliency_miou",
        "metrics.saliency_miou.score._iou", lambda iou: lambda salient, inside: iou(~salient, inside),
    ),
    "Grad-CAM keeps negative values": (
        "p0-table2", "dataset=pet-xai model=resnet-18 explainer=gradcam metric=saliency_miou",
        "explainers.gradcam.cut_if_positive", lambda cut: lambda cam, target: cam,
    ),
    "the least likely class is the most likely one": (
        "p1-figure10", "dataset=voc model=resnet-50 explainer=gradient",
        "metrics.saliency_class_sensitivity.score.one_hot",
        lambda one_hot: lambda classes, count: one_hot(classes * 0, count),
    ),
    "the gradient loses its sign": (
        "p1-figure10", "dataset=voc model=resnet-50 explainer=gradient",
        "explainers.gradient.over_channels", lambda over_channels: lambda values, reduction: values.abs().sum(dim=1),
    ),
    "KAE shows the rest of the map": (
        "p2-table2", "dataset=food-101 explainer=gradcam metric=saliency_kae",
        "metrics.saliency_kae.score.recognised_at",
        lambda recognised: lambda curves, labels, kept, *more: recognised(curves, labels, "rest", *more),
    ),
    "guided backpropagation cuts what speaks against the class": (
        "p2-table2", "dataset=food-101 explainer=guided_backprop metric=saliency_kae",
        "explainers.guided_backprop.over_channels",
        lambda over_channels: lambda values, reduction: over_channels(values.clamp_min(0), reduction),
    ),
    "CCS explains A against B": (
        "p3-table1", "dataset=imagenet model=vit-s explainer=gae metric=saliency_ccs",
        "metrics.saliency_ccs.score.contrast", lambda contrast: lambda a, b, count: contrast(b, a, count),
    ),
    "GAE leaves out the gradient": (
        "p3-table1", "dataset=imagenet model=vit-s explainer=gae metric=saliency_ccs",
        "explainers.gae.positive", lambda positive: lambda gradient, matrix: positive(gradient * 0 + 1, matrix),
    ),
    "what is not salient is pasted": (
        "p4-table3", "explainer=smoothgrad metric=saliency_confidence",
        "metrics._pasting.salient_pixels", lambda salient: lambda *given: ~salient(*given),
    ),
    "SmoothGrad adds no noise": (
        "p4-table3", "explainer=smoothgrad metric=saliency_confidence",
        "explainers.smoothgrad.noisy_copies",
        lambda copies: lambda classifier, images, sigma, *more: copies(classifier, images, 0.0, *more),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A function of (table, selection): its numbers at smoke size, from networks that are trained once."""
    out = tmp_path_factory.mktemp("suites")

    def made(table, select):
        for folder in ("runs", "accuracies"):
            shutil.rmtree(out / folder, ignore_errors=True)
        done = suite(table, out=out, select=select, smoke=True, device="cpu", progress=False)
        assert done.failed == {}
        return done.tables[0].numbers["value"].to_numpy()

    return made


@pytest.fixture(scope="module")
def faultless(numbers):
    """A function of (table, selection): its numbers without a fault, made once."""
    made = {}
    return lambda *key: made[key] if key in made else made.setdefault(key, numbers(*key))


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_changes_a_smoke_table(fault, numbers, faultless, monkeypatch):
    table, select, where, replacement = FAULTS[fault]
    before = faultless(table, select)
    module, _, name = where.rpartition(".")
    module = importlib.import_module(f"saliency_bench.{module}")
    faulty, calls = replacement(getattr(module, name)), []

    def counted(*args):
        calls.append(1)
        return faulty(*args)

    monkeypatch.setattr(module, name, counted)
    after = numbers(table, select)
    assert calls
    assert np.isfinite(before).any()
    assert not np.allclose(before, after, rtol=1e-6, atol=1e-9, equal_nan=True)


@pytest.mark.thorough
def test_a_smoke_table_is_the_same_without_a_fault(numbers, faultless):
    table, select, *_ = FAULTS["IoU of the wrong pixels"]
    np.testing.assert_array_equal(faultless(table, select), numbers(table, select))
