"""Nothing a test does touches the caches of the person who runs it."""

import sys
from pathlib import Path

import datasets
import hypothesis
import pytest
import torch
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

from saliency_bench import build, rooms

sys.path.insert(0, str(Path(__file__).parent))  # for what several test files share
from local_hub.fixtures import hub, shared_hub  # noqa: F401
from local_hub.pets import closed, model, pets, source  # noqa: F401

# The same examples in every run: a failure is a change, never a throw of dice.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session")
def _caches(tmp_path_factory):
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def own_caches(_caches, monkeypatch):
    """`datasets` reads its environment when imported, so its settings are changed where it keeps them."""
    monkeypatch.setenv("SALIENCY_BENCH_CACHE", str(_caches / "saliency-bench"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", _caches / "datasets")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """A small shapes-xai: 240 drawings of 32 pixels, as a folder."""
    return build("shapes-xai", tmp_path_factory.mktemp("data") / "shapes", size=32, count=240, progress=False)


@pytest.fixture(scope="session")
def resnet(tmp_path_factory):
    """A checkpoint folder: a tiny ResNet with random weights and the class names of shapes-xai."""
    names = list(rooms.load("hub_builders", "shapes-xai").OBJECTS)
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
    )  # fmt: skip
    path = tmp_path_factory.mktemp("models") / "tiny"
    ResNetForImageClassification(config).save_pretrained(path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(path)
    return path
