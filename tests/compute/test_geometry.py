"""Test that every processor prepares masks like images, and that logits equal the logits of processor plus model."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from refusals import refused
from torchvision.transforms.functional import resize
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ConvNextImageProcessor,
    DeiTImageProcessor,
    ResNetConfig,
    ResNetForImageClassification,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

from saliency_bench import load_classifier
from saliency_bench.data.geometry import Geometry, enlarge, probe
from saliency_bench.maps import descending


def resnet():
    return ResNetForImageClassification(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4)
    )


def vit():
    return ViTForImageClassification(
        ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=4)
    )


def timm_wrapper(architecture, **settings):
    pretrained = timm.create_model(architecture, num_classes=4).pretrained_cfg
    kept = {key: pretrained[key] for key in ("input_size", "mean", "std", "crop_pct", "interpolation")} | settings
    return TimmWrapperForImageClassification(
        TimmWrapperConfig(architecture=architecture, num_labels=4, pretrained_cfg=kept)
    )


CHECKPOINTS = {
    "ResNet, crop": lambda: (resnet(), ConvNextImageProcessor(size={"shortest_edge": 224})),
    "ResNet, from 384 on squash": lambda: (resnet(), ConvNextImageProcessor(size={"shortest_edge": 384})),
    "ViT, squash": lambda: (vit(), ViTImageProcessor()),
    "DeiT's, squash then crop": lambda: (vit(), DeiTImageProcessor()),
    "timm wrapper, crop": lambda: (timm_wrapper("resnet10t"), None),
    "timm wrapper, squash": lambda: (timm_wrapper("resnet10t", crop_mode="squash", crop_pct=1.0), None),
}
SIZES = [(200, 301), (301, 200), (90, 70), (224, 224)]


@pytest.fixture(scope="module", params=CHECKPOINTS)
def folder(request, tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("checkpoint")
    model, processor = CHECKPOINTS[request.param]()
    model.save_pretrained(path)
    if processor is not None:
        processor.save_pretrained(path)
    return str(path)


def test_logits_match_processor_and_model(folder):
    processor = AutoImageProcessor.from_pretrained(folder)
    model, classifier = AutoModelForImageClassification.from_pretrained(folder), load_classifier(folder, device="cpu")
    rng = np.random.default_rng(0)
    for height, width in SIZES:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        with torch.no_grad():
            ours = classifier(classifier.prepare([{"image": image}]).images)
            theirs = model.eval()(**processor(image, return_tensors="pt")).logits
        assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize(("height", "width"), [(200, 300), (97, 61)])
def test_mask_stays_aligned_with_image(folder, height, width):
    mask = np.zeros((height, width), dtype=np.uint8)
    mask[height // 5 : height // 2, width // 3 : width * 3 // 4] = 255
    picture = Image.fromarray(np.repeat(mask[..., None], 3, axis=2))
    batch = load_classifier(folder, device="cpu").prepare([{"image": picture, "mask": Image.fromarray(mask)}])
    seen, inside = batch.images[0, 0].numpy(), batch.masks[0].numpy()
    assert 0.02 < inside.mean() < 0.6
    # Away from the edge, which interpolation blurs, both are equal up to nearest-neighbour resizing.
    scale = max(seen.shape[0] / height, seen.shape[1] / width, 1)
    wrong = (seen > 0.5) != inside
    edge_length = np.abs(np.diff(inside.astype(int), axis=0)).sum() + np.abs(np.diff(inside.astype(int), axis=1)).sum()
    assert wrong.sum() <= edge_length * scale / 2
    assert (seen[inside].mean(), seen[~inside].mean()) == pytest.approx((1, 0), abs=0.1)
    rows, columns = np.nonzero(inside.any(1))[0], np.nonzero(inside.any(0))[0]
    bright = seen > 0.5
    bright_rows, bright_columns = np.nonzero(bright.any(1))[0], np.nonzero(bright.any(0))[0]
    ends = [rows[0] - bright_rows[0], rows[-1] - bright_rows[-1], columns[0] - bright_columns[0]]
    assert np.abs([*ends, columns[-1] - bright_columns[-1]]).max() <= np.ceil(scale / 2)


def test_unusable_masks_report_a_reason(folder):
    classifier = load_classifier(folder, device="cpu")
    image = Image.new("RGB", (400, 100))
    corner, middle = np.zeros((100, 400), np.uint8), np.zeros((100, 400), np.uint8)
    corner[:, :30] = 255
    middle[30:60, 180:220] = 255
    masks = [None, Image.new("L", image.size), Image.fromarray(corner), Image.fromarray(middle)]
    batch = classifier.prepare([{"image": image, "mask": mask} for mask in masks])
    cropped = "mask emptied by the crop" if isinstance(classifier.geometry.resize, int) else None
    assert batch.left_out == ["no mask", "empty mask", cropped, None]
    assert [bool(mask.any()) for mask in batch.masks] == [False, False, cropped is None, True]


@pytest.mark.parametrize(("geometry", "size", "resized", "box"), [
    (Geometry(256, (224, 224)), (300, 400), (256, 341), (58, 16, 282, 240)),
    (Geometry(256, (224, 224), "round"), (300, 400), (256, 341), (58, 16, 282, 240)),
    (Geometry(256, (223, 223), "floor"), (300, 300), (256, 256), (16, 16, 239, 239)),
    (Geometry(256, (223, 223), "round"), (300, 300), (256, 256), (16, 16, 239, 239)),
    (Geometry(256, (221, 221), "round"), (300, 300), (256, 256), (18, 18, 239, 239)),
    (Geometry(256, (221, 221), "floor"), (300, 300), (256, 256), (17, 17, 238, 238)),
    (Geometry((224, 320)), (10, 20), (224, 320), (0, 0, 320, 224)),
    (Geometry(None, (7, 6)), (4, 9), (4, 9), (1, -1, 7, 6)),  # 3 rows of padding: 1 above, as in torchvision
])  # fmt: skip
def test_geometry_matches_values_computed_by_hand(geometry, size, resized, box):
    assert geometry.resized(*size) == resized
    assert geometry.box(*resized) == box


@pytest.mark.parametrize("size", [(427, 640), (640, 427), (375, 500), (333, 500), (99, 41)])
def test_shorter_side_is_resized_like_torchvision(size):
    resized = resize(torch.zeros(1, *size), 256)
    assert Geometry(256, (224, 224)).resized(*size) == resized.shape[1:]


def test_geometry_is_described_in_words():
    assert str(Geometry(256, (224, 224), resample="bicubic")) == "shorter side to 256 (bicubic), centre crop 224 x 224"
    assert str(Geometry((64, 64))) == "squash to 64 x 64 (bilinear)"
    assert str(Geometry()) == "as it is"


@pytest.mark.parametrize(("small", "side"), [(7, 224), (13, 224), (2, 32), (9, 5)])
def test_enlarge_matches_torch_interpolation(small, side):
    """Cells are rounded to 2^-15 of the map's range, so values agree within 2^-9 of one of these steps."""
    cells, images = torch.randn(3, small, small + 1), torch.empty(3, 3, side, side + 3)
    for one, ours in zip(cells.double(), enlarge(cells, images), strict=True):
        step = float(one.max() - one.min()) / 2**15
        rounded = torch.tensor([[round(float(cell) / step) * step for cell in row] for row in one], dtype=torch.float64)
        theirs = torch.nn.functional.interpolate(
            rounded[None, None], size=(side, side + 3), mode="bilinear", align_corners=False
        )[0, 0]
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=step / 2**9)
    assert torch.equal(enlarge(cells, cells[:, None]), cells), "a map of the size of the image is not rounded"


def test_rounding_noise_does_not_change_pixel_order():
    """Change the last digits as another batch size would. Zeros stay zeros, and no sign changes."""
    random = torch.Generator().manual_seed(0)
    cells = torch.randint(-1, 2, (40, 5, 5), generator=random).float()
    cells[:, 0, 0], cells[:, -1, -1] = -1, 1
    noise = 1 + 1e-6 * torch.randn(cells.shape, generator=random)
    images = torch.empty(40, 3, 60, 65)
    exact, noisy = (enlarge(0.3 * values, images) for values in (cells, cells * noise))
    orders = [descending(values.numpy()) for values in (exact, noisy)]
    assert (orders[0] == orders[1]).all()
    assert torch.equal(exact.sign(), noisy.sign())
    assert enlarge(torch.full((1, 2, 2), 0.7), images[:1]).unique().tolist() == [pytest.approx(0.7, rel=1e-7)]
    assert enlarge(torch.zeros(1, 2, 2), images[:1]).unique().tolist() == [0]


def test_enlarged_map_is_flat_inside_and_at_border():
    cells = torch.zeros(1, 6, 6)
    cells[:, 1:5, 1:5] = 0.1
    large = enlarge(cells, torch.empty(1, 3, 78, 78))[0]  # 13 pixels per cell, so that no weight is a power of two
    assert large[19:59, 19:59].unique().tolist() == [pytest.approx(0.1)]
    assert large[:7].unique().tolist() == large[:, -7:].unique().tolist() == [0]


@pytest.mark.parametrize("side", [4, 12, 32])
@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "lanczos", "nearest", "box"])
def test_probe_rejects_wrong_resizing_of_small_images(side, resample):
    kind = Image.Resampling[resample.upper()]

    def frame(picture, change=lambda tensor: tensor):
        pixels = np.asarray(picture.resize((side, side), kind), np.float32) / 255
        return change(torch.from_numpy(pixels).permute(2, 0, 1))

    geometry = Geometry((side, side), resample=resample)
    probe(geometry, frame, "small")
    wrong = {
        "channels": lambda tensor: tensor.flip(0), "mirrored": lambda tensor: tensor.flip(2),
        "upside down": lambda tensor: tensor.flip(1), "scale": lambda tensor: tensor * 255,
        "moved": lambda tensor: tensor.roll(1, 2), "turned": lambda tensor: tensor.transpose(1, 2).flip(1),
        "size": lambda tensor: tensor[:, :-1],
    }  # fmt: skip
    for change in [change for name, change in wrong.items() if side > 4 or name in ("channels", "scale", "size")]:
        if side < 32 or change is not wrong["moved"]:  # by one pixel of 32, which is 1 % of the picture
            refused(
                r"\bsmall\b.*does not resize", probe, geometry, lambda picture, c=change: frame(picture, c), "small"
            )
