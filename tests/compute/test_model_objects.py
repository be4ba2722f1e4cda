"""A model object is used with what it knows: as an object it scores as it does as a folder."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torchvision import models
from transformers import (
    AutoModelForImageClassification,
    ConvNextImageProcessor,
    ResNetConfig,
    ResNetForImageClassification,
    pipeline,
)

import saliency_bench as sb
from saliency_bench import load_classifier
from saliency_bench.errors import UserError

METRICS = ["saliency_miou", "saliency_insertion:steps=4"]
MEAN, STD = [0.3, 0.5, 0.4], [0.11, 0.22, 0.33]


def small(*layers):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 8), *layers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, resnet):
    """A checkpoint whose normalisation, crop and class names are all its own."""
    names = json.loads((resnet / "config.json").read_text())["id2label"]
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic",
                          id2label={int(key): name for key, name in names.items()})  # fmt: skip
    path = tmp_path_factory.mktemp("models") / "own"
    torch.manual_seed(0)
    ResNetForImageClassification(config).save_pretrained(path)
    ConvNextImageProcessor(size={"shortest_edge": 32}, image_mean=MEAN, image_std=STD).save_pretrained(path)
    return path


def object_of(folder):
    return AutoModelForImageClassification.from_pretrained(folder)


def rows(count=2, size=(50, 41)):
    draw = np.random.default_rng(0)
    return [{"image": Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8))} for _ in range(count)]


def same(one, other):
    """Two classifiers that agree to the bit."""
    images = one.prepare(rows()).images
    assert torch.equal(images, other.prepare(rows()).images)
    with torch.no_grad():
        assert torch.equal(one(images), other(images))
    assert (one.digest, one.labels, one.geometry) == (other.digest, other.labels, other.geometry)
    return True


def test_a_transformers_object_is_what_its_folder_is(folder):
    by_name = load_classifier(folder, device="cpu")
    by_object = load_classifier(object_of(folder))
    assert same(by_name, by_object)
    assert by_object.mean.flatten().tolist() == pytest.approx(MEAN)
    assert by_object.id == "module:ResNetForImageClassification"


@pytest.mark.slow
def test_a_run_with_the_object_has_the_cells_and_scores_of_the_folder(folder, shapes, tmp_path):
    def records(model, name):
        sb.run(dataset=str(shapes), model=model, explainers=["gradcam", "rise:masks=8"], limit=6, device="cpu",
               metrics=METRICS, out=tmp_path / name, progress=False)  # fmt: skip
        table = pq.read_table(tmp_path / name / "records.parquet")
        return table.select(["cell_id", "image_id", "value", "prediction"]).to_pylist()

    expected = records(str(folder), "folder")
    assert records(object_of(folder), "object") == expected
    assert records(load_classifier(object_of(folder)), "classifier") == expected


def test_a_pipeline_brings_model_and_processor(folder):
    made = pipeline("image-classification", model=str(folder), device="cpu")
    assert same(load_classifier(folder, device="cpu"), load_classifier(made))


def test_a_run_takes_a_pipeline_and_leaves_it_as_it_was(folder, shapes, tmp_path):
    made = pipeline("image-classification", model=str(folder), device="cpu")
    made.model.train()
    before = state(made.model)
    for name, model in (("folder", str(folder)), ("pipeline", made)):
        sb.run(dataset=str(shapes), model=model, explainers="gradient", metrics="saliency_miou", limit=4, device="cpu",
               out=tmp_path / name, progress=False)  # fmt: skip
    ours, theirs = (pq.read_table(tmp_path / name / "records.parquet") for name in ("pipeline", "folder"))
    for column in ("cell_id", "image_id", "value"):
        assert ours[column].to_pylist() == theirs[column].to_pylist()
    assert state(made.model) == before


def test_class_names_of_a_head_that_was_replaced_are_not_used(folder):
    model = object_of(folder)
    model.classifier[1] = nn.Linear(12, 3)
    with pytest.raises(UserError, match=r"3 logits.*8 class names.*labels="):
        load_classifier(model)(torch.rand(1, 3, 32, 32))
    assert load_classifier(model, labels=list("abc"))(torch.rand(1, 3, 32, 32)).shape == (1, 3)


def test_an_object_without_its_folder_stops_and_says_what_to_give(folder, tmp_path):
    model = object_of(folder)
    fresh = ResNetForImageClassification(model.config)
    fresh.config._name_or_path = fresh.name_or_path = ""
    moved = object_of(folder)
    moved.config._name_or_path = moved.name_or_path = "no/such-model"
    for unknown in (fresh, moved):
        with pytest.raises(UserError, match=r"ResNetForImageClassification.*mean=.*std=.*folder") as error:
            load_classifier(unknown)
        assert "\n" not in str(error.value)
    given = load_classifier(fresh, mean=MEAN, std=STD, size=32)
    assert given.labels == load_classifier(folder, device="cpu").labels
    assert given.geometry.resize == (32, 32)


def test_what_is_given_replaces_what_the_object_knows(folder):
    model = object_of(folder)
    other = load_classifier(model, mean=0.5, labels=list("abcdefgh"))
    assert other.mean.flatten().tolist() == [0.5] * 3
    assert other.std.flatten().tolist() == pytest.approx(STD)
    assert other.labels == list("abcdefgh")
    assert other.geometry == load_classifier(model).geometry


def test_a_timm_object_is_prepared_as_timm_prepares_it():
    model = timm.create_model("resnet10t", num_classes=1000).eval()
    classifier = load_classifier(model)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    batch = rows(3, (250, 330))
    with torch.no_grad():
        theirs = model(torch.stack([transform(row["image"]) for row in batch]))
        assert (classifier(classifier.prepare(batch).images) - theirs).abs().max() < 1e-4
    assert classifier.labels[0].startswith("tench")
    assert load_classifier(timm.create_model("resnet10t", num_classes=4)).labels is None


@pytest.mark.parametrize(("size", "given"), [(96, None), ((64, 96), (64, 96))])
def test_a_timm_object_that_was_built_for_another_size_is_prepared_in_it(size, given):
    """`pretrained_cfg` keeps the size of the weights that timm has."""
    model = timm.create_model("test_vit", num_classes=4, img_size=size)
    classifier = load_classifier(model, device="cpu", size=given)
    assert classifier.geometry.frame == model.patch_embed.img_size
    assert classifier(classifier.prepare(rows(2, (120, 150))).images).shape == (2, 4)


def test_a_timm_object_whose_weights_have_no_classes_has_no_names():
    """As vit_small_patch16_224.dino and other weights without a head."""
    model = timm.create_model("resnet10t", num_classes=37)
    model.pretrained_cfg = dict(model.pretrained_cfg) | {"num_classes": 0, "classifier": None}
    classifier = load_classifier(model)
    assert classifier.labels is None
    assert classifier(classifier.prepare(rows()).images).shape == (2, 37)


def test_a_timm_object_without_mean_stops():
    model = timm.create_model("resnet10t", num_classes=4)
    model.pretrained_cfg = {key: value for key, value in model.pretrained_cfg.items() if key != "mean"}
    with pytest.raises(UserError, match=r"ResNet.*mean="):
        load_classifier(model)
    assert load_classifier(model, mean=0, std=1, size=64).prepare(rows()).images.shape == (2, 3, 64, 64)


def test_a_torchvision_object_is_told_the_numbers_of_torchvisions_weights():
    network = models.resnet18(num_classes=8)
    with pytest.raises(UserError, match=r"ResNet.*mean=\(0\.485, 0\.456, 0\.406\), std=.*size=224"):
        load_classifier(network)
    classifier = load_classifier(network, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), size=64)
    assert sb.explain(rows()[0]["image"], classifier).explainer == "gradcam"


@pytest.mark.parametrize("make", [small, lambda: models.resnet18(num_classes=8)])
def test_a_plain_module_needs_mean_and_std_everywhere(make, shapes, tmp_path):
    model, images = make(), torch.rand(2, 3, 64, 64)
    calls = [
        lambda: load_classifier(model),
        lambda: load_classifier(model, mean=0.5),
        lambda: sb.explain(rows()[0]["image"], model, "gradient"),
        lambda: sb.run(dataset=str(shapes), model=model, explainers="gradient", metrics="saliency_miou",
                       out=tmp_path / "run"),
        lambda: score_samples("saliency_insertion", images, model, "gradient"),
    ]  # fmt: skip
    from saliency_bench.compute.scoring.samples import score_samples

    for call in calls:
        with pytest.raises(UserError, match=r"are unknown.*mean=.*std=.*mean=0, std=1"):
            call()
    assert not (tmp_path / "run").exists()


class Normalising(nn.Module):
    """A network that normalises inside, by buffers named as a classifier's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((1, 3, 1, 1), 0.4))
        self.register_buffer("std", torch.full((1, 3, 1, 1), 0.2))
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))

    def forward(self, images):
        return self.inner((images - self.mean) / self.std)


def test_one_rule_for_a_module_that_normalises_inside_in_and_outside_evaluate():
    from saliency_bench.compute.scoring.perturbation import batched_curves
    from saliency_bench.compute.scoring.samples import score_samples

    images = torch.rand(4, 3, 8, 8)
    classifier = load_classifier(Normalising(), mean=0, std=1)
    outside = score_samples("saliency_insertion", images, classifier, "gradient", target=[0, 1, 2, 0])
    maps = sb.load_explainer("gradient")(classifier, images, sb.targets.one_hot([0, 1, 2, 0], 3))
    (curves,) = batched_curves(classifier, images, [0, 1, 2, 0], maps)
    assert sb.load_metric("saliency_insertion")(curves).tolist() == outside.tolist()
    assert classifier(images).equal(Normalising()(images))


# What is no model object, or one whose forward is another


class Takes(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.net, self.call = small(), forward

    def forward(self, images):
        return self.call(self.net, images)


def logits_of(model):
    return load_classifier(model, mean=0, std=1)(torch.rand(2, 3, 16, 16))


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: {"logits": net(x), "features": x},
        lambda net, x: net(x),
    ],
)
def test_logits_alone_or_under_their_name(forward):
    assert logits_of(Takes(forward)).shape == (2, 8)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda net, x: {"scores": net(x)}, "a dict of scores"),
        (lambda net, x: (net(x), x), "tuple of 2"),
        (lambda net, x: net(x["pixel_values"]), r"tensor of images \(B, 3, H, W\).*forward"),
        (lambda net, x: net(x, x), r"tensor of images \(B, 3, H, W\).*forward"),
        (lambda net, x: net(x[:, :1]), "images with 3 channels"),
    ],
)
def test_other_outputs_and_inputs_are_one_line(forward, words):
    with pytest.raises(UserError, match=words) as error:
        logits_of(Takes(forward))
    assert "\n" not in str(error.value)


def test_a_network_for_one_size_names_size():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
    with pytest.raises(UserError, match=r"16 x 16.*size="):
        logits_of(flat)
    classifier = load_classifier(flat, mean=0, std=1, size=8)
    assert classifier(classifier.prepare(rows()).images).shape == (2, 3)


@pytest.mark.parametrize("model", [lambda images: images, 7, None, {"model": 1}, b"resnet"])
def test_what_is_no_module_is_refused(model):
    with pytest.raises(UserError, match=r"is not a classifier.*torch module"):
        load_classifier(model)


@pytest.mark.parametrize("size", [0, -1, 100_000, 2.5, "big", (8,), (8, 8, 8)])
def test_sizes_that_are_none(size):
    with pytest.raises(UserError, match=r"size="):
        load_classifier(small(), mean=0, std=1, size=size)


@pytest.mark.parametrize(
    "given",
    [{"mean": "red"}, {"mean": (0.5, 0.5)}, {"mean": float("nan")}, {"std": 0}, {"std": (1, 1, -1)}, {"std": None}],
)
def test_means_and_stds_that_are_none(given):
    with pytest.raises(UserError, match=r"mean|std"):
        load_classifier(small(), **{"mean": 0, "std": 1} | given)


# Probabilities


@pytest.mark.parametrize("batch", [1, 3])
def test_probabilities_are_refused_with_the_fix(batch):
    with pytest.raises(UserError, match=r"probabilities.*logits"):
        load_classifier(small(nn.Softmax(dim=1)), mean=0, std=1)(torch.rand(batch, 3, 8, 8))


def test_probabilities_are_refused_in_half_precision(folder):
    model = small(nn.Softmax(dim=1)).bfloat16()
    with pytest.raises(UserError, match=r"probabilities.*logits"):
        load_classifier(model, mean=0, std=1)(torch.rand(2, 3, 8, 8))


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_the_outputs_of_a_last_sigmoid_are_refused_with_the_fix(activation):
    model = load_classifier(small(nn.Sigmoid()), mean=0, std=1, activation=activation)
    with pytest.raises(UserError, match=r"ends in a sigmoid.*without it.*activation=.sigmoid"):
        model(torch.rand(3, 3, 8, 8))


class SumsToOne(nn.Module):
    """Logits that sum to 1 for dark pictures and to anything for others."""

    def forward(self, images):
        light = images.mean(dim=(1, 2, 3))
        return torch.stack([0.25 + light, 0.75 + light], dim=1)


def test_logits_that_sum_to_one_by_accident_stay_logits():
    classifier = load_classifier(SumsToOne(), mean=0, std=1)
    assert classifier(torch.zeros(4, 3, 8, 8)).tolist() == [[0.25, 0.75]] * 4
    assert classifier.passes == 4
    log = load_classifier(small(nn.LogSoftmax(dim=1)), mean=0, std=1)
    assert log(torch.rand(2, 3, 8, 8)).exp().sum(dim=1).tolist() == pytest.approx([1, 1])


def test_the_check_is_made_once():
    class Counting(SumsToOne):
        calls = 0

        def forward(self, images):
            Counting.calls += 1
            return super().forward(images)

    classifier = load_classifier(Counting(), mean=0, std=1)
    for _ in range(3):
        classifier(torch.zeros(2, 3, 8, 8))
    assert Counting.calls == 4  # the second compares with noise


# Nothing a run does changes the caller's object


def state(model):
    return {
        "layout": [value.stride() for value in model.state_dict().values()],
        "pointers": [value.data_ptr() for value in model.state_dict().values()],
        "modes": [module.training for module in model.modules()],
        "dtypes": [value.dtype for value in model.state_dict().values()],
        "gradients": [value.requires_grad for value in model.parameters()],
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"channels_last": True}])
@pytest.mark.parametrize("kind", ["module", "classifier"])
def test_a_run_leaves_the_object_as_it_was(kind, options, folder, shapes, tmp_path):
    network = object_of(folder).train()
    model = network if kind == "module" else load_classifier(network)
    if kind == "classifier":
        model.train()
    before, digest = state(model), load_classifier(object_of(folder)).digest
    sb.run(dataset=str(shapes), model=model, explainers="gradcam", metrics="saliency_miou", out=tmp_path / "run",
           limit=4, device="cpu", progress=False, **options)  # fmt: skip
    assert state(model) == before
    if kind == "classifier":
        assert (model.precision, model.channels_last, model.layer, model.digest) == ("fp32", False, None, digest)


def test_a_variant_shares_weights_and_no_settings(folder):
    first = load_classifier(folder, device="cpu")
    second = load_classifier(first, precision="bf16", layer="resnet.encoder.stages.0")
    assert (first.precision, first.layer) == ("fp32", None)
    assert (second.precision, second.layer) == ("bf16", "resnet.encoder.stages.0")
    assert second.model is first.model
    assert second.digest == first.digest
    assert load_classifier(first) is first


def test_the_digest_follows_the_weights(folder):
    classifier = load_classifier(object_of(folder))
    before = classifier.digest
    with torch.no_grad():
        next(classifier.model.parameters()).add_(1)
    assert classifier.digest != before


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_half_precision_weights_are_said(dtype, name, folder, shapes, tmp_path):
    object_of(folder).to(dtype).save_pretrained(tmp_path / "half")
    ConvNextImageProcessor(size={"shortest_edge": 32}).save_pretrained(tmp_path / "half")
    run = sb.run(dataset=str(shapes), model=str(tmp_path / "half"), explainers="gradient", metrics="saliency_miou",
                 out=tmp_path / "run", limit=4, device="cpu", progress=False)  # fmt: skip
    assert run.summary["precision"] == f"{name} weights"
    assert load_classifier(tmp_path / "half", device="cpu", precision="bf16").arithmetic == (
        "bf16 weights" if name == "bf16" else "fp16 weights, bf16 operations"
    )
