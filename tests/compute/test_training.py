import json
import shutil

import pytest
import torch
from PIL import Image
from run_order import in_run_order
from transformers import AutoConfig, AutoModelForImageClassification, ResNetConfig

import saliency_bench as sb
from saliency_bench.compute import fitting, training
from saliency_bench.errors import UserError

CONFIG = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}


def go(shapes, out, **changes):
    settings = {"model": ResNetConfig(**CONFIG), "epochs": 3, "size": 32, "limit": 64}
    return sb.train(dataset=str(shapes), out=out, device="cpu", progress=False, **settings | changes)


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    return go(shapes, tmp_path_factory.mktemp("models") / "tiny")


def weights(folder):
    return AutoModelForImageClassification.from_pretrained(folder).state_dict()


def test_the_checkpoint_is_a_classifier_with_the_class_names_and_a_squash_processor(trained, shapes):
    classifier = sb.load_classifier(trained, device="cpu")
    dataset = sb.load_dataset(shapes)
    assert classifier.labels == dataset.features["label"].names
    assert str(classifier.geometry) == "squash to 32 x 32 (bilinear)"
    assert (trained / "model.safetensors").exists()
    assert not list(trained.parent.glob("*.training.pt"))


def test_the_log_says_what_the_weights_do(trained, shapes):
    log = json.loads((trained / "training_log.json").read_text())
    assert [entry["epoch"] for entry in log["epochs"]] == [0, 1, 2]
    assert log["epochs"][-1]["loss"] < log["epochs"][0]["loss"]
    classifier, dataset = sb.load_classifier(trained, device="cpu"), sb.load_dataset(shapes)
    batch = classifier.prepare(dataset)
    with torch.no_grad():
        accuracy = (classifier(batch.images).argmax(1) == batch.labels).float().mean().item()
    assert accuracy == pytest.approx(log["test_accuracy"])


@pytest.mark.slow
def test_equal_settings_give_equal_weights_and_another_seed_others(trained, shapes, tmp_path):
    first, again, other = (
        weights(trained),
        weights(go(shapes, tmp_path / "a")),
        weights(go(shapes, tmp_path / "b", seed=1)),
    )
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.slow
def test_a_training_that_stopped_continues_and_ends_with_the_same_weights(trained, shapes, tmp_path, monkeypatch):
    epoch, calls = fitting.one_epoch, []

    def stopping(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return epoch(*args)

    monkeypatch.setattr(fitting, "one_epoch", stopping)
    with pytest.raises(KeyboardInterrupt):
        go(shapes, tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()
    with pytest.raises(UserError, match="--out"):
        go(shapes, tmp_path / "tiny", epochs=4)
    go(shapes, tmp_path / "tiny")
    assert len(calls) == 4  # the third epoch alone is done again
    expected, found = weights(trained), weights(tmp_path / "tiny")
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.slow
def test_mixed_precision_changes_the_passes_and_not_what_is_saved(trained, shapes, tmp_path):
    folder, again = (go(shapes, tmp_path / name, precision="bf16") for name in "ab")
    first, found, repeated = weights(trained), weights(folder), weights(again)
    assert all(torch.equal(found[key], repeated[key]) for key in found)
    assert all(found[key].dtype == first[key].dtype for key in first)
    assert not all(torch.equal(found[key], first[key]) for key in first)
    one, other = (json.loads((path / "training_log.json").read_text()) for path in (trained, folder))
    assert other["settings"] == one["settings"] | {"precision": "bf16"}
    assert 0 < abs(other["epochs"][0]["loss"] / one["epochs"][0]["loss"] - 1) < 0.02
    classifier, dataset = sb.load_classifier(folder, device="cpu"), sb.load_dataset(shapes)
    batch = classifier.prepare(dataset)
    with torch.no_grad():  # the test is in float32, in which the checkpoint is used
        accuracy = (classifier(batch.images).argmax(1) == batch.labels).float().mean().item()
    assert accuracy == pytest.approx(other["test_accuracy"])


def test_the_best_epoch_is_kept(shapes, tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.9, 0.1, 0.7])  # three on validation, one on test
    seen = []

    def scripted(classifier, source, batch_size):
        seen.append({key: value.clone() for key, value in classifier.model.state_dict().items()})
        return next(accuracies)

    for module in (fitting, training):
        monkeypatch.setattr(module, "accuracy_of", scripted)
    kept = weights(go(shapes, tmp_path / "tiny"))
    assert all(torch.equal(kept[key], seen[1][key]) for key in kept)


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


def test_a_config_file_starts_from_random_weights(trained, shapes, tmp_path):
    out = go(shapes, tmp_path / "tiny", model=str(trained / "config.json"), epochs=1)
    assert sb.load_classifier(out, device="cpu").labels == sb.load_dataset(shapes).features["label"].names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "./nowhere"}, r"\./nowhere"),
        ({"dataset": "nope"}, r"\bnope\b"),
        ({"out": "exists"}, "already holds a model that was trained with other settings"),
        ({"model": "without_weights"}, r"no weights .* to start from random weights give .*config\.json"),
    ],
)
def test_bad_input(changes, words, trained, shapes, tmp_path):
    settings = {"dataset": str(shapes), "model": ResNetConfig(**CONFIG), "out": tmp_path / "x", "epochs": 1, "size": 32}
    (tmp_path / "bare").mkdir()
    shutil.copy(trained / "config.json", tmp_path / "bare")
    folders = {"exists": trained, "without_weights": str(tmp_path / "bare")}
    changes = {key: folders.get(value, value) for key, value in changes.items()}
    with pytest.raises(UserError, match=words):
        sb.train(**settings | changes, device="cpu", progress=False)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "--epochs.*1"),
        ({"batch_size": 0}, "--batch-size.*1"),
        ({"learning_rate": -1.0}, "--learning-rate.*0"),
        ({"size": 2}, "too small"),
        ({"model": "torchvision:resnet18"}, "cannot be saved"),
        ({"device": "banana"}, "banana"),
        ({"precision": "fp16"}, "precision 'fp16'; .*bf16"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(changes, words, shapes, tmp_path):
    settings = {"model": ResNetConfig(**CONFIG), "epochs": 1, "size": 32, "device": "cpu"}
    with pytest.raises(UserError, match=words):
        sb.train(dataset=str(shapes), out=tmp_path / "x", progress=False, **settings | changes)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_refused_before_training(shapes, tmp_path):
    (tmp_path / "mine").write_text("notes")
    with pytest.raises(UserError, match="not empty"):
        go(shapes, tmp_path)


def test_a_state_of_another_network_is_not_continued(shapes, tmp_path, monkeypatch):
    epoch, last = fitting.one_epoch, fitting.seed_of(0, "epoch", 1)

    def stopping(*args):
        if args[4] == last:
            raise KeyboardInterrupt
        return epoch(*args)

    monkeypatch.setattr(fitting, "one_epoch", stopping)
    with pytest.raises(KeyboardInterrupt):
        go(shapes, tmp_path / "tiny")
    monkeypatch.undo()
    with pytest.raises(UserError, match="training with other settings"):
        go(shapes, tmp_path / "tiny", model=ResNetConfig(**CONFIG | {"hidden_act": "gelu"}))


def test_training_leaves_the_callers_random_state_alone(shapes, tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    go(shapes, tmp_path / "tiny", epochs=1, limit=32)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_training_killed_after_its_last_rename_is_finished(trained, shapes, tmp_path):
    out, state = tmp_path / "tiny", tmp_path / "tiny.training.pt"
    go(shapes, out, epochs=1, limit=32)
    state.write_bytes(b"left over")
    before = (out / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(UserError, match="already holds"):
        go(shapes, out, epochs=2, limit=32)
    assert go(shapes, out, epochs=1, limit=32) == out
    assert not state.exists()
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def test_a_finished_training_started_again_says_so_and_writes_nothing(trained, shapes, capsys):
    before = {path: path.stat().st_mtime_ns for path in trained.iterdir()}
    assert go(shapes, trained) == trained
    assert f"{trained} already holds the model of this training" in capsys.readouterr().err
    with pytest.raises(UserError, match="trained with other settings"):
        go(shapes, trained, seed=1)
    with pytest.raises(UserError, match="trained with other settings"):
        go(shapes, trained, model=ResNetConfig(**CONFIG | {"hidden_sizes": [8, 16]}))
    assert {path: path.stat().st_mtime_ns for path in trained.iterdir()} == before


def splits_of(shapes):
    rows = sb.load_dataset(shapes, split="train")
    drawn = set(in_run_order(rows)["image_id"][:64])
    chosen = rows.select([index for index, image_id in enumerate(rows["image_id"]) if image_id in drawn])
    return chosen, sb.load_dataset(shapes, split="validation")


def fitted(shapes, train_rows, validation_rows, progress=False, changed=lambda rows: rows):
    recipe = fitting.Recipe(epochs=3, size=32, limit=64)
    names = sb.load_dataset(shapes).features["label"].names
    classifier, _ = training.new_classifier(recipe, ResNetConfig(**CONFIG), names, "tiny")
    sources = [changed(fitting.Rows(classifier, rows)) for rows in (train_rows, validation_rows)]
    log = fitting.fit(recipe, classifier, *sources, progress=progress)
    return log, classifier.model.state_dict()


def test_the_same_recipe_and_rows_give_the_weights_of_train(trained, shapes):
    log, found = fitted(shapes, *splits_of(shapes))
    expected = weights(trained)
    assert log == json.loads((trained / "training_log.json").read_text())["epochs"]
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_the_bar_of_a_training_counts_batches_and_names_the_epoch(shapes, capsys):
    rows = splits_of(shapes)
    fitted(shapes, *rows, progress=True)
    batches = 3 * sum(-(-len(part) // fitting.Recipe().batch_size) for part in rows)
    line = capsys.readouterr().err.splitlines()[-1]
    assert f" {batches}/{batches} " in line
    assert "epoch=3/3" in line


class Black(fitting.Counted):
    def __init__(self, source):
        super().__init__(source, lambda: None)

    def batch(self, positions):
        images, labels = super().batch(positions)
        return torch.zeros_like(images), labels


def test_a_recipe_can_train_on_changed_images(shapes):
    """Images changed in the batch are the same as rows whose pictures are changed."""
    rows = splits_of(shapes)
    black = [part.map(lambda row: {"image": Image.new("RGB", row["image"].size)}) for part in rows]
    expected_log, expected = fitted(shapes, *black)
    log, found = fitted(shapes, *rows, changed=Black)
    assert log == expected_log
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize(
    ("values", "named"),
    [({"epochs": 0}, "--epochs 0"), ({"limit": 0}, "--limit 0"), ({"learning_rate": float("nan")}, "nan"),
     ({"size": 15}, "--size 15")],
)  # fmt: skip
def test_a_recipe_names_the_value_it_cannot_use(values, named):
    with pytest.raises(UserError, match=named):
        fitting.Recipe(**values)
