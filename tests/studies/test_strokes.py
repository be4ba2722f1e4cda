"""Tests of regions from strokes: validation of requests, GrabCut, and a small network instead of Segment Anything."""

import numpy as np
import pytest
from pages import client_of, joined, study_of
from PIL import Image
from refusals import refused

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
    assert not less[110, 74:102].any(), "what is said not to belong to it does not"


def test_grabcut_accepts_tiny_images(tmp_path):
    pytest.importorskip("cv2", reason="needs OpenCV")
    for size in ((1, 1), (2, 3), (900, 1)):
        Image.new("RGB", size).save(tmp_path / "small.png")
        assert GrabCut()(tmp_path / "small.png", [Stroke([(0.0, 0.0)], True)]).shape == size[::-1]


def networks(folder, full=True):
    """Write an encoder that returns the image, and a decoder for the pixels with the red value of the first point.

    full: Whether masks have the size of the image, given by orig_im_size, instead of a quarter of the padded image.
    """
    onnx = pytest.importorskip("onnx", reason="needs onnx")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    from onnx import TensorProto as Kind
    from onnx import helper, numpy_helper

    def constant(name, values):
        return numpy_helper.from_array(np.array(values), name)

    def value(name, shape, kind=Kind.FLOAT):
        return helper.make_tensor_value_info(name, kind, shape)

    def saved(name, nodes, inputs, outputs, constants=()):
        graph = helper.make_graph(nodes, name, inputs, outputs, list(constants))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(model)
        onnx.save(model, folder / f"{name}.onnx")
        return folder / f"{name}.onnx"

    picture = [1, 3, SIDE, SIDE]
    node = helper.make_node
    encoder = saved("encoder", [node("Identity", ["x"], ["embedding"])], [value("x", picture)],
                    [value("embedding", picture)])  # fmt: skip
    nodes = [node("Gather", ["image_embeddings", "zero"], ["red"], axis=1),
             node("Slice", ["point_coords", "start", "one_", "middle"], ["xy"]),
             node("Cast", ["xy"], ["whole"], to=Kind.INT64), node("Gather", ["whole", "swap"], ["yx"], axis=2),
             node("Reshape", ["yx", "flat"], ["place"]), node("Squeeze", ["red", "axes"], ["plane"]),
             node("GatherND", ["plane", "place"], ["colour"]), node("Sub", ["red", "colour"], ["difference"]),
             node("Abs", ["difference"], ["distance"]), node("Sub", ["near", "distance"], ["like"]),
             node("Neg", ["like"], ["unlike"]), node("Concat", ["unlike", "like"], ["both"], axis=1)]  # fmt: skip
    constants = [
        constant("zero", [0]), constant("start", [0]), constant("one_", [1]), constant("middle", [1]),
        constant("swap", [1, 0]), constant("flat", [1, 2]), constant("axes", [0, 1]),
        constant("near", np.float32(2.0)), constant("quality", np.float32([[0.1, 0.9]]))]  # fmt: skip
    inputs = [value("image_embeddings", picture), value("point_coords", [1, "n", 2]), value("point_labels", [1, "n"]),
              value("mask_input", [1, 1, 8, 8]), value("has_mask_input", [1])]  # fmt: skip
    if full:
        inputs.append(value("orig_im_size", [2]))
        nodes += [
            node("ReduceMax", ["orig_im_size"], ["longest"], keepdims=1),
            node("Cast", ["orig_im_size"], ["size"], to=Kind.INT64),
            node("Cast", ["longest"], ["side"], to=Kind.INT64),
            node("Concat", ["batch", "side", "side"], ["square"], axis=0),
            node("Resize", ["both", "", "", "square"], ["large"], mode="nearest"),
            node("Slice", ["large", "origin", "size", "image_axes"], ["masks"]),
        ]
        constants += [constant("batch", [1, 2]), constant("origin", [0, 0]), constant("image_axes", [2, 3])]
    else:
        nodes += [node("AveragePool", ["both"], ["masks"], kernel_shape=[4, 4], strides=[4, 4])]
    nodes += [node("Identity", ["quality"], ["iou_predictions"])]
    outputs = [value("masks", [1, 2, None, None]), value("iou_predictions", [1, 2])]
    return encoder, saved("decoder", nodes, inputs, outputs, constants)


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
        assert (region_found != region).mean() < (0.04 if full else 0.08), "at the edge, of a picture half as large"
    assert find._embedding.cache_info().misses == 1, "the encoder looks once at a picture"


def test_encoder_input_is_normalised_and_padded(tmp_path, halves):
    (_, outputs) = SegmentAnything(*networks(tmp_path))._embedding(halves)
    seen = outputs["embedding"]
    assert seen.shape == (1, 3, SIDE, SIDE)
    np.testing.assert_allclose(seen[0, :, 0, 0], (np.array([250, 0, 0]) - MEAN) / STD, rtol=1e-5)
    assert not seen[0, :, 24:].any(), "zeros below"


def test_segment_anything_rejects_invalid_networks(tmp_path, halves):
    encoder, decoder = networks(tmp_path)
    refused("there is no file", SegmentAnything, tmp_path / "none.onnx", decoder)
    refused("cannot be read as an ONNX network", SegmentAnything, halves, decoder)
    refused("is not an encoder; use a network whose only input is an image", SegmentAnything, decoder, decoder)
    refused("needs x; use a decoder from the export script of Segment Anything", SegmentAnything, encoder, encoder)


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
