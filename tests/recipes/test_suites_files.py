"""Tests of the papers' suites: names can be loaded and built, and figures match the tables and each other."""

import inspect
import re
import shlex
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.compute.classifiers.sources import KNOWN
from saliency_bench.compute.scoring.transforms import TRANSFORMS
from saliency_bench.read.cell import Interval
from saliency_bench.recipes.suites import suite_schema as schema
from saliency_bench.recipes.suites.numbers import part_of, places_of
from saliency_bench.recipes.suites.suite_jobs import SuiteChoice, jobs_of, metrics_of
from saliency_bench.recipes.suites.suite_settings import settings_table
from saliency_bench.recipes.suites.suite_tables import QUANTITY, check_figures, figures_of
from saliency_bench.spec import RunSpec

FILES = schema.suite_files()
SUITES = {name: schema.read_suite(path) for name, path in FILES.items()}
TABLES = [(suite, table) for suite in SUITES for table in SUITES[suite].tables]
every_suite = pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
every_table = pytest.mark.parametrize(("suite", "name"), TABLES, ids=[name for _, name in TABLES])


def bare(text):
    return text.partition(":")[0]


def places(suite, name):
    """Return the positions of the numbers of the paper's table, each as {axis: name}."""
    table = SUITES[suite].tables[name]
    every = places_of(SUITES[suite], table).to_dict("records")
    return [place for place in every if all(map(table.shows, place, place.values()))]


@cache
def figures(suite, name):
    """Return [({axis: name}, number in the paper)]."""
    table = SUITES[suite].tables[name]
    frame = figures_of(table, places_of(SUITES[suite], table).rename(columns={"value": QUANTITY}))
    printed = frame.rename(columns={QUANTITY: "value"}).astype(object).where(frame.notna().values, None)
    return [(place, place.pop("paper")) for place in printed.to_dict("records")]


def figure(suite, table, **where):
    (found,) = [figure for place, figure in figures(suite, table) if where.items() <= place.items()]
    return found


def texts_of(suite):
    for run in suite.runs.values():
        yield from run.metrics
    for table in suite.tables.values():
        for value in table.values.values():
            for text in filter(None, (value.metric, value.against.replace("crowd", ""))):
                yield from {schema.fill(text, variant) for variant in table.variants.values() or [{}]}


def explainers_of(suite):
    return {text for run in suite.runs.values() for text in run.explainers}


def used(suite):
    """Return the names of all datasets, models, explainers and metrics."""
    return {*suite.datasets, *suite.models, *map(bare, (*texts_of(suite), *explainers_of(suite)))}


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_suite_file_lists_decisions_about_used_items(path):
    assert path.read_text().startswith("# yaml-language-server: $schema=../docs/_static/suite.schema.json\n")
    suite = schema.read_suite(path)
    assert all(name.startswith(f"{path.stem}-") for name in suite.tables)
    assert len(suite.decisions) > 5
    assert {name for entry in suite.decisions for name in entry.about} <= used(suite)


@every_suite
def test_settings_table_lists_options_of_every_used_item(suite):
    rows = {what: (paper, run) for what, paper, run in settings_table("own", suite, suite.tables).rows if what}
    assert rows.keys() == used(suite)
    for item in (*map(sb.load_metric, texts_of(suite)), *map(sb.load_explainer, explainers_of(suite))):
        for option, value in dict(item.options).items():
            shown = re.search(rf"\b{option}=([^,]*)", rows[item.name][1])
            assert str(value) in re.split(" or |[.] ", shown[1]) or str(value) in shown[1], (item.name, option)
    for entry in suite.decisions:
        assert all(entry.paper in rows[name][0] and entry.run.rstrip(".") in rows[name][1] for name in entry.about)
    assert any(paper == "not mentioned" for paper, _ in rows.values())


@every_suite
def test_explainers_and_metrics_load_with_smoke_options(suite):
    small = suite.smoke.options
    for load, texts in ((sb.load_explainer, explainers_of(suite)), (sb.load_metric, texts_of(suite))):
        for text in texts:
            load(text, **small.get(bare(text), {}))
    assert small.keys() <= used(suite)


@every_suite
def test_named_parts_and_transforms_exist(suite):
    for table in suite.tables.values():
        for value, variant in product(table.values.values(), table.variants.values() or [{}]):
            assert schema.fill(value.transform, variant) in ("", *TRANSFORMS)
            if value.part is not None:
                metric, part = sb.load_metric(schema.fill(value.metric, variant)), schema.fill(value.part, variant)
                fitting = schema.matching_parts(part, metric.declaration.parts(dict(metric.options), None))
                assert len(fitting) == (dict(metric.options)["trainings"] if "*" in part else 1), (value, part)


@every_suite
def test_datasets_and_models_are_known_and_can_be_built(suite):
    """Test that models are known, checkpoints of timm, or trained from a config."""
    others = [model for model in suite.models.values() if model.name not in KNOWN]
    assert all(model.name.startswith("timm/") or model.train for model in others)
    for name, dataset in suite.datasets.items():
        assert dataset.name in sb.list_datasets()
        words = shlex.split(dataset.build)
        assert words[:3] == ["saliency-bench", "build", dataset.name], name
        taken = inspect.signature(registry.load("hub_builders", dataset.name).samples).parameters
        flags = {word.removeprefix("--").replace("-", "_") for word in words[3:] if word.startswith("--")}
        assert flags <= taken.keys()


@every_suite
def test_every_listed_item_is_used_and_named(suite):
    for kind in ("datasets", "models"):
        assert set(getattr(suite, kind)) == {name for run in suite.runs.values() for name in getattr(run, kind)}
    assert set(suite.runs) == {run for table in suite.tables.values() for run in table.runs}
    assert suite.names.keys() <= {*suite.datasets, *suite.models, *explainers_of(suite)}
    assert all(sb.load_explainer(bare(text)).baseline for text in explainers_of(suite) - suite.names.keys())


def test_training_defaults_match_train_function():
    """Test that settings that a file omits have the default values of `train`."""
    taken = {name: one.default for name, one in inspect.signature(sb.train).parameters.items()}
    recipe = schema.TrainingSpec().model_dump()
    assert recipe == {name: taken[name] for name in recipe}


@every_suite
def test_settings_are_valid_run_settings(suite):
    for run in suite.runs.values():
        given = dict(run.settings)
        for dataset in run.datasets:
            given |= suite.datasets[dataset].settings
        spec = RunSpec.read({"dataset": "d", "model": "m", "explainers": ("e",), "metrics": ("m",), "out": "o"} | given)
        assert {name: getattr(spec, name) for name in given} == {
            name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
        }


@every_table
def test_figures_and_notes_match_the_table(suite, name):
    table, there = SUITES[suite].tables[name], places(suite, name)
    check_figures(SUITES[suite], [name])
    assert there
    for axis, shown in table.show.items():
        assert set(shown) == {place[axis] for place in there}, axis
    if table.figures:
        assert len(table.figures) == len({tuple(place[axis] for axis in table.rows) for place in there})
        assert any(figure is not None for _, figure in figures(suite, name))
    for note in table.notes:
        fitting = [place for place in there if all(place[axis] in names for axis, names in note.where.items())]
        assert fitting, note
        for axis, names in note.where.items():
            assert set(names) == {place[axis] for place in fitting}, note


# Numbers of the papers must be consistent with each other, except where a note states a contradiction.


def over_datasets(**where):
    return np.array([printed for place, printed in figures("p0", "p0-table2") if place | where == place])


def test_p0_correlations_follow_from_corrected_table_2():
    methods = SUITES["p0"].tables["p0-table2"].show["explainer"]
    note = SUITES["p0"].tables["p0-table2"].notes[0]
    right = {
        model: dict(zip(methods, map(float, re.findall(r"\.\d{4}", line)), strict=True))
        for model, line in zip(("resnet-18", "vgg-19"), note.note.split("VGG-19"), strict=True)
    }
    for place, printed in figures("p0", "p0-table3"):
        means = {}
        for value in place["value"].split(" & "):
            means[value] = over_datasets(model=place["model"], explainer=place["explainer"], value=value)
            if value == "PG":
                security = list(SUITES["p0"].runs["cnn"].datasets).index("security-xai")
                as_printed = means[value][security]
                means[value][security] = right[place["model"]][place["explainer"]]
                assert round(10000 * as_printed) % 1000 == round(10000 * means[value][security]) % 1000
        assert np.corrcoef(*means.values())[0, 1] == pytest.approx(printed, abs=1e-4), place


def test_p1_mcs_is_difference_of_means_except_where_noted():
    (note,) = SUITES["p1"].tables["p1-table1"].notes
    for place, printed in figures("p1", "p1-table1"):
        if place["value"] == "MCS":
            means = [figure("p1", "p1-table1", **place | {"value": value}) for value in ("G(f_o)", "G(f_s)")]
            noted = all(place[axis] in names for axis, names in note.where.items())
            assert (abs(means[0] - means[1] - printed) > 0.0015 + 1e-9) == noted, place


def test_p2_figures_match_printed_ranks():
    ranks = """1 2 3 4 5, 1 3 4 2 5, 1 2 4 3 5, 2 1 3 4 5, 5 1 2 3 4
               1 2 4 3 5, 1 3 4 2 5, 1 3 4 2 5, 2 1 3 4 5, 4 1 2 3 5"""
    printed = SUITES["p2"].tables["p2-table2"]
    schemes = [
        sb.load_metric(value.metric or "saliency_crowd_auc") for _ in range(2) for value in printed.values.values()
    ]
    for row, expected, metric in zip(printed.figures, ranks.replace("\n", ",").split(","), schemes, strict=True):
        best_first = sorted(row, reverse=metric.higher_is_better)
        assert [best_first.index(figure) + 1 for figure in row] == list(map(int, expected.split()))


@pytest.mark.parametrize("table", ["p3-table1", "p3-table3"])
def test_p3_orders_match_text_and_groups_exceed_their_maximum(table):
    """Test that IIA is the best. Next are T-Attr and GAE for transformers, and Grad-CAM and Score-CAM for CNNs."""
    assert all(printed > 100 / 5 for place, printed in figures("p3", table) if place["value"] in ("PGS", "CGS"))
    rows = np.array(SUITES["p3"].tables[table].figures).reshape(-1, 5, 4)
    assert (np.diff(rows[:, [0, 1, 3, 4]], axis=1) < 0).all()
    expected = {"iia", "tattr", "gae", "gradient_rollout:relu=false", "gradcam_vit"}
    for model in ("vit-b", "vit-s"):
        assert {place["explainer"] for place in places("p3", table) if place["model"] == model} == expected


def test_p3_table_2_ranks_iia_first_except_by_cdrop():
    figures_of = np.array(SUITES["p3"].tables["p3-table2"].figures).reshape(2, 5, 3, 4)
    ranks = np.argsort(np.argsort(figures_of * [1, 1, -1, -1], axis=1), axis=1)[:, 0] + 1
    assert ranks.tolist() == [[[1, 1, 3, 1]] * 3] * 2


def test_p4_pseudo_f1_follows_from_accuracies():
    """Compare with table 2 or, where it is illegible, with tables 4 and 5, which have equal numbers for k = 5."""
    compared = 0
    for explainer, top in product(SUITES["p4"].tables["p4-table2"].show["explainer"], (1, 5)):
        printed = figure("p4", "p4-table2", value=f"Pseudo-F1 @{top}", explainer=explainer)
        normal, inverse = (
            [figure("p4", "p4-table2", value=f"acc@{top}{kind}", explainer=explainer),
             figure("p4", table, value=f"acc@{top}", explainer=explainer, variant="k = 5")]
            for kind, table in (("", "p4-table4"), (" inverse", "p4-table5")))  # fmt: skip
        for both in (normal, inverse):
            assert len(set(both) - {None}) <= 1, (explainer, top, both)
        normal, inverse = (next((one for one in both if one is not None), None) for both in (normal, inverse))
        if None not in (printed, normal, inverse):
            assert 2 / (1 / (1 - inverse / 100) + 1 / (normal / 100)) == pytest.approx(printed, abs=0.005)
            compared += 1
    assert compared == 6


def test_p4_map_sizes_follow_from_percentiles():
    for place, printed in figures("p4", "p4-table7"):
        if place["value"] == "avg. map size":
            percentile = SUITES["p4"].tables["p4-table7"].variants[place["variant"]]["p"]
            assert printed == pytest.approx(1 - percentile / 100)


def test_p4_distances_are_positive_and_copies_are_noted():
    printed = {(place["value"], place["explainer"]): figure for place, figure in figures("p4", "p4-table8")}
    assert min(printed.values()) > 0
    (note,) = SUITES["p4"].tables["p4-table8"].notes
    truncated = {key: f"{value:.7f}"[:8] for key, value in printed.items()}
    copies = {key for key, value in truncated.items() if list(truncated.values()).count(value) > 1}
    assert copies == set(product(note.where["value"], note.where["explainer"]))


def test_value_is_computed_only_by_its_run(tmp_path):
    metrics = {run: metrics_of(SUITES["p1"], ["p1-table2"], run) for run in ("all", "stability")}
    assert metrics["stability"] == ["saliency_max_sensitivity:radius=0.2,relative=false"]
    assert len(metrics["all"]) == 4
    jobs = jobs_of(SUITES["p1"], ["p1-table2"], SuiteChoice(tmp_path))
    assert len({job.folder for job in jobs}) == len(jobs) == 8


def test_part_with_wildcard_is_mean_of_matches():
    def interval(value):
        return Interval(value=value, low=0.0, high=1.0, n=9, clusters=9)

    named = {"0.05 training 1": interval(0.5), "0.05 training 2": interval(1.0), "0.1 training 1": interval(0.0)}
    cell = SimpleNamespace(parts=named)
    both = part_of(cell, "0.05 training *")
    assert (both.value, both.low, both.n) == (0.75, None, 9)
    assert part_of(cell, "0.1 training 1") is named["0.1 training 1"]
    assert part_of(cell, "0.2 training *") is None


def test_p2_table_3_ends_with_crowd_of_table_2():
    last = [figure for place, figure in figures("p2", "p2-table3") if place["variant"] == "10"]
    assert last == [figure for place, figure in figures("p2", "p2-table2") if place["value"] == "Crowd"]
    assert len(figures("p2", "p2-table3")) == 70
