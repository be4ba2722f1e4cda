"""Tests of `analyse --what agreement` on generated answers with a known order of explainers, against slow code."""

import json
from csv import DictReader, writer

import numpy as np
import pyarrow.parquet as pq
import pytest
from bootstrap import draws
from pyarrow import csv
from refusals import refused
from scipy import stats
from test_analyses import left_open

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.read import records
from saliency_bench.read.analysis.order_agreement import agreement, read_answers
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.statistics.exposures import EXPOSURES
from saliency_bench.utils.hashing import sha256_of

EXPLAINERS = ["gradient", "edges", "centre", "random"]
SHOWN = EXPOSURES[1:]
SAMPLES = 30


def start(shapes, model, out, **options):
    settings = {"explainers": EXPLAINERS, "metrics": ["saliency_kae", "saliency_roae", "saliency_miou"]} | options
    return sb.run(dataset=str(shapes), model=model, split="train", limit=SAMPLES, device="cpu", progress=False, out=out,
                  **settings)  # fmt: skip


@pytest.fixture(scope="module")
def done(shapes, model, tmp_path_factory):
    return start(shapes, model, tmp_path_factory.mktemp("agreement") / "run")


@pytest.fixture(scope="module")
def answers(done, tmp_path_factory):
    """Return a file of answers of two people, who recognise explainers with a higher number later."""
    rng, rows = np.random.default_rng(0), []
    images = [row["image_id"] for row in predictions(done)]
    for rank, explainer in enumerate(EXPLAINERS):
        for image_id in images[:25]:
            for person in ("a", "b")[: 1 + (hash_of(image_id) % 2)]:
                last = min(rank + int(rng.integers(0, 3)), 7)
                rows += [(image_id, explainer, shown, person, number == last)
                         for number, shown in enumerate(SHOWN[: last + 1])]  # fmt: skip
        rows.append((images[0], explainer, 1.0, "gave up", False))
    path = tmp_path_factory.mktemp("answers") / "answers.csv"
    with path.open("w", newline="") as file:
        writer(file).writerows([("image_id", "explainer", "exposure", "person", "right"), *rows])
    return path


@pytest.fixture(scope="module")
def found(done, answers):
    return sb.analyse(done, "agreement", answers=answers).data


def hash_of(text):
    return sum(map(ord, text))


def predictions(done):
    return pq.read_table(done.folder / "predictions.parquet").to_pylist()


def literal_people(path, explainer, exposure, images):
    """Return (number of people who were right at or before an exposure, number of people) for each image."""
    with path.open() as file:
        rows = [row for row in DictReader(file) if row["explainer"] == explainer]
    found = []
    for image_id in images:
        own = [row for row in rows if row["image_id"] == image_id]
        people = {row["person"] for row in own}
        by = {row["person"] for row in own if row["right"] == "True" and float(row["exposure"]) <= exposure}
        found.append((len(by), len(people)))
    return np.array(found, float)


def automated(done, metric, explainer, exposure, images):
    rows = pq.read_table(done.folder / "records.parquet").to_pylist()
    own = {row["image_id"]: row["value"] for row in rows
           if (row["metric"], row["explainer"], row["part"]) == (metric, explainer, f"{exposure:g}")}  # fmt: skip
    return np.array([own[image_id] for image_id in images], float)


@pytest.mark.filterwarnings("ignore:An input array is constant")
@pytest.mark.parametrize("metric", ["saliency_kae", "saliency_roae"])
def test_agreement_at_each_exposure_matches_scipy(done, answers, found, metric):
    rows = [row for row in found["exposures"] if row["metric"] == metric]
    assert [row["exposure"] for row in rows] == list(SHOWN)
    images = sorted(row["image_id"] for row in predictions(done))  # the order of clusters
    images = [one for one in images if one in answers.read_text()]
    sign = -1 if metric == "saliency_roae" else 1
    drawn_at = 0.2 if metric == "saliency_kae" else 0.3  # all draws for all exposures would take too long
    for row in rows:
        people = [literal_people(answers, name, row["exposure"], images) for name in EXPLAINERS]
        values = [automated(done, metric, name, row["exposure"], images) for name in EXPLAINERS]

        def means_of(chosen, people=people, values=values):
            of_people = [own[chosen, 0].sum() / own[chosen, 1].sum() for own in people]
            return np.round([[sign * own[chosen].mean() for own in values], of_people], 12)

        expected = [function(*means_of(np.arange(25))).statistic for function in (stats.spearmanr, stats.kendalltau)]
        for name, value in zip(("spearman", "kendall tau-b"), expected, strict=True):
            assert row[name] == (None if np.isnan(value) else pytest.approx(value))
        if row["exposure"] == drawn_at:
            drawn = [means_of(chosen) for chosen in draws(25)]
            drawn = [both for both in drawn if np.isfinite(both).all()]
            ends = left_open(means_of(np.arange(25)), drawn, 25)
            for name, value, (low, high) in zip(("spearman", "kendall"), expected, ends, strict=True):
                assert (row[f"{name} low"], row[f"{name} high"]) == pytest.approx((min(low, value), max(high, value)))
        assert (row["explainers"], row["n"]) == (4, 25)


def test_crowd_auc_matches_literal_area_and_known_order(done, answers, found):
    people = {row["explainer"]: row for row in found["people"]}
    images = [row["image_id"] for row in predictions(done)]
    for name, row in people.items():
        shares = [0.0]
        for exposure in SHOWN:
            right, judged = literal_people(answers, name, exposure, images).sum(axis=0)
            shares.append(right / judged)
        expected = sum((b - a) * (x + y) / 2 for a, b, x, y in zip(EXPOSURES, SHOWN, shares, shares[1:], strict=False))
        assert row["saliency_crowd_auc"] == pytest.approx(expected)
        assert row["low"] < row["saliency_crowd_auc"] < row["high"]
        assert (row["images"], row["judgements"]) == (25, judged)
    assert sorted(people, key=lambda name: -people[name]["saliency_crowd_auc"]) == EXPLAINERS


@pytest.mark.slow
def test_merged_runs_match_single_run(shapes, model, found, answers, tmp_path):
    """Test runs in several folders, each of which contains only the parts of its own cells."""
    parts = (EXPLAINERS[:3], "kae"), (EXPLAINERS[2:], "kae"), (EXPLAINERS[1:], "roae"), (EXPLAINERS[:1], "roae")
    runs = [start(shapes, model, tmp_path / str(number), explainers=names, metrics=[f"saliency_{metric}"])
            for number, (names, metric) in enumerate(parts)]  # fmt: skip
    merged = sb.analyse(runs, "agreement", answers=answers)
    assert len(merged.runs) == 1

    def rows(data, what):
        return {tuple(row[name] for name in ("metric", "explainer", "exposure") if name in row): row
                for row in data[what]}  # fmt: skip

    for what in ("exposures", "people", "accuracies"):
        assert rows(merged.data, what) == rows(found, what)
    assert {row["explainers"] for row in merged.data["exposures"]} == {len(EXPLAINERS)}


def test_records_are_read_once_per_metric(done, answers, monkeypatch):
    run, seen, read = read_run(done.folder), [], records.by_cell
    monkeypatch.setattr(records, "by_cell", lambda path, *rest: seen.append(path) or read(path, *rest))
    agreement([run], answers)
    assert seen == [done.folder / "records.parquet"] * 2  # read once for each of two metrics


def test_values_by_part_match_records(done):
    run = read_run(done.folder)
    cells = {cell.cell_id for cell in run.cells if cell.metric != "saliency_miou"}
    found = run.values_by_part(cells)
    rows = [row for row in pq.read_table(done.folder / "records.parquet").to_pylist() if row["part"] is not None]
    assert found.keys() == cells
    assert sum(len(own) for own in found.values()) == len(cells) * len(EXPOSURES)
    assert len(rows) == len(cells) * len(EXPOSURES) * len(run.scores.ids)
    for row in rows:
        assert found[row["cell_id"]][row["part"]][run.scores.position[row["image_id"]]] == row["value"]
    some = records.by_part(done.folder / "records.parquet", cells, [*run.scores.ids[3:7], "of no run"])
    for cell_id, own in found.items():
        for part, values in own.items():
            np.testing.assert_array_equal(some[cell_id][part], [*values[3:7], np.nan])


def test_command_writes_tables_and_plot(done, answers, tmp_path, capsys):
    words = ["analyse", str(done.folder), "--what", "agreement", "--answers", str(answers), "--out", str(tmp_path)]
    assert main(words) == 0
    assert "saliency_crowd_auc" in capsys.readouterr().out
    data = json.loads((tmp_path / "agreement.json").read_text())
    assert (len(data["people"]), data["answers"]) == (len(EXPLAINERS), sha256_of(answers))
    assert {"agreement.svg", "agreement-people.csv",
            "agreement-accuracies.tex"} <= {one.name for one in tmp_path.iterdir()}  # fmt: skip


@pytest.mark.parametrize(("text", "line"), [
    ("image_id,explainer,exposure,person\na,b,1,c\n", "no column right"),
    ("image_id,explainer,exposure,person,right\n", "no answer"),
    ("image_id,explainer,exposure,person,right\na,b,50,c,true\n", "answer 1: exposure must be above 0 .*; got 50"),
    ("image_id,explainer,exposure,person,right\na,b,x,c,true\n", "answer 1: exposure .*; got x"),
    ("image_id,explainer,exposure,person,right\na,b,1,c,maybe\n", "answer 1: right must be true or false; got maybe"),
    ("image_id,explainer,exposure,person,right\n,b,1,c,1\n", "answer 1: image_id is empty"),
    ("image_id,explainer,exposure,person,right\na,b,1,c,1\na,b,1.0,c,0\n", "answer 2: c has already answered for a"),
    ("a\"\n\"", "no column image_id"),
])  # fmt: skip
def test_invalid_answers_are_rejected(tmp_path, text, line):
    path = tmp_path / "answers.csv"
    path.write_text(text)
    refused(line, read_answers, path)


def test_answers_may_be_a_parquet_file(answers, tmp_path):
    path = tmp_path / "answers.parquet"
    pq.write_table(csv.read_csv(answers), path)
    expected = read_answers(answers)
    assert str(read_answers(path)) == str(expected).replace(expected.sha256, sha256_of(path))


def test_missing_or_unrelated_answers_are_rejected(done, answers, tmp_path):
    refused("with people's answers", sb.analyse, done, "agreement")
    refused("cannot be read", sb.analyse, done, "agreement", answers=tmp_path / "none.csv")
    other = tmp_path / "other.csv"
    other.write_text(answers.read_text().replace("gradient", "mine").replace("edges", "theirs"))
    refused("centre, mine, random, theirs", sb.analyse, done, "agreement", answers=other)


def test_accuracies_cover_only_judged_images(done, answers, tmp_path):
    """Show people only a few maps of the gradient. Its accuracy by the metric then covers only these images."""
    images = [row["image_id"] for row in predictions(done)]
    lines = [line for line in answers.read_text().splitlines(keepends=True)
             if ",gradient," not in line or line.split(",")[0] in images[:7]]  # fmt: skip
    path = tmp_path / "uneven.csv"
    path.write_text("".join(lines) + "nowhere,gradient,0.5,c,true\n")
    found = sb.analyse(done, "agreement", answers=path)
    rows = [row for row in found.data["accuracies"] if row["metric"] == "saliency_kae"]
    assert rows
    for row in rows:
        own = images[:7] if row["explainer"] == "gradient" else images[:25]
        expected = automated(done, "saliency_kae", row["explainer"], row["exposure"], own).mean()
        assert row["automated"] == pytest.approx(expected, abs=1e-12)
        right, asked = literal_people(path, row["explainer"], row["exposure"], own).sum(axis=0)
        assert row["people"] == pytest.approx(right / asked, abs=1e-12)
    assert "Not in the runs: 1 of 26 images with answers, such as nowhere." in found.data["notes"]
    note = "People judged the explainers on different images; for each explainer, only its own images are used."
    assert note in found.data["notes"]
    path.write_text("image_id,explainer,exposure,person,right\nnowhere,gradient,0.5,c,true\n")
    words = r"no image of .*uneven\.csv is in the runs: the file has ids such as nowhere, but the runs have ids such "
    refused(words, sb.analyse, done, "agreement", answers=path)


def test_answers_with_dataset_apply_only_to_its_runs(done, answers, found, tmp_path):
    lines, fingerprint = answers.read_text().splitlines(), done.summary["dataset"]["fingerprint"]

    def of(dataset):
        path = tmp_path / "named.csv"
        path.write_text("\n".join([f"{lines[0]},dataset", *(f"{line},{dataset}" for line in lines[1:])]) + "\n")
        return path

    runs = [read_run(done.folder)]
    assert agreement(runs, of(fingerprint)).data["people"] == found["people"]
    refused(r"has only answers about datasets that are not in the runs: voc$", agreement, runs, of("voc"))
