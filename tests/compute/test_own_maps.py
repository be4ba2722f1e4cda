"""Test submitted maps: the template, errors before scoring, and scores that equal the scores of a run."""

import csv
import json
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import said
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from run_order import in_run_order

import saliency_bench as sb
from saliency_bench.board.submission import of_run
from saliency_bench.board.template import read_template, score_maps
from saliency_bench.cli import main
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.precomputed import explainer_of, file_of, wants_more
from saliency_bench.errors import UserError
from saliency_bench.score_notes import NO_MAP
from saliency_bench.utils.seeds import seed_of

METRICS = ["saliency_miou", "saliency_insertion:steps=4"]
COUNT = 11  # ends inside a batch of 8


@pytest.fixture(scope="module")
def blank(tmp_path_factory, shapes, resnet):
    out = tmp_path_factory.mktemp("template") / "mine"
    return sb.template(str(shapes), str(resnet), out, limit=COUNT, images="npy", device="cpu", progress=False)


@pytest.fixture(scope="module")
def values(shapes, resnet):
    """Return {image id: Grad-CAM map}."""
    dataset, classifier = in_run_order(sb.load_dataset(shapes)), sb.load_classifier(resnet, device="cpu")
    found = {}
    for start in (0, 8):  # the batches of a run, so that maps are bit-identical
        batch = classifier.prepare(dataset[start : start + 8])
        maps = sb.load_explainer("gradcam")(classifier, batch.images, sb.targets.one_hot(batch.labels, 8))
        found |= dict(zip(batch.ids, maps.numpy(), strict=True))
    return dict(list(found.items())[:COUNT])


def write(folder, values):
    folder.mkdir(exist_ok=True)
    for image_id, value in values.items():
        np.save(folder / f"{image_id}.npy", value)
    return folder


@pytest.fixture
def maps(values, tmp_path):
    return write(tmp_path / "maps", values)


def score(blank, maps, name="mine", **changes):
    settings = {"metrics": METRICS[:1], "batch_size": 8, "device": "cpu", "progress": False,
                "out": maps.parent / "scored"}  # fmt: skip
    return score_maps(maps, name, template=blank, **settings | changes)


def test_template_lists_samples_and_prepared_frames(blank, shapes, resnet):
    told, files = read_template(blank)
    rows = list(csv.DictReader((blank / "samples.csv").open()))
    dataset, classifier = in_run_order(sb.load_dataset(shapes)), sb.load_classifier(resnet, device="cpu")
    assert (told.size, told.samples, told.spec.split, told.spec.limit) == ([32, 32], COUNT, "test", COUNT)
    assert told.identity.classifier == classifier.digest
    assert [row["image_id"] for row in rows] == dataset["image_id"][:COUNT] == list(files)
    names = dataset.features["label"].names
    assert [row["label"] for row in rows] == [names[label] for label in dataset["label"][:COUNT]]
    assert [row["plus"] for row in rows] == [str(label) for label in dataset["label"][:COUNT]]
    assert {row["minus"] for row in rows} == {""}
    prepared = classifier.prepare(dataset.select(range(COUNT))).images.numpy()
    frames = np.stack([np.load(blank / "images" / file) for file in files.values()])
    np.testing.assert_array_equal(frames, prepared)


def test_template_follows_target_rule(shapes, resnet, tmp_path):
    settings = {"target": "contrast:second", "limit": 4, "images": "png", "progress": False}
    out = sb.template(str(shapes), str(resnet), tmp_path / "t", **settings)
    classifier = sb.load_classifier(resnet, device="cpu")
    batch = classifier.prepare(in_run_order(sb.load_dataset(shapes)).select(range(4)))
    order = classifier(batch.images).argsort(dim=1, descending=True)
    rows = list(csv.DictReader((out / "samples.csv").open()))
    assert [(row["plus"], row["minus"]) for row in rows] == [(str(int(o[0])), str(int(o[1]))) for o in order]
    pictures = np.stack([np.asarray(Image.open(out / "images" / f"{image_id}.png")) for image_id in batch.ids])
    assert np.abs(pictures / 255 - batch.images.permute(0, 2, 3, 1).numpy()).max() <= 0.5 / 255 + 1e-6


def test_template_skips_samples_that_a_run_leaves_out(shapes, resnet, tmp_path, monkeypatch):
    whole = Classifier.forward

    def broken(self, images):
        logits = whole(self, images)
        logits[1:2, 0] = np.nan
        return logits

    monkeypatch.setattr(Classifier, "forward", broken)
    listed = {}
    for rule in ("label", "predicted"):
        out = sb.template(str(shapes), str(resnet), tmp_path / rule, limit=4, target=rule, device="cpu", progress=False)
        listed[rule] = [row["image_id"] for row in csv.DictReader((out / "samples.csv").open())]
    assert listed["predicted"] == [image_id for place, image_id in enumerate(listed["label"]) if place != 1]


def test_version_depends_on_map_values(blank, values, tmp_path):
    _, files = read_template(blank)

    def version(name, **changes):
        return explainer_of("mine", write(tmp_path / name, values | changes), files, (32, 32), 0).version

    first, second = list(values)[:2]
    assert version("a") == version("b")
    assert version("swapped", **{first: values[second], second: values[first]}) != version("a")
    assert version("c", **{first: values[first] + np.float32(1e-3)}) != version("a")
    (tmp_path / "b" / f"{first}.npy").unlink()
    assert explainer_of("mine", tmp_path / "b", files, (32, 32), 0).version != version("a")


@pytest.mark.slow
def test_missing_maps_need_partial_and_are_counted(blank, values, tmp_path):
    some = dict(list(values.items())[2:])
    maps = write(tmp_path / "maps", some)
    refused(r"no map for image .* \(maps for 2 of 11 images are missing\).*--partial", score, blank, maps)
    done = score(blank, maps, partial=True)
    assert all((cell["n"], cell["left_out"]) == (COUNT - 2, {NO_MAP: 2}) for cell in done.summary["cells"])
    assert done.summary["faults"] == {}
    without = [row["image_id"] for row in done.records() if (row["value"], row["reason"]) == (None, NO_MAP)]
    assert without == list(values)[:2]


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("exploded"),)


def header(shape, dtype="<f4"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(("content", "words"), [
    (np.zeros((16, 32)), "is 16 x 32, but the prepared images are 32 x 32"),
    (np.zeros((1, 32, 32)), "is 1 x 32 x 32, but the prepared images are 32 x 32"),
    (np.float32(1), "is one number, but"),
    (np.full((32, 32), np.nan), "NaN or infinite"),
    (np.full((32, 32), 1e300), "NaN or infinite"),  # too large for float32
    (np.zeros((32, 32), complex), "not numbers"),
    (np.array([[Bomb()]], dtype=object), "not numbers"),  # no pickle is loaded
    (b"", "is not a .npy file"),
    (header((32, 32)), "does not match its header"),  # the header promises more data than the file contains
    (header((32, 32)) + bytes(5000), "does not match its header"),
    (header((2**40, 2**40)) + bytes(16), "but the prepared images are"),  # no memory is allocated
    (header((32, 32), "|O") + b"\x80\x04K\x01.", "not numbers"),
    (b"\x93NUMPY\x01\x00\x10\x00__import__('os')", "is not a .npy file"),
    (b"\x93NUMPY\x09\x00" + bytes(50), "is not a .npy file"),
])  # fmt: skip
def test_malformed_map_file_is_rejected_by_name(content, words, blank, maps, values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = maps / f"{next(iter(values))}.npy"
    file.write_bytes(content) if isinstance(content, bytes) else np.save(file, content)
    assert file.name in refused(re.escape(words), score, blank, maps)
    assert not (tmp_path / "scored").exists()
    assert not (tmp_path / "exploded").exists()


def test_unknown_files_links_and_empty_folders_are_rejected(blank, maps, values, tmp_path):
    (maps / "notes.txt").write_text("is left alone")
    np.save(maps / "stranger.npy", np.zeros((32, 32)))
    refused(r"the name of .*stranger\.npy is not the id of a known image", score, blank, maps)
    (maps / "stranger.npy").unlink()
    first = maps / f"{next(iter(values))}.npy"
    first.rename(tmp_path / "outside.npy")
    first.symlink_to(tmp_path / "outside.npy")
    refused("is not a regular file", score, blank, maps)
    np.save(tmp_path / "one.npy", np.zeros((32, 32)))
    with pytest.raises(UserError, match=r"npy contains one map, 32 x 32; a \.npy file must contain the maps of all"):
        score(blank, tmp_path / "one.npy")
    (tmp_path / "empty").mkdir()
    refused("contains no map", score, blank, tmp_path / "empty")
    refused(r"batch_size .*; got 0", score, blank, tmp_path / "empty", batch_size=0)  # before maps are read


def parquet(path, ids, maps):
    pq.write_table(pa.table({"image_id": ids, "map": maps}), path)
    return path


def test_image_ids_may_be_large_strings(blank, values, tmp_path):
    ids, maps = list(values), [value.ravel() for value in values.values()]
    found = score(blank, parquet(tmp_path / "maps.parquet", pa.array(ids, pa.large_string()), maps))
    assert {cell.n for cell in found.cells} == {COUNT}
    (cell,) = of_run(found.folder, "ada").result.cells
    assert (cell.explainer, cell.explainer_version[:5]) == ("mine", "maps-")
    assert "# my_mine: precomputed maps" in found.summary["command"]
    assert "Precomputed maps." in found.report.read_text()


def test_invalid_parquet_maps_are_rejected(blank, values, tmp_path):
    ids, good = list(values), [value.ravel() for value in values.values()]
    path = tmp_path / "maps.parquet"
    for names, maps, words in (
        (ids[:-1] + ids[:1], good, f"image {ids[0]} occurs twice"),
        (["../../etc/passwd", *ids[1:]], good, "'../../etc/passwd' is not a known image"),
        (ids, [good[0][:-1], *good[1:]], f"image {ids[0]} is 1023, but"),
        (ids, [None, *good[1:]], "the map is null"),
        (ids, [[None] * 1024, *good[1:]], "the map contains null"),
        (ids, [[[0.0] * 32] * 31 + [[0.0] * 31]] * COUNT, "differ in length"),
        (ids, ["x"] * COUNT, "map contains string, not lists of numbers"),
        (list(range(COUNT)), good, "image_id must have the type string"),
        (ids * 2, good * 2, "22 rows for 11 images"),
        (ids, [np.zeros(4096)] * COUNT, "more numbers than maps of 32 x 32"),
    ):
        refused(re.escape(words), score, blank, parquet(path, names, maps))
    pq.write_table(pa.table({"image_id": ids}), path)
    refused("no column map", score, blank, path)
    path.write_bytes(b"PAR1 but no more")
    refused("is not a Parquet file", score, blank, path)


@given(st.text(min_size=1, max_size=300), st.integers(0, 10**6))
def test_map_file_names_stay_inside_the_folder(image_id, position):
    file = file_of(image_id, position)
    assert Path("maps", file).parent == Path("maps")
    assert re.fullmatch(r"[A-Za-z0-9_.~%-]{1,250}\.npy", file)
    assert not file.startswith(".")


@pytest.mark.parametrize("name", ["", "two words", "../up", "a" * 101, "<b>", "gradcam"])
def test_invalid_or_taken_method_names_are_rejected(name, blank, maps):
    words = "gradcam is the name of an explainer" if name == "gradcam" else "cannot be the name of a method"
    refused(words, score, blank, maps, name)


@pytest.mark.parametrize(("name", "line"), [
    ("saliency_max_sensitivity", "saliency_max_sensitivity needs more maps"),
    ("saliency_roar", "saliency_roar also needs maps of the training images"),
    ("saliency_crowd_auc", "saliency_crowd_auc is computed from people's answers"),
])  # fmt: skip
def test_metrics_that_need_more_than_maps_are_rejected(blank, maps, name, line):
    refused(line, score, blank, maps, metrics=[name])
    assert wants_more(sb.load_metric(name))  # so that these metrics are not among the defaults
    assert not wants_more(sb.load_metric("saliency_miou"))


def test_precomputed_explainer_rejects_further_maps(blank, maps, values):
    """Request maps of another picture or target with the seed of the same image."""
    _, files = read_template(blank)
    method = explainer_of("mine", maps, files, (32, 32), 0, files)
    seeds = [seed_of(0, image_id, "explain") for image_id in list(values)[:2]]
    images, target = torch.rand(2, 3, 32, 32), sb.targets.one_hot([0, 1], 8)
    np.testing.assert_array_equal(
        method(torch.nn.Identity(), images, target, seeds=seeds), np.stack(list(values.values())[:2])
    )
    for other in ((images.flip(3), target), (images, target.flip(0))):
        refused("one map per image", method, torch.nn.Identity(), *other, seeds=seeds)


def test_template_of_other_dataset_or_model_is_rejected(blank, maps, tmp_path):
    other, told = shutil.copytree(blank, tmp_path / "other"), json.loads((blank / "template.json").read_text())
    for changes, words in (
        ({"identity": told["identity"] | {"fingerprint": "0" * 32}}, "the dataset has changed since"),
        ({"identity": told["identity"] | {"classifier": "0" * 32}}, "the model has changed since"),
        ({"identity": told["identity"] | {"target": "0" * 32}}, "the target has changed since"),
        ({"size": "big"}, r"template.json: size: "),
        ({"format": 1}, r"template.json has format 1, .* 2; create the template again"),
    ):
        (other / "template.json").write_text(json.dumps(told | changes))
        refused(words, score, other, maps)
    (other / "samples.csv").write_text("image_id,file\nx,../y.npy\n")
    (other / "template.json").write_text(json.dumps(told))
    refused(r"samples\.csv was changed", score, other, maps)


def test_scoring_uses_settings_of_the_template(maps, shapes, resnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("groups.json").write_text(json.dumps({"low": [0, 1, 2, 3], "high": [4, 5, 6, 7]}))
    lines = [f"{image_id},1" for image_id in sb.load_dataset(shapes)["image_id"]]
    Path("rule.csv").write_text("\n".join(["image_id,target", *lines]))
    settings = {"groups": "groups.json", "target": "rule.csv", "precision": "bf16", "batch_size": 4, "limit": COUNT}
    out = sb.template(str(shapes), str(resnet), "t", device="cpu", progress=False, **settings).resolve()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = score_maps(maps, "mine", template=out, metrics="saliency_miou", device="cpu", progress=False)
    assert (done.summary["precision"], done.summary["batch_size"]) == ("bf16", 4)
    assert (done.summary["groups"]["name"], done.summary["target"]) == ("groups.json", "rule.csv")
    (tmp_path / "rule.csv").write_text("\n".join(["image_id,target", *lines]).replace(",1", ",2"))
    refused("the target has changed since", score, out, maps, out=tmp_path / "again")


def test_template_rejects_objects_and_non_empty_folders(shapes, resnet, tmp_path):
    refused(r"label_map \(dict ", sb.template, str(shapes), str(resnet), tmp_path / "t", label_map={"circle": 1})
    assert not (tmp_path / "t").exists()
    (tmp_path / "notes.txt").write_text("mine")
    refused("is not empty", sb.template, str(shapes), str(resnet), tmp_path)


def test_template_example_makes_scorable_maps(blank, tmp_path, monkeypatch, capsys):
    mine = shutil.copytree(blank, tmp_path / "mine")
    runpy.run_path(str(mine / "example.py"))
    assert len(list((mine / "maps").glob("*.npy"))) == COUNT
    monkeypatch.delenv("HF_TOKEN", raising=False)
    refused("--name NAME", sb.submit, mine, dry_run=True)
    metrics = ["saliency_pointing_game", "saliency_miou"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["submit", str(mine), "--name", "sketch", "--metrics", *metrics, "--dry-run", "--device", "cpu"]) == 0
    first, *shown = capsys.readouterr().out.splitlines()
    names = " and ".join(metrics)
    assert first.startswith(f"sketch: scoring {COUNT} maps with {names}, writing results to {mine}/scored-")
    assert sum("sketch by saliency_" in line for line in shown) == 2
    done = score_maps(mine, "sketch", metrics="saliency_pointing_game", device="cpu", progress=False)
    assert done.folder.name.startswith("scored-sketch-maps-")
    assert done.summary["cells"][0]["n"] == COUNT


@pytest.mark.parametrize(("line", "words"), [
    ("template shapes-xia m --out X", "did you mean shapes-xai"),
    ("submit nowhere", "nowhere does not exist"),
    ("push results nowhere", "nowhere is not the folder of a finished run"),
])  # fmt: skip
def test_command_errors_are_a_single_line(line, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = said(capsys, line.split(), code=2)
    assert words in shown
    assert shown.count("\n") == 1
