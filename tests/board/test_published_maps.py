"""Tests of maps that are published with a submission. They are written and read in shards, and sent as files."""

import numpy as np
import pytest
from refusals import refused

from saliency_bench.board import published_maps as files
from saliency_bench.board import submission
from saliency_bench.board.published_maps import as_published, find_maps, hashes_of, maps_in, write_maps
from saliency_bench.errors import UserError

DRAW = np.random.default_rng(0)
MAPS = {f"image {number}": DRAW.normal(size=(4, 6)).astype(np.float32) for number in range(7)}


def test_shards_are_written_when_full(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PER_SHARD", 3)
    seen = []

    def given():
        for image_id, values in MAPS.items():
            seen.append(len(list(tmp_path.glob("*.npz"))))
            yield image_id, values

    assert [path.name for path in write_maps(tmp_path, "mine", given())] == [f"maps-0000{n}.npz" for n in range(3)]
    assert seen == [0, 0, 0, 1, 1, 1, 2]
    read = maps_in(tmp_path)["mine"]
    assert list(read) == list(MAPS)
    for image_id, values in MAPS.items():
        assert (read[image_id] == as_published(values)).all()


def test_large_maps_make_small_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_VALUES", 50)
    assert len(write_maps(tmp_path, "mine", MAPS.items())) == 4


def test_too_many_maps_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PER_SHARD", 1)
    monkeypatch.setattr(files, "MOST_SHARDS", 3)
    refused("more than 3 maps, the limit for a submission", write_maps, tmp_path, "mine", MAPS.items())


def test_map_files_are_limited_per_submission(monkeypatch):
    monkeypatch.setattr(submission, "MOST_SHARDS", 2)
    paths = [f"d/m/{name}/maps-{number:05d}.npz" for name, count in (("a", 2), ("b", 3)) for number in range(count)]
    problems = submission.too_much(dict.fromkeys([*paths, "d/m/a/records.parquet"], 10), 2)
    assert problems == ["d/m/b has 3 map files, more than the limit of 2"]


def test_only_shards_with_requested_images_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PER_SHARD", 2)
    write_maps(tmp_path, "mine", MAPS.items())
    unpacked = []
    plain = files._checked
    monkeypatch.setattr(files, "_checked", lambda path: unpacked.append(path.name) or plain(path))
    monkeypatch.setattr(files, "bounded", lambda function, *args: function(*args))  # run in this process
    found = find_maps(tmp_path, "mine", ["image 3", "image 6", "no image"])
    assert set(found) == {"image 3", "image 6"}
    assert (found["image 3"] == as_published(MAPS["image 3"])).all()
    assert (unpacked, find_maps(tmp_path, "other", list(MAPS))) == (["maps-00001.npz", "maps-00003.npz"], {})
    assert find_maps(tmp_path / "none", "mine", list(MAPS)) == {}
    (tmp_path / "maps-00000.npz").write_bytes(b"PK")
    monkeypatch.undo()
    refused(r"maps-00000\.npz cannot be read", find_maps, tmp_path, "mine", ["image 3"])


def edited(path, **changes):
    with np.load(path) as shard:
        np.savez(path, **dict(shard) | changes)


def test_ids_with_two_axes_are_refused(tmp_path):
    (path,) = write_maps(tmp_path, "mine", MAPS.items())
    edited(path, ids=np.array([[name] * 2 for name in MAPS]))
    refused("it does not contain the arrays of a map file", maps_in, tmp_path)


def test_image_with_two_maps_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PER_SHARD", 4)
    _, second = write_maps(tmp_path, "mine", MAPS.items())
    edited(second, ids=np.array(["image 4", "image 5", "image 0"]))
    refused(r"maps-00001\.npz cannot be read: image image 0 has two maps", maps_in, tmp_path)
    refused("image image 0 has two maps", find_maps, tmp_path, "mine", ["image 0"])
    edited(second, ids=np.array(["image 4", "image 5", "image 5"]))
    refused(r"maps-00001\.npz cannot be read: .*an image has two maps", maps_in, tmp_path)
    edited(second, ids=np.array(["image 4", "image 5", "image 0"]), name=np.array("other"))
    assert set(maps_in(tmp_path)) == {"mine", "other"}


@pytest.mark.parametrize("scale", [3e38, -3e38, np.inf])
def test_maps_with_infinite_scale_are_refused(scale, tmp_path):
    (path,) = write_maps(tmp_path, "mine", MAPS.items())
    edited(path, values=np.full((7, 4, 6), 2, np.float16), scale=np.full(7, scale, np.float32))
    refused("contains NaN or infinite values", maps_in, tmp_path)
    refused("contains NaN or infinite values", find_maps, tmp_path, "mine", ["image 0"])


def test_values_too_large_to_publish_are_refused(tmp_path):
    largest = np.full((4, 6), 1.7e38, np.float32)
    write_maps(tmp_path / "fine", "mine", [("image 0", largest)])
    assert np.isfinite(maps_in(tmp_path / "fine")["mine"]["image 0"]).all()
    with pytest.raises(UserError, match=r"the map of image image 1 has values of 1\.7e38 or more"):
        write_maps(tmp_path / "large", "mine", [("image 0", largest), ("image 1", 2 * largest)])


def test_only_listed_map_files_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PER_SHARD", 4)
    first, second = write_maps(tmp_path, "mine", MAPS.items())
    stated = hashes_of(tmp_path)
    assert (len(maps_in(tmp_path, stated)["mine"]), len(maps_in(tmp_path, stated[:1])["mine"])) == (7, 4)
    assert maps_in(tmp_path, []) == {}
    edited(second, values=np.ones((3, 4, 6), np.float16))
    for read in (lambda: maps_in(tmp_path, stated), lambda: find_maps(tmp_path, "mine", ["image 0"], stated)):
        refused(r"maps-00001\.npz is not the map file that was submitted", read)
    second.unlink()
    refused(r"maps-00001\.npz cannot be read", maps_in, tmp_path, stated)
    first.rename(second)
    refused(r"maps-00001\.npz breaks the numbering", hashes_of, tmp_path)
