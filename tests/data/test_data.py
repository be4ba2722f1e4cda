"""Loading by name, by folder and from the Hub, and the fingerprint of what was loaded."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from huggingface_hub import HfApi

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.data import loading as data
from saliency_bench.errors import UserError
from saliency_bench.hub.repo_names import hub_name

SMALL = {"size": 32, "count": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sb.build("shapes-xai", tmp_path_factory.mktemp("data") / "shapes", progress=False, **SMALL)


@pytest.fixture
def no_hub(monkeypatch):
    def refuse(*args, **kwargs):
        raise TimeoutError("no network in this test")

    monkeypatch.setattr(HfApi, "dataset_info", refuse)


def test_names():
    assert {"pet-xai", "shapes-xai"} <= set(sb.list_datasets())


def test_embedded_dataset_is_built_once(monkeypatch, tmp_path):
    monkeypatch.setenv("SALIENCY_BENCH_CACHE", str(tmp_path))
    first = sb.load_dataset("shapes-xai", split="train", **SMALL)
    monkeypatch.setattr(data, "build", None)
    again = sb.load_dataset("shapes-xai", split="train", **SMALL)
    assert data.fingerprint(first) == data.fingerprint(again)
    assert data.class_names(first)[:2] == ["disc", "square"]
    assert len(list((tmp_path / "datasets").iterdir())) == 1


@pytest.mark.slow
def test_a_dataset_is_called_the_same_wherever_it_lies(folder, tmp_path, monkeypatch):
    assert {data.find(name).name for name in (folder, "shapes-xai", "saliency-bench/shapes-xai")} == {"shapes-xai"}
    assert data.find(shutil.copytree(folder, tmp_path / "elsewhere")).name == "shapes-xai"
    monkeypatch.chdir(tmp_path)
    assert data.find("elsewhere").name == "shapes-xai"
    (tmp_path / "elsewhere" / "build_report.json").write_text('{"dataset": "no builder of ours"}')
    assert data.find("./elsewhere").name == "folder:elsewhere"
    for torn in ('{"dataset', "[1]"):
        (tmp_path / "elsewhere" / "build_report.json").write_text(torn)
        with pytest.raises(UserError, match=r"elsewhere.build_report\.json"):
            data.find("./elsewhere")
    (tmp_path / "elsewhere" / "build_report.json").unlink()
    assert data.find("./elsewhere").name == "folder:elsewhere"


def test_a_hub_name_of_what_the_package_draws_says_so(capsys):
    data._complain_once.cache_clear()
    data.find("shapes-xai", **SMALL)
    assert capsys.readouterr().err == ""
    data.find("saliency-bench/shapes-xai", **SMALL)
    assert (
        "is drawn by the package; write hub:saliency-bench/shapes-xai for the published one" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_folder_is_used_by_exactly_its_name_and_a_line_says_so(folder, tmp_path, monkeypatch, capsys, no_hub):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "pet-xai")
    data._complain_once.cache_clear()
    found = data.find("pet-xai")
    assert (found.folder, found.name, found.repo) == (Path("pet-xai"), "shapes-xai", None)
    assert capsys.readouterr().err == (
        f"saliency-bench: the dataset pet-xai is the folder {tmp_path / 'pet-xai'}; write hub:pet-xai for the Hub\n"
    )
    data.find("./pet-xai")
    assert capsys.readouterr().err == ""
    for name in ("saliency-bench/pet-xai", "hub:pet-xai", "hub:saliency-bench/pet-xai"):
        with pytest.raises(UserError, match="cannot be reached, and saliency-bench/pet-xai is not in the cache"):
            data.find(name)
    shutil.copytree(folder, "ada/pet-xai")
    assert data.find("ada/pet-xai").folder == Path("ada/pet-xai")
    assert "write hub:ada/pet-xai for the Hub" in capsys.readouterr().err
    (tmp_path / "shapes-xai").mkdir()  # no dataset: the name means what it always does
    assert data.find("shapes-xai").folder.parent.name == "datasets"


def test_names_of_the_hub_with_a_revision():
    assert hub_name("ada/pets@main") == ("ada/pets", "main", False)
    assert hub_name("hub:ada/pets", "v1") == ("ada/pets", "v1", True)
    assert hub_name("ada/pets@v1", "v1").revision == "v1"
    with pytest.raises(UserError, match="two revisions"):
        hub_name("ada/pets@v2", "v1")
    with pytest.raises(UserError, match="no revision"):
        hub_name("ada/pets@")


@pytest.mark.slow
def test_a_dataset_in_memory(folder, resnet, tmp_path):
    rows = sb.load_dataset(folder)
    assert sb.load_dataset(rows) is rows
    assert sb.load_dataset(datasets.DatasetDict({"train": rows, "test": rows})) is rows
    with pytest.raises(UserError, match="is the split test, not train; give split='test'"):
        sb.load_dataset(rows, "train")
    for other in (rows.to_iterable_dataset(), [1], None):
        with pytest.raises(UserError, match=f"got {type(other).__name__}"):
            sb.load_dataset(other)
    settings = {"model": resnet, "explainers": ["centre"], "metrics": ["saliency_miou"], "progress": False}
    named = sb.run(dataset=folder, out=tmp_path / "named", **settings)
    held = sb.run(dataset=rows, out=tmp_path / "held", **settings)
    assert held.summary["dataset"] == named.summary["dataset"] | {"id": "in-memory"}
    assert [(cell["cell_id"], cell["value"]) for cell in held.summary["cells"]] == [
        (cell["cell_id"], cell["value"]) for cell in named.summary["cells"]
    ]
    assert "dataset=dataset" in held.summary["command"]
    without = sb.run(dataset=rows.remove_columns("image_id"), out=tmp_path / "without", **settings)
    assert set(without.records()["image_id"]) == set(map(str, range(len(rows))))
    with pytest.raises(UserError, match='no column "image"'):
        sb.run(dataset=rows.remove_columns("image"), out=tmp_path / "none", **settings)
    assert not (tmp_path / "none").exists()


def test_what_save_to_disk_wrote_is_a_folder(folder, tmp_path):
    rows = sb.load_dataset(folder)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows.select([0, 1])}).save_to_disk(tmp_path / "two")
    assert data.fingerprint(sb.load_dataset(tmp_path / "one")) == data.fingerprint(rows)
    assert len(sb.load_dataset(tmp_path / "two", "test")) == 2
    with pytest.raises(UserError, match=r"unknown split of .*two 'tst'; did you mean test"):
        sb.load_dataset(tmp_path / "two", "tst")


@pytest.fixture
def only_train(folder, tmp_path):
    """The same rows three ways, with `train` as their only split, which has the masks and labels of shapes."""
    rows = sb.load_dataset(folder, "train")
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / "several")
    (tmp_path / "pictures/disc").mkdir(parents=True)
    rows[0]["image"].save(tmp_path / "pictures/disc/0.png")
    return {"saved": tmp_path / "one", "dict": tmp_path / "several", "pictures": tmp_path / "pictures", "rows": rows}


@pytest.mark.parametrize("kind", ["saved", "dict", "pictures", "rows"])
def test_a_split_named_train_is_used_where_it_is_the_only_one_and_a_line_says_so(kind, only_train, capsys):
    name = only_train[kind]
    data._complain_once.cache_clear()
    assert str(sb.load_dataset(name).split) == "train"
    text = "the dataset" if kind == "rows" else name
    line = f"saliency-bench: {text} has no split test; its only split, train, is used\n"
    assert capsys.readouterr().err == line
    sb.load_dataset(name, "train")
    assert capsys.readouterr().err == ""
    for other in ("validation", "test[:1]"):
        with pytest.raises(UserError):
            sb.load_dataset(name, other)
    with pytest.raises(UserError):  # who asks for this very split, as a training does, gets no other
        data.find(name).load("test")


@pytest.mark.slow
def test_a_run_over_the_only_split_is_a_run_over_train(only_train, resnet, tmp_path):
    settings = {"model": resnet, "explainers": ["centre"], "metrics": ["saliency_miou"], "progress": False, "limit": 4}
    own = sb.run(dataset=only_train["dict"], out=tmp_path / "own", **settings)
    named = sb.run(dataset=only_train["dict"], out=tmp_path / "named", split="train", **settings)
    assert own.summary["dataset"]["split"] == "train"
    assert set(own.records()["split"]) == {"train"}
    assert "--split train" in own.summary["command"]
    assert [cell["cell_id"] for cell in own.summary["cells"]] == [cell["cell_id"] for cell in named.summary["cells"]]
    template = sb.template(only_train["dict"], resnet, tmp_path / "template", progress=False, limit=4)
    assert json.loads((template / "template.json").read_text())["spec"]["split"] == "train"


def test_rows_of_a_dict_with_train_alone_are_of_train_also_where_they_do_not_say_so(only_train, resnet, tmp_path):
    unnamed = datasets.Dataset(only_train["rows"].data, info=only_train["rows"].info)
    assert unnamed.split is None
    datasets.DatasetDict({"train": unnamed}).save_to_disk(tmp_path / "unnamed")
    settings = {"model": resnet, "explainers": ["centre"], "metrics": ["saliency_miou"], "progress": False, "limit": 4}
    run = sb.run(dataset=tmp_path / "unnamed", out=tmp_path / "run", **settings)
    assert run.summary["dataset"]["split"] == "train"
    assert set(run.records()["split"]) == {"train"}
    assert "--split train" in run.summary["command"]


def test_a_slice_of_train_is_no_test_split(folder, capsys):
    rows = datasets.load_dataset(str(folder), split="train[:4]")
    data._complain_once.cache_clear()
    assert data.find(rows).load_usual("test")[1] == "train"
    assert "its only split, train, is used" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"is the split train, not validation"):
        sb.load_dataset(rows, "validation")


def test_a_refused_split_names_the_option(only_train, folder):
    with pytest.raises(UserError, match=r"'dev'; known: train \(--split\)"):
        sb.load_dataset(only_train["pictures"], "dev")
    with pytest.raises(UserError, match=r"'tset'; did you mean test\? \(--split\)"):
        sb.load_dataset(folder, "tset")
    with pytest.raises(UserError, match=r"is the split train, not dev; give split='train' \(--split train\)"):
        sb.load_dataset(only_train["saved"], "dev")


@pytest.mark.slow
def test_two_processes_may_ask_for_it_at_once(tmp_path):
    code = f"from saliency_bench.data.loading import embedded; print(embedded('shapes-xai', {SMALL}))"
    environment = {**os.environ, "SALIENCY_BENCH_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = {process.communicate()[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert folders == {str(folder) for folder in (tmp_path / "datasets").iterdir()}


def test_folder(folder):
    loaded = sb.load_dataset(str(folder), split="test")
    assert isinstance(loaded, datasets.Dataset)
    assert len(sb.load_dataset(folder, split="test[:2]")) == 2


def test_loading_a_folder_is_silent_and_leaves_the_settings(folder, tmp_path, capfd):
    shown, level = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    shutil.copytree(folder, tmp_path / "fresh")
    sb.load_dataset(tmp_path / "fresh")
    assert capfd.readouterr() == ("", "")
    assert (datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()) == (shown, level)


def test_fingerprint_is_of_the_content_alone(folder, tmp_path):
    here = sb.load_dataset(folder, split="train")
    shutil.copytree(folder, tmp_path / "copy")
    there = sb.load_dataset(tmp_path / "copy", split="train")
    known = data.fingerprint(here)
    assert data.fingerprint(there) == known
    assert data.fingerprint(here.remove_columns("scene")) == known
    assert data.fingerprint(here.with_format("numpy")) == known
    assert data.fingerprint(here.select(range(len(here)))) == known
    assert data.fingerprint(here.select(range(len(here))[::-1])) != known
    assert data.fingerprint(here.remove_columns("mask")) != known
    relabelled = here.map(lambda row: {"label": 0}, load_from_cache_file=False)
    assert data.fingerprint(relabelled) != known


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pet-xia", {}, "pet-xia.*pet-xai"),
        ("shapes-xai", {"split": "tset", **SMALL}, "unknown split of .*'tset'; did you mean test"),
        ("shapes-xai", {"sizes": 4}, "did you mean size"),
        ("pet-xai", {"border": True}, "border can only be set when building"),
        ("./no-such-folder", {}, "not a folder"),
        ("pet-xai", {}, "cannot be reached.*saliency-bench build pet-xai --source DIR --out DIR"),
        ("saliency-bench/pet-xai", {}, "saliency-bench build pet-xai"),
        ("saliency-bench/shapes-xai", {"split": "tset", **SMALL}, "unknown split of .*'tset'"),
        ("someone/something", {}, "someone/something"),
    ],
)
def test_errors_in_one_line(name, options, message, no_hub):
    with pytest.raises(UserError, match=message) as caught:
        sb.load_dataset(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("./shapez", "shapes"),
        ("data/shapez/x", "data/shapes/x"),
        ("./dta/shape", "data/shapes"),
        ("dta/shapes", "data/shapes"),
        ("coinz", "coins"),
    ],
)
def test_a_path_with_a_typo_suggests_the_nearest_folder(name, near, tmp_path, monkeypatch, no_hub, capsys):
    for path in ("shapes", "data/shapes/x", "coins"):
        (tmp_path / path).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    (tmp_path / "net/config.json").write_text("{}")
    assert main(["run", "--dataset", name, "--model", "net", "--out", "out"]) == 2
    assert re.search(rf"did you mean (the folder )?{near}\?", capsys.readouterr().err)
    if name != "data/shapez/x":
        with pytest.raises(UserError, match=rf"did you mean (the folder )?{near}\?"):
            sb.load_dataset(name)


def test_a_folder_without_dataset(tmp_path):
    with pytest.raises(UserError, match="holds no dataset"):
        sb.load_dataset(tmp_path)
    (tmp_path / "notes.txt").write_text("some text")
    with pytest.raises(UserError, match='no column "image"'):
        sb.load_dataset(tmp_path, split="train")


def test_a_damaged_folder(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "damaged")
    (tmp_path / "damaged/data/test-00000-of-00001.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(UserError, match="damaged"):
        sb.load_dataset(tmp_path / "damaged")


def test_columns_that_are_missing():
    rows = datasets.Dataset.from_dict({"text": ["a"]})
    with pytest.raises(UserError, match="image"):
        data.fingerprint(rows)
    with pytest.raises(UserError, match="label"):
        data.class_names(rows)
