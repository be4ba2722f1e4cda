"""Tests of scores of retrained networks. Their intervals allow for the variation of images and training runs."""

import json
import math
from itertools import combinations

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import said
from refusals import refused
from scipy import stats
from test_paired_test import literal_holm
from test_reporting import METHODS, _key, change_summary, make_run

import saliency_bench as sb
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.statistics.intervals import bounded
from saliency_bench.read.statistics.ranking import FEW_TRAININGS, compare
from saliency_bench.read.statistics.trainings import areas_by_training, count_trainings, crossed

UNIT = (0.0, 1.0)


def test_areas_by_training_match_hand_computation():
    parts = {
        "0 training 1": [1.0, 1], "0 training 2": [1.0, 0], "0.5 training 1": [1.0, 0], "0.5 training 2": [0.0, 0],
        "1 training 1": [0.0, 1], "1 training 2": [0.0, 0],
    }  # fmt: skip
    areas = areas_by_training({name: np.array(values) for name, values in parts.items()})
    assert areas.tolist() == [[0.75, 0.25], [0.5, 0]]  # (a(0) + a(.5)) / 4 + (a(.5) + a(1)) / 4
    assert count_trainings(parts) == 2
    assert areas_by_training({"0.5": np.ones(2)}) is None
    assert count_trainings(["0.5", "normal"]) is None


def test_intervals_cover_mean_over_trainings():
    """Both trainings and images vary."""
    rng, hits = np.random.default_rng(3), 0
    for _ in range(200):
        areas = 0.4 + rng.normal(0, 0.1, (60, 1)) + rng.normal(0, 0.05, (1, 5)) + rng.normal(0, 0.05, (60, 5))
        estimate = crossed(np.clip(areas, 0, 1), np.arange(60), UNIT)
        hits += estimate.low <= 0.4 <= estimate.high
    assert hits >= 200 * (0.93 - 2.5 * (0.93 * 0.07 / 200) ** 0.5)


def test_single_training_keeps_interval_over_images():
    scores = np.random.default_rng(1).random((40, 1))
    assert crossed(scores, np.arange(40), UNIT)[:6] == pytest.approx(bounded(scores[:, 0], np.arange(40), UNIT)[:6])


@pytest.mark.parametrize("trainings", [4, 5])
def test_explainers_are_ranked_from_five_trainings(trainings):
    keys = [_key(name, "saliency_roar", 0).model_copy(update={"metric_options": {"trainings": trainings}})
            for name in ("gradcam", "random")]  # fmt: skip
    draws = np.random.default_rng(0).random((2, 60)) * [[1], [0.3]]
    scores = {key.cell_id: own for key, own in zip(keys, draws, strict=True)}
    ids = [f"i{number}" for number in range(60)]
    (contrast,), standings = compare(keys, scores, cluster_codes(ids, [None] * 60), 0)
    if trainings == 5:
        assert contrast.p < 0.05
        assert all(standing.rank for standing in standings.values())
    else:
        assert contrast.p is None
        assert {standing.unranked for standing in standings.values()} == {FEW_TRAININGS}


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Return six runs that differ only in the network."""
    root = tmp_path_factory.mktemp("networks")
    folders = [root / f"seed-{seed}" for seed in range(6)]
    for seed, folder in enumerate(folders):
        make_run(folder, methods=dict(reversed(METHODS.items())), seed=seed, pictures=False)
        manifest = read_manifest(folder)
        identity = manifest.identity.model_copy(update={"seed": 0, "classifier": f"{seed}" * 16})
        manifest.model_copy(update={"identity": identity}).write(folder)
        change_summary(folder, lambda summary: (summary["model"].update(digest=f"d{seed}"), summary.update(seed=0)))  # noqa: B023
    return folders


def literal(x):
    """Return (mean, spread, low, high, variance of images, variance of trainings) of scores[image][network]."""
    n, t = len(x), len(x[0])
    of_images, of_networks = [sum(row) / t for row in x], [sum(row[k] for row in x) / n for k in range(t)]
    m = sum(of_images) / n
    squares = [(value - m) ** 2 for value in of_images]
    within, freedom = sum(squares) / n / (n - 1), n - 1
    spread = math.sqrt(sum((value - m) ** 2 for value in of_networks) / (t - 1))
    if (concentration := sum(q**2 for q in squares) / sum(squares) ** 2 - 1 / n) > 0:
        freedom = min(freedom, 2 / concentration)
    between = spread**2 / t
    v = within + between
    size, freedom_of_both = m * (1 - m) / v, v**2 / (within**2 / freedom + between**2 / (t - 1))

    def end(side, tail):
        z = stats.t.ppf(1 - tail, freedom_of_both)
        half = z * math.sqrt(m * (1 - m) / size + z * z / 4 / size**2)
        return (m + z * z / 2 / size + side * half) / (1 + z * z / size)

    low, high = (outlasting(lambda tail, side=side: end(side, tail), far, m, n) for side, far in ((-1, 0), (1, 1)))
    return m, spread, low, high, within, between, freedom


def outlasting(end, far, mean, clusters):
    """Return the end of an interval that allows for a share of images at `far` that the samples do not contain."""

    def moved(chance):
        bounds = []
        for point in range(50):
            tail = chance + (point + 0.5) / 50 * (1 - chance)
            others = (chance / tail) ** (1 / clusters)
            bounds.append(others * end(tail) + (1 - others) * far)
        return min(bounds) if far < mean else max(bounds)

    ordinary, wide = end(0.025), moved(0.025 * min(3, 1.5 + 30 / clusters))
    if abs(wide - ordinary) > 3 * abs(ordinary - mean):
        wide = moved(0.025)
    return min(ordinary, wide) if far < mean else max(ordinary, wide)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_seed_study_matches_literal_computation(networks, count):
    study, scores = sb.seed_study(networks[:count]), {}
    for number, folder in enumerate(networks[:count]):
        for row in pq.read_table(folder / "records.parquet").to_pylist():
            if row["part"] is None and row["value"] is not None:
                own = scores.setdefault((row["explainer"], row["metric"]), {})
                own.setdefault(row["image_id"], {})[number] = row["value"]
    matrices = {key: [[row[k] for k in range(count)] for _, row in sorted(images.items()) if len(row) == count]
                for key, images in scores.items()}  # fmt: skip
    table = study.to_pandas()
    assert len(table) == 15
    for row in table.itertuples():
        x = matrices[row.explainer, row.metric]
        mean, spread, low, high, *_ = literal(x)
        assert (row.value, row.spread, row.n) == (pytest.approx(mean), pytest.approx(spread), len(x))
        known = (pytest.approx(low), pytest.approx(high)) if count > 2 else (pytest.approx(np.nan, nan_ok=True),) * 2
        assert (row.low, row.high) == known
        assert row[14] == pytest.approx(np.mean([line[0] for line in x]))  # the column "seed-0"
    assert table["rank_low"].notna().all() == (count == 6)
    for metric in {metric for _, metric in matrices} if count == 6 else ():
        names, p = [name for name, of in matrices if of == metric], {}
        for pair in combinations(names, 2):
            d = [[a - b for a, b in zip(*rows, strict=True)]
                 for rows in zip(*(matrices[n, metric] for n in pair), strict=True)]  # fmt: skip
            m, _, _, _, within, between, freedom = literal([[(v + 1) / 2 for v in row] for row in d])
            t = (m - 0.5) / math.sqrt(within + between)
            p[pair] = 2 * stats.t.sf(abs(t), min(freedom, (count - 1) * (within + between) / between)), t
        adjusted = literal_holm([alone for alone, _ in p.values()])
        better = {pair if t > 0 else pair[::-1]
                  for (pair, (_, t)), q in zip(p.items(), adjusted, strict=True) if q < 0.05}  # fmt: skip
        for row in table[table["metric"] == metric].itertuples():
            assert row.rank_low == 1 + sum(pair[1] == row.explainer for pair in better)
            assert row.rank_high == 5 - sum(pair[0] == row.explainer for pair in better)
            beats = all((row.explainer, name) in better for name in ("random", "centre"))
            assert row.best == (row.rank_low == 1 and beats)
        assert table["best"].any()


def test_command_matches_seed_study_function(networks, tmp_path, capsys):
    words = ["report", *map(str, networks[:3]), "--seeds", "--table", str(tmp_path / "t.tex"), "--digits", "1",
             "--figure", str(tmp_path / "f.pdf"), "--labels", "rise=RISE"]  # fmt: skip
    study = sb.seed_study([sb.load_run(folder) for folder in networks[:3]])
    shown = json.loads(said(capsys, [*words, "--json"]))
    assert shown["rows"] == study.as_dict()["rows"]
    assert (tmp_path / "t.tex").read_text() == study.to_latex(digits=1, labels={"rise": "RISE"})
    bare = study.to_latex(intervals=False, labels={study.rows[0].metric: r"$\mathrm{mIoU}$"})
    assert "nterval" not in bare
    assert bare.isascii()  # also for arrows next to a label in LaTeX
    assert r"RISE & 0.4 $\pm$ 0.0 {\scriptsize [0.4, 0.5]}\rlap{\textsuperscript{a}} & " in study.to_latex(
        digits=1, labels={"rise": "RISE"})  # fmt: skip
    assert (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")
    assert str(study) in said(capsys, words)


def test_incompatible_runs_are_rejected_as_seed_study(networks, tmp_path):
    other = make_run(tmp_path / "other", seed=7, pictures=False)
    change_summary(other, lambda summary: summary["model"].update(digest="d7"))
    refused("at least two networks", sb.seed_study, networks[:1])
    refused("the same network", sb.seed_study, [networks[0]] * 2)
    refused("different seed", sb.seed_study, [networks[1], other])


def test_unbounded_scores_have_student_interval():
    values = np.random.default_rng(5).normal(3, 2, (40, 4)) + np.array([0, 0.2, 0.1, -0.3])
    mean, _, _, _, within, between, freedom = literal(values.tolist())
    freedom = (within + between) ** 2 / (within**2 / freedom + between**2 / 3)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(within + between)
    estimate = crossed(values, np.arange(40), (-math.inf, math.inf))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((mean, mean - half, mean + half))
    assert crossed(values, np.arange(40), (mean - half / 2, math.inf)).low == pytest.approx(mean - half / 2)
