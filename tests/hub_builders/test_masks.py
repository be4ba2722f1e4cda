"""Tests of three commands that turn a user's photographs into a table of scores with the help of a study."""

import json

import numpy as np
import pytest
from datasets import load_dataset
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.studies.annotating import open_study
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.images import StudyImages

SIZE = (24, 32)


def box(top, left, bottom, right):
    mask = np.zeros(SIZE, bool)
    mask[top:bottom, left:right] = True
    return mask


MASKS = {"ada": box(0, 0, 10, 10), "bob": box(0, 5, 10, 15), "cid": box(0, 0, 10, 20)}


@pytest.fixture
def photos(tmp_path):
    """Write four photographs of two classes, one of which a phone has rotated."""
    noise = np.random.default_rng(0)
    for name in ("cat/IMG_1.jpg", "cat/IMG_2.jpg", "dog/IMG_3.jpg", "dog/IMG_4.jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        turned = name.endswith("_2.jpg")
        image = Image.fromarray(noise.integers(0, 255, (*(SIZE[::-1] if turned else SIZE), 3), np.uint8))
        exif = image.getexif()
        exif[0x0112] = 6 if turned else 1
        image.save(path, exif=exif)
    return tmp_path / "photos"


def draw(study, name, unit, mask, sha256):
    study.assign(name, [unit])
    study.record(name, unit, f"{name} {unit} a random request", {"kind": "mask"}, mask=mask, image_sha256=sha256)


@pytest.fixture
def store(photos, tmp_path):
    """Return a store: three people drew on IMG_1 and two on IMG_2, IMG_3 has no region, and IMG_4 was skipped."""
    rows = sb.load_dataset(str(photos), split="train")
    images = StudyImages(rows)
    assert images.units == ["IMG_1.jpg", "IMG_2.jpg", "IMG_3.jpg", "IMG_4.jpg"], "the names of the files"
    study = open_study(Store(tmp_path / "study.db"), "s", images, fingerprint(rows)).study
    for name, mask in MASKS.items():
        draw(study, name, "IMG_1.jpg", mask, images.shown("IMG_1.jpg").sha256)
        if name != "cid":
            draw(study, name, "IMG_2.jpg", mask, images.shown("IMG_2.jpg").sha256)
    study.record("ada", "IMG_3.jpg", "ada says that there is nothing", {"kind": "no_region"})
    study.record("ada", "IMG_4.jpg", "ada skips a photograph", {"kind": "skip", "reason": "blurred"})
    return tmp_path / "study.db"


def built(photos, store, tmp_path, *options):
    out = tmp_path / "out"
    words = ["build", "masks", "--dataset", photos, "--annotations", store, "--out", out, "--overwrite", *options]
    assert main([*map(str, words), "--quiet"]) == 0
    rows = load_dataset(str(out), split="test")
    masks = {row["image_id"]: None if row["mask"] is None else np.asarray(row["mask"]) > 0 for row in rows}
    return rows, masks, json.loads((out / "build_report.json").read_text())


def test_build_uses_consensus_masks_of_a_study(photos, store, tmp_path):
    rows, masks, report = built(photos, store, tmp_path)
    assert rows["image_id"] == list(masks) == ["IMG_1.jpg", "IMG_2.jpg", "IMG_3.jpg", "IMG_4.jpg"]
    assert (rows.features["label"].names, rows["annotators"]) == (["cat", "dog"], [3, 2, 1, 0])
    literal = np.zeros(SIZE, int)
    for mask in MASKS.values():
        for y, x in zip(*np.nonzero(mask), strict=True):
            literal[y, x] += 1
    np.testing.assert_array_equal(masks["IMG_1.jpg"], literal >= 2)
    np.testing.assert_array_equal(masks["IMG_2.jpg"], MASKS["ada"] | MASKS["bob"])
    assert masks["IMG_3.jpg"] is not None
    assert not masks["IMG_3.jpg"].any()
    assert masks["IMG_4.jpg"] is None
    text = json.dumps(report)
    assert "1 of 3 images have masks from exactly two people, so the consensus is the union of both masks" in text
    assert "the image has no valid answer" in text
    assert rows[1]["image"].size == SIZE[::-1], "upright, as people saw it"


def test_rule_people_and_accepted_answers_are_chosen(photos, store, tmp_path):
    _, masks, report = built(photos, store, tmp_path, "--rule", "majority")
    np.testing.assert_array_equal(masks["IMG_2.jpg"], MASKS["ada"] & MASKS["bob"])
    assert "intersection" in json.dumps(report)
    _, masks, _ = built(photos, store, tmp_path, "--people", "cid")
    np.testing.assert_array_equal(masks["IMG_1.jpg"], MASKS["cid"])
    assert masks["IMG_2.jpg"] is None
    _, masks, _ = built(photos, store, tmp_path, "--exclude", "cid", "bob")
    np.testing.assert_array_equal(masks["IMG_1.jpg"], MASKS["ada"])
    study = Store(store).find()
    (accepted,) = [answer.id for answer in study.answers() if (answer.person, answer.unit) == ("bob", "IMG_1.jpg")]
    study.review(accepted, "rita", "accept", "a random request of rita")
    _, masks, _ = built(photos, store, tmp_path, "--accepted")
    np.testing.assert_array_equal(masks["IMG_1.jpg"], MASKS["bob"])
    assert masks["IMG_2.jpg"] is None


def test_invalid_options_and_other_datasets_are_rejected(photos, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, line in (
        ({}, "needs the store of the study; pass --annotations"),
        ({"annotations": "none.db"}, "there is no store"),
        ({"annotations": "study.db", "rule": "most"}, "consensus rule"),
        ({"annotations": "study.db", "people": ("eve",)}, "has no person eve"),
        ({"annotations": "study.db", "study": "other"}, "no such study"),
    ):
        refused(line, sb.build, "masks", tmp_path / "out", photos, progress=False, **options)
    (photos / "cat/IMG_1.jpg").rename(photos / "cat/other.jpg")
    words = r"the study belongs to a different dataset: .* has no image IMG_1.jpg"
    refused(words, sb.build, "masks", tmp_path / "out", photos, progress=False, annotations=str(store))


def test_coco_export_builds_the_same_masks(photos, store, tmp_path):
    """Test that `build coco-json` reads the COCO file and the photographs.

    Its masks equal the masks of `build masks`.
    """
    words = ["annotate", "--dataset", photos, "--store", store, "--name", "s", "--quiet", "--export"]
    assert main([*map(str, words), str(tmp_path / "png")]) == 0
    names = sorted(path.name for path in (tmp_path / "png/consensus").iterdir())
    assert names == ["IMG_1.png", "IMG_2.png", "IMG_3.png"]
    assert main([*map(str, words), str(tmp_path / "coco"), "--format", "coco"]) == 0
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in photos.rglob("*.jpg"):
        (flat / path.name).write_bytes(path.read_bytes())
    out = tmp_path / "from-coco"
    sb.build("coco-json", out, flat, progress=False, json=str(tmp_path / "coco/consensus.json"), split="test")
    rows = load_dataset(str(out), split="test")
    _, masks, _ = built(photos, store, tmp_path)
    assert len(rows) == 2
    for row in rows:
        (unit,) = [unit for unit in masks if unit.partition(".")[0] in row["image_id"]]
        np.testing.assert_array_equal(np.asarray(row["mask"]) > 0, masks[unit])
