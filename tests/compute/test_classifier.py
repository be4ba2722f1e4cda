import colorsys
import io
import json
from contextlib import suppress

import datasets
import numpy as np
import pytest
import timm
import torch
from checkpoints import small_checkpoint
from PIL import Image
from refusals import refused
from safetensors.torch import save_file
from torch import nn
from torchvision import models
from transformers import ResNetForImageClassification

from saliency_bench import load_classifier
from saliency_bench.compute.classifiers.layers import cam_layer


def small(classes=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def plain(model=None, **options):
    """Return a classifier of a module."""
    return load_classifier(small() if model is None else model, **{"device": "cpu", "mean": 0, "std": 1} | options)


def test_size_option_resizes_images_for_plain_module():
    rows = [{"image": Image.new("RGB", size)} for size in ((20, 30), (40, 10))]
    for size, side in ((16, (16, 16)), ((16, 24), (16, 24))):
        classifier = plain(size=size)
        assert classifier.prepare(rows).images.shape == (2, 3, *side)
    refused("size=", plain().prepare, rows)


def test_classifier_repr_is_short_and_complete(resnet):
    classifier = load_classifier(resnet, device="cpu")
    text = repr(classifier)
    assert len(text.splitlines()) <= 6
    assert max(map(len, text.splitlines())) <= 120
    for part in (classifier.id, classifier.digest[:8], "8 classes", "disc", "squash to 32 x 32", "softmax", "fp32",
                 "last feature map"):  # fmt: skip
        assert part in text, part
    assert "Conv2d" not in text
    assert "Conv2d" in repr(classifier.model)
    named = plain(layer="0", labels=["a", "b", "c", "\x1b[31md" * 50])
    for part in ("CAM layer: 0", "softmax (assumed)", "normalised by mean 0 and std 1"):
        assert part in repr(named), part
    own = plain(mean=(0.4, 0.5, 0.625), std=0.25)
    assert "normalised by mean (0.4, 0.5, 0.625) and std 0.25" in repr(own)
    assert "\x1b" not in repr(named)
    assert max(map(len, repr(named).splitlines())) <= 120
    assert "class names unknown" in repr(plain())
    lazy = plain(nn.Sequential(nn.Flatten(), nn.LazyLinear(2)))
    assert "no weights yet" in repr(lazy)
    refused("has layers without weights .* first pass a picture through", lazy.hashes)


def test_logits_may_be_a_view_of_a_parameter_or_buffer():
    class Constant(nn.Linear):
        def forward(self, images):
            return self.bias.expand(len(images), -1)

    class Overwriting(nn.BatchNorm1d):
        def forward(self, images):
            return self.running_mean.copy_(images.detach().mean((0, 2, 3)))[None]

    classifier, images = plain(Constant(3, 2)), torch.rand(3, 3, 8, 8)
    with torch.no_grad():
        assert not classifier(images).requires_grad
        first = plain(overwriting := Overwriting(3))(images)
        plain(overwriting)(images / 2)
    assert first == pytest.approx(images.mean((0, 2, 3))[None])
    assert classifier(images).requires_grad


@pytest.mark.parametrize(("model", "words"), [
    (nn.Conv2d(3, 4, 3), "instead of logits"),
    (nn.Sequential(nn.Flatten(0), nn.Linear(192, 2)), "instead of logits"),
    # like ImageGPT, which `transformers` loads as an image classifier
    (nn.Sequential(nn.Flatten(), nn.Embedding(16, 4), nn.Flatten(), nn.LazyLinear(3)), "takes token ids"),
])  # fmt: skip
def test_model_without_class_logits_is_rejected(model, words):
    refused(words, plain(model), torch.rand(1, 3, 8, 8))


def test_prepare_accepts_dataset_slices_and_raw_bytes(tmp_path):
    classifier = plain()
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8))
    picture.save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    mask = np.ones((12, 10), bool)
    rows = [
        {"image": picture, "mask": mask, "label": 2, "image_id": "a"},
        {"image": {"bytes": content, "path": None}, "mask": mask, "label": None, "image_id": "b"},
        {"image": {"bytes": None, "path": str(tmp_path / "a.png")}, "mask": mask, "label": 1, "image_id": 3},
    ]
    batch = classifier.prepare(rows)
    again = classifier.prepare({key: [row[key] for row in rows] for key in rows[0]})
    assert batch.ids == again.ids == ["a", "b", "3"]
    assert batch.labels.tolist() == [2, -1, 1]
    assert torch.equal(batch.images[0], batch.images[1])
    assert torch.equal(batch.images, again.images)
    assert batch.masks.all()
    assert len(batch) == 3


SHAPE = (12, 10)
DRAWN = np.random.default_rng(0).integers(0, 256, (*SHAPE, 4)).astype(np.uint8)
DRAWN[..., 3] |= 64  # alpha: premultiplied colours of nearly transparent pixels are almost lost
DEEP = (100 + 600 * np.random.default_rng(1).random(SHAPE)).astype(np.uint16)


WITH_INFINITE = np.where(np.arange(120).reshape(SHAPE) < 2, [-np.inf, np.inf] * 5, DEEP)


def in_window(values):
    """Return values of more than 8 bits as `build folder` converts them: grey between the 1st and 99th percentile."""
    low, high = np.percentile(values[np.isfinite(values)], [1, 99])
    grey = np.round(255 * np.clip((values - low) / (high - low), 0, 1))
    return np.stack([grey] * 3, axis=2)


def of_hsv(hsv):
    return 255 * np.array([colorsys.hsv_to_rgb(*pixel) for pixel in hsv.reshape(-1, 3) / 255]).reshape(hsv.shape)


def of_ycbcr(values):
    y, blue, red = np.moveaxis(values - np.array([0, 128.0, 128]), 2, 0)
    return np.clip(np.stack([y + 1.402 * red, y - 0.344136 * blue - 0.714136 * red, y + 1.772 * blue], 2), 0, 255)


def of_cmyk(values):
    return (255.0 - values[..., :3]) * (255.0 - values[..., 3:]) / 255


def bare(mode, values):
    return Image.frombytes(mode, SHAPE[::-1], np.ascontiguousarray(values).tobytes())


def palette(mode="P", **info):
    image = bare("P", DRAWN[..., 0] % 200)
    image.putpalette(DRAWN[..., :3].reshape(-1).tolist() + [7, 8, 9] * 80)
    image.info |= info
    return image.convert(mode) if mode != "P" else image


GREY = np.stack([DRAWN[..., 0]] * 3, axis=2)
LOOKED_UP = np.concatenate([DRAWN[..., :3].reshape(-1, 3), [[7, 8, 9]] * 80])[DRAWN[..., 0] % 200]
RGB_TO = {mode: Image.fromarray(DRAWN[..., :3]).convert(mode) for mode in ("YCbCr", "HSV")}
# {mode: (picture, RGB computed with NumPy, tolerated difference in Pillow's rounding)}
MODES = {
    "1": (Image.fromarray(DRAWN[..., 0] > 99), np.where(DRAWN[..., :1] > 99, 255, 0).repeat(3, 2), 0),
    "L": (bare("L", DRAWN[..., 0]), GREY, 0),
    "LA": (bare("LA", DRAWN[..., [0, 3]]), GREY, 0),
    "La": (bare("LA", DRAWN[..., [0, 3]]).convert("La"), GREY, 3),
    "P": (palette(), LOOKED_UP, 0),
    "P, a transparent colour": (palette(transparency=3), LOOKED_UP, 0),
    "P, alpha for each colour": (palette(transparency=bytes(range(200))), LOOKED_UP, 0),
    "PA": (palette("PA"), LOOKED_UP, 0),
    "RGB": (bare("RGB", DRAWN[..., :3]), DRAWN[..., :3], 0),
    "RGBA": (bare("RGBA", DRAWN), DRAWN[..., :3], 0),
    "RGBa": (bare("RGBA", DRAWN).convert("RGBa"), DRAWN[..., :3], 3),
    "RGBX": (bare("RGBX", DRAWN), DRAWN[..., :3], 0),
    "CMYK": (bare("CMYK", DRAWN), of_cmyk(DRAWN), 1),
    "YCbCr": (RGB_TO["YCbCr"], of_ycbcr(np.asarray(RGB_TO["YCbCr"])), 1.5),
    "HSV": (RGB_TO["HSV"], of_hsv(np.asarray(RGB_TO["HSV"])), 1.5),
    "I;16": (Image.fromarray(DEEP), in_window(DEEP), 0),
    "I;16L": (bare("I;16L", DEEP.astype("<u2")), in_window(DEEP), 0),
    "I;16B": (bare("I;16B", DEEP.astype(">u2")), in_window(DEEP), 0),
    "I;16N": (bare("I;16N", DEEP), in_window(DEEP), 0),
    "I": (Image.fromarray(DEEP * np.int32(80)), in_window(DEEP * 80.0), 0),
    "F": (Image.fromarray(DEEP / np.float32(1024)), in_window(DEEP / 1024.0), 0),
}
FORMATS = ("PNG", "TIFF", "WEBP", "JPEG", "GIF")


def encoded(image, **settings):
    """Return an image as a lossless file in the first format that supports its mode, or None if there is none."""
    for kind in FORMATS[:3]:
        file = io.BytesIO()
        with suppress(OSError, ValueError, KeyError):
            image.save(file, kind, lossless=True, **settings)
            opened = Image.open(file)
            opened.load()
            if opened.mode.partition(";")[0] == image.mode.partition(";")[0]:
                return file.getvalue()
    return None


@pytest.mark.parametrize("mode", MODES)
def test_image_modes_give_same_pixels_in_every_form(tmp_path, mode):
    prepare = plain().prepare
    image, expected, rounding = MODES[mode]
    before = image.tobytes(), image.mode
    forms = {"object": image}
    if mode not in ("P", "1", "PA", "La", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV") and not mode.startswith("P, "):
        forms["array"] = np.asarray(image)  # pixel values are colours, not indices
    if (data := encoded(image, **{key: image.info[key] for key in {"transparency"} & set(image.info)})) is not None:
        (tmp_path / "file").write_bytes(data)
        forms |= {"bytes": data, "file": tmp_path / "file", "opened": Image.open(io.BytesIO(data))}
        forms |= {"undecoded": {"bytes": None, "path": str(tmp_path / "file")}}
        rows = datasets.Dataset.from_dict({"image": [{"bytes": data, "path": None}]})
        for decode in (False, True):
            forms[f"decode={decode}"] = rows.cast_column("image", datasets.Image(decode=decode))[0]["image"]
    assert len(forms) > 2 or mode in ("La", "RGBa", "RGBX", "CMYK", "HSV", "YCbCr", "PA", "I;16N", "I;16L")
    prepared = prepare([{"image": form} for form in forms.values()]).images
    for name, pixels in zip(forms, prepared, strict=True):
        assert (255 * pixels.permute(1, 2, 0) - torch.from_numpy(1.0 * expected)).abs().max() <= rounding + 1e-3, name
        assert torch.equal(pixels, prepared[0]), name
    assert (image.tobytes(), image.mode) == before


@pytest.mark.parametrize(("values", "expected"), [
    (DEEP.astype(np.int64) - 500, in_window(DEEP)),
    (DEEP.astype(np.float16), in_window(DEEP.astype(np.float16).astype(float))),
    (DEEP[..., None], in_window(DEEP)),
    (WITH_INFINITE, in_window(WITH_INFINITE)),
    (DRAWN[..., :1], GREY),
    (DRAWN[..., :3].astype(np.uint16) * 256 + 255, DRAWN[..., :3]),
    (np.where(np.arange(120).reshape(SHAPE) == 5, np.nan, 7.0), np.zeros((*SHAPE, 3))),
    (np.full(SHAPE, 9, np.uint16), np.zeros((*SHAPE, 3))),
])  # fmt: skip
def test_arrays_of_other_dtypes_become_8_bit_rgb(values, expected):
    images = plain().prepare([{"image": values}]).images
    np.testing.assert_allclose(255 * images[0].permute(1, 2, 0).numpy(), expected, atol=1e-3)


@pytest.mark.parametrize("kind", ["RGB", "I;16", "P"])
def test_exif_turns_files_bytes_and_objects_to_their_masks(tmp_path, kind):
    image, expected, _ = MODES[kind]
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated clockwise by 90 degrees
    image.save(tmp_path / "turned.png", exif=exif)
    opened = Image.open(tmp_path / "turned.png")
    forms = [tmp_path / "turned.png", (tmp_path / "turned.png").read_bytes(), opened]
    forms += [] if kind == "I;16" else [opened.convert("RGB")]
    upright = np.rot90(DRAWN[..., 0] > 99, -1)
    for form in forms:
        batch = plain().prepare([{"image": form, "mask": upright}])
        np.testing.assert_allclose(255 * batch.images[0].permute(1, 2, 0), np.rot90(expected, -1), atol=1e-3)
        np.testing.assert_array_equal(batch.masks[0], upright)


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_files_use_first_frame_and_objects_current_frame(kind):
    frames = [Image.new("RGB", (9, 8), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:], lossless=True)
    opened = Image.open(io.BytesIO(file.getvalue()))
    later = Image.open(io.BytesIO(file.getvalue()))
    later.seek(1)
    prepare = plain().prepare
    images = prepare([{"image": form} for form in (file.getvalue(), opened, later)]).images
    colours = images.mean(dim=(2, 3)).round().int().tolist()
    assert colours == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]


def test_precision_and_layout_barely_change_logits():
    model, images = small(), torch.rand(4, 3, 16, 16)
    full = plain(model)(images)
    for half in (plain(model, precision="bf16"), plain(small().bfloat16())):
        assert half(images).dtype == torch.float32
        assert 0 < (half(images) - full).abs().max() < 0.02 * full.abs().max()
    assert load_classifier(plain(model, precision="bf16"), device="cpu").precision == "bf16"
    layout = plain(model, precision="fp32", channels_last=True)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(layout(images), full)


def test_cam_layer_is_previous_block_if_last_is_one_pixel():
    classifier = plain(models.resnet18(num_classes=3))
    assert cam_layer(classifier, torch.rand(1, 3, 32, 32)) == "layer3"
    assert classifier.passes == 0


WEIGHTS = models.get_model_weights("resnet18").DEFAULT


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Put the file that torchvision would download into its cache, so that no internet connection is needed."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = tmp_path / "hub" / "checkpoints" / WEIGHTS.url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    return file


def test_torchvision_weights_match_torchvision_model(file):
    torch.manual_seed(0)
    model = models.resnet18()
    torch.save(model.state_dict(), file)
    classifier = load_classifier("torchvision:resnet18", device="cpu")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (250, 330, 3), dtype=np.uint8))
    with torch.no_grad():
        ours = classifier(classifier.prepare([{"image": image}]).images)
        theirs = model.eval()(WEIGHTS.transforms()(image)[None])
    assert (ours - theirs).abs().max() < 1e-4
    assert len(classifier.labels) == 1000


def test_pickled_code_in_torchvision_weights_is_not_executed(file, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    torch.save({"fc.weight": Bomb()}, file)
    refused("torchvision:resnet18", load_classifier, "torchvision:resnet18", device="cpu")
    assert not (tmp_path / "executed").exists()


def checkpoint(path, **changes):
    file = small_checkpoint(path, num_labels=3) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return str(path)


def without_head(path):
    ResNetForImageClassification.from_pretrained(path).resnet.save_pretrained(path)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["ResNetForImageClassification"]}))


def damaged(path):
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


@pytest.mark.parametrize(("changes", "spoil", "words"), [
    ({"model_type": "no-such-model"}, None, "no loadable image classifier"),
    ({}, without_head, "without its classification head"),
    ({}, damaged, "no loadable image classifier"),
])  # fmt: skip
def test_unusable_checkpoints_are_rejected(tmp_path, changes, spoil, words):
    path = checkpoint(tmp_path, **changes)
    if spoil:
        spoil(tmp_path)
    refused(words, load_classifier, path, device="cpu")


@pytest.mark.parametrize(("model", "options", "words"), [
    ("torchvision:resnt18", {}, "resnt18.*resnet18"),
    ("microsoft/resnet-18", {"mean": (0.5,) * 3}, r"mean.*checkpoint"),
    (models.resnet18(num_classes=2), {"layer": "layer5", "mean": 0, "std": 1}, r"layer5.*layer4"),
    (small(), {"precision": "f16", "mean": 0, "std": 1}, r"f16\b.*\bbf16"),
    (small(), {"precision": "fp16", "mean": 0, "std": 1}, r"fp16.*GPU"),
])  # fmt: skip
def test_invalid_model_settings_are_rejected(model, options, words):
    refused(words, load_classifier, model, device="cpu", **options)


@pytest.mark.parametrize("classes", [0, 37])
def test_timm_checkpoint_needs_classification_head(tmp_path, classes):
    """Test loading with and without classes. DINO, DINOv2, EVA-02 and their fine-tuned versions are examples."""
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 4, "depth": 1, "num_heads": 1}
    model = timm.create_model("vit_small_patch16_224.dino", num_classes=classes, **sizes)
    assert model.pretrained_cfg["num_classes"] == 0
    save_file(model.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = {"architecture": "vit_small_patch16_224", "num_classes": classes, "model_args": sizes,
              "pretrained_cfg": model.pretrained_cfg}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    if classes:
        assert len(load_classifier(tmp_path, device="cpu").labels) == 37
    else:
        words = "without its classification head; train a new head with `saliency-bench train`"
        refused(words, load_classifier, tmp_path, device="cpu")


PICTURE = Image.new("RGB", (9, 9))


@pytest.mark.parametrize(("rows", "words"), [
    ([], "no rows"),
    ([{"image": {"bytes": b"not a picture", "path": None}}], "image"),
    ([{"image": "missing.jpg"}], "image"),
    ([{"image": PICTURE, "mask": Image.new("L", (9, 8))}], "9 x 8.*9 x 9"),
    *(([{"image": image}], "") for image in (
        None, np.zeros((4, 4, 3), np.float32), np.zeros((3, 5, 5), np.uint8), np.zeros((4, 4, 3), np.int64),
        np.zeros((0, 4), np.uint8), np.full((4, 4), np.nan), np.zeros((4, 4), complex), Image.new("RGB", (0, 4)), 7,
        {"bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "path": None})),
])  # fmt: skip
def test_unreadable_images_are_rejected_by_id(rows, words):
    rows = [row | {"image_id": "x7"} for row in rows]
    refused(rf"image x7\b.*{words}" if rows else words, plain().prepare, rows)
