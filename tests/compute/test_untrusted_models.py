"""A config of a few bytes asks for no memory beyond its weights, reaches no other folder, and loads no code."""

import json
import os
import shutil
import sys
import types

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_trust import change, checkpoint
from transformers import (
    AutoModelForImageClassification,
    ResNetConfig,
    TimmWrapperConfig,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

import saliency_bench as sb
from saliency_bench import load_classifier
from saliency_bench.compute.classifiers import untrusted
from saliency_bench.errors import UserError


@pytest.fixture
def peak():
    """peak() -> kB by which this process has grown since the test began."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def timm_checkpoint(path, architecture="resnet10t", **arguments):
    pytest.importorskip("timm")
    config = TimmWrapperConfig.from_dict(
        {
            "architecture": "resnet10t",
            "num_classes": 3,
            "label_names": ["a", "b", "c"],
            "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0},
        }
    )
    AutoModelForImageClassification.from_config(config).save_pretrained(path)
    change(path, "config.json", architecture=architecture, model_args=arguments or None)
    return path


def refusal(folder, words):
    with pytest.raises(UserError, match=words) as error:
        load_classifier(folder, device="cpu")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    return str(error.value)


HUGE = [
    ({"num_labels": 200_000, "id2label": None, "label2id": None}, "num_labels.*200000"),
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


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "words"), HUGE, ids=[str(case[0])[:60] for case in HUGE])
def test_a_config_that_asks_for_more_than_its_weights_is_refused_before_it_is_built(tmp_path, peak, settings, words):
    folder = checkpoint(tmp_path / "model")
    change(folder, "config.json", **settings)
    refusal(folder, words)
    assert peak() < 300_000


def test_weights_that_are_missing_are_not_allocated(tmp_path, peak):
    """transformers fills what a file lacks with new numbers, so the file's shapes alone bound nothing."""
    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32)
    ViTForImageClassification(config).save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    save_file({"none": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    change(tmp_path, "config.json", hidden_size=2**14, num_hidden_layers=2)
    refusal(tmp_path, "more parameters")
    assert peak() < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{"in_chans": 10**7}, {"layers": [8_000] * 4}, {"channels": [2**20] * 4}])
def test_arguments_of_timm_are_bounded(tmp_path, peak, arguments):
    refusal(timm_checkpoint(tmp_path, **arguments), "in_chans|modules|sum|parameters")
    assert peak() < 300_000


OUTSIDE = [
    ("local-dir:/somewhere/else", {}, "architecture.*local-dir"),
    ("hf-hub:evil/model", {}, "architecture.*hf-hub"),
    ("hf_hub:evil/model", {}, "architecture"),
    ("resnet10t", {"checkpoint_path": "weights.pth"}, "checkpoint_path"),
    ("resnet10t", {"pretrained": True}, "pretrained"),
    ("resnet10t", {"pretrained_cfg_overlay": {"file": "weights.pth"}}, "pretrained_cfg_overlay"),
    ("resnet10t", {"cache_dir": "x"}, "cache_dir"),
    ("resnet10t", {"act_layer": "/etc/passwd"}, "act_layer"),
    ("resnet10t", {"block_args": {"file": "https://evil"}}, "file"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("architecture", "arguments", "words"), OUTSIDE, ids=[f"{a} {b}" for a, b, _ in OUTSIDE])
def test_a_timm_config_reaches_nothing_outside_its_folder(tmp_path, monkeypatch, architecture, arguments, words):
    timm = pytest.importorskip("timm")
    folder = timm_checkpoint(tmp_path, architecture, **arguments)
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("built"))
    refusal(folder, words)


def test_harmless_arguments_of_timm_are_let_through(tmp_path):
    folder = timm_checkpoint(tmp_path, "resnet10t", act_layer="relu", drop_rate=0.1, in_chans=3, global_pool="avg")
    assert load_classifier(folder, device="cpu").labels == ["a", "b", "c"]


CODE = [
    {"_attn_implementation": "evil/kernel"},
    {"attn_implementation": "evil/kernel:fn"},
    {"attn_implementation": {"": "eager", "vision_config": "evil/kernel"}},
    {"vision_config": {"_attn_implementation": "evil/kernel"}},
    {"_attn_implementation_internal": "evil/kernel"},
    {"_experts_implementation": "evil/kernel"},
    {"attn_implementation": "flash_attention_3"},
    {"attn_implementation": "paged|sdpa"},
    {"use_kernels": True},
    {"kernel_config": {"RMSNorm": "evil/kernel:fn"}},
    {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
    {"vision_config": {"quantization_config": {"quant_method": "x"}}},
    {"backbone": "hf-hub:evil/model"},
    {"vision_config": {"backbone": "evil/model"}},
    {"use_pretrained_backbone": True},
    {"configuration_files": ["config.4.0.0.json"]},
]


@pytest.mark.parametrize("settings", CODE, ids=str)
def test_what_a_config_would_have_fetched_is_refused(tmp_path, monkeypatch, settings):
    kernels = types.ModuleType("kernels")
    kernels.get_kernel = lambda *_, **__: pytest.fail("a kernel is fetched")
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    folder = checkpoint(tmp_path / "model")
    change(folder, "config.json", **settings)
    assert "install" not in refusal(folder, "attn|experts|kernel|quantization|backbone|configuration_files")


@pytest.mark.parametrize("name", [None, "eager"])
def test_plain_attention_and_labels_with_such_names_are_let_through(tmp_path, name):
    folder = checkpoint(tmp_path / "model")
    labels = ["backbone", "quantization_config", "attn_implementation"]
    change(folder, "config.json", _attn_implementation=name, id2label=dict(enumerate(labels)),
           label2id=dict.fromkeys(labels, 10 ** 9))  # fmt: skip
    assert load_classifier(folder, device="cpu").labels == labels


def test_a_transformer_keeps_its_attention(tmp_path):
    config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32)
    config._attn_implementation = "sdpa"
    ViTForImageClassification(config).save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    change(tmp_path, "config.json", _attn_implementation="sdpa")
    assert load_classifier(tmp_path, device="cpu").model.config._attn_implementation == "sdpa"


def test_an_adapter_that_names_another_model_is_refused(tmp_path):
    folder = checkpoint(tmp_path / "model")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "evil/model"}))
    refusal(folder, "adapter_config.json")


def special(path, kind):
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "broken link": "nothing"}[kind])


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "broken link"])
@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors"])
def test_what_is_no_regular_file_is_named(tmp_path, name, kind):
    folder = checkpoint(tmp_path / "model")
    special(folder / name, kind)
    refusal(folder, rf"{name} is not a readable file")


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_json_of_many_megabytes_is_not_read(tmp_path, name):
    folder = checkpoint(tmp_path / "model")
    with (folder / name).open("a") as file:
        file.truncate(untrusted.LARGEST_JSON + 1)
    refusal(folder, rf"{name}.*MB")


@pytest.mark.parametrize("place", ["../elsewhere.safetensors", "/elsewhere.safetensors", "pipe", 7])
def test_an_index_leads_to_no_file_outside_its_folder(tmp_path, place):
    folder = checkpoint(tmp_path / "model")
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(folder / "model.safetensors"), place)}
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    save_file({"none": torch.zeros(1)}, folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refusal(folder, r"model\.safetensors\.index\.json names")


def test_a_checkpoint_of_several_files_is_loaded(tmp_path):
    folder = checkpoint(tmp_path / "model")
    whole = load_classifier(folder, device="cpu")
    whole.model.save_pretrained(tmp_path / "parts", max_shard_size="1KB")
    (folder / "preprocessor_config.json").rename(tmp_path / "parts" / "preprocessor_config.json")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert load_classifier(tmp_path / "parts", device="cpu").digest == whole.digest


LONG = [
    {"image_mean": [0.5] * 1000},
    {"image_mean": ["x" * 9000] * 3},
    {"size": {"height": "9" * 9000, "width": 1}},
    {"size": {f"edge{index}": 1 for index in range(999)}},
    {"size": {"height": 10**4000, "width": 1}},
    {"rescale_factor": "x" * 9000},
]


@pytest.mark.parametrize("settings", LONG, ids=[str(case)[:40] for case in LONG])
def test_a_long_value_is_quoted_in_part(tmp_path, settings):
    folder = checkpoint(tmp_path / "model")
    change(folder, "preprocessor_config.json", **settings)
    refusal(folder, "image processor|size must have")


@pytest.mark.parametrize("settings", [
    {"do_pad": True, "pad_size": {"height": 6000, "width": 6000}},
    {"do_pad": True},
    {"size": {"height": 4096, "width": 4096}},
    {"do_center_crop": True, "crop_size": {"height": 4096, "width": 4096}},
], ids=str)  # fmt: skip
def test_a_frame_that_is_padded_or_of_too_many_pixels_is_refused(tmp_path, peak, settings):
    folder = checkpoint(tmp_path / "model")
    change(folder, "preprocessor_config.json", **settings)
    refusal(folder, "pads|pixels")
    assert peak() < 300_000


# Training


def trained(folder, shapes, out, **settings):
    return sb.train(dataset=str(shapes), model=folder, out=out, epochs=1, limit=8, batch_size=4, size=32,
                    device="cpu", progress=False, **settings)  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["classifier.1.weight", "resnet.embedder.embedder.convolution.weight",
                                  "resnet.embedder.embedder.normalization.running_var"])  # fmt: skip
def test_no_training_starts_from_weights_that_are_not_finite(tmp_path, shapes, resnet, name, value):
    folder = tmp_path / "model"
    shutil.copytree(resnet, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[0] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    out = tmp_path / "out" / "new"
    out.parent.mkdir()
    with pytest.raises(UserError, match=f"{folder} has NaN or infinite weights \\({name}\\)"):
        trained(str(folder), shapes, out)
    assert not list(out.parent.iterdir())


def test_a_loss_that_is_not_finite_ends_the_training_with_one_line_and_no_file(tmp_path, shapes, resnet):
    out = tmp_path / "out" / "new"
    out.parent.mkdir()
    with pytest.raises(UserError, match=r"loss.*nan.*--learning-rate") as error:
        trained(str(resnet), shapes, out, learning_rate=1e30)
    assert "\n" not in str(error.value)
    assert not list(out.parent.iterdir())


def test_a_later_epoch_that_diverges_leaves_no_state(tmp_path, shapes, resnet, monkeypatch):
    from saliency_bench.compute import fitting

    losses = iter([0.5, float("nan")])
    monkeypatch.setattr(fitting, "one_epoch", lambda *_, **__: fitting.check_loss(next(losses), 1e-3))
    out = tmp_path / "out" / "new"
    out.parent.mkdir()
    with pytest.raises(UserError, match="loss"):
        sb.train(dataset=str(shapes), model=str(resnet), out=out, epochs=3, limit=8, size=32, device="cpu",
                 progress=False)  # fmt: skip
    assert not list(out.parent.iterdir())


@pytest.mark.sample(1)
@pytest.mark.parametrize("settings", [{"hidden_sizes": [11_600]}, {"depths": [30_000]}, {"num_labels": 10**6},
                                      {"_attn_implementation": "evil/kernel"}], ids=str)  # fmt: skip
def test_a_config_alone_is_checked_as_well(tmp_path, shapes, peak, settings):
    file = tmp_path / "config.json"
    ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic").to_json_file(file)
    change(tmp_path, "config.json", **settings)
    with pytest.raises(UserError, match=r"modules|parameters|num_labels|attn") as error:
        trained(str(file), shapes, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert peak() < 400_000
