"""Tests of suites: valid files, the runs that follow from a file, and the tables made from the runs."""

import json
import re
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from refusals import refused
from scipy import stats
from test_golden_run import network

import saliency_bench as sb
from saliency_bench import cli
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.python_objects import describe
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.statistics.intervals import Estimate, outlasting_rare_scores, student
from saliency_bench.recipes.suites.costs import Cost, cost_of_image, cost_of_retraining, cost_of_training, speed_of
from saliency_bench.recipes.suites.drawing import plot_of
from saliency_bench.recipes.suites.numbers import Results
from saliency_bench.recipes.suites.suite import planned, suite
from saliency_bench.recipes.suites.suite_jobs import Network, SuiteChoice, jobs_of, selection
from saliency_bench.recipes.suites.suite_plan import side_by_side
from saliency_bench.recipes.suites.suite_schema import Suite, TrainingSpec, find_suite, read_suite
from saliency_bench.recipes.suites.suite_tables import make_table
from saliency_bench.recipes.suites.transformed_runs import accuracy_under

METHODS = ["gradient", "gradcam", "random"]
SUITE = {
    "paper": "Own",
    "datasets": {"one": {"name": "one", "build": "saliency-bench build one"}, "two": {"name": "two"},
                 "three": {"name": "three"}},
    "models": {"small": {"name": "small", "family": "resnet", "train": {"epochs": 1}},
               "wide": {"name": "wide", "family": "vgg", "train": {"epochs": 1}}},
    "runs": {"all": {"datasets": ["one", "two", "three"], "models": ["small", "wide"], "explainers": METHODS,
                     "metrics": ["saliency_miou"]}},
    "names": {"gradcam": "Grad-CAM"},
    "tables": {
        "scores": {
            "title": "Scores", "runs": ["all"], "rows": ["dataset", "model"], "columns": ["explainer", "value"],
            "values": {"mIoU": {"metric": "saliency_miou"},
                       "iAUC": {"metric": "saliency_insertion:steps=16", "scale": 100}},
            "show": {"explainer": ["gradcam", "gradient"], "dataset": ["two"]},
            "figures": [[0.5, None, 0.25, 1.0]],
            "notes": [{"note": "Strange.", "where": {"value": ["mIoU"]}}],
        },
        "means": {
            "title": "Means", "runs": ["all"], "rows": ["explainer"], "columns": ["variant"],
            "over": ["dataset", "model"], "values": {"mIoU": {"metric": "saliency_miou:threshold={t}"}},
            "variants": {"low": {"t": 0.3}, "half": {"t": 0.5}},
        },
        "correlations": {
            "title": "Correlations", "runs": ["all"], "rows": ["model"], "columns": ["explainer"], "over": ["dataset"],
            "values": {"r": {"metric": "saliency_miou", "against": "saliency_deletion:steps=16"}}, "plot": "",
        },
        "accuracy": {
            "title": "Accuracy", "runs": ["all"], "rows": ["dataset"], "columns": ["model", "value"],
            "values": {"top": {"accuracy": "top1"}, "up": {"accuracy": "top1", "transform": "up"}}, "plot": "",
        },
    },
    "smoke": {"drawings": 60, "passes": 1, "count": 120, "limit": 16, "options": {"saliency_insertion": {"steps": 8}}},
}  # fmt: skip


def stated(mapping):
    return {key: value for key, value in mapping.items() if value is not None}


def changed(path, **sections):
    """Write the suite to a file with entries of its sections, or keys of entries, changed or, if None, removed."""
    content = json.loads(json.dumps(SUITE))
    for section, entries in sections.items():
        known = content[section]
        new = {name: keys and stated(known.get(name, {}) | keys) for name, keys in entries.items()}
        content[section] = stated(known | new)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return changed(tmp_path_factory.mktemp("suite") / "own.yaml")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Write the suite with only one of its two models, because each run and training takes seconds."""
    one_model = {"models": {"wide": None}, "runs": {"all": {"models": ["small"]}}}
    return changed(tmp_path_factory.mktemp("suite") / "own.yaml", **one_model)


@pytest.fixture(scope="module")
def done(small, tmp_path_factory):
    out = tmp_path_factory.mktemp("suite") / "out"
    return suite(str(small), out=out, smoke=True, compare=True, device="cpu", progress=False)


@pytest.fixture(scope="module")
def both(done, file, tmp_path_factory):
    """Continue a copy of the folder of `done` with both models."""
    out = shutil.copytree(done.folder, tmp_path_factory.mktemp("both") / "out")
    return suite(str(file), out=out, smoke=True, compare=True, device="cpu", progress=False)


def runs_of(done):
    return {(job.dataset, job.model): read_run(job.folder) for job in done.jobs}


def cell(run, explainer, metric):
    return next(one for one in run.cells if (one.explainer_text, one.metric_text) == (explainer, metric))


def numbers_of(done, name):
    cells = next(table for table in done.tables if table.name == name).cells
    return {place: SimpleNamespace(**record) for place, record in cells.items()}


@pytest.mark.slow
def test_table_numbers_match_cells_in_paper_order(both):
    runs, numbers = runs_of(both), numbers_of(both, "scores")
    assert len(numbers) == 3 * 2 * 3 * 2
    for ((dataset, model), (explainer, value)), number in numbers.items():
        metric, scale = {"mIoU": ("saliency_miou", 1), "iAUC": ("saliency_insertion:steps=8", 100)}[value]
        own = cell(runs[dataset, model], explainer, metric)
        assert number.value == own.value * scale
        assert (number.low, number.high) == (own.low and own.low * scale, own.high and own.high * scale)
        assert (number.n, number.cell) == (own.n, own.cell_id)
    table = both.tables[0]
    assert table.rows[:2] == [("two", "small"), ("two", "wide")]
    assert [column[0] for column in table.columns] == ["gradcam"] * 2 + ["gradient"] * 2 + ["random"] * 2


@pytest.mark.slow
def test_paper_figures_appear_in_their_cells(both):
    numbers, row = numbers_of(both, "scores"), ("two", "small")
    figures = [numbers[row, column].paper for column in both.tables[0].columns]
    assert figures == [0.5, None, 0.25, 1.0, None, None]
    number = numbers[row, ("gradcam", "mIoU")]
    assert (number.difference, number.notes) == (number.value - 0.5, "Strange.")
    assert numbers[row, ("gradcam", "iAUC")].notes == ""
    assert all(number.paper is None for (names, _), number in numbers.items() if names != row)
    assert "The paper: Strange." in both.tables[0].notes


@pytest.mark.slow
def test_means_weight_datasets_equally_and_pool_models(both):
    runs, numbers = runs_of(both), numbers_of(both, "means")
    for ((explainer,), (variant,)), number in numbers.items():
        metric = {"low": "saliency_miou:threshold=0.3", "half": "saliency_miou"}[variant]
        means, squares, freedoms, fewest = [], [], [], 10**6
        for dataset in ("one", "two", "three"):
            scores = {}
            for model in ("small", "wide"):
                run = runs[dataset, model]
                values = run.scores.values[cell(run, explainer, metric).cell_id]
                for image, score in zip(run.scores.ids, values, strict=True):
                    scores.setdefault(image, []).append(score)
            own = [sum(pair) / 2 for pair in scores.values() if np.isfinite(pair).all()]
            means.append(sum(own) / len(own))
            squares.append(np.var(own, ddof=1) / len(own))  # each image is a separate cluster
            spread = (np.array(own) - means[-1]) ** 2
            freedoms.append(min(len(own) - 1, 2 / ((spread**2).sum() / spread.sum() ** 2 - 1 / len(own))))
            fewest = min(fewest, len(own))
        assert number.value == pytest.approx(sum(means) / 3, rel=1e-12)
        errors = np.sqrt(squares)
        # Satterthwaite's degrees of freedom of each dataset, whose images are separate clusters.
        freedom = min(freedoms)
        half = stats.t.ppf(0.975, freedom) * np.sqrt(sum(squares)) / 3
        ordinary = Estimate(number.value, number.value - half, number.value + half, 0, 0, 3 * fewest, freedom)
        error = float(np.sqrt(sum(errors**2)) / 3)
        widened = outlasting_rare_scores(ordinary, student(number.value, error, freedom), (0.0, 1.0))
        assert (number.low, number.high) == pytest.approx((widened.low, widened.high), rel=1e-9)


def test_correlations_over_datasets_align_metric_directions(done):
    runs, numbers = runs_of(done), numbers_of(done, "correlations")
    for ((model,), (explainer,)), number in numbers.items():
        pairs = [[cell(runs[dataset, model], explainer, metric).value
                  for metric in ("saliency_miou", "saliency_deletion:steps=16")]
                 for dataset in ("one", "two", "three")]  # fmt: skip
        first, second = np.array(pairs).T
        # for deletion, lower is better
        assert number.value == pytest.approx(np.corrcoef(first, -second)[0, 1], abs=1e-9)
        assert number.n == 3
        assert number.low is None


def test_accuracy_matches_runs_and_shifted_images(done):
    runs = runs_of(done)
    for ((dataset,), (model, value)), number in numbers_of(done, "accuracy").items():
        run = runs[dataset, model]
        if value == "top":
            assert number.value == run.accuracy.value
            continue
        spec = next(job.spec for job in done.jobs if (job.dataset, job.model) == (dataset, model))
        found = accuracy_under(*load(*describe(dict(spec)))[:2], "up")["accuracy"]
        assert (number.value, number.n) == (found["value"], found["n"])


def test_tables_are_saved_in_full_precision_and_shown_on_page(done):
    folder = done.folder / "tables"
    written = [f"{name}{suffix}" for name in SUITE["tables"] for suffix in (".md", ".csv", ".tex", ".json")]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*written, "own.settings.md"])
    rows = json.loads((folder / "scores.json").read_text())["numbers"]
    numbers = numbers_of(done, "scores")
    assert [row["value"] for row in rows] == [number.value for number in numbers.values()]
    assert [(row["explainer"], row["quantity"]) for row in rows] == [column for _, column in numbers]
    header = (folder / "scores.csv").read_text().splitlines()[0].split(",")
    assert header[:5] == ["dataset", "model", "explainer", "quantity", "value"]
    assert len(set(header)) == len(header)
    assert all((done.folder / row["runs"]).is_dir() for row in rows)
    page = done.page.read_text()
    assert page.count("<table>") == len(SUITE["tables"]) + 2  # the tables of settings and of the plan
    links = re.findall(r'href="(runs/[^"]+)"', page)
    assert len(links) == 3
    assert all((done.folder / link).is_file() for link in links)
    assert "src=" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.slow
def test_plot_has_a_panel_per_quantity_with_numbers(done, tmp_path):
    def panels(name, empty=()):
        table = next(table for table in done.tables if table.name == name)
        numbers = table.numbers.copy()
        if empty:
            numbers.loc[numbers["quantity"].isin(empty), ["value", "low", "high"]] = np.nan
        return plot_of(replace(table, numbers=numbers), tmp_path).count('id="axes_')

    assert panels("scores") == 2
    assert {path.name for path in tmp_path.iterdir()} == {f"scores.{kind}" for kind in ("pdf", "svg", "png")}
    assert (panels("scores", ["iAUC"]), panels("scores", ["iAUC", "mIoU"])) == (1, 0)
    assert panels("means") == 1  # variants of one quantity share a panel


@pytest.mark.slow
def test_second_start_recomputes_nothing(done, small):
    files = [path for path in sorted(done.folder.rglob("*")) if path.is_file()]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    stale = done.folder / "tables" / ".means.csv.4711.tmp"  # left by a start that was killed
    stale.touch()
    again = suite(str(small), out=done.folder, smoke=True, compare=True, device="cpu", progress=False)
    assert not again.failed
    assert not stale.exists()
    assert {path: path.read_bytes() for path in before} == {path: text for path, (text, _) in before.items()}
    kept = [path for path in before if path.name in ("records.parquet", "model.safetensors", "report.html")]
    assert kept
    assert all(path.stat().st_mtime_ns == before[path][1] for path in kept)
    plan = planned(str(small), out=done.folder, smoke=True, device="cpu")
    assert [(step.cells, step.done, step.passes, step.seconds) for step in plan.steps] == [(15, 15, 0, 0.0)] * 3


@pytest.mark.slow
def test_selected_start_keeps_earlier_results_in_tables(done, small, capsys):
    """Start again with --select, which computes less. The tables still contain the results of earlier starts."""
    before = [path.read_bytes() for path in sorted((done.folder / "tables").glob("means*"))]
    chosen = {"select": "dataset=one explainer=random", "compare": True}
    part = suite(f"{small}:means", out=done.folder, smoke=True, device="cpu", progress=False, **chosen)
    assert len(part.jobs) == 1
    assert [path.read_bytes() for path in sorted((done.folder / "tables").glob("means*"))] == before
    assert cli.main(["suite", f"{small}:means", "--out", str(done.folder / "other"), "--smoke", "--device", "cpu",
                     "--select", "dataset=one"]) == 2  # fmt: skip
    assert "means has no numbers" in capsys.readouterr().err


def test_table_notes_report_accuracy_and_small_n(done):
    runs, (scores, means, *_) = runs_of(done), done.tables
    note = next(note for note in scores.notes if note.startswith("Accuracy"))
    for (dataset, model), run in runs.items():
        assert f"{model} on {dataset} {run.accuracy.value:.3f}" in note
    least = [number["least"] for number in means.records]
    assert all(count <= 16 and number["n"] >= 3 * count for count, number in zip(least, means.records, strict=True))
    assert means.printed.texts()[1][1].endswith("†") == (least[0] < 10)
    assert any("fewer than 10" in note for note in means.notes) == (min(least) < 10)


@pytest.mark.slow
def test_failed_run_is_reported_and_others_continue(small, done, monkeypatch):
    module = sys.modules["saliency_bench.recipes.suites.suite"]
    start = module.start

    def failing(spec, objects, **options):
        if "one-small" in spec.out:
            raise RuntimeError("no power")
        return start(spec, objects, **options)

    monkeypatch.setattr(module, "start", failing)
    result = suite(f"{small}:accuracy", out=done.folder, smoke=True, device="cpu", progress=False)
    assert [(folder.name[:9], why) for folder, why in result.failed.items()] == [
        ("one-small", "RuntimeError: no power")
    ]
    numbers = numbers_of(result, "accuracy")
    assert numbers[("one",), ("small", "top")].missing == "failed: RuntimeError: no power"
    assert numbers[("two",), ("small", "top")].value is not None


@pytest.mark.slow
def test_crowd_value_uses_answers_about_run_images(done, tmp_path):
    people = {"title": "People", "runs": ["all"], "rows": ["dataset", "model"], "columns": ["explainer", "value"],
              "values": {"Crowd": {"crowd": True}, "mIoU": {"metric": "saliency_miou"}}}  # fmt: skip
    path = changed(tmp_path / "people.yaml", models={"wide": None}, runs={"all": {"models": ["small"]}},
                   tables={"people": people})  # fmt: skip
    first, second = runs_of(done)["one", "small"].scores.ids[:2]
    lines = [
        "image_id,explainer,exposure,person,right",
        f"{first},gradient,0.05,a,false", f"{first},gradient,0.3,a,true", f"{first},gradient,1,b,false",
        f"{second},gradient,0.1,a,true", "elsewhere,gradient,0.05,a,true"]  # fmt: skip
    (tmp_path / "answers.csv").write_text("\n".join(lines) + "\n")
    options = {"out": done.folder, "smoke": True, "device": "cpu", "progress": False}
    result = suite(f"{path}:people", **options, answers=tmp_path / "answers.csv")
    exposures = [0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1]
    areas = [sum((after - before) * ((before >= right) + (after >= right)) / 2
                 for before, after in pairwise(exposures)) for right in (0.3, 2, 0.1)]  # fmt: skip
    numbers = numbers_of(result, "people")
    number = numbers[("one", "small"), ("gradient", "Crowd")]
    assert (number.value, number.n, number.least) == (pytest.approx(np.mean(areas), abs=1e-12), 2, 2)
    assert numbers[("one", "small"), ("gradcam", "Crowd")].missing.startswith("no answers from people")
    assert numbers[("one", "small"), ("gradient", "mIoU")].value is not None
    refused("cannot be read", suite, f"{path}:people", **options, answers=tmp_path / "none.csv")


def test_tables_and_datasets_can_be_selected(file, tmp_path):
    _, found, tables = find_suite(f"{file}:means")
    chosen = selection(["dataset=one dataset=three", "explainer=random"])
    jobs = jobs_of(found, tables, SuiteChoice(tmp_path, select=chosen))
    assert [(job.dataset, job.model) for job in jobs] == [
        ("one", "small"), ("one", "wide"), ("three", "small"), ("three", "wide")]  # fmt: skip
    assert {job.spec.explainers for job in jobs} == {("random",)}
    asked = "saliency_miou:threshold=0.3", "saliency_miou:threshold=0.5", "saliency_miou"
    assert {job.spec.metrics for job in jobs} == {asked}
    every = jobs_of(found, found.tables, SuiteChoice(tmp_path))
    assert {job.folder for job in jobs} <= {job.folder for job in every}  # tables share runs
    elsewhere = jobs_of(
        found, tables, SuiteChoice(tmp_path / "other", data=tmp_path, limit=3, batch_size=4, select=chosen)
    )
    assert [job.folder.name for job in elsewhere] == [job.folder.name for job in jobs]


@pytest.mark.parametrize(
    ("conditions", "said"),
    [(["dataset"], "AXIS=NAME"), (["colour=red"], "unknown axis"), (["dataset=onne"], "did you mean one"),
     (["explainer=nothing"], "unknown explainer .nothing.; known: gradcam"),
     (["metric=mIoU"], "unknown metric 'mIoU'"), (["metric=saliency_mio"], "did you mean saliency_miou")],
)  # fmt: skip
def test_invalid_selection_is_rejected(file, tmp_path, conditions, said):
    _, found, tables = find_suite(str(file))
    refused(said, lambda: jobs_of(found, tables, SuiteChoice(tmp_path, select=selection(conditions))))


@pytest.mark.parametrize(("keys", "said"), [
    ({"titlex": "x"}, "unknown key 'titlex' of tables.scores; did you mean title"),
    ({"values": {"a": {"metrik": "x"}}}, "unknown key 'metrik' of tables.scores.values.a; did you mean metric"),
    ({"titlex": "x", "title": None}, "unknown key 'titlex' of tables.scores; did you mean title"),
    ({"runs": ["al"]}, "did you mean all"), ({"runs": "all"}, "tables.scores.runs: must be a list"),
    ({"rows": ["dataset"]}, "the runs have 2 different values of model; add that axis to rows, columns or over"),
    ({"runs": []}, "tables.scores.runs: is empty"), ({"rows": ["dataset", "explainer"]}, "once"),
    ({"rows": ["datasets"]}, "tables.scores.rows.0"), ({"columns": ["explainer"]}, "axis `value`"),
    ({"variants": {"a": {"t": 1}}}, "`variants` and the axis `variant`"),
    ({"title": None}, "tables.scores.title: is missing"),
    *(({"values": {"a": value}}, said) for value, said in (
        ({"metric": "saliency_miou", "accuracy": "top1"}, "exactly one of the keys `metric`"),
        ({"metric": "saliency_miou", "transform": "left"}, "`transform` requires the key `accuracy`"),
        ({"metric": "saliency_kae", "exposure": "0.1"}, "require the key `crowd`"),
        ({"crowd": True, "count": "image"}, "`count` and `bin` must be used together"),
        ({"metric": "saliency_miou", "run": "al"}, "tables.scores.values: unknown name 'al'; did you mean all"))),
])  # fmt: skip
def test_invalid_keys_and_values_are_rejected_by_location(tmp_path, keys, said):
    path = changed(tmp_path / "own.yaml", tables={"scores": keys})
    assert str(path) in refused(re.escape(said), read_suite, path)


@pytest.mark.parametrize(("figures", "said"), [
    ([[1, 2], [3]], "tables.scores.figures has 2 rows of 1 or 2 numbers, but the table shows"),
    ([[1, 2], [3, 4]], "has 2 rows of 2 numbers, but the table shows 6 rows of 6"),
])  # fmt: skip
def test_figures_of_another_shape_are_rejected_before_start(tmp_path, figures, said):
    path = changed(tmp_path / "own.yaml", tables={"scores": {"figures": figures, "show": None}})
    refused(said, suite, str(path), out=tmp_path / "out", data=tmp_path, progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "said"), [
    ("", "must be a mapping"), ("- a", "must be a mapping"), ("a: [", "cannot be read as YAML: .*line"),
    ("x" * 2**21, "."), ("!!python/object/apply:os.system ['true']", "."),
    ("paper: x\npaper: y", "the key paper appears twice"),
    ("paper: Own\ndatasets: {birds: somewhere}", "datasets.birds: must be a mapping"),
])  # fmt: skip
def test_invalid_suite_file_is_rejected_in_one_line(tmp_path, text, said):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    refused(said, read_suite, path)


def test_unknown_names_and_settings_are_rejected(tmp_path):
    refused("did you mean p0-table2", find_suite, "p0-tabel2")
    refused("cannot be read", find_suite, str(tmp_path / "nothing.yaml"))
    path = changed(tmp_path / "own.yaml", runs={"all": {"settings": {"targetz": "label"}}})
    refused("did you mean target", read_suite, path)
    refused("there is no folder 'nowhere'", suite, "p0-table2", out=tmp_path / "out", data="nowhere")


def test_missing_sources_are_listed_before_start(file, tmp_path, capsys):
    refused("3 sources are missing", suite, str(file), out=tmp_path / "out", data=tmp_path, progress=False)
    assert f"one: saliency-bench build one --out {tmp_path / 'one'}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("entry", [{"name": "models/mine/last"}, {"name": "./gone"}, {"name": "torchvision:resnet1"}])
def test_unloadable_models_are_listed_before_start(entry, tmp_path, capsys):
    """Test models that are used directly, and models that are trained first."""
    models = {"small": entry | {"family": "resnet", "train": None}, "wide": entry | {"family": "resnet"}}
    path = changed(tmp_path / "own.yaml", models=models)
    steps = planned(str(path), out=tmp_path / "out", data=tmp_path).steps
    assert {step.model for step in steps} == {"missing"}
    refused("5 sources are missing", suite, str(path), out=tmp_path / "out", data=tmp_path, progress=False)
    written = capsys.readouterr().err
    for name in ("small", "wide"):
        assert any(
            f"missing: model {name}: " in line and entry["name"].rpartition(":")[2] in line
            for line in written.splitlines()
        )
    assert not (tmp_path / "out").exists()


def test_different_builds_of_a_dataset_have_separate_folders(tmp_path):
    """Test that a build of another suite with this name is not reused."""
    places = []
    for name in ("p1", "p3"):
        (tmp_path / "voc-val").mkdir(exist_ok=True)
        _, found, tables = find_suite(name)
        jobs = jobs_of(found, tables, SuiteChoice(tmp_path / "out", data=tmp_path, select={"dataset": ("voc",)}))
        places.append({(str(job.spec.dataset), job.build.rpartition(" --out ")[2]) for job in jobs})
    assert places == [{(str(tmp_path / one),) * 2} for one in ("voc-val", "voc-val-2007")]


def test_changed_model_or_dataset_has_a_new_run_folder(tmp_path):
    places = []
    for name, place in (("first", "one"), ("second", "one"), ("first", "uno")):
        path = changed(tmp_path / f"{name}-{place}.yaml", datasets={"one": {"name": place}},
                       models={"small": {"name": name, "train": None}})  # fmt: skip
        _, found, tables = find_suite(str(path))
        chosen = {"dataset": ("one",), "model": ("small",)}
        places += [job.folder.name for job in jobs_of(found, tables, SuiteChoice(tmp_path, select=chosen))]
    assert len(set(places)) == 3


def test_missing_number_is_marked_as_not_run(file, tmp_path):
    _, found, tables = find_suite(str(file))
    jobs = jobs_of(found, tables, SuiteChoice(tmp_path))
    for name in tables:
        table = make_table(name, Results(found, jobs, SuiteChoice(tmp_path)))
        assert set(table.numbers["missing"]) == {"not run"}


def test_published_schema_is_up_to_date():
    published = Path(__file__).parents[2] / "docs" / "_static" / "suite.schema.json"
    assert json.loads(published.read_text()) == Suite.model_json_schema()


@pytest.mark.slow
def test_metrics_do_not_exceed_declared_passes(tmp_path):
    """Compare with the passes that a run counts; they are equal if they depend only on options and sizes."""
    counted = [name for name in sb.list_metrics() if sb.load_metric(name).declaration.passes is not None]
    chosen = [*counted, "saliency_insertion:steps=8", "saliency_max_sensitivity:draws=3",
              "saliency_single_deletion:grid=2"]  # fmt: skip
    data = sb.build("shapes-xai", tmp_path / "shapes", size=32, count=120, progress=False)
    model, other = (sb.load_classifier(network(first), mean=0, std=1) for first in (0, 100))
    run = sb.run(dataset=str(data), model=model, other_model=other, other_label="scene", metrics=chosen, limit=8,
                 explainers=["random", "gradient"], out=tmp_path / "run", batch_size=8, device="cpu",
                 progress=False)  # fmt: skip
    exact = {"insertion", "deletion", "kae", "roae", "road", "max_sensitivity", "single_deletion", "consistency"}
    assert len(run.cells) == 2 * len(chosen)
    for cell in run.cells:
        pictures, maps = sb.load_metric(cell.metric).declaration.passes_of(cell.metric_options, 32, 32)
        own = maps if cell.explainer == "gradient" else 0
        assert cell.forward_passes.metric <= 8 * (pictures + own), cell.metric_text
        if cell.metric.removeprefix("saliency_") in exact:
            assert cell.forward_passes.metric == 8 * (pictures + own), cell.metric_text


def test_plan_counts_passes_of_a_run():
    metrics = ("saliency_miou", "saliency_insertion:steps=8", "saliency_max_sensitivity:draws=3")
    pairs = [(one, other) for one in ("random", "rise:masks=30", "gradient") for other in metrics]
    rise, curve = 30, 9
    cost = cost_of_image(pairs)
    assert cost == Cost(images=1, forward=1 + curve + (rise + curve + 3 * rise) + curve, gradient=1 + 3)
    assert cost.times(5) + Cost(trained=2) == Cost(images=5, forward=5 * cost.forward, gradient=20, trained=2)
    assert cost_of_image([]) == Cost()


def test_plan_counts_trainings_and_each_retraining_once():
    recipe = TrainingSpec(epochs=3, batch_size=8, limit=20)
    network = Network("data", "start", "label", recipe, Path("out"))
    assert cost_of_training(network, 100, 10, 7) == Cost(images=37, forward=3 * 10 + 7, trained=60, networks=1)
    options = "trainings=2,epochs=4,images=16,batch_size=8"
    roar, kar = f"saliency_roar:{options}", f"saliency_kar:{options}"
    pairs = [("gradient", roar), ("gradient", "saliency_miou"), ("random", roar)]
    cost = cost_of_retraining(pairs, 100, 10, 5)
    # Seven exposures of the gradient and its blurred and random maps; completely visible and empty images are shared.
    trainings = 2 * (7 * 3 + 2)
    assert cost == Cost(forward=trainings * (4 * 10 + 2 * 5), gradient=2 * (16 + 10 + 5), trained=trainings * 4 * 16,
                        retrained=trainings)  # fmt: skip
    both = [*pairs, ("gradient", kar), ("random", kar)]
    # the ends of the curve share their trainings
    assert cost_of_retraining(both, 100, 10, 5).retrained == 2 * (2 * 7 * 3 + 2)


def test_timing_leaves_network_unchanged():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
                                torch.nn.Linear(4, 3))  # fmt: skip
    classifier = sb.load_classifier(model, mean=0, std=1, size=32, device="cpu")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model[0].weight.requires_grad_(False)
    speed = speed_of(classifier, 2)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert [weight.requires_grad for weight in model.parameters()] == [False, True, True, True]
    assert all(weight.grad is None for weight in model.parameters())
    assert min(astuple(speed)) > 0
    by_hand = 7 * speed.prepare + 10 * speed.forward + 2 * speed.gradient + 3 * speed.trained
    assert speed.seconds(Cost(images=7, forward=10, gradient=2, trained=3, networks=1)) == pytest.approx(by_hand)


@pytest.mark.parametrize(("costs", "chunks", "processes", "expected"), [
    ([5, 5], 10, 1, None),  # one process
    ([5, 5], 10, 2, [[0], [1]]),  # equally early in both cases
    ([5, 5, 5], 10, 2, None),  # 7.5 instead of 10
    ([5, 5, 5], 1, 2, [[0, 2], [1]]),  # 10 instead of 15, because one of two processes would be idle
    ([1, 2, 9, 4, 4], 10, 2, [[2, 0], [3, 4, 1]]),  # 10 in both cases, the longest first
    ([3, 8, 4, 4], 10, 2, None),  # 11 instead of 9.5
])  # fmt: skip
def test_processes_take_whole_runs_when_that_is_faster(costs, chunks, processes, expected):
    job = SimpleNamespace(spec=SimpleNamespace(batch_size=4))
    steps = [SimpleNamespace(job=job, passes=cost, images=4 * chunks, cells=1, done=0) for cost in costs]
    assert side_by_side(steps, processes) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(("batch_size", "side"), [("2", False), ("16", True)])
def test_two_launchers_match_one_process(batch_size, side, tmp_path):
    """Start two launchers with one process each, as on two nodes, which connect on loopback."""
    line = ["-m", "saliency_bench", "suite", "p0-table4", "--smoke", "--select", "dataset=pet-xai", "--device", "cpu",
            "--batch-size", batch_size]  # fmt: skip
    alone = [sys.executable, *line, "--out", "alone"]
    subprocess.run(alone, cwd=tmp_path, check=True, capture_output=True)
    subprocess.run([sys.executable, *line, "--out", "both", "--train-only"], cwd=tmp_path, check=True,
                   capture_output=True)  # fmt: skip
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", str(rank),
             "--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", str(port), *line, "--out", "both"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in (0, 1)]  # fmt: skip
    told = []
    for node in nodes:
        shown, _ = node.communicate(timeout=300)
        assert node.returncode == 0, shown
        told.append("2 processes compute whole runs in parallel" in shown)
    assert told == [side, False]  # only the first process prints

    def files(name):
        names = ("records.parquet", "predictions.parquet", "*.csv", "*.md", "model.safetensors")
        return {path.relative_to(tmp_path / name): path.read_bytes() for one in names
                for path in (tmp_path / name).rglob(one) if "scores" not in path.parts}  # fmt: skip

    assert len(files("alone")) > 4
    assert files("both") == files("alone")


@pytest.mark.thorough
def test_killed_suite_resumes_to_identical_files(tmp_path):
    def command(name):
        chosen = ["--select", "dataset=pet-xai", "dataset=cancer-xai", "--device", "cpu", "--out", name]
        return [sys.executable, "-m", "saliency_bench", "suite", "p0-table2", "--smoke", *chosen]

    def files():
        names = ("*.parquet", "*.safetensors", "tables/*")
        found = (path for name in names for path in (tmp_path / "out").rglob(name))
        return {path.relative_to(tmp_path / "out"): path.read_bytes() for path in found if "/runs/" not in str(path)
                or path.name in ("records.parquet", "predictions.parquet")}  # fmt: skip

    subprocess.run(command("out"), cwd=tmp_path, check=True, capture_output=True)
    whole = files()
    assert len(whole) > 10
    shutil.rmtree(tmp_path / "out")
    for seconds in (9, 14, 19):
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command("out"), cwd=tmp_path, timeout=seconds, capture_output=True)
    subprocess.run(command("out"), cwd=tmp_path, check=True, capture_output=True)
    assert files() == whole


def named_by_another(tmp_path):
    """Write the suite with models that explain the predictions of `small`."""
    runs = {"all": {"settings": {"target": "predicted-by:small"}, "datasets": ["one"]}}
    return changed(tmp_path / "named.yaml", runs=runs, datasets={"two": None, "three": None},
                   tables=dict.fromkeys(("scores", "correlations", "accuracy")))  # fmt: skip


def test_target_can_be_predicted_by_model_of_suite(file, tmp_path):
    _, content, tables = find_suite(str(named_by_another(tmp_path)))
    small, wide = jobs_of(content, tables, SuiteChoice(tmp_path))
    assert (small.spec.target, small.named_by, wide.named_by) == ("predicted", None, small.folder)
    trained = {network.out.name.partition("-")[0]: str(network.out) for network in wide.networks}
    assert wide.spec.target == f"predicted-by:{trained['small']}"
    alone = jobs_of(content, tables, SuiteChoice(tmp_path / "other", select={"model": ("wide",)}))
    assert [(job.folder.name, job.named_by) for job in alone] == [(wide.folder.name, None)]
    _, content, tables = find_suite(str(file))
    assert wide.folder.name not in {job.folder.name for job in jobs_of(content, tables, SuiteChoice(tmp_path))}


@pytest.mark.slow
def test_predicted_target_is_read_from_run_of_suite(tmp_path):
    path, options = named_by_another(tmp_path), {"smoke": True, "device": "cpu", "progress": False}
    whole = suite(str(path), out=tmp_path / "out", **options)
    wide = whole.jobs[1].folder
    assert json.loads((wide / "run.json").read_text())["spec"]["target"] == f"predicted-by:{whole.jobs[0].folder}"
    named = dict(zip(*predictions(whole.jobs[0].folder), strict=True))
    records = pq.read_table(wide / "records.parquet", columns=["image_id", "target"]).to_pylist()
    assert {(row["image_id"], row["target"]) for row in records} == set(named.items())
    alone = suite(str(path), out=tmp_path / "alone", select="model=wide", **options)
    assert not (tmp_path / "alone" / "runs" / whole.jobs[0].folder.name).exists()
    assert (alone.jobs[0].folder / "records.parquet").read_bytes() == (wide / "records.parquet").read_bytes()


def predictions(folder):
    rows = pq.read_table(folder / "records.parquet", columns=["image_id", "prediction"])
    return rows["image_id"].to_pylist(), rows["prediction"].to_pylist()


def test_smaller_limit_wins(tmp_path):
    """Test that a table of five examples never shows twenty. A table without a limit uses the command's limit."""
    _, content, tables = find_suite("p1-figure12")
    own = jobs_of(content, tables, SuiteChoice(tmp_path))[0]
    for given, expected in ((None, 5), (20, 5), (3, 3)):
        (job,) = jobs_of(content, tables, SuiteChoice(tmp_path, limit=given))
        assert (job.spec.limit, job.folder) == (expected, own.folder)
    _, content, tables = find_suite("p1-figure3")
    assert {job.spec.limit for job in jobs_of(content, tables, SuiteChoice(tmp_path, limit=20))} == {20}
    assert {job.spec.limit for job in jobs_of(content, tables, SuiteChoice(tmp_path, smoke=True))} == {
        content.smoke.limit
    }


def test_plan_reports_passes_and_estimated_time(done, small, tmp_path, capsys):
    """Test gradient, Grad-CAM and random by mIoU and by a curve with 8 steps on 15 images."""
    for part in ("data", "models"):
        shutil.copytree(done.folder / part, tmp_path / "out" / part)
    words = ["suite", f"{small}:scores", "--smoke", "--out", str(tmp_path / "out"), "--device", "cpu", "--plan",
             "--select", "dataset=two"]  # fmt: skip
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert re.search(r"these passes take about \d+\.\d s at the speed measured here", shown)
    assert cli.main([*words, "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)
    cost = cost_of_image(
        [(name, metric) for name in METHODS for metric in ("saliency_miou", "saliency_insertion:steps=8")]
    ).times(15)
    assert (step["cost"], step["passes"]) == (asdict(cost), cost.forward + 3 * cost.gradient)
    assert step["seconds"] > 0
    assert cli.main([*words, "--within", "2h"]) == 2
    assert "--within" in capsys.readouterr().err
