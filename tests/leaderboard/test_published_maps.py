"""Maps that are published with a submission: written and read shard by shard, and sent as files."""

import numpy as np
import pytest

from saliency_bench.errors import UserError
from saliency_bench.leaderboard import published_maps as files
from saliency_bench.leaderboard.published_maps import as_published, find_maps, maps_in, write_maps

DRAW = np.random.default_rng(0)
MAPS = {f"image {number}": DRAW.normal(size=(4, 6)).astype(np.float32) for number in range(7)}


def test_a_shard_is_written_as_soon_as_it_is_full(tmp_path, monkeypatch):
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


def test_no_more_maps_are_written_than_a_submission_may_have(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PER_SHARD", 1)
    monkeypatch.setattr(files, "MOST_SHARDS", 3)
    with pytest.raises(UserError, match="more than 3 maps, the most that a submission may have"):
        write_maps(tmp_path, "mine", MAPS.items())


def test_only_shards_with_an_image_that_is_asked_for_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PER_SHARD", 2)
    write_maps(tmp_path, "mine", MAPS.items())
    unpacked = []
    plain = files._checked
    monkeypatch.setattr(files, "_checked", lambda path: unpacked.append(path.name) or plain(path))
    monkeypatch.setattr(files, "bounded", lambda function, *args: function(*args))  # in this process
    found = find_maps(tmp_path, "mine", ["image 3", "image 6", "no image"])
    assert set(found) == {"image 3", "image 6"}
    assert (found["image 3"] == as_published(MAPS["image 3"])).all()
    assert unpacked == ["maps-00001.npz", "maps-00003.npz"]
    assert find_maps(tmp_path, "other", list(MAPS)) == {}
    assert find_maps(tmp_path / "none", "mine", list(MAPS)) == {}
    (tmp_path / "maps-00000.npz").write_bytes(b"PK")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"maps-00000\.npz cannot be read"):
        find_maps(tmp_path, "mine", ["image 3"])


def test_ids_with_two_axes_are_refused(tmp_path):
    (path,) = write_maps(tmp_path, "mine", MAPS.items())
    with np.load(path) as shard:
        arrays = dict(shard)
    np.savez(path, **arrays | {"ids": np.tile(arrays["ids"][:, None], (1, 2))})
    with pytest.raises(UserError, match="its arrays are not those of maps"):
        maps_in(tmp_path)
