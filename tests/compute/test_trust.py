"""Test untrusted checkpoints: downloaded files and model folders cannot execute code or allocate much memory."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import types
from functools import partial

import numpy as np
import pytest
import torch
from checkpoints import small_checkpoint
from PIL import Image
from refusals import refused
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForImageClassification,
    ConvNextImageProcessor,
    ResNetConfig,
    TimmWrapperConfig,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

import saliency_bench as sb
from saliency_bench import load_classifier
from saliency_bench.compute import fitting
from saliency_bench.compute.classifiers import untrusted
from saliency_bench.utils.pictures import MAX_PIXELS

SCRIPT = """
open({mark!r}, "w").write("executed")
from transformers import PretrainedConfig, PreTrainedModel, ViTImageProcessor
class OwnConfig(PretrainedConfig):
    model_type = "own-model"
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
class OwnProcessor(ViTImageProcessor):
    pass
"""
AUTO = {
    "config": {"AutoConfig": "own.OwnConfig"},
    "model": {"AutoModelForImageClassification": "own.OwnModel"},
    "processor": {"AutoImageProcessor": "own.OwnProcessor"},
}


def checkpoint(path, processor=None):
    return small_checkpoint(path, hidden_sizes=[8], depths=[1], num_labels=3, processor=processor)


def change(path, name, **values):
    file = path / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def folder(tmp_path):
    return checkpoint(tmp_path / "model")


@pytest.fixture
def peak():
    """Return a function peak() -> growth of this process since the start of the test, in kB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def refusal(folder, words):
    error = refused(words, load_classifier, folder, device="cpu")
    assert len(error) < 400
    return error


@pytest.fixture
def hostile(folder, tmp_path):
    """Return hostile(part) -> (checkpoint that names custom code for this part, file that the code writes)."""

    def make(what):
        mark = tmp_path / "executed"
        (folder / "own.py").write_text(SCRIPT.format(mark=str(mark)))
        if what == "processor":
            change(folder, "preprocessor_config.json", auto_map=AUTO[what], image_processor_type="OwnProcessor")
        else:  # of a type unknown to transformers, so that only code in the folder could load it
            change(folder, "config.json", auto_map=AUTO["config"] | AUTO["model"], model_type="own-model")
        return folder, mark

    return make


LOAD = "import sys, saliency_bench as sb; sb.load_classifier(sys.argv[1])"


@pytest.mark.slow
@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("what", ["config", "processor"])
def test_custom_code_of_checkpoint_is_never_executed(hostile, what):
    folder, mark = hostile(what)
    refused(".", load_classifier, folder)
    done = subprocess.run([sys.executable, "-c", LOAD, str(folder)], input="y\ny\n", capture_output=True, text=True)
    assert done.returncode == 1
    assert "UserError" in done.stderr.splitlines()[-1]
    assert not done.stdout
    assert not mark.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["config", "processor"])
def test_train_never_executes_custom_code(hostile, what, shapes, tmp_path):
    folder, mark = hostile(what)
    command = [sys.executable, "-m", "saliency_bench", "train", "--dataset", str(shapes), "--model", str(folder),
               "--out", str(tmp_path / "out"), "--epochs", "1", "--limit", "4", "--size", "32"]  # fmt: skip
    done = subprocess.run(command, input="y\ny\n", capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not mark.exists()


def test_training_from_config_never_executes_code(hostile, shapes, tmp_path):
    folder, mark = hostile("config")
    settings = {"dataset": str(shapes), "out": tmp_path / "out", "epochs": 1, "limit": 4}
    refused("downloaded code is never executed", sb.train, **settings, model=str(folder / "config.json"))
    assert not mark.exists()


@pytest.mark.slow
def test_code_of_repository_is_not_downloaded(hub, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    (folder / "own.py").write_text(SCRIPT.format(mark=str(mark := tmp_path / "executed")))
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    change(folder, "config.json", auto_map=AUTO["config"] | AUTO["model"])
    change(folder, "preprocessor_config.json", auto_map=AUTO["processor"])
    api = hub.api()
    api.create_repo("founder/own")
    api.upload_folder(repo_id="founder/own", folder_path=folder)
    code = "import saliency_bench as sb; c = sb.load_classifier('founder/own'); print(c.repo, c.revision, c.digest)"
    done = hub.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["founder/own", api.repo_info("founder/own").sha, load_classifier(folder).digest]
    assert not mark.exists()
    names = {file.name for file in (hub.root / "home").rglob("*") if file.is_symlink() or file.is_file()}
    assert {"config.json", "model.safetensors"} <= names
    assert not {"own.py", "pytorch_model.bin"} & names


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_not_opened(folder, tmp_path, name):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    (folder / "model.safetensors").unlink()
    torch.save({"classifier.1.weight": Bomb()}, folder / name)
    refused(r"no \*\.safetensors.*pickled", load_classifier, folder)
    refused(r"contains weights without a network|contains no TorchScript network", load_classifier, folder / name)
    refused("contains more than tensors and is not opened, because it could run code", load_classifier,
            f"torchvision:resnet18:weights={folder / name}")  # fmt: skip
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_checkpoint_file_error_suggests_its_folder(folder, name):
    refused(rf"{name}.*use the checkpoint.s folder", load_classifier, folder / name)


# Settings in the files of a checkpoint

LABELS = {str(index): "x" for index in range(1000)}
HUGE = [  # settings that request more than the weights contain
    ({"num_labels": 200_000}, "num_labels.*200000"),
    ({"text_config": {"num_labels": 200_000}}, "num_labels.*200000"),
    ({"depths": [30_000]}, "modules"),
    ({"depths": [2_000_000]}, "depths.*2000000"),
    ({"depths": [1_000_000, 1_000_000]}, "depths.*sum"),
    ({"hidden_sizes": [-(10**9)]}, "hidden_sizes"),
    ({"num_channels": 10**8}, "num_channels"),
    ({"any": {"thing": [[1e300]]}}, "thing"),
    ({"hidden_sizes": [200_000]}, "parameters"),
]
FETCHED = [  # settings with which transformers would download code or other models
    {"_attn_implementation": "evil/kernel"},
    {"attn_implementation": {"": "eager", "vision_config": "evil/kernel"}},
    {"vision_config": {"_attn_implementation": "evil/kernel"}},
    {"_attn_implementation_internal": "evil/kernel"},
    {"_experts_implementation": "evil/kernel"},
    {"attn_implementation": "flash_attention_3"},
    {"attn_implementation": "paged|sdpa"},
    {"use_kernels": True},
    {"kernel_config": {"RMSNorm": "evil/kernel:fn"}},
    {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
    {"vision_config": {"backbone": "evil/model"}},
    {"use_pretrained_backbone": True},
    {"configuration_files": ["config.4.0.0.json"]},
]
SQUASH = [  # settings of the image processor
    ({"size": {"height": 100_000, "width": 100_000}}, "100000"),
    ({"size": {"height": 0, "width": 32}}, "0"),
    ({"size": {}}, "."),
    ({"do_center_crop": True, "crop_size": {"height": 10**6, "width": 10**6}}, "."),
    ({"image_mean": "grey"}, "grey"),
    ({"image_mean": [0.5, 0.5]}, "."),
    ({"image_mean": [0.5, 0.5, float("nan")]}, "nan"),
    ({"image_std": [0.5, 0, 0.5]}, "0"),
    ({"image_std": {"red": 1}}, "."),
    ({"rescale_factor": 1e30}, "."),
    ({"rescale_factor": float("nan")}, "."),
    ({"resample": 99}, "."),
    ({"image_processor_type": 7}, "."),
    ({"image_processor_type": "NoSuchProcessor"}, "."),
    ({"do_pad": True, "pad_size": {"height": 6000, "width": 6000}}, "pads|pixels"),
    ({"size": {"height": 4096, "width": 4096}}, "pads|pixels"),
    ({"do_center_crop": True, "crop_size": {"height": 4096, "width": 4096}}, "pads|pixels"),
    # a long value is truncated
    *((settings, "image processor|size must have") for settings in (
        {"image_mean": [0.5] * 1000}, {"image_mean": ["x" * 9000] * 3}, {"size": {"height": "9" * 9000, "width": 1}},
        {"size": {f"edge{index}": 1 for index in range(999)}}, {"size": {"height": 10**4000, "width": 1}},
        {"rescale_factor": "x" * 9000},
    )),
]  # fmt: skip
CROP = [
    {"size": {"shortest_edge": 1e5}},
    {"crop_pct": 1e-9},
    {"crop_pct": -0.5},
    {"crop_pct": "all"},
]
SETTINGS = [
    *(pytest.param("config", *row, marks=pytest.mark.slow) for row in HUGE),
    *(("config", settings, "attn|experts|kernel|quantization|backbone|configuration_files") for settings in FETCHED),
    *(("config", {"id2label": labels}, ".") for labels in ({}, {"0": "a"}, {"a": "b"}, LABELS, None, 7)),
    *(("squash", *row) for row in SQUASH),
    *(("crop", settings, ".") for settings in CROP),
]


@pytest.mark.parametrize(("kind", "settings", "words"), SETTINGS)
def test_hostile_settings_are_rejected_without_allocation(kind, settings, words, tmp_path, peak, monkeypatch):
    kernels = types.ModuleType("kernels")
    kernels.get_kernel = lambda *_, **__: pytest.fail("a kernel is fetched")
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    folder = checkpoint(
        tmp_path / "model", ConvNextImageProcessor(size={"shortest_edge": 32}) if kind == "crop" else None
    )
    change(folder, "config.json" if kind == "config" else "preprocessor_config.json", **settings)
    assert "install" not in refusal(folder, words)
    assert peak() < 300_000


def special(name, kind, folder):
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "broken link": "nothing"}[kind])


def enlarged(name, folder):
    with (folder / name).open("a") as file:
        file.truncate(untrusted.LARGEST_JSON + 1)


def indexed(place, folder):
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(folder / "model.safetensors"), place)}
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    save_file({"none": torch.zeros(1)}, folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def spoil(folder, name, value):
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[0] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


JSON = ("config.json", "preprocessor_config.json")
NORM = "resnet.embedder.embedder.normalization"
ADAPTER = json.dumps({"base_model_name_or_path": "evil/model"})
FAULTS = [
    *((partial(special, name, kind), rf"{name} is not a readable file")
      for name, kind in zip((*JSON, "model.safetensors", JSON[0]), ("pipe", "device", "folder", "broken link"),
                            strict=True)),
    *((partial(enlarged, name), rf"{name}.*MB") for name in JSON),
    *((lambda folder, name=name, text=text: (folder / name).write_text(text), ".")
      for name, texts in zip(JSON, (("[]", "\x00"), ("null", '"text"', "{")), strict=True) for text in texts),
    *((partial(indexed, place), r"model\.safetensors\.index\.json names")
      for place in ("../elsewhere.safetensors", "/elsewhere.safetensors", "pipe", 7)),
    *((partial(spoil, name=name, value=value), rf"NaN or infinite weights \({re.escape(name)}\)")
      for name, value in (("classifier.1.bias", np.inf), (f"{NORM}.running_mean", np.nan),
                          (f"{NORM}.running_var", np.inf))),
    (lambda folder: (folder / "adapter_config.json").write_text(ADAPTER), "adapter_config.json"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_malformed_checkpoint_files_are_rejected(fault, words, folder):
    fault(folder)
    refusal(folder, words)


def vit(path, attention=None, **settings):
    config = ViTConfig(num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32, **settings)
    config._attn_implementation = attention
    ViTForImageClassification(config).save_pretrained(path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(path)


def test_missing_weights_are_not_allocated(tmp_path, peak):
    """Check the config as well as the shapes: transformers fills missing weights with new numbers."""
    vit(tmp_path, hidden_size=32)
    save_file({"none": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    change(tmp_path, "config.json", hidden_size=2**14, num_hidden_layers=2)
    refusal(tmp_path, "more parameters")
    assert peak() < 300_000


@pytest.mark.parametrize("name", [None, "eager"])
def test_plain_attention_and_suspicious_labels_are_accepted(folder, name):
    labels = ["backbone", "quantization_config", "attn_implementation"]
    change(folder, "config.json", _attn_implementation=name, id2label=dict(enumerate(labels)),
           label2id=dict.fromkeys(labels, 10 ** 9))  # fmt: skip
    assert load_classifier(folder, device="cpu").labels == labels


def test_transformer_keeps_its_attention_implementation(tmp_path):
    vit(tmp_path, "sdpa", hidden_size=8)
    change(tmp_path, "config.json", _attn_implementation="sdpa")
    assert load_classifier(tmp_path, device="cpu").model.config._attn_implementation == "sdpa"


def test_sharded_checkpoint_is_loaded(folder, tmp_path):
    whole = load_classifier(folder, device="cpu")
    whole.model.save_pretrained(tmp_path / "parts", max_shard_size="1KB")
    (folder / "preprocessor_config.json").rename(tmp_path / "parts" / "preprocessor_config.json")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert load_classifier(tmp_path / "parts", device="cpu").digest == whole.digest


# Networks of timm


def timm_checkpoint(path, architecture="resnet10t", **arguments):
    pytest.importorskip("timm")
    frame = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0}
    about = {"architecture": "resnet10t", "num_classes": 3, "label_names": ["a", "b", "c"], "pretrained_cfg": frame}
    AutoModelForImageClassification.from_config(TimmWrapperConfig.from_dict(about)).save_pretrained(path)
    change(path, "config.json", architecture=architecture, model_args=arguments or None)
    return path


@pytest.mark.parametrize("arguments", [{"in_chans": 10**7}, {"layers": [8_000] * 4}, {"channels": [2**20] * 4}])
def test_timm_arguments_are_bounded(tmp_path, peak, arguments):
    refusal(timm_checkpoint(tmp_path, **arguments), "in_chans|modules|sum|parameters")
    assert peak() < 300_000


OUTSIDE = [
    ("local-dir:/somewhere/else", {}, "architecture.*local-dir"),
    ("hf-hub:evil/model", {}, "architecture.*hf-hub"),
    ("resnet10t", {"checkpoint_path": "weights.pth"}, "checkpoint_path"),
    ("resnet10t", {"pretrained": True}, "pretrained"),
    ("resnet10t", {"cache_dir": "x"}, "cache_dir"),
    ("resnet10t", {"act_layer": "/etc/passwd"}, "act_layer"),
    ("resnet10t", {"block_args": {"file": "https://evil"}}, "file"),
]


@pytest.mark.parametrize(("architecture", "arguments", "words"), OUTSIDE, ids=[f"{a} {b}" for a, b, _ in OUTSIDE])
def test_timm_config_cannot_access_external_files(tmp_path, monkeypatch, architecture, arguments, words):
    timm = pytest.importorskip("timm")
    folder = timm_checkpoint(tmp_path, architecture, **arguments)
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("built"))
    refusal(folder, words)


def test_harmless_timm_arguments_are_accepted(tmp_path):
    folder = timm_checkpoint(tmp_path, "resnet10t", act_layer="relu", drop_rate=0.1, in_chans=3, global_pool="avg")
    assert load_classifier(folder, device="cpu").labels == ["a", "b", "c"]


# Pictures with small files


def bomb(path, size):
    Image.new("1", size).save(path, "PNG")
    return path


@pytest.fixture
def classifier(resnet):
    return load_classifier(resnet, device="cpu")


def test_oversized_image_is_rejected_before_decoding(tmp_path, classifier):
    path = bomb(tmp_path / "bomb.png", (11_000, 11_000))
    assert path.stat().st_size < 100_000
    pictures = [path, path.read_bytes(), {"bytes": path.read_bytes(), "path": None}]
    with pytest.warns(Image.DecompressionBombWarning):
        pictures.append(Image.open(path))
    for picture in pictures:
        for row in ({"image": picture}, {"image": Image.new("RGB", (9, 9)), "mask": picture}):
            refused(f"{MAX_PIXELS // 10**6} million pixels", classifier.prepare, [row])
    refused("million pixels", sb.explain, path, classifier, "gradient")


def test_thin_image_that_resizes_too_large_is_rejected(tmp_path):
    path = bomb(tmp_path / "sliver.png", (1_000_000, 1))
    folder = checkpoint(tmp_path / "model", ConvNextImageProcessor(size={"shortest_edge": 224}))
    refused(r"image 0.*1000000 x 1.*million pixels", load_classifier(folder, device="cpu").prepare, [{"image": path}])


def test_truncated_image_file_is_rejected(tmp_path, classifier):
    path = tmp_path / "cut.jpg"
    Image.effect_noise((200, 200), 50).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    refused(r"image 0.*truncated", classifier.prepare, [{"image": Image.open(path)}])


# Training


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "new"


@pytest.fixture
def train(shapes, resnet, out):
    usual = {"dataset": str(shapes), "model": str(resnet), "out": out, "epochs": 1, "limit": 8, "batch_size": 4,
             "size": 32, "device": "cpu", "progress": False}  # fmt: skip
    return lambda **settings: sb.train(**usual | settings)


@pytest.mark.parametrize(("name", "value"), [
    ("classifier.1.weight", np.nan), ("resnet.embedder.embedder.convolution.weight", np.inf),
    (f"{NORM}.running_var", np.nan),
])  # fmt: skip
def test_training_rejects_non_finite_weights(tmp_path, train, out, resnet, name, value):
    folder = shutil.copytree(resnet, tmp_path / "model")
    spoil(folder, name, value)
    refused(f"{folder} has NaN or infinite weights \\({name}\\)", train, model=str(folder))
    assert not list(out.parent.iterdir())


def test_non_finite_loss_stops_training_without_output(train, out, monkeypatch):
    refused(r"loss.*nan.*--learning-rate", train, learning_rate=1e30)
    assert not list(out.parent.iterdir())
    losses = iter([0.5, float("nan")])  # in a later epoch
    monkeypatch.setattr(fitting, "one_epoch", lambda *_, **__: fitting.check_loss(next(losses), 1e-3))
    refused("loss", train, epochs=3)
    assert not list(out.parent.iterdir())


@pytest.mark.parametrize("settings", [{"hidden_sizes": [11_600]}, {"depths": [30_000]}, {"num_labels": 10**6},
                                      {"_attn_implementation": "evil/kernel"}], ids=str)  # fmt: skip
def test_hostile_config_is_rejected_for_training(tmp_path, train, peak, settings):
    file = tmp_path / "config.json"
    ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic").to_json_file(file)
    change(tmp_path, "config.json", **settings)
    refused(r"modules|parameters|num_labels|attn", train, model=str(file))
    assert peak() < 400_000
