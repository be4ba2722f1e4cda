"""Test model objects: a run uses their own settings, so scores equal the scores of the saved folder."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import timm
import torch
from checkpoints import small_checkpoint
from PIL import Image
from refusals import refused
from small_networks import Custom
from torch import nn
from torchvision import models
from transformers import (
    AutoModelForImageClassification,
    ConvNextImageProcessor,
    ResNetForImageClassification,
    pipeline,
)

import saliency_bench as sb
from saliency_bench import load_classifier
from saliency_bench.compute.scoring.samples import score_samples

MEAN, STD = [0.3, 0.5, 0.4], [0.11, 0.22, 0.33]


def small(*layers):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 8), *layers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, resnet):
    """Return a checkpoint with unusual normalisation, crop and class names."""
    names = json.loads((resnet / "config.json").read_text())["id2label"]
    processor = ConvNextImageProcessor(size={"shortest_edge": 32}, image_mean=MEAN, image_std=STD)
    return small_checkpoint(tmp_path_factory.mktemp("models") / "own", names.values(), processor=processor)


def object_of(folder):
    return AutoModelForImageClassification.from_pretrained(folder)


def rows(count=2, size=(50, 41)):
    draw = np.random.default_rng(0)
    return [{"image": Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8))} for _ in range(count)]


def pipeline_of(folder):
    return pipeline("image-classification", model=str(folder), device="cpu")


@pytest.mark.parametrize("made", [object_of, pipeline_of])
def test_model_object_or_pipeline_equals_its_folder(made, folder):
    one, other = load_classifier(folder, device="cpu"), load_classifier(made(folder))
    images = one.prepare(rows()).images
    assert torch.equal(images, other.prepare(rows()).images)
    with torch.no_grad():
        assert torch.equal(one(images), other(images))
    assert (one.digest, one.labels, one.geometry) == (other.digest, other.labels, other.geometry)
    assert other.mean.flatten().tolist() == pytest.approx(MEAN)
    assert other.id == "module:ResNetForImageClassification"


def records(model, shapes, out, **options):
    sb.run(dataset=str(shapes), model=model, **{"explainers": "gradcam", "metrics": "saliency_miou"} | options,
           limit=4, device="cpu", out=out, progress=False)  # fmt: skip
    table = pq.read_table(out / "records.parquet")
    return table.select(["cell_id", "image_id", "value", "prediction"]).to_pylist()


def test_run_with_model_object_matches_its_folder(folder, shapes, tmp_path):
    settings = {"explainers": ["gradient", "rise:masks=8"], "metrics": ["saliency_miou", "saliency_insertion:steps=4"],
                "precision": "bf16", "channels_last": True}  # fmt: skip
    made = pipeline_of(folder)
    made.model.train()
    before = state(made.model)
    expected = records(str(folder), shapes, tmp_path / "folder", **settings)
    assert records(made, shapes, tmp_path / "run", **settings) == expected
    assert state(made.model) == before


def test_replaced_head_needs_new_class_names(folder):
    model = object_of(folder)
    model.classifier[1] = nn.Linear(12, 3)
    refused(r"3 logits.*8 class names.*labels=", load_classifier(model), torch.rand(1, 3, 32, 32))
    assert load_classifier(model, labels=list("abc"))(torch.rand(1, 3, 32, 32)).shape == (1, 3)


def test_object_without_folder_needs_mean_and_std(folder, tmp_path):
    model = object_of(folder)
    fresh = ResNetForImageClassification(model.config)
    fresh.config._name_or_path = fresh.name_or_path = ""
    moved = object_of(folder)
    moved.config._name_or_path = moved.name_or_path = "no/such-model"
    for unknown in (fresh, moved):
        refused(r"ResNetForImageClassification.*mean=.*std=.*folder", load_classifier, unknown)
    given = load_classifier(fresh, mean=MEAN, std=STD, size=32)
    assert given.labels == load_classifier(folder, device="cpu").labels
    assert given.geometry.resize == (32, 32)


def test_arguments_override_settings_of_model_object(folder):
    model = object_of(folder)
    other = load_classifier(model, mean=0.5, labels=list("abcdefgh"))
    assert other.mean.flatten().tolist() == [0.5] * 3
    assert other.std.flatten().tolist() == pytest.approx(STD)
    assert other.labels == list("abcdefgh")
    assert other.geometry == load_classifier(model).geometry


def test_timm_object_matches_timm_preprocessing():
    model = timm.create_model("resnet10t", num_classes=1000).eval()
    classifier = load_classifier(model)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    batch = rows(3, (250, 330))
    with torch.no_grad():
        theirs = model(torch.stack([transform(row["image"]) for row in batch]))
        assert (classifier(classifier.prepare(batch).images) - theirs).abs().max() < 1e-4
    assert classifier.labels[0].startswith("tench")
    assert load_classifier(timm.create_model("resnet10t", num_classes=4)).labels is None
    model = timm.create_model("resnet10t", num_classes=37)  # weights without a head, like vit_small_patch16_224.dino
    model.pretrained_cfg = dict(model.pretrained_cfg) | {"num_classes": 0, "classifier": None}
    classifier = load_classifier(model)
    assert classifier.labels is None
    assert classifier(classifier.prepare(rows()).images).shape == (2, 37)
    model.pretrained_cfg = {key: value for key, value in model.pretrained_cfg.items() if key != "mean"}
    refused(r"ResNet.*mean=", load_classifier, model)
    assert load_classifier(model, mean=0, std=1, size=64).prepare(rows()).images.shape == (2, 3, 64, 64)


@pytest.mark.parametrize(("size", "given"), [(96, None), ((64, 96), (64, 96))])
def test_timm_object_is_prepared_at_its_built_size(size, given):
    """`pretrained_cfg` still has the image size of timm's weights."""
    model = timm.create_model("test_vit", num_classes=4, img_size=size)
    classifier = load_classifier(model, device="cpu", size=given)
    assert classifier.geometry.frame == model.patch_embed.img_size
    assert classifier(classifier.prepare(rows(2, (120, 150))).images).shape == (2, 4)


def test_torchvision_object_error_names_default_mean_and_std():
    network = models.resnet18(num_classes=8)
    refused(r"ResNet.*mean=\(0\.485, 0\.456, 0\.406\), std=.*size=224", load_classifier, network)
    classifier = load_classifier(network, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), size=64)
    assert sb.explain(rows()[0]["image"], classifier).explainer == "gradcam"


def test_plain_module_needs_mean_and_std_everywhere(shapes, tmp_path):
    model, images = small(), torch.rand(2, 3, 64, 64)
    calls = [
        lambda: load_classifier(model),
        lambda: load_classifier(model, mean=0.5),
        lambda: sb.explain(rows()[0]["image"], model, "gradient"),
        lambda: sb.run(dataset=str(shapes), model=model, explainers="gradient", metrics="saliency_miou",
                       out=tmp_path / "run"),
        lambda: score_samples("saliency_insertion", images, model, "gradient"),
    ]  # fmt: skip
    for call in calls:
        refused(r"are unknown.*mean=.*std=.*mean=0, std=1", call)
    assert not (tmp_path / "run").exists()


# Invalid model objects, and modules with an unusual forward


def takes(forward):
    return Custom(lambda network, images: forward(network.net, images), net=small())


def logits_of(model, count=2):
    return load_classifier(model, mean=0, std=1)(torch.rand(count, 3, 16, 16))


def test_logits_are_read_from_tensor_or_dict():
    for forward in (lambda net, x: {"logits": net(x), "features": x}, lambda net, x: SimpleNamespace(logits=net(x)),
                    lambda net, x: net(x)):  # fmt: skip
        assert logits_of(takes(forward)).shape == (2, 8)


@pytest.mark.parametrize(("model", "words"), [
    (takes(lambda net, x: {"scores": net(x)}), "a dict of scores"),
    (takes(lambda net, x: (net(x), x)), "tuple of 2"),
    (takes(lambda net, x: net(x["pixel_values"])), r"tensor of images \(B, 3, H, W\).*forward"),
    (takes(lambda net, x: net(x, x)), r"tensor of images \(B, 3, H, W\).*forward"),
    (takes(lambda net, x: net(x[:, :1])), "images with 3 channels"),
    (nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3)), r"16 x 16.*size="),
    (small(nn.Softmax(dim=1)).bfloat16(), "probabilities.*logits"),
])  # fmt: skip
def test_unusable_inputs_and_outputs_are_rejected(model, words):
    for count in (1, 2):
        refused(words, logits_of, model, count)


@pytest.mark.parametrize(("model", "given", "words"), [
    *((model, {}, "is not a classifier.*torch module") for model in (abs, None, {"model": 1})),
    *((small(), {"mean": 0, "std": 1, "size": size}, "size( must|=)")
      for size in (0, 100_000, 2.5, "big", (8,))),
    *((small(), {"mean": 0, "std": 1} | given, "mean|std") for given in (
        {"mean": "red"}, {"mean": (0.5, 0.5)}, {"mean": float("nan")}, {"std": 0}, {"std": (1, 1, -1)},
        {"std": None})),
])  # fmt: skip
def test_invalid_module_size_mean_or_std_is_rejected(model, given, words):
    refused(words, load_classifier, model, **given)


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_sigmoid_outputs_are_rejected_with_fix(activation):
    model = load_classifier(small(nn.Sigmoid()), mean=0, std=1, activation=activation)
    refused(r"ends in a sigmoid.*without its sigmoid.*activation=.sigmoid", model, torch.rand(3, 3, 8, 8))


class SumsToOne(nn.Module):
    """Network whose logits sum to 1 for dark pictures only."""

    calls = 0

    def forward(self, images):
        self.calls += 1
        light = images.mean(dim=(1, 2, 3))
        return torch.stack([0.25 + light, 0.75 + light], dim=1)


def test_logits_that_sum_to_1_are_accepted():
    network = SumsToOne()
    classifier = load_classifier(network, mean=0, std=1)
    assert classifier(torch.zeros(4, 3, 8, 8)).tolist() == [[0.25, 0.75]] * 4
    assert (classifier.passes, network.calls) == (4, 2)  # the second call compares with noise
    classifier(torch.zeros(4, 3, 8, 8))
    assert network.calls == 3
    log = load_classifier(small(nn.LogSoftmax(dim=1)), mean=0, std=1)
    assert log(torch.rand(2, 3, 8, 8)).exp().sum(dim=1).tolist() == pytest.approx([1, 1])


# A run does not change the caller's object


def state(model):
    return {
        "layout": [value.stride() for value in model.state_dict().values()],
        "pointers": [value.data_ptr() for value in model.state_dict().values()],
        "modes": [module.training for module in model.modules()],
        "dtypes": [value.dtype for value in model.state_dict().values()],
        "gradients": [value.requires_grad for value in model.parameters()],
    }


def test_run_keeps_classifier_unchanged(folder, shapes, tmp_path):
    model = load_classifier(object_of(folder)).train()
    before, digest = state(model), load_classifier(object_of(folder)).digest
    records(model, shapes, tmp_path / "run", precision="bf16", channels_last=True)
    assert state(model) == before
    assert (model.precision, model.channels_last, model.layer, model.digest) == ("fp32", False, None, digest)


def test_reloaded_classifier_shares_weights_but_not_settings(folder):
    first = load_classifier(folder, device="cpu")
    second = load_classifier(first, precision="bf16", layer="resnet.encoder.stages.0")
    assert (first.precision, first.layer) == ("fp32", None)
    assert (second.precision, second.layer) == ("bf16", "resnet.encoder.stages.0")
    assert second.model is first.model
    assert second.digest == first.digest
    assert load_classifier(first) is first


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_run_reports_half_precision_weights(dtype, name, folder, shapes, tmp_path):
    object_of(folder).to(dtype).save_pretrained(tmp_path / "half")
    ConvNextImageProcessor(size={"shortest_edge": 32}).save_pretrained(tmp_path / "half")
    run = sb.run(dataset=str(shapes), model=str(tmp_path / "half"), explainers="gradient", metrics="saliency_miou",
                 out=tmp_path / "run", limit=4, device="cpu", progress=False)  # fmt: skip
    assert run.summary["precision"] == f"{name} weights"
    assert load_classifier(tmp_path / "half", device="cpu", precision="bf16").arithmetic == (
        "bf16 weights" if name == "bf16" else "fp16 weights, bf16 operations"
    )
