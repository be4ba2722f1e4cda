"""Test files that a power failure or a full disk left torn, empty or missing. They are recreated with a message."""

import json
import shutil

import pytest
from refusals import refused

import saliency_bench as sb
from saliency_bench.compute.training import train
from saliency_bench.data.building import build
from saliency_bench.push_scripts.demo import small_resnet
from saliency_bench.read.manifest import read_manifest

TORN = {"empty": b"", "zeros": b"\0" * 4096, "half": b'{"format": 5, "spec": {"data', "missing": None}
NO_MANIFEST = {"a list": b"[]", "a number": b"4", "null": b"null", "only a format": b'{"format": 5}'}


def go(out, shapes, resnet, **changes):
    settings = {"explainers": ["gradcam", "random"], "metrics": ["saliency_miou"], "limit": 12, "batch_size": 4}
    return sb.run(dataset=str(shapes), model=str(resnet), out=out, device="cpu", progress=False, **settings | changes)


@pytest.fixture(scope="module")
def run(shapes, resnet, tmp_path_factory):
    return go(tmp_path_factory.mktemp("runs") / "run", shapes, resnet).folder


@pytest.fixture
def folder(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def tear(path, content):
    path.unlink() if content is None else path.write_bytes(content)


def bytes_of(folder):
    return [(folder / name).read_bytes() for name in ("records.parquet", "predictions.parquet")]


def unnamed(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if "not in the table" in line]


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", TORN | NO_MANIFEST)
def test_run_json_is_rebuilt_from_the_settings_where_parts_are_there(kind, run, folder, shapes, resnet, capsys,
                                                                     monkeypatch):  # fmt: skip
    tear(folder / "run.json", (TORN | NO_MANIFEST)[kind])
    (folder / "records.parquet").unlink()
    monkeypatch.setattr("saliency_bench.compute.run.work", pytest.fail)  # nothing is computed again
    go(folder, shapes, resnet)
    shown = capsys.readouterr().err
    why = "is missing" if kind == "missing" else "cannot be read"
    assert f"{folder / 'run.json'} {why} and is rebuilt from the settings of this start" in shown
    assert bytes_of(folder) == bytes_of(run)
    assert read_manifest(folder).cells == read_manifest(run).cells


@pytest.mark.slow
def test_parts_of_other_settings_are_not_believed_when_run_json_is_rebuilt(run, folder, shapes, resnet, tmp_path):
    (folder / "run.json").write_bytes(b"")
    changes = {"batch_size": 3, "seed": 5}
    other = go(folder, shapes, resnet, **changes)
    fresh = go(tmp_path / "fresh", shapes, resnet, **changes)
    assert bytes_of(other.folder) == bytes_of(fresh.folder)
    assert [cell["cell_id"] for cell in other.summary["cells"]] == [cell["cell_id"] for cell in fresh.summary["cells"]]


@pytest.mark.slow
def test_what_this_start_does_not_name_is_not_shown_and_found_when_named(run, folder, shapes, resnet, monkeypatch):
    (folder / "run.json").write_bytes(b"")
    alone = go(folder, shapes, resnet, explainers=["random"])
    assert {cell["explainer"] for cell in alone.summary["cells"]} == {"random"}
    monkeypatch.setattr("saliency_bench.compute.run.work", pytest.fail)
    go(folder, shapes, resnet)
    assert bytes_of(folder) == bytes_of(run)


@pytest.mark.slow
def test_cells_that_are_not_in_the_table_are_named_in_one_line(folder, shapes, resnet, capsys):
    go(folder, shapes, resnet, metrics=["saliency_miou", "saliency_iosr"])
    assert not unnamed(capsys)
    (folder / "run.json").write_bytes(b"")
    go(folder, shapes, resnet, explainers=["random"])
    (line,) = unnamed(capsys)
    assert "gradcam by saliency_iosr, gradcam by saliency_miou, random by saliency_iosr; add their explainers" in line
    (folder / "summary.json").unlink()
    go(folder, shapes, resnet, explainers=["random"])
    (line,) = unnamed(capsys)
    assert line.count("cell ") == 3  # whose names are no longer stored in any file
    go(folder, shapes, resnet, metrics=["saliency_miou", "saliency_iosr"])
    assert not unnamed(capsys)


@pytest.mark.parametrize("kind", ["empty", "half"])
def test_without_parts_a_torn_run_json_is_refused(kind, folder, shapes, resnet):
    tear(folder / "run.json", TORN[kind])
    for name in ("scores", "predictions"):
        shutil.rmtree(folder / name)
    refused(r"run\.json cannot be read", go, folder, shapes, resnet)


def test_a_whole_run_json_of_something_else_is_refused_whatever_lies_beside_it(folder, shapes, resnet):
    content = json.loads((folder / "run.json").read_text())
    before = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    assert content.pop("format") == 5
    for words, other in {
        r"run\.json has no format.*5.*--out": content, "no format": {"cells": {}},
        r"run\.json has format 1.*5.*--out": content | {"format": 1}, "format 1": {"format": 1},
        r"run\.json has format 3.*5.*--out": content | {"format": 3},  # with another order of samples
        "cells": content | {"format": 5, "cells": 3},
    }.items():  # fmt: skip
        (folder / "run.json").write_text(json.dumps(other))
        refused(words, go, folder, shapes, resnet)
    assert {path: path.read_bytes() for path in folder.rglob("*.parquet")} == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["empty", "zeros", "half"])
def test_a_torn_state_of_a_training_is_said_and_the_training_starts_again(kind, shapes, tmp_path, capsys):
    state = tmp_path / "tiny.training.pt"
    state.write_bytes(TORN[kind])
    out = train(dataset=str(shapes), model=small_resnet(), out=tmp_path / "tiny", epochs=1, size=32, limit=8,
                device="cpu", progress=False)  # fmt: skip
    assert f"{state} cannot be read; training starts from the beginning" in capsys.readouterr().err
    assert (out / "model.safetensors").exists()
    assert not state.exists()


@pytest.mark.slow
def test_a_torn_batch_of_a_build_is_made_again(tmp_path, monkeypatch, capsys):
    settings = {"size": 32, "count": 80, "progress": False}
    whole = build("shapes-xai", tmp_path / "whole", **settings)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("saliency_bench.data.building.move_into_place", stop)
        with pytest.raises(KeyboardInterrupt):
            build("shapes-xai", tmp_path / "torn", **settings)
    first, second, *_ = sorted((tmp_path / ".torn.building" / "batches").iterdir())
    first.write_bytes(b"")
    second.write_bytes(second.read_bytes()[:-30])
    torn = build("shapes-xai", tmp_path / "torn", **settings)
    assert capsys.readouterr().err.count("cannot be read and is recreated") == 2
    files = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
    assert [(torn / file).read_bytes() for file in files] == [(whole / file).read_bytes() for file in files]
