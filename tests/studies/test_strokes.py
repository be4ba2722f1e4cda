"""Tests of regions from strokes: validation of requests, GrabCut, and a small network instead of Segment Anything."""

from warnings import catch_warnings

import numpy as np
import pytest
import torch
from pages import client_of, joined, study_of
from PIL import Image
from refusals import refused
from torch import nn

from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies.runs import runs_of
from saliency_bench.studies.segment_anything import MEAN, STD, SegmentAnything
from saliency_bench.studies.strokes import LONGEST, MOST_POINTS, GrabCut, Stroke, strokes_of

SIDE = 32  # side of the encoder's image


def test_valid_strokes_are_parsed():
    sent = [{"points": [[1, 2.5], [80, 60]], "add": True}, {"points": [[0, 0]], "add": False}]
    assert strokes_of(sent, 60, 80) == [Stroke([(1.0, 2.5), (80.0, 60.0)], True), Stroke([(0.0, 0.0)], False)]


POINT = [1, 1]
BAD = [None, [], {}, "points", [None], [{}], [{"points": []}], [{"points": [1, 1], "add": True}],
       [{"points": [[1]]}], [{"points": [[1, 1, 1]], "add": True}], [{"points": [["1", 1]], "add": True}],
       [{"points": [[True, 1]], "add": True}], [{"points": [POINT]}], [{"points": [POINT], "add": 1}],
       [{"points": [[float("nan"), 1]], "add": True}], [{"points": [[10**400, 1]], "add": True}],
       [{"points": [[81, 1]], "add": True}], [{"points": [[1, -1]], "add": True}],
       [{"points": [POINT], "add": False}], [{"points": [POINT] * (MOST_POINTS + 1), "add": True}],
       [{"points": [POINT], "add": True}] * 61, [{"points": [POINT] * 10, "add": True}] * 41]  # fmt: skip


@pytest.mark.parametrize("sent", BAD)
def test_invalid_strokes_are_rejected(sent):
    refused(".", strokes_of, sent, 60, 80)


@pytest.fixture
def disc(tmp_path):
    """Return (file of a red disc on slightly noisy green, mask). The image is larger than the images for GrabCut."""
    y, x = np.mgrid[:270, :360]
    mask = (x - 130) ** 2 + (y - 110) ** 2 < 65**2
    noise = np.random.default_rng(0).integers(0, 30, (270, 360, 3))
    picture = np.where(mask[..., None], (200, 40, 30), (40, 150, 60)) + noise
    Image.fromarray(picture.astype(np.uint8)).save(tmp_path / "disc.png")
    assert max(mask.shape) > LONGEST
    return tmp_path / "disc.png", mask


def test_grabcut_segments_a_disc_deterministically(disc):
    pytest.importorskip("cv2", reason="needs OpenCV")
    file, mask = disc
    strokes = [Stroke([(110.0, 90.0), (150.0, 130.0)], True), Stroke([(310.0, 25.0), (310.0, 220.0)], False)]
    region_found = GrabCut()(file, strokes)
    assert (region_found & mask).sum() / (region_found | mask).sum() > 0.97
    np.testing.assert_array_equal(GrabCut()(file, strokes), region_found)
    less = GrabCut()(file, [*strokes, Stroke([(70.0, 110.0), (105.0, 110.0)], False)])
    assert not less[110, 74:102].any(), "excluded strokes are outside the region"


def test_grabcut_accepts_tiny_images(tmp_path):
    pytest.importorskip("cv2", reason="needs OpenCV")
    for size in ((1, 1), (2, 3), (900, 1)):
        Image.new("RGB", size).save(tmp_path / "small.png")
        assert GrabCut()(tmp_path / "small.png", [Stroke([(0.0, 0.0)], True)]).shape == size[::-1]


class Encoder(nn.Module):
    def forward(self, x):
        return x.clone()


class Decoder(nn.Module):
    """Network that marks the pixels with the red value of the first point.

    full: Whether masks have the size of the image, given by orig_im_size, instead of a quarter of the padded image.
    """

    def __init__(self, full):
        super().__init__()
        self.full = full

    def forward(self, image_embeddings, point_coords, point_labels, mask_input, has_mask_input, orig_im_size=None):
        x, y = point_coords[0, 0].long().unbind()
        red = image_embeddings[:, :1]
        like = 2 - (red - red[0, 0, y, x]).abs() + 0 * (point_labels.sum() + mask_input.sum() + has_mask_input.sum())
        both = torch.cat([-like, like], 1)
        if self.full:
            height, width = orig_im_size.long().unbind()
            side = orig_im_size.max().long()
            masks = nn.functional.interpolate(both, size=(side, side))[:, :, :height, :width]
        else:
            masks = nn.functional.avg_pool2d(both, 4)
        return masks, torch.tensor([[0.1, 0.9]])


def networks(folder, full=True):
    """Write an encoder that returns the image, and a decoder."""
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name, reason=f"needs {name}")
    picture, n = torch.zeros(1, 3, SIDE, SIDE), {1: "n"}
    inputs = {"image_embeddings": picture, "point_coords": torch.zeros(1, 2, 2), "point_labels": torch.zeros(1, 2),
              "mask_input": torch.zeros(1, 1, 8, 8), "has_mask_input": torch.zeros(1)}  # fmt: skip
    inputs |= {"orig_im_size": torch.tensor([48.0, 64.0])} if full else {}
    paths = folder / "encoder.onnx", folder / "decoder.onnx"
    with catch_warnings(action="ignore"):  # of the exporter, which warns about the sizes of this image
        torch.onnx.export(Encoder(), picture, paths[0], input_names=["x"], output_names=["embedding"], dynamo=False)
        torch.onnx.export(Decoder(full), tuple(inputs.values()), paths[1], input_names=list(inputs), dynamo=False,
                          output_names=["masks", "iou_predictions"],
                          dynamic_axes={"point_coords": n, "point_labels": n})  # fmt: skip
    return paths


@pytest.fixture
def halves(tmp_path):
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:, :32, 0] = 250
    Image.fromarray(picture).save(tmp_path / "halves.png")
    return tmp_path / "halves.png"


@pytest.mark.parametrize("full", [True, False])
def test_segment_anything_returns_the_best_mask(tmp_path, halves, full):
    find = SegmentAnything(*networks(tmp_path, full))
    left = np.zeros((48, 64), bool)
    left[:, :32] = True
    for point, region in (((10.0, 40.0), left), ((50.0, 5.0), ~left)):
        region_found = find(halves, [Stroke([point, (point[0] + 4, 8.0)], True)])
        assert (region_found != region)[:, [*range(26), *range(38, 64)]].sum() == 0
        assert (region_found != region).mean() < (0.04 if full else 0.08), "only pixels near the edge differ"
    assert find._embedding.cache_info().misses == 1, "an image is encoded once"


def test_encoder_input_is_normalised_and_padded(tmp_path, halves):
    (_, outputs) = SegmentAnything(*networks(tmp_path))._embedding(halves)
    seen = outputs["embedding"]
    assert seen.shape == (1, 3, SIDE, SIDE)
    np.testing.assert_allclose(seen[0, :, 0, 0], (np.array([250, 0, 0]) - MEAN) / STD, rtol=1e-5)
    assert not seen[0, :, 24:].any(), "the padding is zero"


def test_segment_anything_rejects_invalid_networks(tmp_path, halves):
    encoder, decoder = networks(tmp_path)
    refused("there is no file", SegmentAnything, tmp_path / "none.onnx", decoder)
    refused("cannot be read as an ONNX network", SegmentAnything, halves, decoder)
    refused("is not an encoder; use a network whose only input is an image", SegmentAnything, decoder, decoder)
    refused("needs the inputs x; use a decoder from the export script", SegmentAnything, encoder, encoder)


def test_segment_request_works_for_assigned_images_only(tmp_path):
    annotating = study_of(tmp_path, 3)
    region = np.zeros((60, 80), bool)
    region[5:9] = True
    client = client_of(create_app(annotating, segmenter=lambda file, strokes: region))
    key = joined(client)
    state = client.get("/api/state", headers=key).json()
    assert state["segment"] is True
    sent = {"unit": state["tasks"][0]["unit"], "strokes": [{"points": [[3, 4]], "add": True}]}
    assert client.post("/api/segment", json=sent, headers=key).json() == {"runs": runs_of(region)}
    assert client.post("/api/segment", json=sent | {"strokes": []}, headers=key).status_code == 400
    (other,) = set(annotating.units) - {task["unit"] for task in state["tasks"]}
    assert client.post("/api/segment", json=sent | {"unit": other}, headers=key).status_code == 403
    without = client_of(create_app(annotating))
    assert without.post("/api/segment", json=sent, headers=key).status_code == 403
