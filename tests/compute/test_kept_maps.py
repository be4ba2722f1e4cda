"""Test maps that a run stores: they equal the explainer's maps. `test_disturbances.py` also compares stored maps."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.compute.scoring.inputs import MetricInputs
from saliency_bench.read.stored_maps import SCHEMA, StoredMaps, packed, table_of

SETTINGS = {"explainers": ["gradient", "random"], "metrics": ["saliency_miou"], "batch_size": 4, "limit": 22}


def go(out, shapes, resnet, **changes):
    settings = SETTINGS | {"keep_maps": True} | changes
    return sb.run(dataset=str(shapes), model=str(resnet), device="cpu", progress=False, out=out, **settings)


def maps_of(out):
    """Return {explainer: {image id: bytes of the map}}."""
    return {name: {one: values.tobytes() for one, values in maps.items()} for name, maps in sb.load_maps(out).items()}


@pytest.fixture(scope="module")
def done(shapes, resnet, tmp_path_factory):
    return go(tmp_path_factory.mktemp("kept") / "run", shapes, resnet)


def test_maps_are_those_of_the_explainer_to_the_last_bits_of_float16(done, shapes, resnet):
    seen = {}

    def gradient(classifier, images, target):
        maps = sb.load_explainer("gradient")(classifier, images, target)
        seen.update(zip((image.numpy().tobytes() for image in images), maps.numpy(), strict=True))
        return maps

    go(done.folder.parent / "watched", shapes, resnet, explainers=[gradient], keep_maps=False)
    kept = sb.load_maps(done)
    assert list(kept) == ["gradient", "random"]
    ids = pq.read_table(done.folder / "predictions.parquet")["image_id"].to_pylist()
    assert list(kept["gradient"]) == ids, "in the order of the run, without what its last chunk holds beyond the limit"
    classifier = sb.load_classifier(str(resnet), device="cpu")
    rows = {str(row["image_id"]): row for row in sb.load_dataset(str(shapes), split="test")}
    for image_id in ids:
        own = seen[classifier.prepare([rows[image_id]]).images[0].numpy().tobytes()]
        stored = kept["gradient"][image_id]
        assert stored.dtype == np.float32
        np.testing.assert_allclose(stored, own, rtol=2**-11, atol=2**-24 * np.abs(own).max())
    assert np.asarray(kept["random"]).shape == (len(ids), 32, 32)


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e6, 1e30, 0.0])
def test_maps_of_any_size_keep_their_digits_and_none_stays_none(tmp_path, size):
    maps = [size * np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32), None, np.zeros((3, 5), np.float32)]
    pq.write_table(table_of([4, 5, 6], ["d", "e", "f"], maps), tmp_path / "000001-0.parquet")
    stored = StoredMaps(tmp_path)
    assert list(stored) == ["d", "f"]
    np.testing.assert_allclose(stored["d"], maps[0], rtol=2**-11, atol=2**-24 * size)
    np.testing.assert_array_equal(stored["f"], maps[2])
    assert np.abs(maps[0]).max() / packed(maps[0])[1] < 1 <= 2 * max(np.abs(maps[0]).max() / packed(maps[0])[1], 0.5)
    with pytest.raises(KeyError):
        stored["e"]


@pytest.mark.slow
def test_maps_asked_for_later_are_added_and_no_score_is_made_again(shapes, resnet, done, tmp_path, monkeypatch):
    first = go(tmp_path / "run", shapes, resnet, keep_maps=False)
    refused("--keep-maps", sb.load_maps, first)
    before = (first.folder / "records.parquet").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(MetricInputs, "score", lambda *_: pytest.fail("scored again"))
        again = go(tmp_path / "run", shapes, resnet)
    assert maps_of(again.folder) == maps_of(done.folder)
    assert (again.folder / "records.parquet").read_bytes() == before
    assert not again.complete
    assert go(tmp_path / "run", shapes, resnet).complete
    assert [cell.cell_id for cell in again.cells] == [cell.cell_id for cell in first.cells]


def test_samples_without_a_map_are_left_out_and_the_run_is_complete(shapes, resnet, tmp_path):
    def torn(classifier, images, target):
        maps = images.mean(dim=1)
        maps[0, 0, 0] = float("nan")
        return maps

    first = go(tmp_path / "run", shapes, resnet, explainers=[torn])
    assert len(sb.load_maps(first)["torn"]) == 22 - 6
    assert go(tmp_path / "run", shapes, resnet, explainers=[torn]).complete


@pytest.mark.slow
def test_kept_maps_are_scored_again_like_those_they_were(done, shapes, resnet, tmp_path):
    """Pass the maps as a folder and as loaded arrays."""
    folder = done.folder / "maps" / done.cells[0].explainer_id
    line = f"run --dataset {shapes} --model {resnet} --maps mine={folder} --metrics saliency_miou --device cpu"
    line += f" --batch-size 4 --limit 22 --out {tmp_path / 'file'}"
    assert main(line.split()) == 0
    own = go(tmp_path / "own", shapes, resnet, explainers=[], maps={"mine": sb.load_maps(done)["gradient"]})
    values = [cell.value for run in (tmp_path / "file", tmp_path / "own") for cell in sb.load_run(run).cells]
    assert values == pytest.approx([done.cells[0].value] * 2, abs=2e-3)
    assert values[0] == values[1]
    assert list(sb.load_maps(own)) == ["mine"]


def test_maps_that_are_not_there_are_answered_by_the_nearest(done, tmp_path):
    assert "--keep-maps" in done.summary["command"]
    refused("'gradient2'; did you mean gradient", sb.load_maps(done).__getitem__, "gradient2")
    refused("not the folder of a finished run", sb.load_maps, tmp_path)


def test_a_damaged_file_of_maps_is_named_and_made_again(done, shapes, resnet, tmp_path):
    folder = shutil.copytree(done.folder, tmp_path / "run")
    path = next(folder.glob("maps/*/*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    refused(f"{path.name} is damaged; start the run again", lambda: [
        np.asarray(maps) for maps in sb.load_maps(folder).values()])  # fmt: skip
    path.write_bytes(bytes(content[:-100]) + bytes(100))
    go(folder, shapes, resnet)
    assert maps_of(folder) == maps_of(done.folder)


def column(name, *values):
    """Return a function that damages a file of maps by replacing the values of one column."""
    kind = None if isinstance(values[0], str) else SCHEMA.field(name).type

    def spoil(path):
        table = pq.read_table(path)
        array = pa.array([values[0]] * len(table), kind)
        pq.write_table(table.set_column(SCHEMA.get_field_index(name), name, array), path)

    return spoil


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def gigabytes(path):
    """Write a file of a few kilobytes that expands to more numbers than the reader accepts."""
    rows = pa.ListArray.from_arrays([0, 3 * 10**6], pa.array(np.zeros(3 * 10**6, np.float16)))
    maps = pa.ListArray.from_arrays([0, 1], rows)
    pq.write_table(pq.read_table(path).slice(0, 1).set_column(3, "map", maps), path, compression="zstd")


def long_ids(path):
    """Write a file of a few kilobytes that expands to a gigabyte of text."""
    texts = pa.DictionaryArray.from_arrays(np.zeros(10**6, np.int32), ["x" * 1000])
    others = {name: pa.nulls(10**6, SCHEMA.field(name).type) for name in ("position", "scale", "map")}
    pq.write_table(pa.table(others | {"image_id": texts}), path, compression="zstd", store_schema=False)


@pytest.mark.parametrize(("spoil", "words"), [
    (column("map", [[1, 2, 3], [1, 2]]), "is not an array"), (column("map", []), "is not an array"),
    (column("map", None), "is not an array"), (column("map", "text"), "column map is not"),
    (column("scale", "text"), "column scale is not"), (pipe, "not a regular file"),
    (gigabytes, "more than the limit"), (long_ids, "its texts have"),
])  # fmt: skip
def test_spoilt_maps_of_a_stranger_are_named(tmp_path, monkeypatch, spoil, words):
    monkeypatch.setattr("saliency_bench.read.records.MOST_NUMBERS", 3 * 10**6)
    pq.write_table(table_of([0, 1], ["a", "b"], [np.ones((2, 3), np.float32)] * 2), tmp_path / "0.parquet")
    spoil(tmp_path / "0.parquet")
    refused(words, np.asarray, StoredMaps(tmp_path))
