"""Tests of built folders: they are complete or absent, equal for equal input, and have the correct features."""

import io
import json
import re
import threading
from unittest.mock import Mock

import datasets
import numpy as np
import pytest
from built_samples import content
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench import cli
from saliency_bench.data import builders, building, output_folder
from saliency_bench.data.fingerprints import Fingerprint
from saliency_bench.data.loading import fingerprint
from saliency_bench.data.shards import Shards
from saliency_bench.hub_builders import shapes_xai
from saliency_bench.utils import progress
from saliency_bench.utils.pictures import UnreadableError, decode

SMALL = {"size": 32, "count": 60}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sb.build("shapes-xai", tmp_path_factory.mktemp("built") / "shapes", progress=False, **SMALL)


def test_load_dataset_returns_splits_and_features(folder):
    loaded = datasets.load_dataset(str(folder))
    assert {split: len(part) for split, part in loaded.items()} == {"train": 40, "validation": 14, "test": 6}
    assert loaded["test"].features == builders.columns(shapes_xai)
    assert list(loaded["test"].features)[:6] == ["image", "label", "mask", "image_id", "group", "source_split"]
    row, drawn = loaded["train"][0], shapes_xai.drawn(int(loaded["train"][0]["image_id"][-6:]), 32)
    assert (np.asarray(row["image"]) == drawn["image"]).all()
    assert (np.asarray(row["mask"]) == drawn["mask"] * 255).all()
    assert row["mask"].mode == "L"
    assert loaded["train"].features["label"].int2str(row["label"]) == drawn["label"]
    assert row["source_split"] is None
    assert row["group"] is None


def test_report_counts_and_fingerprints_match_the_data(folder):
    report = json.loads((folder / "build_report.json").read_text())
    assert report["options"] == {"count": 60, "seed": 0, "size": 32}
    assert report["counts"]["samples"] == report["counts"]["masks"] == report["counts"]["found"] == 60
    for split, part in report["splits"].items():
        assert fingerprint(datasets.load_dataset(str(folder), split=split)) == part["fingerprint"]
        assert sum(part["class_shares"]["label"].values()) == pytest.approx(1, abs=1e-3)


def test_hash_splits_are_70_15_15_and_depend_on_seed():
    splits = [building.split_of(0, f"image-{n}") for n in range(4000)]
    shares = [splits.count(split) / 4000 for split in ("train", "validation", "test")]
    assert shares == pytest.approx([0.70, 0.15, 0.15], abs=0.02)
    assert splits != [building.split_of(1, f"image-{n}") for n in range(4000)]


def faulty(monkeypatch, samples):
    monkeypatch.setattr(shapes_xai, "samples", samples)


def test_groups_stay_together_and_splits_are_stable(monkeypatch, tmp_path):
    def grouped(source, log, *, without: int = -1):
        for n in range(40):
            if n == without:
                log.leave_out(f"i{n}", "image", "for the test")
                continue
            yield {"image_id": f"i{n}", "label": "disc", "image": np.zeros((4, 4, 3), np.uint8), "group": n // 4}

    faulty(monkeypatch, grouped)

    def places(folder):
        loaded = datasets.load_dataset(str(folder))
        return {name: split for split, part in loaded.items() for name in part["image_id"]}

    whole = places(sb.build("shapes-xai", tmp_path / "a", progress=False))
    assert all(whole[f"i{n}"] == whole[f"i{n // 4 * 4}"] for n in range(40))
    part = places(sb.build("shapes-xai", tmp_path / "b", progress=False, without=7))
    assert part == {name: split for name, split in whole.items() if name != "i7"}
    report = json.loads((tmp_path / "b/build_report.json").read_text())
    assert (report["counts"]["found"], report["counts"]["samples"], report["counts"]["masks"]) == (40, 39, 0)
    assert "| image | for the test | 1 |" in (tmp_path / "b/README.md").read_text()


def test_empty_split_is_omitted(tmp_path):
    """`datasets` cannot load an empty split."""
    folder = sb.build("shapes-xai", tmp_path / "three", progress=False, size=32, count=3)
    assert {split: len(part) for split, part in datasets.load_dataset(str(folder)).items()} == {"train": 3}
    refused(r"unknown split of .*'validation'; known: .*train", sb.load_dataset, folder, split="validation")


def test_existing_dataset_requires_overwrite(folder, monkeypatch, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    drawn = shapes_xai.drawn
    with monkeypatch.context() as patch:  # kill the build of another version
        patch.setattr(shapes_xai, "VERSION", 99)
        patch.setattr(shapes_xai, "drawn", lambda index, *rest: drawn(index + 1, *rest))
        patch.setattr(building, "move_into_place", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sb.build("shapes-xai", out, progress=False, **SMALL)
    assert any((tmp_path / ".out.building/batches").iterdir())
    sb.build("shapes-xai", out, progress=False, **SMALL)
    assert content(out) == content(folder)
    tables = {f"data/{split}-00000-of-00001.parquet" for split in ("train", "validation", "test")}
    assert set(content(out)) == {"README.md", "build_report.json", *tables}
    refused(r"out.*--overwrite", sb.build, "shapes-xai", out, progress=False, **SMALL | {"seed": 1})
    sb.build("shapes-xai", out, overwrite=True, progress=False, size=32, count=5)
    assert json.loads((out / "build_report.json").read_text())["counts"]["samples"] == 5
    before = content(out)
    faulty(monkeypatch, lambda source, log: iter(()))
    refused("no valid image", sb.build, "shapes-xai", out, overwrite=True, progress=False)
    assert content(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_restart_of_a_finished_build_writes_nothing(tmp_path, monkeypatch, capsys):
    """Test a build killed at its end. A dataset that was changed since the build does not count as finished."""
    out, move = tmp_path / "out", building.move_into_place

    def killed(*folders):
        move(*folders)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(building, "move_into_place", killed)
        with pytest.raises(KeyboardInterrupt):
            sb.build("shapes-xai", out, progress=False, **SMALL)
    before = content(out)
    refused(r"out.*--overwrite", sb.build, "shapes-xai", out, progress=False, seed=1, **SMALL)
    assert sb.build("shapes-xai", out, progress=False, **SMALL) == out
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    capsys.readouterr()
    assert cli.main(["build", "shapes-xai", "--out", str(out), "--size=32", "--count=60"]) == 0
    assert "is already built with these settings; add --overwrite" in capsys.readouterr().err
    assert content(out) == before
    (table, *_) = sorted((out / "data").iterdir())
    table.write_bytes(table.read_bytes() + b"x")
    refused(r"out.*--overwrite", sb.build, "shapes-xai", out, progress=False, **SMALL)


def test_symlinks_in_a_source_are_followed(tmp_path):
    """Test a COCO folder whose files are links to another disk, and links that form a circle."""
    for name in ("cat/a", "cat/b", "dog/c"):
        picture = tmp_path / "disk" / f"{name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((30, 20), 60).convert("RGB").save(picture)
    source = tmp_path / "source"
    (source / "cat").mkdir(parents=True)
    for name in ("a", "b"):
        (source / "cat" / f"{name}.png").symlink_to(tmp_path / "disk" / "cat" / f"{name}.png")
    (source / "dog").symlink_to(tmp_path / "disk" / "dog")
    (source / "cat" / "round").symlink_to(source)
    folder = sb.build("folder", tmp_path / "out", source, progress=False)
    counts = json.loads((folder / "build_report.json").read_text())["counts"]
    assert (counts["samples"], counts["label"]) == (3, {"cat": 2, "dog": 1})


def test_source_without_usable_images_is_rejected(tmp_path):
    (tmp_path / "images" / "cat").mkdir(parents=True)
    for name in "abc":
        (tmp_path / "images" / "cat" / f"{name}.png").write_bytes(b"no picture")
    refused(r"no valid image in .*images \(3 left out: .+\)", sb.build, "folder", tmp_path / "out",
            tmp_path / "images", progress=False)  # fmt: skip


def test_unopenable_lock_does_not_stop_a_build(tmp_path, monkeypatch):
    """Test a lock file of another user, for example."""
    monkeypatch.setattr(output_folder, "cache_folder", lambda: tmp_path)
    (tmp_path / "locks" / f"{output_folder.seed_of(tmp_path / 'out'):016x}.lock").mkdir(parents=True)
    with output_folder.build_lock(tmp_path / "out"):
        pass


def test_overwrite_rejects_foreign_folders(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    refused("not a dataset built by this command", sb.build, "shapes-xai", tmp_path, overwrite=True, progress=False)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize(("name", "options", "message"), [
    ("shapes-xai", {"sizes": 3}, "sizes.*\\bsize\\b"),
    ("shapes-xai", {"size": "big"}, "must be int"),
    ("pet-xai", {"source": "no/such/folder"}, "does not exist"),
    ("shapes-xai", {"license": "mit"}, "shapes-xai has a fixed license; leave it out"),
])  # fmt: skip
def test_invalid_build_arguments_are_rejected(name, options, message, tmp_path):
    refused(message, sb.build, name, tmp_path / "new" / "out", progress=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_invalid_builder_rows_raise_value_error(monkeypatch, tmp_path):
    same = {"image_id": "a", "label": "disc", "image": np.zeros((4, 4, 3), np.uint8)}
    for rows, words in (([dict(same), dict(same)], "'a' twice"), ([same | {"colour": 1}], "colour")):
        faulty(monkeypatch, lambda source, log, rows=rows: iter(rows))
        with pytest.raises(ValueError, match=words):
            sb.build("shapes-xai", tmp_path / "out", progress=False)


def test_large_split_has_several_shards(monkeypatch, tmp_path):
    monkeypatch.setattr("saliency_bench.data.shards.SHARD_BYTES", 1000)
    shards = Shards(tmp_path, "train", datasets.Features({"text": datasets.Value("string")}))
    for n in range(250):
        shards.add({"text": f"{n:030d}"})
    assert [path.name for path in shards.close()] == [f"train-0000{n}-of-00003.parquet" for n in range(3)]
    loaded = datasets.load_dataset("parquet", data_files=str(tmp_path / "*.parquet"), split="train")
    assert [int(row["text"]) for row in loaded] == list(range(250))


def test_png_fingerprint_depends_on_pixels_and_colours_only():
    def print_of(image, level=6):
        buffer, content = io.BytesIO(), Fingerprint()
        image.save(buffer, "PNG", compress_level=level)
        content.add("a", "cat", buffer.getvalue(), None)
        return buffer.getvalue(), content.text()

    pixels = np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
    (small, first), (large, second) = (print_of(Image.fromarray(pixels), level) for level in (9, 0))
    assert small != large
    assert first == second
    pixels[0, 0, 0] += 1
    assert print_of(Image.fromarray(pixels), 9)[1] != first
    images = [Image.new("P", (4, 4)) for _ in range(2)]
    for image, colours in zip(images, ([255, 0, 0], [0, 0, 255]), strict=True):
        image.putpalette(colours)
    assert print_of(images[0])[1] != print_of(images[1])[1]


def test_huge_and_empty_images_are_rejected():
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "PNG")
    with pytest.raises(UnreadableError, match="more than 64 million pixels"):
        decode(file.getvalue())
    with pytest.raises(UnreadableError, match="empty file"):
        decode(b"")


def test_progress_bar_shows_build_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0)  # seconds between two lines
    building.build("shapes-xai", tmp_path / "out", size=32, count=70)
    steps = capsys.readouterr().err
    assert "building shapes-xai" in steps
    assert "/70 [" in steps
    counts = [int(count) for count in re.findall(r"(\d+)/70", steps)]
    assert counts == sorted(counts)
    assert len(set(counts)) > 10
    building.build("shapes-xai", tmp_path / "silent", size=32, count=5, progress=False)
    assert capsys.readouterr().err == ""


def test_broken_progress_output_does_not_block_threads(monkeypatch):
    """Test that a thread whose output fails does not block the other threads."""
    monkeypatch.setattr(progress, "EVERY", 0)
    shown = progress.bar(total=4)

    class Broken:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            pass

    monkeypatch.setattr("sys.stderr", Broken())
    threads = [threading.Thread(target=shown.update, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
        thread.join(timeout=5)
        assert not thread.is_alive()
    assert shown.n == 4
