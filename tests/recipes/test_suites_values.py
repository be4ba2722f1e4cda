"""Tests of values in tables besides scores: sizes of datasets, people's answers, t-tests, transformed images."""

import json
from itertools import pairwise
from math import sqrt
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from datasets import Value as Kind
from PIL import Image as Pictures
from refusals import refused
from scipy.stats import kendalltau, pearsonr, spearmanr, t
from scored_cells import run_in_memory
from torch import nn

import saliency_bench as sb
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.python_objects import describe
from saliency_bench.errors import UserError
from saliency_bench.read.analysis.order_agreement import read_answers
from saliency_bench.read.run_folder import CellScores
from saliency_bench.recipes.suites.counts import counts_of
from saliency_bench.recipes.suites.crowd import crowd_number, drawn_answers
from saliency_bench.recipes.suites.number import NoNumberError, Number
from saliency_bench.recipes.suites.numbers import correlation, mean
from saliency_bench.recipes.suites.suite import suite
from saliency_bench.recipes.suites.suite_jobs import SuiteChoice, jobs_of
from saliency_bench.recipes.suites.suite_schema import Value, find_suite, suite_files
from saliency_bench.recipes.suites.t_tests import COLUMNS, remarks, t_tests
from saliency_bench.recipes.suites.transformed_runs import accuracy_under

FEATURES = Features(
    {"image_id": Kind("string"), "image": Image(), "mask": Image(), "label": ClassLabel(names=["cat", "cow", "dog"])}
)


def split(name, masked, label=0):
    picture = Pictures.fromarray(np.zeros((8, 8, 3), np.uint8))
    rows = [{"image_id": f"{name}{number}", "image": picture, "mask": picture.convert("L") if there else None,
             "label": label} for number, there in enumerate(masked)]  # fmt: skip
    return Dataset.from_list(rows, features=FEATURES)


@pytest.fixture
def data(tmp_path):
    """Write five images in two splits. Three images have masks, and only two of three classes occur."""
    splits = {"train": split("a", [True, False, True]), "test": split("b", [False, True], 2)}
    DatasetDict(splits).save_to_disk(tmp_path / "data" / "pets")
    return tmp_path / "data"


def test_counts_cover_all_splits(data):
    assert counts_of(str(data / "pets")) == {"classes": 3, "images": 5, "masks": 3, "rarest": 0, "commonest": 3}
    with pytest.raises(NoNumberError, match="not built"):
        counts_of(str(data / "cows"))


def test_table_of_dataset_sizes_needs_no_run(data, tmp_path):
    content = {
        "paper": "Own",
        "datasets": {name: {"name": name, "folder": name} for name in ("pets", "cows")},
        "models": {name: {"name": name, "family": "resnet", "train": {}} for name in ("small", "wide")},
        "runs": {"all": {"datasets": ["pets", "cows"], "models": ["small", "wide"], "explainers": ["random"]}},
        "tables": {"sizes": {
            "title": "Sizes", "runs": ["all"], "rows": ["dataset"], "columns": ["value"], "plot": "",
            "values": {**{name: {"size": name} for name in ("classes", "images", "masks", "commonest")},
                       "format": {"text": {"pets": "pixel-wise"}}},
            "show": {"value": ["classes", "images", "masks"]},
            "figures": [[3, 5000, None], [2, 7, 7]],
        }}}  # fmt: skip
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    done = suite(str(path), out=tmp_path / "out", data=data, compare=True, device="cpu", progress=False)
    assert (done.jobs, done.failed) == ([], {})
    (table,) = done.tables
    assert table.printed.texts()[1:] == [
        ["pets", "3 (paper 3, +0)", "5 (paper 5,000, −4,995)", "3", "3", "pixel-wise"],
        ["cows", "– (paper 2)", "– (paper 7)", "– (paper 7)", "–", "–"],
    ]
    assert "4 of 10 numbers are missing: the dataset is not built." in table.notes
    assert "5,000" in done.page.read_text()


def test_p0_binary_datasets_use_only_masked_images(tmp_path):
    """Test that all scores use images with a mask (Saliency-Bench, appendix C)."""
    _, content, _ = find_suite("p0")
    for job in jobs_of(content, ["p0-table2", "p0-table4"], SuiteChoice(tmp_path)):
        only = ("masked",) if job.dataset in ("disease-xai", "cancer-xai", "security-xai") else ()
        assert tuple(job.spec.only or ()) == only


@pytest.mark.slow
def test_smoke_results_are_marked_and_not_mixed_with_real_runs(tmp_path):
    suite("p0-table1", out=tmp_path / "smoke", smoke=True, progress=False)
    files = sorted((tmp_path / "smoke/tables").iterdir())
    assert {path.suffix for path in files} == {".csv", ".json", ".md", ".tex"}
    for path in [*files, tmp_path / "smoke/suite.html"]:
        assert "smoke" in path.read_text().lower(), path.name
    with pytest.raises(UserError, match="contains results of --smoke, which cannot be mixed with real runs"):
        suite("p0-table1", out=tmp_path / "smoke", progress=False)
    with pytest.raises(UserError, match="should contain gender-xai, but was built by `saliency-bench build shapes"):
        suite("p0-table1", out=tmp_path / "real", data=tmp_path / "smoke/data", progress=False)
    assert not (tmp_path / "real").exists()
    (tmp_path / "other/tables").mkdir(parents=True)
    with pytest.raises(UserError, match="contains real runs, which cannot be mixed with results of --smoke"):
        suite("p0-table1", out=tmp_path / "other", smoke=True, progress=False)


EXPOSURES = [0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0]
FILES = (["a,gradcam,0.05,ann,false", "a,gradcam,0.2,ann,true", "b,gradcam,0.1,ann,true", "a,random,1,bob,false"],
         ["a,gradcam,0.5,ann,true", "c,gradcam,0.05,ann,true"])  # fmt: skip


@pytest.fixture
def run():
    return run_in_memory([], ["a", "b"], {}, seed=0)


@pytest.fixture
def answers(tmp_path):
    paths = [tmp_path / f"{number}.csv" for number in range(len(FILES))]
    for path, lines in zip(paths, FILES, strict=True):
        path.write_text("\n".join(["image_id,explainer,exposure,person,right", *lines]) + "\n")
    return [read_answers(path) for path in paths]


def area(first):
    accuracies = [float(0 < first <= exposure) for exposure in EXPOSURES]
    steps = zip(pairwise(EXPOSURES), pairwise(accuracies), strict=True)
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, x1), (y0, y1) in steps)


def test_crowd_values_pool_judgements_of_all_files(run, answers):
    whole = crowd_number(answers, run, "gradcam", Value(crowd=True))
    assert (whole.value, whole.n) == (pytest.approx(np.mean([area(0.2), area(0.5), area(0.1)])), 2)
    for exposure, right in (("0.05", 0), ("0.1", 1), ("0.2", 2), ("0.5", 3)):
        number = crowd_number(answers, run, "gradcam", Value(crowd=True, exposure=exposure))
        assert number.value == pytest.approx(right / 3)
    with pytest.raises(NoNumberError, match="no answers"):
        crowd_number(answers, run, "gradient", Value(crowd=True))


def test_judgement_subsamples_average_to_expected_area(run, answers):
    one = crowd_number(answers, run, "gradcam", Value(crowd=True, judgements="1"))  # two of three
    areas = [area(0.2), area(0.5), area(0.1)]
    pairs = [np.mean([areas[i], areas[j]]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert one.value == pytest.approx(np.mean(pairs), abs=0.01)
    assert (one.low, one.high) == pytest.approx((min(pairs), max(pairs)))
    every = crowd_number(answers, run, "gradcam", Value(crowd=True, judgements="1.5"))
    assert every.value == crowd_number(answers, run, "gradcam", Value(crowd=True)).value
    with pytest.raises(NoNumberError, match=r"1.5 times, not 10"):
        crowd_number(answers, run, "gradcam", Value(crowd=True, judgements="10"))


@pytest.mark.parametrize(
    ("count", "bin_", "expected"),
    # Image a was first named correctly at 0.2 and 0.5, b at 0.1; one "ann" has 0.2 and 0.1, the other 0.5.
    [("image", "0 0.1", 1), ("image", "0.3 0.4", 1), ("image", "0.4 1", 0),
     ("person", "0.1 0.2", 1), ("person", "0.4 0.5", 1), ("person", "0.5 1", 0)],
)  # fmt: skip
def test_images_and_people_are_counted_by_mean_exposure(run, answers, count, bin_, expected):
    number = crowd_number(answers, run, "random", Value(crowd=True, count=count, bin=bin_))
    assert (number.value, number.n) == (expected, 2)  # only the two people called "ann" were ever right


@pytest.mark.parametrize(("kind", "by_scipy"), [("spearman", spearmanr), ("kendall", kendalltau)])
def test_rank_correlation_respects_metric_direction(kind, by_scipy):
    first, second = [0.1, 0.4, 0.4, 0.9], [3.0, 2.0, 5.0, 1.0]
    numbers = [[Number(value) for value in values] for values in (first, second)]
    expected = by_scipy(first, [-value for value in second]).statistic
    assert correlation(*numbers, [1, -1], kind).value == pytest.approx(expected)
    assert expected != pytest.approx(by_scipy(first, second).statistic)


def test_datasets_with_more_models_have_equal_weight_in_means():
    numbers = [Number(0.2, n=10), Number(0.8, n=30), Number(0.9, n=20)]
    found = mean(["cats", "dogs", "cats"], numbers)
    assert (found.value, found.n, found.least) == (pytest.approx(((0.2 + 0.9) / 2 + 0.8) / 2), 20 + 30, 10)


def test_correlation_has_interval_from_four_datasets():
    """Test Fisher's interval, atanh r -+ 1.96 / sqrt(D - 3); orders have a larger standard error."""
    first, second = [0.1, 0.4, 0.5, 0.9, 0.7], [3.0, 2.0, 5.0, 4.5, 6.0]
    numbers = [[Number(value) for value in values] for values in (first, second)]
    for kind, by_scipy in (("pearson", pearsonr), ("spearman", spearmanr)):
        number = correlation(*numbers, [1, 1], kind)
        r = by_scipy(first, second).statistic
        error = np.sqrt((1 + r**2 / 2 if kind == "spearman" else 1) / 2)
        ends = [np.tanh(np.arctanh(r) + z * error) for z in (-1.959964, 1.959964)]
        assert (number.low, number.high) == pytest.approx(ends, rel=1e-6)
    for few in (
        correlation(*(side[:3] for side in numbers), [1, 1], "pearson"),
        correlation(*numbers, [1, 1], "kendall"),
    ):
        assert (few.low, few.high) == (None, None)


def test_simulated_people_judge_every_image_ten_times(run):
    drawn = drawn_answers(run, ["gradcam", "random"])
    assert {len(firsts) for of in drawn.judgements.values() for firsts in of.values()} == {10}
    assert len(drawn.of_people) == 10
    number = crowd_number([drawn], run, "gradcam", Value(crowd=True))
    assert number.value not in (0, 1, crowd_number([drawn], run, "random", Value(crowd=True)).value)


def test_answers_with_dataset_count_only_for_it(run, tmp_path):
    """Test answers for two datasets that both have an image "a". The two images are not confused."""
    lines = ["image_id,explainer,exposure,person,right,dataset", "a,gradcam,0.2,p,true,pets", "a,gradcam,0.5,p,true,f9"]
    (tmp_path / "answers.csv").write_text("\n".join(lines) + "\n")
    answers = [read_answers(tmp_path / "answers.csv")]
    for name, fingerprint, first in (("pets", "f1", 0.2), ("./voc", "f9", 0.5)):
        run.summary["dataset"] = {"id": name, "fingerprint": fingerprint}
        assert crowd_number(answers, run, "gradcam", Value(crowd=True)).value == pytest.approx(area(first))
        assert crowd_number(answers, run, "gradcam", Value(crowd=True, count="person", bin="0 1")).n == 1
    run.summary["dataset"] = {"id": "coco", "fingerprint": "f5"}
    with pytest.raises(NoNumberError, match="no answers"):
        crowd_number(answers, run, "gradcam", Value(crowd=True))


RANDOM = np.random.default_rng(0)
SCORES_OF_GRADCAM = RANDOM.normal(0.5, 0.1, 30)
SCORES = {
    "gradcam": SCORES_OF_GRADCAM,
    "gradient": SCORES_OF_GRADCAM - 0.05 + RANDOM.normal(0, 0.1, 30),
    "random": SCORES_OF_GRADCAM.copy(),
}
SCORES["gradient"][[3, 7]] = np.nan


def literal_p(first, second):
    """Compute p of a paired t-test from the mean and the standard deviation of the differences."""
    differences = [x - y for x, y in zip(first, second, strict=True) if not np.isnan(x + y)]
    n, mean = len(differences), sum(differences) / len(differences)
    deviation = sqrt(sum((x - mean) ** 2 for x in differences) / (n - 1))
    return 2 * t.sf(abs(mean) / (deviation / sqrt(n)), n - 1)


@pytest.fixture
def results():
    cells = [SimpleNamespace(explainer_text=name, metric_text="saliency_miou", cell_id=name, aggregate=False)
             for name in SCORES]  # fmt: skip
    contrasts = [SimpleNamespace(cells=("gradient", "gradcam"), p=0.3), SimpleNamespace(cells=("gradcam", "random"),
                                                                                        p=None)]  # fmt: skip
    run = SimpleNamespace(cells=cells, scores=CellScores([], [], SCORES), contrasts=contrasts)
    value = SimpleNamespace(metric="saliency_miou", part=None)
    table = SimpleNamespace(runs=["all"], t_test="gradcam", values={"mIoU": value})
    suite = SimpleNamespace(tables={"main": table}, runs={"all": SimpleNamespace(explainers=tuple(SCORES))})
    job = SimpleNamespace(dataset="birds", model="small", name="all")
    return SimpleNamespace(suite=suite, finished=lambda names: [(job, run)], sized=lambda text: text)


def test_t_tests_compare_named_explainer_with_the_others(results):
    rows = t_tests(results, "main").to_dict("records")
    assert [(row["explainer"], row["other"], row["n"]) for row in rows] == [
        ("gradcam", "gradient", 28), ("gradcam", "random", 30)]  # fmt: skip
    assert rows[0]["p_t_test"] == pytest.approx(literal_p(SCORES_OF_GRADCAM, SCORES["gradient"]), rel=1e-9)
    assert rows[0]["difference"] == pytest.approx(np.nanmean(SCORES_OF_GRADCAM - SCORES["gradient"]))
    assert rows[0]["p_paired_test"] == 0.3
    assert np.isnan(rows[1]["p_t_test"])  # equal scores
    assert np.isnan(rows[1]["p_paired_test"])


def test_remarks_count_significant_results_of_both_tests(results):
    frame = t_tests(results, "main")
    significant = int(literal_p(SCORES_OF_GRADCAM, SCORES["gradient"]) < 0.05)
    words = f"{significant} of 2 differences are significant. In the adjusted paired test, 0 of the 1"
    assert words in remarks(frame)[0]
    assert (remarks(frame.iloc[:0]), list(frame.columns)) == ([], list(COLUMNS))


SIDE, CLASSES = 32, 8


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3 * 16, CLASSES)

    def forward(self, images):
        return self.linear(nn.functional.adaptive_avg_pool2d(images, 4).flatten(1))


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("transforms")
    data = sb.build("shapes-xai", folder / "shapes", size=SIDE, count=300, progress=False)
    model = sb.load_classifier(Linear(), mean=0, std=1, device="cpu")
    return {"dataset": str(data), "model": model, "explainers": ["random"], "metrics": ["saliency_own_region"],
            "out": str(folder / "run"), "device": "cpu", "batch_size": 7}  # fmt: skip


def literal_accuracy(settings, change):
    """Return (acc@1, acc@5) of the test images, computed one by one."""
    rows, model = sb.load_dataset(settings["dataset"], split="test"), settings["model"]
    found = []
    for row in rows:
        picture = torch.from_numpy(np.array(row["image"])).permute(2, 0, 1) / 255
        with torch.no_grad():
            logits = model(change(picture)[None])[0].tolist()
        found.append(sum(logit > logits[row["label"]] for logit in logits))
    return np.mean([before < 1 for before in found]), np.mean([before < 5 for before in found])


def right(picture):
    """Shift images right by a fifth of 32 pixels, rounded to 6, and fill with black."""
    moved = torch.zeros_like(picture)
    moved[:, :, 6:] = picture[:, :, :-6]
    return moved


CHANGES = {"": lambda picture: picture, "flip_vertical": lambda picture: picture[:, range(SIDE - 1, -1, -1)],
           "right": right}  # fmt: skip


def test_accuracy_under_transform_matches_literal_loop(settings):
    data, model, _ = load(*describe(settings))
    values = set()
    for name, change in CHANGES.items():
        found, expected = accuracy_under(data, model, name), literal_accuracy(settings, change)
        assert (found["accuracy"]["value"], found["top5"]["value"]) == pytest.approx(expected)
        values.add(expected)
    assert len(values) == len(CHANGES)  # the comparison can fail


def test_accuracy_without_transform_matches_summary(settings):
    limited = settings | {"limit": 20}
    data, model, _ = load(*describe(limited))
    before = accuracy_under(data, model)
    assert not Path(limited["out"]).exists()
    summary = sb.run(**limited, progress=False).summary["model"]
    assert before == {name: summary[name] for name in before}


def test_unknown_transform_is_rejected_with_a_suggestion(settings):
    refused(r"flip-vertical.*flip_vertical", accuracy_under, *load(*describe(settings))[:2], "flip-vertical")


# Cells that never have a number: explainers that all agree have no order.
UNDEFINED = {"p2-figure7": {"one of the two metrics is constant"}}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("smoke") / "out"


@pytest.mark.thorough
@pytest.mark.parametrize("paper", suite_files())
def test_every_table_has_all_rows_and_columns(paper, out):
    done = suite(paper, out=out, smoke=True, compare=True, device="cpu", progress=False)
    assert done.failed == {}
    _, content, names = find_suite(paper)
    assert [*(table.name for table in done.tables), *done.pictures] == list(names)
    for table in done.tables:
        printed = sum(figure is not None for line in table.table.figures for figure in line)
        assert table.numbers["paper"].notna().sum() == printed, table.name
        reasons = set(table.numbers["missing"]) - {""}
        assert reasons <= UNDEFINED.get(table.name, set()), (table.name, reasons)
        rows = json.loads((done.folder / "tables" / f"{table.name}.json").read_text())["numbers"]
        assert len(rows) == len(table.numbers)
    assert done.page.is_file()
    assert content.paper.split(",")[0] in done.page.read_text()
