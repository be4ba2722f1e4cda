"""Tests of plain functions as metrics: arguments, direction, range and version, in runs, reports and boards."""

from functools import partial

import numpy as np
import pytest
import torch
from refusals import refused

import saliency_bench as sb
from saliency_bench.board.submission import of_run
from saliency_bench.bound_metric import as_metric
from saliency_bench.cli import main
from saliency_bench.read.analysis.comparison import compare_runs
from saliency_bench.read.finished_run import read_run


@sb.metric(higher_is_better=False, range=(0, 1))
def brightest_outside(maps, masks):
    """Share of maps whose brightest pixel lies <outside> the mask.

    What follows is not shown.
    """
    top = maps.reshape(len(maps), -1).argmax(axis=1)
    return ~masks.reshape(len(masks), -1)[np.arange(len(maps)), top]


def spread(maps, *, power: float = 2.0):
    return (np.abs(maps) ** power).mean(axis=(1, 2))


def margin(classifier, images, target, maps):
    """Return the logit of the target for the image darkened by the map."""
    return (classifier(images * torch.from_numpy(maps)[:, None].sigmoid()) * target).sum(dim=1)


@sb.metric(higher_is_better=True, range=(-10, 10))
class Quantile:
    """Metric of the value below which a share of the map lies."""

    def __init__(self, share):
        self.share = share

    def __call__(self, maps):
        return np.clip(np.quantile(maps, self.share, axis=(1, 2)), -10, 10)


METRICS = ["saliency_miou", brightest_outside, spread, Quantile(0.5)]


def settings(shapes, resnet, **changes):
    return {"dataset": str(shapes), "model": str(resnet), "explainers": ["edges", "random"], "metrics": METRICS,
            "limit": 8, "batch_size": 4, "device": "cpu", "progress": False} | changes  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory, shapes, resnet):
    return sb.run(**settings(shapes, resnet), out=tmp_path_factory.mktemp("runs") / "own")


def by_name(run):
    return {(cell.explainer, cell.metric): cell for cell in run.cells}


def test_metric_inputs_follow_parameter_names():
    for function, needs in ((brightest_outside, ("maps", "masks")), (spread, ("maps",)), (Quantile(0.5), ("maps",)),
                            (margin, ("classifier", "images", "target", "maps")),
                            (lambda masks, *, maps: maps, ("masks", "maps")),
                            (lambda maps, level=0.5: maps, ("maps",))):  # fmt: skip
        assert as_metric(function).inputs == needs
    given = sb.load_metric(spread)
    assert (given, given.options) == (as_metric(spread), (("power", 2.0),))
    assert as_metric(partial(spread, power=3.0)).options == (("power", 3.0),)
    assert as_metric(partial(spread, power=3.0)).version != given.version
    assert len(given.version) == 16


def test_direction_and_range_come_from_declaration():
    told = as_metric(brightest_outside)
    assert (told.higher_is_better, told.range) == (False, (0.0, 1.0))
    # the decorated function can still be called
    assert brightest_outside(np.ones((1, 2, 2)), np.ones((1, 2, 2), bool)).tolist() == [False]

    def plain(maps):
        return maps.mean(axis=(1, 2))

    first = as_metric(plain)
    assert (first.higher_is_better, first.range) == (True, (-np.inf, np.inf))
    sb.metric(higher_is_better=False, range=(0, np.inf))(plain)
    second = as_metric(plain)
    assert (second.higher_is_better, second.range) == (False, (0.0, np.inf))
    assert first.version != second.version  # intervals of one range must not be used for another


@pytest.mark.parametrize(("function", "words"), [
    (lambda map, masks: 0, "has the unknown inputs map; .*maps, masks"), (lambda: 0, "has no inputs; .*maps, masks"),
    (lambda *everything: 0, "has no inputs"),
    (lambda masks: 0, "has only the inputs masks.*maps., .curves. or .explain"),
    (lambda maps, *, level: 0, "option level .*default"), (max, "signature"),
])  # fmt: skip
def test_metric_with_unknown_or_missing_inputs_is_rejected(function, words, tmp_path):
    refused(words, sb.run, dataset="d", model="m", explainers=["edges"], metrics=[function], out=tmp_path / "run")


def test_run_contains_scores_of_metric_function(done):
    cells = by_name(done)
    assert {name for _, name in cells} == {"saliency_miou", "brightest_outside", "spread", "Quantile"}
    cell = cells["random", "brightest_outside"]
    assert (cell.higher_is_better, cell.limits, cell.n) == (False, (0.0, 1.0), cells["random", "saliency_miou"].n)
    records = done.records().to_pandas()
    own = records[(records.explainer == "random") & (records.metric == "brightest_outside")].value.dropna()
    assert set(own) <= {0.0, 1.0}
    assert cell.value == pytest.approx(own.mean())


def test_page_and_command_describe_metric_functions(done):
    page = done.report.read_text()
    assert "Share of maps whose brightest pixel lies &lt;outside&gt; the mask. Lower is better, from 0 to 1." in page
    assert "What follows is not shown" not in page
    assert "Metric of the value below which a share of the map lies. Higher is better, from -10 to 10." in page
    assert (
        "A Python function. It does not declare which direction is better, so higher is assumed to be better. Higher"
        in page
    )
    command = done.summary["command"]
    assert "metrics=['saliency_miou', brightest_outside, spread, my_quantile]" in command
    assert "# brightest_outside: function brightest_outside of test_metric_functions.py, code hash" in command
    assert "# my_quantile: an object of the class Quantile" in command


def test_restart_recomputes_only_edited_metric(shapes, resnet, tmp_path):
    def own(power):
        @sb.metric(higher_is_better=True)
        def amount(maps):
            return maps.mean(axis=(1, 2)) ** power

        return amount

    common = settings(shapes, resnet, explainers=["random"], limit=4)
    first = sb.run(**common | {"metrics": [own(1)]}, out=tmp_path / "run")
    parts = sorted((tmp_path / "run" / "scores").rglob("*.parquet"))
    assert sb.run(**common | {"metrics": [own(1)]}, out=tmp_path / "run").summary == first.summary
    assert sorted((tmp_path / "run" / "scores").rglob("*.parquet")) == parts
    both = sb.run(**common | {"metrics": [own(2)]}, out=tmp_path / "run")
    assert [cell.metric for cell in both.cells] == ["amount", "amount"]
    assert (len({cell.metric_version for cell in both.cells}), str(both).count("amount (version ")) == (2, 2)


@pytest.mark.slow
def test_runs_with_metric_functions_are_merged_and_submitted(done, shapes, resnet, tmp_path):
    other = sb.run(**settings(shapes, resnet, explainers=["centre"]), out=tmp_path / "other")
    merged = compare_runs([read_run(done.folder), read_run(other.folder)]).merged
    assert len(merged) == 1
    assert {cell.metric for cell in merged[0].cells} == {"saliency_miou", "brightest_outside", "spread", "Quantile"}
    assert main(["report", str(done.folder), str(other.folder), "--out", str(tmp_path / "both.html")]) == 0
    assert "&lt;outside&gt;" in (tmp_path / "both.html").read_text()
    of_run(done.folder, "ada").write(tmp_path / "results")
    board = sb.load_results(tmp_path / "results")
    assert not board.refused
    versions = {row["metric"]: row["metric_version"] for row in board.table()}
    assert versions["brightest_outside"] == as_metric(brightest_outside).version
    assert versions["saliency_miou"].isdigit()


def test_unusual_metric_functions_share_a_run(shapes, resnet, tmp_path, capsys):
    @sb.metric(higher_is_better=True, range=(0, 9))
    def saliency_miou(maps, masks):
        """Nine."""
        return np.full(len(maps), 9.0)

    def channel(classifier, images, target, *, weights=[1, 0, 0]):  # noqa: B006
        return (images * torch.tensor(weights, dtype=torch.float32).view(3, 1, 1)).sum(dim=1)

    def level(maps, *, levels=[0.5, 0.7]):  # noqa: B006
        return np.mean([(maps > one).mean(axis=(1, 2)) for one in levels], axis=0)

    metrics = ["saliency_miou", saliency_miou, brightest_outside, level]
    done = sb.run(**settings(shapes, resnet, explainers=[channel], metrics=metrics), out=tmp_path / "run")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "higher" in line]
    assert "metric level" in line
    assert "sb.metric" in line
    ours, own, _, last = done.cells
    assert own.value == 9
    assert ours.value < 1
    assert ours.cell_id != own.cell_id
    assert "Nine. Higher is better, from 0 to 9" in done.report.read_text()
    assert (last.metric_options, last.explainer_options) == ({"levels": [0.5, 0.7]}, {"weights": [1, 0, 0]})


def test_score_samples_accepts_a_function():
    class Mean(torch.nn.Module):
        def forward(self, images):
            return images.mean(dim=(2, 3))

    images = torch.rand(3, 3, 4, 4)
    classifier = sb.load_classifier(Mean(), mean=0, std=1)
    from saliency_bench.compute.scoring.samples import score_samples

    found = score_samples(spread, images, classifier, "edges")
    maps = sb.load_explainer("edges")(classifier, images, torch.eye(3))
    np.testing.assert_allclose(found, spread(maps.numpy()), rtol=1e-6)
    target = sb.targets.one_hot([2, 1, 0], 3)
    logits = score_samples(margin, images, classifier, "edges", target=target)
    np.testing.assert_allclose(logits, margin(classifier, images, target, maps.numpy()), rtol=1e-6)
    refused("brightest_outside needs masks", score_samples, brightest_outside, images, classifier, "edges")
    refused(
        "options can only be set for a metric passed by name",
        score_samples,
        spread,
        images,
        classifier,
        "edges",
        power=3.0,
    )
