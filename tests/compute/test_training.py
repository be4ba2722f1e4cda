"""Test training: its files, resuming and errors. Images with several classes and sigmoids are also tested."""

import json
import shutil

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from run_order import in_run_order
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score
from transformers import AutoConfig, AutoModelForImageClassification, ConvNextImageProcessor, ResNetConfig

import saliency_bench as sb
from saliency_bench.compute import fitting, training
from saliency_bench.compute.classifiers.sources import KNOWN
from saliency_bench.compute.fitting import loss_of

CONFIG = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}


def go(shapes, out, **changes):
    settings = {"model": ResNetConfig(**CONFIG), "epochs": 3, "size": 32, "limit": 64}
    return sb.train(dataset=str(shapes), out=out, device="cpu", progress=False, **settings | changes)


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    return go(shapes, tmp_path_factory.mktemp("models") / "tiny")


def weights(folder):
    return AutoModelForImageClassification.from_pretrained(folder).state_dict()


def equal(first, second):
    return all(torch.equal(first[key], second[key]) for key in first)


def log_of(folder):
    return json.loads((folder / "training_log.json").read_text())


def check_accuracy(folder, shapes):
    classifier = sb.load_classifier(folder, device="cpu")
    batch = classifier.prepare(sb.load_dataset(shapes))
    with torch.no_grad():
        accuracy = (classifier(batch.images).argmax(1) == batch.labels).float().mean().item()
    assert accuracy == pytest.approx(log_of(folder)["test_accuracy"])


def stop_at(monkeypatch, call):
    """Interrupt the training when its `call`-th epoch begins. Return the list of the epochs so far."""
    epoch, calls = fitting.one_epoch, []

    def stopping(*args):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return epoch(*args)

    monkeypatch.setattr(fitting, "one_epoch", stopping)
    return calls


def test_checkpoint_loads_with_class_names_and_processor(trained, shapes):
    classifier = sb.load_classifier(trained, device="cpu")
    assert classifier.labels == sb.load_dataset(shapes).features["label"].names
    assert str(classifier.geometry) == "squash to 32 x 32 (bilinear)"
    assert (trained / "model.safetensors").exists()
    assert not list(trained.parent.glob("*.training.pt"))
    epochs = log_of(trained)["epochs"]
    assert [entry["epoch"] for entry in epochs] == [0, 1, 2]
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    check_accuracy(trained, shapes)


@pytest.mark.slow
def test_weights_depend_on_seed(trained, shapes, tmp_path):
    assert not equal(weights(trained), weights(go(shapes, tmp_path / "other", seed=1)))


def test_resumed_training_gives_the_same_weights(trained, shapes, tmp_path, monkeypatch):
    calls = stop_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        go(shapes, tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()
    refused("--out", go, shapes, tmp_path / "tiny", epochs=4)
    other = ResNetConfig(**CONFIG | {"hidden_act": "gelu"})
    refused("training run with different settings", go, shapes, tmp_path / "tiny", model=other)
    go(shapes, tmp_path / "tiny")
    assert len(calls) == 4  # only the third epoch is repeated
    assert equal(weights(trained), weights(tmp_path / "tiny"))
    assert log_of(trained)["epochs"] == log_of(tmp_path / "tiny")["epochs"]


@pytest.mark.slow
def test_mixed_precision_keeps_dtype_of_saved_weights(trained, shapes, tmp_path):
    folder, again = (go(shapes, tmp_path / name, precision="bf16") for name in "ab")
    first, found, repeated = weights(trained), weights(folder), weights(again)
    assert equal(found, repeated)
    assert all(found[key].dtype == first[key].dtype for key in first)
    assert not equal(found, first)
    one, other = log_of(trained), log_of(folder)
    assert other["settings"] == one["settings"] | {"precision": "bf16"}
    assert 0 < abs(other["epochs"][0]["loss"] / one["epochs"][0]["loss"] - 1) < 0.02
    check_accuracy(folder, shapes)


def test_best_epoch_is_kept(shapes, tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.9, 0.1, 0.7])  # three on validation, one on test
    seen = []

    def scripted(classifier, source, batch_size):
        seen.append({key: value.clone() for key, value in classifier.model.state_dict().items()})
        return next(accuracies)

    for module in (fitting, training):
        monkeypatch.setattr(module, "accuracy_of", scripted)
    assert equal(weights(go(shapes, tmp_path / "tiny")), seen[1])


def test_pretrained_weights_get_a_new_head(trained, shapes, tmp_path):
    small = tmp_path / "two-classes"
    config = AutoConfig.from_pretrained(trained, id2label={0: "a", 1: "b"}, label2id={"a": 0, "b": 1})
    model = AutoModelForImageClassification.from_config(config)
    model.save_pretrained(small)
    (small / "preprocessor_config.json").write_text((trained / "preprocessor_config.json").read_text())
    network, processor = training.new_network(str(small), list("xyz"), 48)
    assert network.config.id2label == {0: "x", 1: "y", 2: "z"}
    assert network.classifier[-1].out_features == 3
    assert dict(processor.size)["height"] == 48
    stem = "resnet.embedder.embedder.convolution.weight"
    assert torch.equal(network.state_dict()[stem], model.state_dict()[stem])


def test_config_file_starts_from_random_weights(trained, shapes, tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    out = go(shapes, tmp_path / "tiny", model=str(trained / "config.json"), epochs=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert sb.load_classifier(out, device="cpu").labels == sb.load_dataset(shapes).features["label"].names


@pytest.mark.parametrize(("changes", "words"), [
    ({"learning_rate": -1.0}, "--learning-rate.*0"),
    ({"size": 2}, "too small"),
    ({"size": 15}, "--size 15"),
    ({"model": "torchvision:resnet18"}, "cannot be saved"),
    ({"precision": "fp16"}, "precision 'fp16'; .*bf16"),
    ({"activation": "sigmoid"}, "has no column `labels`"),
    ({"activation": "sigmoit"}, "did you mean sigmoid"),
])  # fmt: skip
def test_invalid_settings_are_rejected_before_writing(changes, words, shapes, tmp_path):
    settings = {"dataset": str(shapes), "model": ResNetConfig(**CONFIG), "epochs": 1, "size": 32, "device": "cpu"}
    refused(words, sb.train, **settings | changes, out=tmp_path / "x", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_folders_with_other_content_are_rejected(trained, shapes, tmp_path):
    (tmp_path / "bare").mkdir()
    shutil.copy(trained / "config.json", tmp_path / "bare")
    refused(r"no weights .* to start from random weights, use .*config\.json", go, shapes, tmp_path / "x",
            model=str(tmp_path / "bare"))  # fmt: skip
    assert not (tmp_path / "x").exists()
    refused("not empty", go, shapes, tmp_path / "bare")


def test_restart_of_finished_training_writes_nothing(trained, shapes, capsys):
    """Include a training run that was killed after its last rename and left its state behind."""
    before = {path: path.stat().st_mtime_ns for path in trained.iterdir()}
    (state := trained.with_name("tiny.training.pt")).write_bytes(b"left over")
    for changes in ({"seed": 1}, {"epochs": 2}, {"model": ResNetConfig(**CONFIG | {"hidden_sizes": [8, 16]})}):
        refused("already contains a model that was trained with different settings", go, shapes, trained, **changes)
    assert go(shapes, trained) == trained
    assert f"{trained} already contains the model of this training run" in capsys.readouterr().err
    assert not state.exists()
    assert {path: path.stat().st_mtime_ns for path in trained.iterdir()} == before


def splits_of(shapes):
    rows = sb.load_dataset(shapes, split="train")
    drawn = set(in_run_order(rows)["image_id"][:64])
    chosen = rows.select([index for index, image_id in enumerate(rows["image_id"]) if image_id in drawn])
    return chosen, sb.load_dataset(shapes, split="validation")


def test_fit_matches_train_and_shows_progress(trained, shapes, capsys):
    rows, recipe = splits_of(shapes), fitting.Recipe(epochs=3, size=32, limit=64)
    names = sb.load_dataset(shapes).features["label"].names
    classifier, _ = training.new_classifier(recipe, ResNetConfig(**CONFIG), names, "tiny")
    log = fitting.fit(recipe, classifier, *(fitting.Rows(classifier, part) for part in rows), progress=True)
    line = capsys.readouterr().err.splitlines()[-1]
    assert log == log_of(trained)["epochs"]
    assert equal(weights(trained), classifier.model.state_dict())
    batches = 3 * sum(-(-len(part) // fitting.Recipe().batch_size) for part in rows)
    assert f" {batches}/{batches} " in line
    assert "epoch=3/3" in line


# Images with several classes, judged by mean average precision

NAMES = ["red", "green", "blue"]


def colours_of(name, images):
    """Return a row per image and class; `labels` of each row lists all colours of the image."""
    rows = []
    generator = np.random.default_rng(len(name))
    for number in range(images):
        has = [index for index in range(3) if generator.random() < 0.5] or [number % 3]
        pixels = generator.integers(0, 60, (32, 32, 3)).astype(np.uint8)
        pixels[8:24, 8:24, has] = 255
        for index in has:
            rows.append({"image": Image.fromarray(pixels), "label": index, "labels": [NAMES[one] for one in has],
                         "image_id": f"{name}{number}-{NAMES[index]}", "group": f"{name}{number}"})  # fmt: skip
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES),
                                  "labels": datasets.Sequence(datasets.Value("string")),
                                  "image_id": datasets.Value("string"), "group": datasets.Value("string")})  # fmt: skip
    return datasets.Dataset.from_list(rows, features=features)


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("colours") / "data"
    parts = {"train": 60, "validation": 20, "test": 30}
    datasets.DatasetDict({name: colours_of(name, count) for name, count in parts.items()}).save_to_disk(folder)
    return folder


@pytest.fixture(scope="module")
def of_colours(colours, tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "several"
    return sb.train(dataset=str(colours), model=ResNetConfig(**CONFIG), out=out, epochs=8, learning_rate=0.01,
                    size=32, batch_size=8, activation="sigmoid", device="cpu",
                    progress=False)  # fmt: skip


def test_multi_label_accuracy_is_mean_average_precision(of_colours, colours, tmp_path):
    assert json.loads((of_colours / "config.json").read_text())["problem_type"] == "multi_label_classification"
    classifier = sb.load_classifier(str(of_colours), device="cpu")
    assert (classifier.activation, list(classifier.labels)) == ("sigmoid", NAMES)
    first = {row["group"]: row for row in reversed(list(datasets.load_from_disk(str(colours))["test"]))}
    images = [first[group] for group in sorted(first)]
    with torch.no_grad():
        logits = classifier(classifier.prepare(images).images).numpy()
    truth = np.array([[name in row["labels"] for name in NAMES] for row in images])
    expected = average_precision_score(truth, logits, average="macro")
    log = log_of(of_colours)
    assert log["test_accuracy"] == pytest.approx(expected, abs=1e-6)
    assert log["test_samples"] == len(images) == 30
    assert log["test_accuracy"] > 0.9  # three colours are easy to distinguish
    run = sb.run(dataset=str(colours), model=str(of_colours), explainers=["random"], out=tmp_path / "run", device="cpu",
                 metrics=["saliency_insertion:steps=4"], progress=False)  # fmt: skip
    assert run.summary["model"]["accuracy_kind"] == "mean average precision"
    assert run.summary["model"]["accuracy"]["value"] == pytest.approx(expected, abs=1e-6)


def test_loss_matches_literal_formulas():
    logits, labels = torch.tensor([[0.3, -1.2], [2.0, 0.1]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    each = [-np.log(1 / (1 + np.exp(-z))) if y else -np.log(1 - 1 / (1 + np.exp(-z)))
            for z, y in zip(logits.flatten().tolist(), labels.flatten().tolist(), strict=True)]  # fmt: skip
    assert float(loss_of(logits, labels)) == pytest.approx(np.mean(each))
    assert float(loss_of(logits, torch.tensor([0, 1]))) == pytest.approx(
        np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits.numpy(), (0, 1), strict=True)])
    )


# Small versions of the checkpoints that the papers use. They are fine-tuned, saved, and explained in a run.

VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 32,
       "patch_size": 8}  # fmt: skip
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 16], "depths": [1, 1, 1, 1]}
TINY = {
    "facebook/convnext-base-224": {"model_type": "convnext", "depths": [1] * 4, "hidden_sizes": [8, 12, 16, 16]},
    "facebook/deit-small-patch16-224": {"model_type": "deit", "architectures": ["DeiTForImageClassification"], **VIT},
    "google/vit-base-patch16-224": {"model_type": "vit", **VIT},
    "microsoft/resnet-18": RESNET | {"layer_type": "basic"},
    "microsoft/resnet-50": RESNET | {"layer_type": "bottleneck"},
    "timm/inception_v3.tv_in1k": {},  # this network has a fixed size
    "timm/vgg16.tv_in1k": {"mlp_ratio": 1 / 64},
    "timm/vgg19.tv_in1k": {"mlp_ratio": 1 / 64},
    "timm/vit_small_patch16_224.augreg_in21k_ft_in1k": {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2,
                                                        "num_heads": 2},
}  # fmt: skip
CLASSES = 30  # classes of the checkpoint, more than in the dataset


def pretrained(folder, name, size):
    owner, _, architecture = name.partition("/")
    options, torch_name = TINY[name], architecture.partition(".")[0]
    if owner == "timm":
        options = {"model_type": "timm_wrapper", "architecture": torch_name, "model_args": options}
    torch.manual_seed(0)
    config = AutoConfig.for_model(**options, num_labels=CLASSES)
    AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    if owner == "timm":  # in timm's layout, without a processor file
        about = {"input_size": [3, size, size], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0,
                 "interpolation": "bicubic", "num_classes": CLASSES}  # fmt: skip
        own = {"architecture": torch_name, "num_classes": CLASSES, "model_args": TINY[name], "pretrained_cfg": about}
        (folder / "config.json").write_text(json.dumps(own))
    else:
        frame = {"size": {"shortest_edge": size}, "crop_pct": 1.0, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        ConvNextImageProcessor(**frame).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.sample(0, 2)
@pytest.mark.parametrize("name", sorted(set(KNOWN) | set(TINY)))
def test_known_checkpoints_are_trained_and_explained(name, shapes, tmp_path):
    size = 96 if "inception" in name else 32
    start = pretrained(tmp_path / "start", name, size)
    out = sb.train(dataset=str(shapes), model=str(start), out=tmp_path / "trained", epochs=1, size=size, limit=8,
                   batch_size=8, device="cpu", progress=False)  # fmt: skip
    before, after = (load_file(folder / "model.safetensors") for folder in (start, out))
    assert before.keys() == after.keys()
    kept = [key for key in before if before[key].shape == after[key].shape]
    assert 1 <= len(before) - len(kept) <= 4  # the head, and the head of Inception's auxiliary output
    assert any(not torch.equal(before[key], after[key]) for key in kept)
    classifier = sb.load_classifier(str(out), device="cpu")
    assert list(classifier.labels) == sb.load_dataset(str(shapes)).features["label"].names
    batch = classifier.prepare(sb.load_dataset(str(shapes)).select(range(2)))
    assert classifier(batch.images).shape == (2, len(classifier.labels))
    explainer = "rollout" if "vit" in name or "deit" in name else "gradcam"
    run = sb.run(dataset=str(shapes), model=str(out), explainers=[explainer, "random"],
                 metrics=["saliency_miou", "saliency_insertion:steps=4"], limit=4, batch_size=4, out=tmp_path / "run",
                 device="cpu", progress=False)  # fmt: skip
    assert [cell.n for cell in run.cells] == [4] * 4
