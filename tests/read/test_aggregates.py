"""Tests of metrics whose value is a function of the means of their parts: summary, page, comparison and submission."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from bootstrap import draws, expanded
from refusals import refused

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.board import checks
from saliency_bench.board.checks import checked
from saliency_bench.board.recorded import recorded
from saliency_bench.board.submission import of_run
from saliency_bench.board.submission_schema import Result
from saliency_bench.read.analysis.comparison import compare_runs, lines
from saliency_bench.read.analysis.differences import conflicts, differences
from saliency_bench.read.analysis.pairs import explainer_pairs
from saliency_bench.read.analysis.verdict import Verdict
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.report.comparison_page import difference_verdict
from saliency_bench.read.report.sample_pictures import sample_groups
from saliency_bench.read.statistics.ranking import NOT_TESTED, UNRANKED, compare, read_contrasts
from saliency_bench.read.summary import legend
from saliency_bench.score_notes import PARTS_ONLY

SAMPLES, NOTE = 60, "a made-up harmonic mean"


def harmonic(means, options):
    """Return the harmonic mean of the accuracies at two exposures."""
    first, second = means[:, 4], means[:, 6]
    return 2 * first * second / np.maximum(first + second, 1e-300)


@pytest.fixture(scope="module", autouse=True)
def aggregate():
    """Define saliency_kae, whose parts are accuracies, as a metric with one number over all samples."""
    with pytest.MonkeyPatch.context() as patch:
        function = registry.load("metrics", "saliency_kae", "score").saliency_kae
        changed = replace(function.declaration, reduce=None, aggregate=harmonic, note=NOTE)
        patch.setattr(function, "declaration", changed)
        checks._metric.cache_clear()  # another test may have loaded the metric without the aggregate
        yield
    checks._metric.cache_clear()


def run(shapes, model, out, explainers, **changes):
    settings = {"metrics": ["saliency_kae", "saliency_miou"], "limit": SAMPLES} | changes
    return sb.run(dataset=str(shapes), model=model, split="train", explainers=explainers, out=out, batch_size=20,
                  device="cpu", progress=False, **settings)  # fmt: skip


@pytest.fixture(scope="module")
def done(shapes, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("aggregates")
    return run(shapes, model, folder / "first", ["gradient", "random"])


def parts_of(done, explainer):
    """Return (parts (n, P), records), in the order of the clusters."""
    rows = pq.read_table(done.folder / "records.parquet").to_pylist()
    own = [row for row in rows if (row["metric"], row["explainer"]) == ("saliency_kae", explainer)]
    own.sort(key=lambda row: row["group"] or row["image_id"])  # the order of clusters, each of which is a single sample
    names = list(dict.fromkeys(row["part"] for row in own if row["part"]))
    return np.array([[row["value"] for row in own if row["part"] == name] for name in names]).T, own


def literal(columns):
    means = [sum(column) / len(column) for column in columns.T]
    return 2 / (1 / means[4] + 1 / means[6]) if means[4] and means[6] else 0.0


def drawn(statistic):
    return np.percentile([statistic(row) for row in draws(SAMPLES)], expanded(SAMPLES))


def test_aggregate_has_bootstrap_interval_and_no_rank(done):
    for name in ("gradient", "random"):
        columns, rows = parts_of(done, name)
        cell = next(cell for cell in done.cells if (cell.metric, cell.explainer) == ("saliency_kae", name))
        assert cell.aggregate
        assert cell.value == pytest.approx(literal(columns))
        assert (cell.low, cell.high) == pytest.approx(tuple(drawn(lambda chosen: literal(columns[chosen]))))  # noqa: B023
        assert (cell.n, cell.clusters, cell.rank, cell.median) == (SAMPLES, SAMPLES, None, None)
        assert cell.unranked == UNRANKED
        reasons = {(row["value"], row["reason"].partition("; ")[0]) for row in rows if row["part"] is None}
        assert reasons == {(None, PARTS_ONLY)}  # remarks on the map may follow
        assert (cell.left_out, cell.scored) == ({}, 1.0)
        assert cell.parts["0.2"].value == pytest.approx(columns[:, 4].mean())
    assert all(cell.rank for cell in done.cells if not cell.aggregate)


def test_aggregate_difference_has_interval_and_no_test(done):
    first, second = (parts_of(done, name)[0] for name in ("gradient", "random"))
    (contrast,) = [one for one in read_contrasts(done.summary["comparisons"]) if one.metric == "saliency_kae"]
    assert contrast.explainers == ("gradient", "random")
    assert contrast.difference == pytest.approx(literal(first) - literal(second)) != pytest.approx(0)
    ends = drawn(lambda chosen: literal(first[chosen]) - literal(second[chosen]))
    assert (contrast.low, contrast.high) == pytest.approx(tuple(ends))
    assert contrast.p is None


def test_aggregates_with_missing_part_are_not_compared(done):
    """Test parts that are missing for all samples, as for a second classifier that classifies no image correctly."""
    cells = [cell for cell in done.cells if cell.metric == "saliency_kae"]
    parts = {cell.cell_id: np.full((SAMPLES, len(cell.parts)), 0.5) for cell in cells}
    scores, clusters = {cell.cell_id: np.full(SAMPLES, np.nan) for cell in cells}, np.arange(SAMPLES)
    assert len(compare(cells, scores, clusters, 0, parts)[0]) == 1
    for columns in parts.values():
        columns[:, 4] = np.nan
    assert compare(cells, scores, clusters, 0, parts)[0] == []


def test_page_and_console_describe_aggregate(done):
    verdict = Verdict(done.cells, read_contrasts(done.summary["comparisons"]))
    found = {one.metric: one.word for table in verdict.against_baselines() for one in table}
    assert found["saliency_kae"] == NOT_TESTED != found["saliency_miou"]
    assert sum("saliency_kae" in sentence for sentence in verdict.sentences()) == 1
    assert f"saliency_kae: {NOTE}" in legend(done.cells)
    page = (done.folder / "report.html").read_text()
    assert f"saliency_kae: {NOTE}." in page
    assert NOT_TESTED in page


def test_merged_runs_compare_aggregates_of_all_explainers(done, shapes, model, tmp_path):
    other = run(shapes, model, tmp_path / "other", ["edges"])
    (merged,) = compare_runs([read_run(one.folder) for one in (done, other)]).merged
    pairs = {one.explainers: one for one in merged.contrasts if one.metric == "saliency_kae"}
    assert set(pairs) == {("gradient", "random"), ("gradient", "edges"), ("random", "edges")}
    found = literal(parts_of(done, "gradient")[0]) - literal(parts_of(other, "edges")[0])
    assert pairs["gradient", "edges"].difference == pytest.approx(found)


def test_run_differences_include_untested_aggregates(done, shapes, model, tmp_path):
    predicted = run(shapes, model, tmp_path / "other", ["gradient", "random"], target="predicted")
    own = [
        one for one in differences(read_run(done.folder), read_run(predicted.folder)) if one["metric"] == "saliency_kae"
    ]
    (found,) = [one for one in own if one["explainer"] == "gradient"]
    first, second = (parts_of(one, "gradient")[0] for one in (done, predicted))
    assert found["mean"] == pytest.approx(literal(second) - literal(first)) != pytest.approx(0)
    ends = drawn(lambda chosen: literal(second[chosen]) - literal(first[chosen]))
    assert (found["low"], found["high"], found["p"]) == (pytest.approx(ends[0]), pytest.approx(ends[1]), None)
    comparison = compare_runs([read_run(one.folder) for one in (done, predicted)])
    (difference,) = comparison.differences
    text = "\n".join([*lines(comparison, ["a", "b"]), difference_verdict("Run 1", "Run 2", difference.pairs)])
    assert "too few" not in text
    assert "; 2 not tested" in text
    assert "2 differing values are aggregates, not tested." in text


def test_submission_with_altered_aggregate_is_rejected(done):
    submission = of_run(done.folder, "somebody")
    content = json.loads(submission.result.model_dump_json())
    place = next(index for index, cell in enumerate(content["cells"]) if cell["aggregate"])
    for change in ({"value": content["cells"][place]["value"] + 1e-3}, {"high": 1.0}, {"aggregate": False}):
        changed = json.loads(json.dumps(content))
        changed["cells"][place] |= change
        result = Result.model_validate_json(json.dumps(changed))
        records = recorded(result, submission.records, done.folder)
        refused(f"{next(iter(change))} of cell", checked, result, records, done.folder)


def test_aggregates_have_no_per_sample_scores(done):
    run = read_run(done.folder)
    cells = [cell for cell in run.cells if cell.aggregate]
    for cell in cells:
        assert np.isnan(run.scores.values[cell.cell_id]).all()
        assert run.scores.takes_part(cell).sum() == cell.n == SAMPLES
    shown = [overlay["scores"] for group in sample_groups(run) for sample in group["samples"]
             for overlay in sample["overlays"]]  # fmt: skip
    assert shown
    assert {name for scores in shown for name, _ in scores} == {"saliency_miou"}
    (pairs,) = [pairs for column, pairs in explainer_pairs(run) if column.name == "saliency_kae"]
    assert [(one.better, one.equal, one.worse, one.ahead, one.behind) for one in pairs] == [(None, None, None, [], [])]
    page = (done.folder / "report.html").read_text()
    assert (page.count("Mean with 95 % interval"), page.count("Scores of the samples:")) == (2, 1)


def test_run_with_only_aggregates_shows_first_samples(shapes, model, tmp_path):
    done = run(shapes, model, tmp_path / "run", ["gradient"], metrics=["saliency_kae"], limit=30)
    (first,) = sample_groups(read_run(done.folder))
    assert first["kind"] == "first"
    assert [sample["id"] for sample in first["samples"]] == read_run(done.folder).scores.ids[: len(first["samples"])]
    assert "Chosen by" not in (done.folder / "report.html").read_text()


def test_different_parts_under_one_id_are_a_conflict(done, shapes, model, tmp_path):
    run, changed = read_run(done.folder), read_run(done.folder)
    (cell, _) = [cell for cell in run.cells if cell.aggregate]
    changed.scores.parts[cell.cell_id][3, 2] = 1 - changed.scores.parts[cell.cell_id][3, 2]
    (conflict,) = conflicts(*((each.cells, each.scores) for each in (run, changed)))
    assert (conflict.cell_id, conflict.samples, conflict.common, conflict.largest) == (cell.cell_id, 1, SAMPLES, None)
