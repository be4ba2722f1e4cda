"""Test callbacks that score saliency maps after each epoch of a user's training without changing the training."""

from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from torch import nn
from transformers import AutoModelForImageClassification, Trainer, TrainingArguments

import saliency_bench as sb
from saliency_bench.callbacks import lightning_callback, scores_of, trainer_callback
from saliency_bench.errors import UserError

METRICS, EXPLAINERS = ["saliency_miou", "saliency_insertion"], ["gradcam", "random"]
KEYS = {f"saliency/{metric}/{name}" for metric in METRICS for name in EXPLAINERS}
FEW = {"limit": 4, "device": "cpu", "load": {"mean": 0.5, "std": 0.5}}


def trained(resnet, shapes, folder, with_callback):
    """Return the log and weights of two epochs of a transformers.Trainer."""
    torch.manual_seed(0)
    model = AutoModelForImageClassification.from_pretrained(resnet)
    rows = sb.load_dataset(str(shapes), split="train").select(range(16))
    prepare = sb.load_classifier(str(resnet), device="cpu").prepare

    def collate(samples):
        batch = prepare(samples)
        return {"pixel_values": (batch.images - 0.5) / 0.5, "labels": batch.labels}

    arguments = TrainingArguments(output_dir=folder, num_train_epochs=2, per_device_train_batch_size=8, use_cpu=True,
                                  report_to=[], save_strategy="no", logging_strategy="epoch", seed=0,
                                  remove_unused_columns=False, disable_tqdm=True)  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate)
    if with_callback:
        trainer.add_callback(trainer_callback(trainer, str(shapes), **FEW))
    trainer.train()
    return trainer, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.slow
def test_trainer_logs_run_scores_without_changing_training(resnet, shapes, tmp_path):
    trainer, weights = trained(resnet, shapes, tmp_path / "with", True)
    _, expected = trained(resnet, shapes, tmp_path / "without", False)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    logged = [entry for entry in trainer.state.log_history if KEYS & set(entry)]
    assert [entry["epoch"] for entry in logged] == [1.0, 2.0]
    assert all(set(entry) >= KEYS for entry in logged)
    assert [entry["epoch"] for entry in trainer.state.log_history if "loss" in entry] == [1.0, 2.0]
    run = sb.run(dataset=str(shapes), model=sb.load_classifier(trainer.model, mean=0.5, std=0.5), limit=4, device="cpu",
                 explainers=EXPLAINERS, metrics=METRICS, progress=False, out=tmp_path / "run")  # fmt: skip
    for cell in run.cells:
        assert logged[-1][f"saliency/{cell.metric}/{cell.explainer}"] == pytest.approx(cell.value, abs=1e-9)


@pytest.mark.parametrize(("dataset", "options", "words"), [
    ("shapes-xia", {}, "unknown dataset 'shapes-xia'; did you mean shapes-xai"),
    ("shapes-xai", {"explainer": ["gradcam"]}, "unknown argument 'explainer'; did you mean explainers"),
    ("shapes-xai", {"explainers": ["gradcan"]}, "unknown explainer 'gradcan'"),
    ("shapes-xai", {"out": "runs"}, "out is set by the callback"),
    ("shapes-xai", {"load": {"men": 0.5}}, "unknown option 'men' of load; did you mean mean"),
    ("shapes-xai", {"load": 0.5}, "load must be a dict"),
    ("shapes-xai", {"size": 32}, r'size is an argument for loading the model.*use load={"size": \.\.\.}'),
])  # fmt: skip
def test_callbacks_reject_invalid_run_arguments(dataset, options, words):
    for made in (lambda: trainer_callback(None, dataset, **options), lambda: lightning_callback(dataset, **options)):
        refused(words, made)


@pytest.mark.parametrize(("options", "words"), [
    ({}, r'are unknown; pass load={"mean": \.\.\., "std": \.\.\.} to the callback'),
    ({"mean": 0.5}, r'use load={"mean": \.\.\.}'),
])  # fmt: skip
def test_trainer_callback_rejects_unloadable_model(options, words):
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Dropout())
    refused(words, trainer_callback, SimpleNamespace(model=model), "shapes-xai", **options)
    assert model.training


def fitted(lightning, network, classes, pictures, labels, tmp_path, dataset="shapes-xai", **options):
    """Train one epoch with the callback, with 4 pictures per step. Return the trainer and the number of steps."""
    steps = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                         nn.Linear(8, classes))  # fmt: skip

        def training_step(self, batch, index):
            steps.append(index)
            images, labels = batch
            return nn.functional.cross_entropy(self.network((images - 0.5) / 0.5), labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = lightning_callback(dataset, network=network, **options)
    trainer = lightning.Trainer(max_epochs=1, callbacks=[callback], logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
                                default_root_dir=tmp_path)  # fmt: skip
    loader = torch.utils.data.DataLoader(list(zip(pictures, labels, strict=True)), batch_size=4)
    try:
        trainer.fit(Module(), loader)
    except UserError:
        assert not steps
        raise
    return trainer


@pytest.mark.parametrize(("network", "options", "words"), [
    ("netwrk", {"mean": 0.5, "std": 0.5}, "unknown network 'netwrk' of Module; did you mean network"),
    ("network", {}, r"are unknown; pass mean=\.\.\., std=\.\.\. to the callback"),
])  # fmt: skip
def test_lightning_rejects_unloadable_network_before_first_step(network, options, words, tmp_path):
    lightning = pytest.importorskip("pytorch_lightning")
    refused(words, fitted, lightning, network, 2, torch.zeros(4, 3, 4, 4), [0] * 4, tmp_path, **options)


def test_missing_lightning_error_names_install_command(monkeypatch):
    monkeypatch.setattr("saliency_bench.callbacks.find_spec", lambda name: None)
    refused("pip install lightning", lightning_callback, "shapes-xai")


def test_scoring_keeps_modes_gradients_and_random_state(resnet, shapes):
    model = AutoModelForImageClassification.from_pretrained(resnet).train()
    model.resnet.encoder.eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    assert set(scores_of(model, str(shapes), **FEW)) == KEYS
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.requires_grad and bool((parameter.grad == 1).all()) for parameter in model.parameters())


@pytest.mark.parametrize("name", ["pytorch_lightning", "lightning"])
def test_lightning_logs_saliency_scores(name, shapes, tmp_path):
    lightning = pytest.importorskip(name)
    rows = sb.load_dataset(str(shapes), split="train").select(range(8))
    batch = sb.load_classifier(nn.Identity(), mean=0, std=1, size=32).prepare(rows)
    settings = {"dataset": str(shapes), "mean": 0.5, "std": 0.5, "limit": 4, "device": "cpu"}
    classes = len(rows.features["label"].names)
    trainer = fitted(lightning, "network", classes, batch.images, batch.labels, tmp_path, **settings)
    assert set(trainer.callback_metrics) >= KEYS
