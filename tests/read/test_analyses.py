"""Tests of `sb.analyse` and `saliency-bench analyse`, against slow second implementations and SciPy."""

import csv
import json
import math
import shutil
import statistics
from dataclasses import replace
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from bootstrap import draws, expanded
from commands import said
from refusals import refused
from scipy import stats
from test_reporting import METHODS, change_summary, make_run, part_of
from torch import nn

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.read import records
from saliency_bench.read.analysis.correlations import Ranked, cell_correlations, pearson
from saliency_bench.read.analysis.randomisation import verdict
from saliency_bench.read.analysis.rankings import (
    agreement,
    kendall_of,
    means_of,
    order_of,
    rank_correlations,
    spearman_of,
)
from saliency_bench.read.analysis.tables import Table
from saliency_bench.read.cell import PartResult
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.report.plots import _about_tiles
from saliency_bench.read.run_folder import CellScores, RunFiles
from saliency_bench.read.summary import aligned

SETTINGS = ("saliency_miou", "saliency_miou:threshold=0.3", "saliency_miou:threshold=0.7", "saliency_insertion",
            "saliency_pointing_game")  # fmt: skip
WHAT = ("sweep", "sensitivity", "clever-hans", "correlation", "rank")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("analyses") / "run", metrics=SETTINGS)

    def with_options(summary):
        for cell in summary["cells"]:
            text = cell["metric_text"].partition("=")[2]
            cell["metric_options"] = {"threshold": float(text or 0.5)} if cell["metric"] == "saliency_miou" else {}

    change_summary(folder, with_options)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return read_run(folder)


def cell_of(run, explainer, metric):
    return next(cell for cell in run.cells if (cell.explainer_text, cell.metric_text) == (explainer, metric))


def scores(run, explainer, metric):
    return run.scores.values[cell_of(run, explainer, metric).cell_id]


def with_scores(run, scores):
    return replace(run, files=RunFiles(scores))


def with_values(run, values):
    return with_scores(run, replace(run.scores, values=run.scores.values | values))


def left_open(means, drawn, clusters):
    """Return the intervals of (rho, tau) over all orders that are consistent with the samples.

    Args:
        means: Means of each explainer by both metrics.
        drawn: Means in each draw.
        clusters: Number of drawn clusters.
    """
    pairs = list(combinations(range(len(means[0])), 2))
    gaps = [{pair: own[pair[0]] - own[pair[1]] for pair in pairs} for own in means]
    gaps_of_draws = [[{pair: own[pair[0]] - own[pair[1]] for pair in pairs} for own in draw] for draw in drawn]
    errors = [{pair: np.std([draw[side][pair] for draw in gaps_of_draws], ddof=1) for pair in pairs} for side in (0, 1)]
    greatest = [max(abs(draw[side][pair] - gaps[side][pair]) / errors[side][pair] for side in (0, 1) for pair in pairs
                    if errors[side][pair] > 0) for draw in gaps_of_draws]  # fmt: skip
    factor = math.sqrt(clusters / (clusters - 1)) * stats.t.ppf(0.975, clusters - 1) / stats.norm.ppf(0.975)
    least = np.quantile(greatest, 0.95) * factor
    signs = [{pair: np.sign(gaps[side][pair]) * (abs(gaps[side][pair]) > least * errors[side][pair]) for pair in pairs}
             for side in (0, 1)]  # fmt: skip
    taus = [signs[0][pair] * signs[1][pair] for pair in pairs]
    is_open = taus.count(0)
    tau = (sum(taus) - is_open) / len(pairs), (sum(taus) + is_open) / len(pairs)
    k, sets = len(means[0]), []
    for own in signs:  # won: (winner, loser) of each decided pair
        won = [(pair[int(own[pair] < 0)], pair[int(own[pair] > 0)]) for pair in pairs if own[pair]]
        sets.append([(1 + sum(loser == index for _, loser in won), k - sum(winner == index for winner, _ in won))
                     for index in range(k)])  # fmt: skip
    furthest = [max(b[1] - a[0], a[1] - b[0]) for a, b in zip(*sets, strict=True)]
    nearest = [max(b[0] - a[1], a[0] - b[1], 0) for a, b in zip(*sets, strict=True)]
    rho = tuple(1 - 6 * sum(d * d for d in distances) / (k**3 - k) for distances in (furthest, nearest))
    return (max(-1.0, rho[0]), rho[1]), tau


@pytest.mark.parametrize("kind", ["numbers", "ties", "yes or no"])
def test_weighted_correlations_match_repeated_samples(kind):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 30)) + rng.normal(size=30)
    if kind != "numbers":
        first, second = np.round(first) if kind == "ties" else first > 0, np.round(second)
    weights = rng.integers(0, 4, (5, 30)).astype(float)
    ranked = Ranked(np.asarray(first, float)), Ranked(second)
    spearman = pearson(ranked[0].ranks(weights), ranked[1].ranks(weights), weights)
    linear = pearson(np.asarray(first, float), second, weights)
    for number, times in enumerate(weights.astype(int)):
        repeated = np.repeat(first, times), np.repeat(second, times)
        assert spearman[number] == pytest.approx(stats.spearmanr(*repeated).statistic)
        assert linear[number] == pytest.approx(stats.pearsonr(*repeated).statistic)


def test_constant_column_has_no_correlation():
    assert np.isnan(pearson(np.full(9, 0.1), np.arange(9.0), np.ones((1, 9))))[0]
    assert np.isnan(pearson(np.full(9, 1 / 3) * 3e8, np.arange(9.0), np.ones((1, 9))))[0]


def test_correlation_over_samples_and_interval_match_scipy(run):
    first, second = (cell_of(run, "gradcam", metric) for metric in ("saliency_miou", "saliency_insertion"))
    one, other = run.scores.values[first.cell_id], run.scores.values[second.cell_id]
    both = np.isfinite(one) & np.isfinite(other)
    order = np.argsort(np.array([f"s{run.scores.ids[k]}" for k in np.flatnonzero(both)]))  # the order of clusters
    one, other = one[both][order], other[both][order]
    spearman, linear = cell_correlations(run, first, second)
    assert spearman.value == pytest.approx(stats.spearmanr(one, other).statistic)
    assert linear.value == pytest.approx(stats.pearsonr(one, other).statistic)
    drawn = [stats.spearmanr(one[chosen], other[chosen]).statistic for chosen in draws(len(one))]
    assert [spearman.low, spearman.high] == pytest.approx(np.percentile(drawn, expanded(len(one))))
    drawn = [np.corrcoef(one[chosen], other[chosen])[0, 1] for chosen in draws(len(one))]
    assert [linear.low, linear.high] == pytest.approx(np.percentile(drawn, expanded(len(one))))
    assert (spearman.n, spearman.clusters) == (both.sum(), both.sum())
    turned = cell_correlations(run, first, second.model_copy(update={"higher_is_better": False}))
    assert turned[0].value == pytest.approx(-spearman.value)


def test_bootstrap_draws_whole_clusters(run):
    """Duplicate each sample and put both copies in one group. Groups are drawn as a whole, so no interval changes."""
    twice = [f"{image_id}{copy}" for image_id in run.scores.ids for copy in "ab"]
    groups = [image_id for image_id in run.scores.ids for _ in "ab"]
    values = {key: np.repeat(own, 2) for key, own in run.scores.values.items()}
    copied = with_scores(run, CellScores(twice, groups, values))
    cells = [cell_of(run, "gradcam", metric) for metric in ("saliency_miou", "saliency_insertion")]
    for once, both in zip(cell_correlations(run, *cells), cell_correlations(copied, *cells), strict=True):
        assert both[:3] == pytest.approx(once[:3])
        assert (both.n, both.clusters) == (2 * once.n, once.clusters)


def test_correlation_over_datasets_matches_scipy(tmp_path):
    folders = []
    for number in range(5):
        methods = {name: METHODS[name] + 0.1 * (number % 3) - 0.03 * number for name in ("gradcam", "rise")}
        folders.append(make_run(tmp_path / f"run{number}", samples=45, methods=methods, seed=number, pictures=False))
        change_summary(folders[-1], lambda summary, number=number: summary["dataset"].update(
            id=f"dataset-{number}", fingerprint=f"f{number}"))  # fmt: skip
        (folders[-1] / "run.json").unlink()
    found = sb.analyse(folders, "correlation")
    assert len(found.data["datasets"]) == 2 * 3
    runs = [read_run(folder) for folder in folders]
    for row in found.data["datasets"]:
        means = [[cell_of(run, row["explainer"], row[name]).value for run in runs] for name in ("metric", "other")]
        assert row["pearson"] == pytest.approx(stats.pearsonr(*means).statistic)
        assert row["spearman"] == pytest.approx(stats.spearmanr(*means).statistic)
        assert row["datasets"] == 5
        theirs = stats.pearsonr(*means).confidence_interval()
        assert (row["pearson low"], row["pearson high"]) == pytest.approx((theirs.low, theirs.high))
        if abs(rho := row["spearman"]) < 1:
            # Bonett and Wright (2000): the variance of artanh(rho) is (1 + rho^2 / 2) / (D - 3)
            half = stats.norm.ppf(0.975) * np.sqrt((1 + rho**2 / 2) / (5 - 3))
            ends = np.tanh(np.arctanh(rho) - half), np.tanh(np.arctanh(rho) + half)
            assert (row["spearman low"], row["spearman high"]) == pytest.approx(ends)
    assert any(abs(row["spearman"]) < 1 for row in found.data["datasets"])
    two = sb.analyse(folders[:2], "correlation")
    assert two.data["datasets"] == []
    assert "needs runs on 3 datasets with different ids; these runs are on dataset-0" in two.data["notes"][-1]
    assert not [note for note in found.data["notes"] if "needs runs on" in note]


def test_rank_agreement_matches_scipy(run):
    columns = [[cell_of(run, name, metric) for name in METHODS] for metric in ("saliency_miou", "saliency_insertion")]
    means = [[cell.value for cell in cells] for cells in columns]
    spearman, kendall = agreement(run, *columns)
    assert spearman.value == pytest.approx(stats.spearmanr(*means).statistic)
    assert kendall.value == pytest.approx(stats.kendalltau(*means).statistic)
    values = [np.stack([run.scores.values[cell.cell_id] for cell in cells], axis=1) for cells in columns]
    order = np.argsort(np.array([f"s{image_id}" for image_id in run.scores.ids]))
    drawn = [[np.nanmean(own[order][chosen], axis=0) for own in values] for chosen in draws(len(run.scores.ids))]
    for (value, low, high, *_), ends in zip(
        (spearman, kendall), left_open(means, drawn, len(run.scores.ids)), strict=True
    ):
        assert (low, high) == pytest.approx((min(ends[0], value), max(ends[1], value)))
    rows = sb.analyse(run.folder, "rank").data["pairs"]
    assert len(rows) == math.comb(len(SETTINGS), 2)
    assert {row["explainers"] for row in rows} == {len(METHODS)}, "random is included"


def test_agreement_interval_covers_true_agreement():
    """Percentiles of the draws contained the true value in only 80 %."""
    rng = np.random.default_rng(4)
    true = np.array([0.0, 0.02, 0.04, 0.06, 0.3]), np.array([0.0, 0.04, 0.02, 0.06, 0.3])
    orders = [order_of(own[None]) for own in true]
    wanted = spearman_of(*orders)[0], kendall_of(*orders)[0]
    held = np.zeros(2)
    for seed in range(40):
        scores = [own + rng.normal(0, 0.2, (60, 5)) for own in true]
        estimates = rank_correlations(
            lambda weights, scores=scores: [means_of(own, weights) for own in scores], np.arange(60), seed
        )
        held += [one.low <= value <= one.high for one, value in zip(estimates, wanted, strict=True)]
        assert all(one.low <= one.value <= one.high for one in estimates)
    assert held.min() >= 37


def test_agreement_uses_only_samples_scored_by_all(run):
    """Remove the scores of half of the samples for one explainer by the second metric."""
    cells = [[cell_of(run, name, metric) for name in METHODS] for metric in ("saliency_miou", "saliency_insertion")]
    first, lacking = cells[1][0].cell_id, run.scores.values[cells[1][0].cell_id].copy()
    lacking[::2] = np.nan
    spearman, kendall = agreement(with_values(run, {first: lacking}), *cells)
    known = np.isfinite(np.stack([run.scores.values[cell.cell_id] for own in cells for cell in own])).all(axis=0)
    known[::2] = False
    means = [[run.scores.values[cell.cell_id][known].mean() for cell in own] for own in cells]
    assert spearman.value == pytest.approx(stats.spearmanr(*means).statistic)
    assert kendall.value == pytest.approx(stats.kendalltau(*means).statistic)
    assert spearman.n == known.sum() < len(run.scores.ids)
    nothing = {cell.cell_id: np.full(len(run.scores.ids), np.nan) for cell in cells[1]}
    assert math.isnan(agreement(with_values(run, nothing), *cells)[0].value)


@pytest.mark.parametrize("seed", range(20))
def test_agreement_of_tied_orders_matches_scipy(seed):
    first, second = np.random.default_rng(seed).integers(0, 3, (2, 6)).astype(float)
    orders = [order_of(one[None]) for one in (first, second)]
    for function, known in ((kendall_of, stats.kendalltau), (spearman_of, stats.spearmanr)):
        assert function(*orders)[0] == pytest.approx(known(first, second).statistic, nan_ok=True)


def test_means_skip_missing_values():
    columns = np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, 7.0]])
    weights = np.array([[1.0, 1, 1], [2, 1, 0]])
    np.testing.assert_allclose(means_of(columns, weights), [[2, 6], [5 / 3, 5]])


def test_sensitivity_reports_mean_and_worst_rank_over_settings(folder, run):
    rows = {row["explainer"]: row for row in sb.analyse(folder, "sensitivity").data["explainers"]}
    ranks = {name: [] for name in METHODS}
    for metric in SETTINGS[:3]:
        means = {name: cell_of(run, name, metric).value for name in METHODS}
        for name in METHODS:
            above = sum(other > means[name] for other in means.values())
            ties = sum(other == means[name] for other in means.values()) - 1
            ranks[name].append(1 + above + ties / 2)
    assert list(rows) == sorted(METHODS, key=lambda name: (np.mean(ranks[name]), max(ranks[name])))
    for name, row in rows.items():
        assert (row["mean rank"], row["worst rank"]) == (pytest.approx(np.mean(ranks[name])), max(ranks[name]))
        sets = [cell_of(run, name, metric).rank for metric in SETTINGS[:3]]
        assert row["survives"] == ("yes" if all(low == 1 for low, _ in sets) else "no")
        assert row["settings"] == 3
    assert rows["gradcam"]["survives"] == "yes"


def test_sweep_has_point_and_interval_per_option_value(folder, run):
    points = sb.analyse(folder, "sweep", option="threshold").data["points"]
    assert len(points) == 3 * len(METHODS)
    assert [point["at"] for point in points[:3]] == [0.3, 0.5, 0.7]
    for point in points:
        text = "saliency_miou" if point["at"] == 0.5 else f"saliency_miou:threshold={point['at']}"
        cell = cell_of(run, point["explainer"], text)
        assert [point[name] for name in ("value", "low", "high", "n")] == [cell.value, cell.low, cell.high, cell.n]
    assert sb.analyse(folder, "sweep").data["points"] == points
    refused("tolerance", sb.analyse, folder, "sweep", option="tolerance")


def with_confidences(folder, out):
    """Copy a run and replace the confidences and the correctness of its predictions by random values."""
    shutil.copytree(folder, out)
    table = pq.read_table(out / "predictions.parquet")
    confidences = np.random.default_rng(1).uniform(0.7, 1, len(table)).tolist()
    confidences[1::3] = [None] * len(confidences[1::3])
    correct = [(True, True, False, None)[number % 4] for number in range(len(table))]
    for name, values in (("target_confidence", confidences), ("correct", correct)):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    records.write(out / "predictions.parquet", table, records.PREDICTIONS)
    ids = table["image_id"].to_pylist()
    return dict(zip(ids, confidences, strict=True)), dict(zip(ids, correct, strict=True))


@pytest.mark.parametrize("options", [{}, {"confidence": 0.8, "pointing_game": 0.7, "insertion": 0.3}])
def test_clever_hans_samples_match_literal_criterion(folder, run, tmp_path, options):
    confidences, correct = with_confidences(folder, tmp_path / "run")
    found = sb.analyse(tmp_path / "run", "clever-hans", **options)
    expected = []
    for name in ("gradcam", "rise", "integrated_gradients"):  # without the baseline
        pointing, insertion = scores(run, name, "saliency_pointing_game"), scores(run, name, "saliency_insertion")
        both = [
            k
            for k, image_id in enumerate(run.scores.ids)
            if math.isfinite(pointing[k]) and math.isfinite(insertion[k]) and confidences[image_id] is not None
        ]
        least = options.get("insertion", statistics.median(insertion[both].tolist()))
        for k in both:
            confident = (
                confidences[run.scores.ids[k]] > options.get("confidence", 0.9)
                and correct[run.scores.ids[k]] is not False
            )
            if confident and pointing[k] < options.get("pointing_game", 0.5) and insertion[k] > least:
                expected.append((name, run.scores.ids[k]))
    assert sorted((row["explainer"], row["sample"]) for row in found.data["samples"]) == sorted(expected)
    assert len(expected) > 3
    for row in found.data["samples"]:
        assert row["confidence"] == confidences[row["sample"]]
        assert {row["label"], row["prediction"], row["target"]} <= {"circle", "square"}
        known = len(both)
    assert {one["of"] for one in found.data["explainers"]} == {known}
    for one in found.data["explainers"]:
        theirs = stats.binomtest(one["found"], known).proportion_ci(method="wilson")
        shares = [one["found"] / known, theirs.low, theirs.high]
        assert [one[name] for name in ("share", "low", "high")] == pytest.approx(shares)


def test_run_without_target_confidence_is_rejected(folder, tmp_path):
    with_confidences(folder, tmp_path / "run")
    path = tmp_path / "run" / "predictions.parquet"
    pq.write_table(pq.read_table(path).drop_columns("target_confidence"), path)
    refused(r"target_confidence.*start the run again", sb.analyse, tmp_path / "run", "clever-hans")


def test_merged_runs_give_same_clever_hans_samples(folder, tmp_path):
    with_confidences(folder, tmp_path / "run")
    names = list(METHODS)
    parts = [part_of(tmp_path / "run", tmp_path / f"part{number}", tuple(own))
             for number, own in enumerate((names[:1], names[1:]))]  # fmt: skip
    options = {"confidence": 0.7, "pointing_game": 0.9, "insertion": 0.1}
    whole, found = (sb.analyse(runs, "clever-hans", **options) for runs in (tmp_path / "run", parts))
    assert len(found.runs) == 1
    assert {row["explainer"] for row in whole.data["samples"]} == {"gradcam", "rise", "integrated_gradients"}
    for what in ("samples", "explainers"):
        assert sorted(found.data[what], key=str) == sorted(whole.data[what], key=str)


def test_analyse_options_may_be_zero(folder, capsys):
    line = ["analyse", str(folder), "--what", "clever-hans", "--confidence", "0", "--insertion", "0", "--json"]
    found = json.loads(said(capsys, line))
    assert found["samples"] == sb.analyse(folder, "clever-hans", confidence=0, insertion=0).data["samples"]
    assert found["samples"] != sb.analyse(folder, "clever-hans").data["samples"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", WHAT)
def test_analysis_is_saved_as_json_tables_and_plot(what, folder, tmp_path, capsys):
    line = ["analyse", str(folder), "--what", what, *(["--confidence", "0.5"] if what == "clever-hans" else [])]
    shown = said(capsys, [*line, "--out", str(tmp_path)])
    found = sb.analyse(str(folder), what, **({"confidence": 0.5} if what == "clever-hans" else {}))
    for suffix in (".json", ".csv", ".md", ".tex", ".svg"):
        assert f"written: {tmp_path / what}{suffix}" in shown
        assert (tmp_path / f"{what}{suffix}").stat().st_size > 50
    # not repeated in every row, because there is only one run
    assert "small-resnet" not in shown.partition("written")[0]
    assert json.loads((tmp_path / f"{what}.json").read_text())["what"] == what
    rows = list(csv.reader((tmp_path / f"{what}.csv").read_text().splitlines()))
    assert (rows[0], len(rows)) == (list(found.tables[0].header), 1 + len(found.tables[0].rows))
    assert (tmp_path / f"{what}.svg").read_bytes().lstrip().startswith(b"<?xml")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(found.save(tmp_path)) == set(before)
    assert {path: path.read_bytes() for path in before} == before
    capsys.readouterr()
    assert json.loads(said(capsys, [*line, "--json"]))["what"] == what


def test_tables_render_as_csv_markdown_and_latex():
    table = Table(("a_b", "n", "x"), [("r|s", 3, 0.12345), ("50 %", None, float("nan"))])
    assert table.csv() == "a_b,n,x\nr|s,3,0.12345\n50 %,,\n"
    assert table.markdown() == "| a_b | n | x |\n| --- | --- | --- |\n| r\\|s | 3 | 0.123 |\n| 50 % | – | – |\n"
    assert table.latex() == (
        "\\begin{tabular}{lrr}\n\\toprule\na\\_b & n & x \\\\\n\\midrule\nr|s & 3 & 0.123 \\\\\n"
        "50 \\% & -- & -- \\\\\n\\bottomrule\n\\end{tabular}\n"
    )


@pytest.fixture(scope="module")
def one_metric(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("plain"), samples=30, metrics=("saliency_miou",), pictures=False)


@pytest.mark.parametrize(("line", "message"), [
    ("--what correlations", "choose from 'correlation'"),
    ("--what correlation --option threshold", "correlation has no option option"),
    ("--what sensitivity", "more than one setting"),
    ("--what sweep", "more than one value"),
    ("--what correlation --out taken", "taken is not a folder"),
    ("--what clever-hans", "saliency_insertion"),
    ("--what rank", "two metrics"),
    ("--what randomisation", "--metrics saliency_randomisation:layers=5"),
])  # fmt: skip
def test_invalid_arguments_give_one_line_error(line, message, one_metric, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    shown = said(capsys, ["analyse", str(one_metric), *line.split()], 2)
    assert message in shown
    assert shown.count("\n") == 1


@pytest.mark.slow
def test_save_replaces_only_files_of_earlier_analysis(folder, tmp_path):
    found = sb.analyse(folder, "correlation")
    for name in ("correlation.csv", "correlation.json"):
        (tmp_path / name).write_text("mine")
        refused(rf"{name} exists and was not written by an analysis", found.save, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()
    written = found.save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert found.save(tmp_path) == written


def test_gallery_reports_omitted_samples():
    picture = np.zeros((2, 2, 3), np.uint8)
    assert _about_tiles(2, [picture, picture]) == ""
    assert _about_tiles(40, [picture] * 12) == "12 of the 40 found"
    assert "some tiles have no photograph" in _about_tiles(2, [picture, None])


def test_table_escapes_control_characters_in_class_names():
    name = "dog\u202egod\x1b[2J"
    shown = aligned([["class"], [name]])
    assert shown.splitlines()[2] == r"dog\u202egod\x1b[2J"


@pytest.fixture(scope="module")
def done(shapes, tmp_path_factory):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 6, 5, 2), nn.ReLU(), nn.Conv2d(6, 8, 3, 2), nn.ReLU(), nn.Flatten(),
                           nn.LazyLinear(8))  # fmt: skip
    module(torch.rand(1, 3, 32, 32))
    model = sb.load_classifier(module, mean=0.5, std=0.25, device="cpu")
    return sb.run(dataset=str(shapes), model=model, split="train", explainers=["gradient", "edges"], target="predicted",
                  metrics=["saliency_randomisation", "saliency_randomisation:form=complexity"], limit=30,
                  out=tmp_path_factory.mktemp("randomised") / "run", device="cpu", progress=False)  # fmt: skip


def test_gradient_depends_on_weights_and_edges_do_not(done):
    data = sb.analyse(done, "randomisation").data
    found = {row["explainer"]: row for row in data["explainers"]}
    assert {name: row["verdict"] for name, row in found.items()} == {"gradient": "depends", "edges": "does not depend"}
    assert (found["edges"]["similarity"], found["edges"]["changes at"]) == (1, None)
    cells = {cell.explainer: cell for cell in done.cells if "complexity" not in cell.metric_text}
    assert len(data["layers"]) == 2 * 3
    for row in data["layers"]:
        part = cells[row["explainer"]].parts[row["down to"]]
        assert [row[name] for name in ("similarity", "low", "high", "n")] == [part.value, part.low, part.high, part.n]
        lies = part.low > 0.5, part.high < 0.5
        assert row["verdict"] == {(True, False): "does not depend", (False, True): "depends"}.get(lies, "undecided")
    order = [row["down to"] for row in data["layers"][:3]]
    assert order == list(cells["edges"].parts)
    assert found["gradient"]["changes at"] in order


@pytest.mark.parametrize(("ends", "bound", "word"), [
    ((0.6, 0.9), 0.5, "does not depend"), ((0.5, 0.9), 0.5, "undecided"), ((0.1, 0.5), 0.5, "undecided"),
    ((0.1, 0.4), 0.5, "depends"), ((0.6, 0.9), 0.7, "undecided"), ((None, None), 0.5, "too few samples"),
])  # fmt: skip
def test_randomisation_verdict_matches_hand_values(ends, bound, word):
    assert verdict(PartResult(value=0.5, low=ends[0], high=ends[1], n=30, clusters=30), bound) == word


def test_randomisation_command_writes_json_tables_and_plot(done, tmp_path, capsys):
    assert main(["analyse", str(done.folder), "--what", "randomisation", "--bound", "0.9", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "randomisation.json").read_text())["bound"] == 0.9
    assert {path.name for path in tmp_path.iterdir()} == {
        "randomisation.json", "randomisation.svg", *(f"randomisation{name}.{kind}" for name in ("", "-layers")
                                                      for kind in ("csv", "md", "tex"))}  # fmt: skip
    assert "above 0.9" in capsys.readouterr().out


def test_unknown_analyses_and_bounds_are_rejected(done):
    refused("unknown analysis", sb.analyse, done, "nothing")
    refused("between -1 and 1; got 1", sb.analyse, done, "randomisation", bound=1.0)
