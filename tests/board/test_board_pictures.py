"""Tests of the images below an open row: submitted maps, alone or over the images of the dataset.

Nothing is downloaded.
"""

import io
import json
import re
import shutil
from base64 import b64decode
from dataclasses import replace

import datasets
import numpy as np
import pytest
from datasets import Dataset, Features, Value, config
from local_hub import FOUNDER
from PIL import Image

import saliency_bench as sb
from saliency_bench.board.known import known_dataset, write_known
from saliency_bench.board.recompute import recompute
from saliency_bench.board.view import board_pictures
from saliency_bench.board.view.archive import Archive
from saliency_bench.board.view.board_page import Page
from saliency_bench.board.view.board_pictures import drawn
from saliency_bench.data.frames import AtHand, framed
from saliency_bench.data.geometry import Geometry
from saliency_bench.errors import UserError
from saliency_bench.read.identity import Identity
from saliency_bench.utils.overlays import overlay

SETTING = Identity(fingerprint="f" * 64, split="test", classifier="d" * 32, geometry={}, layer=None, target="label",
                   labels=[[0], [1]], precision="fp32", seed=0)  # fmt: skip


@pytest.fixture(scope="module")
def maps(shapes):
    draw = np.random.default_rng(0)
    return {image_id: draw.random((32, 32)).astype(np.float32) for image_id in sb.load_dataset(shapes)["image_id"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory, shapes, resnet, maps):
    root, filled = tmp_path_factory.mktemp("board"), tmp_path_factory.mktemp("filled") / "mine"
    sb.template(str(shapes), str(resnet), filled, device="cpu", progress=False)
    (filled / "maps").mkdir()
    for image_id, values in maps.items():
        np.save(filled / "maps" / f"{image_id}.npy", values)
    with pytest.MonkeyPatch.context() as patch:
        # no server at this address: the submission must still be created
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        plan = sb.submit(filled, name="mine", metrics=["saliency_miou"], device="cpu", progress=False, with_maps=True,
                         dry_run=True)  # fmt: skip
    for path, content in plan.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return root


def opened(archive):
    return Page(archive).show(f"row={archive.rows[0].key}")["body"]


def images(body):
    found = re.findall(r'<img class="lb-map" src="data:image/png;base64,([^"]+)" alt="map of ([^"]+)">', body)
    return {name: np.asarray(Image.open(io.BytesIO(b64decode(data)), formats=["PNG"])) for data, name in found}


def test_maps_are_drawn_over_images_of_a_folder(root, shapes, maps):
    shown = images(body := opened(Archive.load(root, [shapes])))
    assert f"over images from the folder {shapes.name}" in body
    assert len(shown) >= 10
    rows = sb.load_dataset(shapes)
    for image_id in list(shown)[:3]:
        picture = np.asarray(rows[rows["image_id"].index(image_id)]["image"].convert("RGB"))
        own = np.asarray(overlay(picture, maps[image_id].astype(np.float16).astype(np.float32)))
        assert np.abs(shown[image_id].astype(int) - own).max() <= 2


def test_maps_are_shown_alone_without_images(root, shapes, tmp_path):
    other = sb.load_dataset(shapes).select(range(20))  # a dataset with another fingerprint
    other.save_to_disk(tmp_path / "other")
    for data in ((), [tmp_path / "other"], [tmp_path]):
        shown = images(body := opened(Archive.load(root, data)))
        assert "the images are not on the machine" in body
        assert next(iter(shown.values())).shape == (32, 32, 3)


def test_unreadable_maps_leave_samples_as_text(root, tmp_path):
    archive = Archive.load(root)
    (shard,) = root.rglob("maps-*.npz")
    content = shard.read_bytes()
    try:
        shard.write_bytes(content[:500])
        body = opened(archive)
    finally:
        shard.write_bytes(content)
    assert "maps-00000.npz is not the map file that was submitted" in body
    assert str(root) not in body
    assert images(body) == {}
    assert "Best" in body


def test_row_shows_only_maps_of_its_first_submission(root, maps, tmp_path):
    """Submit copied scores with other maps. A row shows only the maps of its first submission."""
    (result,) = root.rglob("result.json")
    content = json.loads(result.read_text())
    for submitter, stated in (("ada", []), ("eve", content["maps"])):
        folder = tmp_path / result.parent.relative_to(root).with_name(
            result.parent.name.replace(content["submitter"], submitter)
        )
        shutil.copytree(result.parent, folder)
        (folder / "result.json").write_text(json.dumps(content | {"submitter": submitter, "maps": stated}))
    archive = Archive.load(tmp_path)
    (row,) = archive.board.rows
    assert row.submitters == ("ada", "eve")
    ids = list(maps)[:3]
    assert archive.pictured(row, ids).shown == {}
    of_eve = replace(row, folders=row.folders[1:], result=archive.board.results[row.folders[1]])
    assert set(archive.pictured(of_eve, ids).shown) == set(ids)


def test_changed_maps_are_not_recomputed(root, shapes, resnet, tmp_path):
    shutil.copytree(root, tmp_path / "board")
    (shard,) = (tmp_path / "board").rglob("maps-*.npz")
    folder = shard.parent.relative_to(tmp_path / "board").as_posix()
    with np.load(shard) as stored:
        np.savez(shard, **dict(stored) | {"values": np.ones_like(stored["values"])})
    with pytest.raises(UserError, match="is not the map file that was submitted"):
        recompute(tmp_path / "board", folder, dataset=str(shapes), model=str(resnet), device="cpu", progress=False)


def test_image_of_many_pixels_is_not_decoded(tmp_path):
    """Use a PNG of a few kilobytes with 81 million pixels, for which Pillow only prints a warning."""
    buffer = io.BytesIO()
    Image.new("1", (9000, 9000)).save(buffer, "png")
    features = Features({"image_id": Value("string"), "image": datasets.Image()})
    rows = Dataset.from_dict({"image_id": ["a"], "image": [{"bytes": buffer.getvalue(), "path": None}]}, features)
    setting = SETTING.model_copy(update={"geometry": {"resize": [32, 32]}})
    assert AtHand("here", rows).picture("a", setting.geometry) is None


def test_oversized_maps_are_not_drawn(monkeypatch):
    monkeypatch.setattr(board_pictures, "MOST_VALUES", 300)
    sizes = {"large": (20, 20), "long": (1, 200), "empty": (0, 4), "fine": (5, 5)}
    found = drawn({name: np.ones(size, np.float32) for name, size in sizes.items()}, SETTING, None)
    assert set(found.shown) == {"fine"}
    assert "too large" in drawn({"large": np.ones((20, 20), np.float32)}, SETTING, None).caption


def test_oversized_frame_is_refused():
    image = Image.new("RGB", (10, 200))
    assert framed(image, Geometry(resize=20, crop=(16, 16))).size == (16, 16)
    for geometry in (Geometry(resize=100_000), Geometry(crop=(100_000, 1000)), Geometry(resize=(0, 5))):
        with pytest.raises(ValueError, match="too large"):
            framed(image, geometry)


@pytest.mark.slow
def test_images_come_from_the_cache_and_are_not_downloaded(here, root, shapes, monkeypatch, tmp_path):
    """Test a dataset that the owner lists with its commit. Images appear only after someone has loaded the dataset."""
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    api = here.api()
    api.create_repo("saliency-bench/shapes", repo_type="dataset")
    api.upload_folder(repo_id="saliency-bench/shapes", folder_path=shapes, repo_type="dataset")
    commit = api.dataset_info("saliency-bench/shapes").sha
    listed = known_dataset(str(shapes)).model_copy(update={"repo": "saliency-bench/shapes", "revision": commit})
    write_known(tmp_path / "known", listed)
    api.create_repo("saliency-bench/results", repo_type="dataset")
    for folder in (root, tmp_path / "known"):
        api.upload_folder(repo_id="saliency-bench/results", folder_path=folder, repo_type="dataset")
    archive = Archive.load("saliency-bench/results")
    body = opened(archive)
    assert len(images(body)) >= 10
    assert "the images are not on the machine" in body
    sb.load_dataset("hub:saliency-bench/shapes")
    body = opened(Archive.load("saliency-bench/results"))
    assert "over images from saliency-bench/shapes in the local Hub cache" in body
    monkeypatch.setattr("saliency_bench.board.source.MOST_FETCHED", 100)
    assert "too large to download" in opened(archive)
