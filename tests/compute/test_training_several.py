"""Training on images with several classes: a sigmoid for each, judged by mean average precision."""

import json

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score
from transformers import ResNetConfig

import saliency_bench as sb
from saliency_bench.compute.fitting import loss_of
from saliency_bench.errors import UserError
from saliency_bench.read.accuracy import average_precision

NAMES = ["red", "green", "blue"]
CONFIG = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}


def split(name, images):
    """A row per image and class: what an image has of the three colours stands in `labels` of each of its rows."""
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
    datasets.DatasetDict({name: split(name, count) for name, count in parts.items()}).save_to_disk(folder)
    return folder


@pytest.fixture(scope="module")
def trained(colours, tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "several"
    return sb.train(dataset=str(colours), model=ResNetConfig(**CONFIG), out=out, epochs=8, learning_rate=0.01,
                    size=32, batch_size=8, activation="sigmoid", device="cpu",
                    progress=False)  # fmt: skip


def test_the_checkpoint_is_known_as_one_of_several_classes(trained):
    assert json.loads((trained / "config.json").read_text())["problem_type"] == "multi_label_classification"
    classifier = sb.load_classifier(str(trained), device="cpu")
    assert (classifier.activation, list(classifier.labels)) == ("sigmoid", NAMES)


def test_its_accuracy_is_the_mean_average_precision_over_images_that_count_once(trained, colours, tmp_path):
    rows = datasets.load_from_disk(str(colours))["test"]
    first = {row["group"]: row for row in reversed(list(rows))}
    images = [first[group] for group in sorted(first)]
    classifier = sb.load_classifier(str(trained), device="cpu")
    with torch.no_grad():
        logits = classifier(classifier.prepare(images).images).numpy()
    truth = np.array([[name in row["labels"] for name in NAMES] for row in images])
    expected = average_precision_score(truth, logits, average="macro")
    log = json.loads((trained / "training_log.json").read_text())
    assert log["test_accuracy"] == pytest.approx(expected, abs=1e-6)
    assert log["test_samples"] == len(images) == 30
    assert log["test_accuracy"] > 0.9  # three colours are easily told apart
    metrics = ["saliency_insertion:steps=4"]
    run = sb.run(dataset=str(colours), model=str(trained), explainers=["random"], metrics=metrics, out=tmp_path / "run",
                 device="cpu", progress=False)  # fmt: skip
    assert run.summary["model"]["accuracy_kind"] == "mean average precision"
    assert run.summary["model"]["accuracy"]["value"] == pytest.approx(expected, abs=1e-6)


def test_the_loss_is_of_every_class_by_itself():
    logits, labels = torch.tensor([[0.3, -1.2], [2.0, 0.1]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    each = [-np.log(1 / (1 + np.exp(-z))) if y else -np.log(1 - 1 / (1 + np.exp(-z)))
            for z, y in zip(logits.flatten().tolist(), labels.flatten().tolist(), strict=True)]  # fmt: skip
    assert float(loss_of(logits, labels)) == pytest.approx(np.mean(each))
    assert float(loss_of(logits, torch.tensor([0, 1]))) == pytest.approx(
        np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits.numpy(), (0, 1), strict=True)])
    )


def test_average_precision_alone_is_that_of_scikit_learn():
    generator = np.random.default_rng(0)
    scores, truth = generator.integers(0, 5, (40, 4)) / 4, generator.random((40, 4)) < 0.3
    truth[:, 2] = False  # a class that no image has does not count
    expected = np.mean([average_precision_score(truth[:, index], scores[:, index]) for index in (0, 1, 3)])
    assert average_precision(scores, truth) == pytest.approx(expected)
    assert np.isnan(average_precision(scores, np.zeros_like(truth)))


def test_a_dataset_that_does_not_know_all_classes_is_refused(shapes, tmp_path):
    options = {"dataset": str(shapes), "model": ResNetConfig(**CONFIG), "out": tmp_path / "out", "size": 32}
    with pytest.raises(UserError, match="has no column labels"):
        sb.train(**options, activation="sigmoid", progress=False)
    with pytest.raises(UserError, match="did you mean sigmoid"):
        sb.train(**options, activation="sigmoit", progress=False)
    assert not (tmp_path / "out").exists()
