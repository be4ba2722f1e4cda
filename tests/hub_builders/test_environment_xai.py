"""Tests of Places365 in its three layouts with exact category names, and of its published release."""

import json
from functools import partial

import numpy as np
import pytest
from built_samples import built_by, reasons
from PIL import Image
from refusals import refused

from saliency_bench.hub_builders import environment_xai

NAMES = [*environment_xai.LABEL_OF]


def save(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((24, 16), 60).convert("RGB").save(path)


def easy(root):
    for name in (*NAMES, "fishpond", "mountain_path", "field/cultivated", "street_market"):
        save(root / f"places365_standard/train/{name.replace('/', '-')}/00000001.jpg")
    save(root / "places365_standard/val/pond/Places365_val_00000009.jpg")


def deep(root, folder="data_256"):
    for name in (*NAMES, "fishpond", "mountain_path", "field/cultivated"):
        save(root / f"{folder}/{name[0]}/{name}/00000001.jpg")


def flat(root):
    known = ["/a/airfield", "/f/fishpond", *(f"/{name[0]}/{name}" for name in NAMES)]
    rows = [f"Places365_val_{n:08d}.jpg {n}\n" for n in range(len(known))]
    (root / "categories_places365.txt").write_text("".join(f"{name} {n}\n" for n, name in enumerate(known)))
    (root / "places365_val.txt").write_text("".join(rows))
    for row in rows:
        save(root / "val_256" / row.split()[0])


built = partial(built_by, environment_xai)


@pytest.mark.parametrize("layout", [easy, deep, flat])
def test_every_layout_matches_exact_category_names(tmp_path, layout):
    layout(tmp_path)
    samples, _ = built(tmp_path)
    assert sorted({s["category"] for s in samples.values()}) == sorted(NAMES)
    assert len(samples) == 12 + (layout is easy)
    for sample in samples.values():
        assert sample["label"] == ("nature" if sample["category"] in environment_xai.NATURE else "urban")
        assert sample["mask"] is None
    splits = {easy: {"train", "val"}, deep: {"train"}, flat: {"val"}}[layout]
    assert {sample["source_split"] for sample in samples.values()} == splits


def test_all_layouts_combine_in_one_source(tmp_path):
    for layout in (easy, deep, flat):
        layout(tmp_path)
    samples, _ = built(tmp_path)
    assert "train/field/wild/00000001" in samples
    assert len(samples) == 12 + 1 + 12


def test_per_class_limits_images_and_invalid_files_are_reported(tmp_path):
    deep(tmp_path, "data_large")
    for n in range(2, 30):
        save(tmp_path / f"data_large/p/pond/{n:08d}.jpg")
    (tmp_path / "data_large/p/pond/Thumbs.db").write_bytes(b"x")
    (tmp_path / "data_large/p/pond/00000003.jpg").write_bytes(b"")
    (tmp_path / "masks").mkdir()
    Image.fromarray(np.full((16, 24), 255, np.uint8)).save(tmp_path / "masks/train_pond_00000002.PNG")
    samples, log = built(tmp_path, per_class=0)
    assert samples["train/pond/00000002"]["mask"].all()
    wrong = {"train/pond/Thumbs": "the file name has no image extension", "train/pond/00000003": "empty file"}
    assert reasons(log, "image") == wrong
    few, log = built(tmp_path, per_class=5)
    assert [s["label"] for s in few.values()].count("nature") == 5
    assert log.remarks == [{"id": "nature", "text": "29 other images of this class were not selected"},
                              {"id": "urban", "text": "1 other images of this class were not selected"}]  # fmt: skip


def test_invalid_list_entries_are_reported_or_rejected(tmp_path):
    flat(tmp_path)
    listing = (tmp_path / "places365_val.txt").read_text()
    (tmp_path / "places365_val.txt").write_text(listing + "../../secret.jpg 2\nPlaces365_val_00000002.jpg 3\n")
    samples, log = built(tmp_path)
    assert len(samples) == 12
    assert reasons(log)["../../secret.jpg", "image"] == "its name points outside the source folder"
    assert log.remarks[0]["id"] == "Places365_val_00000002"
    for wrong, message in (("x.jpg\n", "line 1"), ("x.jpg 999\n", "999 is not the number"), ("x.jpg -1\n", "line 1")):
        (tmp_path / "places365_val.txt").write_text(wrong)
        refused(message, built, tmp_path)


def test_missing_parts_are_rejected(tmp_path):
    refused(r"places365_standard/train/.*places2\.csail", built, tmp_path)
    flat(tmp_path)
    (tmp_path / "categories_places365.txt").unlink()
    refused(r"categories_places365\.txt", built, tmp_path)
    deep(tmp_path / "b")
    (tmp_path / "b/data_256/p/pond").rename(tmp_path / "b/data_256/p/lake")
    refused(r"\bpond\b", built, tmp_path / "b")


def test_published_release_is_read(tmp_path):
    for name in ("nature/a.jpg", "urban/b.jpg"):
        save(tmp_path / "image" / name)
    (tmp_path / "attention_label").mkdir()
    content = json.dumps(np.tri(224).tolist())
    (tmp_path / "attention_label/nature.csv").write_text(f'attention,img_idx\n"{content}",a.jpg\n')
    samples, _ = built(tmp_path)
    assert (samples["a"]["label"], samples["b"]["label"]) == ("nature", "urban")
    assert (samples["a"]["mask"].shape, samples["b"]["mask"]) == ((16, 24), None)
