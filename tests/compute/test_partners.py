"""Test metrics that use partner samples: the plan, the maps of partners, and cells, inside and outside a run."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.bound_metric import as_metric, load_metric
from saliency_bench.compute.scoring.partners import Predictions, plan_of
from saliency_bench.compute.scoring.samples import score_parts
from saliency_bench.read.analysis.comparison import compare_runs
from saliency_bench.read.finished_run import read_run
from saliency_bench.score_notes import NO_PART, is_expected
from saliency_bench.utils.seeds import seed_of

METRICS = ["saliency_correctness:k=2", "saliency_confidence:k=2"]
LIMIT, BATCH = 40, 8


@pytest.fixture(scope="module")
def model():
    """Return a network that classifies pictures by their colours."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    names = list(registry.load("hub_builders", "shapes-xai").OBJECTS)
    return sb.load_classifier(module, mean=0.5, std=0.05, labels=names, device="cpu")


def run(shapes, model, out, **changes):
    settings = {"explainers": ["gradient"], "metrics": METRICS, "limit": LIMIT, "batch_size": BATCH, "split": "train"}
    return sb.run(dataset=str(shapes), model=model, out=out, device="cpu", progress=False, **settings | changes)


@pytest.fixture(scope="module")
def done(shapes, model, tmp_path_factory):
    return run(shapes, model, tmp_path_factory.mktemp("partners") / "run")


def rows(done, metric="saliency_correctness", part="normal@1"):
    return [row for row in done.records() if row["metric"] == metric and row["part"] == part]


def predictions(done):
    return pq.read_table(done.folder / "predictions.parquet").to_pylist()


def test_samples_outside_the_plan_are_left_out(done):
    classes = {row["image_id"]: row["label"] for row in predictions(done)}
    found = rows(done)
    scored = [classes[row["image_id"]] for row in found if row["value"] is not None]
    left_out = [row["reason"] for row in found if row["value"] is None]
    assert left_out == [NO_PART] * (LIMIT - len(scored))
    assert is_expected(NO_PART)
    members = list(classes.values())
    assert all(scored.count(name) == min(2, members.count(name) // 2) for name in set(members))
    assert len(scored) > 8
    assert done.summary["faults"] == {}


@pytest.mark.parametrize("metric", ["saliency_correctness", "saliency_confidence"])
def test_score_parts_matches_scores_of_a_run(metric, done, shapes, model):
    ids = [row["image_id"] for row in predictions(done)]
    data = sb.load_dataset(str(shapes), split="train")
    places = {image_id: place for place, image_id in enumerate(data["image_id"])}
    batch = model.prepare([data[places[image_id]] for image_id in ids])
    given = {"labels": batch.labels.numpy(), "image_ids": ids, "batch_size": BATCH, "k": 2}
    found = score_parts(metric, batch.images, model, "gradient", **given)
    for part, values in zip(load_metric(metric).parts(model), found.T, strict=True):
        expected = [np.nan if row["value"] is None else row["value"] for row in rows(done, metric, part)]
        np.testing.assert_array_equal(values, expected, err_msg=part)


def test_partner_uses_the_same_map_as_a_sample(shapes, model, tmp_path):
    made: dict = {}

    def noisy(classifier, images, target, *, seeds):
        for seed, image, weights in zip(seeds, images, target, strict=True):
            made.setdefault(seed, set()).add((image.numpy().tobytes(), weights.numpy().tobytes()))
        return torch.stack([torch.rand(images.shape[2:], generator=torch.Generator().manual_seed(s)) for s in seeds])

    result = run(shapes, model, tmp_path / "run", explainers=[noisy])
    assert len(made) == len(predictions(result)) >= LIMIT  # only seeds of samples
    assert all(len(asked) == 1 for asked in made.values())  # the same image and class, because --target is label


@pytest.mark.slow
def test_metrics_with_same_partners_share_maps(shapes, model, tmp_path):
    calls = []

    def counting(classifier, images, target):
        calls.append(len(images))
        return images.mean(dim=1)

    run(shapes, model, tmp_path / "one", explainers=[counting], metrics=METRICS[:1])
    alone = sum(calls)
    calls.clear()
    run(shapes, model, tmp_path / "both", explainers=[counting])
    assert sum(calls) == alone > LIMIT
    assert max(calls) <= BATCH


def test_only_keeps_partners_and_limit_changes_them(done, shapes, model, tmp_path):
    confidences = "saliency_confidence", "normal"  # values that differ between pairs of samples
    label = next(row["label"] for row in rows(done, *confidences) if row["value"] is not None)
    both = [*METRICS, "saliency_miou"]
    some = run(shapes, model, tmp_path / "some", metrics=both, only=(f"label={label}",))
    short = run(shapes, model, tmp_path / "short", metrics=both, limit=24)
    whole, of_some, of_short = ({cell.metric: cell.cell_id for cell in one.cells} for one in (done, some, short))
    assert of_some == whole | {"saliency_miou": of_short["saliency_miou"]}
    assert all(whole[name] != of_short[name] for name in whole)
    assert all(set(cell.asked_for) == {"partners"} for cell in done.cells)
    expected = {row["image_id"]: row["value"] for row in rows(done, *confidences) if row["label"] == label}
    assert {row["image_id"]: row["value"] for row in rows(some, *confidences)} == expected


def test_changed_limit_hides_cells_of_old_partners(shapes, model, tmp_path, capsys):
    run(shapes, model, tmp_path / "run", limit=24, explainers=["gradient", "random"])
    result = run(shapes, model, tmp_path / "run")
    assert [cell.explainer for cell in result.cells] == ["gradient", "gradient"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "also contains cells" in line]
    assert "random by saliency_confidence:k=2, random by saliency_correctness:k=2;" in line
    assert run(shapes, model, tmp_path / "run").complete
    fresh = run(shapes, model, tmp_path / "fresh")
    for name in ("records.parquet", "predictions.parquet"):
        assert (tmp_path / "run" / name).read_bytes() == (fresh.folder / name).read_bytes()
    later = run(shapes, model, tmp_path / "run", explainers=["random"])
    assert {cell.explainer for cell in later.cells} == {"gradient", "random"}, "cells of earlier calls remain"


def test_non_finite_partner_map_is_a_fault_of_its_samples(done, shapes, model, tmp_path):
    partner = surest(done)

    def broken(classifier, images, target, *, seeds):
        is_partner = torch.tensor([seed == seed_of(0, partner, "explain") for seed in seeds])
        return torch.where(is_partner[:, None, None], torch.nan, images.mean(dim=1))

    result = run(shapes, model, tmp_path / "run", explainers=[broken])
    reason = f"partner {partner}: the map holds NaN or infinite values"
    lost = [row for row in rows(result) if row["reason"] == reason]
    assert lost
    assert result.summary["faults"] == {reason: 2 * len(lost)}
    refused("NaN or infinite", run, shapes, model, tmp_path / "strict", explainers=[broken], strict=True)


def surest(done):
    found = predictions(done)
    label = next(row["label"] for row in found if sum(one["label"] == row["label"] for one in found) >= 4)
    logits = {row["image_id"]: torch.tensor(row["logits"]).softmax(0)[label] for row in found if row["label"] == label}
    return max(logits, key=logits.__getitem__)


def test_invalid_plans_are_rejected():
    given = Predictions(0, ["a", "b"], np.eye(2, dtype=bool), np.full((2, 2), 0.5, np.float32))
    correctness = load_metric("saliency_correctness")

    def planned(plan):
        return replace(correctness, declaration=replace(correctness.declaration, plan=plan))

    for wrong in ([[1], [0]], {0: [2]}, {0: [-1]}, {0: 1}, {"a": ["b"]}):
        metric = planned(lambda options, all_of, wrong=wrong: wrong)
        refused("saliency_correctness: plan must return", plan_of, metric, given)
    metric = planned(lambda options, all_of: 1 / 0)
    refused("plan. raised ZeroDivisionError", plan_of, metric, given)
    first, second = (plan_of(planned(lambda *_: {0: [1]}), replace(given, ids=ids)).identity
                     for ids in (["a", "b"], ["a", "c"]))  # fmt: skip
    assert first != second


def test_functions_and_precomputed_maps_reject_partners(shapes, model, tmp_path):
    refused(r"partners. and the keyword plan=.* require each other", as_metric, lambda images, partners: images)
    maps = {"mine": np.random.default_rng(0).random((158, 32, 32))}
    refused("saliency_correctness needs more maps", run, shapes, model, tmp_path, explainers=[], maps=maps)


@pytest.mark.slow
def test_runs_with_other_partners_are_not_merged(done, shapes, model, tmp_path):
    other = run(shapes, model, tmp_path / "other", explainers=["random"], limit=24)
    same = run(shapes, model, tmp_path / "same", explainers=["random"])
    folders = [read_run(one.folder) for one in (done, other, same)]
    comparison = compare_runs(folders)
    assert list(map(comparison.numbers, comparison.merged)) == [[1, 3], [2]]
