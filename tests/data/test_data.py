"""Tests of loading by name, by folder and from the Hub, and of the fingerprint of the loaded rows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from commands import refusal
from huggingface_hub import HfApi
from refusals import refused

import saliency_bench as sb
from saliency_bench.data import loading as data
from saliency_bench.data.dataset_names import alternative_to
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


def test_embedded_dataset_is_built_once(monkeypatch, tmp_path):
    monkeypatch.setenv("SALIENCY_BENCH_CACHE", str(tmp_path))
    first = sb.load_dataset("shapes-xai", split="train", **SMALL)
    monkeypatch.setattr(data, "build", None)
    again = sb.load_dataset("shapes-xai", split="train", **SMALL)
    assert data.fingerprint(first) == data.fingerprint(again)
    assert data.class_names(first)[:2] == ["disc", "square"]
    assert len(list((tmp_path / "datasets").iterdir())) == 1


@pytest.mark.slow
def test_dataset_name_is_independent_of_its_location(folder, tmp_path, monkeypatch):
    assert {data.find(name).name for name in (folder, "shapes-xai", "saliency-bench/shapes-xai")} == {"shapes-xai"}
    assert data.find(shutil.copytree(folder, tmp_path / "elsewhere")).name == "shapes-xai"
    monkeypatch.chdir(tmp_path)
    assert data.find("elsewhere").name == "shapes-xai"
    (tmp_path / "elsewhere" / "build_report.json").write_text('{"dataset": "no builder of ours"}')
    assert data.find("./elsewhere").name == "folder:elsewhere"
    for torn in ('{"dataset', "[1]"):
        (tmp_path / "elsewhere" / "build_report.json").write_text(torn)
        refused(r"elsewhere.build_report\.json", data.find, "./elsewhere")
    (tmp_path / "elsewhere" / "build_report.json").unlink()
    assert data.find("./elsewhere").name == "folder:elsewhere"


def test_hub_name_of_a_generated_dataset_gives_a_hint(capsys):
    data._complain_once.cache_clear()
    data.find("shapes-xai", **SMALL)
    assert capsys.readouterr().err == ""
    data.find("saliency-bench/shapes-xai", **SMALL)
    line = "not downloaded; to load the published dataset, write hub:saliency-bench/shapes-xai"
    assert line in capsys.readouterr().err


@pytest.mark.slow
def test_local_folder_takes_precedence_and_is_reported(folder, tmp_path, monkeypatch, capsys, no_hub):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "pet-xai")
    data._complain_once.cache_clear()
    found = data.find("pet-xai")
    assert (found.folder, found.name, found.repo) == (Path("pet-xai"), "shapes-xai", None)
    loaded = f"the dataset pet-xai is loaded from the folder {tmp_path / 'pet-xai'}"
    line = f"{loaded}; to load it from the Hub, write hub:pet-xai"
    assert capsys.readouterr().err == f"saliency-bench: {line}\n"
    data.find("./pet-xai")
    assert capsys.readouterr().err == ""
    for name in ("saliency-bench/pet-xai", "hub:pet-xai", "hub:saliency-bench/pet-xai"):
        refused("cannot be reached, and saliency-bench/pet-xai is not in the cache", data.find, name)
    shutil.copytree(folder, "ada/pet-xai")
    assert data.find("ada/pet-xai").folder == Path("ada/pet-xai")
    assert "write hub:ada/pet-xai" in capsys.readouterr().err
    (tmp_path / "shapes-xai").mkdir()  # not a dataset, so the name keeps its meaning
    assert data.find("shapes-xai").folder.parent.name == "datasets"


def test_hub_name_parses_the_revision():
    assert hub_name("ada/pets@main") == ("ada/pets", "main", False)
    assert hub_name("hub:ada/pets", "v1") == ("ada/pets", "v1", True)
    assert hub_name("ada/pets@v1", "v1").revision == "v1"
    refused("different revisions", hub_name, "ada/pets@v2", "v1")
    refused("no revision", hub_name, "ada/pets@")


def test_in_memory_dataset_matches_its_folder(folder, resnet, tmp_path):
    rows = sb.load_dataset(folder)
    assert sb.load_dataset(rows) is rows
    assert sb.load_dataset(datasets.DatasetDict({"train": rows, "test": rows})) is rows
    refused("is the split test, not train; use split='test'", sb.load_dataset, rows, "train")
    for other in (rows.to_iterable_dataset(), [1], None):
        refused(f"got {type(other).__name__}", sb.load_dataset, other)
    settings = {"model": resnet, "explainers": ["centre"], "metrics": ["saliency_miou"], "progress": False}
    named = sb.run(dataset=folder, out=tmp_path / "named", **settings)
    held = sb.run(dataset=rows, out=tmp_path / "held", **settings)
    assert held.summary["dataset"] == named.summary["dataset"] | {"id": "in-memory"}
    first, second = ([(cell.cell_id, cell.value) for cell in run.cells] for run in (held, named))
    assert first == second
    assert "dataset=dataset" in held.summary["command"]
    without = sb.run(dataset=rows.remove_columns("image_id"), out=tmp_path / "without", **settings)
    assert set(without.records()["image_id"]) == set(map(str, range(len(rows))))
    refused('no column "image"', sb.run, dataset=rows.remove_columns("image"), out=tmp_path / "none", **settings)
    assert not (tmp_path / "none").exists()


@pytest.fixture
def only_train(folder, tmp_path):
    """Return a dataset in several forms whose only split is `train`, with the masks and labels of shapes."""
    rows = sb.load_dataset(folder, "train")
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / "several")
    (tmp_path / "pictures/disc").mkdir(parents=True)
    rows[0]["image"].save(tmp_path / "pictures/disc/0.png")
    return {"saved": tmp_path / "one", "dict": tmp_path / "several", "pictures": tmp_path / "pictures", "rows": rows}


@pytest.mark.parametrize("kind", ["saved", "dict", "pictures", "rows"])
def test_single_train_split_is_used_and_reported(kind, only_train, capsys):
    name = only_train[kind]
    data._complain_once.cache_clear()
    assert str(sb.load_dataset(name).split) == "train"
    text = "the dataset" if kind == "rows" else name
    line = f"saliency-bench: {text} has no split test, so its only split, train, is used\n"
    assert capsys.readouterr().err == line
    sb.load_dataset(name, "train")
    assert capsys.readouterr().err == ""
    for other in ("validation", "test[:1]"):
        refused(".", sb.load_dataset, name, other)
    refused(".", data.find(name).load, "test")  # a training, for example, never gets another split


def test_unnamed_rows_of_a_train_only_dict_are_the_train_split(only_train, resnet, tmp_path):
    unnamed = datasets.Dataset(only_train["rows"].data, info=only_train["rows"].info)
    assert unnamed.split is None
    datasets.DatasetDict({"train": unnamed}).save_to_disk(tmp_path / "unnamed")
    settings = {"model": resnet, "explainers": ["centre"], "metrics": ["saliency_miou"], "progress": False, "limit": 4}
    run = sb.run(dataset=tmp_path / "unnamed", out=tmp_path / "run", **settings)
    assert (run.summary["dataset"]["split"], set(run.records()["split"])) == ("train", {"train"})
    assert "--split train" in run.summary["command"]


def test_slice_of_train_is_used_as_train(folder, capsys):
    rows = datasets.load_dataset(str(folder), split="train[:4]")
    data._complain_once.cache_clear()
    assert data.find(rows).load_usual("test")[1] == "train"
    assert "its only split, train, is used" in capsys.readouterr().err
    refused(r"is the split train, not validation", sb.load_dataset, rows, "validation")


def test_unknown_split_error_names_the_option(only_train, folder):
    refused(r"'dev'; known: train \(--split\)", sb.load_dataset, only_train["pictures"], "dev")
    refused(r"'tset'; did you mean test\? \(--split\)", sb.load_dataset, folder, "tset")
    refused(r"is the split train, not dev; use split='train' \(--split train\)", sb.load_dataset, only_train["saved"],
            "dev")  # fmt: skip


@pytest.mark.slow
def test_two_processes_share_an_embedded_dataset(tmp_path):
    code = f"from saliency_bench.data.loading import embedded; print(embedded('shapes-xai', {SMALL}))"
    environment = {**os.environ, "SALIENCY_BENCH_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = {process.communicate()[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert folders == {str(folder) for folder in (tmp_path / "datasets").iterdir()}


def test_loading_a_folder_is_silent_and_keeps_settings(folder, tmp_path, capfd):
    shown, level = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    shutil.copytree(folder, tmp_path / "fresh")
    sb.load_dataset(tmp_path / "fresh")
    assert capfd.readouterr() == ("", "")
    assert (datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()) == (shown, level)


def test_fingerprint_depends_on_content_only(folder, tmp_path):
    here = sb.load_dataset(folder, split="train")
    shutil.copytree(folder, tmp_path / "copy")
    there, known = sb.load_dataset(tmp_path / "copy", split="train"), data.fingerprint(here)
    assert (data.fingerprint(there), data.fingerprint(here.remove_columns("scene"))) == (known, known)
    assert data.fingerprint(here.with_format("numpy")) == known
    assert data.fingerprint(here.select(range(len(here)))) == known
    assert data.fingerprint(here.select(range(len(here))[::-1])) != known
    assert data.fingerprint(here.remove_columns("mask")) != known
    relabelled = here.map(lambda row: {"label": 0}, load_from_cache_file=False)
    assert data.fingerprint(relabelled) != known


@pytest.mark.parametrize(("name", "options", "message"), [
    ("shapes-xai", {"sizes": 4}, "did you mean size"),
    ("pet-xai", {"border": True}, "border can only be set when building"),
    ("./no-such-folder", {}, "not a folder"), ("./none.parquet", {}, "there is no file"),
    ("pet-xai", {}, "cannot be reached.*saliency-bench build pet-xai --source DIR --out DIR"),
    ("saliency-bench/pet-xai", {}, "saliency-bench build pet-xai"),
    ("someone/something", {}, "someone/something"),
])  # fmt: skip
def test_invalid_names_and_options_are_rejected(name, options, message, no_hub):
    refused(message, sb.load_dataset, name, **options)


@pytest.mark.parametrize(("name", "near"), [
    ("./shapez", "shapes"), ("data/shapez/x", "data/shapes/x"), ("./dta/shape", "data/shapes"),
    ("dta/shapes", "data/shapes"), ("coinz", "coins"),
])  # fmt: skip
def test_misspelled_path_suggests_the_nearest_folder(name, near, tmp_path, monkeypatch, no_hub, capsys):
    for path in ("shapes", "data/shapes/x", "coins"):
        (tmp_path / path).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    (tmp_path / "net/config.json").write_text("{}")
    shown = refusal(capsys, ["run", "--dataset", name, "--model", "net", "--out", "out"])
    assert re.search(rf"did you mean (the folder )?{near}\?", shown)
    if name != "data/shapez/x":
        refused(rf"did you mean (the folder )?{near}\?", sb.load_dataset, name)


def test_missing_and_damaged_dataset_folders_are_rejected(folder, tmp_path):
    refused("contains no readable dataset", sb.load_dataset, tmp_path)
    (tmp_path / "notes.txt").write_text("some text")
    refused('no column "image"', sb.load_dataset, tmp_path, split="train")
    shutil.copytree(folder, tmp_path / "damaged")
    (tmp_path / "damaged/data/test-00000-of-00001.parquet").write_bytes(b"PAR1 no more")
    refused("damaged", sb.load_dataset, tmp_path / "damaged")
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines/train.jsonl").write_text('{"label": 1}\n{"label": }\n')
    refused(r"contains no readable dataset.*\(JSON parse error", sb.load_dataset, tmp_path / "lines")


def test_missing_columns_are_rejected():
    rows = datasets.Dataset.from_dict({"text": ["a"]})
    refused("image", data.fingerprint, rows)
    refused("label", data.class_names, rows)


@pytest.mark.parametrize(("repo", "hint"), [
    ("saliency-bench/pet-xai", "build it with `saliency-bench build pet-xai"),
    ("saliency-bench/nothing", "known names:"), ("ada/pet-xai", "check the name, or use a folder"),
])  # fmt: skip
def test_hint_for_unavailable_dataset_fits_its_namespace(repo, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hint in alternative_to(repo)
