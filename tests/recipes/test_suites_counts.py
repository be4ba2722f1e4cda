"""Tests of tables with the sizes of datasets. They count all splits, show the numbers of the paper, and need no run."""

import numpy as np
import pytest
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as Pictures

from saliency_bench.errors import UserError
from saliency_bench.recipes.suites.counts import counts_of
from saliency_bench.recipes.suites.number import NoNumberError
from saliency_bench.recipes.suites.suite import suite
from saliency_bench.recipes.suites.suite_jobs import SuiteChoice, jobs_of
from saliency_bench.recipes.suites.suite_schema import find_suite

FEATURES = Features(
    {"image_id": Value("string"), "image": Image(), "mask": Image(), "label": ClassLabel(names=["cat", "cow", "dog"])}
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


def test_all_splits_are_counted(data):
    assert counts_of(str(data / "pets")) == {"classes": 3, "images": 5, "masks": 3, "rarest": 0, "commonest": 3}
    with pytest.raises(NoNumberError, match="not built"):
        counts_of(str(data / "cows"))


def test_a_table_of_sizes_needs_no_run(data, tmp_path):
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


def test_the_binary_sets_of_p0_are_evaluated_on_the_positive_class(tmp_path):
    """Test that all scores use images with a mask (Saliency-Bench, appendix C)."""
    _, content, _ = find_suite("p0")
    for job in jobs_of(content, ["p0-table2", "p0-table4"], SuiteChoice(tmp_path)):
        only = ("masked",) if job.dataset in ("disease-xai", "cancer-xai", "security-xai") else ()
        assert tuple(job.spec.only or ()) == only


@pytest.mark.slow
def test_drawn_pictures_are_marked_in_every_file_and_never_taken_for_real_ones(tmp_path):
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
