"""Tests of COCO objects on scenes: pairs with and without the object, disjoint splits, and an optional detector."""

import json
import pickle
from functools import partial
from itertools import product
from pathlib import Path

import datasets
import numpy as np
import pytest
from built_samples import built_by
from PIL import Image
from refusals import refused

from saliency_bench import build
from saliency_bench.hub_builders import _detector, ebam_xai

FREE = {"detector": False, "least": 1, "least_pixels": 1}


@pytest.fixture
def source(tmp_path):
    """Write 20 photographs, each with a dog and a cup, and 3 x 20 scenes of Miniplaces."""
    (tmp_path / "annotations").mkdir()
    (tmp_path / "train2017").mkdir()
    images, annotations = [], []
    for n in range(1, 21):
        pixels = np.full((60, 80, 3), 10, np.uint8)
        pixels[10:40, 10:30], pixels[5:25, 40:70] = (250, 30, n), (30, 250, n)
        Image.fromarray(pixels).save(tmp_path / f"train2017/{n}.png")
        images.append({"id": n, "file_name": f"{n}.png", "height": 60, "width": 80})
        for place, (category, box) in enumerate(((18, (10, 10, 30, 40)), (47, (40, 5, 70, 25)))):
            left, top, right, bottom = box
            outline = [[left, top, right, top, right, bottom, left, bottom]]
            annotations.append({"id": 10 * n + place, "image_id": n, "category_id": category, "iscrowd": 0,
                                "area": (right - left) * (bottom - top), "segmentation": outline})  # fmt: skip
    categories = [{"id": 18, "name": "dog"}, {"id": 47, "name": "cup"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "annotations/instances_train2017.json").write_text(json.dumps(content))
    for place, category in enumerate(("a/abbey", "b/beach", "c/corn/field")):
        (tmp_path / "images/train" / category).mkdir(parents=True)
        for n in range(20):
            grey = Image.fromarray(np.full((128, 128, 3), 60 + 40 * place + n, np.uint8))
            grey.save(tmp_path / f"images/train/{category}/{n:08d}.jpg")
    return tmp_path


def built(source, **options):
    return built_by(ebam_xai, source, **FREE | options)


def test_image_pairs_differ_only_inside_the_mask(source):
    samples, log = built(source)
    pairs = set(product(("dog", "cup"), ("abbey", "beach", "corn/field")))
    assert {(s["label"], s["scene"]) for s in samples.values()} == pairs
    assert len(samples) + len(log.left_out) == 2 * 3 * 20
    for sample in samples.values():
        mask, image, alone = sample["mask"], sample["image"], sample["image_without_object"]
        assert image.shape == alone.shape == (128, 128, 3)
        assert (image[~mask] == alone[~mask]).all()
        assert (image[mask][:, 0 if sample["label"] == "dog" else 1] >= 200).all()
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert 128 / 3 - 1 <= max(np.ptp(rows), np.ptp(columns)) + 1 <= 128 / 2 + 1
        assert np.ptp(rows) < np.ptp(columns) if sample["label"] == "cup" else np.ptp(rows) > np.ptp(columns)


def test_photographs_and_scenes_stay_in_one_split(source, tmp_path):
    folder = build("ebam-xai", tmp_path / "out", source=source, progress=False, **FREE)
    places: dict = {}
    for split, rows in datasets.load_dataset(str(folder)).items():
        for row in rows.remove_columns(["image", "mask", "image_without_object"]):
            photograph = int(row["object_id"].removeprefix("coco-")) // 10
            places.setdefault(photograph, set()).add(split)
            places.setdefault(row["scene_id"], set()).add(split)
    assert max(map(len, places.values())) == 1
    assert set.union(*places.values()) == {"train", "validation", "test"}


def test_detector_keeps_recognised_objects_and_empty_scenes(source, monkeypatch):
    looked = []

    def look(picture):
        """Detector that finds dogs in photographs up to 10, and something in the scenes of the beach."""
        looked.append(picture.shape)
        if picture.shape == (128, 128, 3):
            return [1] if 100 <= picture[0, 0, 0] < 120 else []
        return [18] if picture[30, 25, 0] > 200 and picture[30, 25, 2] <= 10 else [2]

    monkeypatch.setattr(_detector, "faster_rcnn", lambda: look)
    samples, log = built(source, detector=True)
    assert {s["label"] for s in samples.values()} == {"dog"}
    assert {s["scene"] for s in samples.values()} == {"abbey", "corn/field"}
    assert {int(s["object_id"][5:]) // 10 for s in samples.values()} <= set(range(1, 11))
    reasons = [entry["reason"] for entry in log.left_out]
    assert reasons.count("the detector does not classify this cut-out correctly") == 30
    assert reasons.count("the detector detects an object in this scene, or the scene cannot be read") == 20
    assert len(looked) == 40 + 60
    with (source / "detections.jsonl").open("a") as file:
        file.write('{"what": "half')
    assert built(source, detector=True)[0].keys() == samples.keys()
    assert len(looked) == 100


def test_missing_detector_weights_error_names_the_option(source, monkeypatch):
    from torchvision.models import detection

    def absent(*args, **settings):
        raise OSError("no network" if settings["check_hash"] and settings["weights_only"] else "not verified")

    monkeypatch.setattr(detection.FasterRCNN_ResNet50_FPN_Weights, "get_state_dict", absent)
    refused(r"160 MB.*no network.*--no-detector", built, source, detector=True)


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Return weights(bias), which stores an untrained network where torchvision looks for the weights.

    It detects an object in every box with these logits of COCO's 91 categories, on small images.
    """
    import torch
    from torchvision.models import detection

    folder, real = tmp_path / "torch/hub/checkpoints", detection.fasterrcnn_resnet50_fpn
    folder.mkdir(parents=True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(detection, "fasterrcnn_resnet50_fpn", partial(real, min_size=64, max_size=64))
    torch.manual_seed(0)
    state = real(weights=None, weights_backbone=None, num_classes=91).state_dict()

    def put(bias):
        logits = torch.zeros(91)
        logits[list(bias)] = torch.tensor(list(bias.values()))
        state["roi_heads.box_predictor.cls_score.weight"] *= 0
        state["roi_heads.box_predictor.cls_score.bias"] = logits
        torch.save(state, folder / "fasterrcnn_resnet50_fpn_coco-258fb6c6.pth")
        return folder

    return put


@pytest.mark.slow
def test_faster_rcnn_returns_coco_ids_above_confidence(weights):
    picture = np.random.default_rng(0).integers(0, 256, (60, 80, 3)).astype(np.uint8)
    weights({18: 9.0, 0: 0.0})
    look = _detector.faster_rcnn()
    assert look(picture) == look(picture) == [18]
    weights({18: 9.0, 47: 8.9})  # 0.52 and 0.47
    assert _detector.faster_rcnn()(picture) == [18]
    weights({18: 9.0, 47: 9.0, 3: 9.0})  # a third each
    assert _detector.faster_rcnn()(picture) == []


@pytest.mark.slow
def test_faster_rcnn_filters_a_build(source, weights, tmp_path):
    """Test a detector that sees a dog in every image.

    An earlier pass saw all scenes and cut-outs, except the cut-outs of photographs 1 to 4.
    """
    weights({18: 9.0})
    scenes = [path.relative_to(source / "images/train").as_posix() for path in source.glob("images/train/**/*.jpg")]
    known: dict = {scene: [] for scene in scenes}
    known |= {f"coco-{10 * n + k}": [(18, 47)[k]] for n in range(5, 21) for k in (0, 1)}
    told = [json.dumps({"what": name, "found": found}) + "\n" for name, found in known.items()]
    (source / "detections.jsonl").write_text("".join(told))
    folder = build("ebam-xai", tmp_path / "out", source=source, progress=False, **FREE | {"detector": True})
    report = json.loads((folder / "build_report.json").read_text())
    reasons = [entry["reason"] for entry in report["left_out"]]
    assert reasons.count("the detector does not classify this cut-out correctly") == 4  # the cups
    lines = [json.loads(line) for line in (source / "detections.jsonl").read_text().splitlines()[len(told) :]]
    assert lines == [{"what": f"coco-{10 * n + k}", "found": [18]} for n in range(1, 5) for k in (0, 1)]


def test_pickled_code_in_weights_is_not_executed(source, weights):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (source / "evil",))

    (weights({}) / "fasterrcnn_resnet50_fpn_coco-258fb6c6.pth").write_bytes(pickle.dumps({"a": Evil()}, 2))
    refused(r"detector.*torchvision", _detector.faster_rcnn)
    assert not (source / "evil").exists()


def test_unwritable_detections_file_is_rejected(source):
    (source / "detections.jsonl").mkdir()
    refused(r"detections\.jsonl", built, source, detector=True)


def test_rare_classes_and_small_objects_are_left_out(source):
    refused("no object class is left", built, source, least=21)
    samples, _ = built(source, least_pixels=1, least=20)
    assert {s["label"] for s in samples.values()} == {"dog", "cup"}
    content = json.loads((source / "annotations/instances_train2017.json").read_text())
    content["annotations"][0]["area"] = 2.0
    (source / "annotations/instances_train2017.json").write_text(json.dumps(content))
    samples, log = built(source, least_pixels=100, least=20)
    assert {s["label"] for s in samples.values()} == {"cup"}
    assert log.left_out[0] == {"id": "object class dog", "what": "image", "reason": "fewer than 20 cut-outs"}


def test_damaged_photographs_are_reported_and_scenes_required(source, tmp_path):
    for n in range(1, 21):
        (source / f"train2017/{n}.png").write_bytes(b"")
    samples, log = built(source, per_pair=2)
    assert samples == {}
    assert "empty file" in log.left_out[-1]["reason"]
    (source / "images").rename(tmp_path / "gone")
    refused(r"images/train/.*miniplaces", built, source)
