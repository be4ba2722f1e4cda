"""Loading by name, by folder and from the Hub, and the fingerprint of what was loaded."""

import os
import shutil
import subprocess
import sys

import datasets
import pytest
from huggingface_hub import HfApi

import saliency_bench as sb
from saliency_bench.data import loading as data
from saliency_bench.errors import UserError

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


def test_a_dataset_is_called_the_same_wherever_it_lies(folder, tmp_path, monkeypatch):
    assert data.origin(folder) == data.origin("shapes-xai") == data.origin("saliency-bench/shapes-xai")
    assert data.origin(shutil.copytree(folder, tmp_path / "elsewhere")) == ("shapes-xai", None)
    monkeypatch.chdir(tmp_path)
    assert data.origin("elsewhere") == ("shapes-xai", None)
    assert data.origin("pet-xai") == ("pet-xai", "saliency-bench/pet-xai")
    (tmp_path / "elsewhere" / "build_report.json").write_text('{"dataset": "no builder of ours"}')
    assert data.origin("./elsewhere") == ("elsewhere", None)
    for torn in ('{"dataset', "[1]"):
        (tmp_path / "elsewhere" / "build_report.json").write_text(torn)
        with pytest.raises(UserError, match=r"elsewhere.build_report\.json"):
            data.origin("./elsewhere")
    (tmp_path / "elsewhere" / "build_report.json").unlink()
    assert data.origin("./elsewhere") == ("elsewhere", None)


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
        ("shapes-xai", {"split": "tset", **SMALL}, 'Unknown split "tset".*train'),
        ("shapes-xai", {"sizes": 4}, "did you mean size"),
        ("pet-xai", {"border": True}, "border can only be set when building"),
        ("./no-such-folder", {}, "not a folder"),
        ("pet-xai", {}, "cannot be reached.*saliency-bench build pet-xai --source DIR --out DIR"),
        ("saliency-bench/pet-xai", {}, "saliency-bench build pet-xai"),
        ("saliency-bench/shapes-xai", {"split": "tset", **SMALL}, 'Unknown split "tset"'),
        ("someone/something", {}, "someone/something"),
    ],
)
def test_errors_in_one_line(name, options, message, no_hub):
    with pytest.raises(UserError, match=message) as caught:
        sb.load_dataset(name, **options)
    assert "\n" not in str(caught.value)


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
